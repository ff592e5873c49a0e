/* SPDX-License-Identifier: Apache-2.0 */
/* The two sequences of users' messages of a conn: SEND, matched with RECV, and NOTIFY up to its
 * arrival (notify.h). */
#ifndef WEFT_CORE_MATCH_H
#define WEFT_CORE_MATCH_H

#include <stdbool.h>

#include "weft/endpoint.h"

#include "op.h"

struct weft__conn;
struct weft__endpoint;
struct weft__msg_head;

enum weft__stream_id { WEFT__STREAM_SEND, WEFT__STREAM_NOTIFY, WEFT__STREAMS };

/* What the sender remembers of a message until the peer has taken it. */
struct weft__rec {
    struct weft__rec *next;
    struct weft__op *op; /* NULL: canceled or ended, or there never was one */
    uint32_t index;
    uint32_t bytes; /* eager payload, counted against the window */
    bool large;
    bool injected; /* no op: its end is counted, and nobody is told */
    bool refused;  /* of such a one */
};

/* A user's message that has arrived. */
struct weft__arrival {
    struct weft__arrival *next;
    struct weft__conn *conn; /* NULL once the conn is down */
    weft_conn_t conn_handle;
    uint32_t index;
    uint64_t len;
    bool large, urgent;
    bool fetching; /* large: its READ is under way */
    bool ready;    /* data is complete */
    bool dropped;  /* notification that will never be: to be freed by the next sweep or pop */
    bool counted;  /* its bytes are in endpoint->notif_bytes */
    bool untaken;  /* notification the sender was not told of, since the queue is full */
    struct weft__arrival *untaken_next;
    enum weft__stream_id stream;
    uint8_t *data;               /* eager payload kept, or a notification's bytes; malloc */
    struct weft_remote *remotes; /* LARGE: where the payload is; malloc */
    size_t nremotes;
};

/* One direction's state of one stream; both directions in one struct. */
struct weft__stream {
    bool capped; /* a RESULT with a cap, the first of which is cap, has not gone */
    uint32_t cap;
    /* sending */
    uint32_t next_index;
    struct weft__rec *recs, **recs_tail; /* oldest first: eager and large */
    uint32_t nrecs;
    uint32_t taken_seen; /* eager ones the peer has taken, as last heard */
    struct weft__opq sendq;
    /* receiving */
    uint32_t expect_index;
    uint32_t taken;                                  /* eager ones taken, ever */
    uint64_t held;                                   /* eager bytes not taken */
    uint32_t waiting;                                /* arrivals not taken */
    struct weft__arrival *arrivals, **arrivals_tail; /* SEND: not matched yet */
    struct weft__arrival *untaken, *untaken_tail;    /* NOTIFY: eager ones not taken yet */
};

/* All with the endpoint lock held. */
void weft__match_send(struct weft__op *op); /* SEND or NOTIFY, or the notification of a data op */
/* A SEND of up to WEFT_INJECT bytes that nobody will ask for: its payload is copied, and there is no op. False: it cannot go
 * now, and needs one; nothing was done. */
bool weft__match_inject(struct weft__conn *conn, const struct weft_local *local, size_t nlocal, uint32_t len);
void weft__match_recv(struct weft__op *op);
void weft__match_fill(struct weft__conn *conn);
void weft__match_cancel(struct weft__op *op);
int weft__match_arrived(struct weft__conn *conn, const struct weft__msg_head *head,
                        const uint8_t *body, size_t len);
int weft__match_result(struct weft__conn *conn, const struct weft__msg_head *head,
                       const uint8_t *body, size_t len);
void weft__match_init(struct weft__conn *conn);
void weft__match_up(struct weft__conn *conn);
void weft__match_down(struct weft__conn *conn);
void weft__arrival_free(struct weft__arrival *arrival);
/* Unlink the rec at *at, whose message was answered or will never be, and let go of its op. */
void weft__match_end(struct weft__conn *conn, struct weft__stream *s, struct weft__rec **at);
/* How a message that the counts do not cover ended. */
void weft__match_answer(struct weft__conn *conn, enum weft__stream_id stream, uint32_t index,
                        int status);
/* Start the READ that fetches a large message into local pieces. -ENOMEM: it was not started. */
int weft__match_fetch(struct weft__arrival *arrival, const struct weft__piece *local,
                      size_t nlocal, struct weft__op *parent, void (*on_end)(struct weft__op *op));
/* How it ended. */
int weft__match_fetched(const struct weft__op *op);
void weft__match_count(struct weft__conn *conn, uint64_t len);

#endif
