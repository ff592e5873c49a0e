/* SPDX-License-Identifier: Apache-2.0 */
/* What a program does: one thing at random, entered into the ledger before and after. */
#include "ledger.h"

#include <stdio.h>
#include <string.h>

#define SLACK_NS (1500 * SIM_MS) /* a local link may wait a second for its peer; and some */
#define RECVS_AHEAD 4
#define CONNECTS 6     /* of a process, in all */
#define CALM_NAP_MS 10 /* shorter than what passes for asleep */
#define MESSAGE_MOST 20000

/* --- calls that wait ----------------------------------------------------------------------- */

struct timing {
    struct actor *actor;
    uint64_t begun, stalled;
};

static struct timing begin(struct actor *actor)
{
    return (struct timing){actor, sim.now, actor->stalled};
}

/* A call with this time limit has returned. */
static void check_time(const struct timing *t, int timeout_ms, bool grace, const char *what)
{
    uint64_t limit = (uint64_t)(timeout_ms + (grace ? t->actor->grace_ms : 0)) * SIM_MS;
    uint64_t took = sim.now - t->begun, stalled = t->actor->stalled - t->stalled;
    SIM_CHECK(timeout_ms < 0 || took <= limit + stalled + SLACK_NS,
              "%s with a limit of %d ms took %llu us", what, timeout_ms,
              (unsigned long long)(took / SIM_US));
}

static int some_timeout(void)
{
    static const int list[] = {0, 0, 1, 5, 50, 300};
    return list[sim_pick(sizeof list / sizeof *list)];
}

bool act_wait(struct op *op, int timeout_ms)
{
    struct weft_op_status status = {0};
    struct timing t = begin(op->end->actor);
    bool must = sim.plan.calm && timeout_ms < 0;
    op->busy = true;
    sim.must += must;
    int rc = weft_op_wait(op->handle, timeout_ms, &status);
    sim.must -= must;
    check_time(&t, timeout_ms, false, "weft_op_wait");
    if (rc == WEFT_ETIMEOUT && status.status == WEFT_EAGAIN) {
        op->busy = false;
        return false;
    }
    SIM_CHECK(rc != WEFT_EHANDLE, "the handle of an operation that nobody read is stale");
    SIM_CHECK(rc == status.status, "weft_op_wait gave %d, its status %d", rc, status.status);
    weft_op_t handle = op->handle;
    op_ended(op, &status);
    if (sim_once_in(8))
        SIM_CHECK(weft_op_poll(handle, NULL) == WEFT_EHANDLE, "an operation ended twice");
    return true;
}

/* True: it has ended. */
static bool poll_op(struct op *op)
{
    struct weft_op_status status = {0};
    op->busy = true;
    int rc = weft_op_poll(op->handle, &status);
    SIM_CHECK(rc != WEFT_EHANDLE, "the handle of an operation that nobody read is stale");
    if (rc == 0) {
        op->busy = false;
        return false;
    }
    op_ended(op, &status);
    return true;
}

/* An operation that is under way. */
struct op *op_of(struct actor *actor, bool busy_too)
{
    uint32_t first = sim_pick(MAX_OPS);
    for (uint32_t i = 0; i < MAX_OPS; i++) {
        struct op *op = &actor->ops[(first + i) % MAX_OPS];
        if (op->used && op->handle && (busy_too || !op->busy))
            return op;
    }
    return NULL;
}

/* --- posting ------------------------------------------------------------------------------- */

static size_t some_len(size_t most)
{
    static const size_t list[] = {0, 1, 7, 8, 64, 255, 256, 257, 2047, 2049, 4096, 4097, 16384};
    size_t len = list[sim_pick(sizeof list / sizeof *list)];
    if (sim_once_in(3))
        len = sim_pick((uint32_t)most + 1);
    return len < most ? len : most;
}

static struct end *some_end(struct actor *actor)
{
    int n = end_count(), first = n ? (int)sim_pick((uint32_t)n) : 0;
    for (int i = 0; i < n; i++) {
        struct end *end = end_at((first + i) % n);
        if (end->actor == actor && !end->closing && !end->closed)
            return end;
    }
    return NULL;
}

static void add_piece(struct op *op, size_t len)
{
    op->pieces[op->npieces++] = (struct piece){.at = piece_memory(len), .len = len};
    op->total += len;
}

static bool fill_write(struct op *op)
{
    struct area *area = op->end->area;
    uint32_t want = sim_once_in(4) ? 1 + sim_pick(MAX_PIECES) : 1;
    for (int i = 0; area && i < SLOTS && op->npieces < (int)want; i++) {
        struct slot *slot = &area->slots[i];
        if (slot->busy || slot->dirty || area->frozen)
            continue;
        size_t len = some_len(area->slot_len);
        add_piece(op, len);
        struct piece *p = &op->pieces[op->npieces - 1];
        p->area = area;
        p->slot = i;
        p->seed = sim_random();
        ledger_fill(p->at, len, p->seed);
        slot->busy = true;
        slot->seed = p->seed;
        slot->len = len;
        slot->writes++;
    }
    return op->npieces > 0;
}

static bool fill_read(struct op *op)
{
    const struct actor *peer = op->end->peer;
    uint32_t want = sim_once_in(4) ? 1 + sim_pick(MAX_PIECES) : 1;
    for (uint32_t i = 0; peer && peer->source && i < want; i++) {
        add_piece(op, some_len(peer->source_len));
        struct piece *p = &op->pieces[op->npieces - 1];
        p->offset = sim_pick((uint32_t)(peer->source_len - p->len) + 1);
    }
    return op->npieces > 0;
}

static bool fill_add(struct op *op)
{
    struct area *area = op->end->area;
    op->word = (int)sim_pick(WORDS);
    if (!area || area->frozen || area->digits[op->word] == DIGITS)
        return false;
    op->index = area->digits[op->word]++;
    area->fate[op->word][op->index] = FATE_PENDING;
    op->total = 8;
    return true;
}

/* A message's bytes, over one to four pieces. */
static void fill_message(struct op *op, size_t len)
{
    uint8_t *bytes = sim_alloc(len);
    uint32_t head[4] = {(uint32_t)op->end->id, (uint32_t)op->index};
    memcpy(bytes, head, HEAD);
    ledger_fill(bytes + HEAD, len - HEAD, (uint64_t)head[0] << 32 | head[1]);
    for (size_t at = 0; at < len;) {
        size_t n = len - at;
        if (op->npieces < MAX_PIECES - 1 && sim_once_in(4))
            n = 1 + sim_pick((uint32_t)n);
        add_piece(op, n);
        memcpy(op->pieces[op->npieces - 1].at, bytes + at, n);
        at += n;
    }
}

static bool fill_send(struct op *op)
{
    struct end *end = op->end;
    if (end->posting || end->nsends == MAX_MSGS)
        return false;
    op->index = end->nsends++;
    size_t len = HEAD + some_len(MESSAGE_MOST - HEAD);
    end->sends[op->index] = (struct msg){.len = len};
    fill_message(op, len);
    return true;
}

static bool fill_recv(struct op *op)
{
    struct end *end = op->end;
    if (end->receiving || end->nrecvs == MAX_MSGS)
        return false;
    op->index = end->nrecvs++;
    end->recvs[op->index] = -1;
    end->waiting_recvs++;
    bool small = !sim.plan.calm && sim_once_in(4);
    size_t len = small ? HEAD + sim_pick(1000) : MESSAGE_MOST;
    if (sim_once_in(3)) {
        add_piece(op, len / 3);
        len -= len / 3;
    }
    add_piece(op, len);
    return true;
}

static bool fill_op(struct op *op)
{
    switch (op->kind) {
    case WEFT_XFER_WRITE:
        return fill_write(op);
    case WEFT_XFER_READ:
        return fill_read(op);
    case WEFT_XFER_ADD:
        return fill_add(op);
    case WEFT_XFER_SEND:
        return fill_send(op);
    case WEFT_XFER_RECV:
        return fill_recv(op);
    case WEFT_XFER_NOTIFY:
        op->index = op->end->nnotes;
        return !op->end->posting && op->end->nnotes < MAX_MSGS && op->end->nnotes++ >= 0;
    }
    return false;
}

/* What weft_post gets, made of an op. */
struct request {
    struct weft_xfer xfer;
    struct weft_local local[MAX_PIECES];
    struct weft_remote remote[MAX_PIECES];
    uint64_t offset[MAX_PIECES];
    uint8_t *note;
};

static void put_note(struct request *r, const struct op *op, int index, bool mark)
{
    size_t len = HEAD + some_len(sim_once_in(4) ? MESSAGE_MOST : 500);
    uint32_t head[4] = {(uint32_t)op->end->id, (uint32_t)index, mark};
    r->note = sim_alloc(len);
    memcpy(r->note, head, HEAD);
    ledger_fill(r->note + HEAD, len - HEAD, (uint64_t)head[0] << 32 | head[1]);
    r->xfer.notify = r->note;
    r->xfer.notify_len = len;
}

static void make_request(struct request *r, struct op *op)
{
    struct end *end = op->end;
    bool one_sided = op->kind == WEFT_XFER_WRITE || op->kind == WEFT_XFER_READ;
    memset(r, 0, sizeof *r);
    r->xfer = (struct weft_xfer){.struct_size = sizeof r->xfer, .op = op->kind};
    for (int i = 0; i < op->npieces; i++) {
        r->local[i] = (struct weft_local){.addr = op->pieces[i].at, .len = op->pieces[i].len};
        r->offset[i] = op->pieces[i].offset;
        if (op->kind == WEFT_XFER_WRITE) {
            const struct area *area = op->pieces[i].area;
            r->remote[i] = area->remote;
            r->offset[i] = (uint64_t)(area_slot(area, op->pieces[i].slot) - area->base);
        } else if (op->kind == WEFT_XFER_READ) {
            r->remote[i] = end->peer->source_remote;
        }
    }
    r->xfer.local = r->local;
    r->xfer.nlocal = (size_t)op->npieces;
    if (op->kind == WEFT_XFER_ADD) {
        r->remote[0] = end->area->remote;
        r->offset[0] = (uint64_t)((uint8_t *)area_word(end->area, op->word) - end->area->base);
        r->xfer.value = (uint64_t)1 << 2 * op->index;
        r->xfer.result = &op->result;
    }
    if (one_sided || op->kind == WEFT_XFER_ADD) {
        r->xfer.remote = r->remote;
        r->xfer.nremote = op->kind == WEFT_XFER_ADD ? 1 : (size_t)op->npieces;
        r->xfer.remote_offset = r->offset;
    }
    if (op->kind == WEFT_XFER_NOTIFY) {
        put_note(r, op, op->index, false);
        end->notes[op->index] = (struct msg){.len = r->xfer.notify_len, .posted = sim.now};
    } else if ((one_sided || op->kind == WEFT_XFER_ADD) && end->nmarks < MAX_MSGS &&
               sim_once_in(4)) {
        op->mark = end->nmarks++;
        put_note(r, op, op->mark, true);
        end->marks[op->mark] = (struct msg){.len = r->xfer.notify_len, .posted = sim.now};
    }
}

static bool is_late(const struct op *op)
{
    for (int i = 0; op->kind == WEFT_XFER_WRITE && i < op->npieces; i++)
        if (!op->pieces[i].area->open && op->pieces[i].len)
            return true;
    return op->kind == WEFT_XFER_ADD && !op->end->area->open;
}

static void not_posted(struct op *op, int rc)
{
    struct end *end = op->end;
    status_check(end, op, rc, "weft_post");
    if (op->kind == WEFT_XFER_SEND)
        end->sends[op->index].fate = FATE_FAILED;
    else if (op->kind == WEFT_XFER_NOTIFY)
        end->notes[op->index].fate = FATE_FAILED;
    if (op->mark >= 0)
        end->marks[op->mark].fate = FATE_FAILED;
    op_drop(op);
}

/* Post and return, or wait for it until its deadline. */
static void run_op(struct op *op, bool blocking)
{
    struct request r;
    struct end *end = op->end;
    bool message = op->kind == WEFT_XFER_SEND || op->kind == WEFT_XFER_NOTIFY;
    make_request(&r, op);
    /* a promise of more that is not kept may cost a second, but not if one waits for it */
    if ((blocking || !sim.plan.calm) && sim_once_in(4))
        r.xfer.flags = WEFT_XFER_MORE;
    op->posted_at = sim.now;
    op->late = is_late(op);
    end->posting |= message;
    end->receiving |= op->kind == WEFT_XFER_RECV;
    sim.ops++;
    sim_trace("post", end->id * 1000 + (int)op->kind, (int64_t)op->total, op->index);
    int rc = 0;
    if (blocking) {
        struct weft_op_status status = {0};
        int timeout = sim.plan.calm ? WEFT_FOREVER : some_timeout();
        struct timing t = begin(end->actor);
        op->deadline = !sim.plan.calm;
        sim.must += sim.plan.calm;
        int64_t got = weft_transfer(end->handle, &r.xfer, timeout, &status);
        sim.must -= sim.plan.calm;
        check_time(&t, timeout, true, "weft_transfer");
        if (got < 0 && status.status == 0)
            sim_fail("weft_transfer gave %lld and a status of 0", (long long)got);
        end->cut |= got == WEFT_ETIMEOUT;
        op_ended(op, &status);
    } else {
        bool inject = op->kind == WEFT_XFER_SEND && op->total <= WEFT_INJECT && sim_once_in(2);
        rc = weft_post(end->handle, &r.xfer, inject ? NULL : &op->handle);
        op->busy = false;
        if (rc)
            not_posted(op, rc);
        end->posted += rc == 0;
        end->injected += inject && rc == 0;
        if (inject && rc == 0)
            op_drop(op); /* its memory is ours again */
    }
    if (message)
        end->posting = false;
    if (rc == 0 && blocking == false)
        sim_trace("posted", op->index, 0, 0);
}

static void post(struct end *end, enum weft_xfer_op kind, bool blocking)
{
    struct op *op = op_new(end, kind);
    if (!op)
        return;
    if (!fill_op(op)) {
        for (int i = 0; i < op->npieces; i++)
            sim_fail("an operation that cannot be filled has pieces");
        op->used = false;
        return;
    }
    run_op(op, blocking);
    if (kind == WEFT_XFER_RECV)
        end->receiving = false;
}

/* --- conns --------------------------------------------------------------------------------- */

static struct actor *actor_of_uuid(const uint8_t uuid[16])
{
    for (int i = 0; i < sim.nprocs; i++)
        if (actors[i].metadata_len && !memcmp(actors[i].uuid, uuid, 16))
            return &actors[i];
    return NULL;
}

/* A conn that a peer has opened. */
static void meet_conn(struct actor *actor, weft_conn_t handle)
{
    struct weft_conn_info info;
    if (end_find(actor, handle) || weft_conn_info(handle, &info) < 0 || end_find(actor, handle))
        return;
    end_new(actor, handle, false, actor_of_uuid(info.peer_uuid));
}

void act_accept(struct actor *actor)
{
    weft_conn_t list[64];
    if (actor->passive) {
        int n = weft_endpoint_conns(actor->endpoint, list, 64);
        status_check(NULL, NULL, n, "weft_endpoint_conns");
        for (int i = 0; i < n && i < 64; i++)
            meet_conn(actor, list[i]);
        return;
    }
    int rc;
    /* all of them: who goes to sleep is not woken for those that wait already */
    while ((rc = weft_endpoint_accept(actor->endpoint, 0, list)) == 0)
        meet_conn(actor, list[0]);
    SIM_CHECK(rc == WEFT_ETIMEOUT || (rc == WEFT_ECLOSED && !actor->open) ||
                  (rc == WEFT_EHANDLE && !actor->open),
              "weft_endpoint_accept gave %s", weft_err_name(rc));
}

static void connect_some(struct actor *actor)
{
    struct actor *to = &actors[sim_pick((uint32_t)sim.nprocs)];
    weft_conn_t handle;
    if (!to->metadata_len || (sim.plan.calm && !to->open) || actor->connects == CONNECTS)
        return;
    actor->connects++;
    bool later = sim_once_in(2);
    int timeout = sim.plan.calm ? 60000 : 1 + (int)sim_pick(2000);
    struct timing t = begin(actor);
    sim.must += sim.plan.calm;
    int rc = weft_endpoint_connect(
        actor->endpoint, to->metadata, (size_t)to->metadata_len,
        WEFT_OPTS(weft_connect_opts, .timeout_ms = timeout, .nonblocking = later), &handle);
    sim.must -= sim.plan.calm;
    check_time(&t, timeout, true, "weft_endpoint_connect");
    sim_trace("connected", to->proc->id, rc, later);
    if (rc == 0)
        end_new(actor, handle, true, to);
    else if (rc != WEFT_ECLOSED && rc != WEFT_EHANDLE)
        status_check(NULL, NULL, rc, "weft_endpoint_connect");
}

static void stats_check(const struct end *end)
{
    struct weft_conn_stats stats;
    uint64_t waiting = 0, posted = end->posted;
    if (weft_conn_stats(end->handle, &stats) < 0)
        return;
    for (int i = 0; i < MAX_OPS; i++)
        waiting += end->actor->ops[i].used && end->actor->ops[i].end == end;
    SIM_CHECK(stats.ops_done + stats.ops_failed <= stats.ops_posted,
              "more operations ended than were posted");
    SIM_CHECK(waiting || end->posted != posted || end->actor->fibers > 1 ||
                  stats.ops_done + stats.ops_failed + end->injected >= stats.ops_posted,
              "operations that were posted have not ended, and nobody waits for them");
}

void act_close_conn(struct end *end)
{
    if (end->closing)
        return;
    end->closing = true; /* before anything that may let another thread come here */
    stats_check(end);
    struct timing t = begin(end->actor);
    int rc = weft_conn_close(end->handle);
    check_time(&t, 0, true, "weft_conn_close");
    sim_trace("conn closed", end->id, rc, 0);
    SIM_CHECK(rc == 0 || (rc == WEFT_EHANDLE && (!end->initiator || !end->actor->open)),
              "weft_conn_close gave %s", weft_err_name(rc));
    end->closed = true;
    if (rc == 0 && end->other && end->other->area && !end->other->area->frozen)
        area_freeze(end->other->area);
    if (sim_once_in(4))
        SIM_CHECK(weft_conn_wait(end->handle, 0) == WEFT_EHANDLE, "a closed conn has a handle");
}

static void wait_conn(struct end *end)
{
    int timeout = sim.plan.calm ? WEFT_FOREVER : some_timeout();
    struct timing t = begin(end->actor);
    sim.must += sim.plan.calm;
    int rc = weft_conn_wait(end->handle, timeout);
    sim.must -= sim.plan.calm;
    check_time(&t, timeout, false, "weft_conn_wait");
    status_check(end, NULL, rc, "weft_conn_wait");
}

/* --- the rest ------------------------------------------------------------------------------ */

void act_drain(struct actor *actor)
{
    if (actor->popping)
        return;
    actor->popping = true;
    actor->drained = sim.now;
    for (;;) {
        struct weft_notif notif;
        int rc = weft_endpoint_notif(actor->endpoint, 0, &notif);
        SIM_CHECK(rc == 0 || rc == WEFT_ETIMEOUT || (rc == WEFT_ECLOSED && !actor->open) ||
                      (rc == WEFT_EHANDLE && !actor->open),
                  "weft_endpoint_notif gave %s", weft_err_name(rc));
        if (rc)
            break;
        note_arrived(actor, &notif);
        weft_notif_free(&notif);
    }
    actor->popping = false;
}

static void dereg_some(struct actor *actor)
{
    struct area *area = &actor->areas[sim_pick(AREAS)];
    if (!area->open || sim.plan.calm)
        return;
    area->open = false;
    int rc = weft_mem_dereg(area->mem);
    sim_trace("dereg", (int)(area - actor->areas), rc, 0);
    SIM_CHECK(rc == 0 || rc == WEFT_ETIMEOUT || !actor->open, "weft_mem_dereg gave %s",
              weft_err_name(rc));
    if (rc == 0)
        area_freeze(area);
}

bool act_serve(struct actor *actor)
{
    bool any = false;
    act_accept(actor);
    for (int i = 0; i < end_count(); i++) {
        struct end *end = end_at(i);
        if (end->actor != actor || end->closing || end->closed)
            continue;
        if (sim.plan.calm || sim_once_in(2))
            while (end->waiting_recvs < RECVS_AHEAD && !end->receiving && end->nrecvs < MAX_MSGS) {
                int before = end->waiting_recvs;
                post(end, WEFT_XFER_RECV, false);
                if (end->waiting_recvs <= before)
                    break;
            }
    }
    for (int i = 0; i < MAX_OPS; i++) {
        struct op *op = &actor->ops[i];
        if (op->used && op->handle && !op->busy && op->kind == WEFT_XFER_RECV)
            any |= poll_op(op);
    }
    return any;
}

/* The other side has posted as many receives as this one has sent. */
static bool will_be_received(const struct end *end)
{
    return end->other && !end->other->closing && end->other->nrecvs > end->nsends;
}

static void act_on(struct end *end)
{
    static const enum weft_xfer_op kinds[] = {WEFT_XFER_WRITE,  WEFT_XFER_WRITE, WEFT_XFER_READ,
                                              WEFT_XFER_ADD,    WEFT_XFER_SEND,  WEFT_XFER_SEND,
                                              WEFT_XFER_NOTIFY, WEFT_XFER_RECV};
    enum weft_xfer_op kind = kinds[sim_pick(sizeof kinds / sizeof *kinds)];
    bool blocking = sim_once_in(4);
    if (sim.plan.calm && blocking)
        blocking = kind != WEFT_XFER_RECV && (kind != WEFT_XFER_SEND || will_be_received(end));
    post(end, kind, blocking);
}

static void act_on_op(struct actor *actor)
{
    struct op *op = op_of(actor, false);
    bool plain = op && (op->kind != WEFT_XFER_RECV && op->kind != WEFT_XFER_SEND);
    if (!op)
        return;
    if (sim.plan.calm && plain && sim_once_in(3)) {
        act_wait(op, WEFT_FOREVER);
    } else if (!sim.plan.calm && sim_once_in(3)) {
        act_wait(op, some_timeout());
    } else if (!sim.plan.calm && sim_once_in(3)) {
        op->canceled = true;
        weft_op_t handle = op->handle;
        int rc = weft_op_cancel(handle);
        SIM_CHECK(rc == 0 || rc == WEFT_EHANDLE, "weft_op_cancel gave %s", weft_err_name(rc));
    } else {
        poll_op(op);
    }
}

void act(struct actor *actor)
{
    struct end *end = some_end(actor);
    uint32_t dice = sim_pick(100);
    if (!end || dice < 4)
        connect_some(actor);
    else if (dice < 60)
        act_on(end);
    else if (dice < 75)
        act_on_op(actor);
    else if (dice < 80)
        act_drain(actor);
    else if (dice < 90)
        act_serve(actor);
    else if (dice < 93)
        weft_endpoint_progress(actor->endpoint, (int)sim_pick(CALM_NAP_MS));
    else if (dice < 95)
        wait_conn(end);
    else if (dice < 96)
        dereg_some(actor);
    else if (dice < 97 && !sim.plan.calm)
        act_close_conn(end);
    else
        sim_block("sleep", NULL, NULL, sim.now + sim_random() % (CALM_NAP_MS * SIM_MS));
}
