/* SPDX-License-Identifier: Apache-2.0 */
/* How weft_perf ends early. */
#include "perf_fail.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

#include "common.h"

static atomic_bool failed; /* set after text is complete; read with acquire in perf_failure */
static char text[512];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static volatile sig_atomic_t interrupted;

static void on_signal(int signal_number)
{
    interrupted = signal_number;
}

void perf_catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

bool perf_stopped(void)
{
    return interrupted || atomic_load_explicit(&failed, memory_order_relaxed);
}

int perf_fail(const char *fmt, ...)
{
    pthread_mutex_lock(&lock);
    if (!atomic_load_explicit(&failed, memory_order_relaxed)) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        message("%s", text);
        atomic_store_explicit(&failed, true, memory_order_release); /* pairs with perf_failure */
    }
    pthread_mutex_unlock(&lock);
    return -1;
}

int perf_fail_stopped(void)
{
    return interrupted ? perf_fail("interrupted") : -1;
}

const char *perf_failure(void)
{
    /* acquire: pairs with the store in perf_fail, text is complete */
    return atomic_load_explicit(&failed, memory_order_acquire) ? text : "";
}
