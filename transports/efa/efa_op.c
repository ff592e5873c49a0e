/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cmds become ops. A SEND, an ADD64, a READ shorter than nic->fetch_below and an immediate that does not all go with its WRITE are
 * messages; WRITE and READ are reqs (efa_req.c), of at most WEFT_EFA_CHUNK bytes each.
 *
 * Nothing is in order here. A FENCE waits until all before it has ended, and what comes after it waits for the FENCE.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "efa.h"

/* --- ops ------------------------------------------------------------------------------------------------- */

/* The first free op, which stays there. NULL: no memory. */
static struct efa_op *op_free_one(struct efa_nic *nic)
{
    if (weft_list_empty(&nic->free_ops)) {
        struct efa_op *op = malloc(sizeof *op);
        if (!op)
            return NULL;
        weft_list_push(&nic->free_ops, &op->in);
    }
    return WEFT_LIST_OF(nic->free_ops.next, struct efa_op, in);
}

static struct efa_op *op_new(struct efa_link *link, const struct weft_cmd *cmd)
{
    struct efa_op *op = op_free_one(efa_nic_of(link));
    if (!op)
        return NULL;
    weft_list_remove(&op->in);
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
    weft_list_push_first(&efa_nic_of(op->link)->free_ops, &op->in);
}

/* Once: what has ended may be dropped, too, before it is handed out. */
static void uncount(struct efa_op *op)
{
    efa_nic_of(op->link)->nlong -= op->longer;
    op->longer = false;
}

/* It has ended, and is in no list but link->ops. */
static void op_end(struct efa_op *op)
{
    struct efa_link *link = op->link;
    struct efa_nic *nic = efa_nic_of(link);
    weft_list_remove(&op->in);
    link->nopen -= op->op != WEFT_OP_FENCE;
    uncount(op);
    efa_imm_ended(op);
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

void efa_op_settle(struct efa_op *op)
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
    efa_op_settle(op);
}

void efa_op_message_done(struct efa_op *op)
{
    op->nmsgs--;
    efa_op_settle(op);
}

/* --- payload --------------------------------------------------------------------------------------------- */

const struct weft_iov_local *efa_op_pieces(const struct efa_op *op, uint32_t *n)
{
    *n = op->iov ? op->niov : 1;
    return op->iov ? op->iov : &op->one;
}

void efa_gather(const struct weft_iov_local *pieces, uint32_t n, void *to)
{
    uint8_t *at = to;
    for (uint32_t i = 0; i < n; at += pieces[i++].len)
        if (pieces[i].len > 0)
            memcpy(at, pieces[i].addr, pieces[i].len);
}

void efa_op_gather(const struct efa_op *op, void *to)
{
    uint32_t n;
    const struct weft_iov_local *pieces = efa_op_pieces(op, &n);
    if (!op->slot)
        efa_gather(pieces, n, to);
    else if (op->len > 0)
        memcpy(to, op->slot->data, op->len);
}

void efa_op_scatter(const struct efa_op *op, uint64_t offset, const void *from, size_t n)
{
    uint32_t npieces;
    const struct weft_iov_local *pieces = efa_op_pieces(op, &npieces);
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
           (op->op == WEFT_OP_READ && op->len < efa_nic_of(op->link)->fetch_below);
}

static void admit(struct efa_op *op)
{
    struct efa_link *link = op->link;
    link->nopen++;
    op->longer = op->len > EFA_SHORT;
    efa_nic_of(link)->nlong += op->longer;
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
        if (!efa_req_next(WEFT_LIST_OF(link->shorts.next, struct efa_op, in), false))
            return false;
    return true;
}

/* A chunk of each in turn. */
static bool pump_bulk(struct efa_link *link)
{
    while (!weft_list_empty(&link->bulk) && link->nbulk < EFA_WINDOW) {
        struct efa_op *op = WEFT_LIST_OF(link->bulk.next, struct efa_op, in);
        struct weft_list *item = &op->in;
        if (!efa_req_next(op, true))
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
    const struct weft_iov_local *pieces = efa_op_pieces(op, &n);
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
static int check_copied(const struct efa_nic *nic, const struct weft_cmd *cmd)
{
    const struct weft_iov_local *pieces = cmd->niov ? cmd->iov : &cmd->one;
    for (uint32_t i = 0, n = cmd->niov ? cmd->niov : 1; cmd->op == WEFT_OP_SEND && i < n; i++) {
        const struct efa_mem *mem = pieces[i].mem;
        if (mem && mem->range.kind != WEFT_MEM_HOST)
            return weft_fail(WEFT_EUNSUPPORTED, "efa %s: the payload of a message is in a GPU's memory", nic->name);
    }
    return 0;
}

/* A message that nothing is in the way of goes at once; the op, of which there is one, is made while it is on its way. 1; 0
 * not now; or why not. */
static int send_now(struct efa_link *link, const struct weft_cmd *cmd)
{
    if (cmd->op != WEFT_OP_SEND || !weft_list_empty(&link->fenced))
        return 0;
    int rc = efa_msg_send(link, cmd);
    if (rc <= 0)
        return rc < 0 ? weft_fail(WEFT_ELINK, "%s", link->why) : 0;
    struct efa_op *op = op_new(link, cmd);
    op->nmsgs = 1;
    op->posted = op->len;
    op->seq = link->seq - 1;
    link->nposted++;
    link->nopen++;
    weft_list_push(&link->untaken, &op->in);
    return 1;
}

/* 1 accepted, or why not. */
static int post_one(struct efa_link *link, const struct weft_cmd *cmd)
{
    struct efa_nic *nic = efa_nic_of(link);
    int rc = op_free_one(nic) ? check_copied(nic, cmd) : weft_fail(-ENOMEM, "efa: no memory for an operation");
    if (rc == 0)
        rc = send_now(link, cmd);
    if (rc)
        return rc;
    struct efa_op *op = op_new(link, cmd);
    if (cmd->flags & WEFT_CMD_INLINE && cmd->len > 0 && copy_inline(op)) {
        efa_op_free(op);
        return weft_fail(-ENOMEM, "efa: no memory for inline payload");
    }
    rc = needs_registration(op) ? borrow(op) : 0;
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
    if (nic->lost)
        return weft_fail(nic->lost, "efa %s: the device is lost", nic->name);
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
    op->status = efa_status_of(msg->status);
    op->why = op->status ? "the peer refused the addition" : NULL;
    op->value = le64toh(msg->value);
    weft_list_remove(&op->in);
    efa_op_message_done(op);
}

/* --- the end --------------------------------------------------------------------------------------------- */

static void op_drop(struct efa_op *op)
{
    uncount(op);
    efa_op_free(op);
}

void efa_op_drop(struct efa_link *link)
{
    efa_req_drop(link);
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
    efa_req_drop(link);
    while (!weft_list_empty(&link->ops))
        op_drop(WEFT_LIST_OF(link->ops.next, struct efa_op, all));
}
