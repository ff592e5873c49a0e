/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cmds that are not one work request: long ones, which go out in chunks over the data queue pairs in
 * turns; those of no bytes, about which the target is asked; fences.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "verbs.h"

/* --- ops and their lists ------------------------------------------------------------------------------ */

void verbs_ops_push(struct verbs_ops *ops, struct verbs_op *op)
{
    op->next = NULL;
    op->at = ops->tail;
    *ops->tail = op;
    ops->tail = &op->next;
}

void verbs_ops_remove(struct verbs_ops *ops, struct verbs_op *op)
{
    *op->at = op->next;
    if (op->next)
        op->next->at = op->at;
    else
        ops->tail = op->at;
    op->at = NULL;
}

bool verbs_op_may_be_new(struct verbs_nic *nic)
{
    if (nic->free_ops)
        return true;
    nic->free_ops = malloc(sizeof *nic->free_ops);
    if (nic->free_ops)
        nic->free_ops->next = NULL;
    return nic->free_ops;
}

struct verbs_op *verbs_op_new(struct verbs_link *link, const struct weft_cmd *cmd)
{
    struct verbs_nic *nic = verbs_nic_of(link);
    if (!verbs_op_may_be_new(nic))
        return NULL;
    struct verbs_op *op = nic->free_ops;
    nic->free_ops = op->next;
    *op = (struct verbs_op){.link = link,
                            .op = cmd->op,
                            .niov = cmd->niov,
                            .imm = cmd->imm,
                            .rkey = (uint32_t)cmd->remote_key,
                            .remote_addr = cmd->remote_addr,
                            .len = cmd->len,
                            .ctx = cmd->ctx};
    if (cmd->niov)
        op->iov = cmd->iov;
    else
        op->one = cmd->one;
    op->all_next = link->ops;
    op->all_at = &link->ops;
    if (op->all_next)
        op->all_next->all_at = &op->all_next;
    link->ops = op;
    link->nposted++;
    return op;
}

static uint32_t npieces(const struct verbs_op *op)
{
    return op->niov ? op->niov : 1;
}

static void end_loans(struct verbs_op *op)
{
    for (uint32_t i = 0; op->loans && i < npieces(op); i++)
        if (op->loans[i])
            verbs_mem_take_back(verbs_nic_of(op->link), op->loans[i]);
    free(op->loans);
    op->loans = NULL;
}

void verbs_op_free(struct verbs_op *op)
{
    struct verbs_nic *nic = verbs_nic_of(op->link);
    end_loans(op);
    if (op->slot)
        verbs_slot_put(op->slot);
    *op->all_at = op->all_next;
    if (op->all_next)
        op->all_next->all_at = op->all_at;
    op->next = nic->free_ops;
    nic->free_ops = op;
}

void verbs_op_done(struct verbs_op *op)
{
    verbs_ops_push(&verbs_nic_of(op->link)->done, op);
}

void verbs_op_drop(struct verbs_link *link)
{
    struct verbs_nic *nic = verbs_nic_of(link);
    for (struct verbs_op *op = nic->done.head, *next; op; op = next) {
        next = op->next;
        if (op->link == link)
            verbs_ops_remove(&nic->done, op);
    }
    while (link->ops)
        verbs_op_free(link->ops);
    nic->nlong -= link->nlong;
    link->nlong = 0;
    link->fence = NULL;
    memset(link->checks, 0, sizeof link->checks);
    link->bulk = (struct verbs_ops){.tail = &link->bulk.head};
    link->imms = (struct verbs_ops){.tail = &link->imms.head};
    link->sends = (struct verbs_ops){.tail = &link->sends.head};
}

/* Memory that the user has not registered is, for as long as the operation takes. */
static int make_loans(struct verbs_op *op)
{
    struct verbs_nic *nic = verbs_nic_of(op->link);
    const struct weft_iov_local *iov = op->niov ? op->iov : &op->one;
    for (uint32_t i = 0; i < npieces(op) && !op->slot; i++) {
        if (iov[i].mem || iov[i].len == 0)
            continue;
        if (!op->loans)
            op->loans = calloc(npieces(op), sizeof *op->loans);
        if (!op->loans)
            return weft_fail(-ENOMEM, "verbs %s: no memory for an operation", nic->name);
        op->loans[i] = verbs_mem_lend(nic, iov[i].addr, iov[i].len);
        if (!op->loans[i])
            return weft_fail(-errno,
                             "verbs %s: cannot register %llu bytes at %p for one operation: %m",
                             nic->name, (unsigned long long)iov[i].len, iov[i].addr);
    }
    return 0;
}

/* --- chunks ------------------------------------------------------------------------------------------- */

/* The first so many bytes at an address of a piece, or fewer, if its part ends there. */
static struct ibv_sge sge_at(const struct verbs_op *op, uint32_t piece, uint64_t addr,
                             uint64_t len)
{
    const struct weft_iov_local *iov = op->niov ? op->iov : &op->one;
    const struct verbs_mem *mem = iov[piece].mem;
    uint32_t lkey = op->lkey;
    if (!op->lkey_known)
        lkey = verbs_mem_lkey(mem ? mem : op->loans[piece], addr, &len);
    return (struct ibv_sge){.addr = addr, .length = (uint32_t)len, .lkey = lkey};
}

int verbs_op_sges(const struct verbs_op *op, uint64_t offset, uint64_t *len, struct ibv_sge *sges,
                  int most)
{
    const struct weft_iov_local *iov = op->niov ? op->iov : &op->one;
    uint32_t niov = npieces(op), i = 0;
    uint64_t left = *len;
    int n = 0;
    if (op->slot) {
        sges[0] = (struct ibv_sge){.addr = (uintptr_t)op->slot->data + offset,
                                   .length = (uint32_t)left,
                                   .lkey = op->slot->lkey};
        return left > 0;
    }
    while (i < niov && left > 0 && n < most) {
        if (offset >= iov[i].len) {
            offset -= iov[i++].len;
            continue;
        }
        uint64_t part = iov[i].len - offset < left ? iov[i].len - offset : left;
        sges[n] = sge_at(op, i, (uintptr_t)iov[i].addr + offset, part);
        left -= sges[n].length;
        offset += sges[n++].length;
    }
    *len -= left;
    return n;
}

static bool takes_chunk(const struct verbs_qp *qp, const struct verbs_nic *nic)
{
    return qp->state == VERBS_QP_LIVE && qp->chunk_bytes < VERBS_WINDOW * nic->chunk &&
           verbs_qp_room(qp) > 0;
}

/* Data queue pair 0 has the short ones, if there is another. */
static struct verbs_qp *next_qp(struct verbs_link *link)
{
    struct verbs_nic *nic = verbs_nic_of(link);
    uint32_t first = link->ndata > 1, n = link->ndata - first;
    if (nic->cq_room <= 0) {
        verbs_busy(link); /* what ends may be of other links */
        return NULL;
    }
    for (uint32_t i = 0; i < n; i++) {
        struct verbs_qp *qp = &link->data[first + (link->next_qp + i) % n];
        if (!takes_chunk(qp, nic)) {
            if (qp->state == VERBS_QP_LIVE && qp->chunk_bytes == 0)
                verbs_busy(link); /* full of short ones, whose end says nothing to those that wait */
            continue;
        }
        link->next_qp = (link->next_qp + i + 1) % n;
        return qp;
    }
    return NULL;
}

/* Post one work request of an op. False: the device takes no more now, or refused it. */
static bool post_part(struct verbs_qp *qp, struct verbs_op *op, uint8_t kind, uint64_t len)
{
    struct verbs_nic *nic = verbs_nic_of(op->link);
    struct verbs_rec *rec = verbs_rec_new(qp);
    int err;
    rec->op = op;
    rec->kind = kind;
    rec->offset = op->posted;
    rec->remote_addr = op->remote_addr + op->posted;
    rec->rkey = op->rkey;
    rec->imm = op->imm;
    if (op->link->ntables > 0)
        verbs_keys_find(op->link, op->rkey, rec->remote_addr, &len);
    verbs_op_sges(op, op->posted, &len, nic->sges[0], (int)nic->max_sge);
    rec->len = len;
    verbs_fill(qp, qp->head - 1, &nic->wrs[0], nic->sges[0]);
    if (verbs_hand_over(qp, 1, false, &err) == 0) {
        if (err != ENOMEM)
            op->status = -err;
        return false;
    }
    op->posted += len;
    op->pending++;
    qp->chunk_bytes += len;
    return true;
}

static bool post_imm(struct verbs_op *op)
{
    struct verbs_link *link = op->link;
    struct verbs_qp *qp = &link->data[0];
    if (qp->state != VERBS_QP_LIVE || !verbs_may_send_imm(link))
        return false;
    if (verbs_qp_room(qp) == 0 || verbs_nic_of(link)->cq_room <= 0 || !post_part(qp, op, WEFT_OP_WRITE_IMM, 0)) {
        if (op->status == 0)
            verbs_busy(link); /* there was no room: in the next poll */
        return op->status < 0;
    }
    qp->imms_out++;
    op->imm_posted = true;
    return true;
}

static void end_long(struct verbs_op *op)
{
    op->link->nlong--;
    verbs_nic_of(op->link)->nlong--;
    verbs_op_done(op);
}

/* Nothing of it is in a queue, and nothing more is to be: it has ended, but for its immediate. */
static void settle(struct verbs_op *op)
{
    bool no_more = op->status < 0 || op->posted == op->len; /* the rest of what has failed is not for the device */
    if (no_more && op->at)
        verbs_ops_remove(&op->link->bulk, op);
    if (op->pending > 0 || !no_more)
        return;
    if (op->op == WEFT_OP_WRITE_IMM && op->status == 0 && !op->imm_posted) {
        verbs_ops_push(&op->link->imms, op);
        verbs_busy(op->link);
    } else {
        end_long(op);
    }
}

static void pump_imms(struct verbs_link *link)
{
    while (link->imms.head) {
        struct verbs_op *op = link->imms.head;
        if (!post_imm(op))
            return;
        verbs_ops_remove(&link->imms, op);
        if (op->status < 0)
            end_long(op);
    }
}

void verbs_op_pump(struct verbs_link *link)
{
    struct verbs_nic *nic = verbs_nic_of(link);
    pump_imms(link);
    while (link->bulk.head) {
        struct verbs_op *op = link->bulk.head;
        struct verbs_qp *qp = next_qp(link);
        uint64_t left = op->len - op->posted;
        uint64_t len = left < nic->chunk ? left : nic->chunk;
        if (!qp)
            return;
        bool posted = post_part(qp, op, op->op == WEFT_OP_READ ? WEFT_OP_READ : WEFT_OP_WRITE,
                                len);
        if (!posted && op->status == 0) {
            verbs_busy(link); /* the device was full: in the next poll */
            return;
        }
        verbs_ops_remove(&link->bulk, op);
        if (posted && op->posted < op->len)
            verbs_ops_push(&link->bulk, op);
        else
            settle(op);
    }
}

static void begin_long(struct verbs_op *op)
{
    op->link->nlong++;
    verbs_nic_of(op->link)->nlong++;
    verbs_ops_push(&op->link->bulk, op);
}

int verbs_op_start(struct verbs_op *op)
{
    int rc = make_loans(op);
    if (rc) {
        op->link->nposted--;
        verbs_op_free(op);
        return rc;
    }
    begin_long(op);
    verbs_op_pump(op->link);
    return 0;
}

void verbs_op_chunk_done(struct verbs_qp *qp, const struct verbs_rec *rec, int status,
                         const char *why)
{
    struct verbs_op *op = rec->op;
    op->pending--;
    qp->chunk_bytes -= rec->len;
    if (status < 0 && op->status == 0) {
        op->status = status;
        op->why = why;
    }
    settle(op);
    if (op->link->bulk.head || op->link->imms.head)
        verbs_busy(op->link);
}

/* --- cut anew ------------------------------------------------------------------------------------------ */

/* From this chunk on: those after it that have gone out go out twice, which does no harm. */
void verbs_op_rewind(struct verbs_qp *qp, struct verbs_rec *rec)
{
    struct verbs_op *op = rec->op;
    rec->kind = VERBS_NOTHING;
    rec->nothing = true;
    op->pending--;
    qp->chunk_bytes -= rec->len;
    if (op->status == 0 && op->posted > rec->offset)
        op->posted = rec->offset;
    if (op->status == 0 && !op->at)
        verbs_ops_push(&op->link->bulk, op);
    settle(op);
}

static bool has_keys(const struct verbs_rec *rec)
{
    for (uint32_t i = 0; i < rec->niov; i++)
        if (!rec->iov[i].mem && rec->iov[i].len > 0)
            return false;
    return rec->niov > 0 || rec->lkey != 0;
}

/* Its local end as the rec has it: a slot, pieces, or one that is all under one key. Payload that is nowhere
 * registered came along in the request, and moves to a slot. False: no slot. */
static bool adopt_local(struct verbs_op *op, struct verbs_rec *rec, const struct weft_cmd *cmd)
{
    struct verbs_nic *nic = verbs_nic_of(op->link);
    op->slot = rec->slot;
    rec->slot = NULL;
    op->lkey = rec->lkey;
    op->lkey_known = rec->niov == 0;
    if (op->slot || has_keys(rec) || rec->len > nic->max_inline)
        return true;
    op->slot = verbs_slot_get(&nic->sends);
    if (op->slot)
        verbs_gather(op->slot->data, cmd);
    return op->slot;
}

void verbs_op_adopt(struct verbs_qp *qp, struct verbs_rec *rec)
{
    struct weft_cmd cmd = {.op = rec->kind,
                           .niov = rec->niov,
                           .imm = rec->imm,
                           .remote_key = rec->rkey,
                           .remote_addr = rec->remote_addr,
                           .len = rec->len,
                           .ctx = rec->ctx};
    if (rec->niov)
        cmd.iov = rec->iov;
    else
        cmd.one = (struct weft_iov_local){rec->addr, rec->len, NULL};
    struct verbs_op *op = verbs_op_new(qp->link, &cmd);
    if (!op || !adopt_local(op, rec, &cmd)) {
        verbs_link_fail(qp->link, -ENOMEM, "verbs %s: no memory for an operation",
                        verbs_nic_of(qp->link)->name);
        return;
    }
    qp->link->nposted--; /* it was counted as a rec */
    qp->imms_out -= rec->kind == WEFT_OP_WRITE_IMM;
    op->again = rec->again;
    rec->kind = VERBS_NOTHING;
    rec->nothing = true;
    begin_long(op);
}

/* --- questions ---------------------------------------------------------------------------------------- */

void verbs_op_check(struct verbs_op *op)
{
    struct verbs_link *link = op->link;
    struct verbs_check *check = link->checks;
    while (check->op)
        check++;
    *check = (struct verbs_check){.op = op, .id = ++link->check_id};
    struct verbs_check_msg msg = {.id = htole32(check->id),
                                  .question = {.addr = htole64(op->remote_addr),
                                               .len = htole64(op->len),
                                               .rkey = htole32(op->rkey),
                                               .op = op->op}};
    verbs_control_note(link, VERBS_CHECK, &msg, sizeof msg);
    verbs_link_ask(link);
}

void verbs_op_checked(struct verbs_link *link, const struct verbs_checked_msg *msg)
{
    int verdict = (int32_t)le32toh((uint32_t)msg->verdict);
    for (int i = 0; i < VERBS_CHECKS; i++) {
        struct verbs_op *op = link->checks[i].op;
        if (!op || link->checks[i].id != le32toh(msg->id))
            continue;
        link->checks[i].op = NULL;
        op->status = verdict < 0 ? verdict : 0;
        verbs_op_done(op);
        return;
    }
}
