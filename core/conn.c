/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A conn: its life, its links, what it tells about itself.
 *
 * CONNECTING until the handshake has joined its links, UP until the last link is lost or either
 * side closes it, then DOWN for good. Going down ends every operation; those whose memory a
 * transport still holds end when their link is closed, which the lanes do at once.
 */
#include "conn.h"
#include "counts.h"
#include "endpoint.h"
#include "lane.h"
#include "match.h"
#include "msg.h"
#include "op.h"
#include "progress.h"
#include "stripe.h"
#include "util.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int weft__conn_open(struct weft__endpoint *ep, bool initiator, const struct weft__address *peer, struct weft__conn **out)
{
    struct weft__conn *conn = calloc(1, sizeof *conn);
    if (!conn)
        return weft_fail(-ENOMEM, "no memory for a conn");
    conn->ep = ep;
    conn->ep_handle = ep->handle;
    conn->initiator = initiator;
    conn->passive = !initiator; /* until it is queued for accept: no one has its handle */
    conn->handshaking = true;   /* from the first moment: who closes the endpoint finds it */
    if (peer) {
        conn->peer_addr = *peer;
        weft__address_format(peer, conn->peer_text, sizeof conn->peer_text);
    }
    conn->outq_tail = &conn->outq;
    weft_list_init(&conn->ops);
    weft_list_init(&conn->afters);
    weft__match_init(conn);
    weft__stage_init(&conn->stage);
    weft__ipc_init(&conn->ipc);
    conn->handle = weft__handle_open(WEFT__CONN, conn, NULL);
    if (!conn->handle) {
        free(conn);
        return -ENOMEM;
    }
    pthread_mutex_lock(&ep->lock);
    bool closing = ep->closing;
    if (!closing) {
        conn->next = ep->conns;
        if (ep->conns)
            ep->conns->prev = conn;
        ep->conns = conn;
        ep->nconns++;
    }
    pthread_mutex_unlock(&ep->lock);
    if (closing) {
        weft__handle_shut(conn->handle, WEFT__CONN);
        weft__handle_drain(conn->handle, 0);
        free(conn);
        return weft_fail(WEFT_ECLOSED, "endpoint is being closed");
    }
    *out = conn;
    return 0;
}

bool weft__conn_idle(void *arg)
{
    struct weft__conn *conn = arg;
    return conn->state == WEFT_CONN_DOWN && !conn->handshaking && !conn->links_open &&
           !conn->nops && !conn->stage.serving;
}

void weft__conn_unqueue(struct weft__conn *conn)
{
    struct weft__endpoint *ep = conn->ep;
    struct weft__conn **at = &ep->accepts;
    if (!conn->queued_accept)
        return;
    while (*at != conn)
        at = &(*at)->accept_next;
    *at = conn->accept_next;
    if (!*at)
        ep->accepts_tail = at;
    ep->naccepts--;
    conn->queued_accept = false;
}

/* Out of everything that leads to it. Endpoint lock held. */
static void unlink_conn(struct weft__conn *conn)
{
    struct weft__endpoint *ep = conn->ep;
    weft__conn_unqueue(conn);
    if (conn->prev)
        conn->prev->next = conn->next;
    else
        ep->conns = conn->next;
    if (conn->next)
        conn->next->prev = conn->prev;
    ep->nconns--;
    if (conn->passive)
        atomic_fetch_sub(&ep->reapable, 1);
    weft__msg_free_all(conn);
}

static void destroy(struct weft__conn *conn)
{
    for (int i = 0; i < conn->nlinks; i++)
        free(conn->links[i]);
    weft__ipc_free(conn);
    free(conn);
}

void weft__conn_free(struct weft__conn *conn)
{
    struct weft__endpoint *ep = conn->ep;
    pthread_mutex_lock(&ep->lock);
    unlink_conn(conn);
    pthread_mutex_unlock(&ep->lock);
    destroy(conn);
}

/* The next conn that can be reaped now, unlinked; its handle is gone. Endpoint lock held. */
static struct weft__conn *reap_one(struct weft__endpoint *ep)
{
    for (struct weft__conn *conn = ep->conns; conn && !ep->closing; conn = conn->next) {
        if (!conn->passive || !weft__conn_idle(conn))
            continue;
        if (weft__handle_shut(conn->handle, WEFT__CONN))
            conn->reaping = true;
        if (!conn->reaping || !weft__handle_try_drain(conn->handle))
            continue;
        unlink_conn(conn);
        return conn;
    }
    return NULL;
}

void weft__conn_reap(struct weft__endpoint *ep)
{
    for (;;) {
        pthread_mutex_lock(&ep->lock);
        struct weft__conn *conn = reap_one(ep);
        pthread_mutex_unlock(&ep->lock);
        if (!conn)
            return;
        destroy(conn);
    }
}

/* --- up and down ----------------------------------------------------------------------------- */

int weft__conn_links_up(const struct weft__conn *conn)
{
    int n = 0;
    for (int i = 0; i < conn->nlinks; i++)
        n += conn->links[i]->up;
    return n;
}

/* Each of the two messages is sent once for each link: no more than that can wait. */
static void tell_link(struct weft__conn *conn, enum weft__msg_type type, int index)
{
    struct weft__msg_head head = {.type = (uint8_t)type, .index = (uint32_t)index};
    if (conn->state == WEFT_CONN_UP)
        weft__msg_post(conn, &head, NULL, 0);
}

#define PARTS_AHEAD 4 /* for the link to have another one when one ends */

/* A transfer that several links share is cut into chunks, and any into parts of which a link has several. */
static void fit_part(struct weft__conn *conn)
{
    bool shared = weft__conn_links_up(conn) > 1;
    uint64_t part = shared ? conn->ep->chunk : conn->ep->ahead / PARTS_AHEAD;
    conn->part = part < conn->max_msg ? part : conn->max_msg;
}

/* To its links: which it goes by if it is only one, and what can go by any of them, since what a dead
 * link leaves is sent again by another one. */
static void fit(struct weft__conn *conn)
{
    struct weft__lane *home = NULL;
    conn->max_msg = UINT64_MAX;
    conn->lanes = 0;
    for (int i = 0; i < conn->nlinks; i++) {
        struct weft__lane *lane = conn->links[i]->lane;
        if (!conn->links[i]->up)
            continue;
        home = lane;
        conn->lanes |= UINT32_C(1) << lane->index;
        if (lane->nic->attr.max_msg < conn->max_msg)
            conn->max_msg = lane->nic->attr.max_msg;
    }
    /* release pairs with the acquire in post_lock */
    atomic_store_explicit(&conn->home, weft__conn_links_up(conn) == 1 ? home : NULL,
                          memory_order_release);
    fit_part(conn);
}

void weft__conn_up(struct weft__conn *conn)
{
    conn->state = WEFT_CONN_UP;
    for (int i = 0; i < conn->nlinks; i++)
        conn->links[i]->up = !conn->links[i]->closing;
    if (weft__conn_links_up(conn) == 0) { /* lost between the last join and now */
        weft__conn_down(conn, WEFT_EPEER, "the last link was lost before the conn was up");
        return;
    }
    fit(conn);
    for (int i = 0; i < conn->nlinks; i++)
        if (conn->gone_due[i] && conn->links[i]->closed)
            tell_link(conn, WEFT__MSG_LINK_GONE, i);
    weft__msg_fill(conn);
    weft__match_up(conn);
    weft__stripe_fill(conn);
    weft__stage_fill(conn);
    weft__changed(conn->ep);
}

int weft__conn_end(const struct weft__conn *conn)
{
    return weft_err_scope(conn->status) < WEFT_SCOPE_CONN ? WEFT_EPEER : conn->status;
}

/* Ops in no flight end now; ops move out of conn->ops as they end, so start over each time. */
static void abort_ops(struct weft__conn *conn)
{
    struct weft_list *at, *next;
    for (at = conn->ops.next; at != &conn->ops; at = at->next)
        WEFT_LIST_OF(at, struct weft__op, in_conn)->visited = false;
    for (at = conn->ops.next; at != &conn->ops; at = next) {
        struct weft__op *op = WEFT_LIST_OF(at, struct weft__op, in_conn);
        next = at->next;
        if (op->visited)
            continue;
        op->visited = true;
        weft__op_abort(op, weft__conn_end(conn), conn->why);
        next = conn->ops.next;
    }
}

void weft__conn_down(struct weft__conn *conn, int status, const char *fmt, ...)
{
    if (conn->state == WEFT_CONN_DOWN)
        return;
    weft__counts_last(conn); /* what the peer has taken it has taken */
    /* who connects is told by the call that fails */
    bool reported = conn->initiator && conn->state == WEFT_CONN_CONNECTING;
    va_list args;
    va_start(args, fmt);
    weft__text_vadd(conn->why, sizeof conn->why, 0, fmt, args);
    va_end(args);
    conn->state = WEFT_CONN_DOWN;
    conn->status = status;
    if (conn->passive) /* no one else will close it */
        atomic_fetch_add(&conn->ep->reapable, 1);
    if (status != WEFT_ECLOSED)
        weft_log(status == WEFT_EPEER || reported ? WEFT_LOG_INFO : WEFT_LOG_WARN, "conn",
                 "%s: down: %s", conn->peer_text, conn->why);
    for (int i = 0; i < conn->nlinks; i++)
        weft__link_shut(conn->links[i], status);
    int end = weft__conn_end(conn);
    weft__stripe_drop(conn, NULL, end, conn->why);
    while (conn->adds) {
        struct weft__op *op = conn->adds;
        conn->adds = op->qnext;
        weft__op_fail(op, end, conn->why);
        weft__op_unpend(op);
    }
    for (struct weft_list *at = conn->ops.next; at != &conn->ops; at = at->next)
        weft__op_fail(WEFT_LIST_OF(at, struct weft__op, in_conn), end, conn->why);
    weft__match_down(conn);
    weft__stage_down(conn);
    weft__ipc_down(conn);
    weft__msg_free_all(conn);
    abort_ops(conn);
    if (conn->handshaking)
        weft__wake(conn->ep); /* who sleeps with the handshake in hand is to let go of it */
    weft__changed(conn->ep);
}

void weft__conn_refill(struct weft__conn *conn)
{
    if (conn->outq)
        weft__msg_fill(conn);
    if (conn->todo.head || conn->longs.head || conn->resend)
        weft__stripe_fill(conn);
}

/* --- links ----------------------------------------------------------------------------------- */

void weft__link_shut(struct weft__link *link, int status)
{
    if (link->closing)
        return;
    link->up = false;
    fit_part(link->conn);
    link->closing = true;
    link->status = status;
    link->close_work.kind = WEFT__WORK_CLOSE;
    weft__lane_push(link->lane, &link->close_work);
}

void weft__link_lost(struct weft__link *link, int status, const char *why)
{
    struct weft__conn *conn = link->conn;
    if (link->closing)
        return;
    conn->stats.links_lost += link->up;
    weft_log(WEFT_LOG_INFO, "conn", "%s: link %d: lost: %s", conn->peer_text, link->index,
             why ? why : weft_strerror(status));
    weft__link_shut(link, status);
    if (conn->state == WEFT_CONN_UP && weft__conn_links_up(conn) == 0)
        weft__conn_down(conn, status == WEFT_EPROTO ? WEFT_EPROTO : WEFT_EPEER,
                        "the last link was lost: %s", why ? why : weft_strerror(status));
}

void weft__link_closed(struct weft__link *link)
{
    struct weft__conn *conn = link->conn;
    link->closed = true;
    conn->links_open--;
    weft__ipc_closed(link);
    if (link->index == 0)
        weft__ipc_down(conn);
    weft__stage_fill(conn); /* what waited for its peer's memory */
    tell_link(conn, WEFT__MSG_LINK_LOST, link->index);
    if (conn->gone_due[link->index])
        tell_link(conn, WEFT__MSG_LINK_GONE, link->index);
    weft__changed(conn->ep);
}

int weft__link_lost_arrived(struct weft__conn *conn, uint32_t index)
{
    if (index >= (uint32_t)conn->nlinks || conn->lost_seen[index])
        return WEFT_EPROTO;
    struct weft__link *link = conn->links[index];
    conn->lost_seen[index] = true;
    if (link->closed && conn->state == WEFT_CONN_UP)
        tell_link(conn, WEFT__MSG_LINK_GONE, (int)index);
    else
        conn->gone_due[index] = true; /* until the link is closed, and the conn up */
    weft__link_lost(link, WEFT_EPEER, NULL);
    return 0;
}

int weft__link_gone_arrived(struct weft__conn *conn, uint32_t index)
{
    if (index >= (uint32_t)conn->nlinks || !conn->links[index]->closed)
        return WEFT_EPROTO;
    weft__stripe_release(conn, (int)index);
    return 0;
}

/* --- endpoint.h ------------------------------------------------------------------------------ */

static bool not_connecting(void *arg)
{
    return ((struct weft__conn *)arg)->state != WEFT_CONN_CONNECTING;
}

int weft__conn_wait(weft_conn_t handle, int timeout_ms, bool *over)
{
    struct weft__conn *conn = weft__handle_get(handle, WEFT__CONN);
    if (!conn)
        return WEFT_EHANDLE;
    *over = weft__wait(conn->ep, not_connecting, conn, weft__deadline(timeout_ms));
    pthread_mutex_lock(&conn->ep->lock);
    int rc = conn->state == WEFT_CONN_DOWN ? weft_fail(conn->status, "%s", conn->why) : 0;
    pthread_mutex_unlock(&conn->ep->lock);
    if (!*over)
        rc = weft_fail(WEFT_ETIMEOUT, "conn is still connecting to %s", conn->peer_text);
    weft__handle_put(handle);
    return rc;
}

int weft_conn_wait(weft_conn_t handle, int timeout_ms)
{
    bool over = true;
    int rc = weft__conn_wait(handle, timeout_ms, &over);
    return over && rc == WEFT_ETIMEOUT ? WEFT_EPEER : rc; /* whose handshake took too long will not come up */
}

static void describe_path(const struct weft__conn *conn, struct weft_conn_info *info)
{
    char where[56] = "", most[16] = ""; /* with what stands before it, path has room for no more */
    if (info->links < info->links_of)
        snprintf(most, sizeof most, " of %d", info->links_of);
    if (conn->peer_addr.len && !conn->same_host_path)
        weft__address_host(&conn->peer_addr, where, sizeof where);
    snprintf(info->path, sizeof info->path, "%s, %d%s link%s%s%s", conn->transport, info->links,
             most, info->links == 1 && !*most ? "" : "s", *where ? ", " : "", where);
}

int weft_conn_info(weft_conn_t handle, struct weft_conn_info *info)
{
    if (!info)
        return weft_fail(-EINVAL, "weft_conn_info: info is NULL");
    struct weft__conn *conn = weft__handle_get(handle, WEFT__CONN);
    if (!conn)
        return WEFT_EHANDLE;
    pthread_mutex_lock(&conn->ep->lock);
    memset(info, 0, sizeof *info);
    info->state = conn->state;
    info->status = conn->status;
    info->initiator = conn->initiator;
    info->same_host = conn->same_host;
    info->links = weft__conn_links_up(conn);
    info->links_of = conn->nlinks;
    info->peer_pid = conn->peer_pid;
    memcpy(info->peer_uuid, conn->peer_uuid, sizeof info->peer_uuid);
    memcpy(info->transport, conn->transport, sizeof info->transport);
    memcpy(info->why, conn->why, sizeof info->why);
    memcpy(info->peer, conn->peer_text, sizeof info->peer);
    describe_path(conn, info);
    pthread_mutex_unlock(&conn->ep->lock);
    weft__handle_put(handle);
    return 0;
}

int weft_conn_stats(weft_conn_t handle, struct weft_conn_stats *stats)
{
    if (!stats)
        return weft_fail(-EINVAL, "weft_conn_stats: stats is NULL");
    struct weft__conn *conn = weft__handle_get(handle, WEFT__CONN);
    if (!conn)
        return WEFT_EHANDLE;
    pthread_mutex_lock(&conn->ep->lock);
    *stats = conn->stats;
    pthread_mutex_unlock(&conn->ep->lock);
    weft__handle_put(handle);
    return 0;
}
