/* SPDX-License-Identifier: Apache-2.0 */
/* What has to be true: bytes, operations, messages, notifications. */
#include "ledger.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LENT_LEAST 16384 /* shorter payload is never lent to a kernel */
#define UNTOUCHED 0x11
#define GUARD_BYTE 0x99
#define SCRIBBLE 0xee
#define MAX_KEPT 8192

struct actor actors[SIM_MAX_PROCS];
static struct end *ends[MAX_ENDS];
static int nends;

/* Local memory whose operation has ended: nobody may touch it. */
static struct {
    uint8_t *base;
    size_t len;
} kept[MAX_KEPT];
static int nkept;

/* --- bytes --------------------------------------------------------------------------------- */

static uint64_t word_of(uint64_t seed, uint64_t i)
{
    uint64_t z = (seed + i * 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
    return z ^ z >> 29;
}

void ledger_fill(void *at, size_t len, uint64_t seed)
{
    for (size_t i = 0; i < len; i += 8) {
        uint64_t w = word_of(seed, i);
        memcpy((uint8_t *)at + i, &w, len - i < 8 ? len - i : 8);
    }
}

int64_t ledger_differs(const void *at, size_t len, uint64_t seed)
{
    for (size_t i = 0; i < len; i += 8) {
        uint64_t w = word_of(seed, i);
        if (memcmp((const uint8_t *)at + i, &w, len - i < 8 ? len - i : 8))
            return (int64_t)i;
    }
    return -1;
}

static bool all_are(const uint8_t *at, size_t len, int byte)
{
    return !len || (*at == byte && !memcmp(at, at + 1, len - 1));
}

static uint64_t hash_of(const uint8_t *at, size_t len)
{
    uint64_t h = len;
    for (size_t i = 0; i < len; i += 8) {
        uint64_t w = 0;
        memcpy(&w, at + i, len - i < 8 ? len - i : 8);
        h = (h ^ w) * 0x9fb21c651e98df25u;
        h ^= h >> 32;
    }
    return h;
}

/* --- areas --------------------------------------------------------------------------------- */

uint64_t *area_word(const struct area *area, int word)
{
    return (uint64_t *)(void *)(area->base + GUARD) + word;
}

uint8_t *area_slot(const struct area *area, int slot)
{
    return area->base + 2 * GUARD + WORDS * 8 + (size_t)slot * (area->slot_len + GUARD);
}

void area_make(struct actor *actor, struct area *area, size_t slot_len)
{
    *area = (struct area){.owner = actor, .slot_len = slot_len};
    area->len = 2 * GUARD + WORDS * 8 + SLOTS * (slot_len + GUARD);
    area->base = sim_alloc(area->len);
}

/* It has a user now. */
static void area_begin(struct area *area, struct end *user)
{
    size_t slot_len = area->slot_len;
    area->user = user;
    memset(area->base, GUARD_BYTE, area->len);
    for (int i = 0; i < WORDS; i++)
        *area_word(area, i) = 0;
    for (int i = 0; i < SLOTS; i++) {
        memset(area_slot(area, i), UNTOUCHED, slot_len);
        area->slots[i].shadow = sim_alloc(slot_len + 1);
        memset(area->slots[i].shadow, UNTOUCHED, slot_len);
    }
}

static void word_check(const struct area *area, int w)
{
    uint64_t value = *area_word(area, w);
    for (int i = 0; i < DIGITS; i++) {
        int times = (int)(value >> 2 * i & 3);
        enum fate fate = i < area->digits[w] ? area->fate[w][i] : FATE_FAILED;
        SIM_CHECK(times <= 1, "an addition took place %d times", times);
        SIM_CHECK(times || fate != FATE_OK, "an addition that ended well did not take place");
        SIM_CHECK(!times || i < area->digits[w], "an addition that was never posted took place");
    }
}

static void slot_check(const struct area *area, int i)
{
    const struct slot *slot = &area->slots[i];
    const uint8_t *at = area_slot(area, i);
    SIM_CHECK(all_are(at + area->slot_len, GUARD, GUARD_BYTE),
              "bytes behind a write were changed");
    if (!memcmp(at, slot->shadow, area->slot_len))
        return;
    SIM_CHECK(slot->len, "bytes of a target changed, and no write was under way");
    for (size_t k = 0; k < area->slot_len; k++) {
        uint64_t w = word_of(slot->seed, k & ~(size_t)7);
        uint8_t wrote = ((const uint8_t *)&w)[k & 7];
        bool is_new = k < slot->len && at[k] == wrote;
        bool is_later = k < slot->len && slot->len > LENT_LEAST && at[k] == (wrote ^ SIM_LATER);
        SIM_CHECK(is_new || is_later || at[k] == slot->shadow[k],
                  "byte %zu of a write of %zu is neither old nor new", k, slot->len);
    }
}

void area_check(struct area *area)
{
    if (!area->user)
        return;
    SIM_CHECK(all_are(area->base, GUARD, GUARD_BYTE) &&
                  all_are(area->base + GUARD + WORDS * 8, GUARD, GUARD_BYTE),
              "bytes before a write were changed");
    for (int i = 0; i < WORDS; i++)
        word_check(area, i);
    for (int i = 0; i < SLOTS; i++)
        slot_check(area, i);
    SIM_CHECK(!area->frozen || area->hash == hash_of(area->base, area->len),
              "memory changed after its registration or its conn had ended");
}

void area_freeze(struct area *area)
{
    area->frozen = true;
    if (!area->user)
        return;
    area->hash = hash_of(area->base, area->len);
    area_check(area);
}

/* --- ends ---------------------------------------------------------------------------------- */

struct end *end_at(int id)
{
    return id >= 0 && id < nends ? ends[id] : NULL;
}

int end_count(void)
{
    return nends;
}

struct end *end_find(const struct actor *actor, weft_conn_t handle)
{
    for (int i = 0; i < nends; i++)
        if (ends[i]->actor == actor && ends[i]->handle == handle)
            return ends[i];
    return NULL;
}

struct end *end_new(struct actor *actor, weft_conn_t handle, bool initiator, struct actor *peer)
{
    struct end *end = end_find(actor, handle);
    if (!end) {
        SIM_CHECK(nends < MAX_ENDS, "the simulation has too many conns");
        end = sim_alloc(sizeof *end);
        *end = (struct end){.id = nends, .actor = actor, .handle = handle};
        ends[nends++] = end;
        sim.conns++;
    }
    end->initiator |= initiator;
    end->peer = peer ? peer : end->peer;
    for (int i = 0; peer && i < AREAS && !end->area; i++) /* NULL: nothing to write to */
        if (peer->areas[i].open && !peer->areas[i].frozen && !peer->areas[i].user) {
            end->area = &peer->areas[i];
            area_begin(end->area, end);
        }
    return end;
}

/* --- ops ----------------------------------------------------------------------------------- */

struct op *op_new(struct end *end, enum weft_xfer_op kind)
{
    for (int i = 0; i < MAX_OPS; i++) {
        struct op *op = &end->actor->ops[i];
        if (op->used)
            continue;
        *op = (struct op){.used = true, .end = end, .kind = kind, .mark = -1, .busy = true};
        return op;
    }
    return NULL;
}

uint8_t *piece_memory(size_t len)
{
    uint8_t *base = sim_alloc(len + 2 * GUARD);
    memset(base, GUARD_BYTE, len + 2 * GUARD);
    return base + GUARD;
}

/* The memory is the program's again: it changes it, and nobody else may. */
static void piece_retire(const struct piece *piece)
{
    uint8_t *base = piece->at - GUARD;
    SIM_CHECK(all_are(base, GUARD, GUARD_BYTE) &&
                  all_are(piece->at + piece->len, GUARD, GUARD_BYTE),
              "bytes beside local memory were changed");
    memset(piece->at, SCRIBBLE, piece->len);
    SIM_CHECK(nkept < MAX_KEPT, "the simulation keeps too much memory");
    kept[nkept].base = piece->at;
    kept[nkept++].len = piece->len;
}

static void release_slots(struct op *op, bool well, bool nothing)
{
    for (int i = 0; op->kind == WEFT_XFER_WRITE && i < op->npieces; i++) {
        struct slot *slot = &op->pieces[i].area->slots[op->pieces[i].slot];
        slot->busy = false;
        if (well && op->pieces[i].area->frozen) {
            ledger_fill(slot->shadow, slot->len, slot->seed);
        } else if (well) { /* the target's program uses it; nobody else may write it any more */
            memset(area_slot(op->pieces[i].area, op->pieces[i].slot), SCRIBBLE, slot->len);
            memset(slot->shadow, SCRIBBLE, slot->len);
        }
        if (well || nothing)
            slot->len = 0;
        else
            slot->dirty = true;
    }
}

void op_drop(struct op *op)
{
    release_slots(op, false, true);
    if (op->kind == WEFT_XFER_ADD)
        op->end->area->fate[op->word][op->index] = FATE_FAILED;
    for (int i = 0; i < op->npieces; i++)
        piece_retire(&op->pieces[i]);
    if (op->kind == WEFT_XFER_RECV)
        op->end->waiting_recvs--;
    op->used = false;
}

static bool has_conn_code(int status)
{
    return status == WEFT_EPEER || status == WEFT_ETIMEOUT || status == WEFT_EREFUSED ||
           status == WEFT_ENOPATH || status == WEFT_ELINK || status == -ECONNREFUSED ||
           status == -ECONNRESET || status == -ETIMEDOUT || status == -EMFILE ||
           status == -EHOSTUNREACH;
}

/* A blocking call whose deadline had passed has closed it, to have its memory back. */
static bool was_given_up(const struct end *end)
{
    struct weft_conn_info info;
    return !sim.plan.calm && weft_conn_info(end->handle, &info) == 0 && info.state == WEFT_CONN_DOWN &&
           strstr(info.why, "a blocking call had to");
}

void status_check(const struct end *end, const struct op *op, int status, const char *what)
{
    bool fine = false;
    if (status >= 0)
        return;
    /* receives that no one sends to end with their conn, which may never have come up, and which a passive endpoint
     * closes by itself when the peer has gone */
    bool reaped = status == WEFT_EHANDLE && end && !end->initiator && end->actor->passive && end->peer &&
                  !end->peer->open;
    if (op && op->kind == WEFT_XFER_RECV && sim.leaving &&
        (status == WEFT_ECLOSED || reaped || has_conn_code(status)))
        return;
    if (sim.plan.frail && op && op->kind == WEFT_XFER_ADD && status == WEFT_ELINK)
        return; /* whether it took place, nobody can know */
    SIM_CHECK(!sim.plan.calm, "%s failed with %s: %s", what, weft_err_name(status),
              weft_last_error());
    if (status == -ENOMEM)
        fine = sim.nagging;
    else if (status == WEFT_ECLOSED || status == WEFT_EHANDLE)
        fine = !end || end->closing || end->closed || !end->actor->open || !end->initiator ||
               (end->peer && !end->peer->open) /* it refused, since it closes */ || was_given_up(end);
    else if (op && status == WEFT_ECANCELED)
        fine = op->canceled || op->kind == WEFT_XFER_RECV;
    else if (op && status == WEFT_ETRUNC)
        fine = op->kind == WEFT_XFER_SEND || op->kind == WEFT_XFER_RECV;
    else if (op && status == WEFT_EKEY)
        fine = op->late || (op->pieces[0].area && !op->pieces[0].area->open) ||
               (op->kind == WEFT_XFER_ADD && !end->area->open);
    else if (op && status == WEFT_ETIMEOUT && op->deadline)
        fine = true;
    else
        fine = has_conn_code(status);
    SIM_CHECK(fine, "%s failed with %s: %s", what, weft_err_name(status), weft_last_error());
}

static void read_ended(const struct op *op, int status)
{
    for (int i = 0; status == 0 && i < op->npieces; i++) {
        const struct piece *p = &op->pieces[i];
        SIM_CHECK(!memcmp(p->at, op->end->peer->source + p->offset, p->len),
                  "a read of %zu bytes that ended well brought others", p->len);
    }
}

static void add_ended(struct op *op, int status)
{
    struct area *area = op->end->area;
    area->fate[op->word][op->index] = status == 0 ? FATE_OK : FATE_FAILED;
    if (status)
        return;
    SIM_CHECK((op->result >> 2 * op->index & 3) == 0,
              "an addition saw itself before it took place");
    SIM_CHECK((*area_word(area, op->word) >> 2 * op->index & 3) == 1,
              "an addition ended well and did not take place once");
}

static void msg_ended(struct msg *msg, int status)
{
    msg->fate = status == 0 ? FATE_OK : status == WEFT_ETRUNC ? FATE_TRUNCATED : FATE_FAILED;
    msg->ended = sim.now;
}

/* The bytes of a message, from the pieces of a RECV. */
static void gather(const struct op *op, uint8_t *to, size_t len)
{
    for (int i = 0; i < op->npieces && len; i++) {
        size_t n = op->pieces[i].len < len ? op->pieces[i].len : len;
        memcpy(to, op->pieces[i].at, n);
        to += n;
        len -= n;
    }
}

static void meet(struct end *end, struct end *from)
{
    SIM_CHECK(from && from->actor != NULL, "a message of a conn that never was");
    SIM_CHECK(!end->other || end->other == from, "a message of another conn");
    SIM_CHECK(!from->other || from->other == end, "a message for another conn");
    end->other = from;
    from->other = end;
}

static void recv_ended(struct op *op, const struct weft_op_status *status)
{
    struct end *end = op->end;
    end->waiting_recvs--;
    end->recv_len[op->index] = status->bytes;
    if (status->status == WEFT_ETRUNC) {
        end->recvs[op->index] = -2;
        SIM_CHECK(status->bytes > op->total,
                  "a message of %" PRIu64 " bytes was too long for %" PRIu64, status->bytes,
                  op->total);
    }
    if (status->status)
        return;
    uint8_t *bytes = sim_alloc(status->bytes + HEAD);
    uint32_t head[4];
    SIM_CHECK(status->bytes >= HEAD && status->bytes <= op->total,
              "a message of %" PRIu64 " bytes", status->bytes);
    gather(op, bytes, status->bytes);
    memcpy(head, bytes, HEAD);
    meet(end, end_at((int)head[0]));
    struct end *from = end->other;
    SIM_CHECK(head[1] < (uint32_t)from->nsends, "a message that was never sent");
    struct msg *msg = &from->sends[head[1]];
    SIM_CHECK(msg->len == status->bytes, "a message of %" PRIu64 " bytes came with %" PRIu64,
              msg->len, status->bytes);
    SIM_CHECK(!msg->received, "message %u came twice", head[1]);
    SIM_CHECK(ledger_differs(bytes + HEAD, msg->len - HEAD, (uint64_t)head[0] << 32 | head[1]) < 0,
              "message %u came with other bytes", head[1]);
    msg->received = true;
    end->recvs[op->index] = head[1];
}

void op_ended(struct op *op, const struct weft_op_status *status)
{
    static const char *const names[] = {"", "write", "read", "send", "recv", "notify", "add"};
    struct end *end = op->end;
    int code = status->status;
    sim_trace("op ended", end->id * 1000 + (int)op->kind, op->index, code);
    status_check(end, op, code, names[op->kind]);
    SIM_CHECK(code || !op->late || !op->total,
              "%s of memory that was no longer registered ended "
              "well",
              names[op->kind]);
    sim.ops_ok += code == 0;
    if (code == 0 && op->kind != WEFT_XFER_RECV && op->kind != WEFT_XFER_NOTIFY)
        SIM_CHECK(status->bytes == op->total, "%s of %" PRIu64 " bytes moved %" PRIu64,
                  names[op->kind], op->total, status->bytes);
    for (int i = 0; code == 0 && op->kind == WEFT_XFER_WRITE && i < op->npieces; i++)
        SIM_CHECK(ledger_differs(area_slot(op->pieces[i].area, op->pieces[i].slot),
                                 op->pieces[i].len, op->pieces[i].seed) < 0,
                  "a write that ended well is not in place");
    release_slots(op, code == 0, false);
    if (op->kind == WEFT_XFER_READ)
        read_ended(op, code);
    else if (op->kind == WEFT_XFER_ADD)
        add_ended(op, code);
    else if (op->kind == WEFT_XFER_SEND)
        msg_ended(&end->sends[op->index], code);
    else if (op->kind == WEFT_XFER_NOTIFY)
        msg_ended(&end->notes[op->index], code);
    else if (op->kind == WEFT_XFER_RECV)
        recv_ended(op, status);
    if (op->mark >= 0)
        msg_ended(&end->marks[op->mark], code);
    for (int i = 0; i < op->npieces; i++)
        piece_retire(&op->pieces[i]);
    op->used = false;
}

/* --- notifications ------------------------------------------------------------------------- */

static struct op *marked_op(const struct end *from, int mark)
{
    for (int i = 0; i < MAX_OPS; i++) {
        struct op *op = &from->actor->ops[i];
        if (op->used && op->end == from && op->mark == mark)
            return op;
    }
    return NULL;
}

/* A notification that came with data: the data is in place. */
static void mark_arrived(struct end *from, int mark)
{
    SIM_CHECK(mark < from->nmarks, "a notification that was never sent");
    SIM_CHECK(!from->marks[mark].received, "a notification came twice");
    from->marks[mark].received = true;
    const struct op *op = marked_op(from, mark);
    for (int i = 0; op && i < op->npieces; i++) {
        const struct piece *p = &op->pieces[i];
        if (op->kind == WEFT_XFER_WRITE)
            SIM_CHECK(ledger_differs(area_slot(p->area, p->slot), p->len, p->seed) < 0,
                      "a notification came before the data of its write");
        else
            SIM_CHECK(!memcmp(p->at, op->end->peer->source + p->offset, p->len),
                      "a notification came before the data of its read");
    }
    if (op && op->kind == WEFT_XFER_ADD)
        SIM_CHECK((*area_word(from->area, op->word) >> 2 * op->index & 3) == 1,
                  "a notification came before its addition");
}

void note_arrived(struct actor *actor, const struct weft_notif *notif)
{
    uint32_t head[4];
    SIM_CHECK(notif->len >= HEAD, "a notification of %zu bytes", notif->len);
    memcpy(head, notif->data, HEAD);
    struct end *from = end_at((int)head[0]), *end = end_find(actor, notif->conn);
    if (!end)
        end = end_new(actor, notif->conn, false, from ? from->actor : NULL);
    meet(end, from);
    sim_trace("note", from->id, head[1], head[2]);
    SIM_CHECK(ledger_differs((uint8_t *)notif->data + HEAD, notif->len - HEAD,
                             (uint64_t)head[0] << 32 | head[1]) < 0,
              "a notification came with other bytes");
    if (head[2]) {
        mark_arrived(from, (int)head[1]);
        return;
    }
    int i = (int)head[1];
    SIM_CHECK(i < from->nnotes && from->notes[i].len == notif->len,
              "a notification that was never sent");
    SIM_CHECK(i >= end->notes_seen, "notification %d came after number %d", i,
              end->notes_seen - 1);
    end->notes_seen = i + 1;
    from->notes[i].received = true;
}

/* --- the end ------------------------------------------------------------------------------- */

#define SHORT_MOST 64 /* bytes of a notification that is never fetched, but where WEFT_EAGER is 0 */
#define FETCH_MOST (20 * (uint64_t)SIM_MS) /* after its sender has given up */

static bool reads_all(const struct end *end)
{
    return end->other && !end->other->actor->blind && !end->other->actor->proc->dying;
}

/* As the reader looked for the last time this one may have been on its way to him: a long one is fetched, which goes on
 * for a while where the sender has given up. */
static bool was_under_way(const struct msg *m, uint64_t drained)
{
    if (m->received || m->len <= SHORT_MOST)
        return false;
    bool gave_up = m->fate == FATE_FAILED && m->ended && m->ended + FETCH_MOST >= drained;
    return m->fate == FATE_PENDING || m->ended >= drained || gave_up;
}

/* One of these may have been before msg in the reader's queue then, and held it up. */
static bool held_up_by(const struct msg *msgs, int n, const struct msg *msg, uint64_t drained)
{
    for (int i = 0; i < n; i++)
        if (&msgs[i] != msg && msgs[i].posted <= msg->ended && was_under_way(&msgs[i], drained))
            return true;
    return false;
}

/* It was said to be in the queue of one who reads all of that. */
static bool was_to_arrive(const struct end *end, const struct msg *msg)
{
    if (!reads_all(end) || msg->fate != FATE_OK)
        return false;
    uint64_t drained = end->other->actor->drained;
    return msg->ended < drained && !held_up_by(end->notes, end->nnotes, msg, drained) &&
           !held_up_by(end->marks, end->nmarks, msg, drained);
}

static void messages_check(const struct end *end)
{
    int64_t last = -1;
    for (int i = 0; i < end->nrecvs; i++) {
        if (end->recvs[i] < 0)
            continue;
        SIM_CHECK(end->recvs[i] > last, "messages were received out of order");
        last = end->recvs[i];
    }
    bool read = reads_all(end);
    for (int i = 0; i < end->nsends; i++)
        SIM_CHECK(!read || end->sends[i].fate != FATE_OK || end->sends[i].received,
                  "message %d was sent well and never received", i);
    for (int i = 0; i < end->nnotes; i++)
        SIM_CHECK(end->notes[i].received || !was_to_arrive(end, &end->notes[i]),
                  "notification %d was sent well and never arrived", i);
    for (int i = 0; i < end->nmarks; i++)
        SIM_CHECK(end->marks[i].received || !was_to_arrive(end, &end->marks[i]),
                  "the notification of a transfer that ended well never arrived");
}

void sim_programs_dump(void)
{
    for (int i = 0; i < sim.nprocs; i++) {
        const struct actor *actor = &actors[i];
        printf("process %d on host %d%s%s, %s%s:\n", i, sim.procs[i].host,
               sim.procs[i].dying ? " (killed)" : "", actor->open ? "" : " (closed)",
               actor->threads ? "threads" : "no threads", actor->passive ? ", passive" : "");
        for (int k = 0; k < MAX_OPS; k++) {
            const struct op *op = &actor->ops[k];
            if (op->used)
                printf("    op 0x%" PRIx64 " of end %d: kind %d, %" PRIu64 " bytes, number %d, "
                       "mark %d, posted at %.3f us%s\n",
                       op->handle, op->end->id, (int)op->kind, op->total, op->index, op->mark,
                       (double)op->posted_at / 1e3, op->busy ? ", waited for" : "");
        }
    }
    for (int i = 0; i < nends; i++)
        printf("end %d: process %d to %d, other end %d, %s%s\n", i, ends[i]->actor->proc->id,
               ends[i]->peer ? ends[i]->peer->proc->id : -1,
               ends[i]->other ? ends[i]->other->id : -1,
               ends[i]->initiator ? "initiator" : "acceptor", ends[i]->closing ? ", closed" : "");
}

void ledger_check(void)
{
    for (int i = 0; i < sim.nprocs; i++)
        for (int k = 0; k < AREAS; k++)
            area_check(&actors[i].areas[k]);
    for (int i = 0; i < nends; i++)
        messages_check(ends[i]);
    for (int i = 0; i < nkept; i++)
        SIM_CHECK(all_are(kept[i].base, kept[i].len, SCRIBBLE),
                  "memory changed after its operation had ended");
}
