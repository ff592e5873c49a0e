/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations that begin after what their caller has queued on a stream of a GPU.
 *
 * The stream is marked when the operation is posted; the copier asks for the mark as it asks for the end of its copies.
 * Messages and receives are matched in the order posted: what waits for no stream waits behind those of its kind that do.
 * Other operations have no order, and wait for nothing but their own mark: a kernel may be waiting for one of them.
 */
#include "after.h"
#include "conn.h"
#include "copier.h"
#include "endpoint.h"
#include "op.h"
#include "util.h"

#include <errno.h>
#include <stdlib.h>

struct weft__after {
    struct weft__copy copy; /* the mark */
    struct weft__endpoint *ep;
    struct weft_list in_conn; /* conn->afters, in the order posted */
    struct weft__op *op;      /* pending on it. NULL: it does not wait any more */
    bool marked;              /* not reached yet: the copier has it */
};

static struct weft__after *after_new(struct weft__endpoint *ep)
{
    struct weft__after *after = calloc(1, sizeof *after);
    if (after) {
        after->ep = ep;
        weft_list_init(&after->in_conn);
    }
    return after;
}

int weft__after_mark(struct weft__endpoint *ep, void *stream, struct weft__after **out)
{
    if (!ep->gpu_apart)
        return weft_fail(
            WEFT_EUNSUPPORTED, "weft_xfer.stream is set, but this endpoint uses no GPUs: %s",
            ep->gpu_auto ? "the process has loaded no library of theirs that finds one"
                         : "its backend is host");
    const struct weft_gpu_ops *ops = ep->gpu->ops;
    int ordinal, rc = ops->stream_gpu(stream, &ordinal);
    if (rc == 0)
        rc = weft__gpu_need(ep, ordinal);
    if (rc)
        return rc;
    struct weft__after *after = after_new(ep);
    if (!after)
        return weft_fail(-ENOMEM, "no memory to wait for a stream");
    rc = weft__gpu_mark(ep, ordinal, stream, &after->copy);
    if (rc) {
        free(after);
        return rc;
    }
    after->marked = true;
    *out = after;
    return 0;
}

/* Which operations may not overtake which, as bits. */
static unsigned order_of(const struct weft__op *op)
{
    return op->kind == WEFT__OP_SEND     ? 1
           : op->kind == WEFT__OP_RECV   ? 2
           : op->kind == WEFT__OP_NOTIFY ? 4
                                         : 0;
}

/* The first that may begin, or NULL. */
static struct weft__after *next(const struct weft__conn *conn)
{
    unsigned held = 0;
    for (struct weft_list *at = conn->afters.next; at != &conn->afters; at = at->next) {
        struct weft__after *after = WEFT_LIST_OF(at, struct weft__after, in_conn);
        if (!after->marked && !(held & order_of(after->op)))
            return after;
        held |= order_of(after->op);
    }
    return NULL;
}

static void begin_all(struct weft__conn *conn)
{
    struct weft__after *after;
    while ((after = next(conn))) {
        struct weft__op *op = after->op;
        weft_list_remove(&after->in_conn);
        free(after);
        op->where = WEFT__AT_NONE;
        op->after = NULL;
        weft__op_start(conn, op);
        weft__op_unpend(op);
    }
}

static void reached(struct weft__copy *copy, int status, const char *why)
{
    struct weft__after *after = (struct weft__after *)copy; /* the first member */
    struct weft__op *op = after->op;
    after->marked = false;
    if (!op) {
        free(after);
        return;
    }
    struct weft__conn *conn = op->conn;
    if (status == 0) {
        begin_all(conn);
        return;
    }
    weft__op_fail(op, status, why);
    op->pending++; /* to be canceled with */
    weft__after_leave(op);
    begin_all(conn);
    weft__op_unpend(op);
}

void weft__after_start(struct weft__conn *conn, struct weft__op *op, struct weft__after *after)
{
    unsigned held = 0;
    for (struct weft_list *at = conn->afters.next; at != &conn->afters; at = at->next)
        held |= order_of(WEFT_LIST_OF(at, struct weft__after, in_conn)->op);
    if (!after && held & order_of(op))
        after = after_new(conn->ep);
    else if (!after) {
        weft__op_start(conn, op);
        return;
    }
    if (!after) {
        weft__op_fail(op, -ENOMEM, "no memory to wait behind another");
        weft__op_settle(op);
        return;
    }
    after->op = op;
    op->after = after;
    op->where = WEFT__AT_AFTER;
    op->pending++;
    weft_list_push(&conn->afters, &after->in_conn);
    if (after->marked) {
        after->copy.done = reached;
        weft__copy_push(conn->ep, &after->copy);
    }
}

void weft__after_leave(struct weft__op *op)
{
    struct weft__after *after = op->after;
    struct weft__conn *conn = op->conn;
    weft_list_remove(&after->in_conn);
    after->op = NULL;
    op->after = NULL;
    op->where = WEFT__AT_NONE;
    op->pending--; /* who cancels holds it */
    if (!after->marked)
        free(after); /* else its mark frees it */
    if (conn->state != WEFT_CONN_DOWN)
        begin_all(conn); /* what was behind it */
}

void weft__after_drop(struct weft__after *after)
{
    struct weft__endpoint *ep = after->ep;
    after->copy.done = reached;
    pthread_mutex_lock(&ep->lock);
    weft__copy_push(ep, &after->copy);
    pthread_mutex_unlock(&ep->lock);
    weft__copier_kick(ep, &ep->copier);
}
