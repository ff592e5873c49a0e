/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane: one nic, the lock of whoever drives it, and its links with the commands on their way.
 * What is marked endpoint lock is the endpoint's (endpoint.h has the order).
 *
 * A lane lock is never taken while the endpoint lock is held. Whoever decides under the endpoint
 * lock that a nic has to do something pushes a struct weft__work on the lane and, after letting
 * go, kicks the lane: it either gets the lane lock at once and does the work, or the holder does.
 */
#ifndef WEFT_CORE_LANE_H
#define WEFT_CORE_LANE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "weft/transport.h"

#include "weft/list.h"

struct weft__endpoint;
struct weft__conn;
struct weft__op;

/* AWS's p5 has 32 EFA devices, the most of any machine. Sets of links are bits of 32. */
#define WEFT__MAX_LANES 32
#define WEFT__MAX_LINKS 32 /* of one conn */
/* Nics of an endpoint that make their own keys, since a remote has room for so many. Each of them has a
 * slot there, which the peers of its links are told. */
#define WEFT__KEYS 8

enum weft__work_kind {
    WEFT__WORK_POST,  /* hand a cmd to a link */
    WEFT__WORK_CLOSE, /* close a link */
    WEFT__WORK_DEREG, /* deregister a mem from this lane's nic */
    WEFT__WORK_RECALL /* take memory back that a peer has mapped */
};

/* Something for whoever holds the lane lock to do. */
struct weft__work {
    struct weft__work *next;
    enum weft__work_kind kind;
};

enum weft__wr_kind {
    WEFT__WR_DATA, /* a piece of a WRITE or READ, or an ADD: belongs to op */
    WEFT__WR_MSG   /* a message of the conn's own protocol: part of a struct weft__msg */
};

/* Cmds of one wr at most. Its ctx is the address of the wr plus the number of the cmd: what malloc
 * returns leaves so many values free. */
#define WEFT__RUN _Alignof(max_align_t)

/* A cmd on its way, from fill to comp; or a run of cmds for short pieces of one op that follow each
 * other, which costs core little more than one. */
struct weft__wr {
    struct weft__work work;    /* first: in the lane's queue */
    struct weft_list in_link; /* then in link->wrs */
    struct weft__link *link;
    enum weft__wr_kind kind;
    uint8_t ncmds;
    uint8_t posted;      /* cmds that the nic has taken. Lane lock. */
    uint8_t left;        /* cmds that have not ended */
    struct weft_cmd cmd; /* the first one */
    struct weft__op *op;
    size_t piece;   /* of op: which piece the first cmd is part of */
    uint64_t bytes; /* of op: moved once all cmds have ended */
};

/* The wr of a comp and which of its cmds has ended. */
static inline struct weft__wr *weft__wr_of(uint64_t ctx, uint32_t *nth)
{
    *nth = (uint32_t)(ctx % WEFT__RUN);
    return (struct weft__wr *)(uintptr_t)(ctx - *nth);
}

/* That of one cmd. */
static inline void weft__wr_single(struct weft__wr *wr)
{
    wr->ncmds = wr->left = 1;
    wr->posted = 0;
}

/* A conn's use of a nic. */
struct weft__link {
    struct weft__work close_work;
    struct weft_link *tl; /* the transport's; NULL once closed. Lane lock. */
    struct weft__lane *lane;
    struct weft__conn *conn;
    int index;     /* in conn->links, the same on both sides */
    int peer_slot; /* of the peer's nic among the keys of a remote; -1: the nics take chosen keys */
    /* lane lock */
    struct weft_list wrs;       /* all that came and have not ended, oldest first */
    struct weft_list *unposted; /* the first of them that the nic has not taken whole, or &wrs */
    struct weft__link *stalled_next;
    bool stalled; /* in lane->stalled */
    bool recalling; /* the last turn is not over yet (ipc_serve.c) */
    uint32_t turn;  /* of this end's memory */
    uint64_t emptying; /* weft_now: it is to be closed since then, and no turn begins */
    bool last_turn;    /* of who is inside: the transport was told so */
    /* endpoint lock */
    bool up;        /* connected, cmds may be assigned */
    bool closing;   /* close_work was pushed */
    bool closed;    /* close_work was done */
    uint32_t owned; /* cmds assigned and not ended */
    uint64_t bytes; /* of those that carry data */
    uint32_t inside; /* copies that touch the peer's memory: it cannot be closed */
    int status;     /* why it went down */
};

/* One nic, and the lock that whoever drives it holds. */
struct weft__lane {
    struct weft__endpoint *endpoint;
    const struct weft_transport *transport; /* inner one, for its name, under fault */
    struct weft_nic *nic;
    char device[32];
    int index;    /* in endpoint->lanes */
    uint32_t depth, data_depth; /* cmds that a link may own, and those of them that carry data */
    int key_slot; /* among the keys of a remote; -1: the nic takes the key that core chose */
    int nth;      /* among the lanes of its transport */
    pthread_mutex_t lock;
    /* endpoint lock */
    struct weft__work *queue, **queue_tail;
    uint32_t nqueued;
    bool held; /* who holds the endpoint lock holds the lane's, too, and takes the queue along */
    /* lane lock, but for the atomic ones */
    _Atomic(bool) waiting;      /* there is work in the queue */
    _Atomic(int) sleeping;      /* someone sleeps on the nic's wait_fd */
    _Atomic(bool) bulk;         /* nic->bulk, for those that do not hold the lock */
    _Atomic(uint64_t) events;   /* turns in which something happened, ever. Written under the lock. */
    struct weft__link *stalled; /* links with wrs that the nic would not take */
    struct weft__work *retry;   /* work other than cmds that must wait */
    uint64_t retry_since;       /* weft_now: there is some since then */
    int lost;                   /* the nic failed: its code */
};

/* A link of a lane, not open yet. */
static inline void weft__link_init(struct weft__link *link, struct weft__lane *lane)
{
    link->lane = lane;
    link->peer_slot = lane->nic->attr.chosen_keys ? -1 : 0;
    weft_list_init(&link->wrs);
    link->unposted = &link->wrs;
}

/* Another nic of a device: `number` are open already. */
int weft__lane_open(struct weft__endpoint *ep, const struct weft_transport *transport,
                    const char *device, int number, const char *fault, const char *bind_host,
                    struct weft__lane **out);
void weft__lane_close(struct weft__lane *lane);
/* Endpoint lock held; then, without it: kick. */
static inline void weft__lane_push(struct weft__lane *lane, struct weft__work *work)
{
    work->next = NULL;
    *lane->queue_tail = work;
    lane->queue_tail = &work->next;
    lane->nqueued++;
    /* sequentially consistent: ordered before the trylock in kick, and pairs with the loads of who
     * has let go of the lane lock */
    if (WEFT_UNLIKELY(!lane->held) && !atomic_load_explicit(&lane->waiting, memory_order_relaxed))
        atomic_store(&lane->waiting, true);
}
/* No lane or endpoint lock held (another lane's lock may be). */
void weft__lane_kick(struct weft__lane *lane);
/* The endpoint lock for who is going to post to a conn, and with it, if it is free, the lock of the
 * lane that the conn goes by: unlock then hands what was pushed to the nic. more: the caller will
 * post again at once; what was pushed may wait for that. */
struct weft__lane *weft__post_lock(struct weft__conn *conn, bool more);
void weft__post_unlock(struct weft__conn *conn, struct weft__lane *lane, bool more);
/* For a call into the nic from outside: blocks while another thread drives it. unlock wakes who sleeps
 * on the nic if the call has left something to do that no descriptor tells of. */
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

#endif
