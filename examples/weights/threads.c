/* SPDX-License-Identifier: Apache-2.0 */
/* How many threads do a kind of work, and how many of Weft's move bytes beside them. */
#include "weights.h"

#include <sched.h>
#include <string.h>

/* Mappers or writers, Weft's threads and those of the other side make four kinds, so that each may
 * have a quarter of the processors of a host that has both sides. */
#define KINDS 4

int threads_default(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set) / KINDS;
    if (n == 1)
        n = 2; /* of 4 to 7 processors: two help, and leave room for the other side */
    return n < 1 ? 1 : n > THREADS_MOST ? THREADS_MOST : n;
}

int threads_of_weft(int threads)
{
    /* Another one would run on every unmapping, and at every hand-over, only to lose the caches. */
    if (threads == 1)
        return WEFT_PROGRESS_CALLER;
    struct weft_config_item item;
    for (int i = 0; weft_config_get(i, &item) == 0; i++)
        if (!strcmp(item.name, "WEFT_LANES") && item.source == WEFT_FROM_DEFAULT)
            weft_config_set(item.name, "2"); /* two threads of Weft have bytes to move then */
    return threads;
}
