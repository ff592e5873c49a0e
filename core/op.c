/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations: from weft_post to the end. wait.c has what callers do with them in between.
 *
 * An op is in at most one queue (op->where) and counts in op->pending what it waits for: cmds in
 * flight, messages the peer has not taken, deregistrations. It is done when it is in no queue and
 * nothing is pending. Memory of ops is never unmapped, so a stale handle can be looked up safely.
 */
#include "op.h"
#include "conn.h"
#include "endpoint.h"
#include "lane.h"
#include "match.h"
#include "mem.h"
#include "msg.h"
#include "progress.h"
#include "stripe.h"
#include "util.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- memory of ops --------------------------------------------------------------------------- */

#define CHUNK 64
#define CHUNKS 65536 /* four million ops a process */

static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(struct weft__op *) chunks[CHUNKS];
static uint32_t nchunks;
static struct weft__op *pool; /* free, of no endpoint */
/* Free ones that callers gave back: they do not take the endpoint's lock for it. Endpoints that
 * need some take all. */
static _Atomic(struct weft__op *) retired;

static struct weft__op *slot_at(uint32_t slot)
{
    if (slot / CHUNK >= CHUNKS)
        return NULL;
    /* pairs with the release in pool_grow */
    struct weft__op *chunk = atomic_load_explicit(&chunks[slot / CHUNK], memory_order_acquire);
    return chunk ? &chunk[slot % CHUNK] : NULL;
}

static int pool_grow(void)
{
    if (nchunks == CHUNKS)
        return weft_fail(WEFT_ELIMIT, "more than %d operations in one process", CHUNK * CHUNKS);
    struct weft__op *chunk = calloc(CHUNK, sizeof *chunk);
    if (!chunk)
        return weft_fail(-ENOMEM, "no memory for operations");
    for (uint32_t i = 0; i < CHUNK; i++) {
        chunk[i].slot = nchunks * CHUNK + i;
        chunk[i].next = pool;
        pool = &chunk[i];
    }
    atomic_store_explicit(&chunks[nchunks++], chunk, memory_order_release);
    return 0;
}

struct weft__op *weft__op_at(weft_op_t handle)
{
    struct weft__op *op = weft__handle_is(handle, WEFT__OP) ? slot_at(weft__handle_slot(handle))
                                                            : NULL;
    return op && atomic_load_explicit(&op->handle, memory_order_acquire) == handle ? op : NULL;
}

bool weft__op_claim(struct weft__op *op, weft_op_t handle)
{
    /* acquire: pairs with the release in finish, for those that saw it done */
    return atomic_compare_exchange_strong_explicit(&op->handle, &handle, 0, memory_order_acquire,
                                                   memory_order_relaxed);
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
    struct weft__op *head = atomic_load_explicit(&retired, memory_order_relaxed);
    do
        op->next = head;
    /* release pairs with the acquire in refill: who retired it is done with it */
    while (!atomic_compare_exchange_weak_explicit(&retired, &head, op, memory_order_release,
                                                  memory_order_relaxed));
}

/* Give the endpoint some free ops. */
static void refill(struct weft__endpoint *ep)
{
    ep->free_ops = atomic_exchange_explicit(&retired, NULL, memory_order_acquire);
    if (ep->free_ops)
        return;
    pthread_mutex_lock(&pool_lock);
    if (pool || pool_grow() == 0) {
        for (int i = 0; i < CHUNK && pool; i++) {
            struct weft__op *op = pool;
            pool = op->next;
            op->next = ep->free_ops;
            ep->free_ops = op;
        }
    }
    pthread_mutex_unlock(&pool_lock);
}

/* Ops that ended and were never asked for, too. */
void weft__op_pool_free(struct weft__endpoint *ep)
{
    for (uint32_t slot = 0; slot_at(slot); slot++) {
        struct weft__op *op = slot_at(slot);
        uint64_t handle = op->handle;
        if (handle && op->ep_handle == ep->handle && weft__op_claim(op, handle))
            weft__op_retire(op);
    }
    pthread_mutex_lock(&pool_lock);
    while (ep->free_ops) {
        struct weft__op *op = ep->free_ops;
        ep->free_ops = op->next;
        op->next = pool;
        pool = op;
    }
    pthread_mutex_unlock(&pool_lock);
}

/* Everything but what identifies the slot. */
static void reset(struct weft__op *op)
{
    atomic_store_explicit(&op->done, false, memory_order_relaxed);
    op->conn = NULL;
    op->prev = op->next = op->qprev = op->qnext = NULL;
    op->where = WEFT__AT_NONE;
    op->detached = op->canceled = op->finishing = op->large = op->urgent = op->more = false;
    op->visited = op->has_notify = false;
    op->status = 0;
    op->pending = 0;
    op->total = op->bytes = 0;
    op->pieces = NULL;
    op->npieces = op->next_piece = op->notify_len = op->nregs = 0;
    op->next_offset = 0;
    op->notify = op->bounce = NULL;
    op->result = NULL;
    op->regs = NULL;
    op->rec = NULL;
    op->on_end = NULL;
    op->arrival = NULL;
    op->parent = NULL;
}

struct weft__op *weft__op_new(struct weft__conn *conn, enum weft__op_kind kind)
{
    struct weft__endpoint *ep = conn->ep;
    if (!ep->free_ops)
        refill(ep);
    struct weft__op *op = ep->free_ops;
    if (!op)
        return NULL;
    ep->free_ops = op->next;
    reset(op);
    op->ep = ep;
    atomic_store_explicit(&op->ep_handle, ep->handle, memory_order_relaxed);
    op->conn = conn;
    op->kind = kind;
    /* release pairs with the acquire in weft__op_at: what is reset above is seen */
    atomic_store_explicit(&op->handle, weft__handle_make(WEFT__OP, op->slot, ++op->generation),
                          memory_order_release);
    op->next = conn->ops;
    if (conn->ops)
        conn->ops->prev = op;
    conn->ops = op;
    conn->nops++;
    return op;
}

static void leave_conn(struct weft__op *op)
{
    struct weft__conn *conn = op->conn;
    if (!conn)
        return;
    if (op->prev)
        op->prev->next = op->next;
    else
        conn->ops = op->next;
    if (op->next)
        op->next->prev = op->prev;
    op->prev = op->next = NULL;
    conn->nops--;
    op->conn = NULL;
}

static void release_regs(struct weft__op *op)
{
    if (op->kind == WEFT__OP_FETCH)
        return; /* its parent holds them */
    for (size_t i = 0; i < op->npieces; i++)
        if (op->pieces[i].reg)
            op->pieces[i].reg->users--;
}

static void free_parts(struct weft__op *op)
{
    if (op->pieces != &op->one)
        free(op->pieces);
    op->pieces = NULL;
    op->npieces = 0;
    if (op->notify || op->regs) {
        free(op->notify);
        free(op->bounce);
        free(op->regs);
        op->notify = op->bounce = NULL;
        op->regs = NULL;
    }
}

void weft__op_free(struct weft__op *op)
{
    struct weft__endpoint *ep = op->ep;
    leave_conn(op);
    free_parts(op);
    atomic_store_explicit(&op->handle, 0, memory_order_relaxed);
    op->next = ep->free_ops;
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
    if (op->qprev)
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
    if (op->status || op->done)
        return;
    op->status = status;
    snprintf(op->text, sizeof op->text, "%s", text ? text : weft_strerror(status));
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

static void finish(struct weft__op *op)
{
    struct weft__conn *conn = op->conn;
    struct weft__endpoint *ep = op->ep;
    if (op->on_end) {
        op->pending++; /* it may take the conn down, and that ends all ops: not this one again */
        op->on_end(op);
        op->pending--;
    }
    if (op->kind == WEFT__OP_FETCH) {
        weft__op_free(op);
        return;
    }
    if (op->status)
        conn->stats.ops_failed++;
    else
        conn->stats.ops_done++;
    release_regs(op);
    free_parts(op);
    leave_conn(op);
    if (op->detached)
        weft__op_free(op);
    else /* from here on it is the caller's, also while this thread still holds the lock. Pairs
          * with the acquire in weft_op_poll: the data and the status are there. */
        atomic_store_explicit(&op->done, true, memory_order_release);
    weft__changed(ep);
}

void weft__op_settle(struct weft__op *op)
{
    if (op->pending || op->where != WEFT__AT_NONE || op->done)
        return;
    bool data = op->kind != WEFT__OP_SEND && op->kind != WEFT__OP_NOTIFY;
    if (data && op->has_notify && !op->finishing && !op->status) {
        op->finishing = true; /* the data is in place: now the notification */
        weft__match_send(op);
        return;
    }
    if (op->nregs) {
        weft__op_shut_regs(op);
        return;
    }
    finish(op);
}

void weft__op_unpend(struct weft__op *op)
{
    op->pending--;
    weft__op_settle(op);
}

static void leave_queue(struct weft__op *op)
{
    if (op->where == WEFT__AT_TODO)
        weft__opq_remove(&op->conn->todo, op);
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
    if (op->kind == WEFT__OP_RECV && op->where != WEFT__AT_RECVQ)
        return; /* its message is on the way: too late */
    op->canceled = true;
    weft__op_fail(op, WEFT_ECANCELED, "canceled");
    /* one hold, so that the op does not end below us */
    op->pending++;
    weft__stripe_drop(conn, op, WEFT_ECANCELED, NULL);
    leave_queue(op);
    weft__op_unpend(op);
}

/* --- weft_post -------------------------------------------------------------------------------- */

static int refuse(const char *what)
{
    return weft_fail(-EINVAL, "weft_post: %s", what);
}

static int check_lists(const struct weft_xfer *x)
{
    bool one_sided = x->op == WEFT_XFER_WRITE || x->op == WEFT_XFER_READ;
    if (x->nlocal && !x->local)
        return refuse("local is NULL");
    if (x->nremote && !x->remote)
        return refuse("remote is NULL");
    if (one_sided && x->nlocal != x->nremote)
        return weft_fail(-EINVAL, "weft_post: %zu local and %zu remote pieces", x->nlocal,
                         x->nremote);
    if (!one_sided && x->op != WEFT_XFER_ADD && x->nremote)
        return refuse("this operation has no remote pieces");
    if (x->op == WEFT_XFER_ADD && (x->nremote != 1 || x->nlocal))
        return refuse("an ADD has one remote piece and no local one");
    if (x->op == WEFT_XFER_NOTIFY && (x->nlocal || !x->notify))
        return refuse("a NOTIFY has a notification and nothing else");
    if ((x->op == WEFT_XFER_SEND || x->op == WEFT_XFER_RECV) && x->notify)
        return refuse("a SEND or RECV carries no notification");
    if (!x->notify && x->notify_len)
        return refuse("notify is NULL");
    if (x->nlocal > UINT32_MAX)
        return refuse("too many pieces");
    return 0;
}

static int check_xfer(const struct weft_xfer *x)
{
    if (x->op < WEFT_XFER_WRITE || x->op > WEFT_XFER_ADD)
        return weft_fail(-EINVAL, "weft_post: there is no operation %d", (int)x->op);
    if (x->flags & ~WEFT_XFER_MORE)
        return weft_fail(-EINVAL, "weft_post: unknown flags 0x%x", x->flags);
    uint64_t total = 0;
    int rc = check_lists(x);
    for (size_t i = 0; rc == 0 && i < x->nlocal; i++) {
        if (x->local[i].len && !x->local[i].addr)
            rc = weft_fail(-EINVAL, "weft_post: local[%zu].addr is NULL", i);
        if (x->local[i].len > INT64_MAX - total)
            rc = weft_fail(-EINVAL, "weft_post: the pieces add up to more than 2^63 bytes");
        else
            total += x->local[i].len;
    }
    return rc;
}

static const uint32_t needs[] = {
    [WEFT_XFER_WRITE] = WEFT_WRITE, [WEFT_XFER_READ] = WEFT_READ, [WEFT_XFER_ADD] = WEFT_ATOMIC};

/* The remote half of piece i. */
static int fill_remote(struct weft__piece *piece, const struct weft__conn *conn,
                       const struct weft_xfer *x, size_t i)
{
    struct weft__remote r;
    int rc = weft__remote_decode(&x->remote[i], &r);
    if (rc)
        return weft_fail(rc, "remote[%zu]: %s", i, weft_last_error());
    uint64_t offset = x->remote_offset ? x->remote_offset[i] : 0;
    if (offset > r.len || piece->len > r.len - offset)
        return weft_fail(WEFT_EBOUNDS, "remote[%zu] has %llu bytes; %llu at %llu do not fit", i,
                         (unsigned long long)r.len, (unsigned long long)piece->len,
                         (unsigned long long)offset);
    if (!(r.access & needs[x->op]))
        return weft_fail(WEFT_EACCESS, "remote[%zu] was not registered for this operation", i);
    if (x->op == WEFT_XFER_ADD && (r.addr + offset) % 8)
        return weft_fail(-EINVAL, "remote[%zu]: an ADD needs an address aligned to 8", i);
    if (conn->peer_owner && r.owner != conn->peer_owner)
        return weft_fail(WEFT_EKEY, "remote[%zu] belongs to another endpoint than the peer", i);
    piece->raddr = r.addr + offset;
    piece->rkey = r.key;
    memcpy(piece->rkeys, r.keys, sizeof piece->rkeys);
    return 0;
}

/* The local registration of piece i. Most lists stay in one mem, which need not be looked up again. */
static int fill_reg(struct weft__piece *piece, struct weft__endpoint *ep,
                    const struct weft_local *local, size_t i)
{
    piece->reg = NULL;
    if (!local[i].mem)
        return 0;
    if (i > 0 && local[i].mem == local[i - 1].mem &&
        weft__reg_contains(piece[-1].reg, piece->addr, piece->len)) {
        piece->reg = piece[-1].reg;
        return 0;
    }
    int rc = weft__mem_reg_of(ep, local[i].mem, piece->addr, piece->len, &piece->reg);
    return rc ? weft_fail(rc, "local[%zu]: %s", i, weft_last_error()) : 0;
}

static int fill_piece(struct weft__op *op, struct weft__conn *conn, const struct weft_xfer *x,
                      size_t i)
{
    struct weft__piece *piece = &op->pieces[i];
    if (i < x->nlocal) {
        piece->addr = x->local[i].addr;
        piece->len = x->local[i].len;
        int rc = fill_reg(piece, conn->ep, x->local, i);
        if (rc)
            return rc;
    } else {
        piece->reg = NULL;
        piece->addr = NULL;
        piece->len = sizeof(uint64_t); /* ADD */
    }
    op->total += piece->len;
    return x->nremote ? fill_remote(piece, conn, x, i) : 0;
}

/* Endpoint lock held. */
static int fill(struct weft__op *op, struct weft__conn *conn, const struct weft_xfer *x)
{
    size_t n = x->op == WEFT_XFER_ADD ? 1 : x->nlocal;
    op->pieces = &op->one;
    if (n > 1)
        op->pieces = malloc(n * sizeof *op->pieces);
    if (!op->pieces)
        return weft_fail(-ENOMEM, "no memory for %zu pieces", n);
    for (size_t i = 0; i < n; i++) {
        int rc = fill_piece(op, conn, x, i);
        if (rc)
            return rc;
    }
    op->npieces = n;
    for (size_t i = 0; i < n; i++)
        if (op->pieces[i].reg)
            op->pieces[i].reg->users++;
    op->value = x->value;
    op->result = x->result;
    op->more = x->flags & WEFT_XFER_MORE;
    return 0;
}

/* What is prepared before the endpoint lock is taken: copies and temporary registrations. */
struct parts {
    void *notify, *bounce;
    struct weft__piece message;
    struct weft__reg **regs;
    size_t nregs;
    bool large;
};

static void parts_undo(struct weft__endpoint *ep, struct parts *p)
{
    for (size_t i = 0; i < p->nregs; i++)
        weft__reg_discard(ep, p->regs[i]);
    free(p->regs);
    free(p->notify);
    free(p->bounce);
}

static int add_reg(struct weft__endpoint *ep, struct parts *p, void *addr, uint64_t len)
{
    int rc = weft__reg_open(ep, addr, len, WEFT_READ, &p->regs[p->nregs]);
    if (rc == 0)
        p->nregs++;
    return rc;
}

/* A large message of many pieces is copied into one. */
static int make_bounce(struct parts *p, const struct weft_xfer *x, uint64_t total)
{
    p->bounce = malloc(total);
    if (!p->bounce)
        return weft_fail(-ENOMEM, "no memory to gather %llu bytes", (unsigned long long)total);
    uint8_t *at = p->bounce;
    for (size_t i = 0; i < x->nlocal; at += x->local[i].len, i++)
        if (x->local[i].len)
            memcpy(at, x->local[i].addr, x->local[i].len);
    p->message = (struct weft__piece){.addr = p->bounce, .len = total};
    return 0;
}

static int prepare_send(struct weft__endpoint *ep, const struct weft_xfer *x, struct parts *p)
{
    uint64_t total = 0;
    size_t pieces = 0;
    for (size_t i = 0; i < x->nlocal; i++) {
        total += x->local[i].len;
        pieces += x->local[i].len != 0;
    }
    p->large = total > ep->eager;
    if (!p->large)
        return 0;
    bool gather = pieces > WEFT__MAX_REMOTES;
    p->regs = calloc(gather ? 1 : pieces, sizeof *p->regs);
    if (!p->regs)
        return weft_fail(-ENOMEM, "no memory for %zu registrations", pieces);
    if (gather) {
        int rc = make_bounce(p, x, total);
        return rc ? rc : add_reg(ep, p, p->bounce, total);
    }
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < x->nlocal; i++)
        if (x->local[i].len)
            rc = add_reg(ep, p, x->local[i].addr, x->local[i].len);
    return rc;
}

static int prepare_notify(struct weft__endpoint *ep, const struct weft_xfer *x, struct parts *p)
{
    p->notify = malloc(x->notify_len ? x->notify_len : 1);
    if (!p->notify)
        return weft_fail(-ENOMEM, "no memory for a notification of %zu bytes", x->notify_len);
    memcpy(p->notify, x->notify, x->notify_len);
    p->message = (struct weft__piece){.addr = p->notify, .len = x->notify_len};
    p->large = x->notify_len > ep->eager;
    if (!p->large)
        return 0;
    p->regs = calloc(1, sizeof *p->regs);
    if (!p->regs)
        return weft_fail(-ENOMEM, "no memory for a registration");
    return add_reg(ep, p, p->notify, x->notify_len);
}

static int prepare(struct weft__endpoint *ep, const struct weft_xfer *x, struct parts *p)
{
    int rc = 0;
    if (x->op == WEFT_XFER_SEND)
        rc = prepare_send(ep, x, p);
    else if (x->notify)
        rc = prepare_notify(ep, x, p);
    if (rc)
        parts_undo(ep, p);
    return rc;
}

/* p is NULL for an operation that needs nothing prepared. */
static void adopt(struct weft__op *op, const struct parts *p, const struct weft_xfer *x)
{
    if (!p)
        return;
    op->notify = p->notify;
    op->notify_len = x->notify_len;
    op->has_notify = p->notify != NULL;
    op->bounce = p->bounce;
    op->message = p->message;
    op->regs = p->regs;
    op->nregs = p->nregs;
    op->large = p->large;
}

static void start(struct weft__conn *conn, struct weft__op *op)
{
    conn->stats.ops_posted++;
    if (op->kind == WEFT__OP_RECV) {
        weft__match_recv(op);
    } else if (op->kind == WEFT__OP_SEND || op->kind == WEFT__OP_NOTIFY) {
        weft__match_send(op);
    } else {
        weft__stripe_start(conn, op);
    }
}

/* Endpoint lock held. */
static int begin(struct weft__conn *conn, const struct weft_xfer *x, const struct parts *p,
                 bool urgent, weft_op_t *out)
{
    if (conn->state == WEFT_CONN_DOWN)
        return weft_fail(conn->status, "conn is down: %s", conn->why);
    struct weft__op *op = weft__op_new(conn, (enum weft__op_kind)x->op);
    if (!op)
        return weft_fail(-ENOMEM, "no memory for an operation");
    int rc = fill(op, conn, x);
    if (rc) {
        weft__op_free(op);
        return rc;
    }
    adopt(op, p, x);
    op->urgent = urgent;
    op->detached = !out;
    if (out)
        *out = op->handle;
    start(conn, op);
    return 0;
}

static int post_simple(struct weft__conn *conn, const struct weft_xfer *x, bool urgent,
                       weft_op_t *out)
{
    bool more = x->flags & WEFT_XFER_MORE;
    struct weft__lane *lane = weft__post_lock(conn, more);
    int rc = begin(conn, x, NULL, urgent, out);
    weft__post_unlock(conn, lane, more);
    return rc;
}

static int post_with_parts(struct weft__conn *conn, const struct weft_xfer *x, bool urgent,
                           weft_op_t *out)
{
    struct weft__endpoint *ep = conn->ep;
    struct parts parts = {0};
    int rc = prepare(ep, x, &parts);
    if (rc)
        return rc;
    bool more = x->flags & WEFT_XFER_MORE;
    struct weft__lane *lane = weft__post_lock(conn, more);
    rc = begin(conn, x, &parts, urgent, out);
    weft__post_unlock(conn, lane, more);
    if (rc)
        parts_undo(ep, &parts);
    return rc;
}

int weft__post(weft_conn_t handle, const struct weft_xfer *xfer, bool urgent, weft_op_t *out)
{
    struct weft_xfer copy;
    if (!xfer)
        return refuse("xfer is NULL");
    int rc = 0;
    if (xfer->struct_size != sizeof copy) { /* of another version: else there is no need */
        memset(&copy, 0, sizeof copy);
        rc = weft__opts_copy(&copy, sizeof copy, xfer, "weft_xfer");
        xfer = &copy;
    }
    if (rc == 0)
        rc = check_xfer(xfer);
    if (rc)
        return rc;
    struct weft__conn *conn = weft__handle_get(handle, WEFT__CONN);
    if (!conn)
        return WEFT_EHANDLE;
    if (xfer->op == WEFT_XFER_SEND || xfer->notify)
        rc = post_with_parts(conn, xfer, urgent, out);
    else
        rc = post_simple(conn, xfer, urgent, out);
    weft__handle_put(handle);
    return rc;
}

int weft_post(weft_conn_t conn, const struct weft_xfer *xfer, weft_op_t *op)
{
    return weft__post(conn, xfer, false, op);
}
