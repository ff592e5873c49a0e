/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A long operation that is always under way on the first measured conn, so that those measured are
 * posted behind it: as one ends, the next is posted.
 */
#ifndef WEFT_TOOLS_PERF_BEHIND_H
#define WEFT_TOOLS_PERF_BEHIND_H

#include "perf_mem.h"

struct perf_worker;

struct perf_behind {
    struct perf_layout layout; /* one slot; bytes 0: nothing is under way */
    struct perf_region region; /* of this side */
    struct weft_remote remote; /* the target's */
    weft_op_t op;
    bool under_way;
    uint64_t done, started_ns, ended_ns;
};

/* All return -1 after perf_fail. */
/* Memory for it on this side; bytes may be 0. */
int perf_behind_open(struct perf_worker *worker, uint64_t bytes);
/* Fill the memory for a run. */
int perf_behind_prepare(struct perf_worker *worker);
/* The initiator's part of a turn. more: another follows the one that ends. */
int perf_behind_turn(struct perf_worker *worker, bool more);
/* 1: every byte arrived; 0: not, and a message has said which. */
int perf_behind_check(const struct perf_worker *worker);

#endif
