/* SPDX-License-Identifier: Apache-2.0 */
/* One operation: what it moves, and whether it ended as it may. */
#include "worker.h"

#define SHORT 256 /* a receive's buffer that is too short for many messages */

/* --- its buffer -------------------------------------------------------------------------------- */

/* Nobody touches a buffer between two operations. */
static void buffer_take(struct worker *w, struct task *t)
{
    int64_t at = test_differs(t->buf, BUF, t->rest, 0);
    CHECK(at < 0, "byte %" PRId64 " of a buffer was touched after its operation (%d) had ended",
          at, t->kind);
    (void)w;
}

static void buffer_give(struct worker *w, struct task *t)
{
    int64_t at = test_differs(t->buf + PART, BUF - PART, t->rest, PART);
    CHECK(at < 0, "bytes behind a buffer were overwritten");
    t->rest = worker_pick(w, UINT32_MAX);
    test_fill(t->buf, BUF, t->rest, 0);
}

/* --- what it moves ------------------------------------------------------------------------------ */

static size_t draw_len(struct worker *w, size_t most)
{
    static const size_t limits[] = {8, 64, 64, 512, 4096, 4096, 20000, PART};
    size_t limit = limits[worker_pick(w, ARRAY_LEN(limits))];
    return worker_pick(w, (limit < most ? limit : most) + 1);
}

/* Cut [at, at + len) of the far memory into pieces, in any order. */
static void cut(struct worker *w, struct task *t, uint64_t at, size_t len)
{
    size_t n = worker_pick(w, 3) ? 1 : 1 + worker_pick(w, MAX_PIECES);
    size_t left = len, used = 0;
    weft_mem_t mem = worker_pick(w, 2) ? w->handle : 0;
    t->npieces = n;
    t->len = len;
    for (size_t i = 0; i < n; i++) {
        size_t piece = i + 1 == n ? left : worker_pick(w, 2 * left / (n - i) + 1);
        piece = piece < left ? piece : left;
        t->local[i] = (struct weft_local){t->buf + used, piece, mem};
        t->offset[i] = at + used;
        used += piece;
        left -= piece;
    }
    for (size_t i = n; i-- > 1;) { /* near and far in different orders */
        size_t j = worker_pick(w, i + 1);
        struct weft_local local = t->local[i];
        uint64_t offset = t->offset[i];
        t->local[i] = t->local[j];
        t->local[j] = local;
        t->offset[i] = t->offset[j];
        t->offset[j] = offset;
    }
}

static void fill_pieces(struct task *t)
{
    for (size_t i = 0; i < t->npieces; i++)
        test_fill(t->local[i].addr, t->local[i].len, t->seed, t->offset[i]);
}

/* The remote as it is now, and its generation. */
static bool refresh(struct worker *w)
{
    uint32_t generation = atomic_load(&w->account->generation);
    if (generation % 2)
        return false; /* being registered */
    if (generation != w->generation || !generation) {
        struct weft_remote remote = w->account->remote;
        if (atomic_load(&w->account->generation) != generation)
            return false;
        w->old = w->remote;
        w->has_old = w->generation > 0;
        w->remote = remote;
        w->generation = generation;
        for (int i = 0; i < MAX_PIECES; i++)
            w->remotes[i] = remote;
    }
    return true;
}

/* A notification of its own, or to go with a data operation. */
static bool add_note(struct worker *w, struct task *t, size_t len, size_t box_len)
{
    if (w->next_note == MAX_SEQ)
        return false;
    struct note note = {.magic = NOTE_MAGIC,
                        .slot = (uint8_t)w->slot->index,
                        .worker = (uint8_t)w->index,
                        .box = (uint8_t)(t->kind == BOX_WRITE ? t->box + 1 : 0),
                        .plain = t->kind == NOTIFY,
                        .epoch = w->slot->epoch,
                        .seq = w->next_note++,
                        .len = (uint32_t)len,
                        .box_len = (uint32_t)box_len,
                        .seed = t->seed};
    note_fill(t->note, &note);
    t->noted = true;
    t->note_len = len;
    t->seq = note.seq;
    atomic_store(&w->account->notifs.sent[note.seq], SENT_UNKNOWN);
    return true;
}

static bool prepare_data(struct worker *w, struct task *t)
{
    uint64_t from = (uint64_t)t->part * PART;
    size_t len = draw_len(w, PART);
    if (t->kind == STALE_WRITE && (!w->has_old || (len = len % 100 + 1) > PART))
        return false;
    cut(w, t, from + worker_pick(w, PART - len + 1), len);
    if (t->kind == WRITE || t->kind == STALE_WRITE)
        fill_pieces(t);
    if (t->kind != STALE_WRITE && worker_pick(w, 8) == 0)
        add_note(w, t, NOTE_MIN + draw_len(w, 2000), 0);
    return true;
}

static bool prepare_box(struct worker *w, struct task *t)
{
    t->box = (int)worker_pick(w, BOXES);
    size_t len = worker_pick(w, BOX + 1);
    if (atomic_load(&w->account->box_busy[t->box]) || !add_note(w, t, NOTE_MIN, len))
        return false;
    atomic_store(&w->account->box_busy[t->box], 1);
    cut(w, t, 0, len);
    for (size_t i = 0; i < t->npieces; i++) {
        test_fill(t->local[i].addr, t->local[i].len, t->seed, t->offset[i]);
        t->offset[i] += AREA + (size_t)t->box * BOX;
    }
    return true;
}

static bool prepare_add(struct worker *w, struct task *t)
{
    if (w->adding || w->account->nmaybe == MAX_MAYBE)
        return false;
    w->adding = true;
    t->value = worker_pick(w, 1ull << 40);
    t->offset[0] = WORD_AT;
    return true;
}

static bool prepare_message(struct worker *w, struct task *t)
{
    size_t len = NOTE_MIN + draw_len(w, PART - 1000 - NOTE_MIN);
    if (t->kind == NOTIFY) {
        return add_note(w, t, len, 0);
    } else if (t->kind == RECV) {
        cut(w, t, 0, worker_pick(w, 16) ? PART : SHORT);
        return true;
    }
    if (w->next_send == MAX_SEQ)
        return false;
    struct note note = {.magic = NOTE_MAGIC,
                        .slot = (uint8_t)w->slot->index,
                        .epoch = w->slot->epoch,
                        .seq = w->next_send++,
                        .len = (uint32_t)len,
                        .seed = t->seed};
    note_fill(t->buf, &note);
    t->seq = note.seq;
    t->npieces = 1;
    t->len = len;
    t->local[0] = (struct weft_local){t->buf, len, worker_pick(w, 2) ? w->handle : 0};
    atomic_store(&w->sends->sent[t->seq], SENT_UNKNOWN);
    return true;
}

static bool prepare(struct worker *w, struct task *t)
{
    switch (t->kind) {
    case WRITE:
    case READ:
    case STALE_WRITE:
        return prepare_data(w, t);
    case BOX_WRITE:
        return prepare_box(w, t);
    case ADD:
        return prepare_add(w, t);
    case HOT_ADD:
        t->value = 1;
        t->offset[0] = 0;
        return true;
    default:
        return prepare_message(w, t);
    }
}

static struct weft_xfer make_xfer(struct worker *w, struct task *t)
{
    static const enum weft_xfer_op ops[] = {
        [WRITE] = WEFT_XFER_WRITE,     [READ] = WEFT_XFER_READ,
        [BOX_WRITE] = WEFT_XFER_WRITE, [STALE_WRITE] = WEFT_XFER_WRITE,
        [ADD] = WEFT_XFER_ADD,         [HOT_ADD] = WEFT_XFER_ADD,
        [SEND] = WEFT_XFER_SEND,       [NOTIFY] = WEFT_XFER_NOTIFY,
        [RECV] = WEFT_XFER_RECV};
    bool add = t->kind == ADD || t->kind == HOT_ADD, data = t->kind <= STALE_WRITE;
    struct weft_xfer x = {.struct_size = sizeof x, .op = ops[t->kind]};
    if (!add && t->kind != NOTIFY) {
        x.local = t->local;
        x.nlocal = t->npieces;
    }
    if (add || data) {
        x.remote = w->remotes;
        x.nremote = add ? 1 : t->npieces;
        x.remote_offset = t->offset;
    }
    if (t->kind == HOT_ADD)
        x.remote = &w->side->ledger->hot[w->side->peer];
    if (t->kind == STALE_WRITE)
        for (int i = 0; i < MAX_PIECES; i++)
            w->remotes[i] = w->old;
    x.value = t->value;
    x.result = add ? &t->result : NULL;
    x.notify = t->noted ? t->note : NULL;
    x.notify_len = t->noted ? t->note_len : 0;
    x.flags = worker_pick(w, 8) ? 0 : WEFT_XFER_MORE;
    return x;
}

/* --- how it ended ------------------------------------------------------------------------------- */

/* May it end with this? */
static void judge(struct worker *w, const struct task *t, int rc, const char *text)
{
    const struct plan *plan = &w->side->plan;
    bool one_sided = t->kind <= ADD, message = t->kind == SEND || t->kind == RECV;
    if (rc == 0 || (rc == WEFT_ECANCELED && (t->canceled || t->kind == RECV)) ||
        (rc == WEFT_ETIMEOUT && t->timeout_ms >= 0) || (rc == WEFT_ETRUNC && message) ||
        (rc == WEFT_EKEY && one_sided && atomic_load(&w->account->generation) != t->generation) ||
        (rc == WEFT_EKEY && t->kind == STALE_WRITE) ||
        (rc == WEFT_ELINK && (plan->dies || plan->closes) &&
         (t->kind == ADD || t->kind == HOT_ADD))) /* one of several links is gone, others follow */
        return;
    CHECK(slot_failed(w->side, w->slot, rc) || (rc == -EIO && plan->fails),
          "operation %d of %zu bytes ended with %s: %s", t->kind, t->len, weft_err_name(rc), text);
}

static void ended_data(struct worker *w, struct task *t, int rc)
{
    for (size_t i = 0; i < t->npieces; i++) {
        size_t at = t->offset[i], len = t->local[i].len;
        if (t->kind == WRITE && rc == 0) {
            account_wrote(w->account, at, len, t->seed, at);
        } else if (t->kind == WRITE) {
            account_unknown(w->account, at, len);
        } else if (rc == 0) {
            int64_t differs = account_differs(w->account, t->local[i].addr, at, len);
            CHECK(differs < 0, "byte %" PRId64 " of %zu was read wrong", differs, len);
        }
    }
    if (rc == 0)
        count(w->side, TOTAL_BYTES, t->len);
}

static void ended_add(struct worker *w, struct task *t, int rc)
{
    struct account *a = w->account;
    struct ledger *ledger = w->side->ledger;
    int peer = w->side->peer;
    count(w->side, TOTAL_ADDS, rc == 0);
    if (t->kind == HOT_ADD) {
        atomic_fetch_add(rc ? &ledger->hot_maybe[peer] : &ledger->hot_sum[peer], 1);
        return;
    }
    w->adding = false;
    if (rc == 0)
        account_added(a, t->result, t->value);
    else if (rc != WEFT_EKEY && rc != WEFT_EHANDLE)
        a->maybe[a->nmaybe++] = t->value;
}

static void ended_recv(struct worker *w, struct task *t, int rc, uint64_t bytes)
{
    if (rc == WEFT_ETRUNC) {
        CHECK(bytes > t->len, "a receive of %zu was too short for %" PRIu64, t->len, bytes);
        atomic_fetch_add(&w->got->received_short, 1);
    }
    if (rc)
        return;
    /* pieces of a buffer are in any order, so gather them */
    static _Thread_local unsigned char whole[PART];
    uint64_t used = 0;
    for (size_t i = 0; i < t->npieces; used += t->local[i++].len)
        for (size_t k = 0; k < t->local[i].len && used + k < bytes; k++)
            whole[used + k] = ((volatile unsigned char *)t->local[i].addr)[k];
    struct note note = note_check(whole, bytes);
    CHECK(atomic_fetch_add(&w->got->received[note.seq], 1) == 0, "message %u came twice",
          note.seq);
    CHECK(note.epoch == w->slot->epoch, "message %u of conn %u came by conn %u", note.seq,
          note.epoch, w->slot->epoch);
    CHECK(note.seq >= w->last_got, "message %u came after %u", note.seq, w->last_got);
    w->last_got = note.seq;
    count(w->side, TOTAL_MESSAGES, 1);
}

static void ended_send(struct worker *w, struct task *t, int rc)
{
    if (rc == 0)
        atomic_store(&w->sends->sent[t->seq], SENT_DONE);
    else
        atomic_fetch_add(rc == WEFT_ETRUNC ? &w->sends->sent_short : &w->sends->unknown, 1);
}

static void task_end(struct worker *w, struct task *t, int rc, const struct weft_op_status *status)
{
    judge(w, t, rc, status->text);
    CHECK(t->kind != STALE_WRITE || rc != 0, "a write with a stale key went through");
    CHECK(rc || t->kind == RECV || t->kind == NOTIFY || t->kind == ADD || t->kind == HOT_ADD ||
              status->bytes == t->len,
          "operation %d of %zu bytes moved %" PRIu64, t->kind, t->len, status->bytes);
    if (t->noted && rc == 0)
        atomic_store(&w->account->notifs.sent[t->seq], SENT_DONE);
    if (t->kind == WRITE || t->kind == READ)
        ended_data(w, t, rc);
    else if (t->kind == ADD || t->kind == HOT_ADD)
        ended_add(w, t, rc);
    else if (t->kind == RECV)
        ended_recv(w, t, rc, status->bytes);
    else if (t->kind == SEND)
        ended_send(w, t, rc);
    count(w->side, TOTAL_OPS, 1);
    count(w->side, TOTAL_CANCELED, rc == WEFT_ECANCELED || rc == WEFT_ETIMEOUT);
    buffer_give(w, t);
    t->busy = false;
}

/* --- its life ----------------------------------------------------------------------------------- */

/* Nothing was started: what was foreseen is not. */
static void withdraw(struct worker *w, struct task *t)
{
    if (t->noted)
        atomic_store(&w->account->notifs.sent[t->seq], SENT_NOT);
    if (t->kind == BOX_WRITE)
        atomic_store(&w->account->box_busy[t->box], 0);
    if (t->kind == SEND)
        atomic_store(&w->sends->sent[t->seq], SENT_NOT);
    w->adding = t->kind == ADD ? false : w->adding;
    test_fill(t->buf, BUF, t->rest, 0);
    t->busy = false;
}

void task_begin(struct worker *w, struct task *t, enum kind kind, int timeout_ms)
{
    t->kind = kind;
    t->canceled = t->noted = false;
    t->timeout_ms = timeout_ms;
    t->seed = worker_pick(w, UINT32_MAX);
    t->len = t->npieces = 0;
    if (kind <= ADD && !refresh(w))
        return;
    buffer_take(w, t);
    t->generation = w->generation;
    if (!prepare(w, t)) {
        test_fill(t->buf, BUF, t->rest, 0);
        return;
    }
    t->busy = true;
    struct weft_op_status status = {0};
    struct weft_xfer x = make_xfer(w, t);
    int rc;
    if (timeout_ms >= 0) {
        rc = (int)weft_transfer(w->slot->conn, &x, timeout_ms, &status);
        task_end(w, t, rc < 0 ? rc : 0, &status);
    } else {
        rc = weft_post(w->slot->conn, &x, &t->op);
        if (rc) {
            CHECK(slot_failed(w->side, w->slot, rc), "post: %s", weft_last_error());
            withdraw(w, t);
        }
    }
    if (kind == STALE_WRITE)
        for (int i = 0; i < MAX_PIECES; i++)
            w->remotes[i] = w->remote;
}

bool task_poll(struct worker *w, struct task *t)
{
    struct weft_op_status status;
    int rc = weft_op_poll(t->op, &status);
    if (rc == 0)
        return false;
    task_end(w, t, rc == 1 ? 0 : rc, &status);
    return true;
}

bool task_wait(struct worker *w, struct task *t, int timeout_ms)
{
    struct weft_op_status status;
    int rc = weft_op_wait(t->op, timeout_ms, &status);
    if (rc == WEFT_ETIMEOUT && status.status == WEFT_EAGAIN)
        return false;
    task_end(w, t, rc, &status);
    return true;
}

void task_cancel(struct worker *w, struct task *t)
{
    (void)w;
    t->canceled = true;
    WEFT_OK(weft_op_cancel(t->op));
}
