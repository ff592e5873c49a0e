/* SPDX-License-Identifier: Apache-2.0 */
/* The clock and the random source. */
#include "util.h"

#include <errno.h>
#include <sys/random.h>
#include <time.h>

uint64_t weft_now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

int weft_random(void *buf, size_t len)
{
    for (size_t got = 0; got < len;) {
        ssize_t n = getrandom((char *)buf + got, len - got, 0);
        if (n < 0 && errno != EINTR)
            return weft_fail(-errno, "the system's random source failed: %m");
        got += n > 0 ? (size_t)n : 0;
    }
    return 0;
}
