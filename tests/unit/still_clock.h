/* SPDX-License-Identifier: Apache-2.0 */
/* A clock that stands still, for programs that are linked with --wrap=clock_gettime. */
#ifndef WEFT_TESTS_UNIT_STILL_CLOCK_H
#define WEFT_TESTS_UNIT_STILL_CLOCK_H

#include <stdint.h>

/* What all clocks say, in nanoseconds; 0: the time. */
extern uint64_t stopped;
/* The time all the same, in nanoseconds: for deadlines. */
uint64_t real_now(void);

#endif
