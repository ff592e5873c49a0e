/* SPDX-License-Identifier: Apache-2.0 */
/* Send queues: their requests happen in order, wait, give up, and complete. */
#include "fake.h"

#include <string.h>

#define PSN_MASK 0xffffff
#define RETRY_UNIT_NS 4096 /* times 2 to the power of timeout: InfiniBand's local ACK timeout */
#define NS_PER_MS 1000000ull
#define FOREVER 7 /* of rnr_retry */
#define RNR_UNIT_NS 10000
/* What is undefined in a completion is filled with this: who looks at it shall notice. */
#define GARBAGE 0x5a5a5a5a

bool fake__holding, fake__holding_acks;
struct fake_qp *fake__waiting;
static struct fake_qp *last_waiting;
static uint64_t passes;

/* --- completions ----------------------------------------------------------------------------- */

static const enum ibv_wc_opcode wc_opcode[] = {
    [IBV_WR_RDMA_WRITE] = IBV_WC_RDMA_WRITE,
    [IBV_WR_RDMA_WRITE_WITH_IMM] = IBV_WC_RDMA_WRITE,
    [IBV_WR_SEND] = IBV_WC_SEND,
    [IBV_WR_SEND_WITH_IMM] = IBV_WC_SEND,
    [IBV_WR_RDMA_READ] = IBV_WC_RDMA_READ,
    [IBV_WR_ATOMIC_CMP_AND_SWP] = IBV_WC_COMP_SWAP,
    [IBV_WR_ATOMIC_FETCH_AND_ADD] = IBV_WC_FETCH_ADD,
};

static struct fake_wc blank(struct fake_qp *qp, uint64_t wr_id, enum ibv_wc_status status)
{
    struct fake_wc wc = {.qp = qp};
    memset(&wc.wc, GARBAGE & 0xff, sizeof wc.wc);
    wc.wc.wr_id = wr_id;
    wc.wc.status = status;
    wc.wc.qp_num = qp->pub.qp_num;
    wc.wc.vendor_err = status == IBV_WC_SUCCESS ? 0 : 0xfa00u + status;
    return wc;
}

struct fake_send *fake__send_first(struct fake_qp *qp)
{
    return qp->done < qp->last ? &qp->sends[qp->done % qp->cap.max_send_wr] : NULL;
}

void fake__complete_send(struct fake_qp *qp, enum ibv_wc_status status)
{
    const struct fake_send *send = &qp->sends[qp->next % qp->cap.max_send_wr];
    struct fake_wc wc = blank(qp, send->wr.wr_id, status);
    wc.of_send = true;
    wc.freed = ++qp->next;
    if (status == IBV_WC_SUCCESS) {
        wc.wc.opcode = wc_opcode[send->wr.opcode];
        wc.wc.byte_len = (uint32_t)send->len;
        wc.wc.wc_flags = 0;
    }
    if (status != IBV_WC_SUCCESS || (send->wr.send_flags & IBV_SEND_SIGNALED))
        fake__cq_push(qp->send_cq, &wc, false);
}

void fake__complete_recv(struct fake_qp *qp, const struct fake_recv *recv,
                         const struct fake_send *send, enum ibv_wc_status status)
{
    struct fake_wc wc = blank(qp, recv->wr_id, status);
    if (status == IBV_WC_SUCCESS) {
        bool write = send->wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
        wc.wc.opcode = write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
        wc.wc.byte_len = (uint32_t)send->len;
        wc.wc.wc_flags = 0;
        if (write || send->wr.opcode == IBV_WR_SEND_WITH_IMM) {
            wc.wc.wc_flags = IBV_WC_WITH_IMM;
            wc.wc.imm_data = send->wr.imm_data;
        }
    }
    fake__cq_push(qp->recv_cq, &wc, send && (send->wr.send_flags & IBV_SEND_SOLICITED));
}

/* --- waiting --------------------------------------------------------------------------------- */

void fake__unwait(struct fake_qp *qp)
{
    qp->wait = FAKE_READY;
    if (!qp->waiting)
        return;
    if (qp->prev_waiting)
        qp->prev_waiting->next_waiting = qp->next_waiting;
    else
        fake__waiting = qp->next_waiting;
    if (qp->next_waiting)
        qp->next_waiting->prev_waiting = qp->prev_waiting;
    else
        last_waiting = qp->prev_waiting;
    qp->prev_waiting = qp->next_waiting = NULL;
    qp->waiting = false;
}

static void enlist(struct fake_qp *qp)
{
    if (qp->waiting)
        return;
    qp->waiting = true;
    qp->prev_waiting = last_waiting;
    if (last_waiting)
        last_waiting->next_waiting = qp;
    else
        fake__waiting = qp;
    last_waiting = qp;
}

/* The receiver's timer: InfiniBand's table, in units of 10 microseconds. */
static uint64_t rnr_ns(uint8_t code)
{
    static const uint32_t table[] = {65536, 1,    2,    3,     4,     6,     8,     12,
                                     16,    24,   32,   48,    64,    96,    128,   192,
                                     256,   384,  512,  768,   1024,  1536,  2048,  3072,
                                     4096,  6144, 8192, 12288, 16384, 24576, 32768, 49152};
    return table[code % 32] * (uint64_t)RNR_UNIT_NS;
}

/* How long the queue pair tries, UINT64_MAX for ever. Bounded, so that tests are short. */
static uint64_t patience(const struct fake_qp *qp, enum fake_wait why, const struct fake_qp *peer)
{
    uint64_t ns, most = fake__config.retry_ms * NS_PER_MS;
    if (why == FAKE_NO_RECV) {
        if (qp->attr.rnr_retry == FOREVER)
            return UINT64_MAX;
        ns = qp->attr.rnr_retry * rnr_ns(peer->attr.min_rnr_timer);
    } else {
        if (!qp->attr.timeout)
            return UINT64_MAX;
        ns = (qp->attr.retry_cnt + 1u) * ((uint64_t)RETRY_UNIT_NS << qp->attr.timeout);
    }
    return ns < most ? ns : most;
}

/* It has to wait. Returns whether it waits no longer. */
static bool gives_up(struct fake_qp *qp, enum fake_wait why, const struct fake_qp *peer)
{
    if (qp->wait != why) {
        uint64_t ns = patience(qp, why, peer);
        qp->wait = why;
        qp->wait_polls = 0;
        qp->wait_until = ns == UINT64_MAX ? UINT64_MAX : fake__now() + ns;
        if (ns != UINT64_MAX)
            fake__clock_wake();
    }
    if (qp->wait_until == UINT64_MAX)
        return false;
    if (fake__config.retry_polls)
        return qp->wait_polls >= fake__config.retry_polls;
    return fake__now() >= qp->wait_until;
}

/* --- running --------------------------------------------------------------------------------- */

void fake__acknowledge(struct fake_qp *qp)
{
    while (qp->next < qp->done)
        fake__complete_send(qp, IBV_WC_SUCCESS);
}

/* The answer to a request is one to all before it. */
static void fail(struct fake_qp *qp, enum ibv_wc_status status)
{
    fake__acknowledge(qp);
    fake__complete_send(qp, status);
    fake__qp_error(qp);
}

static void fail_peer(struct fake_qp *peer, enum ibv_event_type event)
{
    if (event != IBV_EVENT_COMM_EST)
        fake__async(peer->object.context, event, &peer->pub);
    fake__qp_error(peer);
}

/* A packet has arrived. */
static void reach(struct fake_qp *qp, struct fake_qp *peer)
{
    qp->send_psn = (qp->send_psn + 1) & PSN_MASK;
    peer->recv_psn = (peer->recv_psn + 1) & PSN_MASK;
    if (!peer->established && peer->state == IBV_QPS_RTR && fake__config.comm_est)
        fake__async(peer->object.context, IBV_EVENT_COMM_EST, &peer->pub);
    peer->established = true;
}

/* Those that say something about the peer put it into the error state, too. */
static bool is_remote(enum ibv_wc_status status)
{
    return status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_REM_INV_REQ_ERR ||
           status == IBV_WC_REM_OP_ERR;
}

/* A failure on demand. false: it cannot happen yet. */
static bool fail_planned(struct fake_qp *qp, const struct fake_send *send, struct fake_qp *peer)
{
    enum ibv_wc_status status = send->status;
    if (is_remote(status)) {
        if (!peer)
            return false;
        enum ibv_event_type event = status == IBV_WC_REM_ACCESS_ERR ? IBV_EVENT_QP_ACCESS_ERR
                                                                    : IBV_EVENT_QP_REQ_ERR;
        fail(qp, status);
        fail_peer(peer, event);
        return true;
    }
    fail(qp, status);
    return true;
}

/* What a device says of a request that its peer refused. */
static enum ibv_wc_status told(enum ibv_wc_status status)
{
    if (!fake__config.mute || status != IBV_WC_REM_ACCESS_ERR)
        return status;
    return fake__config.mute == 1 ? IBV_WC_WR_FLUSH_ERR : IBV_WC_RETRY_EXC_ERR;
}

static bool conclude(struct fake_qp *qp, const struct fake_send *send, struct fake_qp *peer,
                     struct fake_outcome outcome)
{
    if (outcome.wait != FAKE_READY) {
        if (!gives_up(qp, outcome.wait, peer)) {
            enlist(qp);
            return false;
        }
        fail(qp, qp->wait == FAKE_NO_RECV ? IBV_WC_RNR_RETRY_EXC_ERR : IBV_WC_RETRY_EXC_ERR);
        return true;
    }
    qp->wait = FAKE_READY;
    if (outcome.status != IBV_WC_SUCCESS) {
        fail(qp, told(outcome.status));
        if (outcome.peer_fails)
            fail_peer(peer, outcome.event);
        return true;
    }
    reach(qp, peer);
    if (send->fails) {
        fail(qp, send->status);
        return true;
    }
    qp->done++;
    if (!fake__holding_acks)
        fake__acknowledge(qp);
    return true;
}

/* The first request. Returns whether something became of it. */
static bool step(struct fake_qp *qp)
{
    struct fake_send *send = fake__send_first(qp);
    if (!send || qp->state != IBV_QPS_RTS) {
        fake__unwait(qp);
        return false;
    }
    if (!send->tried) {
        send->tried = true;
        send->fails = fake__plan_send((int)send->wr.opcode, &send->status, &send->delivered);
    }
    struct fake_qp *peer = fake__path(qp);
    if (send->fails && !send->delivered && fail_planned(qp, send, peer))
        return true;
    return conclude(qp, send, peer, fake__op(qp, send, peer));
}

void fake__run(struct fake_qp *qp)
{
    if (fake__holding) {
        if (fake__send_first(qp) && qp->state == IBV_QPS_RTS)
            enlist(qp);
        return;
    }
    while (step(qp))
        ;
}

void fake__run_waiting(const struct fake_cq *polled)
{
    struct fake_qp *qp = fake__waiting;
    passes++;
    while (qp) {
        /* it may leave the list, and take others with it: begin again, but each only once */
        if (qp->pass == passes) {
            qp = qp->next_waiting;
            continue;
        }
        qp->pass = passes;
        if (polled && qp->send_cq == polled)
            qp->wait_polls++;
        fake__run(qp);
        qp = fake__waiting;
    }
}

int fake__run_some(int n)
{
    int ran = 0;
    for (bool moved = true; moved && ran < n;) {
        moved = false;
        passes++;
        for (struct fake_qp *qp = fake__waiting; qp && ran < n;) {
            if (qp->pass == passes) {
                qp = qp->next_waiting;
                continue;
            }
            qp->pass = passes;
            if (step(qp)) {
                moved = true;
                ran++;
            }
            if (!fake__send_first(qp))
                fake__unwait(qp);
            qp = fake__waiting;
        }
    }
    return ran;
}

int fake__waiting_sends(void)
{
    int n = 0;
    for (const struct fake_qp *qp = fake__waiting; qp; qp = qp->next_waiting)
        n += (int)(qp->last - qp->done);
    return n;
}

uint64_t fake__next_deadline(void)
{
    uint64_t first = UINT64_MAX;
    if (fake__holding || fake__config.retry_polls)
        return first;
    for (const struct fake_qp *qp = fake__waiting; qp; qp = qp->next_waiting)
        if (qp->wait != FAKE_READY && qp->wait_until < first)
            first = qp->wait_until;
    return first;
}
