/* SPDX-License-Identifier: Apache-2.0 */
/* Who drives the lanes of an endpoint, and who sleeps until something has happened. */
#ifndef WEFT_CORE_PROGRESS_H
#define WEFT_CORE_PROGRESS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct weft__endpoint;
struct weft__op;

typedef bool weft__ready_fn(void *arg);

/* What a caller waits for. */
struct weft__waiter {
    struct weft__waiter *prev, *next; /* endpoint->waiters */
    weft__ready_fn *ready;            /* called with the endpoint lock held */
    void *arg;
    const struct weft__op *op; /* not NULL: only its end is waited for, no need to wake for less */
    bool napped; /* the last sleep was one of a nic without a descriptor, and nobody ended it */
    pthread_cond_t wake;
};

/* Make progress until ready(arg), or until the deadline (weft_now() scale, UINT64_MAX: none).
 * Returns true if it became ready. op: as in the struct. */
bool weft__wait(struct weft__endpoint *ep, weft__ready_fn *ready, void *arg, uint64_t deadline);
bool weft__wait_op(struct weft__endpoint *ep, const struct weft__op *op, weft__ready_fn *ready,
                   void *arg, uint64_t deadline);
/* As a caller: drive everything once. Returns things that happened. */
int weft__progress(struct weft__endpoint *ep);
/* Something a waiter may wait for has happened. Endpoint lock held. */
void weft__changed(struct weft__endpoint *ep);
/* Send counts of taken messages that found nothing to ride on. No lock held. */
void weft__tell(struct weft__endpoint *ep);
/* Look at what peers said to have taken and nobody has looked at yet (weft__counts_heard). No lock held. Returns of how
 * many conns. */
int weft__hear(struct weft__endpoint *ep);
/* Wake whoever sleeps on descriptors. */
void weft__wake(struct weft__endpoint *ep);
/* The one who sleeps on the descriptor of this lane. */
void weft__wake_lane(struct weft__endpoint *ep, int lane);
int weft__threads_start(struct weft__endpoint *ep, int n);
void weft__threads_stop(struct weft__endpoint *ep);
uint64_t weft__deadline(int timeout_ms);
/* For a sentence: how long that was. Negative ones do not wait. */
static inline int weft__waited_ms(int timeout_ms)
{
    return timeout_ms > 0 ? timeout_ms : 0;
}

#endif
