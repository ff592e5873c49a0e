/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Everything that core's files share, grouped by file (util.h has the rest). Not installed.
 *
 * Locks, outermost first. A thread that holds one may take only those below it:
 *
 *   boot lock      (endpoint)  handshakes of conns that are not up yet       handshake.c
 *   lane lock      (lane)      the nic, its links, their backlog and flight  lane.c
 *   endpoint lock  (endpoint)  everything else: conns, ops, messages, mems
 *
 * A lane lock is never taken while the endpoint lock is held. Whoever decides under the endpoint
 * lock that a nic has to do something pushes a struct weft__work on the lane and, after letting
 * go, kicks the lane: it either gets the lane lock at once and does the work, or the holder does.
 */
#ifndef WEFT_INTERNAL_H
#define WEFT_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>

#include "weft.h"
#include "weft/gpu.h"
#include "weft/transport.h"

#include "util.h"

/* --- registry.c ---------------------------------------------------------------------------- */

/* i-th transport (0 <= i), best first within the built-in table; NULL past the end. */
const struct weft_transport *weft__transport_at(int i);
const struct weft_transport *weft__transport_find(const char *name);
/* The transports a policy text ("auto", "tcp", "local,tcp") names, in order of preference.
 * Returns how many, or a code with a sentence naming the unknown one. */
int weft__transport_select(const char *policy, const struct weft_transport **list, int max);
/* open, through the fault decorator when fault is not "". */
int weft__nic_open(const struct weft_transport *transport, const char *fault,
                   const struct weft_nic_opts *opts, struct weft_nic **nic);

/* --- lane.c -------------------------------------------------------------------------------- */

#define WEFT__MAX_LANES 16
#define WEFT__MAX_LINKS 16 /* of one conn */

struct weft__endpoint;
struct weft__conn;
struct weft__op;
struct weft__link;
struct weft__reg;

enum weft__work_kind {
    WEFT__WORK_POST,  /* hand a cmd to a link */
    WEFT__WORK_CLOSE, /* close a link */
    WEFT__WORK_DEREG  /* deregister a mem from this lane's nic */
};

/* Something for whoever holds the lane lock to do. */
struct weft__work {
    struct weft__work *next;
    enum weft__work_kind kind;
};

enum weft__wr_kind {
    WEFT__WR_DATA, /* a piece of a WRITE or READ, or an ADD: belongs to op */
    WEFT__WR_MSG   /* a message of the conn's own protocol: belongs to msg */
};

/* One cmd on its way: from fill to comp. */
struct weft__wr {
    struct weft__work work;         /* first: in the lane's queue, then the link's backlog */
    struct weft__wr *fprev, *fnext; /* in the link's flight list */
    struct weft__link *link;
    enum weft__wr_kind kind;
    struct weft_cmd cmd;
    struct weft__op *op;
    struct weft__msg *msg;
    size_t piece; /* of op: which piece the cmd is part of */
};

/* A conn's use of a nic. */
struct weft__link {
    struct weft__work close_work;
    struct weft_link *tl; /* the transport's; NULL once closed. Lane lock. */
    struct weft__lane *lane;
    struct weft__conn *conn;
    int index;     /* in conn->links, the same on both sides */
    int peer_lane; /* index of the peer's nic among its lanes */
    /* lane lock */
    struct weft__wr *backlog, **backlog_tail;
    struct weft__wr *flight;
    struct weft__link *stalled_next;
    bool stalled; /* in lane->stalled */
    /* endpoint lock */
    bool up;        /* connected, cmds may be assigned */
    bool closing;   /* close_work was pushed */
    bool closed;    /* close_work was done */
    uint32_t owned; /* wrs assigned and not ended */
    int status;     /* why it went down */
};

/* One nic, and the lock that whoever drives it holds. */
struct weft__lane {
    struct weft__endpoint *endpoint;
    const struct weft_transport *transport; /* inner one, for its name, under fault */
    struct weft_nic *nic;
    int index; /* in endpoint->lanes */
    int nth;   /* among the lanes of its transport */
    pthread_mutex_t lock;
    /* endpoint lock */
    struct weft__work *queue, **queue_tail;
    uint32_t nqueued;
    bool held; /* who holds the endpoint lock holds the lane's, too, and takes the queue along */
    /* lane lock, but for the atomic ones */
    _Atomic(bool) waiting;      /* there is work in the queue */
    _Atomic(int) sleeping;      /* someone sleeps on the nic's wait_fd */
    _Atomic(bool) bulk;         /* nic->bulk, for those that do not hold the lock */
    struct weft__link *stalled; /* links with a backlog the nic would not take */
    struct weft__work *retry;   /* deregistrations that must wait */
    int lost;                   /* the nic failed: its code */
};

int weft__lane_open(struct weft__endpoint *ep, const struct weft_transport *transport, int nth,
                    const char *fault, const char *bind_host, struct weft__lane **out);
void weft__lane_close(struct weft__lane *lane);
/* Endpoint lock held; then, without it: kick. */
void weft__lane_push(struct weft__lane *lane, struct weft__work *work);
/* No lane or endpoint lock held (another lane's lock may be). */
void weft__lane_kick(struct weft__lane *lane);
/* The endpoint lock for who is going to post to a conn, and with it, if it is free, the lock of the
 * lane that the conn goes by: unlock then hands what was pushed to the nic. more: the caller will
 * post again at once; what was pushed may wait for that. */
struct weft__lane *weft__post_lock(struct weft__conn *conn, bool more);
void weft__post_unlock(struct weft__conn *conn, struct weft__lane *lane, bool more);
/* For a call into the nic from outside: blocks while another thread drives it. */
void weft__lane_lock(struct weft__lane *lane);
void weft__lane_unlock(struct weft__lane *lane);
/* Do queued work, poll once, handle comps. Returns things that happened, 0 also when another
 * thread holds the lane. */
int weft__lane_progress(struct weft__lane *lane);
/* Get ready to sleep: fd, -1 if the nic has none, or WEFT_EAGAIN if there is work. */
int weft__lane_arm(struct weft__lane *lane);
/* Who stops polling a lane on which another thread sleeps calls this: a poll takes the wake-up
 * that the other one armed, and without it that one would sleep on while there is work. */
void weft__lane_rearm(struct weft__lane *lane);
static inline void weft__lane_disarm(struct weft__lane *lane)
{
    __atomic_fetch_sub((int *)&lane->sleeping, 1, __ATOMIC_SEQ_CST);
}

/* --- progress.c ---------------------------------------------------------------------------- */

typedef bool weft__ready_fn(void *arg);

/* What a caller waits for. */
struct weft__waiter {
    struct weft__waiter *prev, *next; /* endpoint->waiters */
    weft__ready_fn *ready;            /* called with the endpoint lock held */
    void *arg;
    const struct weft__op *op; /* not NULL: only its end is waited for, no need to wake for less */
    pthread_cond_t wake;
};

/* Make progress until ready(arg), or until the deadline (weft_now() scale, UINT64_MAX: none).
 * Returns true if it became ready. op: as in the struct. */
bool weft__wait(struct weft__endpoint *ep, weft__ready_fn *ready, void *arg, uint64_t deadline);
bool weft__wait_op(struct weft__endpoint *ep, const struct weft__op *op, weft__ready_fn *ready,
                   void *arg, uint64_t deadline);
/* As a caller: drive everything once. Returns things that happened. */
int weft__progress(struct weft__endpoint *ep);
/* Something a waiter may wait for has happened. Endpoint lock held. */
void weft__changed(struct weft__endpoint *ep);
/* Send counts of taken messages that found nothing to ride on. No lock held. */
void weft__tell(struct weft__endpoint *ep);
/* Wake whoever sleeps on descriptors. */
void weft__wake(struct weft__endpoint *ep);
int weft__threads_start(struct weft__endpoint *ep, int n);
void weft__threads_stop(struct weft__endpoint *ep);
/* Kick every lane that has work queued. No lock held. */
void weft__kick_all(struct weft__endpoint *ep);
uint64_t weft__deadline(int timeout_ms);

/* --- memory.c ------------------------------------------------------------------------------ */

/* A range registered with every nic of an endpoint; shared by the mems that lie in it. */
struct weft__reg {
    struct weft__reg *next; /* in endpoint->regs, if shared */
    struct weft__endpoint *ep;
    void *addr;
    uint64_t len;
    uint32_t access, kind;
    uint64_t key;
    uint32_t refs;       /* mems that share it */
    uint32_t users;      /* operations of this side that use it */
    uint32_t undone;     /* lanes that still have to deregister it */
    bool abandoned;      /* no one waits for its end: the last lane frees it */
    struct weft__op *op; /* temporary one: the op that waits for its end */
    struct {
        struct weft__work work; /* first */
        struct weft__reg *reg;
        struct weft_mem_handle handle;
        bool registered;
    } on[WEFT__MAX_LANES];
};

struct weft__mem {
    struct weft__endpoint *ep;
    weft_mem_t handle;
    weft_endpoint_t ep_handle;
    struct weft__reg *reg;
    void *addr;
    uint64_t len;
    struct weft__mem *prev, *next; /* in endpoint->mems */
};

/* Register with all lanes. No lock held. Temporary ones are not in the cache. */
int weft__reg_open(struct weft__endpoint *ep, void *addr, uint64_t len, uint32_t access,
                   struct weft__reg **out);
/* Push the work that ends a registration. Endpoint lock held. */
void weft__reg_shut(struct weft__reg *reg);
/* End one that no peer knows of. No lock held. */
void weft__reg_discard(struct weft__endpoint *ep, struct weft__reg *reg);
/* One lane has deregistered it. Endpoint lock held. */
void weft__reg_lane_done(struct weft__reg *reg);
/* The shared registration with this key, or NULL. Endpoint lock held. */
struct weft__reg *weft__reg_find(struct weft__endpoint *ep, uint64_t key);
/* The registration under mem, if mem is of this endpoint and [addr, addr+len) lies in it. */
int weft__mem_reg_of(struct weft__endpoint *ep, weft_mem_t mem, const void *addr, uint64_t len,
                     struct weft__reg **reg);
/* Describe a range of a registration for peers. */
void weft__reg_describe(const struct weft__reg *reg, const void *addr, uint64_t len,
                        struct weft_remote *remote);

/* A remote, decoded. */
struct weft__remote {
    uint64_t addr, len, key;
    uint32_t keys[8];
    uint32_t owner;
    uint32_t access;
};
int weft__remote_decode(const struct weft_remote *remote, struct weft__remote *out);
uint32_t weft__owner_id(const uint8_t uuid[16]);

/* --- op.c ---------------------------------------------------------------------------------- */

/* One local-remote pair of a data operation. */
struct weft__piece {
    uint8_t *addr;
    uint64_t len;
    uint64_t raddr;
    uint64_t rkey;         /* chosen key */
    uint32_t rkeys[8];     /* provider keys by the peer's lane */
    struct weft__reg *reg; /* local registration, or NULL */
};

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
    WEFT__AT_NONE,  /* in no queue */
    WEFT__AT_TODO,  /* conn->todo: pieces left to assign */
    WEFT__AT_SENDQ, /* conn->stream[].sendq: message not sent yet */
    WEFT__AT_RECVQ  /* conn->recvq: receive not matched yet */
};

struct weft__op {
    _Atomic(uint64_t) handle; /* 0: free. Memory of ops is never unmapped. */
    uint32_t slot, generation;
    _Atomic(bool) done;
    struct weft__endpoint *ep;
    _Atomic(weft_endpoint_t) ep_handle;
    struct weft__conn *conn;        /* NULL once done */
    struct weft__op *prev, *next;   /* conn->ops: not done */
    struct weft__op *qprev, *qnext; /* the queue that `where` names */
    enum weft__op_where where;
    enum weft__op_kind kind;
    bool detached; /* no one will ask for it */
    bool canceled;
    bool visited;   /* mark of abort_ops */
    bool finishing; /* data is there; the notification or deregistration is not */
    int status;
    char text[160];
    uint32_t pending; /* wrs, messages and deregistrations that have not ended */
    uint64_t total, bytes;

    struct weft__piece one, *pieces; /* pieces == &one, or allocated */
    size_t npieces, next_piece;
    uint64_t next_offset;

    void *notify; /* copy, sent after the data */
    size_t notify_len;
    bool has_notify;

    uint64_t value, *result; /* ADD */

    struct weft__reg **regs; /* temporary registrations of a large message */
    size_t nregs;
    void *bounce;               /* contiguous copy of a message in too many pieces */
    struct weft__piece message; /* of bounce or notify */
    bool large;                 /* message goes by rendezvous */
    bool urgent;                /* a blocking caller waits for the peer to take the message */
    bool more;                  /* the caller promised another operation at once */
    struct weft__rec *rec;      /* the message as the sender remembers it */

    void (*on_end)(struct weft__op *op); /* internal ops. Endpoint lock held. */
    struct weft__arrival *arrival;       /* FETCH: the message it fetches */
    struct weft__op *parent;             /* FETCH: the RECV it is for, or NULL */
};

/* All with the endpoint lock held. */
struct weft__op *weft__op_new(struct weft__conn *conn, enum weft__op_kind kind);
void weft__op_free(struct weft__op *op);
/* First failure wins. The text may be NULL. */
void weft__op_fail(struct weft__op *op, int status, const char *text);
/* A part has ended; ends the op when it was the last. */
void weft__op_unpend(struct weft__op *op);
/* Ends the op if nothing of it is pending any more. */
void weft__op_settle(struct weft__op *op);
/* The conn is down: drop what has not started. */
void weft__op_abort(struct weft__op *op, int status, const char *text);
/* Drop what has not started; the op ends when the rest has. */
void weft__op_cancel(struct weft__op *op);
void weft__op_pool_free(struct weft__endpoint *ep);
/* End the temporary registrations of a large message; the op waits for that. */
void weft__op_shut_regs(struct weft__op *op);

/* The op of a handle, or NULL. No lock held. */
struct weft__op *weft__op_at(weft_op_t handle);
/* Make the handle of an op that is done stale: true for one of several callers, who then owns the
 * op and gives it back with weft__op_retire. No lock needed. */
bool weft__op_claim(struct weft__op *op, weft_op_t handle);
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

/* --- stripe.c: data operations over the links of a conn ------------------------------------- */

/* All with the endpoint lock held. */
struct weft__wr *weft__wr_new(struct weft__endpoint *ep);
void weft__wr_free(struct weft__endpoint *ep, struct weft__wr *wr);
/* A new op. It may have ended when this returns, if there was nothing to move. */
void weft__stripe_start(struct weft__conn *conn, struct weft__op *op);
/* Assign work to links as far as they have room. */
void weft__stripe_fill(struct weft__conn *conn);
void weft__stripe_done(struct weft__wr *wr, const struct weft_comp *comp);
/* The link of a wr is closed: keep it for another link, or end it. */
void weft__stripe_orphan(struct weft__wr *wr);
/* The peer has closed its end of link i: what was posted there may go elsewhere. */
void weft__stripe_release(struct weft__conn *conn, int i);
/* End what waits for another link: of op, or of all ops if op is NULL. */
void weft__stripe_drop(struct weft__conn *conn, const struct weft__op *op, int status,
                       const char *text);
/* Messages of additions on nics that have none. 0, or a code that takes the conn down. */
int weft__add_arrived(struct weft__conn *conn, const uint8_t *body, size_t len);
int weft__added_arrived(struct weft__conn *conn, const uint8_t *body, size_t len);

/* --- msg.c: the conn's message stream -------------------------------------------------------- */

enum weft__msg_type {
    WEFT__MSG_EAGER = 1, /* a user's message, payload follows */
    WEFT__MSG_LARGE,     /* a user's message, remotes of its payload follow */
    WEFT__MSG_TAKEN,     /* only for the counts in the header */
    WEFT__MSG_RESULT,    /* how a message that is not covered by the counts ended */
    WEFT__MSG_ADD,       /* emulated ADD64 */
    WEFT__MSG_ADDED,     /* its answer */
    WEFT__MSG_LINK_LOST, /* my end of a link is closed; close yours */
    WEFT__MSG_LINK_GONE, /* answer: mine is closed too, nothing of it will land any more */
    WEFT__MSG_TYPES
};

/* Header of every message, 32 bytes on the wire. */
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
};
#define WEFT__MSG_HEAD 40
#define WEFT__MSG_URGENT 1u /* flags: the sender waits: answer at once */
#define WEFT__MSG_MAX 4096  /* what every transport's max_send allows: longest LARGE */
#define WEFT__MSG_IOV 3     /* pieces of a payload that is sent in place, else it is copied */
#define WEFT__MAX_REMOTES ((WEFT__MSG_MAX - WEFT__MSG_HEAD) / sizeof(struct weft_remote))

/* An outgoing message. */
struct weft__msg {
    struct weft__msg *next;
    struct weft__conn *conn;
    struct weft__op *op; /* EAGER: payload is its memory; pending on it. Or NULL. */
    struct weft__msg_head info;
    const struct weft__piece *pieces; /* payload of op, npieces; NULL: body */
    size_t npieces;
    struct weft_iov_local iov[1 + WEFT__MSG_IOV];
    bool encoded;                 /* head is: once, since counts must not run ahead of seq */
    uint8_t head[WEFT__MSG_HEAD]; /* encoded when it is first handed to a link */
    uint32_t body_len;
    uint8_t body[]; /* of messages that carry their own */
};

/* All with the endpoint lock held. */
/* Queue a message with a body of its own. -ENOMEM takes the conn down. */
int weft__msg_post(struct weft__conn *conn, const struct weft__msg_head *head, const void *body,
                   size_t len);
/* Queue a message whose payload is memory of op. */
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

/* --- match.c: send and recv, and the sending of notifications ------------------------------------------------------------ */

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

/* --- notify.c: notifications that have arrived ------------------------------------------------ */

/* All with the endpoint lock held. */
void weft__notif_arrived(struct weft__conn *conn, struct weft__arrival *arrival);
void weft__notif_down(struct weft__conn *conn);
/* Next notification that may be handed out, or NULL. */
struct weft__arrival *weft__notif_pop(struct weft__endpoint *ep);

/* --- conn.c -------------------------------------------------------------------------------- */

#define WEFT__WINDOW 1024 /* messages in flight or not taken, per conn and stream */

struct weft__early {
    uint64_t seq;
    uint32_t len;
    uint8_t *data; /* malloc; NULL: free slot */
};

struct weft__conn {
    struct weft__endpoint *ep;
    weft_endpoint_t ep_handle;
    weft_conn_t handle;
    struct weft__conn *prev, *next; /* endpoint->conns */
    struct weft__conn *accept_next; /* endpoint->accepts */
    struct weft__conn *tell_next;   /* endpoint->tells */
    bool telling;                   /* in endpoint->tells */
    bool owes;                      /* the peer has not been told all that was taken */
    uint64_t taken_bytes;           /* since it was last told at once */
    bool queued_accept, passive, reaping;
    bool same_host_path; /* the transport needs no address */
    bool handshaking;    /* boot.c still refers to it */
    uint32_t nops;       /* in ops */
    int links_open;      /* not closed yet */
    enum weft_conn_state state;
    int status;
    bool initiator, same_host, user_closed;
    char why[256], peer_text[96], transport[16];
    struct weft__address peer_addr;
    uint8_t peer_uuid[16];
    uint32_t peer_owner, peer_pid;
    uint64_t peer_window; /* eager bytes it accepts */
    struct weft__link *links[WEFT__MAX_LINKS];
    int nlinks, next_link;
    _Atomic(struct weft__lane *) home; /* of the only link of a conn that is up; else NULL */
    uint64_t notif_scan;               /* see weft__notif_pop */

    struct weft__op *ops; /* all that are not done */
    struct weft__opq todo, recvq;
    struct weft__wr *resend;                   /* wrs of dead links that may go now */
    struct weft__wr *orphans[WEFT__MAX_LINKS]; /* wrs of dead links, peer not asked yet */
    bool lost_seen[WEFT__MAX_LINKS], gone_due[WEFT__MAX_LINKS];

    uint64_t next_seq, expect_seq;
    uint64_t out_base;                    /* oldest message that has not ended */
    uint64_t out_done[WEFT__WINDOW / 64]; /* which of out_base.. have, by seq % WINDOW */
    struct weft__msg *outq, **outq_tail;  /* messages not assigned to a link */
    struct weft__early *early;            /* 2 * WEFT__WINDOW, by seq, made when first needed */
    uint64_t early_bytes;                 /* of users' payload in it */
    uint32_t answers;                     /* messages to the peer that only answer its own */
    uint64_t eager_out;                   /* eager bytes sent and not taken */
    struct weft__stream stream[WEFT__STREAMS];
    struct weft__op *adds; /* emulated ADDs that wait for their answer, through qnext */
    uint32_t nadds;
    struct weft_conn_stats stats;
};

/* Endpoint lock held, but for conn_open. */
int weft__conn_open(struct weft__endpoint *ep, bool initiator, struct weft__conn **out);
/* Nothing refers to it any more but its handle. */
bool weft__conn_idle(void *conn);
/* Give back a conn that is down and idle. Takes the endpoint lock. */
void weft__conn_free(struct weft__conn *conn);
/* Free passive conns that died. No lock held but the boot lock. */
void weft__conn_reap(struct weft__endpoint *ep);
void weft__conn_down(struct weft__conn *conn, int status, const char *fmt, ...) WEFT_PRINTF(3, 4);
void weft__conn_up(struct weft__conn *conn);
/* A link has room again, which a cmd of either kind may have taken: for what waits of both. */
void weft__conn_fill(struct weft__conn *conn);
/* Take a conn down and wait until nothing but its handle is left. No lock held. Before, and not longer
 * than until linger_until (0: not at all), the peer gets what it waits for. */
void weft__conn_close(struct weft__conn *conn, uint64_t linger_until);
void weft__link_shut(struct weft__link *link, int status);
/* The transport reports, or has been made to. Endpoint lock held. */
void weft__link_lost(struct weft__link *link, int status);
void weft__link_closed(struct weft__link *link);
/* Messages about links. 0, or a code that takes the conn down. */
int weft__link_lost_arrived(struct weft__conn *conn, uint32_t index);
int weft__link_gone_arrived(struct weft__conn *conn, uint32_t index);
int weft__conn_links_up(const struct weft__conn *conn);

/* --- frames of the handshake ----------------------------------------------------------------- */

/* Least WEFT_EAGER_WINDOW: one below it would not take the longest message that peers send so. */
#define WEFT__WINDOW_LEAST 65536

/* Version of what follows, and of the proofs. */
#define WEFT__BOOT_VERSION 1
#define WEFT__FRAME_HEAD 12
#define WEFT__FRAME_MAX 16384

enum weft__frame {
    WEFT__HELLO = 1,
    WEFT__OFFER,
    WEFT__LINKS,
    WEFT__READY,
    WEFT__DONE,
    WEFT__NO,
    WEFT__REJECT,
    WEFT__CHALLENGE, /* these three before the peer's proof has been checked: auth.c */
    WEFT__PROOF,
    WEFT__DENY
};

/* --- auth.c: the shared secret ---------------------------------------------------------------- */

#define WEFT__NONCE 32
#define WEFT__AUTH_FRAME (WEFT__FRAME_HEAD + WEFT__NONCE + 16) /* longest before the proof */

enum weft__auth_state {
    WEFT__AUTH_OFF,       /* this endpoint has no secret */
    WEFT__AUTH_CHALLENGE, /* waits for the peer's challenge */
    WEFT__AUTH_PROOF,     /* waits for the peer's proof */
    WEFT__AUTH_SEALED     /* it has come; every frame carries a code from now on */
};

/* What two endpoints have said to each other. Arrays of two are by enum weft_role. */
struct weft__auth {
    enum weft__auth_state state;
    uint8_t nonce[2][WEFT__NONCE];
    uint8_t uuid[16]; /* of the passive endpoint; zeros: the active one does not know it */
    uint8_t session[WEFT_MAC];
    uint8_t frame_key[2][WEFT_MAC]; /* by who sends */
    uint64_t frames[2];             /* sent so far */
};

/* Set the endpoint's secret: the caller's, else that of WEFT_SECRET_FILE, else none. */
int weft__auth_open(struct weft__endpoint *ep, const void *secret, size_t len);
/* Under the secret's key: a side's proof; the keys of the conversation. */
int weft__auth_proof(const uint8_t key[WEFT_MAC], const struct weft__auth *auth,
                     enum weft_role role, uint8_t proof[WEFT_MAC]);
int weft__auth_seal(const uint8_t key[WEFT_MAC], struct weft__auth *auth);
/* The code of the next frame of a side. weft__auth_check: 0, or WEFT_EAUTH. */
int weft__auth_sign(struct weft__auth *auth, enum weft_role from, const void *frame, size_t len,
                    uint8_t mac[WEFT_MAC]);
int weft__auth_check(struct weft__auth *auth, enum weft_role from, const void *frame, size_t len,
                     const uint8_t mac[WEFT_MAC]);
/* Key of the index-th link of an attempt. */
int weft__auth_link_key(const struct weft__auth *auth, const char *transport, uint8_t attempt,
                        uint8_t index, uint8_t key[WEFT_MAC]);

/* The conversation. Boot lock held. */
struct weft__boot;
static inline bool weft__auth_pending(const struct weft__auth *auth)
{
    return auth->state == WEFT__AUTH_CHALLENGE || auth->state == WEFT__AUTH_PROOF;
}
void weft__auth_begin(struct weft__boot *boot);
/* While pending: may a frame like this come now? If not, the boot has failed. */
bool weft__auth_expects(struct weft__boot *boot, uint16_t type, uint32_t len);
void weft__auth_frame(struct weft__boot *boot, uint16_t type, const uint8_t *body);
/* A challenge has come, and this endpoint has no secret. */
void weft__auth_unwanted(struct weft__boot *boot);

/* --- handshake.c, boot.c --------------------------------------------------------------------- */

/* One bootstrap socket: frames in, frames out. boot.c moves the bytes, handshake.c decides. */
struct weft__boot {
    struct weft__boot *next;
    struct weft__endpoint *ep;
    struct weft__conn *conn; /* NULL: a stranger that has not said hello */
    int fd;                  /* -1: dead, to be swept */
    bool active, connecting, want_write;
    bool kept;                     /* the handshake is over; EOF means that the peer died */
    uint8_t place;                 /* passive: weft_stranger_from */
    uint64_t since;                /* passive: when it came */
    int state;                     /* handshake.c */
    uint64_t deadline, try_until;  /* of all, and of the address being tried */
    struct weft__address addrs[8]; /* active: where to try */
    int naddrs, addr;
    struct weft__auth auth;
    uint8_t *rx; /* for one frame of those that may come now */
    size_t rx_len, rx_cap;
    uint8_t *tx;
    size_t tx_len, tx_sent;
    /* active: transports to offer, best first, and which is on offer */
    const struct weft_transport *offers[WEFT__MAX_LANES];
    int noffers, offer;
    uint8_t attempt;  /* of the offer that is under way */
    bool dropping;    /* links of a failed attempt are being closed */
    bool next_offer;  /* active: make the next offer when they are */
    uint8_t held[64]; /* passive: an offer that came before they are */
    size_t held_len;
    uint8_t peer_lane[WEFT__MAX_LINKS];
    bool ready; /* the peer has joined all links */
    uint8_t peer_addr[WEFT__MAX_LINKS][WEFT_LINK_ADDRESS_MAX];
    uint16_t peer_addr_len[WEFT__MAX_LINKS];
    bool joined[WEFT__MAX_LINKS];
    char policy[128];
    char reasons[256]; /* why better transports were passed over */
};

int weft__boot_open(struct weft__endpoint *ep, const char *listen);
void weft__boot_close(struct weft__endpoint *ep);
/* Boot lock held. Queue a frame. */
void weft__boot_send(struct weft__boot *boot, uint16_t type, const void *body, size_t len);
/* Close the socket; the conn, if it is not up, goes down with this. */
void weft__boot_fail(struct weft__boot *boot, int status, const char *fmt, ...) WEFT_PRINTF(3, 4);
#define WEFT__OTHER_ENDPOINT                                                                      \
    "the endpoint of this metadata is gone, another one listens in its place"
/* The same, unless the peer has not said hello and there is another address to try. */
void weft__boot_elsewhere(struct weft__boot *boot, int status, const char *fmt, ...)
    WEFT_PRINTF(3, 4);
/* The handshake is over: the socket is closed, or kept to learn of the peer's death. */
void weft__boot_end(struct weft__boot *boot, bool keep);
/* What boot.c asks handshake.c to do. Boot lock held. */
/* The active side's first word: the socket is connected, and proofs have been checked. */
void weft__handshake_begin(struct weft__boot *boot);
/* Tell the peer, then fail. */
void weft__handshake_reject(struct weft__boot *boot, int code, const char *text);
void weft__handshake_frame(struct weft__boot *boot, uint16_t type, const uint8_t *body,
                           size_t len);
void weft__handshake_step(struct weft__boot *boot);          /* time has passed */
bool weft__handshake_joining(const struct weft__boot *boot); /* needs to be stepped often */
/* Drive listener and handshakes. Returns things that happened. */
int weft__boot_progress(struct weft__endpoint *ep);
/* Begin connecting to one of these addresses, where the endpoint with this uuid (NULL: any) is to
 * be. Takes a ref of conn. Boot lock held. */
int weft__boot_connect(struct weft__conn *conn, const struct weft__address *list, int n,
                       const uint8_t *uuid, const char *policy, uint64_t deadline);
/* Nearest deadline of a handshake, UINT64_MAX if none. */
uint64_t weft__boot_deadline(struct weft__endpoint *ep);

/* --- endpoint.c ---------------------------------------------------------------------------- */

struct weft__endpoint {
    weft_endpoint_t handle;
    uint8_t uuid[16];
    uint32_t pid;
    struct weft__host host;
    bool secured; /* has a shared secret */
    uint8_t auth_key[WEFT_MAC];
    const struct weft_gpu_backend *gpu;
    const struct weft_transport *transports[WEFT__MAX_LANES];
    int ntransports;
    struct weft__lane *lanes[WEFT__MAX_LANES];
    int nlanes;
    char lane_why[256]; /* transports that were asked for and could not be opened */

    /* boot lock */
    pthread_mutex_t boot_lock;
    struct weft__boot *boots;
    int nboots;
    int nguests;          /* handshakes that peers began and that are not over */
    _Atomic(int) booting; /* handshakes under way, read without the lock */
    int listen_fd, boot_epoll;
    int spare_fd;                      /* see hang_up */
    uint64_t refusals, refusal_logged; /* strangers without the secret; when that was logged */
    _Atomic(int) reapable;             /* passive conns that went down */
    struct weft__address bound;

    /* endpoint lock */
    pthread_mutex_t lock;
    pthread_condattr_t monotonic; /* of the waiters' conditions */
    struct weft__waiter *waiters; /* callers that sleep on their condition */
    struct weft__waiter *leader;  /* a caller that sleeps, or is about to, on the descriptors */
    _Atomic(bool) closing;        /* written under the lock, read anywhere */
    bool passive;
    int wake_fd;          /* eventfd: wakes the leader, or thread 0 */
    int thread_wakes[64]; /* of thread 1 and up, nwakes of them: each sleeper takes its own */
    int nwakes;
    struct weft__conn *conns, *accepts, **accepts_tail;
    _Atomic(struct weft__conn *) tells; /* conns that owe their peer a count of taken messages */
    int nconns, naccepts, backlog;
    struct weft__mem *mems;
    struct weft__reg *regs;
    struct weft__op *free_ops;
    struct weft__wr *free_wrs;
    struct weft__arrival *notifs, **notifs_tail; /* in order of arrival, all conns */
    uint64_t notif_bytes, notif_limit, notif_scan;
    bool notifs_stalled; /* a large one waits for room */
    bool notifs_dropped; /* some went with their conn, and are still in the list */
    uint64_t grace_ns, spin_ns;
    uint64_t window; /* eager bytes this side accepts per conn */
    uint32_t eager;  /* longest message sent eagerly */
    uint64_t chunk;  /* of transfers over several links */

    pthread_t threads[64];
    int nthreads;
    _Atomic(bool) stop;
    _Atomic(uint32_t) beat; /* the listener is looked at only now and then */
    _Atomic(uint64_t) boot_looked;
    _Atomic(uint64_t) driven;      /* times a caller drove the lanes */
    _Atomic(uint64_t) events;      /* things that happened while driving, ever */
    _Atomic(uint64_t) changes;     /* and in other ways. Written under the lock. */
    _Atomic(uint64_t) events_seen; /* of both, by weft_endpoint_progress */
};

#endif
