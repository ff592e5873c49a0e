/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many short messages were taken: told to the peer by the header of whatever goes next, and
 * heard of from its headers, which ends the sends of as many.
 *
 * The endpoint lock is held in every function here.
 */
#include "counts.h"
#include "conn.h"
#include "endpoint.h"
#include "match.h"
#include "msg.h"

#include <stdatomic.h>
#include <stddef.h>

/* --- telling the peer what was taken --------------------------------------------------------- */

void weft__counts_put(struct weft__conn *conn, uint32_t taken[2])
{
    for (int i = 0; i < WEFT__STREAMS; i++)
        taken[i] = conn->stream[i].capped ? conn->stream[i].cap : conn->stream[i].taken;
    conn->owes = false; /* stays in the list until tell_all passes by */
}

void weft__counts_tell(struct weft__conn *conn)
{
    struct weft__msg_head head = {.type = WEFT__MSG_TAKEN};
    /* what waits to go for the first time takes the counts along when it goes */
    if (conn->owes && conn->state == WEFT_CONN_UP && !weft__msg_waits(conn)) {
        conn->owes = false;
        weft__msg_post(conn, &head, NULL, 0);
    }
}

void weft__counts_tell_all(struct weft__endpoint *ep)
{
    struct weft__conn *conn = atomic_load_explicit(&ep->tells, memory_order_relaxed), *next;
    atomic_store_explicit(&ep->tells, NULL, memory_order_relaxed);
    for (; conn; conn = next) {
        next = conn->tell_next;
        conn->telling = false;
        weft__counts_tell(conn);
    }
}

/* The peer is to be told of what was taken, by the next message or by one of its own. */
static void owe(struct weft__conn *conn)
{
    conn->owes = true;
    if (WEFT_UNLIKELY(conn->telling))
        return;
    conn->telling = true;
    conn->tell_next = atomic_load_explicit(&conn->ep->tells, memory_order_relaxed);
    atomic_store_explicit(&conn->ep->tells, conn, memory_order_relaxed);
}

void weft__counts_uncap(struct weft__conn *conn, enum weft__stream_id stream,
                       const struct weft__msg_head *next)
{
    struct weft__stream *s = &conn->stream[stream];
    s->capped = next != NULL;
    if (next)
        s->cap = next->cap;
    owe(conn);
}

/* One more eager message of this stream is taken. */
void weft__counts_take(struct weft__conn *conn, struct weft__stream *s, uint64_t len, bool urgent)
{
    s->taken++;
    s->held -= len;
    s->waiting--;
    if (WEFT_UNLIKELY(conn->state == WEFT_CONN_DOWN))
        return; /* there was no memory for an answer to this very message */
    owe(conn);
    /* at once if the sender blocks, or before it runs out of window */
    conn->taken_bytes += len + 1;
    if (WEFT_UNLIKELY(urgent || conn->taken_bytes * 4 > conn->ep->window ||
                      s->taken % (WEFT__WINDOW / 4) == 0)) {
        conn->taken_bytes = 0;
        weft__counts_tell(conn);
    }
}

/* --- hearing what the peer has taken ----------------------------------------------------------- */

/* End what these counts end. */
static int end_taken(struct weft__conn *conn, const uint32_t taken[2])
{
    conn->hears = false; /* these are newer */
    for (int i = 0; i < WEFT__STREAMS; i++) {
        struct weft__stream *s = &conn->stream[i];
        uint32_t news = taken[i] - s->taken_seen;
        if (news > WEFT__WINDOW)
            return WEFT_EPROTO;
        for (struct weft__rec **at = &s->recs; news;) {
            if (!*at)
                return WEFT_EPROTO; /* more than were sent */
            if ((*at)->large) {
                at = &(*at)->next;
                continue;
            }
            weft__match_end(conn, s, at);
            s->taken_seen++;
            news--;
        }
    }
    return 0;
}

WEFT__APART int weft__counts_taken(struct weft__conn *conn, const uint32_t taken[2])
{
    int rc = end_taken(conn, taken);
    if (rc == 0)
        weft__match_fill(conn);
    return rc;
}

void weft__counts_last(struct weft__conn *conn)
{
    if (conn->hears)
        (void)end_taken(conn, conn->heard); /* nothing more is sent */
}

/*
 * Of a ping-pong the sends end by counts that the answers bring, and whoever waits for an answer is not to wait for
 * that, too: the caller who drives takes the message, and looks at the counts when it drives again. Where someone
 * else may sleep until one of those sends has ended there is no "again".
 */
int weft__counts_heard(struct weft__conn *conn, const uint32_t taken[2])
{
    struct weft__endpoint *ep = conn->ep;
    if (WEFT_UNLIKELY(ep->nthreads || ep->leader || ep->waiters))
        return weft__counts_taken(conn, taken);
    conn->heard[0] = taken[0];
    conn->heard[1] = taken[1];
    conn->hears = true;
    if (WEFT_UNLIKELY(conn->hearing))
        return 0;
    conn->hearing = true;
    conn->hear_next = atomic_load_explicit(&ep->hears, memory_order_relaxed);
    atomic_store_explicit(&ep->hears, conn, memory_order_relaxed);
    return 0;
}

int weft__counts_hear_all(struct weft__endpoint *ep)
{
    struct weft__conn *conn = atomic_load_explicit(&ep->hears, memory_order_relaxed), *next;
    int n = 0;
    atomic_store_explicit(&ep->hears, NULL, memory_order_relaxed);
    for (; conn; conn = next, n++) {
        next = conn->hear_next;
        conn->hearing = false;
        int rc = conn->hears ? weft__counts_taken(conn, conn->heard) : 0;
        if (rc)
            weft__conn_down(conn, rc, "counts of the peer: %s", weft_strerror(rc));
    }
    return n;
}

/* --- end of a conn ----------------------------------------------------------------------------- */

/* Out of a list of conns whose links stand at this offset. */
static void unlist(_Atomic(struct weft__conn *) *list, struct weft__conn *conn, size_t link)
{
#define NEXT(of) (*(struct weft__conn **)((char *)(of) + link))
    struct weft__conn *at = atomic_load(list), *last = NULL;
    for (; at && at != conn; last = at, at = NEXT(at))
        ;
    if (at && last)
        NEXT(last) = NEXT(conn);
    else if (at)
        atomic_store(list, NEXT(conn));
#undef NEXT
}

void weft__counts_down(struct weft__conn *conn)
{
    if (conn->telling)
        unlist(&conn->ep->tells, conn, offsetof(struct weft__conn, tell_next));
    if (conn->hearing)
        unlist(&conn->ep->hears, conn, offsetof(struct weft__conn, hear_next));
    conn->telling = conn->hearing = conn->hears = false;
}
