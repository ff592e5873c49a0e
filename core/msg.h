/* SPDX-License-Identifier: Apache-2.0 */
/* The numbered messages of a conn: over any of its links, handed on in order. */
#ifndef WEFT_CORE_MSG_H
#define WEFT_CORE_MSG_H

#include <stdbool.h>
#include <stddef.h>

#include "weft/endpoint.h"
#include "weft/transport.h"

#include "lane.h"

struct weft__conn;
struct weft__link;
struct weft__op;
struct weft__piece;

enum weft__msg_type {
    WEFT__MSG_EAGER = 1,    /* a user's message, payload follows */
    WEFT__MSG_LARGE,        /* a user's message, remotes of its payload follow */
    WEFT__MSG_TAKEN,        /* only for the counts in the header */
    WEFT__MSG_RESULT,       /* how a message that is not covered by the counts ended */
    WEFT__MSG_ADD,          /* emulated ADD64 */
    WEFT__MSG_ADDED,        /* its answer */
    WEFT__MSG_LINK_LOST,    /* my end of a link is closed; close yours */
    WEFT__MSG_LINK_GONE,    /* answer: mine is closed too, nothing of it will land any more */
    WEFT__MSG_STAGE_OPEN,   /* memory of yours is staged: give me an area */
    WEFT__MSG_STAGE_AREA,   /* answer: this one, or why not */
    WEFT__MSG_STAGE_COPY,   /* copy between a slot of it and memory of yours */
    WEFT__MSG_STAGE_COPIED, /* answer: done, or why not */
    WEFT__MSG_IPC_ASK,      /* let me map memory of yours */
    WEFT__MSG_IPC_MAP,      /* answer: here it is, or why not */
    WEFT__MSG_IPC_END,      /* it was deregistered */
    WEFT__MSG_TYPES
};

/* Header of every message: 40 bytes on the wire. */
struct weft__msg_head {
    uint8_t type;
    uint8_t flags;
    uint8_t stream;    /* enum weft__stream_id */
    uint64_t seq;      /* of the conn's stream of messages */
    uint32_t taken[2]; /* eager messages taken so far, per stream */
    uint32_t index;    /* of a user's message within its stream */
    uint64_t len;      /* of the user's message */
    /* not on the wire; RESULT of a short message: counts that the peer hears of before it stop at
     * cap, so that they do not end the message as taken well */
    bool capped;
    uint32_t cap;
    bool patient; /* not on the wire: WEFT_CMD_PATIENT */
};
#define WEFT__MSG_HEAD 40
#define WEFT__MSG_URGENT 1u /* flags: the sender waits: answer at once */
#define WEFT__MSG_MAX 4096  /* what every transport's max_send allows: longest LARGE */
#define WEFT__MSG_IOV 3     /* pieces of a payload that is sent in place, else it is copied */
#define WEFT__MSG_SHORT WEFT_INJECT /* bytes of a body that every message has room for; so short a payload is copied, too */
#define WEFT__MAX_REMOTES ((WEFT__MSG_MAX - WEFT__MSG_HEAD) / sizeof(struct weft_remote))

/* An outgoing message. */
struct weft__msg {
    struct weft__wr wr; /* its way over a link: one at a time */
    struct weft__msg *next;
    struct weft__conn *conn;
    struct weft__op *op; /* EAGER: payload is its memory; pending on it. Or NULL: it has a body. */
    struct weft__msg_head info;
    const struct weft__piece *pieces; /* payload of op, npieces */
    size_t npieces;
    struct weft_iov_local iov[1 + WEFT__MSG_IOV]; /* of head and pieces */
    uint32_t body_len;
    bool encoded;                 /* head is: once, since counts must not run ahead of seq */
    uint8_t head[WEFT__MSG_HEAD]; /* encoded when it is first handed to a link */
    uint8_t body[]; /* room for WEFT__MSG_SHORT, or what is longer */
};
_Static_assert(offsetof(struct weft__msg, body) == offsetof(struct weft__msg, head) + WEFT__MSG_HEAD,
               "head and body are sent as one");

/* All with the endpoint lock held. */
/* A message with room for len bytes, which the caller fills, and hands on at once. NULL: no memory; the conn is down. */
struct weft__msg *weft__msg_begin(struct weft__conn *conn, const struct weft__msg_head *head, size_t len);
void weft__msg_go(struct weft__msg *msg);
/* Queue a message with a body of its own. -ENOMEM takes the conn down. */
int weft__msg_post(struct weft__conn *conn, const struct weft__msg_head *head, const void *body,
                   size_t len);
/* Queue a message whose payload is memory of op, which is pending until it has gone, unless the payload is copied. */
int weft__msg_post_op(struct weft__conn *conn, const struct weft__msg_head *head,
                      struct weft__op *op, const struct weft__piece *pieces, size_t npieces);
/* A message waits that has not been handed to a link before: the counts of its header are to come. */
bool weft__msg_waits(const struct weft__conn *conn);
/* True when every message queued so far has reached the peer. */
bool weft__msg_flushed(void *conn);
void weft__msg_fill(struct weft__conn *conn);
void weft__msg_done(struct weft__wr *wr, const struct weft_comp *comp);
void weft__msg_orphan(struct weft__wr *wr);
/* A message of the peer has arrived on a link, in any order. */
void weft__msg_arrived(struct weft__link *link, const void *data, uint64_t len);
void weft__msg_free_all(struct weft__conn *conn);

#endif
