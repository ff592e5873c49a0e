/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receives of messages: in a queue that all links of the nic share, or, where the device has none, in
 * each link's own. The shared one holds what all links may send at once, up to WEFT_VERBS_RECVS; with
 * more links than that the device makes a sender wait that finds none.
 */
#include <errno.h>
#include <string.h>

#include "verbs.h"

static int post_slot(struct verbs_nic *nic, struct verbs_link *link, struct verbs_slot *slot)
{
    struct ibv_sge sge = {
        .addr = (uintptr_t)slot->data, .length = slot->pool->size, .lkey = slot->lkey};
    const struct verbs_qp *qp = nic->srq ? NULL : &link->control;
    struct ibv_recv_wr wr = {
        .wr_id = verbs_wr_id(VERBS_TAG_MESSAGE, qp, slot->index), .sg_list = &sge, .num_sge = 1};
    struct ibv_recv_wr *bad;
    int rc = nic->srq ? ibv_post_srq_recv(nic->srq, &wr, &bad)
                      : ibv_post_recv(link->control.qp, &wr, &bad);
    if (rc)
        return weft_fail(-rc, "verbs %s: cannot post a receive: %s", nic->name, strerror(rc));
    slot->link = nic->srq ? NULL : link;
    nic->srq ? nic->srq_posted++ : link->control.recvs++;
    nic->cq_room--;
    return 0;
}

static bool wants_more(const struct verbs_nic *nic, const struct verbs_link *link)
{
    if (!nic->srq)
        return link && link->control.qp && link->control.recvs < link->window + VERBS_SPARE_RECVS;
    return nic->srq_posted < nic->srq_want && nic->srq_posted < nic->srq_most;
}

int verbs_recvs_fill(struct verbs_link *link)
{
    struct verbs_nic *nic = verbs_nic_of(link);
    while (wants_more(nic, link)) {
        struct verbs_slot *slot = verbs_slot_get(&nic->recvs);
        if (!slot)
            return weft_fail(-ENOMEM, "verbs %s: no memory for messages", nic->name);
        int rc = post_slot(nic, link, slot);
        if (rc) {
            verbs_slot_put(slot);
            return rc;
        }
    }
    return 0;
}

void verbs_recv_again(struct verbs_nic *nic, struct verbs_slot *slot, bool credit)
{
    struct verbs_link *link = slot->link;
    if (!wants_more(nic, link) || post_slot(nic, link, slot))
        verbs_slot_put(slot);
    if (!link || !credit)
        return;
    link->taken++;
    verbs_busy(link);
}

void verbs_recv_lend(struct verbs_nic *nic, struct verbs_slot *slot)
{
    struct verbs_link *link = slot->link;
    slot->early = link->early < VERBS_EARLY;
    link->early += slot->early;
    link->taken += slot->early;
    slot->next = nic->lent;
    nic->lent = slot;
}

void verbs_recvs_take_back(struct verbs_nic *nic)
{
    while (nic->lent) {
        struct verbs_slot *slot = nic->lent;
        nic->lent = slot->next;
        if (slot->link && slot->early) {
            slot->link->early--;
            verbs_busy(slot->link); /* in case that no answer has told */
        }
        verbs_recv_again(nic, slot, !slot->early);
    }
}

void verbs_recvs_drop(struct verbs_link *link)
{
    struct verbs_nic *nic = verbs_nic_of(link);
    for (struct verbs_slot *slot = nic->lent; slot; slot = slot->next)
        if (slot->link == link)
            slot->link = NULL;
    if (nic->srq)
        return;
    for (uint32_t i = 0; i < nic->recvs.nslots; i++) {
        struct verbs_slot *slot = nic->recvs.by_index[i];
        if (slot->link != link)
            continue;
        slot->link = NULL;
        verbs_slot_put(slot);
    }
}
