/* SPDX-License-Identifier: Apache-2.0 */
/* What one send work request does: the checks at both ends, and the bytes. */
#include "fake.h"

#include <string.h>

#define WORD sizeof(uint64_t)

/* A piece of memory that a request names, after its key was checked. */
struct span {
    uint8_t *at;
    uint64_t len;
};

static const struct fake_outcome done = {.status = IBV_WC_SUCCESS};

static struct fake_outcome waits(enum fake_wait why)
{
    return (struct fake_outcome){.wait = why};
}

static struct fake_outcome fails(enum ibv_wc_status status)
{
    return (struct fake_outcome){.status = status};
}

/* The peer refuses, and ends in the error state, too. */
static struct fake_outcome refused(enum ibv_wc_status status, enum ibv_event_type event)
{
    return (struct fake_outcome){.status = status, .peer_fails = true, .event = event};
}

static uint64_t move(struct span *to, int nto, const struct span *from, int nfrom)
{
    uint64_t to_at = 0, from_at = 0, moved = 0;
    for (int i = 0, k = 0; i < nfrom && k < nto;) {
        uint64_t n = from[i].len - from_at, room = to[k].len - to_at;
        n = n < room ? n : room;
        if (n)
            memmove(to[k].at + to_at, from[i].at + from_at, n);
        moved += n;
        from_at += n;
        to_at += n;
        if (from_at == from[i].len)
            i++, from_at = 0;
        if (to_at == to[k].len)
            k++, to_at = 0;
    }
    return moved;
}

static int look_up(const struct fake_pd *pd, const struct ibv_sge *sge, int n, unsigned int access,
                   struct span *spans)
{
    int used = 0;
    for (int i = 0; i < n; i++) {
        if (!sge[i].length)
            continue; /* nothing of it is touched, so its key is not looked at */
        struct span *span = &spans[used++];
        span->len = sge[i].length;
        span->at = fake__mr_local(pd, sge[i].lkey, sge[i].addr, sge[i].length, access);
        if (!span->at)
            return -1;
    }
    return used;
}

static uint64_t size_of(const struct fake_recv *recv)
{
    uint64_t len = 0;
    for (int i = 0; i < recv->nsge; i++)
        len += recv->sge[i].length;
    return len;
}

static struct fake_rq *rq_of(struct fake_qp *qp)
{
    return qp->srq ? &qp->srq->rq : &qp->rq;
}

/* A receive is used up. */
static void end_recv(struct fake_qp *peer, const struct fake_send *send, enum ibv_wc_status status)
{
    struct fake_rq *rq = rq_of(peer);
    fake__complete_recv(peer, fake__rq_first(rq), send, status);
    fake__rq_pop(rq);
}

static struct fake_outcome send(const struct fake_send *send, struct fake_qp *peer,
                                const struct span *from, int nfrom)
{
    struct span to[FAKE_SGE];
    const struct fake_recv *recv = fake__rq_first(rq_of(peer));
    if (!recv)
        return waits(FAKE_NO_RECV);
    if (send->len > size_of(recv)) {
        end_recv(peer, send, IBV_WC_LOC_LEN_ERR);
        return refused(IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_COMM_EST);
    }
    int nto = look_up(peer->srq ? peer->srq->pd : peer->pd, recv->sge, recv->nsge,
                      IBV_ACCESS_LOCAL_WRITE, to);
    if (nto < 0) {
        end_recv(peer, send, IBV_WC_LOC_PROT_ERR);
        return refused(IBV_WC_REM_OP_ERR, IBV_EVENT_COMM_EST);
    }
    move(to, nto, from, nfrom);
    end_recv(peer, send, IBV_WC_SUCCESS);
    return done;
}

/* The memory at the peer, or why not. What has no length names no memory. */
static struct fake_outcome remote(const struct fake_send *send, struct fake_qp *peer,
                                  unsigned int access, uint32_t rkey, uint64_t addr,
                                  struct span *span)
{
    span->len = send->len;
    span->at = NULL;
    if (!(peer->attr.qp_access_flags & access))
        return refused(IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
    if (send->len)
        span->at = fake__mr_remote(peer->pd, rkey, addr, send->len, access);
    if (send->len && !span->at)
        return refused(IBV_WC_REM_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
    return done;
}

static struct fake_outcome write(const struct fake_send *send, struct fake_qp *peer,
                                 const struct span *from, int nfrom)
{
    struct span to;
    bool with_imm = send->wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    if (with_imm && !fake__rq_first(rq_of(peer)))
        return waits(FAKE_NO_RECV);
    struct fake_outcome outcome = remote(send, peer, IBV_ACCESS_REMOTE_WRITE,
                                         send->wr.wr.rdma.rkey, send->wr.wr.rdma.remote_addr, &to);
    if (outcome.status != IBV_WC_SUCCESS)
        return outcome;
    move(&to, 1, from, nfrom);
    if (with_imm)
        end_recv(peer, send, IBV_WC_SUCCESS);
    return done;
}

/* Reads and atomics take resources at both ends, which were agreed on when they connected. */
static bool may_fetch(const struct fake_qp *qp, const struct fake_qp *peer)
{
    if (qp->attr.max_rd_atomic > peer->attr.max_dest_rd_atomic)
        fake__fault("%u reads under way, but the peer has room for %u", qp->attr.max_rd_atomic,
                    peer->attr.max_dest_rd_atomic);
    return qp->attr.max_rd_atomic && peer->attr.max_dest_rd_atomic;
}

static struct fake_outcome read(struct fake_qp *qp, const struct fake_send *send,
                                struct fake_qp *peer, struct span *to, int nto)
{
    struct span from;
    if (!may_fetch(qp, peer))
        return refused(IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
    struct fake_outcome outcome = remote(send, peer, IBV_ACCESS_REMOTE_READ, send->wr.wr.rdma.rkey,
                                         send->wr.wr.rdma.remote_addr, &from);
    if (outcome.status == IBV_WC_SUCCESS)
        move(to, nto, &from, 1);
    return outcome;
}

static struct fake_outcome atomic(struct fake_qp *qp, const struct fake_send *send,
                                  struct fake_qp *peer, struct span *to, int nto)
{
    struct span word;
    uint64_t addr = send->wr.wr.atomic.remote_addr, before;
    if (!may_fetch(qp, peer) || addr % WORD)
        return refused(IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
    struct fake_outcome outcome = remote(send, peer, IBV_ACCESS_REMOTE_ATOMIC,
                                         send->wr.wr.atomic.rkey, addr, &word);
    if (outcome.status != IBV_WC_SUCCESS)
        return outcome;
    uint64_t *at = (uint64_t *)(void *)word.at;
    if (send->wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        before = __atomic_fetch_add(at, send->wr.wr.atomic.compare_add, __ATOMIC_SEQ_CST);
    } else {
        before = send->wr.wr.atomic.compare_add;
        __atomic_compare_exchange_n(at, &before, send->wr.wr.atomic.swap, false, __ATOMIC_SEQ_CST,
                                    __ATOMIC_SEQ_CST);
    }
    struct span answer = {(uint8_t *)&before, WORD};
    move(to, nto, &answer, 1);
    return done;
}

/* Packets of a long message have the sender's size; the peer expects those of its own. */
static bool mtu_fits(const struct fake_qp *qp, const struct fake_send *send,
                     const struct fake_qp *peer)
{
    enum ibv_mtu mtu = qp->attr.path_mtu, other = peer->attr.path_mtu;
    enum ibv_mtu least = mtu < other ? mtu : other;
    return mtu == other || send->len <= 128ull << least; /* IBV_MTU_256 is 1 */
}

static struct fake_outcome arrive(struct fake_qp *qp, struct fake_send *request,
                                  struct fake_qp *peer, struct span *spans, int n)
{
    if (!mtu_fits(qp, request, peer))
        return refused(IBV_WC_REM_INV_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
    switch (request->wr.opcode) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
        return send(request, peer, spans, n);
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
        return write(request, peer, spans, n);
    case IBV_WR_RDMA_READ:
        return read(qp, request, peer, spans, n);
    default:
        return atomic(qp, request, peer, spans, n);
    }
}

struct fake_outcome fake__op(struct fake_qp *qp, struct fake_send *request, struct fake_qp *peer)
{
    struct span spans[FAKE_SGE];
    enum ibv_wr_opcode opcode = request->wr.opcode;
    bool is_atomic = opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
    bool lands_here = opcode == IBV_WR_RDMA_READ || is_atomic;
    int n = 1;
    if (request->wr.send_flags & IBV_SEND_INLINE)
        spans[0] = (struct span){request->inlined, request->len};
    else
        n = look_up(qp->pd, request->sge, request->wr.num_sge,
                    lands_here ? IBV_ACCESS_LOCAL_WRITE : 0, spans);
    if (n < 0)
        return fails(IBV_WC_LOC_PROT_ERR);
    if (request->len > fake__config.max_msg || (is_atomic && request->len != WORD))
        return fails(IBV_WC_LOC_LEN_ERR);
    if (!peer)
        return waits(FAKE_NO_PATH);
    return arrive(qp, request, peer, spans, n);
}
