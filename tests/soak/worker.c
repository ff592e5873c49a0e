/* SPDX-License-Identifier: Apache-2.0 */
/* A worker: does one random thing after the other on its slot's conn, until the round is over. */
#include "worker.h"

#define DRAIN_MS 300 /* what a message gets before it is canceled, when a conn is left */

uint64_t worker_pick(struct worker *w, uint64_t n)
{
    return test_random(&w->random) % n;
}

struct worker *worker_new(struct side *side, int slot, int index)
{
    struct worker *w = calloc(1, sizeof *w);
    CHECK(w, "no memory for a worker");
    w->side = side;
    w->slot = &side->slots[slot];
    w->index = index;
    w->random = side->ledger->seed + side->ledger->round * 1009 +
                (uint64_t)(side->me * SLOTS * WORKERS + slot * WORKERS + index) * 65537;
    w->account = &side->ledger->account[side->peer][slot][index];
    w->sends = &side->ledger->messages[side->peer][slot];
    w->got = &side->ledger->messages[side->me][slot];
    test_mem_open(&w->mem, ARRAY_LEN(w->tasks) * BUF, 0);
    shared_memory(&w->mem);
    WEFT_OK(weft_mem_reg(side->endpoint, w->mem.at, w->mem.len, NULL, &w->handle));
    for (size_t i = 0; i < ARRAY_LEN(w->tasks); i++) {
        struct task *t = &w->tasks[i];
        t->part = (int)i;
        t->buf = w->mem.at + i * BUF;
        t->rest = i;
        test_fill(t->buf, BUF, t->rest, 0);
    }
    return w;
}

void worker_free(struct worker *w)
{
    WEFT_OK(weft_mem_dereg(w->handle));
    test_mem_close(&w->mem);
    free(w);
}

/* --- receives ----------------------------------------------------------------------------------- */

static struct task *recv_at(struct worker *w, int i)
{
    return &w->tasks[PARTS + (w->first_recv + i) % RECVS];
}

static void post_recvs(struct worker *w)
{
    while (w->nrecvs < RECVS) {
        struct task *t = recv_at(w, w->nrecvs);
        task_begin(w, t, RECV, -1);
        if (!t->busy)
            return; /* the conn is dead */
        w->nrecvs++;
    }
}

/* In the order in which they were posted. */
static void take_recvs(struct worker *w)
{
    while (w->nrecvs && task_poll(w, recv_at(w, 0))) {
        w->first_recv = (w->first_recv + 1) % RECVS;
        w->nrecvs--;
    }
}

/* --- steps -------------------------------------------------------------------------------------- */

static struct task *any_task(struct worker *w, bool busy)
{
    int depth = w->side->plan.side[w->side->me].depth, from = (int)worker_pick(w, PARTS);
    for (int i = 0; i < PARTS; i++) {
        struct task *t = &w->tasks[(from + i) % PARTS];
        if (t->busy == busy && (busy || t->part < depth))
            return t;
    }
    return NULL;
}

static enum kind draw_kind(struct worker *w)
{
    static const enum kind kinds[] = {
        WRITE,     WRITE,     WRITE,   WRITE,  READ,   READ,        READ, ADD,  ADD,  ADD,
        BOX_WRITE, BOX_WRITE, HOT_ADD, NOTIFY, NOTIFY, STALE_WRITE, SEND, SEND, SEND, SEND};
    enum kind kind = kinds[worker_pick(w, ARRAY_LEN(kinds))];
    return kind == SEND && w->index ? NOTIFY : kind;
}

static void begin_one(struct worker *w)
{
    static const int timeouts[] = {0, 1, 20, PATIENCE_MS, HANG_MS};
    struct task *t = any_task(w, false);
    if (!t)
        return;
    enum kind kind = draw_kind(w);
    int timeout = worker_pick(w, 6) ? -1 : timeouts[worker_pick(w, ARRAY_LEN(timeouts))];
    if (kind == SEND && timeout == HANG_MS)
        timeout = PATIENCE_MS; /* the receiver may be inside such a call, too */
    task_begin(w, t, kind, timeout);
}

/* A send is done when the other side receives; all else by itself. */
static void end_one(struct worker *w)
{
    struct task *t = any_task(w, true);
    if (!t || task_wait(w, t, t->kind == SEND ? PATIENCE_MS : HANG_MS))
        return;
    CHECK(t->kind == SEND, "operation %d of %zu bytes hangs", t->kind, t->len);
    task_cancel(w, t);
    CHECK(task_wait(w, t, HANG_MS), "a canceled send of %zu bytes hangs", t->len);
}

static void cancel_one(struct worker *w)
{
    struct task *t = any_task(w, true);
    if (t && t->kind != BOX_WRITE)
        task_cancel(w, t);
}

static void poll_all(struct worker *w)
{
    for (int i = 0; i < PARTS; i++)
        if (w->tasks[i].busy)
            task_poll(w, &w->tasks[i]);
}

static void step(struct worker *w)
{
    const struct plan *plan = &w->side->plan;
    uint64_t what = worker_pick(w, 1000);
    if (w->index == 0) {
        take_recvs(w);
        post_recvs(w);
    }
    if (what < 450)
        begin_one(w);
    else if (what < 700)
        end_one(w);
    else if (what < 740)
        cancel_one(w);
    else if (what < 742 && plan->regs)
        host_renew(w->side, w->slot->index, w->index);
    else if (what < 743 && plan->closes && worker_pick(w, 2) == 0)
        slot_end(w->side, w->slot);
    else if (what < 760 && plan->step_us)
        test_sleep_ms((int)worker_pick(w, (uint64_t)plan->step_us) / 1000 + 1);
    else
        poll_all(w);
}

/* --- until the end ------------------------------------------------------------------------------ */

static void finish(struct worker *w, struct task *t)
{
    if (!t->busy || task_wait(w, t, t->kind == SEND ? DRAIN_MS : t->kind == RECV ? 0 : HANG_MS))
        return;
    CHECK(t->kind == SEND || t->kind == RECV, "operation %d of %zu bytes hangs", t->kind, t->len);
    task_cancel(w, t);
    CHECK(task_wait(w, t, HANG_MS), "a canceled operation (%d) of %zu bytes hangs", t->kind,
          t->len);
}

/* All that is under way ends: the conn is dead, or the round is over. */
static void drain(struct worker *w)
{
    for (int i = 0; i < PARTS; i++)
        finish(w, &w->tasks[i]);
    for (int i = 0; i < w->nrecvs; i++)
        finish(w, recv_at(w, i));
    w->nrecvs = w->first_recv = 0;
}

static bool usable(const struct slot *slot)
{
    return slot->conn && !atomic_load(&slot->dead);
}

void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct slot *slot = w->slot;
    _Atomic(bool) *stop = &w->side->ledger->stop;
    while (!atomic_load(stop)) {
        pthread_rwlock_rdlock(&slot->lock);
        w->last_got = 0;
        while (usable(slot) && !atomic_load(stop))
            step(w);
        drain(w);
        pthread_rwlock_unlock(&slot->lock);
        if (atomic_load(stop))
            break;
        if (w->index == 0)
            slot_renew(w->side, slot);
        else
            test_sleep_ms(1);
    }
    atomic_fetch_sub(&w->side->ledger->running[w->side->me], 1);
    return NULL;
}
