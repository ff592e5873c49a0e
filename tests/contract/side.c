/* SPDX-License-Identifier: Apache-2.0 */
/* One nic under test: everything that its poll returns is filed and judged. See pair.h. */
#include "pair.h"

#include "registry.h"

#define MAX_COMPS 64
/* Comps of a cmd carry this back: never 0, and all 64 bits matter. */
#define CTX_OF(n) ((uint64_t)((n) + 1) << 32 | (uint32_t)~((n) + 1))

/* --- device -------------------------------------------------------------------------------- */

const struct weft_transport *side_transport(void)
{
    const struct weft_transport *t = weft__transport_find(test_transport());
    CHECK(t, "WEFT_TEST_TRANSPORT: %s", weft_last_error());
    return t;
}

struct weft_device_info side_device(void)
{
    struct weft_device_info list[16] = {0};
    int n = side_transport()->ops->probe(list, ARRAY_LEN(list));
    for (int i = 0; i < n && i < (int)ARRAY_LEN(list); i++)
        if (list[i].usable)
            return list[i];
    const char *reason = n > 0 ? list[0].reason : weft_last_error();
    test_need(!getenv("WEFT_TEST_NO_SKIP"), "usable device");
    fprintf(stderr, "skipped: %s: %s\n", test_transport(), reason);
    _exit(77);
}

void side_open(struct side *side, int lane)
{
    struct weft_device_info device = side_device();
    struct weft_nic_opts opts = {.device = device.name, .bind_host = test_bind_host(),
                                 .lane = lane};
    *side = (struct side){.max = MAX_COMPS};
    WEFT_OK(weft__nic_open(side_transport(), test_fault(), &opts, &side->nic));
    side->ops = side->nic->transport->ops;
}

/* --- what poll returns --------------------------------------------------------------------- */

static struct side_link *link_of(struct side *side, const struct weft_link *link)
{
    for (int i = 0; i < side->nlinks; i++)
        if (side->links[i].link == link && !side->links[i].closed)
            return &side->links[i];
    FAIL("a comp names a link that is closed, or of another nic");
}

static void drop(struct side *side, const struct weft_link *link)
{
    for (size_t i = 0; i < side->nrecs; i++) {
        struct rec *rec = &side->recs[i];
        if (rec->link != link || rec->done || rec->dropped)
            continue;
        rec->dropped = true;
        side->pending--;
    }
}

static void file_down(struct side *side, struct side_link *link, const struct weft_comp *comp)
{
    CHECK(comp->ctx == 0, "LINK_DOWN has a ctx");
    CHECK(comp->status < 0, "LINK_DOWN says %d, not why", comp->status);
    link->down = true;
    link->status = comp->status;
    drop(side, link->link);
}

/* Room for one more in an array of n: its size is the next power of two. */
static void *grow(void *array, size_t n, size_t size)
{
    if (n & (n - 1))
        return array;
    array = realloc(array, (n ? 2 * n : 1) * size);
    CHECK(array, "no memory for %zu records", n);
    return array;
}

static void file_arrival(struct side *side, const struct weft_comp *comp)
{
    CHECK(comp->status == 0, "an arrival has status %d", comp->status);
    side->arrivals = grow(side->arrivals, side->narrivals, sizeof *side->arrivals);
    struct arrival *a = &side->arrivals[side->narrivals++];
    *a = (struct arrival){.link = comp->link, .op = comp->op, .imm = comp->imm,
                          .len = comp->len, .nth = side->filed};
    if (comp->op == WEFT_OP_RECV && comp->len) {
        a->data = malloc(comp->len);
        CHECK(a->data && comp->data, "a message of %" PRIu64 " bytes has no data", comp->len);
        memcpy(a->data, comp->data, comp->len);
    }
    if (comp->op == WEFT_OP_RECV && side->nic->attr.rx_scatter)
        side->ops->rx_release(side->nic, comp);
    if (side->on_arrival)
        side->on_arrival(side, a);
}

static void file_cmd(struct side *side, const struct weft_comp *comp)
{
    size_t n = (comp->ctx >> 32) - 1;
    CHECK(n < side->nrecs && comp->ctx == CTX_OF(n), "a comp of %s has the ctx of no cmd: %" PRIx64,
          weft_op_name(comp->op), comp->ctx);
    struct rec *rec = &side->recs[n];
    CHECK(!rec->done, "cmd %zu (%s) completed twice", n, weft_op_name(rec->op));
    CHECK(!rec->dropped, "cmd %zu (%s) completed after its link had ended", n,
          weft_op_name(rec->op));
    CHECK(comp->op == rec->op, "the comp of a %s says %s", weft_op_name(rec->op),
          weft_op_name(comp->op));
    CHECK(comp->link == rec->link, "the comp of a %s names another link", weft_op_name(rec->op));
    CHECK(comp->status <= 0, "the comp of a %s has status %d", weft_op_name(rec->op),
          comp->status);
    CHECK(comp->status || comp->len == rec->len,
          "the comp of a %s of %" PRIu64 " bytes says %" PRIu64, weft_op_name(rec->op), rec->len,
          comp->len);
    rec->done = true;
    rec->comp = *comp;
    snprintf(rec->why, sizeof rec->why, "%s",
             comp->status < 0 && comp->data ? (const char *)comp->data : "");
    rec->nth = side->filed;
    side->pending--;
}

static void file_comp(struct side *side, const struct weft_comp *comp)
{
    struct side_link *link = link_of(side, comp->link);
    CHECK(!link->down, "a comp of %s comes after LINK_DOWN", weft_op_name(comp->op));
    side->filed++;
    if (comp->op == WEFT_OP_LINK_DOWN)
        file_down(side, link, comp);
    else if (comp->op == WEFT_OP_RECV || (comp->op == WEFT_OP_WRITE_IMM && comp->ctx == 0))
        file_arrival(side, comp);
    else
        file_cmd(side, comp);
}

int side_poll(struct side *side)
{
    struct weft_comp comps[MAX_COMPS + 1];
    memset(&comps[side->max], 0xa5, sizeof *comps);
    struct weft_comp beyond = comps[side->max];
    int n = side->ops->poll(side->nic, comps, side->max);
    CHECK(n >= 0, "poll: %s: %s", weft_err_name(n), weft_last_error());
    CHECK(n <= side->max, "poll wrote %d comps, %d were asked for", n, side->max);
    CHECK(!memcmp(&comps[side->max], &beyond, sizeof beyond), "poll wrote past its array");
    for (int i = 0; i < n; i++)
        file_comp(side, &comps[i]);
    return n;
}

void side_pump(struct side *side)
{
    int n = side_poll(side);
    if (side->other)
        n += side_poll(side->other);
    if (!n)
        sched_yield();
}

/* --- post ---------------------------------------------------------------------------------- */

/* The cmd as it goes to post: with a ctx, and an array of pieces that stays. */
static struct weft_cmd record(struct side *side, int link, const struct weft_cmd *cmd)
{
    side->recs = grow(side->recs, side->nrecs, sizeof *side->recs);
    size_t n = side->nrecs++;
    struct rec *rec = &side->recs[n];
    *rec = (struct rec){.link = side->links[link].link, .op = cmd->op, .len = cmd->len};
    struct weft_cmd out = *cmd;
    out.ctx = CTX_OF(n);
    if (cmd->niov) {
        rec->iov = malloc(cmd->niov * sizeof *rec->iov);
        CHECK(rec->iov, "no memory for an iov");
        memcpy(rec->iov, cmd->iov, cmd->niov * sizeof *rec->iov);
        out.iov = rec->iov;
    }
    side->pending++;
    return out;
}

static void unrecord(struct side *side, int n)
{
    for (; n > 0; n--) {
        free(side->recs[--side->nrecs].iov);
        side->pending--;
    }
}

int side_post_many(struct side *side, int link, const struct weft_cmd *cmds, int n, size_t *first)
{
    struct weft_cmd *copies = malloc((size_t)n * sizeof *copies + 1);
    CHECK(copies, "no memory for cmds");
    *first = side->nrecs;
    for (int i = 0; i < n; i++)
        copies[i] = record(side, link, &cmds[i]);
    int took = side->ops->post(side->links[link].link, copies, n);
    CHECK(took <= n, "post took %d of %d cmds", took, n);
    unrecord(side, took < 0 ? n : n - took);
    memset(copies, 0x5a, (size_t)n * sizeof *copies); /* cmds stay the caller's */
    free(copies);
    return took;
}

int64_t side_post(struct side *side, int link, const struct weft_cmd *cmd)
{
    int took = 0;
    size_t n;
    TEST_UNTIL((took = side_post_many(side, link, cmd, 1, &n)), side_pump(side),
               "post to take a %s of %" PRIu64 " bytes (%zu cmds are in flight)",
               weft_op_name(cmd->op), cmd->len, side->pending);
    return took < 0 ? took : (int64_t)n;
}

/* --- memory -------------------------------------------------------------------------------- */

int side_buf(struct side *side, size_t len, size_t misalign, uint32_t access)
{
    side->bufs = grow(side->bufs, (size_t)side->nbufs, sizeof *side->bufs);
    struct side_buf *buf = &side->bufs[side->nbufs];
    *buf = (struct side_buf){0};
    test_mem_open(&buf->mem, len, misalign);
    side_buf_reg(side, side->nbufs, access);
    return side->nbufs++;
}

void side_buf_reg(struct side *side, int id, uint32_t access)
{
    struct side_buf *buf = &side->bufs[id];
    struct weft_mem_range range = {.addr = buf->mem.at, .len = buf->mem.len, .access = access,
                                   .kind = WEFT_MEM_HOST, .dmabuf_fd = -1};
    WEFT_OK(weft_random(&range.key, sizeof range.key));
    WEFT_OK(side->ops->mem_reg(side->nic, &range, &buf->handle));
    CHECK(!side->nic->attr.chosen_keys || buf->handle.rkey == range.key,
          "chosen_keys is set, but mem_reg gave another key than core chose");
    buf->registered = true;
}

int side_buf_dereg(struct side *side, int id)
{
    struct side_buf *buf = &side->bufs[id];
    int rc;
    TEST_UNTIL((rc = side->ops->mem_dereg(side->nic, buf->handle.mem)) != WEFT_EAGAIN,
               side_pump(side), "mem_dereg to end");
    buf->registered = false;
    return rc;
}

struct weft_cmd side_write(const struct side_buf *from, const struct side_buf *to)
{
    return (struct weft_cmd){.op = WEFT_OP_WRITE, .len = from->mem.len,
                             .remote_addr = (uintptr_t)to->mem.at, .remote_key = to->handle.rkey,
                             .one = {from->mem.at, from->mem.len, from->handle.mem}};
}

/* --- links --------------------------------------------------------------------------------- */

static struct weft_link *open_link(struct side *side, enum weft_role role,
                                   const struct sockaddr *hint, unsigned hint_len)
{
    struct weft_link_opts opts = {.role = role, .peer = hint, .peer_len = hint_len};
    CHECK(side->nlinks < MAX_LINKS, "too many links");
    struct side_link *l = &side->links[side->nlinks];
    *l = (struct side_link){0};
    WEFT_OK(side->ops->link_open(side->nic, &opts, &l->link));
    side->nlinks++;
    return l->link;
}

/* As core does it: passive opens, active opens, active connects, passive connects. */
void side_join(struct side *active, struct side *passive, const struct sockaddr *hint,
               unsigned hint_len)
{
    unsigned char addr_p[WEFT_LINK_ADDRESS_MAX], addr_a[WEFT_LINK_ADDRESS_MAX];
    struct weft_link *p = open_link(passive, WEFT_ROLE_PASSIVE, hint, hint_len);
    int len_p = WEFT_OK(passive->ops->link_address(p, addr_p, sizeof addr_p));
    struct weft_link *a = open_link(active, WEFT_ROLE_ACTIVE, hint, hint_len);
    int rc_a = active->ops->link_connect(a, addr_p, (size_t)len_p), rc_p = WEFT_EAGAIN;
    int len_a = WEFT_OK(active->ops->link_address(a, addr_a, sizeof addr_a));
    for (uint64_t end = test_deadline(); rc_a || rc_p;) {
        if (rc_p == WEFT_EAGAIN)
            rc_p = passive->ops->link_connect(p, addr_a, (size_t)len_a);
        if (rc_a == WEFT_EAGAIN)
            rc_a = active->ops->link_connect(a, addr_p, (size_t)len_p);
        CHECK(weft_now() < end && (!rc_a || rc_a == WEFT_EAGAIN) && (!rc_p || rc_p == WEFT_EAGAIN),
              "link_connect: active %s, passive %s: %s", weft_err_name(rc_a),
              weft_err_name(rc_p), weft_last_error());
        side_poll(active);
        side_poll(passive);
    }
}

/* --- end ----------------------------------------------------------------------------------- */

void side_link_close(struct side *side, int link)
{
    struct side_link *l = &side->links[link];
    if (l->closed || !l->link)
        return;
    side->ops->link_close(l->link);
    drop(side, l->link);
    l->closed = true;
}

void side_close(struct side *side)
{
    for (int i = 0; i < side->nlinks; i++)
        side_link_close(side, i);
    for (int i = 0; i < side->nbufs; i++)
        if (side->bufs[i].registered)
            WEFT_OK(side_buf_dereg(side, i));
    side->ops->close(side->nic);
    for (int i = 0; i < side->nbufs; i++)
        test_mem_close(&side->bufs[i].mem);
    for (size_t i = 0; i < side->nrecs; i++)
        free(side->recs[i].iov);
    for (size_t i = 0; i < side->narrivals; i++)
        free(side->arrivals[i].data);
    free(side->bufs);
    free(side->recs);
    free(side->arrivals);
    *side = (struct side){0};
}
