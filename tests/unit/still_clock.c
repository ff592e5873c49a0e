/* SPDX-License-Identifier: Apache-2.0 */
#include "still_clock.h"

#include <time.h>

uint64_t stopped;

int __real_clock_gettime(clockid_t id, struct timespec *at);
int __wrap_clock_gettime(clockid_t id, struct timespec *at);
int __wrap_clock_gettime(clockid_t id, struct timespec *at)
{
    if (!stopped)
        return __real_clock_gettime(id, at);
    *at = (struct timespec){(time_t)(stopped / 1000000000u), (long)(stopped % 1000000000u)};
    return 0;
}

uint64_t real_now(void)
{
    struct timespec at;
    __real_clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}
