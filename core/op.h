/* SPDX-License-Identifier: Apache-2.0 */
/* Operations: from weft_post (post.c) to their end (op.c) and the status read (wait.c). */
#ifndef WEFT_CORE_OP_H
#define WEFT_CORE_OP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "weft/endpoint.h"

#include "lane.h"
#include "util.h"
#include "weft/list.h"

struct weft__after;
struct weft__arrival;
struct weft__conn;
struct weft__endpoint;
struct weft__lot;
struct weft__op_home;
struct weft__rec;
struct weft__reg;

/* One local-remote pair of a data operation. */
struct weft__piece {
    uint8_t *addr;
    uint64_t len;
    uint64_t raddr;
    uint64_t rkey;              /* chosen key */
    uint32_t rkeys[WEFT__KEYS]; /* of nics that make their own, by key slot */
    struct weft__reg *reg;      /* local registration, or NULL */
    uint16_t gpu;               /* local memory that no processor reaches: 1 + its GPU; else 0 */
    uint16_t far;               /* WEFT__STAGED_* of the remote */
};

/* The pieces of an op come from a pool if they are about as many as the engine of a cache has in a list: then malloc puts all
 * of its bins in order. So many lists are kept at most, each with room for the most. */
#define WEFT__POOL_FROM 32
#define WEFT__POOL_PIECES 128
#define WEFT__POOL_LISTS 64

/* All pieces, one behind the other. */
static inline void weft__local_gather(uint8_t *at, const struct weft_local *local, size_t n)
{
    for (size_t i = 0; i < n; at += local[i].len, i++)
        if (WEFT_LIKELY(local[i].len))
            memcpy(at, local[i].addr, local[i].len);
}

enum weft__op_kind {
    WEFT__OP_WRITE = WEFT_XFER_WRITE,
    WEFT__OP_READ = WEFT_XFER_READ,
    WEFT__OP_SEND = WEFT_XFER_SEND,
    WEFT__OP_RECV = WEFT_XFER_RECV,
    WEFT__OP_NOTIFY = WEFT_XFER_NOTIFY,
    WEFT__OP_ADD = WEFT_XFER_ADD,
    WEFT__OP_FETCH /* internal: the READ by which a large message is fetched */
};

enum weft__op_where {
    WEFT__AT_NONE,   /* in no queue */
    WEFT__AT_AFTER,  /* conn->afters: not begun, waits for a stream */
    WEFT__AT_TODO,   /* conn->todo: pieces left to assign */
    WEFT__AT_LONGS,  /* conn->longs: the same, of more than a part */
    WEFT__AT_STAGED, /* conn->stage.ops or .brief: pieces left to cut into lots */
    WEFT__AT_SENDQ,  /* conn->stream[].sendq: message not sent yet */
    WEFT__AT_RECVQ   /* conn->recvq: receive not matched yet */
};

/* What every operation uses comes first: of many under way, the fewer cache lines the better. */
struct weft__op {
    _Alignas(WEFT__CACHE_LINE) _Atomic(uint64_t) handle; /* 0: free. Memory of ops is never unmapped. */
    uint32_t slot, generation;
    struct weft__op_home *home; /* where it is given back */
    _Atomic(weft_endpoint_t) ep_handle;
    struct weft__endpoint *ep;
    struct weft__conn *conn;  /* NULL once done */
    struct weft_list in_conn; /* conn->ops: not done */
    enum weft__op_kind kind;
    _Atomic(bool) done;

    /* from here to `one`, all begins as zero */
    bool detached; /* no one will ask for it */
    bool visited;    /* mark of abort_ops */
    bool finishing;  /* data is there; the notification or deregistration is not */
    bool has_notify; /* notify is sent after the data */
    bool taken;      /* its message is the peer's: nothing can fail any more */
    bool large;      /* message goes by rendezvous */
    bool urgent;     /* a blocking caller waits for the peer to take the message */
    bool more;       /* the caller promised another operation at once */
    bool staged;     /* pieces of GPUs: nics may not reach them */
    bool cutting;    /* into lots */
    bool pooled;     /* pieces */
    enum weft__op_where where;
    int status;       /* 0: text says nothing */
    uint32_t pending; /* wrs, messages and deregistrations that have not ended */
    uint64_t total, bytes;
    struct weft__piece *pieces; /* pieces == &one, or allocated */
    size_t npieces, next_piece;
    uint64_t next_offset;
    uint64_t cut;            /* of a staged one: bytes that are in lots, or were */
    void *notify;            /* copy, sent after the data */
    struct weft__reg **regs; /* temporary registrations of a large message */
    size_t nregs;
    void *bounce;                        /* copy of a message: in too many pieces, or a short one that nobody will ask for */
    struct weft__rec *rec;               /* the message as the sender remembers it */
    void (*on_end)(struct weft__op *op); /* internal ops. Endpoint lock held. */
    struct weft__after *after;           /* that WEFT__AT_AFTER is about */
    struct weft__lot *lot;               /* internal: the lot that it moves */

    struct weft__piece one;
    struct weft__op *qprev, *qnext; /* the queue that `where` names; qnext: also the free ones */
    uint64_t value, *result;        /* ADD */
    size_t notify_len;
    struct weft__arrival *arrival; /* FETCH: the message it fetches */
    struct weft__op *parent;       /* FETCH: the RECV it is for, or NULL */
    struct weft__piece message;    /* of bounce or notify */
    char text[160];
};

/* All with the endpoint lock held. */
struct weft__op *weft__op_new(struct weft__conn *conn, enum weft__op_kind kind);
void weft__op_free(struct weft__op *op);
/* First failure wins. The text may be NULL. */
void weft__op_fail(struct weft__op *op, int status, const char *text) WEFT_COLD;
/* A part has ended; ends the op when it was the last. */
void weft__op_unpend(struct weft__op *op);
/* Ends the op if nothing of it is pending any more. */
void weft__op_settle(struct weft__op *op);
/* The conn is down: drop what has not started. */
void weft__op_abort(struct weft__op *op, int status, const char *text) WEFT_COLD;
/* Drop what has not started; the op ends when the rest has. */
void weft__op_cancel(struct weft__op *op);
void weft__op_pool_free(struct weft__endpoint *ep);
/* End the temporary registrations of a large message; the op waits for that. */
void weft__op_shut_regs(struct weft__op *op);

#define WEFT__OP_CHUNK 64
#define WEFT__OP_CHUNKS 65536 /* four million ops a process */
extern _Atomic(struct weft__op *) weft__op_chunks[WEFT__OP_CHUNKS];

/* Of a number of an op; NULL if there are not so many yet. No lock held. */
static inline struct weft__op *weft__op_slot(uint32_t slot)
{
    if (slot / WEFT__OP_CHUNK >= WEFT__OP_CHUNKS)
        return NULL;
    /* pairs with the release in pool_grow */
    struct weft__op *chunk = atomic_load_explicit(&weft__op_chunks[slot / WEFT__OP_CHUNK],
                                                  memory_order_acquire);
    return chunk ? &chunk[slot % WEFT__OP_CHUNK] : NULL;
}

/* The op of a handle, or NULL. No lock held. */
static inline struct weft__op *weft__op_at(weft_op_t handle)
{
    if (!weft__handle_is(handle, WEFT__OP))
        return NULL;
    struct weft__op *op = weft__op_slot(weft__handle_slot(handle));
    return op && atomic_load_explicit(&op->handle, memory_order_acquire) == handle ? op : NULL;
}

/* Make the handle of an op that is done stale: true for one of several callers, who then owns the
 * op and gives it back with weft__op_retire. No lock needed. */
static inline bool weft__op_claim(struct weft__op *op, weft_op_t handle)
{
    /* acquire: pairs with the release in finish, for those that saw it done */
    return atomic_compare_exchange_strong_explicit(&op->handle, &handle, 0, memory_order_acquire,
                                                   memory_order_relaxed);
}

void weft__op_retire(struct weft__op *op);
/* The op of a handle and its endpoint, which is kept alive until weft__handle_put(*ep_handle); NULL
 * and a sentence if there is none. No lock held; the op may be another one by the time there is. */
struct weft__op *weft__op_find(weft_op_t handle, struct weft__endpoint **ep,
                               weft_endpoint_t *ep_handle);
/* weft_post; urgent: the caller is going to wait. No lock held. */
int weft__post(weft_conn_t conn, const struct weft_xfer *xfer, bool urgent, weft_op_t *op);

/* Doubly linked queues of ops through qprev/qnext. */
struct weft__opq {
    struct weft__op *head, *tail;
};
void weft__opq_push(struct weft__opq *q, struct weft__op *op, enum weft__op_where where);
void weft__opq_remove(struct weft__opq *q, struct weft__op *op);

/* Begin what was posted (post.c). Endpoint lock held. */
void weft__op_start(struct weft__conn *conn, struct weft__op *op);

#endif
