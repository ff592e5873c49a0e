/* SPDX-License-Identifier: Apache-2.0 */
/* Completion channels and completion queues. */
#include "fake.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* --- channels ------------------------------------------------------------------------------- */

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *pub)
{
    struct fake_channel *channel = NULL;
    fake__lock();
    struct fake_context *context = fake__context(pub);
    int err = context ? fake__plan_call(__func__) : EINVAL;
    if (!err && !(channel = calloc(1, sizeof *channel)))
        err = ENOMEM;
    if (!err)
        err = fake__events_open(&channel->events);
    if (!err) {
        channel->pub.context = pub;
        channel->pub.fd = channel->events.fd;
        fake__object_make(&channel->object, FAKE_CHANNEL, context);
    }
    fake__unlock();
    if (err) {
        free(channel);
        errno = err;
    }
    return err ? NULL : &channel->pub;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *pub)
{
    fake__lock();
    struct fake_channel *channel = FAKE_OF(fake_channel, object, FAKE_CHANNEL, pub, __func__);
    int err = channel ? 0 : EINVAL;
    if (channel && pub->refcnt) {
        fake__fault("ibv_destroy_comp_channel: %d completion queues use it", pub->refcnt);
        err = EBUSY;
    }
    if (!err) {
        fake__events_close(&channel->events);
        fake__object_retire(&channel->object, channel);
    }
    fake__unlock();
    return err;
}

int ibv_get_cq_event(struct ibv_comp_channel *pub, struct ibv_cq **cq, void **cq_context)
{
    struct fake_event event;
    fake__lock();
    struct fake_channel *channel = FAKE_OF(fake_channel, object, FAKE_CHANNEL, pub, __func__);
    int err = channel ? fake__plan_call(__func__) : EINVAL;
    fake__unlock();
    if (err) {
        errno = err;
        return -1;
    }
    int rc = fake__events_wait(&channel->events, &event);
    if (!rc) {
        event.cq->reported++;
        *cq = &event.cq->pub;
        *cq_context = event.cq->pub.cq_context;
    }
    fake__unlock();
    return rc;
}

void ibv_ack_cq_events(struct ibv_cq *pub, unsigned int nevents)
{
    fake__lock();
    struct fake_cq *cq = FAKE_OF(fake_cq, object, FAKE_CQ, pub, __func__);
    if (cq)
        cq->pub.comp_events_completed += nevents;
    if (cq && cq->pub.comp_events_completed > cq->reported)
        fake__fault("ibv_ack_cq_events: more events than were handed out");
    fake__unlock();
}

/* --- queues --------------------------------------------------------------------------------- */

static int check_cq(const struct fake_context *context, int cqe, int comp_vector)
{
    if (context->device->fatal)
        return EIO;
    if (cqe < 1 || (uint64_t)cqe > fake__config.max_cqe)
        return EINVAL;
    return comp_vector >= 0 && comp_vector < context->pub.context.num_comp_vectors ? 0 : EINVAL;
}

static struct fake_cq *make_cq(struct fake_context *context, struct fake_channel *channel, int cqe,
                               void *cq_context)
{
    struct fake_cq *cq = calloc(1, sizeof *cq);
    if (!cq)
        return NULL;
    cq->ring = calloc((size_t)cqe, sizeof *cq->ring);
    if (!cq->ring) {
        free(cq);
        return NULL;
    }
    cq->pub.context = &context->pub.context;
    cq->pub.cq_context = cq_context;
    cq->pub.cqe = cqe;
    cq->channel = channel;
    if (channel) {
        cq->pub.channel = &channel->pub;
        channel->pub.refcnt++;
    }
    fake__object_make(&cq->object, FAKE_CQ, context);
    return cq;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *pub, int cqe, void *cq_context,
                             struct ibv_comp_channel *pub_channel, int comp_vector)
{
    struct fake_channel *channel = NULL;
    struct fake_cq *cq = NULL;
    fake__lock();
    struct fake_context *context = fake__context(pub);
    int err = context ? fake__plan_call(__func__) : EINVAL;
    if (!err && pub_channel) {
        channel = FAKE_OF(fake_channel, object, FAKE_CHANNEL, pub_channel, __func__);
        err = channel ? 0 : EINVAL;
    }
    if (!err)
        err = check_cq(context, cqe, comp_vector);
    if (!err && !(cq = make_cq(context, channel, cqe, cq_context)))
        err = ENOMEM;
    fake__unlock();
    if (err)
        errno = err;
    return err ? NULL : &cq->pub;
}

/* The real call waits until all events are acknowledged; this one says what would hang. */
static void check_acks(const struct fake_cq *cq)
{
    if (cq->reported != cq->pub.comp_events_completed)
        fake__fault("ibv_destroy_cq: %u events were not acknowledged: it would wait for ever",
                    cq->reported - cq->pub.comp_events_completed);
    if (cq->async_reported != cq->pub.async_events_completed)
        fake__fault("ibv_destroy_cq: an asynchronous event was not acknowledged");
}

int ibv_destroy_cq(struct ibv_cq *pub)
{
    fake__lock();
    struct fake_cq *cq = FAKE_OF(fake_cq, object, FAKE_CQ, pub, __func__);
    int err = cq ? 0 : EINVAL;
    if (cq && cq->users) {
        fake__fault("ibv_destroy_cq: %d queues of queue pairs use it", cq->users);
        err = EBUSY;
    }
    if (!err) {
        check_acks(cq);
        if (cq->channel) {
            fake__events_forget(&cq->channel->events, cq);
            cq->channel->pub.refcnt--;
        }
        fake__events_forget(&cq->object.context->async, cq);
        free(cq->ring);
        fake__object_retire(&cq->object, cq);
    }
    fake__unlock();
    return err;
}

static struct fake_wc *slot(struct fake_cq *cq, size_t i)
{
    return &cq->ring[(cq->head + i) % (size_t)cq->pub.cqe];
}

static void notify(struct fake_cq *cq)
{
    struct fake_event event = {.cq = cq};
    cq->armed = FAKE_UNARMED;
    fake__stats.events++;
    if (cq->channel)
        fake__events_push(&cq->channel->events, &event);
}

void fake__cq_push(struct fake_cq *cq, const struct fake_wc *wc, bool solicited)
{
    if (cq->count == (size_t)cq->pub.cqe) {
        fake__fault("a completion queue of %d entries overran", cq->pub.cqe);
        if (!cq->overrun)
            fake__async(cq->object.context, IBV_EVENT_CQ_ERR, cq);
        cq->overrun = true;
        return;
    }
    *slot(cq, cq->count++) = *wc;
    if (cq->armed == FAKE_ARMED ||
        (cq->armed == FAKE_ARMED_SOLICITED && (solicited || wc->wc.status != IBV_WC_SUCCESS)))
        notify(cq);
}

void fake__cq_purge(struct fake_cq *cq, struct fake_qp *qp)
{
    size_t kept = 0;
    for (size_t i = 0; i < cq->count; i++) {
        struct fake_wc wc = *slot(cq, i);
        if (wc.qp == qp && !fake__config.stale)
            continue;
        if (wc.qp == qp)
            wc.qp = NULL; /* stays, but frees nothing any more */
        *slot(cq, kept++) = wc;
    }
    cq->count = kept;
}

static void take(struct fake_cq *cq, struct ibv_wc *wc)
{
    struct fake_wc *first = slot(cq, 0);
    *wc = first->wc;
    if (first->qp && first->of_send && first->qp->freed < first->freed)
        first->qp->freed = first->freed;
    cq->head = (cq->head + 1) % (size_t)cq->pub.cqe;
    cq->count--;
}

int fake__poll_cq(struct ibv_cq *pub, int n, struct ibv_wc *wc)
{
    int got = 0;
    fake__lock();
    struct fake_cq *cq = FAKE_OF(fake_cq, object, FAKE_CQ, pub, "ibv_poll_cq");
    if (cq) {
        fake__stats.polls++;
        if (fake__waiting)
            fake__run_waiting(cq);
        while (got < n && cq->count > 0)
            take(cq, &wc[got++]);
        fake__stats.completions += (uint64_t)got;
    }
    fake__unlock();
    return cq ? got : -1;
}

/* As the specification has it: only what is added after this call raises an event. */
int fake__req_notify_cq(struct ibv_cq *pub, int solicited_only)
{
    fake__lock();
    struct fake_cq *cq = FAKE_OF(fake_cq, object, FAKE_CQ, pub, "ibv_req_notify_cq");
    if (cq) {
        fake__stats.arms++;
        if (!cq->channel)
            fake__fault("ibv_req_notify_cq: the completion queue has no channel");
        if (!solicited_only)
            cq->armed = FAKE_ARMED;
        else if (cq->armed == FAKE_UNARMED)
            cq->armed = FAKE_ARMED_SOLICITED;
    }
    fake__unlock();
    return cq ? 0 : EINVAL;
}
