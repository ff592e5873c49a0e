/* SPDX-License-Identifier: Apache-2.0 */
/* Distribution of times in fixed memory, for percentiles of any number of operations. */
#ifndef WEFT_TOOLS_PERF_STATS_H
#define WEFT_TOOLS_PERF_STATS_H

#include <stdint.h>

/* Each power of two is cut into this many steps: percentiles are exact to 1/128 of their value. */
#define PERF_HIST_STEP_BITS 7
#define PERF_HIST_STEPS (1u << PERF_HIST_STEP_BITS)
/* Up to 2^40 ns, 18 minutes: longer than any deadline of weft_perf. */
#define PERF_HIST_BITS 40
#define PERF_HIST_SIZE ((PERF_HIST_BITS - PERF_HIST_STEP_BITS + 1) * PERF_HIST_STEPS)

struct perf_hist {
    uint64_t total;
    uint32_t count[PERF_HIST_SIZE];
};

void perf_hist_clear(struct perf_hist *hist);
void perf_hist_add(struct perf_hist *hist, uint64_t ns);
void perf_hist_merge(struct perf_hist *into, const struct perf_hist *from);
/* The value that `percent` of all values do not exceed, in nanoseconds; 0 if there is none. */
double perf_hist_percentile(const struct perf_hist *hist, double percent);

#endif
