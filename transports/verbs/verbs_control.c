/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of the control queue pair: the user's, and the transport's own. Each may carry, in its
 * immediate, how many messages and immediates this end has taken since the last one.
 *
 * A SEND ends when the peer's poll has taken it, not when its device has it: what lies there when the
 * peer's end is closed is lost, and core sends it again over another link. Messages are taken in order.
 *
 * All but a goodbye and a bare count need a credit. Bare counts are sent when half of what the peer may
 * have open was taken, or after a moment; those that no receive is spared for wait at the device.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "verbs.h"

#define KEPT_ROOM 4 /* requests that the user leaves for counts and the goodbye */
/* The transport's own messages that may wait: all keys of the longest memory, for each queue pair, and more. */
#define MOST_NOTES 32768
/* The peer's SENDs end when they are known to be taken, which no one waits for: this end tells when it
 * goes to sleep, or after so long. Most answers are sent by then, and carry the count. */
#define TELL_NS 1000000u
#define MOST_QUIET 16 /* messages in a row that ask for no completion of the device */

/* --- out ---------------------------------------------------------------------------------------------- */

/* Counts for the peer, as many as an immediate holds; they are told then. */
static uint32_t take_counts(struct verbs_link *link, enum verbs_kind kind)
{
    struct verbs_qp *first = &link->data[0];
    uint32_t taken = link->taken < VERBS_IMM_TAKEN_MAX ? link->taken : VERBS_IMM_TAKEN_MAX;
    uint32_t imms = first->imms_in - first->imms_told;
    if (imms > VERBS_IMM_IMMS_MAX)
        imms = VERBS_IMM_IMMS_MAX;
    link->taken -= taken;
    link->untold_since = 0;
    first->imms_told += imms;
    return verbs_imm(kind, taken, imms);
}

/* Nobody waits for the completion of a message: its payload was copied, and what the peer has taken ends it. One in a
 * while gives their places in the queue back. Until then they are counted as completions that may come, as they do from a
 * queue pair that fails: if half of the completion queue is not free, no more of them. */
static bool is_quiet(struct verbs_qp *qp, enum verbs_kind kind, const struct verbs_slot *slot)
{
    const struct verbs_nic *nic = verbs_nic_of(qp->link);
    bool quiet = !slot && kind != VERBS_BYE && qp->quiet + 1 < MOST_QUIET &&
                 qp->quiet + 1 < nic->control_depth / 4 && nic->cq_room > nic->cq_size / 2;
    qp->quiet = quiet ? qp->quiet + 1 : 0;
    return quiet;
}

/* Post what is in nic->scratch (no slot) or in the slot. 1; 0 no room; or the link has failed. */
static int post(struct verbs_link *link, enum verbs_kind kind, uint32_t len,
                struct verbs_slot *slot)
{
    struct verbs_nic *nic = verbs_nic_of(link);
    struct verbs_qp *qp = &link->control;
    struct ibv_send_wr *wr = &nic->wrs[0];
    struct verbs_rec *rec = verbs_rec_new(qp);
    int err;
    rec->kind = (uint8_t)kind;
    rec->len = len;
    rec->slot = slot;
    nic->sges[0][0] = (struct ibv_sge){
        .addr = (uintptr_t)(slot ? slot->data : (void *)nic->scratch),
        .length = len,
        .lkey = slot ? slot->lkey : 0};
    *wr = (struct ibv_send_wr){.wr_id = verbs_wr_id(VERBS_TAG_SEND, qp, qp->head - 1),
                               .opcode = IBV_WR_SEND_WITH_IMM,
                               .sg_list = nic->sges[0],
                               .num_sge = len > 0,
                               .send_flags = slot || len == 0 ? 0 : IBV_SEND_INLINE,
                               .imm_data = htobe32(take_counts(link, kind))};
    link->credits -= kind > VERBS_CREDIT;
    link->sent += kind > VERBS_CREDIT;
    if (verbs_hand_over(qp, 1, is_quiet(qp, kind, slot), &err) == 1)
        return 1;
    verbs_link_fail(link, WEFT_ELINK, "verbs %s: cannot post a message: %s", nic->name,
                    strerror(err));
    return WEFT_ELINK;
}

static bool has_room(const struct verbs_link *link, uint32_t kept)
{
    return link->control.state == VERBS_QP_LIVE && verbs_qp_room(&link->control) > kept &&
           verbs_nic_of(link)->cq_room > 0;
}

/* Where a message of this length is put together; *slot: if not in nic->scratch. */
static uint8_t *place_for(struct verbs_nic *nic, uint64_t len, struct verbs_slot **slot)
{
    *slot = NULL;
    if (len <= nic->max_inline)
        return nic->scratch;
    *slot = verbs_slot_get(&nic->sends);
    return *slot ? (*slot)->data : NULL;
}

int verbs_control_send(struct verbs_link *link, const struct weft_cmd *cmd)
{
    struct verbs_slot *slot;
    if (link->credits == 0)
        verbs_link_ask(link);
    if (link->credits == 0 || !has_room(link, KEPT_ROOM))
        return 0;
    if (!verbs_op_may_be_new(verbs_nic_of(link)))
        return weft_fail(-ENOMEM, "verbs: no memory for an operation");
    uint8_t *at = place_for(verbs_nic_of(link), cmd->len, &slot);
    if (!at)
        return 0;
    verbs_gather(at, cmd);
    if (post(link, VERBS_MSG, (uint32_t)cmd->len, slot) < 0)
        return weft_fail(WEFT_ELINK, "%s", link->why);
    struct verbs_op *op = verbs_op_new(link, cmd); /* while the message is on its way */
    op->value = link->sent;
    verbs_ops_push(&link->sends, op);
    return 1;
}

void verbs_control_note(struct verbs_link *link, enum verbs_kind kind, const void *body,
                        uint8_t len)
{
    struct verbs_nic *nic = verbs_nic_of(link);
    struct verbs_note *note = nic->free_notes;
    if (link->nnotes >= MOST_NOTES) {
        verbs_link_fail(link, WEFT_EPROTO, "verbs %s: the peer asks, and takes no answer",
                        nic->name);
        return;
    }
    if (note)
        nic->free_notes = note->next;
    else if (!(note = malloc(sizeof *note))) {
        verbs_link_fail(link, -ENOMEM, "verbs %s: no memory for a message", nic->name);
        return;
    }
    *note = (struct verbs_note){.kind = (uint8_t)kind, .len = len};
    if (len > 0)
        memcpy(note->body, body, len);
    *link->notes_tail = note;
    link->notes_tail = &note->next;
    link->nnotes++;
    verbs_control_flush(link, false);
}

static void drop_note(struct verbs_link *link)
{
    struct verbs_nic *nic = verbs_nic_of(link);
    struct verbs_note *note = link->notes;
    link->notes = note->next;
    link->nnotes--;
    if (!link->notes)
        link->notes_tail = &link->notes;
    note->next = nic->free_notes;
    nic->free_notes = note;
}

/* Many, or for so long that no message of this end may take them along. */
static bool counts_are_due(struct verbs_link *link)
{
    const struct verbs_qp *first = &link->data[0];
    uint64_t now = link->taken > 0 ? weft_now() : 0;
    if (link->taken > 0 && link->untold_since == 0)
        link->untold_since = now;
    return link->taken >= (link->window + 1) / 2 ||
           (link->taken > 0 && now - link->untold_since >= TELL_NS) ||
           first->imms_in - first->imms_told >= (verbs_nic_of(link)->imms + 1) / 2;
}

/* Post a note or a goodbye. False: not now. */
static bool post_own(struct verbs_link *link, enum verbs_kind kind, const void *body, uint32_t len)
{
    struct verbs_slot *slot;
    uint8_t *at = has_room(link, 0) ? place_for(verbs_nic_of(link), len, &slot) : NULL;
    if (!at)
        return false;
    if (len > 0)
        memcpy(at, body, len);
    return post(link, kind, len, slot) > 0;
}

void verbs_control_flush(struct verbs_link *link, bool all_counts)
{
    if (link->state == VERBS_LINK_CLOSED) {
        if (!link->bye_posted)
            link->bye_posted = post_own(link, VERBS_BYE, NULL, 0);
        return;
    }
    while (link->notes && link->credits > 0) {
        struct verbs_note *note = link->notes;
        if (!post_own(link, note->kind, note->body, note->len)) {
            verbs_busy(link);
            return;
        }
        drop_note(link);
    }
    if (link->state == VERBS_LINK_DOWN)
        return;
    if (counts_are_due(link) || (all_counts && link->taken > 0))
        post_own(link, VERBS_CREDIT, NULL, 0);
    if (link->taken > 0)
        verbs_busy(link); /* for the next poll to see whether it is time */
}

void verbs_control_bye(struct verbs_link *link)
{
    while (link->notes)
        drop_note(link);
    verbs_control_flush(link, false);
    if (!link->bye_posted)
        verbs_busy(link);
}

/* --- in ------------------------------------------------------------------------------------------------ */

static void broke_protocol(struct verbs_link *link, const char *how)
{
    verbs_link_fail(link, WEFT_EPROTO, "verbs %s: the peer sent %s", verbs_nic_of(link)->name,
                    how);
}

/* The peer has taken so many. False: more than it was given. */
static bool add_counts(struct verbs_link *link, uint32_t taken, uint32_t imms)
{
    struct verbs_qp *first = &link->data[0];
    if (taken > link->peer.credits - link->credits || imms > first->imms_out - first->imms_heard)
        return false;
    link->credits += taken;
    link->acked += taken;
    first->imms_heard += imms;
    while (link->sends.head && (int32_t)(link->acked - (uint32_t)link->sends.head->value) >= 0) {
        struct verbs_op *op = link->sends.head;
        verbs_ops_remove(&link->sends, op);
        verbs_op_done(op);
    }
    if ((link->notes && link->credits > 0) || (link->imms.head && imms > 0))
        verbs_busy(link);
    return true;
}

static void on_hello(struct verbs_link *link, const struct verbs_hello *hello)
{
    enum weft_role other = link->role == WEFT_ROLE_ACTIVE ? WEFT_ROLE_PASSIVE : WEFT_ROLE_ACTIVE;
    struct verbs_hello mine = {{0}};
    int rc = 0;
    if (link->state != VERBS_LINK_JOINING) {
        broke_protocol(link, "a second greeting");
        return;
    }
    if (link->keyed && verbs_link_check(link, other, hello->mac)) {
        verbs_link_fail(link, WEFT_EAUTH, "verbs %s: the peer does not have the link's key",
                        verbs_nic_of(link)->name);
        return;
    }
    for (uint32_t i = 0; rc == 0 && i < link->ndata; i++)
        rc = verbs_qp_connect(&link->data[i]);
    verbs_link_posted(link);
    if (rc == 0 && link->role == WEFT_ROLE_ACTIVE && link->keyed)
        rc = verbs_link_proof(link, WEFT_ROLE_ACTIVE, mine.mac);
    if (rc) {
        verbs_link_fail(link, rc, "%s", weft_last_error());
    } else if (link->role == WEFT_ROLE_ACTIVE) {
        verbs_control_note(link, VERBS_HELLO, &mine, sizeof mine);
    } else {
        verbs_control_note(link, VERBS_UP, NULL, 0);
        verbs_link_up(link);
    }
}

static void on_check(struct verbs_link *link, const struct verbs_check_msg *msg)
{
    const struct verbs_question question = {.addr = le64toh(msg->question.addr),
                                            .len = le64toh(msg->question.len),
                                            .rkey = le32toh(msg->question.rkey),
                                            .op = msg->question.op};
    struct verbs_checked_msg answer = {.id = msg->id};
    answer.verdict = (int32_t)htole32(
        (uint32_t)verbs_mem_judge(verbs_nic_of(link), &question, NULL));
    verbs_control_note(link, VERBS_CHECKED, &answer, sizeof answer);
}

/* Bytes of a message's body; the user's may have any length. */
static const uint8_t body_len[VERBS_KINDS] = {[VERBS_HELLO] = sizeof(struct verbs_hello),
                                              [VERBS_FAULT] = sizeof(struct verbs_fault_msg),
                                              [VERBS_READY] = sizeof(struct verbs_ready_msg),
                                              [VERBS_CHECK] = sizeof(struct verbs_check_msg),
                                              [VERBS_CHECKED] = sizeof(struct verbs_checked_msg),
                                              [VERBS_KEYS] = sizeof(struct verbs_keys_msg)};

static void on_own(struct verbs_link *link, enum verbs_kind kind, const void *body)
{
    switch (kind) {
    case VERBS_BYE:
        link->mute = true;
        verbs_link_fail(link, WEFT_ELINK, "verbs %s: the peer has closed the link",
                        verbs_nic_of(link)->name);
        break;
    case VERBS_HELLO:
        on_hello(link, body);
        break;
    case VERBS_UP:
        if (link->role == WEFT_ROLE_ACTIVE && link->state == VERBS_LINK_JOINING &&
            link->data[0].state == VERBS_QP_LIVE)
            verbs_link_up(link);
        else
            broke_protocol(link, "an UP that was not expected");
        break;
    case VERBS_FAULT:
        verbs_fault_heard(link, body);
        break;
    case VERBS_READY:
        verbs_fault_ready(link, body);
        break;
    case VERBS_CHECK:
        on_check(link, body);
        break;
    case VERBS_CHECKED:
        verbs_op_checked(link, body);
        break;
    case VERBS_KEYS:
        verbs_keys_heard(link, body);
        break;
    default:
        break;
    }
}

static bool is_early(const struct verbs_link *link, enum verbs_kind kind)
{
    return link->state == VERBS_LINK_JOINING && kind != VERBS_HELLO && kind != VERBS_UP &&
           kind != VERBS_BYE && kind != VERBS_CREDIT;
}

bool verbs_control_arrived(struct verbs_link *link, const struct ibv_wc *wc,
                           const struct verbs_slot *slot)
{
    uint32_t imm = be32toh(wc->imm_data);
    enum verbs_kind kind = imm >> 28;
    uint64_t body[8]; /* aligned, and the slot's own from here on */
    if (link->state != VERBS_LINK_UP && link->state != VERBS_LINK_JOINING)
        return false;
    if (!(wc->wc_flags & IBV_WC_WITH_IMM) || kind == 0 || kind >= VERBS_KINDS ||
        (kind != VERBS_MSG && wc->byte_len != body_len[kind]) || is_early(link, kind)) {
        broke_protocol(link, "a message that is none");
        return false;
    }
    if (!add_counts(link, imm >> 16 & VERBS_IMM_TAKEN_MAX, imm & VERBS_IMM_IMMS_MAX)) {
        broke_protocol(link, "credits for what it was not sent");
        return false;
    }
    if (kind == VERBS_MSG)
        return true;
    memcpy(body, slot->data, body_len[kind]);
    on_own(link, kind, body);
    return false;
}
