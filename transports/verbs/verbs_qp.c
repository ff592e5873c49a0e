/* SPDX-License-Identifier: Apache-2.0 */
/* A queue pair: made, connected, failed, brought back, destroyed. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "verbs.h"

#define MIN_RNR_TIMER 12 /* 0.64 ms until who met no receive tries again */
#define RNR_RETRY 7      /* for ever: a peer that does not poll is slow, not dead */
#define HOP_LIMIT 64
#define PSN_MASK 0xffffffu
#define LEAST_DEPTH 8

/* --- places ----------------------------------------------------------------------------------------- */

static int find_place(struct verbs_nic *nic, struct verbs_qp *qp)
{
    uint32_t i = 0;
    while (i < nic->nqps && nic->qps[i])
        i++;
    if (i > UINT16_MAX)
        return weft_fail(WEFT_ELIMIT, "verbs %s: too many links", nic->name);
    if (i == nic->nqps) {
        uint32_t n = nic->nqps ? 2 * nic->nqps : 16;
        struct verbs_qp **qps = realloc(nic->qps, n * sizeof *qps);
        nic->qps = qps ? qps : nic->qps;
        uint8_t *lives = realloc(nic->lives, n);
        nic->lives = lives ? lives : nic->lives;
        if (!qps || !lives)
            return weft_fail(-ENOMEM, "verbs %s: no memory for a queue pair", nic->name);
        memset(qps + nic->nqps, 0, (n - nic->nqps) * sizeof *qps);
        memset(lives + nic->nqps, 0, n - nic->nqps);
        nic->nqps = n;
    }
    nic->qps[i] = qp;
    qp->place = (uint16_t)i;
    qp->life = nic->lives[i];
    return 0;
}

static void leave_place(struct verbs_nic *nic, struct verbs_qp *qp)
{
    nic->qps[qp->place] = NULL;
    nic->lives[qp->place]++;
}

/* --- making ----------------------------------------------------------------------------------------- */

static struct ibv_qp_init_attr init_attr(const struct verbs_nic *nic, uint8_t index)
{
    struct ibv_qp_init_attr init = {
        .send_cq = nic->cq,
        .recv_cq = nic->cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = nic->depth,
                .max_recv_wr = index == 1 ? nic->imms : 1,
                .max_send_sge = nic->max_sge,
                .max_recv_sge = 1,
                .max_inline_data = nic->max_inline},
    };
    if (index > 0)
        return init;
    init.srq = nic->srq;
    init.cap.max_send_wr = nic->control_depth;
    init.cap.max_send_sge = 1;
    init.cap.max_recv_wr = nic->srq ? 0 : nic->credits + VERBS_SPARE_RECVS;
    init.cap.max_recv_sge = nic->srq ? 0 : 1;
    return init;
}

static uint32_t ring_size(uint32_t depth)
{
    uint32_t size = 1;
    while (size < depth)
        size *= 2;
    return size;
}

int verbs_qp_open(struct verbs_qp *qp, struct verbs_link *link, uint8_t index)
{
    struct verbs_nic *nic = verbs_nic_of(link);
    struct ibv_qp_init_attr init = init_attr(nic, index);
    *qp = (struct verbs_qp){.link = link, .index = index, .depth = init.cap.max_send_wr};
    int rc = weft_random(&qp->psn, sizeof qp->psn);
    if (rc)
        return rc;
    qp->psn &= PSN_MASK;
    qp->mask = ring_size(qp->depth) - 1;
    qp->recs = calloc(qp->mask + 1, sizeof *qp->recs);
    if (!qp->recs)
        return weft_fail(-ENOMEM, "verbs %s: no memory for a queue pair", nic->name);
    rc = find_place(nic, qp);
    if (rc)
        goto err_recs;
    qp->qp = nic->lib->create_qp(nic->pd, &init);
    if (!qp->qp) {
        rc = weft_fail(-errno, "verbs %s: cannot make a queue pair: %m", nic->name);
        goto err_place;
    }
    return 0;
err_place:
    leave_place(nic, qp);
err_recs:
    free(qp->recs);
    qp->recs = NULL;
    return rc;
}

/* Inline bytes and depth are asked for by trying: some devices grant less, some refuse. */
int verbs_qp_probe(struct verbs_nic *nic)
{
    nic->max_inline = VERBS_MAX_INLINE;
    for (;;) {
        struct ibv_qp_init_attr init = init_attr(nic, 1);
        struct ibv_qp *qp = nic->lib->create_qp(nic->pd, &init);
        if (qp) {
            nic->lib->destroy_qp(qp);
            if (init.cap.max_inline_data < nic->max_inline)
                nic->max_inline = init.cap.max_inline_data;
            return 0;
        }
        if (nic->max_inline > 0)
            nic->max_inline = nic->max_inline > 64 ? nic->max_inline / 2 : 0;
        else if (nic->depth > LEAST_DEPTH)
            nic->depth /= 2;
        else
            return weft_fail(-errno, "verbs %s: cannot make a queue pair: %m", nic->name);
    }
}

/* --- states ----------------------------------------------------------------------------------------- */

static int modify(struct verbs_qp *qp, struct ibv_qp_attr *attr, int mask, const char *state)
{
    struct verbs_nic *nic = verbs_nic_of(qp->link);
    int rc = nic->lib->modify_qp(qp->qp, attr, mask | IBV_QP_STATE);
    return rc ? weft_fail(rc > 0 ? -rc : -EIO, "verbs %s: a queue pair cannot go to %s: %s",
                          nic->name, state, strerror(rc > 0 ? rc : EIO))
              : 0;
}

static int to_init(struct verbs_qp *qp)
{
    struct verbs_nic *nic = verbs_nic_of(qp->link);
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT, .pkey_index = nic->pkey_index, .port_num = nic->port};
    if (qp->index > 0)
        attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                               (nic->base.attr.ops & WEFT_OP_BIT(WEFT_OP_ADD64)
                                    ? IBV_ACCESS_REMOTE_ATOMIC
                                    : 0u);
    return modify(qp, &attr, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, "init");
}

/* The peer's port. Subnets of InfiniBand differ in the first half of their GIDs. */
static struct ibv_ah_attr path_to(const struct verbs_link *link)
{
    const struct verbs_nic *nic = verbs_nic_of(link);
    struct ibv_ah_attr path = {
        .dlid = link->peer.lid, .sl = nic->service_level, .port_num = nic->port};
    if (nic->layer == VERBS_ETHERNET || memcmp(nic->gid.raw, link->peer.gid, 8) != 0) {
        path.is_global = 1;
        memcpy(path.grh.dgid.raw, link->peer.gid, sizeof path.grh.dgid.raw);
        path.grh.sgid_index = (uint8_t)nic->gid_index;
        path.grh.hop_limit = HOP_LIMIT;
        path.grh.traffic_class = nic->traffic_class;
    }
    return path;
}

static int to_ready_to_receive(struct verbs_qp *qp)
{
    struct verbs_nic *nic = verbs_nic_of(qp->link);
    const struct verbs_address *peer = &qp->link->peer;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR,
                               .ah_attr = path_to(qp->link),
                               .path_mtu = nic->mtu < peer->mtu ? nic->mtu : peer->mtu,
                               .dest_qp_num = qp->peer_qpn,
                               .rq_psn = qp->peer_psn,
                               .max_dest_rd_atomic = qp->index > 0 ? nic->reads_in : 0,
                               .min_rnr_timer = MIN_RNR_TIMER};
    return modify(qp, &attr,
                  IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                  "ready to receive");
}

static int to_ready_to_send(struct verbs_qp *qp)
{
    struct verbs_nic *nic = verbs_nic_of(qp->link);
    uint8_t reads = qp->link->peer.reads;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS,
                               .timeout = nic->timeout,
                               .retry_cnt = nic->retries,
                               .rnr_retry = RNR_RETRY,
                               .sq_psn = qp->psn};
    if (qp->index > 0)
        attr.max_rd_atomic = reads < nic->reads_out ? reads : nic->reads_out;
    return modify(qp, &attr,
                  IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                      IBV_QP_MAX_QP_RD_ATOMIC,
                  "ready to send");
}

int verbs_qp_post_imms(struct verbs_qp *qp)
{
    struct verbs_nic *nic = verbs_nic_of(qp->link);
    struct ibv_recv_wr wr = {.wr_id = verbs_wr_id(VERBS_TAG_IMM, qp, 0)}, *bad;
    while (qp->recvs < nic->imms) {
        int rc = ibv_post_recv(qp->qp, &wr, &bad);
        if (rc)
            return weft_fail(-rc, "verbs %s: cannot post a receive: %s", nic->name, strerror(rc));
        qp->recvs++;
        nic->cq_room--;
    }
    return 0;
}

int verbs_qp_connect(struct verbs_qp *qp)
{
    int rc = to_init(qp);
    if (rc == 0 && verbs_qp_has_imms(qp))
        rc = verbs_qp_post_imms(qp);
    if (rc == 0 && qp->index == 0)
        rc = verbs_recvs_fill(qp->link); /* its own receives are not taken before */
    if (rc == 0)
        rc = to_ready_to_receive(qp);
    if (rc == 0)
        rc = to_ready_to_send(qp);
    if (rc == 0)
        qp->state = VERBS_QP_LIVE;
    return rc;
}

int verbs_qp_restart(struct verbs_qp *qp)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
    int rc = modify(qp, &attr, 0, "reset");
    if (rc)
        return rc;
    /* a completion of before that is still to come is none of what is posted now */
    verbs_nic_of(qp->link)->lives[qp->place] = ++qp->life;
    return verbs_qp_connect(qp);
}

void verbs_qp_fail(struct verbs_qp *qp)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    if (qp->qp && qp->state != VERBS_QP_NEW)
        verbs_nic_of(qp->link)->lib->modify_qp(qp->qp, &attr, IBV_QP_STATE);
}

/* --- the end ---------------------------------------------------------------------------------------- */

static struct ibv_wc *stash_room(struct verbs_nic *nic)
{
    if (nic->stash_first > 0 && nic->stash_first == nic->stash_n)
        nic->stash_first = nic->stash_n = 0;
    if (nic->stash_n + VERBS_BATCH > nic->stash_cap) {
        uint32_t cap = nic->stash_cap + 16 * VERBS_BATCH;
        struct ibv_wc *more = realloc(nic->stash, cap * sizeof *more);
        if (!more)
            return NULL;
        nic->stash = more;
        nic->stash_cap = cap;
    }
    return nic->stash + nic->stash_n;
}

void verbs_stash(struct verbs_nic *nic)
{
    struct ibv_wc *at;
    int n = 1;
    while (n > 0 && (at = stash_room(nic))) {
        n = ibv_poll_cq(nic->cq, VERBS_BATCH, at);
        nic->stash_n += n > 0 ? (uint32_t)n : 0;
    }
}

static void leave_harvest(struct verbs_qp *qp)
{
    struct verbs_nic *nic = verbs_nic_of(qp->link);
    struct verbs_qp **at = &nic->harvest;
    if (!qp->harvesting)
        return;
    while (*at != qp)
        at = &(*at)->harvest_next;
    *at = qp->harvest_next;
    if (nic->harvest_tail == &qp->harvest_next)
        nic->harvest_tail = at;
    qp->harvesting = false;
}

void verbs_qp_close(struct verbs_qp *qp)
{
    struct verbs_nic *nic = verbs_nic_of(qp->link);
    if (!qp->qp)
        return;
    int rc = nic->lib->destroy_qp(qp->qp);
    if (rc)
        weft_log(WEFT_LOG_ERROR, "verbs", "%s: cannot destroy a queue pair: %s", nic->name,
                 strerror(rc));
    /* what it had completed may still stand in the queue: there it would take room */
    verbs_stash(nic);
    nic->cq_room += (qp->head - qp->settled) + qp->recvs;
    nic->nwaiting -= qp->deadline != 0;
    leave_harvest(qp);
    leave_place(nic, qp);
    for (uint32_t i = qp->tail; i != qp->head; i++)
        verbs_rec_release(&qp->recs[i & qp->mask]);
    free(qp->recs);
    *qp = (struct verbs_qp){.link = qp->link, .index = qp->index, .state = VERBS_QP_DEAD};
}
