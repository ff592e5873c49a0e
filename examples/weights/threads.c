/* SPDX-License-Identifier: Apache-2.0 */
/* How many threads do a kind of work, and how many of Weft's move bytes beside them. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* CPU_COUNT */
#endif
#include "weights.h"

#include <sched.h>

/* Both sides may be on one host, where each kind of thread finds half of the processors; with two
 * processors two of each are still faster than one. */
int threads_default(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
    if (n > 4)
        return n / 2 < THREADS_MOST ? n / 2 : THREADS_MOST;
    return n > 1 ? 2 : 1;
}

int threads_of_weft(int threads)
{
    /* Another one would run on every unmapping, and at every hand-over, only to lose the caches. */
    return threads == 1 ? WEFT_PROGRESS_CALLER : threads;
}
