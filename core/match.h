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
    struct weft__op *op; /* NULL: canceled or ended */
    uint32_t index;
    uint32_t bytes; /* eager payload, counted against the window */
    bool large;
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
    bool dropped;  /* notification that will never be: to be freed by the next pop */
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
void weft__match_recv(struct weft__op *op);
void weft__match_fill(struct weft__conn *conn);
bool weft__match_cancel(struct weft__op *op); /* true: was taken out of its queue */
int weft__match_arrived(struct weft__conn *conn, const struct weft__msg_head *head,
                        const uint8_t *body, size_t len);
int weft__match_taken(struct weft__conn *conn, const uint32_t taken[2]);
/* The same, but what they end may end a moment later: when next anyone makes progress. */
int weft__match_heard(struct weft__conn *conn, const uint32_t taken[2]);
/* Of a conn that goes down. */
void weft__match_last(struct weft__conn *conn);
/* What has waited since. Returns of how many conns. */
int weft__match_hear_all(struct weft__endpoint *ep);
int weft__match_result(struct weft__conn *conn, const struct weft__msg_head *head,
                       const uint8_t *body, size_t len);
/* The counts that go into every header; marks them as told. */
void weft__match_counts(struct weft__conn *conn, uint32_t taken[2]);
/* Tell peers what was taken and has found no message to ride on. */
void weft__match_tell_all(struct weft__endpoint *ep);
void weft__match_init(struct weft__conn *conn);
void weft__match_up(struct weft__conn *conn);
void weft__match_down(struct weft__conn *conn);
void weft__arrival_free(struct weft__arrival *arrival);
/* For notify.c, too. One more eager message of a stream is taken: the peer is to be told. */
void weft__match_take(struct weft__conn *conn, struct weft__stream *s, uint64_t len, bool urgent);
/* How a message that the counts do not cover ended. */
void weft__match_answer(struct weft__conn *conn, enum weft__stream_id stream, uint32_t index,
                        int status);
/* Start the READ that fetches a large message into local pieces. -ENOMEM: it was not started. */
int weft__match_fetch(struct weft__arrival *arrival, const struct weft__piece *local,
                      size_t nlocal, struct weft__op *parent, void (*on_end)(struct weft__op *op));
/* How it ended. */
int weft__match_fetched(const struct weft__op *op);
/* A RESULT with a cap has its header; next: the one after it that has not, or NULL. */
void weft__match_uncap(struct weft__conn *conn, enum weft__stream_id stream,
                       const struct weft__msg_head *next);
void weft__match_count(struct weft__conn *conn, uint64_t len);

#endif
