/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cmds become ops. A SEND, an ADD64 and the immediate of a WRITE_IMM are messages; WRITE and READ are reqs, of at most
 * WEFT_EFA_CHUNK bytes each.
 *
 * Nothing is in order here. A FENCE waits until all before it has ended, and what comes after it waits for the FENCE.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "efa.h"

/* --- ops ------------------------------------------------------------------------------------------------- */

static struct efa_op *op_new(struct efa_link *link, const struct weft_cmd *cmd)
{
    struct efa_nic *nic = efa_nic_of(link);
    struct efa_op *op;
    if (!weft_list_empty(&nic->free_ops)) {
        op = WEFT_LIST_OF(nic->free_ops.next, struct efa_op, in);
        weft_list_remove(&op->in);
    } else if (!(op = malloc(sizeof *op))) {
        return NULL;
    }
    *op = (struct efa_op){.link = link,
                          .op = cmd->op,
                          .niov = cmd->niov,
                          .imm = cmd->imm,
                          .remote_addr = cmd->remote_addr,
                          .remote_key = cmd->remote_key,
                          .len = cmd->op == WEFT_OP_FENCE ? 0 : cmd->len,
                          .ctx = cmd->ctx,
                          .value = cmd->value};
    if (cmd->niov > 0)
        op->iov = cmd->iov;
    else
        op->one = cmd->one;
    weft_list_init(&op->in);
    weft_list_init(&op->all);
    weft_list_push(&link->ops, &op->all);
    return op;
}

static void give_back(struct efa_op *op)
{
    for (uint32_t i = 0; i < (op->iov ? op->niov : 1u); i++)
        if (op->loans[i])
            fi_close(&op->loans[i]->fid);
    free(op->loans);
}

void efa_op_free(struct efa_op *op)
{
    if (op->loans)
        give_back(op);
    if (op->slot)
        efa_slot_put(op->slot);
    weft_list_remove(&op->all);
    weft_list_remove(&op->in);
    weft_list_push(&efa_nic_of(op->link)->free_ops, &op->in);
}

/* It has ended, and is in no list but link->ops. */
static void op_end(struct efa_op *op)
{
    struct efa_link *link = op->link;
    struct efa_nic *nic = efa_nic_of(link);
    weft_list_remove(&op->in);
    link->nopen -= op->op != WEFT_OP_FENCE;
    nic->nlong -= op->len > EFA_SHORT;
    link->nimms -= op->numbered;
    if (link->state == EFA_LINK_UP) {
        weft_list_push(&nic->done, &op->in);
    } else {
        link->nposted--;
        efa_op_free(op);
    }
    if (!weft_list_empty(&link->fenced) || !weft_list_empty(&link->shorts) ||
        !weft_list_empty(&link->bulk))
        efa_busy(link);
}

static void end_if_done(struct efa_op *op)
{
    if (op->nreqs == 0 && op->nmsgs == 0 && (op->status || op->posted == op->len))
        op_end(op);
}

void efa_op_fail(struct efa_op *op, int status, const char *why)
{
    if (op->status == 0) {
        op->status = status;
        op->why = why;
    }
    weft_list_remove(&op->in);
    end_if_done(op);
}

void efa_op_message_done(struct efa_op *op)
{
    op->nmsgs--;
    end_if_done(op);
}

/* --- payload --------------------------------------------------------------------------------------------- */

static const struct weft_iov_local *pieces_of(const struct efa_op *op, uint32_t *n)
{
    *n = op->iov ? op->niov : 1;
    return op->iov ? op->iov : &op->one;
}

void efa_op_gather(const struct efa_op *op, void *to)
{
    uint32_t n;
    const struct weft_iov_local *pieces = pieces_of(op, &n);
    uint8_t *at = to;
    if (op->slot && op->len > 0)
        memcpy(to, op->slot->data, op->len);
    for (uint32_t i = 0; i < n && !op->slot; i++) {
        if (pieces[i].len > 0)
            memcpy(at, pieces[i].addr, pieces[i].len);
        at += pieces[i].len;
    }
}

void efa_op_scatter(const struct efa_op *op, uint64_t offset, const void *from, size_t n)
{
    uint32_t npieces;
    const struct weft_iov_local *pieces = pieces_of(op, &npieces);
    const uint8_t *at = from;
    for (uint32_t i = 0; i < npieces && n > 0; i++) {
        if (offset >= pieces[i].len) {
            offset -= pieces[i].len;
            continue;
        }
        size_t part = pieces[i].len - offset < n ? pieces[i].len - offset : n;
        memcpy((uint8_t *)pieces[i].addr + offset, at, part);
        at += part;
        n -= part;
        offset = 0;
    }
}

struct pieces {
    struct iovec iov[EFA_MAX_PIECES];
    void *desc[EFA_MAX_PIECES];
    uint32_t n;
    uint64_t len;
};

/* Of the payload from offset on: at most `most` bytes in at most max pieces. */
static void cut(const struct efa_op *op, uint64_t offset, uint64_t most, uint32_t max,
                struct pieces *out)
{
    uint32_t n;
    const struct weft_iov_local *pieces = pieces_of(op, &n);
    out->n = 0;
    out->len = 0;
    if (op->slot) {
        out->iov[0] = (struct iovec){(uint8_t *)op->slot->data + offset, op->len - offset};
        out->desc[0] = op->slot->desc;
        out->len = op->len - offset;
        out->n = 1;
        return;
    }
    for (uint32_t i = 0; i < n && out->n < max && out->len < most; i++) {
        uint64_t left = most - out->len, len;
        const struct efa_mem *mem = pieces[i].mem;
        if (offset >= pieces[i].len) {
            offset -= pieces[i].len;
            continue;
        }
        len = pieces[i].len - offset;
        if (len > left)
            len = left;
        out->iov[out->n] = (struct iovec){(uint8_t *)pieces[i].addr + offset, len};
        out->desc[out->n++] = mem ? mem->desc : op->loans ? fi_mr_desc(op->loans[i]) : NULL;
        out->len += len;
        offset = 0;
    }
}

/* --- reqs ------------------------------------------------------------------------------------------------ */

static struct efa_req *req_new(struct efa_nic *nic)
{
    struct efa_req *req;
    if (weft_list_empty(&nic->free_reqs)) {
        req = malloc(sizeof *req);
        if (!req)
            return NULL;
        *req = (struct efa_req){.call.kind = EFA_CALL_REQ};
        weft_list_init(&req->in);
        return req;
    }
    req = WEFT_LIST_OF(nic->free_reqs.next, struct efa_req, in);
    weft_list_remove(&req->in);
    *req = (struct efa_req){.call.kind = EFA_CALL_REQ};
    weft_list_init(&req->in);
    return req;
}

void efa_req_free(struct efa_nic *nic, struct efa_req *req)
{
    weft_list_remove(&req->in);
    weft_list_push(&nic->free_reqs, &req->in);
}

static uint64_t data_of(const struct efa_op *op)
{
    const struct efa_link *link = op->link;
    uint64_t tag = efa_tag(le32toh(link->peer.link), op->imm_seq);
    return efa_nic_of(link)->wide ? tag << 32 | op->imm : tag;
}

/* Hand a req to libfabric: 0, or its negative code. Its region is known. */
static int req_post(struct efa_req *req, const struct pieces *pieces)
{
    const struct efa_op *op = req->op;
    struct efa_link *link = op->link;
    struct efa_nic *nic = efa_nic_of(link);
    const struct efa_region *region = req->region;
    struct fi_rma_iov far = {.addr = op->remote_addr + req->offset - region->base,
                             .len = pieces->len,
                             .key = region->rkey};
    struct fi_msg_rma msg = {.msg_iov = pieces->iov,
                             .desc = (void **)pieces->desc,
                             .iov_count = pieces->n,
                             .addr = link->target->addr,
                             .rma_iov = &far,
                             .rma_iov_count = 1,
                             .context = &req->call.context,
                             .data = req->imm ? data_of(op) : 0};
    if (nic->nflying >= nic->flying_most || !efa_quirk_reachable(nic, link->process))
        return -FI_EAGAIN;
    uint64_t flags = FI_DELIVERY_COMPLETE | FI_COMPLETION | (req->imm ? FI_REMOTE_CQ_DATA : 0);
    ssize_t rc = op->op == WEFT_OP_READ ? fi_readmsg(nic->work.ep, &msg, FI_COMPLETION)
                                        : fi_writemsg(nic->work.ep, &msg, flags);
    if (rc)
        return (int)rc;
    req->target = efa_name_keep(link->target);
    weft_list_push(&nic->flying, &req->in);
    nic->nflying++;
    link->nflying++;
    return 0;
}

void efa_req_back(struct efa_req *req)
{
    struct efa_link *link = req->op->link;
    struct efa_nic *nic = efa_nic_of(link);
    weft_list_remove(&req->in);
    nic->nflying--;
    link->nflying--;
    efa_name_put(nic, req->target);
    req->target = NULL;
}

/* Is the peer's memory where the region says it is, as far as this end has heard? */
static bool is_reachable(const struct efa_link *link, const struct efa_region *region)
{
    return (int32_t)(link->epoch - region->epoch) >= 0;
}

/* It failed: what is known of the peer's memory is asked again, and then the req goes again. */
static void retry(struct efa_req *req, const char *why)
{
    struct efa_op *op = req->op;
    struct efa_nic *nic = efa_nic_of(op->link);
    if (++op->tries > EFA_TRIES) {
        weft_log(WEFT_LOG_INFO, "efa", "%s: a %s of %llu bytes failed: %s", nic->name,
                 weft_op_name(op->op), (unsigned long long)op->len, why);
        op->status = -EIO;
        op->why = "libfabric's provider failed it, again and again";
    }
    efa_region_doubt(req->region);
    weft_list_push(&nic->again, &req->in);
}

/* The next req of an op that has more: false, there is no room. */
static bool post_next(struct efa_op *op, bool bulk)
{
    struct efa_link *link = op->link;
    struct efa_nic *nic = efa_nic_of(link);
    struct pieces pieces;
    struct efa_region *region = efa_region_of(op);
    if (!region)
        return true;
    if (!is_reachable(link, region))
        return false;
    cut(op, op->posted, nic->chunk, nic->max_pieces, &pieces);
    bool last = op->posted + pieces.len == op->len;
    bool imm = last && op->op == WEFT_OP_WRITE_IMM && !nic->late_imms;
    if (imm && op->nreqs > 0) { /* the data comes first */
        weft_list_remove(&op->in);
        return true;
    }
    if (imm && link->nimms >= EFA_IMMS)
        return false;
    struct efa_req *req = req_new(nic);
    if (!req)
        return false;
    req->op = op;
    req->region = region;
    req->offset = op->posted;
    req->len = pieces.len;
    req->imm = imm;
    req->bulk = bulk;
    if (imm)
        op->imm_seq = link->imm_seq;
    int rc = req_post(req, &pieces);
    if (rc == -FI_EAGAIN) {
        efa_req_free(nic, req);
        return false;
    }
    region->users++;
    op->nreqs++;
    op->posted += pieces.len;
    link->nbulk += bulk;
    if (imm) {
        link->imm_seq++;
        link->nimms++;
        op->numbered = true;
    }
    if (last)
        weft_list_remove(&op->in);
    if (imm && !nic->wide) {
        op->nmsgs++;
        weft_list_push(&link->sends, &op->in);
        efa_busy(link);
    }
    if (rc)
        retry(req, nic->lib->strerror(-rc));
    return true;
}

/* The bytes are there: now the peer hears of them. */
static void announce(struct efa_op *op)
{
    op->announced = true;
    op->nmsgs++;
    weft_list_push(&op->link->sends, &op->in);
    efa_busy(op->link);
}

/* A req has ended, well or for good. */
static void req_end(struct efa_req *req)
{
    struct efa_op *op = req->op;
    struct efa_link *link = op->link;
    struct efa_nic *nic = efa_nic_of(link);
    struct efa_region *region = req->region;
    op->nreqs--;
    link->nbulk -= req->bulk;
    efa_req_free(nic, req);
    efa_region_leave(region);
    bool well = op->nreqs == 0 && op->status == 0 && link->state == EFA_LINK_UP;
    if (well && op->posted < op->len && weft_list_empty(&op->in))
        efa_op_ready(op); /* only its immediate is left */
    else if (well && op->posted == op->len && op->op == WEFT_OP_WRITE_IMM && nic->late_imms &&
             !op->announced)
        announce(op);
    else
        end_if_done(op);
    if (!weft_list_empty(&link->bulk) || !weft_list_empty(&link->shorts))
        efa_busy(link);
}

void efa_req_done(struct efa_req *req, int error, const char *why)
{
    struct efa_link *link = req->op->link;
    efa_req_back(req);
    if (error && link->state == EFA_LINK_UP)
        retry(req, why);
    else
        req_end(req);
    if (link->nflying == 0)
        efa_link_quiet(link);
}

/* The key is looked up once more. False: it has to wait for the answer. */
static bool find_region(struct efa_req *req)
{
    struct efa_op *op = req->op;
    struct efa_link *link = op->link;
    if (req->region->state == EFA_REGION_STALE) {
        struct efa_region *region = efa_region_get(link, op->remote_key), *old = req->region;
        if (!region)
            return false;
        region->users++;
        req->region = region;
        efa_region_leave(old);
    }
    switch (req->region->state) {
    case EFA_REGION_KNOWN:
        if (!op->status)
            op->status = efa_judge(req->region->addr, req->region->len, req->region->access, op->op,
                                   op->remote_addr, op->len);
        return true;
    case EFA_REGION_NONE:
        if (!op->status)
            op->status = req->region->status;
        return true;
    default:
        return false;
    }
}

static void again(struct efa_nic *nic, struct efa_req *req)
{
    struct efa_op *op = req->op;
    struct efa_link *link = op->link;
    struct pieces pieces;
    if (link->state != EFA_LINK_UP)
        return; /* until link_close */
    if (!op->status && !find_region(req))
        return;
    if (op->status) {
        weft_list_remove(&op->in);
        weft_list_remove(&req->in);
        req_end(req);
        return;
    }
    if (!is_reachable(link, req->region))
        return;
    cut(op, req->offset, req->len, nic->max_pieces, &pieces);
    weft_list_remove(&req->in);
    int rc = req_post(req, &pieces);
    if (rc == -FI_EAGAIN) {
        weft_list_push(&nic->again, &req->in);
        nic->full = true;
    } else if (rc) {
        retry(req, nic->lib->strerror(-rc));
    }
}

void efa_req_again(struct efa_nic *nic)
{
    struct weft_list todo = nic->again;
    todo.next->prev = todo.prev->next = &todo;
    weft_list_init(&nic->again);
    while (!weft_list_empty(&todo)) {
        struct efa_req *req = WEFT_LIST_OF(todo.next, struct efa_req, in);
        weft_list_remove(&req->in);
        weft_list_push(&nic->again, &req->in);
        again(nic, req);
    }
}

/* --- posting --------------------------------------------------------------------------------------------- */

void efa_op_ready(struct efa_op *op)
{
    struct efa_link *link = op->link;
    if (op->len == 0 && op->op != WEFT_OP_WRITE_IMM) { /* judged, and that was all */
        op_end(op);
        return;
    }
    if (op->len == 0) {
        op->nmsgs++;
        weft_list_push(&link->sends, &op->in);
    } else {
        weft_list_push(op->len > EFA_SHORT ? &link->bulk : &link->shorts, &op->in);
    }
    efa_busy(link);
}

static bool is_message(const struct efa_op *op)
{
    return op->op == WEFT_OP_SEND || op->op == WEFT_OP_ADD64 ||
           (op->op == WEFT_OP_READ && efa_nic_of(op->link)->fetches);
}

static void admit(struct efa_op *op)
{
    struct efa_link *link = op->link;
    link->nopen++;
    efa_nic_of(link)->nlong += op->len > EFA_SHORT;
    if (is_message(op)) {
        op->nmsgs++;
        op->posted = op->len;
        op->id = link->next_id++;
        weft_list_push(&link->sends, &op->in);
        efa_busy(link);
    } else if (efa_region_of(op)) {
        efa_op_ready(op);
    }
}

/* What waits behind fences that have nothing before them any more. */
static void run_fences(struct efa_link *link)
{
    while (!weft_list_empty(&link->fenced) && link->state == EFA_LINK_UP) {
        struct efa_op *op = WEFT_LIST_OF(link->fenced.next, struct efa_op, in);
        bool fence = op->op == WEFT_OP_FENCE;
        if (fence && link->nopen > 0)
            return;
        weft_list_remove(&op->in);
        if (fence)
            op_end(op);
        else
            admit(op);
    }
}

/* True: all of the list is posted, or waits for something else than room. */
static bool pump_shorts(struct efa_link *link)
{
    while (!weft_list_empty(&link->shorts))
        if (!post_next(WEFT_LIST_OF(link->shorts.next, struct efa_op, in), false))
            return false;
    return true;
}

/* A chunk of each in turn. */
static bool pump_bulk(struct efa_link *link)
{
    while (!weft_list_empty(&link->bulk) && link->nbulk < EFA_WINDOW) {
        struct efa_op *op = WEFT_LIST_OF(link->bulk.next, struct efa_op, in);
        struct weft_list *item = &op->in;
        if (!post_next(op, true))
            return false;
        if (link->bulk.next == item) { /* it has more */
            weft_list_remove(item);
            weft_list_push(&link->bulk, item);
        }
    }
    return true;
}

void efa_op_pump(struct efa_link *link)
{
    if (link->state != EFA_LINK_UP)
        return;
    if (!weft_list_empty(&link->fenced))
        run_fences(link);
    if (!pump_shorts(link) || !pump_bulk(link))
        efa_busy(link);
    if (!weft_list_empty(&link->sends) || !weft_list_empty(&link->notes))
        efa_msg_flush(link);
}

/* Payload that post copies. */
static int copy_inline(struct efa_op *op)
{
    struct efa_slot *slot = efa_slot_get(&efa_nic_of(op->link)->smalls);
    if (!slot)
        return -ENOMEM;
    efa_op_gather(op, slot->data);
    op->slot = slot;
    return 0;
}

/* Memory that the user has not registered is, for as long as the operation takes. */
static int borrow(struct efa_op *op)
{
    struct efa_nic *nic = efa_nic_of(op->link);
    uint32_t n, i = 0;
    const struct weft_iov_local *pieces = pieces_of(op, &n);
    int rc = 0;
    while (i < n && (pieces[i].mem || pieces[i].len == 0))
        i++;
    if (i == n)
        return 0;
    op->loans = calloc(n, sizeof *op->loans);
    if (!op->loans)
        return weft_fail(-ENOMEM, "efa: no memory for an operation");
    for (; i < n && rc == 0; i++)
        if (!pieces[i].mem && pieces[i].len > 0)
            rc = efa_mr_reg(nic, pieces[i].addr, pieces[i].len, FI_READ | FI_WRITE, &op->loans[i]);
    return rc;
}

static bool needs_registration(const struct efa_op *op)
{
    bool moves = op->op == WEFT_OP_READ || op->op == WEFT_OP_WRITE || op->op == WEFT_OP_WRITE_IMM;
    return efa_nic_of(op->link)->base.attr.local_reg && moves && !op->slot && op->len > 0 &&
           !is_message(op);
}

/* What the processor copies has to be the host's: the payload of messages. */
static int check_copied(const struct efa_op *op)
{
    uint32_t n;
    const struct weft_iov_local *pieces = pieces_of(op, &n);
    for (uint32_t i = 0; op->op == WEFT_OP_SEND && i < n; i++) {
        const struct efa_mem *mem = pieces[i].mem;
        if (mem && mem->range.kind != WEFT_MEM_HOST)
            return weft_fail(WEFT_EUNSUPPORTED, "efa %s: the payload of a message is in a GPU's memory",
                             efa_nic_of(op->link)->name);
    }
    return 0;
}

/* 1 accepted, or why not. */
static int post_one(struct efa_link *link, const struct weft_cmd *cmd)
{
    struct efa_op *op = op_new(link, cmd);
    if (!op)
        return weft_fail(-ENOMEM, "efa: no memory for an operation");
    if (cmd->flags & WEFT_CMD_INLINE && cmd->len > 0 && copy_inline(op)) {
        efa_op_free(op);
        return weft_fail(-ENOMEM, "efa: no memory for inline payload");
    }
    int rc = check_copied(op);
    if (rc == 0 && needs_registration(op))
        rc = borrow(op);
    if (rc) {
        efa_op_free(op);
        return rc;
    }
    link->nposted++;
    if (cmd->op == WEFT_OP_FENCE || !weft_list_empty(&link->fenced)) {
        weft_list_push(&link->fenced, &op->in);
        efa_busy(link);
    } else {
        admit(op);
    }
    return 1;
}

int efa_post(struct weft_link *base, const struct weft_cmd *cmds, int n)
{
    struct efa_link *link = (struct efa_link *)base;
    struct efa_nic *nic = efa_nic_of(link);
    int took = 0, rc = 0;
    if (link->state != EFA_LINK_UP)
        return link->state < EFA_LINK_UP
                   ? weft_fail(-ENOTCONN, "efa %s: the link is not connected", nic->name)
                   : weft_fail(WEFT_ELINK, "%s", link->why);
    while (took < n && link->nposted < nic->depth) {
        rc = weft_cmd_check(&nic->base.attr, &cmds[took]);
        if (rc == 0)
            rc = post_one(link, &cmds[took]);
        if (rc < 0)
            break;
        took++;
    }
    if (took > 0 && link->state == EFA_LINK_UP)
        efa_op_pump(link);
    return took > 0 || rc >= 0 ? took : rc;
}

struct efa_op *efa_op_asked(struct efa_link *link, uint32_t id, enum weft_op kind)
{
    for (struct weft_list *at = link->asked.next; at != &link->asked; at = at->next) {
        struct efa_op *op = WEFT_LIST_OF(at, struct efa_op, in);
        if (op->id == id && op->op == kind)
            return op;
    }
    return NULL;
}

void efa_op_added(struct efa_link *link, const struct efa_added_msg *msg)
{
    struct efa_op *op = efa_op_asked(link, le32toh(msg->id), WEFT_OP_ADD64);
    if (!op) {
        efa_link_fail(link, WEFT_EPROTO,
                      "efa %s: the peer answers an addition that was not asked for",
                      efa_nic_of(link)->name);
        return;
    }
    op->status = (int32_t)le32toh((uint32_t)msg->status);
    op->why = op->status ? "the peer refused the addition" : NULL;
    op->value = le64toh(msg->value);
    weft_list_remove(&op->in);
    efa_op_message_done(op);
}

/* --- the end --------------------------------------------------------------------------------------------- */

static void drop_again(struct efa_link *link)
{
    struct efa_nic *nic = efa_nic_of(link);
    for (struct weft_list *at = nic->again.next, *next; at != &nic->again; at = next) {
        struct efa_req *req = WEFT_LIST_OF(at, struct efa_req, in);
        next = at->next;
        if (req->op->link != link)
            continue;
        req->op->nreqs--;
        link->nbulk -= req->bulk;
        efa_region_leave(req->region);
        efa_req_free(nic, req);
    }
}

static void op_drop(struct efa_op *op)
{
    struct efa_nic *nic = efa_nic_of(op->link);
    nic->nlong -= op->len > EFA_SHORT;
    efa_op_free(op);
}

void efa_op_drop(struct efa_link *link)
{
    drop_again(link);
    for (struct weft_list *at = link->ops.next, *next; at != &link->ops; at = next) {
        struct efa_op *op = WEFT_LIST_OF(at, struct efa_op, all);
        next = at->next;
        weft_list_remove(&op->in);
        op->nmsgs = 0;
        op->status = WEFT_ELINK; /* no more of it is posted */
        if (op->nreqs == 0)
            op_drop(op);
    }
}

void efa_op_drop_rest(struct efa_link *link)
{
    drop_again(link);
    while (!weft_list_empty(&link->ops))
        op_drop(WEFT_LIST_OF(link->ops.next, struct efa_op, all));
}
