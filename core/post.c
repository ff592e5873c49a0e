/* SPDX-License-Identifier: Apache-2.0 */
/* weft_post: from what the caller asks for to an op that is under way. */
#include "after.h"
#include "conn.h"
#include "endpoint.h"
#include "ipc.h"
#include "lane.h"
#include "match.h"
#include "mem.h"
#include "msg.h"
#include "op.h"
#include "stage.h"
#include "stripe.h"
#include "util.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int refuse(const char *what)
{
    return weft_fail(-EINVAL, "weft_post: %s", what);
}

static int check_others(const struct weft_xfer *x)
{
    if (x->op != WEFT_XFER_ADD && x->nremote)
        return refuse("this operation has no remote pieces");
    if (x->op == WEFT_XFER_ADD && (x->nremote != 1 || x->nlocal))
        return refuse("an ADD has one remote piece and no local one");
    if (x->op == WEFT_XFER_NOTIFY && (x->nlocal || !x->notify))
        return refuse("a NOTIFY has a notification and nothing else");
    if ((x->op == WEFT_XFER_SEND || x->op == WEFT_XFER_RECV) && x->notify)
        return refuse("a SEND or RECV carries no notification");
    return 0;
}

static int check_xfer(const struct weft_xfer *x)
{
    if (x->op < WEFT_XFER_WRITE || x->op > WEFT_XFER_ADD)
        return weft_fail(-EINVAL, "weft_post: there is no operation %d", (int)x->op);
    if (x->flags & ~WEFT_XFER_MORE)
        return weft_fail(-EINVAL, "weft_post: unknown flags 0x%x", x->flags);
    if (x->nlocal && !x->local)
        return refuse("local is NULL");
    if (x->nremote && !x->remote)
        return refuse("remote is NULL");
    if (x->notify_len && !x->notify)
        return refuse("notify is NULL");
    if (x->nlocal > UINT32_MAX)
        return refuse("too many pieces");
    if (x->op != WEFT_XFER_WRITE && x->op != WEFT_XFER_READ)
        return check_others(x);
    if (x->nlocal != x->nremote)
        return weft_fail(-EINVAL, "weft_post: %zu local and %zu remote pieces", x->nlocal,
                         x->nremote);
    return 0;
}

/* Local piece i, when those before it have so many bytes. */
static int check_local(const struct weft_xfer *x, size_t i, uint64_t total)
{
    if (WEFT_UNLIKELY(!x->local[i].addr) && x->local[i].len)
        return weft_fail(-EINVAL, "weft_post: local[%zu].addr is NULL", i);
    if (WEFT_UNLIKELY(x->local[i].len > INT64_MAX - total))
        return weft_fail(-EINVAL, "weft_post: the pieces add up to more than 2^63 bytes");
    return 0;
}

static const uint32_t needs[] = {
    [WEFT_XFER_WRITE] = WEFT_WRITE, [WEFT_XFER_READ] = WEFT_READ, [WEFT_XFER_ADD] = WEFT_ATOMIC};

/* The remote half of piece i. */
static int fill_remote(struct weft__piece *piece, const struct weft__conn *conn,
                       const struct weft_xfer *x, size_t i)
{
    struct weft__remote r;
    int rc = weft__remote_check(&x->remote[i], &r);
    if (WEFT_UNLIKELY(rc)) /* the argument is wrong, not the peer */
        return weft_fail(rc == WEFT_EPROTO ? -EINVAL : rc, "remote[%zu]: %s", i,
                         weft_last_error());
    uint64_t offset = x->remote_offset ? x->remote_offset[i] : 0;
    if (offset > r.len || piece->len > r.len - offset)
        return weft_fail(WEFT_EBOUNDS, "remote[%zu] has %llu bytes; %llu at %llu do not fit", i,
                         (unsigned long long)r.len, (unsigned long long)piece->len,
                         (unsigned long long)offset);
    if (!(r.access & needs[x->op]))
        return weft_fail(WEFT_EACCESS, "remote[%zu] was not registered for this operation", i);
    if (x->op == WEFT_XFER_ADD && (r.addr + offset) % 8)
        return weft_fail(-EINVAL, "remote[%zu]: an ADD needs an address aligned to 8", i);
    if (conn->peer_owner && r.owner != conn->peer_owner)
        return weft_fail(WEFT_EKEY, "remote[%zu] belongs to another endpoint than the peer", i);
    piece->raddr = r.addr + offset;
    piece->rkey = r.key;
    piece->far = r.access & WEFT__REMOTE_FLAGS;
    weft__remote_keys(&x->remote[i], piece->rkeys);
    return 0;
}

/* The local registration of piece i. Most are in the mem of the one before, which need not be looked up again. */
static inline int fill_reg(struct weft__piece *piece, struct weft__endpoint *ep,
                           const struct weft_xfer *x, size_t i)
{
    const weft_mem_t mem = x->local[i].mem;
    struct weft__last *last = &ep->last[x->op == WEFT_XFER_RECV || x->op == WEFT_XFER_READ];
    piece->reg = NULL;
    if (WEFT_UNLIKELY(!mem))
        return 0;
    if (WEFT_LIKELY(mem == last->mem && weft__reg_contains(last->reg, piece->addr, piece->len))) {
        piece->reg = last->reg;
    } else {
        int rc = weft__mem_reg_of(ep, mem, piece->addr, piece->len, &piece->reg);
        if (rc)
            return weft_fail(rc, "local[%zu]: %s", i, weft_last_error());
        *last = (struct weft__last){mem, piece->reg};
    }
    if (WEFT_UNLIKELY(piece->reg->apart))
        piece->gpu = (uint16_t)(1 + piece->reg->ordinal);
    return 0;
}

static inline WEFT__INLINE int fill_piece(struct weft__op *op, struct weft__conn *conn,
                                          const struct weft_xfer *x, size_t i)
{
    struct weft__piece *piece = &op->pieces[i];
    piece->gpu = 0;
    piece->far = 0;
    if (WEFT_LIKELY(i < x->nlocal)) {
        piece->addr = x->local[i].addr;
        piece->len = x->local[i].len;
        int rc = check_local(x, i, op->total);
        if (rc == 0)
            rc = fill_reg(piece, conn->ep, x, i);
        if (rc)
            return rc;
    } else {
        piece->reg = NULL;
        piece->addr = NULL;
        piece->len = sizeof(uint64_t); /* ADD */
    }
    int rc = x->nremote ? fill_remote(piece, conn, x, i) : 0;
    if (WEFT_UNLIKELY(rc))
        return rc;
    if (WEFT_LIKELY(piece->reg != NULL))
        piece->reg->users++;
    op->total += piece->len;
    op->staged |= piece->gpu | piece->far;
    return 0;
}

/* Endpoint lock held. */
static int fill(struct weft__op *op, struct weft__conn *conn, const struct weft_xfer *x)
{
    size_t n = x->op == WEFT_XFER_ADD ? 1 : x->nlocal;
    bool pooled = n >= WEFT__POOL_FROM && n <= WEFT__POOL_PIECES;
    op->pieces = &op->one;
    if (WEFT_UNLIKELY(pooled))
        op->pieces = weft__pool_get(&conn->ep->pieces, WEFT__POOL_PIECES * sizeof *op->pieces);
    else if (WEFT_UNLIKELY(n > 1))
        op->pieces = malloc(n * sizeof *op->pieces);
    if (!op->pieces)
        return weft_fail(-ENOMEM, "no memory for %zu pieces", n);
    op->pooled = pooled;
    for (size_t i = 0; i < n; op->npieces = ++i) {
        int rc = fill_piece(op, conn, x, i);
        if (rc)
            return rc;
    }
    op->value = x->value;
    op->result = x->result;
    op->more = x->flags & WEFT_XFER_MORE;
    return 0;
}

/* --- lists that are copied as they are ------------------------------------------------------ */

#define LIST_FROM 4 /* pieces */

/* All that fill_piece says of the first piece holds of those that differ from it in their places only. */
static WEFT__APART size_t fill_list(const struct weft__op *op, const struct weft__mapped *mapped,
                                    const void *arg, struct weft_gpu_copy *list, uint64_t *bytes)
{
    const struct weft_xfer *x = arg;
    const struct weft_remote model = x->remote[0];
    const weft_mem_t mem = x->local[0].mem;
    const uint64_t near = (uintptr_t)op->one.reg->addr, near_len = op->one.reg->len;
    const uint64_t far = mapped->from, far_len = mapped->to - mapped->from;
    const uint64_t there = (uintptr_t)mapped->addr - op->one.raddr; /* of a place at the peer */
    const uint64_t *offsets = x->remote_offset;
    const size_t n = x->nlocal;
    const bool write = op->kind == WEFT__OP_WRITE;
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++) { /* all that stays is in locals: for the compiler the list could lie over it */
        void *const addr = x->local[i].addr;
        const uint64_t len = x->local[i].len, offset = offsets ? offsets[i] : 0;
        uint64_t at, most;
        if (!weft__remote_alike(&x->remote[i], &model, &at, &most) || x->local[i].mem != mem ||
            len == 0 || len > WEFT__MAPPED_MOST - total || offset > most || len > most - offset)
            return 0;
        at += offset;
        if (!weft__contains(near, near_len, (uintptr_t)addr, len) ||
            !weft__contains(far, far_len, at, len))
            return 0;
        void *const peer = (void *)(uintptr_t)(there + at);
        list[i].dst = write ? peer : addr;
        list[i].src = write ? addr : peer;
        list[i].len = len;
        total += len;
    }
    *bytes = total;
    return n;
}

/* False: it has to be filled, and begun, piece by piece. Endpoint lock held. */
static bool begin_list(struct weft__op *op, struct weft__conn *conn, const struct weft_xfer *x)
{
    op->pieces = &op->one;
    if (fill_piece(op, conn, x, 0))
        return false; /* which is found once more */
    op->npieces = 1;
    if (op->staged && op->one.reg && op->one.len && weft__stage_list(op, fill_list, x))
        return true;
    if (op->one.reg)
        op->one.reg->users--;
    op->npieces = 0;
    op->total = 0;
    op->staged = false;
    return false;
}

/* What is prepared before the endpoint lock is taken: copies and temporary registrations. */
struct parts {
    uint16_t *gpus; /* of local pieces, as weft__mem_gpu has it; NULL: all are 0, or in mems */
    void *notify, *bounce;
    struct weft__piece message;
    struct weft__reg **regs;
    size_t nregs;
    bool large;
};

static void parts_undo(struct weft__endpoint *ep, struct parts *p)
{
    for (size_t i = 0; i < p->nregs; i++)
        weft__reg_discard(ep, p->regs[i]);
    free(p->gpus);
    free(p->regs);
    free(p->notify);
    free(p->bounce);
}

/* So many pieces, from the first on, that nothing has to be found out about: all of most lists. */
static size_t all_in_mems(const struct weft_xfer *x)
{
    const struct weft_local *local = x->local;
    const size_t n = x->op == WEFT_XFER_SEND ? 0 : x->nlocal;
    size_t i = 0;
    while (i < n && local[i].mem)
        i++;
    return i;
}

/* Whose memory the local pieces are. That of mems is known; a message's payload is needed before mems are looked up. */
static int find_gpus(struct weft__endpoint *ep, const struct weft_xfer *x, struct parts *p)
{
    int rc = x->notify ? weft__mem_check_host(ep, x->notify, "a notification") : 0;
    if (rc == 0 && x->result)
        rc = weft__mem_check_host(ep, x->result, "the result of an ADD");
    for (size_t i = all_in_mems(x); rc == 0 && i < x->nlocal; i++) {
        uint16_t gpu = 0;
        if (x->local[i].len && (x->op == WEFT_XFER_SEND || !x->local[i].mem))
            rc = weft__mem_gpu(ep, x->local[i].addr, &gpu);
        if (gpu && rc == 0 && !p->gpus) {
            p->gpus = calloc(x->nlocal, sizeof *p->gpus);
            if (!p->gpus)
                return weft_fail(-ENOMEM, "no memory for %zu pieces", x->nlocal);
        }
        if (gpu)
            p->gpus[i] = gpu;
    }
    return rc;
}

static int add_reg(struct weft__endpoint *ep, struct parts *p, void *addr, uint64_t len)
{
    int rc = weft__reg_open(ep, addr, len, WEFT_READ, &p->regs[p->nregs]);
    if (rc == 0)
        p->nregs++;
    return rc;
}

/* A large message of many pieces is copied into one, and so is a short one that goes as such and that nobody will ask for. */
static int make_bounce(struct weft__endpoint *ep, struct parts *p, const struct weft_xfer *x,
                       uint64_t total)
{
    int rc = 0;
    p->bounce = malloc(total);
    if (!p->bounce)
        return weft_fail(-ENOMEM, "no memory to gather %llu bytes", (unsigned long long)total);
    uint8_t *at = p->bounce;
    for (size_t i = 0; rc == 0 && i < x->nlocal; at += x->local[i].len, i++)
        if (p->gpus && p->gpus[i])
            rc = weft__gpu_copy_now(ep, p->gpus[i] - 1, at, x->local[i].addr, x->local[i].len);
        else if (x->local[i].len)
            memcpy(at, x->local[i].addr, x->local[i].len);
    p->message = (struct weft__piece){.addr = p->bounce, .len = total};
    return rc;
}

static int prepare_send(struct weft__endpoint *ep, const struct weft_xfer *x, bool unasked, struct parts *p)
{
    uint64_t total = 0;
    size_t pieces = 0;
    for (size_t i = 0; i < x->nlocal; i++) {
        int rc = check_local(x, i, total);
        if (rc)
            return rc;
        total += x->local[i].len;
        pieces += x->local[i].len != 0;
    }
    p->large = total > ep->eager ||
               p->gpus; /* what no processor reaches is fetched, however short */
    if (!p->large)
        return 0;
    bool gather = pieces > WEFT__MAX_REMOTES || (unasked && !x->stream && total <= WEFT_INJECT);
    if (gather && x->stream)
        return weft_fail(WEFT_ELIMIT, "a SEND of %zu pieces cannot wait for a stream: %zu can",
                         pieces, WEFT__MAX_REMOTES);
    p->regs = calloc(gather ? 1 : pieces, sizeof *p->regs);
    if (!p->regs)
        return weft_fail(-ENOMEM, "no memory for %zu registrations", pieces);
    if (gather) {
        int rc = make_bounce(ep, p, x, total);
        return rc ? rc : add_reg(ep, p, p->bounce, total);
    }
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < x->nlocal; i++)
        if (x->local[i].len)
            rc = add_reg(ep, p, x->local[i].addr, x->local[i].len);
    return rc;
}

static int prepare_notify(struct weft__endpoint *ep, const struct weft_xfer *x, struct parts *p)
{
    p->notify = malloc(x->notify_len ? x->notify_len : 1);
    if (!p->notify)
        return weft_fail(-ENOMEM, "no memory for a notification of %zu bytes", x->notify_len);
    memcpy(p->notify, x->notify, x->notify_len);
    p->message = (struct weft__piece){.addr = p->notify, .len = x->notify_len};
    p->large = x->notify_len > ep->eager;
    if (!p->large)
        return 0;
    p->regs = calloc(1, sizeof *p->regs);
    if (!p->regs)
        return weft_fail(-ENOMEM, "no memory for a registration");
    return add_reg(ep, p, p->notify, x->notify_len);
}

static int prepare(struct weft__endpoint *ep, const struct weft_xfer *x, bool unasked, struct parts *p)
{
    *p = (struct parts){0};
    int rc = ep->gpu_apart ? find_gpus(ep, x, p) : 0;
    if (rc == 0 && x->op == WEFT_XFER_SEND)
        rc = prepare_send(ep, x, unasked, p);
    else if (rc == 0 && x->notify)
        rc = prepare_notify(ep, x, p);
    if (rc)
        parts_undo(ep, p);
    return rc;
}

static void adopt(struct weft__op *op, const struct parts *p, const struct weft_xfer *x)
{
    op->notify = p->notify;
    op->notify_len = x->notify_len;
    op->has_notify = x->op != WEFT_XFER_NOTIFY && p->notify;
    op->bounce = p->bounce;
    op->message = p->message;
    op->regs = p->regs;
    op->nregs = p->nregs;
    op->large = p->large;
    for (size_t i = 0; p->gpus && i < op->npieces; i++)
        if (p->gpus[i]) {
            op->pieces[i].gpu = p->gpus[i];
            op->staged = true;
        }
}

static inline void start(struct weft__conn *conn, struct weft__op *op)
{
    if (op->kind == WEFT__OP_SEND || op->kind == WEFT__OP_NOTIFY)
        weft__match_send(op);
    else if (op->kind == WEFT__OP_RECV)
        weft__match_recv(op);
    else if (op->staged && op->kind != WEFT__OP_ADD)
        weft__stage_start(conn, op);
    else
        weft__stripe_start(conn, op);
}

void weft__op_start(struct weft__conn *conn, struct weft__op *op)
{
    start(conn, op);
}

/* May it be one, with nothing prepared and nothing to wait for? */
static bool may_be_list(const struct weft__conn *conn, const struct weft_xfer *x,
                        const struct parts *p, const struct weft__after *after)
{
    return x->nlocal >= LIST_FROM && x->nlocal <= WEFT__LOT_PIECES && conn->ep->gpu_apart &&
           (x->op == WEFT_XFER_WRITE || x->op == WEFT_XFER_READ) && x->local[0].mem &&
           !x->notify && !(p && p->gpus) && !after && weft_list_empty(&conn->afters);
}

/* More payload than there is room for? */
static bool is_longer(const struct weft_xfer *x, uint64_t room)
{
    for (size_t i = 0; i < x->nlocal; room -= x->local[i++].len)
        if (x->local[i].len > room)
            return true;
    return false;
}

/* A short SEND that nobody will ask for is copied before weft_post returns. If it is large, it has been. p: what was prepared, or NULL. */
static bool is_copied(const struct weft_xfer *x, const struct parts *p, const struct weft__after *after)
{
    return WEFT_UNLIKELY(x->op == WEFT_XFER_SEND) && !after && !(p && p->large) && !is_longer(x, WEFT_INJECT);
}

/* One that is copied and may go at once leaves nothing behind that needs an op. 1: it has gone; 0: it needs one. Lock held. */
static int inject(struct weft__conn *conn, const struct weft_xfer *x)
{
    uint64_t total = 0;
    for (size_t i = 0; i < x->nlocal; total += x->local[i++].len) {
        struct weft__piece piece = {.addr = x->local[i].addr, .len = x->local[i].len};
        int rc = check_local(x, i, total);
        if (rc == 0)
            rc = fill_reg(&piece, conn->ep, x, i);
        if (rc)
            return rc;
    }
    if (!weft_list_empty(&conn->afters) || !weft__match_inject(conn, x->local, x->nlocal, (uint32_t)total))
        return 0;
    conn->stats.ops_posted++;
    return 1;
}

/* ... and one that has to wait keeps its copy. Endpoint lock held. */
static int keep_copy(struct weft__op *op, const struct weft_xfer *x)
{
    uint8_t *at = malloc(op->total ? op->total : 1);
    if (!at)
        return weft_fail(-ENOMEM, "no memory for a message of %llu bytes", (unsigned long long)op->total);
    op->bounce = at;
    op->message = (struct weft__piece){.addr = at, .len = op->total};
    weft__local_gather(at, x->local, x->nlocal);
    return 0;
}

/* Of what was copied, and is the caller's: his mems are not in use by it. Endpoint lock held. */
static void leave_mems(struct weft__op *op)
{
    for (size_t i = 0; i < op->npieces; i++) {
        if (op->pieces[i].reg)
            op->pieces[i].reg->users--;
        op->pieces[i].reg = NULL;
    }
}

/* p is NULL for an operation that needs nothing prepared. Endpoint lock held. */
static int begin(struct weft__conn *conn, const struct weft_xfer *x, const struct parts *p,
                 struct weft__after *after, bool urgent, weft_op_t *out)
{
    if (conn->state == WEFT_CONN_DOWN)
        return weft_fail(weft__conn_end(conn), "conn is down: %s", conn->why);
    bool copied = !out && is_copied(x, p, after);
    int rc = copied ? inject(conn, x) : 0;
    if (rc)
        return rc < 0 ? rc : 0;
    struct weft__op *op = weft__op_new(conn, (enum weft__op_kind)x->op);
    if (!op)
        return weft_fail(-ENOMEM, "no memory for an operation");
    bool begun = WEFT_UNLIKELY(may_be_list(conn, x, p, after)) && begin_list(op, conn, x);
    rc = begun ? 0 : fill(op, conn, x);
    if (WEFT_UNLIKELY(copied) && rc == 0)
        rc = keep_copy(op, x);
    if (WEFT_UNLIKELY(rc)) {
        weft__op_free(op);
        return rc;
    }
    if (WEFT_UNLIKELY(p != NULL) && !begun && !copied) /* what is copied needs nothing of it */
        adopt(op, p, x);
    if (WEFT_UNLIKELY(op->bounce != NULL) && !out)
        leave_mems(op);
    op->urgent = urgent;
    op->detached = !out;
    if (out)
        *out = op->handle;
    conn->stats.ops_posted++;
    if (WEFT_UNLIKELY(after || !weft_list_empty(&conn->afters)))
        weft__after_start(conn, op, after);
    else if (WEFT_LIKELY(!begun))
        start(conn, op);
    return 0;
}

/* Does it name what may be a GPU's, and no registration tells? */
static bool asks_whose(const struct weft_xfer *x)
{
    if (x->notify || x->result || x->stream)
        return true;
    size_t i = 0;
    while (i < x->nlocal && x->local[i].mem)
        i++;
    return i < x->nlocal;
}

static inline WEFT__INLINE int post(struct weft__conn *conn, const struct weft_xfer *x, bool urgent, weft_op_t *out)
{
    struct parts parts, *p = NULL;
    bool gpus = WEFT_UNLIKELY(conn->ep->gpu_apart) ||
                (WEFT_UNLIKELY(asks_whose(x)) && weft__mem_gpus(conn->ep));
    bool large = x->op == WEFT_XFER_SEND && is_longer(x, conn->ep->eager); /* to go with its payload */
    if (WEFT_UNLIKELY(gpus) || WEFT_UNLIKELY(large) || WEFT_UNLIKELY(x->notify != NULL)) {
        p = &parts;
        int rc = prepare(conn->ep, x, !out, p);
        if (rc)
            return rc;
    }
    struct weft__after *after = NULL;
    int rc = WEFT_UNLIKELY(x->stream != NULL) ? weft__after_mark(conn->ep, x->stream, &after) : 0;
    if (WEFT_LIKELY(rc == 0)) {
        bool recv = x->op == WEFT_XFER_RECV; /* has nothing for the nic */
        bool more = x->flags & WEFT_XFER_MORE && !recv;
        struct weft__lane *lane = weft__post_lock(conn, more || recv);
        rc = begin(conn, x, p, after, urgent, out);
        weft__post_unlock(conn, lane, more);
    }
    if (WEFT_UNLIKELY(after != NULL) && rc)
        weft__after_drop(after);
    if (WEFT_UNLIKELY(p != NULL) && rc)
        parts_undo(conn->ep, p);
    else if (p)
        free(p->gpus);
    return rc;
}

int weft__post(weft_conn_t handle, const struct weft_xfer *xfer, bool urgent, weft_op_t *out)
{
    struct weft_xfer copy;
    if (!xfer)
        return refuse("xfer is NULL");
    struct weft__conn *conn = weft__handle_get(handle, WEFT__CONN);
    if (!conn)
        return WEFT_EHANDLE;
    int rc = 0;
    if (WEFT_UNLIKELY(xfer->struct_size != sizeof copy)) { /* of another version: else there is no need */
        memset(&copy, 0, sizeof copy);
        rc = weft__opts_copy(&copy, sizeof copy, xfer, "weft_xfer");
        xfer = &copy;
    }
    if (rc == 0)
        rc = check_xfer(xfer);
    if (rc == 0)
        rc = post(conn, xfer, urgent, out);
    if (WEFT_UNLIKELY(rc))
        weft__kick_all(conn->ep); /* this was the one that others wait for, perhaps */
    weft__handle_put(handle);
    return rc;
}

int weft_post(weft_conn_t conn, const struct weft_xfer *xfer, weft_op_t *op)
{
    return weft__post(conn, xfer, false, op);
}
