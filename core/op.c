/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations: their memory, and how they end. post.c makes them, wait.c has what callers do with
 * them.
 *
 * An op is in at most one queue (op->where) and counts in op->pending what it waits for: cmds in
 * flight, messages the peer has not taken, deregistrations. It is done when it is in no queue and
 * nothing is pending. Memory of ops is never unmapped, so a stale handle can be looked up safely.
 */
#include "op.h"
#include "after.h"
#include "conn.h"
#include "endpoint.h"
#include "lane.h"
#include "match.h"
#include "mem.h"
#include "msg.h"
#include "progress.h"
#include "stage.h"
#include "stripe.h"
#include "util.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- memory of ops --------------------------------------------------------------------------- */

static struct weft_static_lock pool_lock = WEFT_STATIC_LOCK();
_Atomic(struct weft__op *) weft__op_chunks[WEFT__OP_CHUNKS];
static uint32_t nchunks;
static struct weft__op *pool; /* free, of no endpoint */

/* Where the ops of an endpoint are given back by callers, who do not take its lock for that, and may do it when it is gone: then
 * this is the next endpoint's. Each endpoint has its own, as its ops are in the caches of the threads that use it. */
struct weft__op_home {
    _Alignas(WEFT__CACHE_LINE) _Atomic(struct weft__op *) retired;
    struct weft__op_home *next; /* of those that no endpoint has */
};
static struct weft__op_home *homes;

static int pool_grow(void)
{
    if (nchunks == WEFT__OP_CHUNKS)
        return weft_fail(WEFT_ELIMIT, "more than %d operations in one process",
                         WEFT__OP_CHUNK * WEFT__OP_CHUNKS);
    struct weft__op *chunk = aligned_alloc(WEFT__CACHE_LINE, WEFT__OP_CHUNK * sizeof *chunk);
    if (!chunk)
        return weft_fail(-ENOMEM, "no memory for operations");
    memset(chunk, 0, WEFT__OP_CHUNK * sizeof *chunk);
    for (uint32_t i = 0; i < WEFT__OP_CHUNK; i++) {
        chunk[i].slot = nchunks * WEFT__OP_CHUNK + i;
        chunk[i].qnext = pool;
        pool = &chunk[i];
    }
    atomic_store_explicit(&weft__op_chunks[nchunks++], chunk, memory_order_release);
    return 0;
}

struct weft__op *weft__op_find(weft_op_t handle, struct weft__endpoint **ep,
                               weft_endpoint_t *ep_handle)
{
    struct weft__op *op = weft__op_at(handle);
    if (op) {
        *ep_handle = atomic_load_explicit(&op->ep_handle, memory_order_relaxed);
        *ep = weft__handle_get(*ep_handle, WEFT__ENDPOINT);
        if (*ep)
            return op;
    }
    weft_fail(WEFT_EHANDLE, "0x%016llx is not the handle of an operation that has not been read",
              (unsigned long long)handle);
    return NULL;
}

void weft__op_retire(struct weft__op *op)
{
    struct weft__op_home *home = op->home;
    struct weft__op *head = atomic_load_explicit(&home->retired, memory_order_relaxed);
    do
        op->qnext = head;
    /* release pairs with the acquire in take_retired: who retired it is done with it */
    while (!atomic_compare_exchange_weak_explicit(&home->retired, &head, op, memory_order_release,
                                                  memory_order_relaxed));
}

static struct weft__op *take_retired(struct weft__op_home *home)
{
    return atomic_exchange_explicit(&home->retired, NULL, memory_order_acquire);
}

/* One that no endpoint has, or a new one; NULL: no memory. Pool lock held. */
static struct weft__op_home *home_get(void)
{
    struct weft__op_home *home = homes;
    if (home) {
        homes = home->next;
        return home;
    }
    home = aligned_alloc(WEFT__CACHE_LINE, sizeof *home);
    if (home)
        atomic_init(&home->retired, NULL);
    return home;
}

/* Give the endpoint some free ops. */
static void refill(struct weft__endpoint *ep)
{
    ep->free_ops = ep->op_home ? take_retired(ep->op_home) : NULL;
    if (ep->free_ops)
        return;
    weft_static_lock(&pool_lock);
    if (!ep->op_home)
        ep->op_home = home_get();
    if (ep->op_home && (pool || pool_grow() == 0)) {
        for (int i = 0; i < WEFT__OP_CHUNK && pool; i++) {
            struct weft__op *op = pool;
            pool = op->qnext;
            op->home = ep->op_home;
            op->qnext = ep->free_ops;
            ep->free_ops = op;
        }
    }
    weft_static_unlock(&pool_lock);
}

/* To the pool. Pool lock held. */
static void pool_take(struct weft__op *list)
{
    while (list) {
        struct weft__op *op = list;
        list = op->qnext;
        op->qnext = pool;
        pool = op;
    }
}

/* Ops that ended and were never asked for, too. */
void weft__op_pool_free(struct weft__endpoint *ep)
{
    for (uint32_t slot = 0; weft__op_slot(slot); slot++) {
        struct weft__op *op = weft__op_slot(slot);
        uint64_t handle = op->handle;
        if (handle && op->ep_handle == ep->handle && weft__op_claim(op, handle))
            weft__op_retire(op);
    }
    weft_static_lock(&pool_lock);
    pool_take(ep->free_ops);
    ep->free_ops = NULL;
    if (ep->op_home) {
        pool_take(take_retired(ep->op_home));
        ep->op_home->next = homes;
        homes = ep->op_home;
        ep->op_home = NULL;
    }
    weft_static_unlock(&pool_lock);
}

/* The members from one up to another. */
#define ZERO(op, from, upto)                                                                      \
    memset((char *)(op) + offsetof(struct weft__op, from), 0,                                     \
           offsetof(struct weft__op, upto) - offsetof(struct weft__op, from))

/* The first op of an endpoint that has no free ones. */
static WEFT__APART struct weft__op *refill_for(struct weft__conn *conn, enum weft__op_kind kind)
{
    refill(conn->ep);
    return conn->ep->free_ops ? weft__op_new(conn, kind) : NULL;
}

struct weft__op *weft__op_new(struct weft__conn *conn, enum weft__op_kind kind)
{
    struct weft__endpoint *ep = conn->ep;
    struct weft__op *op = ep->free_ops;
    if (WEFT_UNLIKELY(!op))
        return refill_for(conn, kind);
    ep->free_ops = op->qnext;
    ZERO(op, detached, notify); /* in two parts, which are short enough for no loop */
    ZERO(op, notify, one);
    op->ep = ep;
    op->conn = conn;
    op->kind = kind;
    /* release: who sees that it is not done, and holds the handle of the op that it was, sees that this handle has gone */
    atomic_store_explicit(&op->done, false, memory_order_release);
    atomic_store_explicit(&op->ep_handle, ep->handle, memory_order_relaxed);
    /* release pairs with the acquire in weft__op_at: what is set above is seen */
    atomic_store_explicit(&op->handle, weft__handle_make(WEFT__OP, op->slot, ++op->generation),
                          memory_order_release);
    weft_list_push(&conn->ops, &op->in_conn);
    conn->nops++;
    return op;
}

static void leave_conn(struct weft__op *op)
{
    weft_list_remove(&op->in_conn);
    op->conn->nops--;
    op->conn = NULL;
}

static WEFT__APART void free_memory(struct weft__op *op)
{
    if (op->pooled)
        weft__pool_put_most(&op->ep->pieces, op->pieces, WEFT__POOL_LISTS);
    else if (op->pieces != &op->one)
        free(op->pieces);
    free(op->notify);
    free(op->bounce);
    free(op->regs);
}

static inline void free_parts(struct weft__op *op)
{
    if (WEFT_LIKELY(!op->on_end)) /* else another op holds the registrations */
        for (size_t i = 0; i < op->npieces; i++)
            if (op->pieces[i].reg)
                op->pieces[i].reg->users--;
    if (WEFT_UNLIKELY(op->pieces != &op->one || op->notify || op->regs || op->bounce))
        free_memory(op);
}

void weft__op_free(struct weft__op *op)
{
    struct weft__endpoint *ep = op->ep;
    leave_conn(op);
    free_parts(op);
    atomic_store_explicit(&op->handle, 0, memory_order_relaxed);
    op->qnext = ep->free_ops;
    ep->free_ops = op;
}

void weft__opq_push(struct weft__opq *q, struct weft__op *op, enum weft__op_where where)
{
    op->where = where;
    op->qnext = NULL;
    op->qprev = q->tail;
    if (q->tail)
        q->tail->qnext = op;
    else
        q->head = op;
    q->tail = op;
}

void weft__opq_remove(struct weft__opq *q, struct weft__op *op)
{
    if (WEFT_UNLIKELY(op->qprev != NULL))
        op->qprev->qnext = op->qnext;
    else
        q->head = op->qnext;
    if (op->qnext)
        op->qnext->qprev = op->qprev;
    else
        q->tail = op->qprev;
    op->qprev = op->qnext = NULL;
    op->where = WEFT__AT_NONE;
}

/* --- how an op ends --------------------------------------------------------------------------- */

void weft__op_fail(struct weft__op *op, int status, const char *text)
{
    if (op->status || op->done || op->taken)
        return;
    op->status = status;
    weft__text_add(op->text, sizeof op->text, 0, "%s", text ? text : weft_strerror(status));
}

void weft__op_shut_regs(struct weft__op *op)
{
    for (size_t i = 0; i < op->nregs; i++) {
        op->regs[i]->op = op;
        op->pending++;
        weft__reg_shut(op->regs[i]);
    }
    op->nregs = 0;
}

static WEFT__APART void finish_internal(struct weft__op *op)
{
    op->pending++; /* on_end may take the conn down, and that ends all ops: not this one again */
    op->on_end(op);
    op->pending--;
    weft__op_free(op);
}

static void finish(struct weft__op *op)
{
    struct weft__conn *conn = op->conn;
    struct weft__endpoint *ep = op->ep;
    if (WEFT_UNLIKELY(op->status))
        conn->stats.ops_failed++;
    else
        conn->stats.ops_done++;
    if (WEFT_UNLIKELY(op->detached)) {
        weft__op_free(op);
    } else {
        free_parts(op);
        leave_conn(op);
        /* from here on it is the caller's, also while this thread still holds the lock. Pairs
         * with the acquire in weft_op_poll: the data and the status are there. */
        atomic_store_explicit(&op->done, true, memory_order_release);
    }
    weft__changed(ep);
}

void weft__op_settle(struct weft__op *op)
{
    if (op->pending || op->where != WEFT__AT_NONE || op->done)
        return;
    if (WEFT_UNLIKELY(op->has_notify) && !op->finishing && !op->status) {
        op->finishing = true; /* the data is in place: now the notification */
        weft__match_send(op);
        return;
    }
    if (WEFT_UNLIKELY(op->nregs)) {
        weft__op_shut_regs(op);
        return;
    }
    if (WEFT_UNLIKELY(op->on_end != NULL))
        finish_internal(op);
    else
        finish(op);
}

void weft__op_unpend(struct weft__op *op)
{
    op->pending--;
    weft__op_settle(op);
}

static void leave_queue(struct weft__op *op)
{
    if (op->where == WEFT__AT_AFTER)
        weft__after_leave(op);
    else if (op->where == WEFT__AT_TODO || op->where == WEFT__AT_LONGS)
        weft__stripe_leave(op);
    else if (op->where == WEFT__AT_STAGED)
        weft__stage_leave(op);
    else
        weft__match_cancel(op);
}

void weft__op_abort(struct weft__op *op, int status, const char *text)
{
    weft__op_fail(op, status, text);
    leave_queue(op);
    weft__op_settle(op);
}

void weft__op_cancel(struct weft__op *op)
{
    struct weft__conn *conn = op->conn;
    if (op->kind == WEFT__OP_RECV && op->where != WEFT__AT_RECVQ && op->where != WEFT__AT_AFTER)
        return; /* its message is on the way: too late */
    weft__op_fail(op, WEFT_ECANCELED, "canceled");
    /* one hold, so that the op does not end below us */
    op->pending++;
    weft__stripe_drop(conn, op, WEFT_ECANCELED, NULL);
    leave_queue(op);
    if (op->staged)
        weft__stage_cancel(op);
    weft__op_unpend(op);
}
