/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notifications that have arrived: the endpoint's queue.
 *
 * Those of one conn come out in the order they were sent. A sender is told that its notification
 * was taken when it is in the queue, unless the queue holds more than WEFT_NOTIFY_QUEUE bytes:
 * then when there is room again. A large one is fetched when there is room for it. What the record
 * of a notification takes counts as well, so that the queue is bounded with empty ones, too. What one
 * held that will never be (its sender has canceled it, or is gone) is for others at once.
 *
 * The endpoint lock is held in every function here.
 */
#include "notify.h"
#include "conn.h"
#include "counts.h"
#include "endpoint.h"
#include "match.h"
#include "op.h"
#include "progress.h"

#include <errno.h>
#include <stdlib.h>

static uint64_t cost(const struct weft__arrival *arrival)
{
    return sizeof *arrival + arrival->len;
}

static void notif_queue(struct weft__endpoint *ep, struct weft__arrival *arrival)
{
    *ep->notifs_tail = arrival;
    ep->notifs_tail = &arrival->next;
}

/* Take the oldest notification of a conn whose sender does not know yet that it is here. */
static void notif_take_first(struct weft__conn *conn)
{
    struct weft__stream *s = &conn->stream[WEFT__STREAM_NOTIFY];
    struct weft__arrival *first = s->untaken;
    s->untaken = first->untaken_next;
    if (!s->untaken)
        s->untaken_tail = NULL;
    first->untaken = false;
    weft__counts_take(conn, s, first->len, first->urgent);
}

/* Take what a conn's peer sent, as far as the queue has room for more. */
static void notif_take(struct weft__conn *conn)
{
    while (conn->stream[WEFT__STREAM_NOTIFY].untaken &&
           conn->ep->notif_bytes <= conn->ep->notif_limit)
        notif_take_first(conn);
}

static bool notif_full(const struct weft__endpoint *ep)
{
    return ep->notif_bytes > ep->notif_limit || ep->notifs_stalled;
}

/* It will never be. Its record goes later (notif_sweep, pop): whoever is on the way through the list may stand on it. */
static void notif_drop(struct weft__endpoint *ep, struct weft__arrival *arrival)
{
    arrival->dropped = true;
    ep->notifs_dropped = true;
    if (arrival->counted)
        ep->notif_bytes -= cost(arrival);
    arrival->counted = false;
    free(arrival->data);
    arrival->data = NULL;
}

static void notif_resume(struct weft__endpoint *ep);

static void notif_fetched(struct weft__op *op)
{
    struct weft__arrival *arrival = op->arrival;
    struct weft__conn *conn = op->conn;
    struct weft__endpoint *ep = conn->ep;
    int status = weft__match_fetched(op);
    bool was_full = notif_full(ep);
    if (conn->state != WEFT_CONN_DOWN)
        weft__match_answer(conn, WEFT__STREAM_NOTIFY, arrival->index, status);
    if (conn->state == WEFT_CONN_DOWN)
        arrival->conn = NULL;
    conn->stream[WEFT__STREAM_NOTIFY].waiting--;
    arrival->fetching = false;
    arrival->ready = status == 0;
    weft__match_count(conn, arrival->len);
    if (status)
        notif_drop(ep, arrival);
    if (status && was_full)
        notif_resume(ep);
    weft__changed(ep);
}

/* Fetch a large notification if the queue has room for it. */
static void notif_fetch(struct weft__endpoint *ep, struct weft__arrival *arrival)
{
    struct weft__conn *conn = arrival->conn;
    /* into an empty queue the longest one goes, with its record on top */
    if (!conn || (ep->notif_bytes && ep->notif_bytes + cost(arrival) > ep->notif_limit)) {
        ep->notifs_stalled = true;
        return;
    }
    arrival->data = malloc(arrival->len);
    struct weft__piece piece = {.addr = arrival->data, .len = arrival->len};
    if (arrival->data && weft__match_fetch(arrival, &piece, 1, NULL, notif_fetched) == 0) {
        ep->notif_bytes += cost(arrival);
        arrival->counted = true;
        return;
    }
    notif_drop(ep, arrival);
    conn->stream[WEFT__STREAM_NOTIFY].waiting--;
    weft__match_answer(conn, WEFT__STREAM_NOTIFY, arrival->index, -ENOMEM);
}

static void notif_unlink(struct weft__endpoint *ep, struct weft__arrival **at)
{
    struct weft__arrival *arrival = *at;
    *at = arrival->next;
    if (!arrival->next)
        ep->notifs_tail = at;
    if (arrival->counted)
        ep->notif_bytes -= cost(arrival);
}

/* Who comes again and again must not fill the queue with what goes with its conns. */
static void notif_sweep(struct weft__endpoint *ep)
{
    struct weft__arrival *a, **at = &ep->notifs;
    while (ep->notifs_dropped && (a = *at)) {
        if (a->dropped) {
            notif_unlink(ep, at);
            weft__arrival_free(a);
        } else {
            at = &a->next;
        }
    }
    ep->notifs_dropped = false;
}

void weft__notif_arrived(struct weft__conn *conn, struct weft__arrival *arrival)
{
    struct weft__endpoint *ep = conn->ep;
    struct weft__stream *s = &conn->stream[WEFT__STREAM_NOTIFY];
    notif_sweep(ep);
    if (arrival->large && arrival->len > ep->notif_limit) {
        s->waiting--;
        weft__match_answer(conn, WEFT__STREAM_NOTIFY, arrival->index, WEFT_ELIMIT);
        weft__arrival_free(arrival);
        return;
    }
    notif_queue(ep, arrival);
    if (arrival->large) {
        notif_fetch(ep, arrival);
        return;
    }
    arrival->ready = true;
    arrival->counted = arrival->untaken = true;
    ep->notif_bytes += cost(arrival);
    if (s->untaken)
        s->untaken_tail->untaken_next = arrival;
    else
        s->untaken = arrival;
    s->untaken_tail = arrival;
    weft__match_count(conn, arrival->len);
    notif_take(conn);
    weft__changed(ep);
}

static void resume_once(struct weft__endpoint *ep)
{
    for (struct weft__conn *conn = ep->conns; conn; conn = conn->next)
        if (conn->stream[WEFT__STREAM_NOTIFY].untaken)
            notif_take(conn);
    ep->notifs_stalled = false;
    for (struct weft__arrival *a = ep->notifs; a; a = a->next)
        if (a->large && !a->fetching && !a->ready && !a->dropped)
            notif_fetch(ep, a);
}

/* The queue has room again. That may bring down a conn, which makes more. */
static void notif_resume(struct weft__endpoint *ep)
{
    ep->notifs_roomier = true;
    if (ep->notifs_resuming || ep->closing)
        return;
    ep->notifs_resuming = true;
    while (ep->notifs_roomier) {
        ep->notifs_roomier = false;
        resume_once(ep);
    }
    ep->notifs_resuming = false;
}

struct weft__arrival *weft__notif_pop(struct weft__endpoint *ep)
{
    uint64_t scan = ++ep->notif_scan;
    for (struct weft__arrival **at = &ep->notifs; *at;) {
        struct weft__arrival *arrival = *at;
        if (arrival->dropped) {
            notif_unlink(ep, at);
            weft__arrival_free(arrival);
            continue;
        }
        /* notifications of a conn keep their order: one that is not complete holds up the rest */
        bool behind = arrival->conn && arrival->conn->notif_scan == scan;
        if (arrival->ready && !behind) {
            bool was_full = notif_full(ep);
            notif_unlink(ep, at);
            if (arrival->untaken) /* then it is the first of its conn */
                notif_take_first(arrival->conn);
            if (was_full)
                notif_resume(ep);
            return arrival;
        }
        if (arrival->conn)
            arrival->conn->notif_scan = scan;
        at = &arrival->next;
    }
    return NULL;
}

/* What was taken can still be read; fetches that are under way end with their op. The rest goes: its
 * sender was never told that it is here. */
void weft__notif_down(struct weft__conn *conn)
{
    struct weft__endpoint *ep = conn->ep;
    bool was_full = notif_full(ep);
    for (struct weft__arrival *a = ep->notifs; a; a = a->next) {
        if (a->conn != conn)
            continue;
        if (!a->fetching && (a->untaken || !a->ready))
            notif_drop(ep, a);
        if (!a->fetching)
            a->conn = NULL;
    }
    if (was_full)
        notif_resume(ep);
}
