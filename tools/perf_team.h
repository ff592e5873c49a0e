/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that run the same sizes at the same time. */
#ifndef WEFT_TOOLS_PERF_TEAM_H
#define WEFT_TOOLS_PERF_TEAM_H

#include <pthread.h>

#include "perf_run.h"

struct perf_team {
    int n;
    struct perf_worker *workers; /* PERF_MAX_THREADS; [0] is the leader, run by the main thread */
    struct perf_run plan;        /* the leader's, for the next meeting */
    bool over;                   /* no further plan */
    pthread_t threads[PERF_MAX_THREADS];
    int started; /* threads */
    pthread_mutex_t lock;
    pthread_cond_t met;
    int waiting;
    unsigned round;
};

/* One worker, with room for PERF_MAX_THREADS: set n before start. Returns -1 after perf_fail. */
int perf_team_open(struct perf_team *team, const struct perf_args *args, bool initiator);
/* Run body(worker) in a thread for each worker but the leader. */
int perf_team_start(struct perf_team *team, void *(*body)(void *));
/* Wait until all workers are here. -1 if something has failed meanwhile. */
int perf_team_meet(struct perf_team *team);
/* Wait for the threads, close all endpoints, free everything. */
void perf_team_close(struct perf_team *team);

/* Make room for n measured conns. */
int perf_worker_conns(struct perf_worker *worker, uint32_t n);
/* Open the worker's endpoint. listen: address, or NULL for any port of the loopback interface. */
int perf_worker_open(struct perf_worker *worker, const char *listen);
/* Register memory for both sides of a run: of `footprint` bytes in each direction used, and for
 * the operation that others are behind. */
int perf_worker_memory(struct perf_worker *worker, const struct perf_run *run, uint64_t footprint,
                       uint64_t behind);
/* Describe `in` for the peer in a RUN or READY. */
int perf_worker_describe(const struct perf_worker *worker, struct perf_msg *msg);

#endif
