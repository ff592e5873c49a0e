/* SPDX-License-Identifier: Apache-2.0 */
/* Queue pairs: life, numbers, states. */
#include "fake.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS 4096
#define PSN_MASK 0xffffff

static struct fake_qp *by_number[BUCKETS];

struct fake_qp *fake__qp_find(const struct fake_device *device, uint32_t qpn)
{
    for (struct fake_qp *qp = by_number[qpn % BUCKETS]; qp; qp = qp->next_qp)
        if (qp->pub.qp_num == qpn && qp->object.context->device == device)
            return qp;
    return NULL;
}

static uint32_t new_number(struct fake_device *device)
{
    uint32_t qpn;
    do {
        qpn = device->next_qpn++;
        if (device->next_qpn > FAKE_QPN_LAST)
            device->next_qpn = FAKE_QPN_FIRST;
    } while (fake__qp_find(device, qpn));
    return qpn;
}

static void enlist(struct fake_qp *qp)
{
    struct fake_qp **at = &by_number[qp->pub.qp_num % BUCKETS];
    qp->next_qp = *at;
    *at = qp;
}

static void unlist(struct fake_qp *qp)
{
    struct fake_qp **at = &by_number[qp->pub.qp_num % BUCKETS];
    while (*at != qp)
        at = &(*at)->next_qp;
    *at = qp->next_qp;
}

void fake__qp_abandon(const struct fake_context *context)
{
    for (int i = 0; i < BUCKETS; i++) {
        for (struct fake_qp *qp = by_number[i], *next; qp; qp = next) {
            next = qp->next_qp;
            if (qp->object.context != context)
                continue;
            fake__unwait(qp);
            unlist(qp);
            fake__object_lost(&qp->object);
        }
    }
}

void fake__qp_each(const struct fake_device *device, void (*act)(struct fake_qp *qp))
{
    for (int i = 0; i < BUCKETS; i++)
        for (struct fake_qp *qp = by_number[i]; qp; qp = qp->next_qp)
            if (qp->object.context->device == device)
                act(qp);
}

/* --- states --------------------------------------------------------------------------------- */

static void flush_sends(struct fake_qp *qp)
{
    while (qp->next < qp->last)
        fake__complete_send(qp, IBV_WC_WR_FLUSH_ERR);
    qp->done = qp->last;
}

static void flush_recvs(struct fake_qp *qp)
{
    struct fake_recv *recv;
    while ((recv = fake__rq_first(&qp->rq))) {
        fake__complete_recv(qp, recv, NULL, IBV_WC_WR_FLUSH_ERR);
        fake__rq_pop(&qp->rq);
    }
}

void fake__qp_error(struct fake_qp *qp)
{
    bool first = qp->state != IBV_QPS_ERR;
    enum ibv_qp_state was = qp->state;
    qp->state = IBV_QPS_ERR;
    fake__unwait(qp);
    flush_sends(qp);
    flush_recvs(qp);
    if (first && was != IBV_QPS_RESET && qp->srq)
        fake__async(qp->object.context, IBV_EVENT_QP_LAST_WQE_REACHED, &qp->pub);
}

void fake__qp_clear(struct fake_qp *qp)
{
    fake__unwait(qp);
    fake__cq_purge(qp->send_cq, qp);
    fake__cq_purge(qp->recv_cq, qp);
    qp->freed = qp->next = qp->done = qp->last = 0;
    qp->rq.head = qp->rq.count = 0;
    qp->established = false;
    memset(&qp->attr, 0, sizeof qp->attr);
}

static void take_path(struct ibv_qp_attr *to, const struct ibv_qp_attr *from, int mask)
{
    if (mask & IBV_QP_ACCESS_FLAGS)
        to->qp_access_flags = from->qp_access_flags;
    if (mask & IBV_QP_PKEY_INDEX)
        to->pkey_index = from->pkey_index;
    if (mask & IBV_QP_PORT)
        to->port_num = from->port_num;
    if (mask & IBV_QP_AV)
        to->ah_attr = from->ah_attr;
    if (mask & IBV_QP_PATH_MTU)
        to->path_mtu = from->path_mtu;
    if (mask & IBV_QP_DEST_QPN)
        to->dest_qp_num = from->dest_qp_num;
}

static void take_limits(struct ibv_qp_attr *to, const struct ibv_qp_attr *from, int mask)
{
    if (mask & IBV_QP_TIMEOUT)
        to->timeout = from->timeout;
    if (mask & IBV_QP_RETRY_CNT)
        to->retry_cnt = from->retry_cnt;
    if (mask & IBV_QP_RNR_RETRY)
        to->rnr_retry = from->rnr_retry;
    if (mask & IBV_QP_MIN_RNR_TIMER)
        to->min_rnr_timer = from->min_rnr_timer;
    if (mask & IBV_QP_MAX_QP_RD_ATOMIC)
        to->max_rd_atomic = from->max_rd_atomic;
    if (mask & IBV_QP_MAX_DEST_RD_ATOMIC)
        to->max_dest_rd_atomic = from->max_dest_rd_atomic;
}

static void apply(struct fake_qp *qp, const struct ibv_qp_attr *attr, int mask)
{
    enum ibv_qp_state to = mask & IBV_QP_STATE ? attr->qp_state : qp->state;
    if (to == IBV_QPS_RESET)
        fake__qp_clear(qp);
    take_path(&qp->attr, attr, mask);
    take_limits(&qp->attr, attr, mask);
    if (mask & IBV_QP_RQ_PSN)
        qp->recv_psn = attr->rq_psn & PSN_MASK;
    if (mask & IBV_QP_SQ_PSN)
        qp->send_psn = attr->sq_psn & PSN_MASK;
    if (to == IBV_QPS_ERR)
        fake__qp_error(qp);
    qp->state = qp->pub.state = to;
}

int fake_verbs_qp(struct ibv_qp *pub, struct ibv_qp_attr *attr)
{
    fake__lock();
    const struct fake_qp *qp = FAKE_OF(fake_qp, object, FAKE_QP, pub, "fake_verbs_qp");
    if (qp)
        *attr = qp->attr;
    fake__unlock();
    return qp ? 0 : EINVAL;
}

int ibv_modify_qp(struct ibv_qp *pub, struct ibv_qp_attr *attr, int attr_mask)
{
    fake__lock();
    struct fake_qp *qp = FAKE_OF(fake_qp, object, FAKE_QP, pub, __func__);
    int err = qp ? fake__plan_call(__func__) : EINVAL;
    if (!err && qp->object.context->device->fatal)
        err = EIO;
    if (!err)
        err = fake__state_check(qp, attr, attr_mask);
    if (!err) {
        apply(qp, attr, attr_mask);
        fake__run_waiting(NULL); /* whoever wanted to reach it may do so now */
    }
    fake__unlock();
    return err;
}

/* --- life ----------------------------------------------------------------------------------- */

static int check_cap(struct ibv_qp_cap *cap, bool has_srq)
{
    if (cap->max_send_wr > fake__config.max_qp_wr || cap->max_recv_wr > fake__config.max_qp_wr)
        return EINVAL;
    if (cap->max_send_sge > fake__config.max_sge || cap->max_recv_sge > fake__config.max_sge)
        return EINVAL;
    if (cap->max_inline_data > fake__config.inlined) {
        if (!fake__config.inline_quiet)
            return EINVAL;
        cap->max_inline_data = (uint32_t)fake__config.inlined;
    }
    if (has_srq)
        cap->max_recv_wr = cap->max_recv_sge = 0;
    return 0;
}

static int check_init(const struct fake_pd *pd, const struct ibv_qp_init_attr *init)
{
    const struct fake_context *context = pd->object.context;
    if (context->device->fatal)
        return EIO;
    if (init->qp_type != IBV_QPT_RC)
        return EOPNOTSUPP;
    return (uint64_t)context->live[FAKE_QP] < fake__config.max_qp ? 0 : ENOMEM;
}

static void free_queues(struct fake_qp *qp)
{
    free(qp->sends);
    free(qp->sges);
    free(qp->inlines);
    fake__rq_close(&qp->rq);
    qp->sends = NULL;
}

static int make_queues(struct fake_qp *qp)
{
    size_t n = qp->cap.max_send_wr, nsge = qp->cap.max_send_sge, room = qp->cap.max_inline_data;
    qp->sends = calloc(n + 1, sizeof *qp->sends);
    qp->sges = calloc(n * nsge + 1, sizeof *qp->sges);
    qp->inlines = calloc(n * room + 1, 1);
    int err = fake__rq_open(&qp->rq, qp->cap.max_recv_wr, qp->cap.max_recv_sge);
    if (err || !qp->sends || !qp->sges || !qp->inlines) {
        free_queues(qp);
        return ENOMEM;
    }
    for (size_t i = 0; i < n; i++) {
        qp->sends[i].sge = qp->sges + i * nsge;
        qp->sends[i].inlined = qp->inlines + i * room;
    }
    return 0;
}

static void make(struct fake_qp *qp, const struct ibv_qp_init_attr *init)
{
    struct fake_context *context = qp->pd->object.context;
    qp->pub = (struct ibv_qp){
        .context = &context->pub.context,
        .qp_context = init->qp_context,
        .pd = &qp->pd->pub,
        .send_cq = init->send_cq,
        .recv_cq = init->recv_cq,
        .srq = init->srq,
        .qp_num = new_number(context->device),
        .state = IBV_QPS_RESET,
        .qp_type = init->qp_type,
    };
    qp->sig_all = init->sq_sig_all;
    qp->pd->users++;
    qp->send_cq->users++;
    qp->recv_cq->users++;
    if (qp->srq)
        qp->srq->users++;
    fake__object_make(&qp->object, FAKE_QP, context);
    enlist(qp);
}

static int create(struct fake_pd *pd, struct ibv_qp_init_attr *init, struct fake_qp **out)
{
    static const char call[] = "ibv_create_qp";
    int err = check_init(pd, init);
    if (!err)
        err = check_cap(&init->cap, init->srq);
    if (err)
        return err;
    struct fake_qp *qp = calloc(1, sizeof *qp);
    if (!qp)
        return ENOMEM;
    qp->pd = pd;
    qp->cap = init->cap;
    qp->send_cq = FAKE_OF(fake_cq, object, FAKE_CQ, init->send_cq, call);
    qp->recv_cq = FAKE_OF(fake_cq, object, FAKE_CQ, init->recv_cq, call);
    if (init->srq)
        qp->srq = FAKE_OF(fake_srq, object, FAKE_SRQ, init->srq, call);
    err = qp->send_cq && qp->recv_cq && !init->srq == !qp->srq ? make_queues(qp) : EINVAL;
    if (err) {
        free(qp);
        return err;
    }
    make(qp, init);
    *out = qp;
    return 0;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pub, struct ibv_qp_init_attr *init)
{
    struct fake_qp *qp = NULL;
    fake__lock();
    struct fake_pd *pd = FAKE_OF(fake_pd, object, FAKE_PD, pub, __func__);
    int err = pd ? fake__plan_call(__func__) : EINVAL;
    if (!err)
        err = create(pd, init, &qp);
    fake__unlock();
    if (err)
        errno = err;
    return err ? NULL : &qp->pub;
}

int ibv_destroy_qp(struct ibv_qp *pub)
{
    fake__lock();
    struct fake_qp *qp = FAKE_OF(fake_qp, object, FAKE_QP, pub, __func__);
    if (!qp) {
        fake__unlock();
        return EINVAL;
    }
    if (qp->reported != pub->events_completed)
        fake__fault("ibv_destroy_qp: an asynchronous event was not acknowledged");
    fake__events_forget(&qp->object.context->async, qp);
    fake__qp_clear(qp);
    unlist(qp);
    qp->pd->users--;
    qp->send_cq->users--;
    qp->recv_cq->users--;
    if (qp->srq)
        qp->srq->users--;
    free_queues(qp);
    fake__object_retire(&qp->object, qp);
    fake__unlock();
    return 0;
}
