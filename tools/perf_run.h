/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One thread's part of one size: operations in flight, and what the peer's operations need here.
 *
 * Each worker has an endpoint of its own, so workers share nothing. With the default of no
 * progress threads its own thread moves all bytes: it spins while a run lasts.
 */
#ifndef WEFT_TOOLS_PERF_RUN_H
#define WEFT_TOOLS_PERF_RUN_H

#include "perf_args.h"
#include "perf_behind.h"
#include "perf_mem.h"
#include "perf_msg.h"
#include "perf_stats.h"

/* What both sides know about one pass over one size. */
struct perf_run {
    enum perf_test test;
    struct perf_layout layout;
    uint64_t iters;
    uint64_t seed;
    bool bidir, pingpong, inject, verify;
    int timeout_s;
};

/* An operation in flight: its pieces, prepared once per run. */
struct perf_slot {
    weft_op_t op;
    uint64_t posted_at;
    uint64_t result; /* ADD: the word before */
    struct weft_local *local;
    uint64_t *offset;
};

/* Operations of one direction, `posted - done` of them under way. Operation i has slot order[i modulo their number]. */
struct perf_ring {
    struct perf_slot *slots;
    uint32_t *order;
    struct weft_local *locals; /* all slots' */
    uint64_t *offsets;         /* all slots' */
    uint64_t posted, done;
    uint64_t next; /* among those under way: to be asked for, out of turn */
};

struct perf_team;

struct perf_worker {
    const struct perf_args *args;
    struct perf_team *team;
    int index; /* among the threads */
    weft_endpoint_t endpoint;
    weft_conn_t *conns; /* measured: operations take them in turns */
    uint32_t nconns;
    struct perf_channel channel;
    bool initiator;

    /* of the size that runs */
    struct perf_run run;
    uint64_t seed_mine, seed_theirs; /* contents of either direction */
    int sleep_ms;                    /* a turn sleeps so long for an operation; 0: it spins */
    bool crowded; /* more threads spin than there are processors, if the peer is on this host, too */
    uint64_t footprint;              /* length of the regions below */
    struct perf_region out;          /* of operations this side starts */
    struct perf_region in;           /* where the peer's operations land, or what they read */
    struct weft_remote *remotes;     /* the peer's `in`, once for each piece of an operation */
    struct perf_behind behind;       /* of write and read */
    struct perf_ring mine;           /* this side's operations */
    struct perf_ring recvs;          /* for the peer's messages */
    struct weft_notif *notifs;       /* last one of each slot */
    uint64_t arrived;                /* the peer's messages and notifications so far */
    uint64_t wrong_length;           /* of those */
    uint64_t started_ns, ended_ns;   /* first post, last delivery of this side's */
    bool peer_done;                  /* has said END or FINISHED */
    bool told_done;                  /* this side has said FINISHED */
    int right;                       /* result of the check, both sides */
    uint64_t cpu_ns, peer_cpu_ns;    /* of the process, during the run */
    uint64_t mapped;                 /* bytes of the run that the initiator has copied from or to mapped memory */
    struct perf_hist hist;
    void (*tell)(const struct perf_worker *worker, uint64_t now); /* progress line, or NULL */
};

/* Does this side start operations in this run? Does the peer? */
bool perf_active(const struct perf_worker *worker);
bool perf_passive(const struct perf_worker *worker);

/* All return -1 after perf_fail. */
/* Set up for a run: fill memory, post receives. */
int perf_run_prepare(struct perf_worker *worker, const struct perf_run *run);
/* The peer's memory, as it came in RUN or READY. */
int perf_run_aim(struct perf_worker *worker, const struct perf_msg *msg);
/* Start operations and serve the peer's, until both are done: at the initiator, when its own are
 * delivered and (bidir) the target has said FINISHED; at the target, when END has come. */
int perf_run_drive(struct perf_worker *worker);
/* 1: all bytes are right; 0: they are not, and a message has said what; -1. */
int perf_run_check(struct perf_worker *worker);
/* Let bytes move once, and take what has arrived. */
int perf_run_arrivals(struct perf_worker *worker);
/* Give back what prepare took. */
void perf_run_finish(struct perf_worker *worker);

#endif
