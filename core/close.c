/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Closing a conn, and an endpoint with all that it has.
 *
 * A conn goes in four steps: what the peer waits for reaches it (linger), it is taken down, which ends its operations,
 * its links close and what was under way in its memory ends (weft__conn_idle), and it is freed when the last caller has
 * returned from it. An endpoint has one deadline for each step of all its conns.
 *
 * A GPU may never end a copy that it has begun. What has not become idle after ep->give_up_ns is given up: who waits for
 * its operations is let go, and the reaper frees it when the copy does end. An endpoint that has such a conn stays as it
 * is, without threads, since the copy reaches into its memory.
 */
#include "boot.h"
#include "conn.h"
#include "copier.h"
#include "counts.h"
#include "endpoint.h"
#include "lane.h"
#include "match.h"
#include "mem.h"
#include "msg.h"
#include "notify.h"
#include "progress.h"
#include "util.h"

#include <stdlib.h>
#include <unistd.h>

/* --- one conn ------------------------------------------------------------------------------------ */

/* Let what the peer is waiting for reach it: messages, and the counts of taken ones. */
static void linger(struct weft__conn *conn, uint64_t until)
{
    struct weft__endpoint *ep = conn->ep;
    pthread_mutex_lock(&ep->lock);
    weft__counts_hear_all(ep);
    weft__counts_tell_all(ep);
    pthread_mutex_unlock(&ep->lock);
    weft__kick_all(ep);
    weft__wait(ep, weft__msg_flushed, conn, until);
}

static void take_down(struct weft__conn *conn)
{
    pthread_mutex_lock(&conn->ep->lock);
    weft__conn_down(conn, WEFT_ECLOSED, "closed on this side");
    pthread_mutex_unlock(&conn->ep->lock);
}

/* It goes as one that nobody has a handle of. */
static void give_up(struct weft__conn *conn)
{
    struct weft__endpoint *ep = conn->ep;
    pthread_mutex_lock(&ep->lock);
    conn->given_up = conn->reaping = true;
    if (!conn->passive)
        atomic_fetch_add(&ep->reapable, 1);
    conn->passive = true;
    weft__changed(ep);
    pthread_mutex_unlock(&ep->lock);
    weft__wake(ep);
}

/* The reason, for the caller. */
static int left_behind(const struct weft__endpoint *ep, const char *what)
{
    const char *who = atomic_load(&ep->copier.busy) ? "a copy that a GPU has begun" : "what is under way";
    weft_log(WEFT_LOG_WARN, "conn", "%s is closed, but %s has not ended", what, who);
    return weft_fail(WEFT_ETIMEOUT,
                     "%s is closed, but %s has not ended: until it has, the memory that was named stays in use", what,
                     who);
}

int weft_conn_close(weft_conn_t handle)
{
    struct weft__conn *conn = weft__handle_get(handle, WEFT__CONN);
    if (!conn)
        return WEFT_EHANDLE;
    struct weft__endpoint *ep = weft__handle_get(conn->ep_handle, WEFT__ENDPOINT);
    if (!ep || !weft__handle_shut(handle, WEFT__CONN)) {
        weft__handle_put(handle);
        if (ep)
            weft__handle_put(ep->handle);
        return weft_fail(WEFT_EHANDLE, "conn is being closed by another thread");
    }
    weft_endpoint_t ep_handle = ep->handle;
    int rc = 0;
    pthread_mutex_lock(&ep->lock);
    weft__conn_unqueue(conn); /* else who accepts it is given a handle that is no more */
    pthread_mutex_unlock(&ep->lock);
    linger(conn, weft_now() + ep->grace_ns);
    take_down(conn);
    weft__kick_all(ep);
    if (weft__wait(ep, weft__conn_idle, conn, weft_now() + ep->give_up_ns)) { /* lanes close links at once */
        weft__handle_drain(handle, 1);
        weft__conn_free(conn);
    } else {
        give_up(conn);
        rc = left_behind(ep, conn->peer_text);
        weft__handle_put(handle);
    }
    weft__handle_put(ep_handle);
    return rc;
}

/* --- all conns of an endpoint that is closing: the reaper does not touch them, and strangers add none ------------- */

/* Conns are this thread's from here on (`reaping`), but for those that another thread is closing. */
static void take_conns(struct weft__endpoint *ep)
{
    pthread_mutex_lock(&ep->lock);
    for (struct weft__conn *conn = ep->conns; conn; conn = conn->next)
        if (weft__handle_shut(conn->handle, WEFT__CONN))
            conn->reaping = true;
    pthread_mutex_unlock(&ep->lock);
}

/* The taken one after this one, which is taken, too; the first after NULL. Others come and go meanwhile. */
static struct weft__conn *next_taken(struct weft__endpoint *ep, const struct weft__conn *conn)
{
    pthread_mutex_lock(&ep->lock);
    struct weft__conn *next = conn ? conn->next : ep->conns;
    while (next && !next->reaping)
        next = next->next;
    pthread_mutex_unlock(&ep->lock);
    return next;
}

static void take_down_all(struct weft__endpoint *ep)
{
    uint64_t until = weft_now() + ep->grace_ns; /* for all of them */
    for (struct weft__conn *conn = next_taken(ep, NULL); conn; conn = next_taken(ep, conn)) {
        linger(conn, until);
        take_down(conn);
    }
    weft__kick_all(ep);
}

/* Free those that are idle before `until`. One that was given up has time once more: what holds it may have gone since. */
static void free_taken(struct weft__endpoint *ep, uint64_t until)
{
    for (struct weft__conn *next, *conn = next_taken(ep, NULL); conn; conn = next) {
        next = next_taken(ep, conn);
        if (!weft__wait(ep, weft__conn_idle, conn, until))
            continue;
        weft__handle_drain(conn->handle, 0);
        weft__conn_free(conn);
    }
}

/* Returns when nobody else is in a call with this endpoint or a conn that was freed. */
static void close_conns(struct weft__endpoint *ep, weft_endpoint_t handle)
{
    take_conns(ep);
    take_down_all(ep);
    uint64_t until = weft_now() + ep->give_up_ns;
    free_taken(ep, until);
    for (struct weft__conn *conn = next_taken(ep, NULL); conn; conn = next_taken(ep, conn))
        give_up(conn);
    weft__handle_drain(handle, 1);
    free_taken(ep, until); /* those that other threads have given up meanwhile */
}

/* --- the endpoint -------------------------------------------------------------------------------- */

static void shut_mems(struct weft__endpoint *ep)
{
    for (struct weft__mem *mem = ep->mems; mem; mem = mem->next)
        if (weft__handle_shut(mem->handle, WEFT__MEM))
            weft__handle_drain(mem->handle, 0);
}

/* No links are left, so no peer can be touching anything. */
static void free_mems(struct weft__endpoint *ep)
{
    while (ep->mems) {
        struct weft__mem *mem = ep->mems;
        ep->mems = mem->next;
        if (ep->mems)
            ep->mems->prev = NULL;
        free(mem);
    }
    while (ep->regs) {
        struct weft__reg *reg = ep->regs;
        ep->regs = reg->next;
        weft__reg_discard(ep, reg);
    }
}

static void free_notifs(struct weft__endpoint *ep)
{
    while (ep->notifs) {
        struct weft__arrival *arrival = ep->notifs;
        ep->notifs = arrival->next;
        weft__arrival_free(arrival);
    }
}

/* Its threads are gone and its conns closed, but a GPU may still write to its memory: that stays as it is. */
static int leave(struct weft__endpoint *ep)
{
    static _Atomic(struct weft__endpoint *) all; /* so that leak checkers find them */
    ep->left = atomic_load(&all);
    while (!atomic_compare_exchange_weak(&all, &ep->left, ep))
        ;
    return left_behind(ep, "the endpoint");
}

int weft_endpoint_close(weft_endpoint_t handle)
{
    struct weft__endpoint *ep = weft__handle_get(handle, WEFT__ENDPOINT);
    if (!ep)
        return WEFT_EHANDLE;
    if (!weft__handle_shut(handle, WEFT__ENDPOINT)) {
        weft__handle_put(handle);
        return weft_fail(WEFT_EHANDLE, "endpoint is being closed by another thread");
    }
    pthread_mutex_lock(&ep->lock);
    ep->closing = true;
    weft__changed(ep);
    pthread_mutex_unlock(&ep->lock);
    close_conns(ep, handle);
    weft__threads_stop(ep);
    weft__boot_close(ep);
    shut_mems(ep);
    if (ep->conns)
        return leave(ep);
    /* registrations that a peer would not let go of end with its links */
    for (int i = 0; i < ep->nlanes; i++)
        weft__lane_progress(ep->lanes[i]);
    free_mems(ep);
    free_notifs(ep);
    weft__endpoint_free(ep);
    return 0;
}
