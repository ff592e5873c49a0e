/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reqs: the WRITEs and READs that libfabric gets. Each is a part of an op; one that fails, or is lost with its endpoint, goes again,
 * perhaps to where the peer's memory is by then.
 */
#include <errno.h>
#include <stdlib.h>

#include "efa.h"

/* Polls of the nic in which a target has no more under way than when libfabric took no more for it, once that was so twice in
 * a row; twice as many each time that it is so again. */
#define LEAST_REST 64
#define MOST_REST 1024

/* --- a req ----------------------------------------------------------------------------------------------- */

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
    const struct weft_iov_local *pieces = efa_op_pieces(op, &n);
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

static void req_free(struct efa_nic *nic, struct efa_req *req)
{
    weft_list_remove(&req->in);
    weft_list_push_first(&nic->free_reqs, &req->in);
}

static uint64_t data_of(const struct efa_op *op)
{
    const struct efa_link *link = op->link;
    uint64_t tag = efa_tag(le32toh(link->peer.link), op->imm_seq);
    return efa_nic_of(link)->wide ? tag << 32 | op->imm : tag;
}

/* Has libfabric as much for this target as it takes? Who asks it in vain pays: over shm, which takes one operation of a peer at a
 * time, each question takes the lock that the peer needs to finish that one. */
static bool is_full(const struct efa_nic *nic, const struct efa_name *target)
{
    if (nic->nflying >= nic->flying_most)
        return true;
    return target->nflying >= target->most && nic->polls - target->most_poll < target->rest;
}

/* It took no more. Where nothing is under way no end would tell that there is room. Once may have been chance, or the work of others. */
static void was_full(const struct efa_nic *nic, struct efa_name *target)
{
    if (target->nflying == 0)
        return;
    if (target->nflying < target->most)
        target->rest = 0;
    else if (target->rest == 0)
        target->rest = LEAST_REST;
    else if (target->rest < MOST_REST)
        target->rest *= 2;
    target->most = target->nflying;
    target->most_poll = nic->polls;
}

/* Hand a req to libfabric: 0, or its negative code. Its region is known. A nic that is lost may have no endpoint. */
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
    if (nic->lost || is_full(nic, link->target) || !efa_quirk_reachable(nic, link->process))
        return -FI_EAGAIN;
    uint64_t flags = FI_DELIVERY_COMPLETE | FI_COMPLETION | (req->imm ? FI_REMOTE_CQ_DATA : 0);
    ssize_t rc = op->op == WEFT_OP_READ ? fi_readmsg(nic->work.ep, &msg, FI_COMPLETION)
                                        : fi_writemsg(nic->work.ep, &msg, flags);
    if (rc == -FI_EAGAIN)
        was_full(nic, link->target);
    if (rc)
        return (int)rc;
    req->target = efa_name_keep(link->target);
    if (req->target->nflying++ >= req->target->most)
        req->target->most = UINT32_MAX; /* there is room for more by now */
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
    req->target->nflying--;
    efa_name_put(nic, req->target);
    req->target = NULL;
}

/* Is the peer's memory where the region says it is, as far as this end has heard? */
static bool is_reachable(const struct efa_link *link, const struct efa_region *region)
{
    return (int32_t)(link->epoch - region->epoch) >= 0;
}

/* It failed: what is known of the peer's memory is asked again, and then the req goes again. One that failed because the peer's memory
 * has moved does not count beside those where it is now. */
static void retry(struct efa_req *req, const char *why)
{
    struct efa_op *op = req->op;
    struct efa_nic *nic = efa_nic_of(op->link);
    req->tries = req->epoch == req->region->epoch ? req->tries + 1 : 1;
    req->epoch = req->region->epoch;
    if (req->tries > EFA_TRIES) {
        weft_log(WEFT_LOG_INFO, "efa", "%s: a %s of %llu bytes failed: %s", nic->name,
                 weft_op_name(op->op), (unsigned long long)op->len, why);
        op->status = -EIO;
        op->why = "libfabric's provider failed it, again and again";
    }
    efa_region_doubt(req->region);
    weft_list_push(&nic->again, &req->in);
}

bool efa_req_next(struct efa_op *op, bool bulk)
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
    if (imm && !efa_imm_has_room(link))
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
        req_free(nic, req);
        return false;
    }
    region->users++;
    op->nreqs++;
    op->posted += pieces.len;
    link->nbulk += bulk;
    if (imm)
        efa_imm_out(op);
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
    req_free(nic, req);
    efa_region_leave(region);
    bool well = op->nreqs == 0 && op->status == 0 && link->state == EFA_LINK_UP;
    if (well && op->posted < op->len && weft_list_empty(&op->in))
        efa_op_ready(op); /* only its immediate is left */
    else if (well && op->posted == op->len && op->op == WEFT_OP_WRITE_IMM && nic->late_imms &&
             !op->announced)
        announce(op);
    else
        efa_op_settle(op);
    if (!weft_list_empty(&link->bulk) || !weft_list_empty(&link->shorts))
        efa_busy(link);
}

void efa_req_done(struct efa_req *req, int error, const char *why)
{
    struct efa_link *link = req->op->link;
    efa_req_back(req);
    if (!error && link->process)
        link->process->ended = efa_nic_of(link)->polls;
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
        if (op->nmsgs == 0) /* else its message is not taken yet, and ends it */
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

/* --- the end --------------------------------------------------------------------------------------------- */

void efa_req_drop(struct efa_link *link)
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
        req_free(nic, req);
    }
}
