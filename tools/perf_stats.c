/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Distribution of times: buckets of equal width up to PERF_HIST_STEPS, then PERF_HIST_STEPS
 * buckets for each power of two.
 */
#include "perf_stats.h"

#include <string.h>

static uint32_t bucket_of(uint64_t ns)
{
    if (ns >> PERF_HIST_BITS)
        return PERF_HIST_SIZE - 1;
    if (ns < PERF_HIST_STEPS)
        return (uint32_t)ns;
    int shift = 63 - __builtin_clzll(ns) - PERF_HIST_STEP_BITS;
    return (uint32_t)(shift + 1) * PERF_HIST_STEPS + (uint32_t)(ns >> shift) - PERF_HIST_STEPS;
}

static double middle_of(uint32_t bucket)
{
    if (bucket < PERF_HIST_STEPS)
        return bucket;
    uint32_t shift = bucket / PERF_HIST_STEPS - 1;
    uint64_t low = (uint64_t)(bucket % PERF_HIST_STEPS + PERF_HIST_STEPS) << shift;
    return (double)low + (double)(1ull << shift) / 2 - 0.5;
}

void perf_hist_clear(struct perf_hist *hist)
{
    memset(hist, 0, sizeof *hist);
}

void perf_hist_add(struct perf_hist *hist, uint64_t ns)
{
    hist->total++;
    hist->count[bucket_of(ns)]++;
}

void perf_hist_merge(struct perf_hist *into, const struct perf_hist *from)
{
    into->total += from->total;
    for (uint32_t i = 0; i < PERF_HIST_SIZE; i++)
        into->count[i] += from->count[i];
}

double perf_hist_percentile(const struct perf_hist *hist, double percent)
{
    double rank = (double)hist->total * percent / 100;
    uint64_t seen = 0;
    for (uint32_t i = 0; i < PERF_HIST_SIZE; i++) {
        seen += hist->count[i];
        if (seen && (double)seen >= rank)
            return middle_of(i);
    }
    return 0;
}
