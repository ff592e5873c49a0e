/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How weft_perf ends early: the first failure of any thread is printed, and every loop asks
 * perf_stopped(), so all threads end.
 */
#ifndef WEFT_TOOLS_PERF_FAIL_H
#define WEFT_TOOLS_PERF_FAIL_H

#include <stdbool.h>

/* How long a loop sleeps before it looks at perf_stopped() again. */
#define PERF_SLICE_MS 100

/* Let SIGINT and SIGTERM stop all loops; a second one kills. */
void perf_catch_signals(void);
/* True after a failure or a signal. */
bool perf_stopped(void);
/* Remember the first failure of any thread and print it. Returns -1. */
int perf_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* "interrupted" if that is why loops stop; else silent: the failure was printed. Returns -1. */
int perf_fail_stopped(void);
/* Text of the first failure, "" if there was none. */
const char *perf_failure(void);

#endif
