/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads, locks, conditions, sleep and time, as the library calls them.
 *
 * A lock or condition is kept in the bytes of the object that stands for it. One that was never
 * initialised by a call is static: all simulated processes share it, though real ones would not,
 * so a process is not killed while it holds one.
 */
#include "wrap.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct lock {
    int32_t owner; /* fiber + 1; 0: free */
    int32_t made;  /* by a call */
};
_Static_assert(sizeof(struct lock) <= sizeof(pthread_mutex_t), "a lock fits");
struct cond {
    uint64_t turns; /* broadcasts */
};
_Static_assert(sizeof(struct cond) <= sizeof(pthread_cond_t), "a condition fits");
_Static_assert(sizeof(struct sim_fiber *) <= sizeof(pthread_t), "a fiber fits");

#define SPURIOUS_EVERY 200 /* POSIX lets a condition wake for nothing */

/* --- locks --------------------------------------------------------------------------------- */

int __wrap_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attr)
{
    (void)attr;
    *(struct lock *)mutex = (struct lock){.made = 1};
    return 0;
}

int __wrap_pthread_mutex_destroy(pthread_mutex_t *mutex)
{
    SIM_CHECK(!((struct lock *)mutex)->owner, "a lock is destroyed while it is held");
    return 0;
}

static bool lock_free(void *arg)
{
    return ((struct lock *)arg)->owner == 0;
}

static void take(struct lock *lock)
{
    lock->owner = sim_fiber_id(sim.current) + 1;
    if (!lock->made)
        sim_fiber_hold(1);
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    struct lock *lock = (struct lock *)mutex;
    if (!sim.current)
        return 0;
    sim_step();
    SIM_CHECK(lock->owner != sim_fiber_id(sim.current) + 1, "a lock is taken twice");
    while (lock->owner)
        sim_block("a lock", lock_free, lock, SIM_NEVER);
    take(lock);
    return 0;
}

int __wrap_pthread_mutex_trylock(pthread_mutex_t *mutex)
{
    struct lock *lock = (struct lock *)mutex;
    if (!sim.current)
        return 0;
    sim_step();
    if (lock->owner)
        return EBUSY;
    take(lock);
    return 0;
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    struct lock *lock = (struct lock *)mutex;
    if (!sim.current)
        return 0;
    SIM_CHECK(lock->owner == sim_fiber_id(sim.current) + 1, "a lock is let go of by another");
    lock->owner = 0;
    if (!lock->made)
        sim_fiber_hold(-1);
    sim_changed();
    sim_step();
    return 0;
}

/* --- conditions ---------------------------------------------------------------------------- */

int __wrap_pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attr)
{
    (void)attr;
    *(struct cond *)cond = (struct cond){0};
    return 0;
}

int __wrap_pthread_cond_destroy(pthread_cond_t *cond)
{
    (void)cond;
    return 0;
}

int __wrap_pthread_cond_broadcast(pthread_cond_t *cond)
{
    ((struct cond *)cond)->turns++;
    sim_changed();
    return 0;
}

int __wrap_pthread_cond_signal(pthread_cond_t *cond)
{
    return __wrap_pthread_cond_broadcast(cond); /* as a spurious wake-up of the others */
}

struct turn {
    const struct cond *cond;
    uint64_t seen;
};

static bool turned(void *arg)
{
    struct turn *turn = arg;
    return turn->cond->turns != turn->seen;
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex,
                                  const struct timespec *when)
{
    struct turn turn = {(struct cond *)cond, ((struct cond *)cond)->turns};
    uint64_t until = (uint64_t)when->tv_sec * SIM_S + (uint64_t)when->tv_nsec;
    __wrap_pthread_mutex_unlock(mutex);
    bool woken = sim_once_in(SPURIOUS_EVERY) || turned(&turn) ||
                 sim_block("a condition", turned, &turn, until);
    __wrap_pthread_mutex_lock(mutex);
    return woken ? 0 : ETIMEDOUT;
}

/* --- threads ------------------------------------------------------------------------------- */

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *),
                          void *arg)
{
    (void)attr;
    struct sim_fiber *fiber = sim_fiber_start(sim_self(), fn, arg);
    memcpy(thread, &fiber, sizeof fiber);
    sim_step();
    return 0;
}

static bool joined(void *arg)
{
    return sim_fiber_done(arg);
}

int __wrap_pthread_join(pthread_t thread, void **result)
{
    struct sim_fiber *fiber;
    memcpy(&fiber, &thread, sizeof fiber);
    if (result)
        *result = NULL;
    if (!sim_fiber_done(fiber))
        sim_block("join", joined, fiber, SIM_NEVER);
    return 0;
}

/* --- time ---------------------------------------------------------------------------------- */

int __wrap_clock_gettime(clockid_t clock, struct timespec *ts)
{
    (void)clock;
    sim_step();
    ts->tv_sec = (time_t)(sim.now / SIM_S);
    ts->tv_nsec = (long)(sim.now % SIM_S);
    return 0;
}

int __wrap_nanosleep(const struct timespec *want, struct timespec *left)
{
    (void)left;
    sim_block("sleep", NULL, NULL,
              sim.now + (uint64_t)want->tv_sec * SIM_S + (uint64_t)want->tv_nsec);
    return 0;
}

int __wrap_usleep(useconds_t us)
{
    sim_block("sleep", NULL, NULL, sim.now + (uint64_t)us * SIM_US);
    return 0;
}

int __wrap_sched_yield(void)
{
    sim.now += SIM_US;
    sim_yield();
    return 0;
}
