/* SPDX-License-Identifier: Apache-2.0 */
/* What callers do with operations that they posted: poll, wait, cancel; and the blocking forms. */
#include "conn.h"
#include "counts.h"
#include "endpoint.h"
#include "match.h"
#include "op.h"
#include "progress.h"
#include "util.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static void copy_status(const struct weft__op *op, struct weft_op_status *status)
{
    if (!status)
        return;
    status->status = op->status;
    status->bytes = op->bytes;
    status->text[0] = 0;
    if (op->status)
        memcpy(status->text, op->text, sizeof status->text);
}

static bool is_done(struct weft__op *op, weft_op_t handle)
{
    /* acquire pairs with the release in finish. One that another thread has read is done, too. */
    return atomic_load_explicit(&op->done, memory_order_acquire) || weft__op_at(handle) != op;
}

/* The result of an op that is done, and its handle is gone; or WEFT_EHANDLE. */
static int read_result(struct weft__op *op, weft_op_t handle, struct weft_op_status *status)
{
    if (!weft__op_claim(op, handle))
        return weft_fail(WEFT_EHANDLE, "the operation was read by another thread");
    int result = op->status ? weft_fail(op->status, "%s", op->text) : 0;
    copy_status(op, status);
    weft__op_retire(op);
    return result;
}

/* Drive the endpoint of an op. NULL: there is no such op. */
static struct weft__op *progress_for(weft_op_t handle)
{
    struct weft__endpoint *ep;
    weft_endpoint_t ep_handle;
    struct weft__op *op = weft__op_find(handle, &ep, &ep_handle);
    if (!op)
        return NULL;
    /* mostly that is all that a send waits for */
    bool heard = atomic_load_explicit(&ep->hears, memory_order_relaxed) && weft__hear(ep);
    if (!heard || !is_done(op, handle))
        weft__progress(ep);
    weft__handle_put(ep_handle);
    return op;
}

/* Of an op that was not done at first sight. */
static WEFT__APART int poll_again(weft_op_t handle, struct weft_op_status *status)
{
    struct weft__op *op = progress_for(handle);
    if (!op)
        return WEFT_EHANDLE;
    if (!is_done(op, handle))
        return 0;
    int result = read_result(op, handle, status);
    return result ? result : 1;
}

int weft_op_poll(weft_op_t handle, struct weft_op_status *status)
{
    struct weft__op *op = weft__op_at(handle);
    if (!op || !atomic_load_explicit(&op->done, memory_order_acquire))
        return poll_again(handle, status);
    int result = read_result(op, handle, status);
    return result ? result : 1;
}

struct op_wait {
    struct weft__op *op;
    weft_op_t handle;
};

/* The conn of an op that is not done was given up. Endpoint lock held: it stays so. One that is done may be another endpoint's. */
static bool is_left(const struct op_wait *w)
{
    return w->op->conn && w->op->conn->given_up;
}

static bool op_ready(void *arg)
{
    const struct op_wait *w = arg;
    return is_done(w->op, w->handle) || is_left(w);
}

/* Why a wait is over whose op is not done. */
static int say_not_done(struct weft__endpoint *ep, const struct op_wait *w, int timeout_ms)
{
    pthread_mutex_lock(&ep->lock);
    bool given_up = !is_done(w->op, w->handle) && is_left(w);
    pthread_mutex_unlock(&ep->lock);
    if (given_up)
        return weft_fail(WEFT_ETIMEOUT, "the conn was closed, and the operation has not ended in time for that");
    return weft_fail(WEFT_ETIMEOUT, "operation is not done after %d ms", weft__waited_ms(timeout_ms));
}

/* The caller keeps the endpoint alive. */
static int wait_op(struct weft__endpoint *ep, struct weft__op *op, weft_op_t handle,
                   int timeout_ms, struct weft_op_status *status)
{
    struct op_wait w = {op, handle};
    weft__wait_op(ep, op, op_ready, &w, weft__deadline(timeout_ms));
    bool done = is_done(op, handle);
    int result = done ? read_result(op, handle, status) : WEFT_ETIMEOUT;
    weft__tell(ep); /* this thread may not be back soon */
    if (done)
        return result;
    if (status)
        *status = (struct weft_op_status){.status = WEFT_EAGAIN};
    return say_not_done(ep, &w, timeout_ms);
}

int weft_op_wait(weft_op_t handle, int timeout_ms, struct weft_op_status *status)
{
    struct weft__endpoint *ep;
    weft_endpoint_t ep_handle;
    struct weft__op *op = weft__op_find(handle, &ep, &ep_handle);
    if (!op)
        return WEFT_EHANDLE;
    int rc = wait_op(ep, op, handle, timeout_ms, status);
    weft__handle_put(ep_handle);
    return rc;
}

static int cancel_op(struct weft__endpoint *ep, struct weft__op *op, weft_op_t handle)
{
    int rc = 0;
    pthread_mutex_lock(&ep->lock);
    weft__counts_hear_all(ep); /* is it too late? */
    if (!is_done(op, handle)) /* nor will it be while the lock is held */
        weft__op_cancel(op);
    else if (weft__op_at(handle) != op)
        rc = weft_fail(WEFT_EHANDLE, "the operation was read by another thread");
    pthread_mutex_unlock(&ep->lock);
    weft__kick_all(ep);
    return rc;
}

int weft_op_cancel(weft_op_t handle)
{
    struct weft__endpoint *ep;
    weft_endpoint_t ep_handle;
    struct weft__op *op = weft__op_find(handle, &ep, &ep_handle);
    if (!op)
        return WEFT_EHANDLE;
    int rc = cancel_op(ep, op, handle);
    weft__handle_put(ep_handle);
    return rc;
}

/* --- blocking forms --------------------------------------------------------------------------- */

/* A GPU may never end what it has begun: nobody asks for the op any more, unless it has ended just now. */
static int leave(struct weft__endpoint *ep, struct weft__op *op, weft_op_t handle, int timeout_ms,
                 struct weft_op_status *status)
{
    pthread_mutex_lock(&ep->lock);
    bool done = op->done;
    op->detached = !done; /* from here on it may be another's */
    pthread_mutex_unlock(&ep->lock);
    if (done)
        return read_result(op, handle, status);
    status->status = WEFT_ETIMEOUT;
    const char *who = atomic_load(&ep->copier.busy) ? "a copy that a GPU has begun" : "what was under way";
    char when[32] = "";
    if (timeout_ms >= 0) /* else another thread has closed the conn */
        snprintf(when, sizeof when, " after %d ms", timeout_ms);
    return weft_fail(WEFT_ETIMEOUT, "not done%s, and %s has not ended since its conn was closed: until it has, this memory stays in use",
                     when, who);
}

/* The deadline has passed: get the memory back, cutting the conn if nothing else helps. */
static int recover(struct weft__conn *conn, struct weft__op *op, weft_op_t handle, int timeout_ms,
                   struct weft_op_status *status)
{
    struct weft__endpoint *ep = conn->ep;
    const char *by = "canceled";
    cancel_op(ep, op, handle);
    int rc = wait_op(ep, op, handle, (int)(ep->grace_ns / 1000000u), status);
    if (rc == WEFT_ETIMEOUT && status->status == WEFT_EAGAIN) {
        pthread_mutex_lock(&ep->lock);
        weft__conn_down(conn, WEFT_ECLOSED, "a blocking call had to take its memory back");
        weft_log(WEFT_LOG_WARN, "conn", "%s: down: %s", conn->peer_text, conn->why);
        pthread_mutex_unlock(&ep->lock);
        weft__kick_all(ep);
        rc = wait_op(ep, op, handle, (int)(ep->give_up_ns / 1000000u), status);
        by = "its conn was closed";
        if (rc == WEFT_ETIMEOUT && status->status == WEFT_EAGAIN)
            rc = leave(ep, op, handle, timeout_ms, status);
        rc = rc == WEFT_ECLOSED ? WEFT_ECANCELED : rc; /* what could not be canceled */
    }
    if (rc != WEFT_ECANCELED)
        return rc;
    status->status = WEFT_ETIMEOUT;
    return weft_fail(WEFT_ETIMEOUT, "not done after %d ms, and %s", weft__waited_ms(timeout_ms), by);
}

static int transfer(struct weft__conn *conn, const struct weft_xfer *xfer, int timeout_ms,
                    struct weft_op_status *status)
{
    weft_op_t handle;
    int rc = weft__post(conn->handle, xfer, true, &handle);
    if (rc) {
        status->status = rc;
        snprintf(status->text, sizeof status->text, "%s", weft_last_error());
        return rc;
    }
    struct weft__op *op = weft__op_at(handle); /* nobody else knows it */
    rc = wait_op(conn->ep, op, handle, timeout_ms, status);
    if (rc == WEFT_ETIMEOUT && status->status == WEFT_EAGAIN)
        rc = recover(conn, op, handle, timeout_ms, status);
    return rc;
}

int64_t weft_transfer(weft_conn_t handle, const struct weft_xfer *xfer, int timeout_ms,
                      struct weft_op_status *status)
{
    struct weft_op_status own;
    if (!status)
        status = &own;
    memset(status, 0, sizeof *status);
    status->status = WEFT_EHANDLE;
    struct weft__conn *conn = weft__handle_get(handle, WEFT__CONN);
    if (!conn)
        return WEFT_EHANDLE;
    /* Both are held to the end: who closes them meanwhile waits until this call has its memory
     * back, and this call until the transport has let go of it. */
    weft_endpoint_t ep_handle = conn->ep_handle;
    int rc = WEFT_EHANDLE;
    if (weft__handle_get(ep_handle, WEFT__ENDPOINT)) {
        rc = transfer(conn, xfer, timeout_ms, status);
        weft__handle_put(handle);
        weft__handle_put(ep_handle);
    } else {
        weft__handle_put(handle);
    }
    return rc < 0 ? rc : (int64_t)status->bytes;
}

static int64_t transfer_one(weft_conn_t conn, enum weft_xfer_op op, void *addr, size_t len,
                            const struct weft_remote *remote, uint64_t offset, int timeout_ms)
{
    struct weft_local local = {.addr = addr, .len = len};
    bool one_sided = op == WEFT_XFER_WRITE || op == WEFT_XFER_READ;
    if (one_sided && !remote)
        return weft_fail(-EINVAL, "remote is NULL");
    return weft_transfer(conn,
                         WEFT_OPTS(weft_xfer, .op = op, .local = &local, .nlocal = 1,
                                   .remote = one_sided ? remote : NULL,
                                   .nremote = one_sided ? 1 : 0,
                                   .remote_offset = one_sided ? &offset : NULL),
                         timeout_ms, NULL);
}

int64_t weft_write(weft_conn_t conn, const void *addr, size_t len,
                   const struct weft_remote *remote, uint64_t offset, int timeout_ms)
{
    return transfer_one(conn, WEFT_XFER_WRITE, (void *)(uintptr_t)addr, len, remote, offset,
                        timeout_ms);
}

int64_t weft_read(weft_conn_t conn, void *addr, size_t len, const struct weft_remote *remote,
                  uint64_t offset, int timeout_ms)
{
    return transfer_one(conn, WEFT_XFER_READ, addr, len, remote, offset, timeout_ms);
}

int64_t weft_send(weft_conn_t conn, const void *addr, size_t len, int timeout_ms)
{
    return transfer_one(conn, WEFT_XFER_SEND, (void *)(uintptr_t)addr, len, NULL, 0, timeout_ms);
}

int64_t weft_recv(weft_conn_t conn, void *addr, size_t len, int timeout_ms)
{
    return transfer_one(conn, WEFT_XFER_RECV, addr, len, NULL, 0, timeout_ms);
}

int weft_add(weft_conn_t conn, const struct weft_remote *remote, uint64_t offset, uint64_t value,
             uint64_t *result, int timeout_ms)
{
    if (!remote)
        return weft_fail(-EINVAL, "remote is NULL");
    int64_t rc = weft_transfer(conn,
                               WEFT_OPTS(weft_xfer, .op = WEFT_XFER_ADD, .remote = remote,
                                         .nremote = 1, .remote_offset = &offset, .value = value,
                                         .result = result),
                               timeout_ms, NULL);
    return rc < 0 ? (int)rc : 0;
}

int weft_notify(weft_conn_t conn, const void *data, size_t len, int timeout_ms)
{
    int64_t rc = weft_transfer(conn,
                               WEFT_OPTS(weft_xfer, .op = WEFT_XFER_NOTIFY,
                                         .notify = data || len ? data : "", .notify_len = len),
                               timeout_ms, NULL);
    return rc < 0 ? (int)rc : 0;
}
