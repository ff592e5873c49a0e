/* SPDX-License-Identifier: Apache-2.0 */
/* Two sides, in one process or in two, and what tests do with them. See pair.h. */
#include "pair.h"

/* How long pair_linger polls: well over the delay that the fault decorator is told to cause. */
#define LINGER_MS 3

/* --- calling a side ------------------------------------------------------------------------ */

static void run(void *side, test_any_fn *fn, void *arg)
{
    ((pair_fn *)fn)(side, arg);
}

static void pump(void *side)
{
    side_pump(side);
}

/* Main function of side B's process: poll, and do what the test asks. */
static void serve(int fd, void *arg)
{
    (void)arg;
    struct side side;
    side_open(&side, 0);
    test_serve(fd, &side, run, pump);
    side_close(&side);
}

static struct side *local_side(struct pair *p, enum who who)
{
    return who == A ? &p->a : p->peer.pid ? NULL : &p->b;
}

void pair_call(struct pair *p, enum who who, pair_fn *fn, void *arg, size_t size)
{
    struct side *side = local_side(p, who);
    if (side)
        fn(side, arg);
    else
        test_call(p->peer.fd, (test_any_fn *)fn, arg, size, pump, &p->a);
}

void pair_pump(struct pair *p)
{
    side_pump(&p->a);
}

void pair_linger(struct pair *p)
{
    for (uint64_t end = weft_now() + LINGER_MS * 1000000ull; weft_now() < end;)
        pair_pump(p);
}

/* --- open and close ------------------------------------------------------------------------ */

void pair_open(struct pair *p, bool processes)
{
    *p = (struct pair){.peer.fd = -1};
    if (processes) /* before side A opens: the child must not inherit its descriptors */
        test_peer_start(serve, &p->peer);
    side_open(&p->a, 0);
    if (processes)
        return;
    side_open(&p->b, 0);
    p->a.other = &p->b;
    p->b.other = &p->a;
}

static void linger(struct side *side, void *arg)
{
    (void)arg;
    for (uint64_t end = weft_now() + LINGER_MS * 1000000ull; weft_now() < end;)
        side_pump(side);
}

static void close_side(struct side *side, void *arg)
{
    (void)arg;
    struct side *other = side->other;
    side_close(side);
    if (other)
        other->other = NULL;
}

void pair_close(struct pair *p)
{
    pair_settle(p, A);
    pair_settle(p, B);
    pair_linger(p);
    pair_call(p, B, linger, NULL, 0);
    if (p->peer.pid) {
        test_call_end(p->peer.fd);
        test_peer_join(&p->peer, 0);
        close(p->peer.fd);
    } else {
        pair_call(p, B, close_side, NULL, 0);
    }
    side_close(&p->a);
}

static int setup(void **state, bool processes)
{
    struct pair *p = malloc(sizeof *p);
    CHECK(p, "no memory for a pair");
    *state = p;
    test_begin();
    pair_open(p, processes);
    pair_link(p, A);
    return 0;
}

int pair_setup(void **state)
{
    return setup(state, false);
}

int pair_setup_with(void **state, const char *setting, const char *value)
{
    weft_config_set(setting, value);
    int rc = pair_setup(state);
    weft_config_set(setting, NULL);
    return rc;
}

int pair_setup_processes(void **state)
{
    return setup(state, true);
}

int pair_teardown(void **state)
{
    struct pair *p = *state;
    if (test_failed()) {
        test_peer_drop(&p->peer);
        return 0; /* whatever is left of it is in an unknown state */
    }
    pair_close(p);
    free(p);
    return 0;
}

int pair_teardown_alone(void **state)
{
    struct pair *p = *state;
    if (test_failed()) {
        test_peer_drop(&p->peer);
        return 0;
    }
    close(p->peer.fd);
    side_close(&p->a);
    free(p);
    return 0;
}

struct weft_nic_attr pair_attr(const struct pair *p)
{
    return p->a.nic->attr;
}

bool pair_has(const struct pair *p, enum weft_op op)
{
    return p->a.nic->attr.ops & WEFT_OP_BIT(op);
}

/* --- links --------------------------------------------------------------------------------- */

struct link_arg {
    enum weft_role role;
    int link, rc;
    int len;
    unsigned char addr[WEFT_LINK_ADDRESS_MAX];
};

static void link_open(struct side *side, void *arg)
{
    struct link_arg *a = arg;
    struct weft_link_opts opts = {.role = a->role};
    if (test_met()) {
        opts.peer = (const struct sockaddr *)&test_met()->sa;
        opts.peer_len = test_met()->len;
    }
    CHECK(side->nlinks < MAX_LINKS, "too many links");
    a->link = side->nlinks;
    struct side_link *l = &side->links[side->nlinks];
    *l = (struct side_link){0};
    WEFT_OK(side->ops->link_open(side->nic, &opts, &l->link));
    CHECK(l->link->nic == side->nic, "link_open did not fill in link->nic");
    side->nlinks++;
}

static void link_address(struct side *side, void *arg)
{
    struct link_arg *a = arg;
    a->len = WEFT_OK(side->ops->link_address(side->links[a->link].link, a->addr, sizeof a->addr));
    CHECK(a->len <= WEFT_LINK_ADDRESS_MAX, "link_address returned %d", a->len);
}

static void link_connect(struct side *side, void *arg)
{
    struct link_arg *a = arg;
    a->rc = side->ops->link_connect(side->links[a->link].link, a->addr, (size_t)a->len);
    CHECK(a->rc == 0 || a->rc == WEFT_EAGAIN, "link_connect: %s: %s", weft_err_name(a->rc),
          weft_last_error());
    side_pump(side);
}

/* As core does it: passive opens, active opens, active connects, passive connects. */
int pair_link(struct pair *p, enum who active)
{
    enum who passive = active == A ? B : A;
    struct link_arg at_passive = {.role = WEFT_ROLE_PASSIVE}, at_active = at_passive, addr;
    pair_call(p, passive, link_open, &at_passive, sizeof at_passive);
    pair_call(p, passive, link_address, &at_passive, sizeof at_passive);
    at_active = (struct link_arg){.role = WEFT_ROLE_ACTIVE};
    pair_call(p, active, link_open, &at_active, sizeof at_active);
    addr = at_active;
    CHECK(addr.link == at_passive.link, "links are numbered the same on both sides");
    at_active = at_passive; /* the peer's address goes to link_connect */
    at_active.rc = at_passive.rc = WEFT_EAGAIN;
    pair_call(p, active, link_connect, &at_active, sizeof at_active);
    pair_call(p, active, link_address, &addr, sizeof addr);
    memcpy(at_passive.addr, addr.addr, sizeof addr.addr);
    at_passive.len = addr.len;
    uint64_t end = test_deadline();
    while (at_active.rc || at_passive.rc) {
        CHECK(weft_now() < end, "deadline: waited for a link to connect");
        if (at_passive.rc)
            pair_call(p, passive, link_connect, &at_passive, sizeof at_passive);
        if (at_active.rc)
            pair_call(p, active, link_connect, &at_active, sizeof at_active);
    }
    return addr.link;
}

static void close_link(struct side *side, void *arg)
{
    side_link_close(side, *(int *)arg);
}

void pair_link_close(struct pair *p, enum who who, int link)
{
    pair_call(p, who, close_link, &link, sizeof link);
}

struct state_arg {
    int link;
    struct link_state state;
};

static void link_state(struct side *side, void *arg)
{
    struct state_arg *a = arg;
    side_pump(side);
    a->state.down = side->links[a->link].down;
    a->state.status = side->links[a->link].status;
}

struct link_state pair_link_state(struct pair *p, enum who who, int link)
{
    struct state_arg a = {.link = link};
    pair_call(p, who, link_state, &a, sizeof a);
    return a.state;
}

int pair_link_down(struct pair *p, enum who who, int link)
{
    struct link_state state = {0};
    TEST_UNTIL((state = pair_link_state(p, who, link)).down, pair_pump(p), "LINK_DOWN");
    return state.status;
}

/* --- memory -------------------------------------------------------------------------------- */

struct buf_arg {
    struct buf buf;
    size_t len, misalign;
    uint32_t access;
    uint64_t offset, seed, value;
    int64_t differs;
    int rc;
};

static void buf_open(struct side *side, void *arg)
{
    struct buf_arg *a = arg;
    int id = side_buf(side, a->len, a->misalign, a->access);
    struct side_buf *b = &side->bufs[id];
    a->buf.id = id;
    a->buf.addr = (uintptr_t)b->mem.at;
    a->buf.len = a->len;
    a->buf.key = b->handle.rkey;
    a->buf.mem = b->handle.mem;
}

struct buf pair_buf(struct pair *p, enum who who, size_t len, size_t misalign, uint32_t access)
{
    struct buf_arg a = {.len = len, .misalign = misalign, .access = access, .buf.who = who};
    pair_call(p, who, buf_open, &a, sizeof a);
    return a.buf;
}

static void buf_fill(struct side *side, void *arg)
{
    struct buf_arg *a = arg;
    struct side_buf *b = &side->bufs[a->buf.id];
    test_fill(b->mem.at, b->mem.len, a->seed, 0);
}

void pair_fill(struct pair *p, struct buf buf, uint64_t seed)
{
    struct buf_arg a = {.buf = buf, .seed = seed};
    pair_call(p, buf.who, buf_fill, &a, sizeof a);
}

static void buf_check(struct side *side, void *arg)
{
    struct buf_arg *a = arg;
    struct side_buf *b = &side->bufs[a->buf.id];
    a->differs = test_differs(b->mem.at + a->offset, a->len, a->seed, a->offset);
    test_mem_check_guards(&b->mem);
}

void pair_check(struct pair *p, struct buf buf, uint64_t offset, uint64_t len, uint64_t seed)
{
    struct buf_arg a = {.buf = buf, .offset = offset, .len = len, .seed = seed};
    pair_call(p, buf.who, buf_check, &a, sizeof a);
    CHECK(a.differs < 0, "byte %" PRId64 " of %" PRIu64 " is wrong", a.differs, len);
}

static void buf_check_zero(struct side *side, void *arg)
{
    struct buf_arg *a = arg;
    struct side_buf *b = &side->bufs[a->buf.id];
    test_mem_check_guards(&b->mem);
    a->differs = test_nonzero(b->mem.at + a->offset, a->len);
}

void pair_check_zero(struct pair *p, struct buf buf, uint64_t offset, uint64_t len)
{
    struct buf_arg a = {.buf = buf, .offset = offset, .len = len};
    pair_call(p, buf.who, buf_check_zero, &a, sizeof a);
    CHECK(a.differs < 0, "byte %" PRId64 " was written, which nobody may",
          a.differs + (int64_t)offset);
}

static void get_word(struct side *side, void *arg)
{
    struct buf_arg *a = arg;
    a->value = test_get_word(side->bufs[a->buf.id].mem.at + a->offset);
}

uint64_t pair_word(struct pair *p, struct buf buf, uint64_t offset)
{
    struct buf_arg a = {.buf = buf, .offset = offset};
    pair_call(p, buf.who, get_word, &a, sizeof a);
    return a.value;
}

static void set_word(struct side *side, void *arg)
{
    struct buf_arg *a = arg;
    test_set_word(side->bufs[a->buf.id].mem.at + a->offset, a->value);
}

void pair_set_word(struct pair *p, struct buf buf, uint64_t offset, uint64_t value)
{
    struct buf_arg a = {.buf = buf, .offset = offset, .value = value};
    pair_call(p, buf.who, set_word, &a, sizeof a);
}

static void buf_dereg(struct side *side, void *arg)
{
    struct buf_arg *a = arg;
    a->rc = side_buf_dereg(side, a->buf.id);
}

void pair_dereg(struct pair *p, struct buf *buf)
{
    struct buf_arg a = {.buf = *buf};
    pair_call(p, buf->who, buf_dereg, &a, sizeof a);
    CHECK(a.rc == 0, "mem_dereg: %s", weft_err_name(a.rc));
}

static void buf_rereg(struct side *side, void *arg)
{
    struct buf_arg *a = arg;
    side_buf_reg(side, a->buf.id, a->access);
    a->buf.key = side->bufs[a->buf.id].handle.rkey;
    a->buf.mem = side->bufs[a->buf.id].handle.mem;
}

void pair_rereg(struct pair *p, struct buf *buf, uint32_t access)
{
    struct buf_arg a = {.buf = *buf, .access = access};
    pair_call(p, buf->who, buf_rereg, &a, sizeof a);
    *buf = a.buf;
}

/* --- cmds ---------------------------------------------------------------------------------- */

static struct weft_cmd one_sided(uint8_t op, struct buf local, uint64_t local_offset,
                                 struct buf remote, uint64_t remote_offset, uint64_t len)
{
    return (struct weft_cmd){
        .op = op, .len = len, .remote_addr = remote.addr + remote_offset, .remote_key = remote.key,
        .one = {.addr = (char *)(uintptr_t)local.addr + local_offset, .len = len,
                .mem = local.mem}};
}

uint64_t buf_pieces(struct buf buf, uint32_t n, struct weft_iov_local *iov)
{
    uint64_t len = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t piece = i % 5 == 3 ? 0 : i * 37 + 1;
        iov[i] = (struct weft_iov_local){(char *)(uintptr_t)buf.addr + len, piece, buf.mem};
        len += piece;
    }
    return len;
}

struct weft_cmd cmd_write(struct buf from, uint64_t from_offset, struct buf to,
                          uint64_t to_offset, uint64_t len)
{
    return one_sided(WEFT_OP_WRITE, from, from_offset, to, to_offset, len);
}

struct weft_cmd cmd_imm(struct buf from, uint64_t from_offset, struct buf to, uint64_t to_offset,
                        uint64_t len, uint32_t imm)
{
    struct weft_cmd cmd = one_sided(WEFT_OP_WRITE_IMM, from, from_offset, to, to_offset, len);
    cmd.imm = imm;
    return cmd;
}

struct weft_cmd cmd_read(struct buf into, uint64_t into_offset, struct buf from,
                         uint64_t from_offset, uint64_t len)
{
    return one_sided(WEFT_OP_READ, into, into_offset, from, from_offset, len);
}

struct weft_cmd cmd_send(struct buf from, uint64_t offset, uint64_t len)
{
    return (struct weft_cmd){
        .op = WEFT_OP_SEND, .len = len,
        .one = {.addr = (char *)(uintptr_t)from.addr + offset, .len = len, .mem = from.mem}};
}

struct weft_cmd cmd_add(struct buf into, struct buf word, uint64_t offset, uint64_t value)
{
    struct weft_cmd cmd = one_sided(WEFT_OP_ADD64, into, 0, word, offset, 8);
    cmd.value = value;
    return cmd;
}

struct weft_cmd cmd_fence(void)
{
    return (struct weft_cmd){.op = WEFT_OP_FENCE};
}

/* --- posting and waiting ------------------------------------------------------------------- */

struct post_arg {
    int link;
    int64_t result;
    size_t n;
    struct outcome outcome;
    struct weft_cmd cmd;
    struct weft_iov_local iov[MAX_IOV];
};

static void post(struct side *side, void *arg)
{
    struct post_arg *a = arg;
    if (a->cmd.niov)
        a->cmd.iov = a->iov;
    a->result = side_post(side, a->link, &a->cmd);
}

int64_t pair_try(struct pair *p, enum who who, int link, const struct weft_cmd *cmd)
{
    struct post_arg a = {.link = link, .cmd = *cmd};
    CHECK(cmd->niov <= MAX_IOV, "a test posts %u pieces", cmd->niov);
    if (cmd->niov)
        memcpy(a.iov, cmd->iov, cmd->niov * sizeof *a.iov);
    pair_call(p, who, post, &a, sizeof a);
    return a.result;
}

size_t pair_post(struct pair *p, enum who who, int link, const struct weft_cmd *cmd)
{
    int64_t n = pair_try(p, who, link, cmd);
    CHECK(n >= 0, "post of a %s of %" PRIu64 " bytes: %s", weft_op_name(cmd->op), cmd->len,
          weft_err_name((int)n));
    return (size_t)n;
}

static void wait_cmd(struct side *side, void *arg)
{
    struct post_arg *a = arg;
    TEST_UNTIL(side->recs[a->n].done || side->recs[a->n].dropped, side_pump(side),
               "cmd %zu (%s of %" PRIu64 " bytes)", a->n, weft_op_name(side->recs[a->n].op),
               side->recs[a->n].len);
    const struct rec *rec = &side->recs[a->n];
    a->outcome = (struct outcome){.done = rec->done, .dropped = rec->dropped,
                                  .status = rec->comp.status, .len = rec->comp.len,
                                  .value = rec->comp.value, .nth = rec->nth};
    memcpy(a->outcome.why, rec->why, sizeof a->outcome.why);
}

struct outcome pair_wait(struct pair *p, enum who who, size_t cmd)
{
    struct post_arg a = {.n = cmd};
    pair_call(p, who, wait_cmd, &a, sizeof a);
    return a.outcome;
}

static void settle(struct side *side, void *arg)
{
    (void)arg;
    TEST_UNTIL(!side->pending, side_pump(side), "%zu of %zu cmds to complete", side->pending,
               side->nrecs);
}

void pair_settle(struct pair *p, enum who who)
{
    pair_call(p, who, settle, NULL, 0);
}

struct outcome pair_do(struct pair *p, enum who who, int link, struct weft_cmd cmd, int status)
{
    struct outcome got = pair_wait(p, who, pair_post(p, who, link, &cmd));
    CHECK(got.done, "the link died under a %s", weft_op_name(cmd.op));
    CHECK(got.status == status, "a %s of %" PRIu64 " bytes ended with %s (%s), not %s",
          weft_op_name(cmd.op), cmd.len, weft_strerror(got.status), got.why,
          weft_err_name(status));
    return got;
}

struct arrival_arg {
    size_t i;
    struct arrived got;
    uint64_t seed, offset;
    int64_t differs;
};

static void arrival(struct side *side, void *arg)
{
    struct arrival_arg *a = arg;
    TEST_UNTIL(side->narrivals > a->i, side_pump(side), "arrival %zu (%zu are here)", a->i,
               side->narrivals);
    const struct arrival *from = &side->arrivals[a->i];
    a->got = (struct arrived){.op = from->op, .imm = from->imm, .len = from->len,
                              .nth = from->nth, .link = -1};
    for (int i = 0; i < side->nlinks; i++)
        if (side->links[i].link == from->link)
            a->got.link = i;
    if (from->data)
        memcpy(&a->got.head, from->data, from->len < 8 ? from->len : 8);
}

struct arrived pair_arrival(struct pair *p, enum who who, size_t i)
{
    struct arrival_arg a = {.i = i};
    pair_call(p, who, arrival, &a, sizeof a);
    return a.got;
}

static void arrivals(struct side *side, void *arg)
{
    side_pump(side);
    *(size_t *)arg = side->narrivals;
}

size_t pair_arrivals(struct pair *p, enum who who)
{
    size_t n = 0;
    pair_call(p, who, arrivals, &n, sizeof n);
    return n;
}

static void check_arrival(struct side *side, void *arg)
{
    struct arrival_arg *a = arg;
    const struct arrival *from = &side->arrivals[a->i];
    a->differs = from->data ? test_differs(from->data, from->len, a->seed, a->offset) : -1;
}

void pair_check_arrival(struct pair *p, enum who who, size_t i, uint64_t seed, uint64_t offset)
{
    struct arrival_arg a = {.i = i, .seed = seed, .offset = offset};
    pair_call(p, who, check_arrival, &a, sizeof a);
    CHECK(a.differs < 0, "byte %" PRId64 " of message %zu is wrong", a.differs, i);
}
