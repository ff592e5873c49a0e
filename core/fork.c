/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Locks that a child of fork finds open. Of the threads only the one that forks lives on in the child: what
 * another one held would stay locked there for ever. So who forks has them all (pthread_atfork), and what they
 * guard is whole. It waits for one while it has no other, so their order does not matter.
 */
#include "weft/transport.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

static pthread_mutex_t known_lock = PTHREAD_MUTEX_INITIALIZER; /* inside all others */
static struct weft_static_lock *known;
static _Atomic(bool) unwatched; /* no memory for it; not said yet */

/* Up to `end`, but `not_this`. */
static void give_up_to(const struct weft_static_lock *end, const struct weft_static_lock *not_this)
{
    for (struct weft_static_lock *lock = known; lock != end; lock = lock->next)
        if (!lock->foreign && lock != not_this)
            pthread_mutex_unlock(&lock->mutex);
}

/* All, one of which is held already. NULL, or the one that someone has: then none is taken. */
static struct weft_static_lock *try_all(const struct weft_static_lock *held)
{
    for (struct weft_static_lock *lock = known; lock; lock = lock->next) {
        if (!lock->foreign && lock != held && pthread_mutex_trylock(&lock->mutex)) {
            give_up_to(lock, held);
            return lock;
        }
    }
    return NULL;
}

static void before(void)
{
    struct weft_static_lock *held = NULL, *busy;
    pthread_mutex_lock(&known_lock);
    while ((busy = try_all(held))) {
        pthread_mutex_unlock(&known_lock);
        if (held)
            pthread_mutex_unlock(&held->mutex);
        held = busy;
        pthread_mutex_lock(&held->mutex);
        pthread_mutex_lock(&known_lock);
    }
}

static void in_parent(void)
{
    give_up_to(NULL, NULL);
    pthread_mutex_unlock(&known_lock);
}

static void in_child(void)
{
    for (struct weft_static_lock *lock = known; lock; lock = lock->next) {
        if (lock->in_child)
            lock->in_child();
        if (lock->foreign)
            pthread_mutex_init(&lock->mutex, NULL); /* whoever had it is not here */
    }
    in_parent();
}

static void watch_forks(void)
{
    atomic_store(&unwatched, pthread_atfork(before, in_parent, in_child) != 0);
}

static void introduce(struct weft_static_lock *lock)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&known_lock);
    if (!__atomic_load_n(&lock->is_known, __ATOMIC_RELAXED)) {
        lock->next = known;
        known = lock;
        /* release: pairs with the acquire in weft_static_lock */
        __atomic_store_n(&lock->is_known, 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&known_lock);
    if (atomic_exchange(&unwatched, false))
        weft_log(WEFT_LOG_WARN, "core", "a child of fork must not use Weft, and will not be kept from it: no memory");
}

void weft_static_lock(struct weft_static_lock *lock)
{
    if (!__atomic_load_n(&lock->is_known, __ATOMIC_ACQUIRE))
        introduce(lock);
    pthread_mutex_lock(&lock->mutex);
}

void weft_static_unlock(struct weft_static_lock *lock)
{
    pthread_mutex_unlock(&lock->mutex);
}
