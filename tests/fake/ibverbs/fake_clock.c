/* SPDX-License-Identifier: Apache-2.0 */
/* Time: a thread that lets send queues give up while their user sleeps. It lives as long as there
 * is an open device. */
#include "fake.h"

#include <errno.h>
#include <time.h>

#define NS_PER_S 1000000000ull

static pthread_cond_t changed;
static pthread_t thread;
static uint64_t generation; /* a thread ends when it is not of the current one */
static bool running;

uint64_t fake__now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

static void sleep_until(uint64_t deadline)
{
    struct timespec at = {(time_t)(deadline / NS_PER_S), (long)(deadline % NS_PER_S)};
    if (deadline == UINT64_MAX)
        pthread_cond_wait(&changed, &fake__mutex);
    else
        pthread_cond_timedwait(&changed, &fake__mutex, &at);
}

static void *run(void *arg)
{
    fake__lock();
    uint64_t mine = (uint64_t)(uintptr_t)arg;
    while (generation == mine) {
        uint64_t deadline = fake__next_deadline();
        if (deadline <= fake__now())
            fake__run_waiting(NULL);
        else
            sleep_until(deadline);
    }
    fake__unlock();
    return NULL;
}

int fake__clock_start(void)
{
    static bool made;
    if (!made) {
        pthread_condattr_t attr;
        pthread_condattr_init(&attr);
        pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
        pthread_cond_init(&changed, &attr);
        pthread_condattr_destroy(&attr);
        made = true;
    }
    if (running) /* who closed the last device has not stopped it yet, and will find this one */
        return 0;
    generation++;
    int rc = pthread_create(&thread, NULL, run, (void *)(uintptr_t)generation);
    running = rc == 0;
    return rc;
}

void fake__clock_stop(void)
{
    fake__lock();
    if (fake__contexts || !running) { /* someone was faster: has opened a device, or stopped it */
        fake__unlock();
        return;
    }
    running = false;
    generation++;
    pthread_t old = thread;
    pthread_cond_broadcast(&changed);
    fake__unlock();
    pthread_join(old, NULL);
}

void fake__clock_wake(void)
{
    pthread_cond_broadcast(&changed);
}
