/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who makes progress, and how idle threads sleep.
 *
 * A thread that waits also drives: it polls every lane for WEFT_SPIN microseconds without result
 * before it sleeps, and not at all while what is under way is long, unless that is memory of GPUs: its pieces are steps that
 * wait for each other on both sides, and a sleep is longer than a step. Without progress threads, one of
 * the waiting callers (the leader) then sleeps on the nics' descriptors and each of the others on a
 * condition of its own, which the leader signals when it wakes. With progress threads, callers sleep on
 * their conditions and the threads on the descriptors; while a caller drives, the first thread stays
 * out of its way, but callers leave what is long to the threads. With several, each thread has its own lanes, and callers drive those of the first.
 */
#include "progress.h"
#include "boot.h"
#include "counts.h"
#include "endpoint.h"
#include "lane.h"
#include "match.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define BOOT_EVERY 64        /* busy calls of progress per look at the listener */
#define BOOT_IDLE_NS 200000u /* idle time between looks: they are a system call each */
#define BLIND_NS 1000000u    /* sleep when a nic has no descriptor */
#define LONGEST_SLEEP_NS 1000000000u
#define ASIDE_NS 50000u /* how long the thread steps aside for a caller that drives */

uint64_t weft__deadline(int timeout_ms)
{
    if (timeout_ms == WEFT_FOREVER)
        return UINT64_MAX;
    return weft_now() + (timeout_ms > 0 ? (uint64_t)timeout_ms * 1000000u : 0);
}

static void wake(int fd)
{
    uint64_t one = 1;
    if (write(fd, &one, sizeof one) < 0) {
        /* EAGAIN: the counter is full, so the descriptor is readable already */
    }
}

void weft__wake(struct weft__endpoint *ep)
{
    wake(ep->wake_fd);
    for (int i = 1; i < ep->nthreads; i++)
        wake(ep->thread_wakes[i]);
}

void weft__wake_lane(struct weft__endpoint *ep, int lane)
{
    int thread = ep->nthreads > 1 ? lane % ep->nthreads : 0;
    wake(thread ? ep->thread_wakes[thread] : ep->wake_fd);
}

/* To wake a thread costs more than a small operation. */
static bool concerns(const struct weft__waiter *w)
{
    return !w->op || w->ready(w->arg);
}

static WEFT__APART void tell_waiters(struct weft__endpoint *ep)
{
    for (struct weft__waiter *w = ep->waiters; w; w = w->next)
        if (concerns(w))
            pthread_cond_signal(&w->wake);
    if (ep->leader && concerns(ep->leader))
        weft__wake(ep);
}

void weft__changed(struct weft__endpoint *ep)
{
    /* one writer at a time: no need to pay for more */
    uint64_t changes = atomic_load_explicit(&ep->changes, memory_order_relaxed);
    atomic_store_explicit(&ep->changes, changes + 1, memory_order_relaxed);
    if (WEFT_UNLIKELY(ep->waiters || ep->leader))
        tell_waiters(ep);
}

static int drive_boot(struct weft__endpoint *ep)
{
    int n = weft__boot_progress(ep);
    weft__kick_all(ep); /* a conn may have come up by a mere step, without an event */
    return n;
}

static bool boot_due(struct weft__endpoint *ep, int happened)
{
    if (atomic_load_explicit(&ep->booting, memory_order_relaxed))
        return true;
    if (WEFT_LIKELY(happened)) { /* a beat that two threads count as one is no loss */
        uint32_t beat = atomic_load_explicit(&ep->beat, memory_order_relaxed);
        atomic_store_explicit(&ep->beat, beat + 1, memory_order_relaxed);
        return beat % BOOT_EVERY == 0;
    }
    uint64_t now = weft_now();
    if (now - atomic_load_explicit(&ep->boot_looked, memory_order_relaxed) < BOOT_IDLE_NS)
        return false;
    atomic_store_explicit(&ep->boot_looked, now, memory_order_relaxed);
    return true;
}

int weft__hear(struct weft__endpoint *ep)
{
    pthread_mutex_lock(&ep->lock);
    int n = weft__counts_hear_all(ep);
    pthread_mutex_unlock(&ep->lock);
    weft__kick_all(ep); /* messages may have waited for what the peer has taken */
    return n;
}

/* Lanes first..nlanes in steps, and the listener if it is due. */
static inline WEFT__INLINE int drive(struct weft__endpoint *ep, int first, int step)
{
    int other = atomic_load_explicit(&ep->hears, memory_order_relaxed) ? weft__hear(ep) : 0, n = 0;
    for (int i = first; i < ep->nlanes; i += step)
        n += weft__lane_progress(ep->lanes[i]); /* counts its events itself */
    other += weft__copier_progress(ep, &ep->copier); /* whoever has the time: the first may be sending */
    if (first == 0 && WEFT_UNLIKELY(boot_due(ep, n + other)))
        other += drive_boot(ep);
    if (other)
        atomic_fetch_add_explicit(&ep->events, 1, memory_order_relaxed);
    return n + other;
}

void weft__tell(struct weft__endpoint *ep)
{
    if (!atomic_load_explicit(&ep->tells, memory_order_relaxed))
        return;
    pthread_mutex_lock(&ep->lock);
    weft__counts_tell_all(ep);
    pthread_mutex_unlock(&ep->lock);
    weft__kick_all(ep);
}

static void rearm(struct weft__endpoint *ep)
{
    for (int i = 0; i < ep->nlanes; i++)
        weft__lane_rearm(ep->lanes[i]);
}

/* The lanes that callers drive: all, or with several threads those of the first. */
static int callers_step(const struct weft__endpoint *ep)
{
    return ep->nthreads > 1 ? ep->nthreads : 1;
}

/* What is under way by these lanes is long. */
static bool bulk(const struct weft__endpoint *ep, int first, int step)
{
    for (int i = first; i < ep->nlanes; i += step)
        if (atomic_load_explicit(&ep->lanes[i]->bulk, memory_order_relaxed))
            return true;
    return false;
}

/* Whether a thread that finds nothing to do had better sleep at once: it would take the processor
 * from the peer, or from the thread that copies. */
static bool sleeps_at_once(struct weft__endpoint *ep, int first, int step)
{
    return bulk(ep, first, step) && !weft__copier_lasts(&ep->copier);
}

/* Callers leave the lanes of the first thread to it. */
static bool is_left(struct weft__endpoint *ep)
{
    return ep->nthreads && (bulk(ep, 0, ep->nthreads) || weft__copier_lasts(&ep->copier));
}

/* Nothing happened, so there is time: for what the peer is to be told, and for who plays a nic. */
static void in_vain(struct weft__endpoint *ep)
{
    weft__tell(ep);
    if (ep->offers)
        sched_yield();
}

static inline WEFT__INLINE int drive_as_caller(struct weft__endpoint *ep)
{
    if (ep->nthreads > 1)
        weft__kick_all(ep); /* what was posted with the promise of more, which did not come */
    /* not exact between two callers, and need not be: see step_aside */
    uint64_t driven = atomic_load_explicit(&ep->driven, memory_order_relaxed);
    atomic_store_explicit(&ep->driven, driven + 1, memory_order_relaxed);
    int n = drive(ep, 0, callers_step(ep));
    if (n == 0)
        in_vain(ep);
    return n;
}

int weft__progress(struct weft__endpoint *ep)
{
    int n = drive_as_caller(ep);
    rearm(ep);
    return n;
}

static void disarm(struct weft__endpoint *ep, int first, int step, int upto)
{
    if (first == 0)
        weft__copier_disarm(&ep->copier);
    for (int i = first; i < upto; i += step)
        weft__lane_disarm(ep->lanes[i]);
}

/* Of a thread, by its first lane; the leader's is that of thread 0. */
static int wake_fd_of(const struct weft__endpoint *ep, int first)
{
    return first ? ep->thread_wakes[first] : ep->wake_fd;
}

static void drain_wake(int fd)
{
    uint64_t count;
    if (read(fd, &count, sizeof count) < 0) {
        /* EAGAIN: someone else took it */
    }
}

/* Sleep on the descriptors of some lanes, the listener's and the wake-up's. `deadline` bounds it. True: a nic
 * has none, and nothing else ended the sleep; one look is enough then, before the next. */
static bool sleep_on(struct weft__endpoint *ep, int first, int step, uint64_t deadline)
{
    struct pollfd fds[WEFT__MAX_LANES + 2];
    nfds_t n = 0;
    uint64_t limit = LONGEST_SLEEP_NS;
    bool blind = false;
    int i;
    if (first == 0 && !weft__copier_arm(&ep->copier)) {
        sched_yield(); /* copies run: nothing but asking tells of their end */
        return false;
    }
    for (i = first; i < ep->nlanes; i += step) {
        int fd = weft__lane_arm(ep->lanes[i]);
        if (fd == WEFT_EAGAIN) {
            disarm(ep, first, step, i);
            sched_yield(); /* what this nic waits for may be a turn of this processor */
            return false;
        }
        blind |= fd < 0;
        if (fd >= 0)
            fds[n++] = (struct pollfd){.fd = fd, .events = POLLIN};
    }
    if (blind)
        limit = BLIND_NS;
    struct pollfd *woken = &fds[n];
    fds[n++] = (struct pollfd){.fd = wake_fd_of(ep, first), .events = POLLIN};
    if (first == 0)
        fds[n++] = (struct pollfd){.fd = ep->boot_epoll, .events = POLLIN};
    uint64_t now = weft_now(), boot = weft__boot_deadline(ep);
    if (boot < deadline)
        deadline = boot;
    if (deadline < now + limit)
        limit = deadline > now ? deadline - now : 0;
    struct timespec ts = {.tv_sec = (time_t)(limit / 1000000000u),
                          .tv_nsec = (long)(limit % 1000000000u)};
    bool napped = ppoll(fds, n, &ts, NULL) == 0 && blind;
    disarm(ep, first, step, i);
    if (woken->revents)
        drain_wake(woken->fd);
    if (first == 0 && fds[n - 1].revents)
        drive_boot(ep);
    return napped;
}

static void cond_sleep(struct weft__endpoint *ep, struct weft__waiter *w, uint64_t deadline)
{
    uint64_t now = weft_now(), latest = now + LONGEST_SLEEP_NS;
    if (deadline < latest)
        latest = deadline;
    struct timespec ts = {.tv_sec = (time_t)(latest / 1000000000u),
                          .tv_nsec = (long)(latest % 1000000000u)};
    pthread_cond_init(&w->wake, &ep->monotonic);
    w->prev = NULL;
    w->next = ep->waiters;
    if (w->next)
        w->next->prev = w;
    ep->waiters = w;
    pthread_cond_timedwait(&w->wake, &ep->lock, &ts);
    if (w->prev)
        w->prev->next = w->next;
    else
        ep->waiters = w->next;
    if (w->next)
        w->next->prev = w->prev;
    pthread_cond_destroy(&w->wake);
}

/* Sleep until something happens. Returns whether ready. */
static bool sleep_until(struct weft__endpoint *ep, struct weft__waiter *w, uint64_t deadline)
{
    pthread_mutex_lock(&ep->lock);
    bool heard = weft__counts_hear_all(ep); /* of what another caller took, and was gone */
    bool done = w->ready(w->arg);
    if (done || heard || weft_now() >= deadline) {
        pthread_mutex_unlock(&ep->lock);
        if (heard)
            weft__kick_all(ep);
        return done;
    }
    if (ep->nthreads || ep->leader) {
        cond_sleep(ep, w, deadline);
    } else {
        ep->leader = w;
        pthread_mutex_unlock(&ep->lock);
        w->napped = sleep_on(ep, 0, 1, deadline);
        pthread_mutex_lock(&ep->lock);
        ep->leader = NULL;
        /* one of them may have to lead now */
        for (struct weft__waiter *other = ep->waiters; other; other = other->next)
            pthread_cond_signal(&other->wake);
    }
    done = w->ready(w->arg);
    pthread_mutex_unlock(&ep->lock);
    return done;
}

static bool check(struct weft__endpoint *ep, const struct weft__waiter *w)
{
    pthread_mutex_lock(&ep->lock);
    bool done = w->ready(w->arg);
    pthread_mutex_unlock(&ep->lock);
    return done;
}

static bool poll_until(struct weft__endpoint *ep, struct weft__waiter *w, uint64_t deadline)
{
    if (check(ep, w))
        return true;
    weft__kick_all(ep); /* the promise of more is over */
    uint64_t idle_since = 0;
    for (;;) {
        bool leave_it = is_left(ep);
        if (!leave_it && drive_as_caller(ep)) {
            if (check(ep, w))
                return true;
            idle_since = 0;
            if (deadline != UINT64_MAX && weft_now() >= deadline)
                return false;
            continue;
        }
        uint64_t now = weft_now();
        if (!idle_since)
            idle_since = now;
        if (now >= deadline)
            return check(ep, w);
        if (now - idle_since < ep->spin_ns && !leave_it &&
            !sleeps_at_once(ep, 0, callers_step(ep))) {
            weft_relax();
            if (ep->nthreads && check(ep, w))
                return true;
            continue;
        }
        rearm(ep);
        w->napped = false;
        if (sleep_until(ep, w, deadline))
            return true;
        idle_since = w->napped;
        if (deadline != UINT64_MAX && weft_now() >= deadline)
            return check(ep, w);
    }
}

bool weft__wait_op(struct weft__endpoint *ep, const struct weft__op *op, weft__ready_fn *ready,
                   void *arg, uint64_t deadline)
{
    struct weft__waiter w = {.op = op, .ready = ready, .arg = arg};
    bool done = poll_until(ep, &w, deadline);
    rearm(ep);
    return done;
}

bool weft__wait(struct weft__endpoint *ep, weft__ready_fn *ready, void *arg, uint64_t deadline)
{
    return weft__wait_op(ep, NULL, ready, arg, deadline);
}

/* --- progress threads ----------------------------------------------------------------------- */

struct thread_arg {
    struct weft__endpoint *ep;
    int index;
};

/* A caller has driven the lanes since we last looked: two would only fight for them. */
static bool step_aside(struct weft__endpoint *ep, uint64_t *seen)
{
    uint64_t driven = atomic_load_explicit(&ep->driven, memory_order_relaxed);
    if (driven == *seen)
        return false;
    *seen = driven;
    nanosleep(&(struct timespec){.tv_nsec = ASIDE_NS}, NULL);
    return true;
}

static void *thread_main(void *arg)
{
    struct weft__endpoint *ep = ((struct thread_arg *)arg)->ep;
    int first = ((struct thread_arg *)arg)->index, step = ep->nthreads;
    free(arg);
    uint64_t idle_since = 0, seen = 0;
    while (!atomic_load(&ep->stop)) {
        if (first == 0 && !is_left(ep) && step_aside(ep, &seen))
            continue;
        if (drive(ep, first, step)) {
            idle_since = 0;
            continue;
        }
        in_vain(ep);
        uint64_t now = weft_now();
        if (!idle_since)
            idle_since = now;
        if (now - idle_since < ep->spin_ns && !sleeps_at_once(ep, first, step)) {
            weft_relax();
            continue;
        }
        bool napped = sleep_on(ep, first, step, UINT64_MAX);
        /* what woke this thread is its own to look at, whoever drove while it slept */
        seen = atomic_load_explicit(&ep->driven, memory_order_relaxed);
        idle_since = napped; /* 1: long ago */
    }
    return NULL;
}

/* One for each: of two that sleep on one descriptor, the first to wake would take it all. */
static int open_wakes(struct weft__endpoint *ep, int n)
{
    for (int i = 1; i < n; i++) {
        ep->thread_wakes[i] = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        if (ep->thread_wakes[i] < 0)
            return weft_fail(-errno, "cannot make an eventfd: %m");
        ep->nwakes = i;
    }
    return 0;
}

/* Signals of the process are for the application's threads: it may have blocked them there to wait
 * for them. Left are those that a thread brings upon itself. */
static int start_thread(pthread_t *thread, struct thread_arg *arg)
{
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT, SIGPROF};
    sigset_t all, before;
    sigfillset(&all);
    for (size_t i = 0; i < WEFT__ARRAY_LEN(own); i++)
        sigdelset(&all, own[i]);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(thread, NULL, thread_main, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

static void stop(struct weft__endpoint *ep, int n)
{
    atomic_store(&ep->stop, true);
    for (int i = 0; i < n; i++) {
        weft__wake(ep);
        pthread_join(ep->threads[i], NULL);
    }
}

int weft__threads_start(struct weft__endpoint *ep, int n)
{
    if (n > ep->nlanes)
        n = ep->nlanes > 0 ? ep->nlanes : 1;
    int opened = open_wakes(ep, n);
    if (opened)
        return opened;
    ep->nthreads = n; /* those that run look at it */
    for (int i = 0; i < n; i++) {
        struct thread_arg *arg = malloc(sizeof *arg);
        int rc = arg ? 0 : ENOMEM;
        if (arg) {
            *arg = (struct thread_arg){ep, i};
            rc = start_thread(&ep->threads[i], arg);
        }
        if (rc) {
            free(arg);
            stop(ep, i);
            ep->nthreads = 0;
            return weft_fail(-rc, "cannot start progress thread %d: %s", i, weft_strerror(-rc));
        }
    }
    return 0;
}

void weft__threads_stop(struct weft__endpoint *ep)
{
    stop(ep, ep->nthreads);
}
