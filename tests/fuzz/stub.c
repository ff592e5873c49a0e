/* SPDX-License-Identifier: Apache-2.0 */
/* The transports of stub.h. */
#include "stub.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fuzz.h"

struct stub_comp {
    struct stub_comp *next;
    struct weft_comp comp;
    uint8_t *data; /* of a RECV, in a block of its size */
};

struct stub_link {
    struct weft_link base;
    struct stub_link *next;
    struct stub_cmd *cmds, **cmds_tail;
    int ncmds;
    int later; /* link_connect has said so often: not yet */
    bool dead;
    int inside;
    uint32_t turn;
};

struct stub_nic {
    struct weft_nic base;
    struct stub_nic *next;
    struct stub_link *links;
    struct stub_comp *comps, **comps_tail, *given; /* given: by the last poll */
};

extern const struct weft_transport weft_transport_stub, weft_transport_stub2;

struct stub_script stub_script;
static struct stub_nic *nics;
static int nregs;

/* --- memory --------------------------------------------------------------------------------- */

static const struct weft_iov_local *pieces(const struct stub_cmd *cmd, int *n)
{
    *n = cmd->cmd.niov ? cmd->cmd.niov : 1;
    return cmd->cmd.niov ? cmd->cmd.iov : &cmd->cmd.one;
}

/* Do to the local memory what the cmd may do. */
static void touch(const struct stub_cmd *cmd)
{
    static uint8_t copy[65536];
    int n;
    const struct weft_iov_local *iov = pieces(cmd, &n);
    if (cmd->cmd.op == WEFT_OP_ADD64 || cmd->cmd.op == WEFT_OP_FENCE)
        return;
    for (int i = 0; i < n; i++) {
        size_t len = iov[i].len;
        if (cmd->cmd.op == WEFT_OP_READ && len)
            memset(iov[i].addr, 0xd5, len);
        else if (len)
            memcpy(copy, iov[i].addr, len < sizeof copy ? len : sizeof copy);
    }
}

uint64_t stub_payload(const struct stub_cmd *cmd, void *buf, uint64_t cap)
{
    int n;
    const struct weft_iov_local *iov = pieces(cmd, &n);
    uint64_t len = 0;
    for (int i = 0; i < n; i++) {
        uint64_t room = len < cap ? cap - len : 0;
        uint64_t part = iov[i].len < room ? iov[i].len : room;
        if (part)
            memcpy((uint8_t *)buf + len, iov[i].addr, part);
        len += iov[i].len;
    }
    return len;
}

/* --- what targets call ---------------------------------------------------------------------- */

struct weft_link *stub_link_at(int n)
{
    for (struct stub_nic *nic = nics; nic; nic = nic->next)
        for (struct stub_link *link = nic->links; link; link = link->next)
            if (n-- == 0)
                return &link->base;
    return NULL;
}

struct stub_cmd *stub_cmd_at(int n)
{
    struct weft_link *base;
    for (int i = 0; (base = stub_link_at(i)); i++)
        for (struct stub_cmd *cmd = ((struct stub_link *)base)->cmds; cmd; cmd = cmd->next)
            if (n-- == 0)
                return cmd;
    return NULL;
}

int stub_nregs(void)
{
    return nregs;
}

static void push_comp(struct weft_link *link, struct weft_comp comp, uint8_t *data)
{
    struct stub_nic *nic = (struct stub_nic *)link->nic;
    struct stub_comp *c = malloc(sizeof *c);
    FUZZ_CHECK(c);
    comp.link = link;
    *c = (struct stub_comp){.comp = comp, .data = data};
    *nic->comps_tail = c;
    nic->comps_tail = &c->next;
}

static void forget(struct stub_cmd *cmd)
{
    struct stub_link *link = (struct stub_link *)cmd->link;
    struct stub_cmd **at = &link->cmds;
    while (*at != cmd)
        at = &(*at)->next;
    *at = cmd->next;
    if (!*at)
        link->cmds_tail = at;
    link->ncmds--;
    touch(cmd);
    free(cmd);
}

void stub_end(struct stub_cmd *cmd, int status, uint64_t value)
{
    struct stub_link *link = (struct stub_link *)cmd->link;
    if (!link->dead)
        push_comp(cmd->link,
                  (struct weft_comp){.ctx = cmd->cmd.ctx,
                                     .op = cmd->cmd.op,
                                     .status = status,
                                     .value = value,
                                     .len = status ? 0 : cmd->cmd.len},
                  NULL);
    forget(cmd);
}

void stub_receive(struct weft_link *link, const void *data, size_t len)
{
    if (((struct stub_link *)link)->dead)
        return;
    uint8_t *copy = malloc(len ? len : 1);
    FUZZ_CHECK(copy && len <= STUB_MAX_SEND);
    if (len)
        memcpy(copy, data, len);
    push_comp(link, (struct weft_comp){.op = WEFT_OP_RECV, .len = len, .data = copy}, copy);
}

void stub_down(struct weft_link *base, int status)
{
    struct stub_link *link = (struct stub_link *)base;
    if (link->dead)
        return;
    push_comp(base, (struct weft_comp){.op = WEFT_OP_LINK_DOWN, .status = status}, NULL);
    link->dead = true;
}

/* --- the transport -------------------------------------------------------------------------- */

static int stub_probe(struct weft_device_info *list, int max)
{
    if (max > 0)
        list[0] = (struct weft_device_info){.name = "stub", .usable = 1, .numa = -1};
    return 1;
}

static int open_as(const struct weft_transport *transport, struct weft_nic **out)
{
    struct stub_nic *nic = calloc(1, sizeof *nic);
    FUZZ_CHECK(nic);
    nic->base.transport = transport;
    nic->base.attr = (struct weft_nic_attr){
        .ops = (WEFT_OP_BIT(WEFT_OP_SEND) | WEFT_OP_BIT(WEFT_OP_WRITE) |
                WEFT_OP_BIT(WEFT_OP_READ) | WEFT_OP_BIT(WEFT_OP_ADD64)) &
               ~stub_script.hide,
        .mem_kinds = WEFT_MEM_HOST,
        .order = WEFT_ORDER_NONE,
        .done = WEFT_DONE_DELIVERED,
        .chosen_keys = transport == &weft_transport_stub,
        .peer_death = transport == &weft_transport_stub,
        .enters = transport == &weft_transport_stub,
        .max_send = STUB_MAX_SEND,
        .max_iov = STUB_MAX_IOV,
        .tx_depth = STUB_DEPTH,
        .max_msg = 1 << 30,
    };
    nic->comps_tail = &nic->comps;
    nic->next = nics;
    nics = nic;
    *out = &nic->base;
    return 0;
}

static int stub_open(const struct weft_nic_opts *opts, struct weft_nic **nic)
{
    (void)opts;
    return open_as(&weft_transport_stub, nic);
}

static int stub2_open(const struct weft_nic_opts *opts, struct weft_nic **nic)
{
    (void)opts;
    return open_as(&weft_transport_stub2, nic);
}

static void free_comps(struct stub_comp **list)
{
    while (*list) {
        struct stub_comp *c = *list;
        *list = c->next;
        free(c->data);
        free(c);
    }
}

static void stub_close(struct weft_nic *base)
{
    struct stub_nic *nic = (struct stub_nic *)base, **at = &nics;
    FUZZ_CHECK(!nic->links);
    while (*at != nic)
        at = &(*at)->next;
    *at = nic->next;
    free_comps(&nic->comps);
    free_comps(&nic->given);
    free(nic);
}

static int stub_mem_reg(struct weft_nic *nic, const struct weft_mem_range *range,
                        struct weft_mem_handle *handle)
{
    (void)nic;
    if (range->kind != WEFT_MEM_HOST)
        return weft_fail(WEFT_EUNSUPPORTED, "the stub does not reach memory of GPUs");
    *handle = (struct weft_mem_handle){.mem = range->addr, .rkey = range->key};
    nregs++;
    return 0;
}

static int stub_mem_dereg(struct weft_nic *nic, void *mem)
{
    (void)nic;
    (void)mem;
    if (stub_script.dereg_later > 0) {
        stub_script.dereg_later--;
        return WEFT_EAGAIN;
    }
    nregs--;
    return 0;
}

static int stub_link_open(struct weft_nic *base, const struct weft_link_opts *opts,
                          struct weft_link **out)
{
    struct stub_nic *nic = (struct stub_nic *)base;
    (void)opts;
    if (stub_script.open_fails && --stub_script.open_fails == 0)
        return weft_fail(WEFT_ENODEV, "stub: link_open was told to fail");
    struct stub_link *link = calloc(1, sizeof *link);
    FUZZ_CHECK(link);
    link->base.nic = base;
    link->cmds_tail = &link->cmds;
    link->next = nic->links;
    nic->links = link;
    *out = &link->base;
    return 0;
}

static int stub_link_address(struct weft_link *link, void *buf, size_t cap)
{
    (void)link;
    FUZZ_CHECK(cap >= WEFT_LINK_ADDRESS_MAX);
    memset(buf, 0x5a, 8);
    return 8;
}

static int stub_link_connect(struct weft_link *base, const void *addr, size_t len)
{
    struct stub_link *link = (struct stub_link *)base;
    uint8_t copy[WEFT_LINK_ADDRESS_MAX];
    FUZZ_CHECK(len <= sizeof copy);
    memcpy(copy, addr, len);
    if (link->later++ < stub_script.connect_later)
        return WEFT_EAGAIN;
    if (stub_script.connect_result && stub_script.connect_spared-- <= 0)
        return weft_fail(stub_script.connect_result, "stub: link_connect was told to fail");
    return 0;
}

static void drop_comps(struct stub_nic *nic, const struct weft_link *link)
{
    for (struct stub_comp **at = &nic->comps; *at;) {
        struct stub_comp *c = *at;
        if (c->comp.link != link) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        free(c->data);
        free(c);
    }
    nic->comps_tail = &nic->comps;
    while (*nic->comps_tail)
        nic->comps_tail = &(*nic->comps_tail)->next;
}

static void stub_link_close(struct weft_link *base)
{
    struct stub_link *link = (struct stub_link *)base, **at;
    struct stub_nic *nic = (struct stub_nic *)base->nic;
    FUZZ_CHECK(link->inside == 0);
    while (link->cmds)
        forget(link->cmds);
    drop_comps(nic, base);
    for (at = &nic->links; *at != link; at = &(*at)->next)
        ;
    *at = link->next;
    free(link);
}

static int stub_link_enter(struct weft_link *base, uint32_t turn)
{
    (void)turn; /* the peer's word */
    ((struct stub_link *)base)->inside += !stub_script.shut;
    return !stub_script.shut;
}

static void stub_link_leave(struct weft_link *base, uint32_t turn)
{
    (void)turn;
    FUZZ_CHECK(((struct stub_link *)base)->inside-- > 0);
}

static uint32_t stub_link_recall(struct weft_link *base, int last)
{
    return ((struct stub_link *)base)->turn += !last;
}

static int stub_link_recalled(struct weft_link *base)
{
    (void)base;
    return stub_script.recall_later-- <= 0;
}

static int stub_link_pass(struct weft_link *base, uint64_t number, int fd)
{
    (void)base, (void)number;
    FUZZ_CHECK(fcntl(fd, F_GETFD) >= 0);
    return stub_script.shut ? WEFT_ELINK : 0;
}

static int stub_link_take(struct weft_link *base, uint64_t number, int *fd)
{
    (void)base, (void)number;
    if (stub_script.take_later-- > 0)
        return WEFT_EAGAIN;
    *fd = stub_script.shut ? -1 : dup(2);
    return *fd < 0 ? weft_fail(WEFT_ELINK, "the stub passes nothing") : 0;
}

static int post_one(struct stub_link *link, const struct weft_cmd *cmd)
{
    int rc = weft_cmd_check(&link->base.nic->attr, cmd);
    if (rc)
        return rc;
    struct stub_cmd *c = calloc(1, sizeof *c);
    FUZZ_CHECK(c);
    c->link = &link->base;
    c->cmd = *cmd;
    touch(c);
    *link->cmds_tail = c;
    link->cmds_tail = &c->next;
    link->ncmds++;
    return 0;
}

static int stub_post(struct weft_link *base, const struct weft_cmd *cmds, int n)
{
    struct stub_link *link = (struct stub_link *)base;
    int most = stub_script.accept_at_most ? stub_script.accept_at_most - 1 : n;
    int i = 0, rc = 0;
    if (link->dead)
        return WEFT_ELINK;
    for (; i < n && i < most && link->ncmds < STUB_DEPTH; i++)
        if ((rc = post_one(link, &cmds[i])))
            break;
    return i || !rc ? i : rc;
}

static int stub_poll(struct weft_nic *base, struct weft_comp *comps, int max)
{
    struct stub_nic *nic = (struct stub_nic *)base;
    int n = 0;
    free_comps(&nic->given);
    for (; n < max && nic->comps; n++) {
        struct stub_comp *c = nic->comps;
        nic->comps = c->next;
        if (!nic->comps)
            nic->comps_tail = &nic->comps;
        comps[n] = c->comp;
        c->next = nic->given;
        nic->given = c;
    }
    return n;
}

#define STUB_OPS(how_to_open)                                                                     \
    {                                                                                             \
        .probe = stub_probe, .open = (how_to_open), .close = stub_close, .mem_reg = stub_mem_reg, \
        .mem_dereg = stub_mem_dereg, .link_open = stub_link_open,                                 \
        .link_address = stub_link_address, .link_connect = stub_link_connect,                     \
        .link_close = stub_link_close, .link_enter = stub_link_enter,                             \
        .link_leave = stub_link_leave, .link_recall = stub_link_recall,                           \
        .link_recalled = stub_link_recalled, .link_pass = stub_link_pass,                         \
        .link_take = stub_link_take, .post = stub_post, .poll = stub_poll,                        \
    }

static const struct weft_transport_ops stub_ops = STUB_OPS(stub_open);
static const struct weft_transport_ops stub2_ops = STUB_OPS(stub2_open);

const struct weft_transport weft_transport_stub = {
    .abi = WEFT_ABI, .name = "stub", .summary = "for fuzzing", .ops = &stub_ops};

const struct weft_transport weft_transport_stub2 = {
    .abi = WEFT_ABI, .name = "stub2", .summary = "for fuzzing", .same_host = 1, .ops = &stub2_ops};
