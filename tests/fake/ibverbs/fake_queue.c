/* SPDX-License-Identifier: Apache-2.0 */
/* Receive queues: a queue pair's own, and shared ones. */
#include "fake.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int fake__rq_open(struct fake_rq *rq, uint32_t size, uint32_t max_sge)
{
    *rq = (struct fake_rq){.size = size, .max_sge = max_sge};
    rq->ring = calloc(size + 1, sizeof *rq->ring);
    rq->sges = calloc((size_t)size * max_sge + 1, sizeof *rq->sges);
    if (!rq->ring || !rq->sges) {
        fake__rq_close(rq);
        return ENOMEM;
    }
    for (uint32_t i = 0; i < size; i++)
        rq->ring[i].sge = rq->sges + (size_t)i * max_sge;
    return 0;
}

void fake__rq_close(struct fake_rq *rq)
{
    free(rq->ring);
    free(rq->sges);
    rq->ring = NULL;
    rq->sges = NULL;
}

static int post_one(struct fake_rq *rq, const struct ibv_recv_wr *wr, const char *what)
{
    if (wr->num_sge < 0 || (uint32_t)wr->num_sge > rq->max_sge) {
        fake__fault("%s: %d pieces in a receive, %u is the limit", what, wr->num_sge, rq->max_sge);
        return EINVAL;
    }
    if (rq->count == rq->size) {
        fake__fault("%s: more than %u receives are posted", what, rq->size);
        return ENOMEM;
    }
    struct fake_recv *recv = &rq->ring[(rq->head + rq->count++) % rq->size];
    recv->wr_id = wr->wr_id;
    recv->nsge = wr->num_sge;
    if (wr->num_sge)
        memcpy(recv->sge, wr->sg_list, (size_t)wr->num_sge * sizeof *recv->sge);
    fake__stats.recvs++;
    return 0;
}

int fake__rq_post(struct fake_rq *rq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad,
                  const char *what)
{
    int err = fake__plan_call(what);
    fake__stats.recv_posts++;
    for (; wr && !err; wr = wr->next) {
        err = post_one(rq, wr, what);
        if (err)
            break;
    }
    if (err)
        *bad = wr;
    return err;
}

struct fake_recv *fake__rq_first(struct fake_rq *rq)
{
    return rq->count ? &rq->ring[rq->head] : NULL;
}

void fake__rq_pop(struct fake_rq *rq)
{
    rq->head = (rq->head + 1) % rq->size;
    rq->count--;
}

/* --- shared --------------------------------------------------------------------------------- */

static int check_srq(const struct fake_pd *pd, const struct ibv_srq_attr *attr)
{
    if (pd->object.context->device->fatal)
        return EIO;
    if (!fake__config.srq)
        return EOPNOTSUPP;
    if (attr->max_wr < 1 || attr->max_wr > fake__config.max_srq_wr)
        return EINVAL;
    return attr->max_sge <= fake__config.max_sge ? 0 : EINVAL;
}

static int make_srq(struct fake_pd *pd, const struct ibv_srq_init_attr *init,
                    struct fake_srq **out)
{
    struct fake_srq *srq = calloc(1, sizeof *srq);
    if (!srq)
        return ENOMEM;
    int err = fake__rq_open(&srq->rq, init->attr.max_wr, init->attr.max_sge);
    if (err) {
        free(srq);
        return err;
    }
    srq->pub.context = pd->pub.context;
    srq->pub.srq_context = init->srq_context;
    srq->pub.pd = &pd->pub;
    srq->pd = pd;
    pd->users++;
    fake__object_make(&srq->object, FAKE_SRQ, pd->object.context);
    *out = srq;
    return 0;
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pub, struct ibv_srq_init_attr *init)
{
    struct fake_srq *srq = NULL;
    fake__lock();
    struct fake_pd *pd = FAKE_OF(fake_pd, object, FAKE_PD, pub, __func__);
    int err = pd ? fake__plan_call(__func__) : EINVAL;
    if (!err)
        err = check_srq(pd, &init->attr);
    if (!err)
        err = make_srq(pd, init, &srq);
    fake__unlock();
    if (err)
        errno = err;
    return err ? NULL : &srq->pub;
}

int ibv_destroy_srq(struct ibv_srq *pub)
{
    fake__lock();
    struct fake_srq *srq = FAKE_OF(fake_srq, object, FAKE_SRQ, pub, __func__);
    int err = srq ? 0 : EINVAL;
    if (srq && srq->users) {
        fake__fault("ibv_destroy_srq: %d queue pairs use it", srq->users);
        err = EBUSY;
    }
    if (!err) {
        if (srq->reported != pub->events_completed)
            fake__fault("ibv_destroy_srq: an asynchronous event was not acknowledged");
        fake__events_forget(&srq->object.context->async, srq);
        fake__rq_close(&srq->rq);
        srq->pd->users--;
        fake__object_retire(&srq->object, srq);
    }
    fake__unlock();
    return err;
}

int fake__post_srq_recv(struct ibv_srq *pub, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    fake__lock();
    struct fake_srq *srq = FAKE_OF(fake_srq, object, FAKE_SRQ, pub, "ibv_post_srq_recv");
    int err = EINVAL;
    if (srq)
        err = fake__rq_post(&srq->rq, wr, bad, "ibv_post_srq_recv");
    else
        *bad = wr;
    fake__run_waiting(NULL);
    fake__unlock();
    return err;
}
