/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conns that do nothing: what each holds in memory, and what all of them cost in processor time.
 *
 *   initiator                            target
 *   IDLE     be idle until END           READY
 *   END      (after --seconds)           RESULT   processor time, memory in use
 *
 * once with no measured conn and once with all of them; both sides sleep meanwhile.
 */
#ifndef WEFT_TOOLS_PERF_IDLE_H
#define WEFT_TOOLS_PERF_IDLE_H

#include "perf_msg.h"

/* Of both sides, in one interval. */
struct perf_idle {
    double cpu_ms;
    uint64_t memory, peer_memory; /* resident bytes */
};

/* Let open as many descriptors as this process may. */
void perf_idle_descriptors(void);
/* The two sides; -1 after perf_fail. `msg` is the IDLE that has come. */
int perf_idle_lead(struct perf_channel *channel, uint32_t seconds, struct perf_idle *idle);
int perf_idle_serve(struct perf_channel *channel, const struct perf_msg *msg);

#endif
