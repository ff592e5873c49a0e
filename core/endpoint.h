/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An endpoint, which everything else of core hangs on, and the locks.
 *
 * Locks, outermost first. A thread that holds one may take only those below it:
 *
 *   boot lock      (endpoint)  handshakes of conns that are not up yet       boot.c
 *   copier lock    (endpoint)  GPUs, copies that they do, areas              copier.c
 *   lane lock      (lane)      the nic, its links and their wrs              lane.c
 *   endpoint lock  (endpoint)  everything else: conns, ops, messages, mems
 *
 * lane.h says how work comes to a nic without its lock.
 */
#ifndef WEFT_CORE_ENDPOINT_H
#define WEFT_CORE_ENDPOINT_H

#include <pthread.h>
#include <stdbool.h>

#include "weft/endpoint.h"
#include "weft/transport.h"

#include "copier.h"
#include "lane.h"
#include "pool.h"
#include "util.h"

struct weft__arrival;
struct weft__boot;
struct weft__conn;
struct weft__mem;
struct weft__op;
struct weft__reg;
struct weft__served_add;
struct weft__waiter;

#define WEFT__UNUSED 8

struct weft__endpoint {
    weft_endpoint_t handle;
    uint8_t uuid[16];
    uint32_t pid;
    struct weft__host host;
    bool secured; /* has a shared secret */
    uint8_t auth_key[WEFT_MAC];
    /* Written under the lock. gpu_apart: its memory is none that a processor reaches. */
    _Atomic(const struct weft_gpu_backend *) gpu;
    _Atomic(bool) gpu_apart;
    bool gpu_auto;               /* none is named: look for one while there is none, */
    _Atomic(uint64_t) gpu_loads; /* whenever something was loaded (weft__loads) */
    struct weft__copier copier;
    const struct weft_transport *transports[WEFT__MAX_LANES];
    int ntransports;
    struct weft__unused {
        int priority;
        char why[160];
    } unused[WEFT__UNUSED]; /* that auto left out: a sentence each, for who asks for a better path */
    int nunused;
    struct weft__lane *lanes[WEFT__MAX_LANES];
    int nlanes;
    int nkeys; /* lanes that have a key slot */

    /* boot lock */
    pthread_mutex_t boot_lock;
    struct weft__boot *boots;
    int nboots;
    int nguests;          /* handshakes that peers began and that are not over */
    _Atomic(int) booting; /* handshakes under way, read without the lock */
    struct weft_listener listener;
    int boot_epoll;
    uint64_t refusals, refusal_logged; /* strangers without the secret; when that was logged */
    _Atomic(int) reapable;             /* passive conns that went down */
    struct weft__address bound;

    /* endpoint lock */
    pthread_mutex_t lock;
    pthread_condattr_t monotonic; /* of the waiters' conditions */
    struct weft__waiter *waiters; /* callers that sleep on their condition */
    struct weft__waiter *leader;  /* a caller that sleeps, or is about to, on the descriptors */
    _Atomic(bool) closing;        /* written under the lock, read anywhere */
    struct weft__endpoint *left;  /* others that were closed, and could not be freed */
    bool passive;
    int maps_fd;          /* asks how memory is mapped (mapping.c); -1: the kernel does not tell */
    int wake_fd;          /* eventfd: wakes the leader, or thread 0 */
    int thread_wakes[64]; /* of thread 1 and up, nwakes of them: each sleeper takes its own */
    int nwakes;
    struct weft__conn *conns, *accepts, **accepts_tail;
    _Atomic(struct weft__conn *) tells; /* conns that owe their peer a count of taken messages */
    _Atomic(struct weft__conn *) hears; /* conns that were told a count, which can wait (match.c) */
    int nconns, naccepts, backlog;
    struct weft__mem *mems;
    struct weft__reg *regs;
    /* What an operation named last of the mems that are open: to take from, and to put into (who answers has one of each). */
    struct weft__last {
        weft_mem_t mem; /* 0: none */
        struct weft__reg *reg;
    } last[2];
    struct weft_list aparts; /* regs of memory that no processor reaches */
    struct weft__served_add *served_adds,
        **served_adds_tail; /* to such memory: the first is being done */
    struct weft__op *free_ops;
    struct weft__op_home *op_home; /* where its ops are given back; NULL: it has had none */
    struct weft__pool wrs, recs, msgs; /* msgs: with a short body */
    struct weft__pool pieces, lots;    /* of ops (WEFT__POOL_PIECES); mapped ones */
    struct weft__arrival *notifs, **notifs_tail; /* in order of arrival, all conns */
    uint64_t notif_bytes, notif_limit, notif_scan;
    bool notifs_stalled; /* a large one waits for room */
    bool notifs_dropped; /* some will never be, and are still in the list */
    bool notifs_resuming, notifs_roomier; /* what waited for room goes on; there is still more */
    uint64_t grace_ns, spin_ns;
    uint64_t give_up_ns; /* what has not ended so long after its conn was closed may never do so */
    uint64_t window; /* eager bytes this side accepts per conn */
    uint32_t eager;  /* longest message sent eagerly */
    uint64_t chunk;  /* of transfers over several links */
    uint64_t ahead;  /* bytes of long transfers that a link has at once */
    bool nic_adds; /* WEFT_NIC_ADDS */
    bool ipc;      /* WEFT_IPC */
    bool offers;   /* a nic is played by this host's processors: who polls in vain offers his */

    pthread_t threads[64];
    int threads_asked; /* by who opened it; 0 or less: none */
    int nthreads;
    _Atomic(bool) stop;
    _Atomic(uint32_t) beat; /* the listener is looked at only now and then */
    _Atomic(uint64_t) boot_looked;
    _Atomic(uint64_t) driven;      /* times a caller drove the lanes */
    _Atomic(uint64_t) events;      /* things that happened while driving, ever, but for those of lanes */
    _Atomic(uint64_t) changes;     /* and in other ways. Written under the lock. */
    _Atomic(uint64_t) events_seen; /* of all, by weft_endpoint_progress */
};

/* Without conns, mems and threads. */
void weft__endpoint_free(struct weft__endpoint *ep);

/* Kick every lane that has work queued. No lock held. */
static inline void weft__kick_all(struct weft__endpoint *ep)
{
    for (int i = 0; i < ep->nlanes; i++)
        if (WEFT_UNLIKELY(atomic_load(&ep->lanes[i]->waiting)))
            weft__lane_kick(ep->lanes[i]);
    weft__copier_kick(ep, &ep->copier);
}

#endif
