/* SPDX-License-Identifier: Apache-2.0 */
/* Work requests are taken: checked, and copied to their queue. */
#include "fake.h"

#include <errno.h>
#include <string.h>

static bool is_atomic(enum ibv_wr_opcode opcode)
{
    return opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
}

static const char *check_inline(const struct fake_qp *qp, const struct ibv_send_wr *wr)
{
    uint64_t len = 0;
    if (!(wr->send_flags & IBV_SEND_INLINE))
        return NULL;
    if (wr->opcode == IBV_WR_RDMA_READ || is_atomic(wr->opcode))
        return "what fetches data cannot be inline";
    for (int i = 0; i < wr->num_sge; i++)
        len += wr->sg_list[i].length;
    return len > qp->cap.max_inline_data ? "more inline than the queue pair was granted" : NULL;
}

static const char *check(const struct fake_qp *qp, const struct ibv_send_wr *wr)
{
    if (qp->state != IBV_QPS_RTS && qp->state != IBV_QPS_SQD && qp->state != IBV_QPS_ERR)
        return "the queue pair is not ready to send";
    if (wr->num_sge < 0 || (uint32_t)wr->num_sge > qp->cap.max_send_sge)
        return "more pieces than the queue pair was granted";
    switch (wr->opcode) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
    case IBV_WR_RDMA_READ:
        break;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
    case IBV_WR_ATOMIC_CMP_AND_SWP:
        if (fake__config.atomics == IBV_ATOMIC_NONE)
            return "the device has no atomics";
        break;
    default:
        return "an operation that is not supported";
    }
    return check_inline(qp, wr);
}

static void count(const struct ibv_send_wr *wr, bool signaled)
{
    fake__stats.sends++;
    fake__stats.signaled += signaled;
    fake__stats.inlined += !!(wr->send_flags & IBV_SEND_INLINE);
    fake__stats.op[wr->opcode]++;
}

static void enqueue(struct fake_qp *qp, const struct ibv_send_wr *wr)
{
    struct fake_send *send = &qp->sends[qp->last++ % qp->cap.max_send_wr];
    send->wr = *wr;
    send->len = 0;
    send->tried = send->fails = false;
    if (qp->sig_all)
        send->wr.send_flags |= IBV_SEND_SIGNALED;
    for (int i = 0; i < wr->num_sge; i++) {
        const struct ibv_sge *sge = &wr->sg_list[i];
        send->sge[i] = *sge;
        if (wr->send_flags & IBV_SEND_INLINE)
            memcpy(send->inlined + send->len, (const void *)(uintptr_t)sge->addr, sge->length);
        send->len += sge->length;
    }
    count(wr, send->wr.send_flags & IBV_SEND_SIGNALED);
}

static int post_one(struct fake_qp *qp, const struct ibv_send_wr *wr)
{
    const char *wrong = check(qp, wr);
    if (wrong) {
        fake__fault("ibv_post_send: %s", wrong);
        return EINVAL;
    }
    if (qp->last - qp->freed == qp->cap.max_send_wr) {
        fake__fault("ibv_post_send: more than %u requests are in the queue", qp->cap.max_send_wr);
        return ENOMEM;
    }
    enqueue(qp, wr);
    return 0;
}

static int length(const struct ibv_send_wr *wr)
{
    int n = 0;
    for (; wr; wr = wr->next)
        n++;
    return n;
}

static int post(struct fake_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    int planned = 0, err = 0;
    int fail_at = fake__plan_post(length(wr), &planned);
    fake__stats.posts++;
    for (int k = 1; wr && !err; k++) {
        err = k == fail_at ? planned : post_one(qp, wr);
        if (err)
            *bad = wr;
        wr = wr->next;
    }
    if (qp->state == IBV_QPS_ERR)
        fake__qp_error(qp);
    else
        fake__run(qp);
    return err;
}

int fake__post_send(struct ibv_qp *pub, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
    fake__lock();
    struct fake_qp *qp = FAKE_OF(fake_qp, object, FAKE_QP, pub, "ibv_post_send");
    int err = qp ? post(qp, wr, bad) : EINVAL;
    if (!qp)
        *bad = wr;
    fake__unlock();
    return err;
}

static int post_recv(struct fake_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    if (qp->srq || qp->state == IBV_QPS_RESET) {
        fake__fault("ibv_post_recv: the queue pair %s",
                    qp->srq ? "has a shared receive queue" : "is in the state RESET");
        *bad = wr;
        return EINVAL;
    }
    int err = fake__rq_post(&qp->rq, wr, bad, "ibv_post_recv");
    if (qp->state == IBV_QPS_ERR)
        fake__qp_error(qp);
    return err;
}

int fake__post_recv(struct ibv_qp *pub, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
    fake__lock();
    struct fake_qp *qp = FAKE_OF(fake_qp, object, FAKE_QP, pub, "ibv_post_recv");
    int err = qp ? post_recv(qp, wr, bad) : EINVAL;
    if (!qp)
        *bad = wr;
    fake__run_waiting(NULL);
    fake__unlock();
    return err;
}
