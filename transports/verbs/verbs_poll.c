/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Completions of the device become comps: those of requests settle recs, which are harvested when
 * there is room for their comps; those of receives are arrivals.
 */
#include <errno.h>
#include <string.h>

#include "verbs.h"

/* Polls between looks for what no completion tells: a millisecond or so while polling. */
#define LOOK_POLLS 1024
/* Batches of completions that one poll reads. */
#define POLL_BATCHES 4

void verbs_busy(struct verbs_link *link)
{
    struct verbs_nic *nic = verbs_nic_of(link);
    if (link->busy)
        return;
    link->busy = true;
    link->busy_next = NULL;
    *nic->busy_tail = link;
    nic->busy_tail = &link->busy_next;
}

void verbs_settle(struct verbs_qp *qp, uint32_t upto)
{
    struct verbs_nic *nic = verbs_nic_of(qp->link);
    uint32_t n = upto - qp->settled;
    if (n == 0 || n > qp->head - qp->settled)
        return;
    qp->settled = upto;
    qp->flying -= n;
    nic->cq_room += n;
    if (qp->harvesting)
        return;
    qp->harvesting = true;
    qp->harvest_next = NULL;
    *nic->harvest_tail = qp;
    nic->harvest_tail = &qp->harvest_next;
}

/* --- handing out --------------------------------------------------------------------------------------- */

static void cmd_ended(struct verbs_link *link)
{
    link->nposted--;
    if (!link->fence || link->nposted > 1)
        return;
    verbs_op_done(link->fence);
    link->fence = NULL;
}

static void hand_out_rec(struct verbs_poll *poll, struct verbs_link *link,
                         const struct verbs_rec *rec)
{
    struct weft_comp *comp = &poll->comps[poll->n++];
    if (rec->kind == WEFT_OP_READ && rec->slot && rec->status == 0) {
        const struct weft_iov_local one = {rec->addr, rec->len, NULL};
        verbs_scatter(rec->slot, rec->niov ? rec->iov : &one, rec->niov);
    }
    *comp = (struct weft_comp){.ctx = rec->ctx,
                               .link = &link->base,
                               .op = rec->kind,
                               .status = rec->status,
                               .len = rec->status == 0 ? rec->len : 0,
                               .data = rec->why};
    if (rec->kind == WEFT_OP_ADD64) {
        comp->len = rec->status == 0 ? sizeof comp->value : 0;
        if (rec->status == 0)
            memcpy(&comp->value, rec->slot->data, sizeof comp->value);
    }
    cmd_ended(link);
}

/* One settled rec. */
static void harvest_rec(struct verbs_poll *poll, struct verbs_qp *qp)
{
    struct verbs_link *link = qp->link;
    struct verbs_rec *rec = &qp->recs[qp->tail++ & qp->mask];
    if (link->state == VERBS_LINK_CLOSED || rec->kind == VERBS_NOTHING)
        ; /* of no cmd, or of one that was dropped */
    else if (rec->op)
        verbs_op_chunk_done(qp, rec, rec->status, rec->why);
    else if (qp->index > 0)
        hand_out_rec(poll, link, rec);
    verbs_rec_release(rec);
}

static void harvest(struct verbs_poll *poll)
{
    struct verbs_nic *nic = poll->nic;
    while (nic->harvest && poll->n < poll->max) {
        struct verbs_qp *qp = nic->harvest;
        while (qp->tail != qp->settled && poll->n < poll->max)
            harvest_rec(poll, qp);
        if (qp->tail != qp->settled)
            return;
        nic->harvest = qp->harvest_next;
        if (!nic->harvest)
            nic->harvest_tail = &nic->harvest;
        qp->harvesting = false;
        if (qp->link->state == VERBS_LINK_CLOSED && qp->link->bye_posted && qp->tail == qp->head)
            verbs_link_finish(qp->link);
    }
}

static void hand_out_op(struct verbs_poll *poll)
{
    struct verbs_op *op = poll->nic->done.head;
    struct verbs_link *link = op->link;
    verbs_ops_remove(&poll->nic->done, op);
    if (op->op == WEFT_OP_READ && op->slot && op->status == 0)
        verbs_scatter(op->slot, op->niov ? op->iov : &op->one, op->niov);
    poll->comps[poll->n++] = (struct weft_comp){.ctx = op->ctx,
                                                .link = &link->base,
                                                .op = op->op,
                                                .status = op->status,
                                                .len = op->status == 0 ? op->len : 0,
                                                .data = op->why};
    verbs_op_free(op);
    cmd_ended(link);
}

/* Links die after what they completed. */
static void hand_out_down(struct verbs_poll *poll)
{
    struct verbs_nic *nic = poll->nic;
    for (struct verbs_link *link = nic->links; link && nic->ndown > 0; link = link->next) {
        if (poll->n == poll->max)
            return;
        if (!link->down_due)
            continue;
        link->down_due = false;
        nic->ndown--;
        poll->comps[poll->n++] = (struct weft_comp){.link = &link->base,
                                                    .op = WEFT_OP_LINK_DOWN,
                                                    .status = link->status,
                                                    .data = link->why};
    }
}

static void hand_out(struct verbs_poll *poll)
{
    harvest(poll);
    while (poll->nic->done.head && poll->n < poll->max)
        hand_out_op(poll);
    if (poll->nic->ndown > 0 && !poll->nic->harvest && !poll->nic->done.head)
        hand_out_down(poll);
}

/* Is there something to hand out? */
static bool has_ended(const struct verbs_nic *nic)
{
    return nic->harvest || nic->done.head || nic->ndown > 0;
}

/* --- completions ----------------------------------------------------------------------------------------- */

static struct verbs_qp *qp_of(const struct verbs_nic *nic, uint64_t wr_id)
{
    uint32_t place = wr_id >> 40 & UINT16_MAX;
    struct verbs_qp *qp = place < nic->nqps ? nic->qps[place] : NULL;
    return qp && qp->life == (uint8_t)(wr_id >> 32) ? qp : NULL;
}

static void on_send(struct verbs_nic *nic, const struct ibv_wc *wc)
{
    struct verbs_qp *qp = qp_of(nic, wc->wr_id);
    uint32_t index = (uint32_t)wc->wr_id;
    if (!qp || qp->head - index - 1 >= qp->head - qp->settled)
        return;
    if (qp->link->state == VERBS_LINK_DOWN && qp->index > 0)
        return; /* too late to be earned */
    if (wc->status == IBV_WC_SUCCESS) {
        verbs_settle(qp, index + 1);
        if (qp->state == VERBS_QP_DRAINING) /* it may have been the last */
            verbs_fault_step(qp);
    } else if (qp->index > 0) {
        verbs_fault_comp(qp, index, wc->status);
    } else {
        const char *hint;
        int code = verbs_status(wc->status, &hint);
        if (wc->status == IBV_WC_WR_FLUSH_ERR) /* and nothing before it said why */
            hint = "its control queue pair failed: is the port, or the peer's, down?";
        qp->link->mute = true;
        verbs_link_fail(qp->link, code, "verbs %s: %s", nic->name, hint);
    }
}

static void on_imm(struct verbs_poll *poll, const struct ibv_wc *wc)
{
    struct verbs_nic *nic = poll->nic;
    struct verbs_qp *qp = qp_of(nic, wc->wr_id);
    if (!qp)
        return;
    struct verbs_link *link = qp->link;
    qp->recvs--;
    nic->cq_room++;
    if (wc->status != IBV_WC_SUCCESS) {
        verbs_fault_step(qp);
        return;
    }
    qp->imms_in++;
    if (qp->state == VERBS_QP_LIVE && verbs_qp_post_imms(qp))
        verbs_link_fail(link, WEFT_ELINK, "%s", weft_last_error());
    if (qp->imms_in - qp->imms_told >= (nic->imms + 1) / 2)
        verbs_busy(link);
    if (link->state == VERBS_LINK_UP)
        poll->comps[poll->n++] = (struct weft_comp){.link = &link->base,
                                                    .op = WEFT_OP_WRITE_IMM,
                                                    .imm = be32toh(wc->imm_data),
                                                    .len = wc->byte_len};
    verbs_fault_step(qp);
}

/* A count and a goodbye took no credit. */
static bool took_credit(const struct ibv_wc *wc)
{
    uint32_t kind = be32toh(wc->imm_data) >> 28;
    return wc->status == IBV_WC_SUCCESS && kind > VERBS_CREDIT;
}

static void on_message(struct verbs_poll *poll, const struct ibv_wc *wc)
{
    struct verbs_nic *nic = poll->nic;
    uint32_t index = (uint32_t)wc->wr_id;
    struct verbs_slot *slot = index < nic->recvs.nslots ? nic->recvs.by_index[index] : NULL;
    if (!slot || (!nic->srq && !qp_of(nic, wc->wr_id))) /* the latter: the slot went back with its queue */
        return;
    struct verbs_link *link = nic->srq ? verbs_link_find(nic, wc->qp_num) : slot->link;
    if (nic->srq)
        nic->srq_posted--;
    else if (link)
        link->control.recvs--;
    nic->cq_room++;
    slot->link = link;
    if (link && wc->status == IBV_WC_SUCCESS && verbs_control_arrived(link, wc, slot)) {
        poll->comps[poll->n++] = (struct weft_comp){
            .link = &link->base, .op = WEFT_OP_RECV, .len = wc->byte_len, .data = slot->data};
        verbs_recv_lend(nic, slot);
        return;
    }
    if (link && wc->status != IBV_WC_SUCCESS && link->state < VERBS_LINK_DOWN)
        verbs_link_fail(link, WEFT_ELINK, "verbs %s: a message could not be received", nic->name);
    if (link && link->state >= VERBS_LINK_DOWN && !nic->srq) {
        slot->link = NULL; /* its queue takes no more */
        verbs_slot_put(slot);
        return;
    }
    verbs_recv_again(nic, slot, took_credit(wc) && link && link->state < VERBS_LINK_DOWN);
}

static void on_completion(struct verbs_poll *poll, const struct ibv_wc *wc)
{
    switch (wc->wr_id >> 56) {
    case VERBS_TAG_SEND:
        on_send(poll->nic, wc);
        break;
    case VERBS_TAG_IMM:
        on_imm(poll, wc);
        break;
    default:
        on_message(poll, wc);
    }
}

/* Each completion is at most one comp here, so no more are read than there is room for. */
static int read_completions(struct verbs_poll *poll)
{
    struct verbs_nic *nic = poll->nic;
    struct ibv_wc wcs[VERBS_BATCH];
    int most = poll->max - poll->n < VERBS_BATCH ? poll->max - poll->n : VERBS_BATCH;
    while (nic->stash_first < nic->stash_n && poll->n < poll->max) {
        struct ibv_wc wc = nic->stash[nic->stash_first++];
        on_completion(poll, &wc);
        most = 0;
    }
    if (most <= 0)
        return 0;
    int n = ibv_poll_cq(nic->cq, most, wcs);
    if (n < 0) {
        nic->lost = weft_fail(WEFT_ENODEV, "verbs %s: cannot read completions", nic->name);
        return 0;
    }
    for (int i = 0; i < n; i++)
        on_completion(poll, &wcs[i]);
    return n;
}

/* --- poll ------------------------------------------------------------------------------------------------ */

static void run_busy(struct verbs_nic *nic, bool all_counts)
{
    struct verbs_link *link = nic->busy;
    nic->busy = NULL;
    nic->busy_tail = &nic->busy;
    while (link) {
        struct verbs_link *next = link->busy_next;
        link->busy = false;
        verbs_control_flush(link, all_counts);
        if (link->state == VERBS_LINK_UP) {
            verbs_op_pump(link);
            for (uint32_t i = 0; i < link->ndata; i++)
                if (link->data[i].loose && link->data[i].state == VERBS_QP_LIVE)
                    verbs_post_nothing(&link->data[i]);
        }
        link = next;
    }
}

int verbs_poll(struct weft_nic *base, struct weft_comp *comps, int max)
{
    struct verbs_nic *nic = (struct verbs_nic *)base;
    struct verbs_poll poll = {.nic = nic, .comps = comps, .max = max};
    if (nic->lent)
        verbs_recvs_take_back(nic);
    if (has_ended(nic))
        hand_out(&poll);
    for (int i = 0; i < POLL_BATCHES && poll.n < max && read_completions(&poll) == VERBS_BATCH;
         i++)
        hand_out(&poll);
    /* a message may be waited for, and its answer by the peer: what ended beside it is for the next poll */
    if (has_ended(nic) && !nic->lent)
        hand_out(&poll);
    if (nic->busy)
        run_busy(nic, false);
    /* after the completions, which know better why a queue pair failed */
    if (nic->armed)
        verbs_wake(nic);
    else if (++nic->polls % LOOK_POLLS == 0)
        verbs_events(nic);
    base->bulk = nic->nlong > 0;
    if (poll.n == 0 && nic->lost)
        return nic->lost;
    return poll.n;
}

int verbs_wait_fd(struct weft_nic *base)
{
    struct verbs_nic *nic = (struct verbs_nic *)base;
    if (nic->busy)
        run_busy(nic, true);
    if (nic->stash_first < nic->stash_n || has_ended(nic) || nic->busy || nic->lent || nic->lost)
        return WEFT_EAGAIN;
    if (!nic->notify) {
        int rc = ibv_req_notify_cq(nic->cq, 0);
        if (rc)
            return weft_fail(-rc, "verbs %s: cannot ask for events: %s", nic->name, strerror(rc));
        nic->notify = true;
        verbs_stash(nic); /* what came before it caused no event */
        if (nic->stash_first < nic->stash_n)
            return WEFT_EAGAIN;
    }
    verbs_set_timer(nic);
    nic->armed = true;
    return nic->epoll_fd;
}
