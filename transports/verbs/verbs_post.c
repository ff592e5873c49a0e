/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From cmds to work requests. Short cmds in a row go to the device as one chain, with one doorbell
 * and one completion for all of them.
 */
#include <errno.h>
#include <string.h>

#include "verbs.h"

/* Recs that are filled in and not yet handed over: the newest n of data queue pair 0. */
struct batch {
    struct verbs_qp *qp;
    int n;
};

/* --- recs ------------------------------------------------------------------------------------------- */

struct verbs_rec *verbs_rec_new(struct verbs_qp *qp)
{
    struct verbs_rec *rec = &qp->recs[qp->head++ & qp->mask];
    memset(rec, 0, sizeof *rec);
    return rec;
}

void verbs_rec_release(struct verbs_rec *rec)
{
    if (rec->slot)
        verbs_slot_put(rec->slot);
    rec->slot = NULL;
}

/* Of a piece that lies in one part. */
static uint32_t lkey_of(const struct weft_iov_local *iov)
{
    const struct verbs_mem *mem = iov->mem;
    uint64_t len = iov->len;
    return mem ? verbs_mem_lkey(mem, (uintptr_t)iov->addr, &len) : 0;
}

/* Devices take a length of 0 for 2 GiB: empty pieces are left out. */
static int add_sge(struct ibv_sge *sges, int n, const void *addr, uint64_t len, uint32_t lkey)
{
    if (len == 0)
        return n;
    sges[n] = (struct ibv_sge){.addr = (uintptr_t)addr, .length = (uint32_t)len, .lkey = lkey};
    return n + 1;
}

static int fill_sges(const struct verbs_rec *rec, struct ibv_sge *sges)
{
    uint64_t len = rec->len;
    int n = 0;
    if (rec->nothing)
        return 0;
    if (rec->op)
        return verbs_op_sges(rec->op, rec->offset, &len, sges, VERBS_MAX_SGE);
    if (rec->slot)
        return add_sge(sges, 0, rec->slot->data, len, rec->slot->lkey);
    if (rec->niov == 0)
        return add_sge(sges, 0, rec->addr, len, rec->lkey);
    for (uint32_t i = 0; i < rec->niov; i++)
        n = add_sge(sges, n, rec->iov[i].addr, rec->iov[i].len, lkey_of(&rec->iov[i]));
    return n;
}

static enum ibv_wr_opcode opcode_of(const struct verbs_rec *rec)
{
    switch (rec->nothing ? WEFT_OP_WRITE : rec->kind) {
    case WEFT_OP_WRITE_IMM:
        return IBV_WR_RDMA_WRITE_WITH_IMM;
    case WEFT_OP_READ:
        return IBV_WR_RDMA_READ;
    case WEFT_OP_ADD64:
        return IBV_WR_ATOMIC_FETCH_AND_ADD;
    default:
        return IBV_WR_RDMA_WRITE;
    }
}

/* The key that the peer's device wants for it: it lies in one part of the peer's memory. */
static uint32_t rkey_of(struct verbs_link *link, struct verbs_rec *rec)
{
    uint64_t len = rec->len;
    uint32_t key = link->ntables > 0 ? verbs_keys_find(link, rec->rkey, rec->remote_addr, &len)
                                     : rec->rkey;
    rec->tabled = key != rec->rkey;
    return key;
}

void verbs_fill(struct verbs_qp *qp, uint32_t index, struct ibv_send_wr *wr, struct ibv_sge *sges)
{
    struct verbs_rec *rec = &qp->recs[index & qp->mask];
    wr->wr_id = verbs_wr_id(VERBS_TAG_SEND, qp, index);
    wr->next = NULL;
    wr->sg_list = sges;
    wr->num_sge = fill_sges(rec, sges);
    wr->opcode = opcode_of(rec);
    wr->send_flags = 0;
    if (wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr->wr.atomic.remote_addr = rec->remote_addr;
        wr->wr.atomic.compare_add = rec->value;
        wr->wr.atomic.swap = 0;
        wr->wr.atomic.rkey = rkey_of(qp->link, rec);
        return;
    }
    wr->imm_data = htobe32(rec->imm);
    wr->wr.rdma.remote_addr = rec->nothing ? 0 : rec->remote_addr;
    wr->wr.rdma.rkey = rec->nothing ? 0 : rkey_of(qp->link, rec);
    if (rec->len <= verbs_nic_of(qp->link)->max_inline && rec->len > 0 && !rec->op &&
        rec->kind != WEFT_OP_READ && !rec->nothing && !rec->remote)
        wr->send_flags = IBV_SEND_INLINE;
}

/* Those that the device did not take. */
static void withdraw(struct verbs_qp *qp, int n)
{
    for (; n > 0; n--)
        verbs_rec_release(&qp->recs[--qp->head & qp->mask]);
}

int verbs_chain(struct verbs_qp *qp, int n, bool quiet, int *err)
{
    struct verbs_nic *nic = verbs_nic_of(qp->link);
    struct ibv_send_wr *bad = NULL;
    for (int i = 0; i + 1 < n; i++)
        nic->wrs[i].next = &nic->wrs[i + 1];
    nic->wrs[n - 1].next = NULL;
    if (!quiet)
        nic->wrs[n - 1].send_flags |= IBV_SEND_SIGNALED;
    int rc = ibv_post_send(qp->qp, nic->wrs, &bad);
    if (rc == 0) {
        qp->flying += (uint32_t)n;
        qp->loose = false;
        *err = 0;
        return n;
    }
    int taken = bad >= nic->wrs && bad < nic->wrs + n ? (int)(bad - nic->wrs) : 0;
    qp->flying += (uint32_t)taken;
    *err = rc > 0 ? rc : EIO;
    if (taken > 0)
        qp->loose = true;
    if (qp->loose)
        verbs_busy(qp->link);
    return taken;
}

int verbs_hand_over(struct verbs_qp *qp, int n, bool quiet, int *err)
{
    int taken = verbs_chain(qp, n, quiet, err);
    verbs_nic_of(qp->link)->cq_room -= taken;
    if (taken < n)
        withdraw(qp, n - taken);
    return taken;
}

void verbs_post_nothing(struct verbs_qp *qp)
{
    struct verbs_nic *nic = verbs_nic_of(qp->link);
    int err;
    if (verbs_qp_room(qp) == 0 || nic->cq_room <= 0)
        return;
    struct verbs_rec *rec = verbs_rec_new(qp);
    rec->kind = VERBS_NOTHING;
    rec->nothing = true;
    verbs_fill(qp, qp->head - 1, &nic->wrs[0], nic->sges[0]);
    verbs_hand_over(qp, 1, false, &err);
}

void verbs_scatter(const struct verbs_slot *slot, const struct weft_iov_local *iov, uint32_t niov)
{
    const uint8_t *from = slot->data;
    for (uint32_t i = 0, n = niov ? niov : 1; i < n; from += iov[i].len, i++)
        if (iov[i].len > 0)
            memcpy(iov[i].addr, from, iov[i].len);
}

void verbs_gather(uint8_t *to, const struct weft_cmd *cmd)
{
    const struct weft_iov_local *iov = cmd->niov ? cmd->iov : &cmd->one;
    for (uint32_t i = 0, n = cmd->niov ? cmd->niov : 1; i < n; i++) {
        if (iov[i].len > 0)
            memcpy(to, iov[i].addr, iov[i].len);
        to += iov[i].len;
    }
}

/* --- one cmd: 1 accepted, 0 no room, or a code ---------------------------------------------------------- */

static int as_op(struct verbs_link *link, const struct weft_cmd *cmd, struct verbs_op **op)
{
    *op = verbs_op_new(link, cmd);
    return *op ? 1 : weft_fail(-ENOMEM, "verbs: no memory for an operation");
}

/* A key that is none of a device's. */
static int refuse_key(struct verbs_link *link, const struct weft_cmd *cmd)
{
    struct verbs_op *op;
    int rc = as_op(link, cmd, &op);
    if (rc > 0) {
        op->status = WEFT_EKEY;
        verbs_op_done(op);
    }
    return rc;
}

static int post_fence(struct verbs_link *link, const struct weft_cmd *cmd)
{
    struct verbs_op *op;
    bool idle = link->nposted == 0;
    int rc = as_op(link, cmd, &op);
    if (rc > 0 && idle)
        verbs_op_done(op);
    else if (rc > 0)
        link->fence = op;
    return rc;
}

/* No device looks at the key of an operation of no bytes: the target is asked. */
static int post_empty(struct verbs_link *link, const struct weft_cmd *cmd)
{
    struct verbs_op *op;
    int i = 0;
    while (i < VERBS_CHECKS && link->checks[i].op)
        i++;
    if (i == VERBS_CHECKS)
        return 0;
    int rc = as_op(link, cmd, &op);
    if (rc > 0)
        verbs_op_check(op);
    return rc;
}

bool verbs_may_send_imm(struct verbs_link *link)
{
    const struct verbs_qp *qp = &link->data[0];
    if (qp->imms_out - qp->imms_heard < link->peer.imms)
        return true;
    verbs_link_ask(link);
    return false;
}

static bool is_registered(const struct weft_cmd *cmd)
{
    const struct weft_iov_local *iov = cmd->niov ? cmd->iov : &cmd->one;
    for (uint32_t i = 0, n = cmd->niov ? cmd->niov : 1; i < n; i++)
        if (!iov[i].mem && iov[i].len > 0)
            return false;
    return true;
}

static bool is_remote(const struct verbs_mem *mem)
{
    return mem && mem->range.kind != WEFT_MEM_HOST;
}

/* Into or out of a slot: the device cannot reach the user's memory, or not in time. */
static bool is_copied(const struct verbs_nic *nic, const struct weft_cmd *cmd)
{
    bool read = cmd->op == WEFT_OP_READ;
    return (cmd->flags & WEFT_CMD_INLINE && !read) ||
           (!is_registered(cmd) && (read || cmd->len > nic->max_inline));
}

/* Payload, or the place where an old value goes. False: no slot. */
static bool fill_local(struct verbs_nic *nic, struct verbs_rec *rec, const struct weft_cmd *cmd)
{
    bool add = cmd->op == WEFT_OP_ADD64;
    if (add || is_copied(nic, cmd)) {
        rec->slot = verbs_slot_get(cmd->len > VERBS_MAX_INLINE ? &nic->sends : &nic->smalls);
        if (!rec->slot)
            return false;
        if (!add && cmd->op != WEFT_OP_READ)
            verbs_gather(rec->slot->data, cmd);
    }
    if (cmd->niov) {
        rec->iov = cmd->iov;
        rec->niov = (uint8_t)cmd->niov;
        for (uint16_t i = 0; i < cmd->niov; i++)
            rec->remote |= is_remote(cmd->iov[i].mem);
    } else {
        rec->addr = cmd->one.addr;
        rec->lkey = lkey_of(&cmd->one);
        rec->remote = is_remote(cmd->one.mem);
    }
    return true;
}

static int post_short(struct verbs_link *link, const struct weft_cmd *cmd, struct batch *batch)
{
    struct verbs_nic *nic = verbs_nic_of(link);
    struct verbs_qp *qp = &link->data[0];
    bool imm = cmd->op == WEFT_OP_WRITE_IMM;
    if (qp->state != VERBS_QP_LIVE || verbs_qp_room(qp) == 0 || nic->cq_room <= batch->n ||
        (imm && !verbs_may_send_imm(link)))
        return 0;
    struct verbs_rec *rec = verbs_rec_new(qp);
    if (!fill_local(nic, rec, cmd)) {
        qp->head--;
        return 0;
    }
    rec->ctx = cmd->ctx;
    rec->len = cmd->len;
    rec->remote_addr = cmd->remote_addr;
    rec->rkey = (uint32_t)cmd->remote_key;
    rec->value = cmd->value;
    rec->imm = cmd->imm;
    rec->kind = cmd->op;
    qp->imms_out += imm;
    link->nposted++;
    verbs_fill(qp, qp->head - 1, &nic->wrs[batch->n], nic->sges[batch->n]);
    batch->n++;
    return 1;
}

/* The common case: a short WRITE or READ of one piece that the device reaches by itself. It is legal, too. */
static bool is_plain(const struct verbs_nic *nic, const struct weft_cmd *cmd)
{
    bool write = cmd->op == WEFT_OP_WRITE, read = cmd->op == WEFT_OP_READ;
    return (write || (read && nic->base.attr.ops & WEFT_OP_BIT(WEFT_OP_READ))) && cmd->niov == 0 &&
           cmd->len - 1 < nic->plain_max && cmd->one.len == cmd->len &&
           !(cmd->flags & WEFT_CMD_INLINE) && cmd->remote_key >> 32 == 0 &&
           (cmd->one.mem || (write && cmd->len <= nic->max_inline));
}

/* The same as post_short and verbs_fill, with what is known of it. */
static int post_plain(struct verbs_link *link, const struct weft_cmd *cmd, struct batch *batch)
{
    struct verbs_nic *nic = verbs_nic_of(link);
    struct verbs_qp *qp = &link->data[0];
    if (qp->state != VERBS_QP_LIVE || verbs_qp_room(qp) == 0 || nic->cq_room <= batch->n)
        return 0;
    const struct verbs_mem *mem = cmd->one.mem;
    uint32_t index = qp->head++, key = mem ? mem->lkey : 0;
    struct verbs_rec *rec = &qp->recs[index & qp->mask];
    bool write = cmd->op == WEFT_OP_WRITE;
    rec->ctx = cmd->ctx;
    rec->len = cmd->len;
    rec->remote_addr = cmd->remote_addr;
    rec->op = NULL;
    rec->slot = NULL;
    rec->addr = cmd->one.addr;
    rec->lkey = key;
    rec->rkey = (uint32_t)cmd->remote_key;
    rec->status = 0;
    rec->why = NULL;
    rec->niov = 0;
    rec->remote = is_remote(mem);
    rec->nothing = false;
    rec->ended = false;
    rec->tabled = false;
    rec->again = 0;
    rec->kind = cmd->op;
    link->nposted++;
    struct ibv_sge *sge = nic->sges[batch->n];
    sge->addr = (uintptr_t)cmd->one.addr;
    sge->length = (uint32_t)cmd->len;
    sge->lkey = key;
    struct ibv_send_wr *wr = &nic->wrs[batch->n++];
    wr->wr_id = verbs_wr_id(VERBS_TAG_SEND, qp, index);
    wr->sg_list = sge;
    wr->num_sge = 1;
    wr->opcode = write ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
    wr->send_flags = write && cmd->len <= nic->max_inline && !rec->remote ? IBV_SEND_INLINE : 0;
    wr->wr.rdma.remote_addr = cmd->remote_addr;
    wr->wr.rdma.rkey = (uint32_t)cmd->remote_key;
    return 1;
}

static bool local_spans(const struct weft_cmd *cmd)
{
    const struct weft_iov_local *iov = cmd->niov ? cmd->iov : &cmd->one;
    for (uint32_t i = 0, n = cmd->niov ? cmd->niov : 1; i < n; i++) {
        uint64_t len = iov[i].len;
        if (iov[i].mem)
            verbs_mem_lkey(iov[i].mem, (uintptr_t)iov[i].addr, &len);
        if (len < iov[i].len)
            return true;
    }
    return false;
}

/* An aligned word never does. */
static bool remote_spans(struct verbs_link *link, const struct weft_cmd *cmd)
{
    return link->ntables > 0 && cmd->op != WEFT_OP_ADD64 &&
           verbs_keys_span(link, (uint32_t)cmd->remote_key, cmd->remote_addr, cmd->len);
}

static bool is_short(struct verbs_link *link, const struct weft_cmd *cmd)
{
    const struct verbs_nic *nic = verbs_nic_of(link);
    bool parted = nic->nparted > 0;
    if (parted && remote_spans(link, cmd))
        return false;
    if (is_copied(nic, cmd))
        return cmd->len <= VERBS_MAX_SEND && cmd->len <= nic->short_max;
    return cmd->len <= nic->short_max && cmd->niov <= nic->max_sge &&
           !(parted && local_spans(cmd));
}

/* In chunks. What would be copied if it were short is. */
static int post_long(struct verbs_link *link, const struct weft_cmd *cmd)
{
    struct verbs_nic *nic = verbs_nic_of(link);
    struct verbs_slot *slot = NULL;
    struct verbs_op *op;
    if (cmd->len <= VERBS_MAX_SEND && (is_copied(nic, cmd) || !is_registered(cmd))) {
        slot = verbs_slot_get(&nic->sends);
        if (!slot)
            return 0;
        if (cmd->op != WEFT_OP_READ)
            verbs_gather(slot->data, cmd);
    }
    int rc = as_op(link, cmd, &op);
    if (rc < 0) {
        if (slot)
            verbs_slot_put(slot);
        return rc;
    }
    op->slot = slot;
    rc = verbs_op_start(op);
    return rc < 0 ? rc : 1;
}

/* --- all of them ------------------------------------------------------------------------------------ */

static uint32_t count_imms(const struct verbs_qp *qp, uint32_t from, uint32_t to)
{
    uint32_t imms = 0;
    for (; from != to; from++)
        imms += qp->recs[from & qp->mask].kind == WEFT_OP_WRITE_IMM;
    return imms;
}

/* Hand over what is filled in. Returns how many cmds are withdrawn, *err why. */
static int flush(struct verbs_link *link, struct batch *batch, int *err)
{
    struct verbs_qp *qp = batch->qp;
    uint32_t end = qp->head;
    int n = batch->n;
    if (n == 0)
        return 0;
    batch->n = 0;
    int taken = verbs_hand_over(qp, n, false, err);
    if (taken == n)
        return 0;
    qp->imms_out -= count_imms(qp, qp->head, end);
    link->nposted -= (uint32_t)(n - taken);
    return n - taken;
}

/* What does not go into the chain. */
static int post_other(struct verbs_link *link, const struct weft_cmd *cmd)
{
    if (cmd->op == WEFT_OP_FENCE)
        return post_fence(link, cmd);
    if (cmd->op == WEFT_OP_SEND)
        return verbs_control_send(link, cmd);
    if (cmd->remote_key >> 32)
        return refuse_key(link, cmd);
    if (cmd->len == 0 && cmd->op != WEFT_OP_WRITE_IMM)
        return post_empty(link, cmd);
    return post_long(link, cmd);
}

static bool goes_into_chain(struct verbs_link *link, const struct weft_cmd *cmd)
{
    return cmd->op != WEFT_OP_SEND && cmd->op != WEFT_OP_FENCE && cmd->remote_key >> 32 == 0 &&
           (cmd->len > 0 || cmd->op == WEFT_OP_WRITE_IMM) && is_short(link, cmd);
}

/* Post one cmd, or put it into the chain. */
static int post_one(struct verbs_link *link, const struct weft_cmd *cmd, struct batch *batch,
                    int *done, int *err)
{
    struct verbs_nic *nic = verbs_nic_of(link);
    bool plain = is_plain(nic, cmd), chain = plain || goes_into_chain(link, cmd);
    int rc = plain ? 0 : weft_cmd_check(&nic->base.attr, cmd);
    if (rc)
        return rc;
    if (batch->n == VERBS_BATCH || (!chain && batch->n > 0)) {
        int back = flush(link, batch, err);
        *done -= back;
        if (back > 0)
            return 0;
    }
    if (plain)
        return post_plain(link, cmd, batch);
    return chain ? post_short(link, cmd, batch) : post_other(link, cmd);
}

int verbs_post(struct weft_link *base, const struct weft_cmd *cmds, int n)
{
    struct verbs_link *link = (struct verbs_link *)base;
    struct verbs_nic *nic = verbs_nic_of(link);
    struct batch batch = {.qp = link->data};
    int done = 0, rc = 1, err = 0;
    if (link->state != VERBS_LINK_UP)
        return weft_fail(WEFT_ELINK, "verbs %s: %s", nic->name,
                         *link->why ? link->why : "the link is not connected");
    while (done < n && rc > 0 && !link->fence && link->nposted < base->nic->attr.tx_depth) {
        rc = post_one(link, &cmds[done], &batch, &done, &err);
        done += rc > 0;
    }
    done -= flush(link, &batch, &err);
    if (done > 0)
        return done;
    if (err && err != ENOMEM)
        return weft_fail(-err, "verbs %s: the device does not take this operation: %s", nic->name,
                         strerror(err));
    return rc < 0 ? rc : 0;
}
