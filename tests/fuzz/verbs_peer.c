/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A peer of the verbs transport with queue pairs of its own, over the fake libibverbs: addresses of
 * links, right and damaged; messages of the control queue pair of every kind, in any state; writes,
 * reads, additions and immediates through the data queue pair, under keys that are right or not; while
 * the link has cmds of its own. The link's memory is in parts, and so, the peer says, is its own.
 *
 * Checked: what rig.h says; a link with a key comes up only by the right proof; the device sees no misuse.
 */
#include "rig.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "transports/verbs/verbs.h"

#define STEPS 48
#define LEN 65536
#define RECVS 128 /* of the peer; more than a link sends in one input */
#define ROOM 16384
#define PART 12      /* log2: of the peer's room */
#define WRONG_KEY 5u /* of the link's own cmds, at times */
#define COMPS 64

extern const struct weft_transport weft_transport_verbs;
static struct rig rig;
static const struct verbs_lib *lib;

/* The peer's device. */
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static uint8_t *room;

struct run {
    struct fuzz_in in;
    struct ibv_cq *cq;
    struct ibv_qp *control, *data;
    struct verbs_address mine, theirs;
    bool active, keyed, proven, up;
};

static void set_up(void)
{
    int n;
    FUZZ_CHECK(setenv("FAKE_VERBS", "retry_ms=0,max_sge=4,max_mr_size=16K", 1) == 0);
    FUZZ_OK(weft_config_set("WEFT_LOG", "error"));
    FUZZ_OK(weft_config_set("WEFT_VERBS_LIBRARY", FAKE_IBVERBS));
    FUZZ_OK(weft_config_set("WEFT_VERBS_QPS", "1"));
    rig_open(&rig, &weft_transport_verbs, LEN, VERBS_MAX_SEND);
    lib = verbs_lib();
    FUZZ_CHECK(lib);
    struct ibv_device **list = lib->get_device_list(&n);
    FUZZ_CHECK(list && n == 1);
    context = lib->open_device(list[0]);
    lib->free_device_list(list);
    FUZZ_CHECK(context && (pd = lib->alloc_pd(context)));
    room = calloc(1, ROOM);
    FUZZ_CHECK(room && (mr = lib->reg_mr(pd, room, ROOM,
                                         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ |
                                             IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)));
}

/* --- the peer's queue pairs -------------------------------------------------------------------------- */

static struct ibv_qp *make_qp(struct run *run)
{
    struct ibv_qp_init_attr init = {
        .send_cq = run->cq,
        .recv_cq = run->cq,
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = 1,
        .cap = {.max_send_wr = STEPS, .max_recv_wr = RECVS, .max_send_sge = 1, .max_recv_sge = 1}};
    struct ibv_qp *qp = lib->create_qp(pd, &init);
    FUZZ_CHECK(qp);
    return qp;
}

static void connect_qp(struct run *run, struct ibv_qp *qp, int index)
{
    struct ibv_sge sge = {.addr = (uintptr_t)room, .length = ROOM, .lkey = mr->lkey};
    struct ibv_recv_wr recv = {.sg_list = &sge, .num_sge = 1}, *bad;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
                               .port_num = 1,
                               .qp_access_flags = IBV_ACCESS_REMOTE_WRITE |
                                                  IBV_ACCESS_REMOTE_READ |
                                                  IBV_ACCESS_REMOTE_ATOMIC};
    FUZZ_CHECK(
        lib->modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    for (int i = 0; i < RECVS; i++)
        FUZZ_CHECK(ibv_post_recv(qp, &recv, &bad) == 0);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR,
                                .ah_attr = {.is_global = 1, .port_num = 1},
                                .path_mtu = run->theirs.mtu,
                                .dest_qp_num = le32toh(run->theirs.qpn[index]),
                                .rq_psn = le32toh(run->theirs.psn[index]),
                                .max_dest_rd_atomic = 1,
                                .min_rnr_timer = 1};
    memcpy(attr.ah_attr.grh.dgid.raw, run->theirs.gid, 16);
    attr.ah_attr.grh.sgid_index = (uint8_t)((struct verbs_nic *)rig.nic)->gid_index;
    attr.ah_attr.grh.hop_limit = 1;
    FUZZ_CHECK(lib->modify_qp(qp, &attr,
                              IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                  IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                                  IBV_QP_MIN_RNR_TIMER) == 0);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                                .sq_psn = le32toh(run->mine.psn[index]),
                                .max_rd_atomic = 1,
                                .retry_cnt = 1,
                                .rnr_retry = 1,
                                .timeout = 1};
    FUZZ_CHECK(lib->modify_qp(qp, &attr,
                              IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                  IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static void begin_peer(struct run *run)
{
    run->cq = lib->create_cq(context, 4 * RECVS, NULL, NULL, 0);
    FUZZ_CHECK(run->cq);
    run->control = make_qp(run);
    run->data = make_qp(run);
    run->mine = run->theirs; /* of the same kind of device */
    run->mine.qpn[0] = htole32(run->control->qp_num);
    run->mine.qpn[1] = htole32(run->data->qp_num);
    run->mine.psn[0] = htole32(1);
    run->mine.psn[1] = htole32(2);
    connect_qp(run, run->control, 0);
    connect_qp(run, run->data, 1);
}

static void end_peer(struct run *run)
{
    lib->destroy_qp(run->control);
    lib->destroy_qp(run->data);
    lib->destroy_cq(run->cq);
}

static void drain(struct run *run)
{
    struct ibv_wc wcs[COMPS];
    while (ibv_poll_cq(run->cq, COMPS, wcs) > 0)
        ;
}

/* --- what it does ------------------------------------------------------------------------------------ */

static struct verbs_question pick_question(struct fuzz_in *in)
{
    const struct verbs_mem *mem = rig.mems[fuzz_pick(in, RIG_MEMS)];
    return (struct verbs_question){.addr = htole64(fuzz_near(in, (uintptr_t)rig.memory)),
                                   .len = htole64(fuzz_near(in, 8)),
                                   .rkey = htole32((uint32_t)fuzz_near(in, mem ? mem->rkey : 0)),
                                   .op = (uint8_t)fuzz_near(in, WEFT_OP_WRITE)};
}

/* The proof that a peer gives, over the addresses as the link has them. */
static void fill_hello(struct run *run, struct verbs_hello *hello)
{
    struct verbs_link *link = (struct verbs_link *)rig.link;
    enum weft_role peer = run->active ? WEFT_ROLE_PASSIVE : WEFT_ROLE_ACTIVE;
    memset(hello, 0, sizeof *hello);
    if (!run->keyed || fuzz_u8(&run->in) >= 192)
        return;
    FUZZ_OK(verbs_link_proof(link, peer, hello->mac));
    run->proven = true;
}

/* The keys of the room, or the next ones of them. */
static void fill_keys(struct fuzz_in *in, struct verbs_keys_msg *keys)
{
    const struct verbs_table *telling = ((struct verbs_link *)rig.link)->telling;
    uint32_t key = fuzz_u8(in) & 1 ? mr->rkey : WRONG_KEY, at = telling ? telling->have : 0;
    *keys = (struct verbs_keys_msg){.addr = htole64(fuzz_near(in, (uintptr_t)room)),
                                    .len = htole64(fuzz_near(in, ROOM)),
                                    .key = htole32(key),
                                    .index = htole16((uint16_t)fuzz_near(in, at)),
                                    .shift = (uint8_t)fuzz_near(in, PART)};
    for (uint32_t i = 0; i < VERBS_KEYS_AT_ONCE; i++)
        keys->keys[i] = htole32(at + i > 0 ? mr->rkey : key);
    keys->keys[fuzz_pick(in, VERBS_KEYS_AT_ONCE)] += htole32((uint32_t)fuzz_near(in, 0));
}

static uint32_t fill_body(struct run *run, enum verbs_kind kind, uint8_t *body)
{
    struct fuzz_in *in = &run->in;
    const struct verbs_link *link = (struct verbs_link *)rig.link;
    struct verbs_fault_msg fault = {.qp = (uint8_t)fuzz_near(in, 0),
                                    .epoch = (uint8_t)fuzz_near(in, link->data[0].epoch + 1u),
                                    .psn = htole32((uint32_t)fuzz_near(in, 7)),
                                    .imms = htole32((uint32_t)fuzz_near(in, 0))};
    struct verbs_ready_msg ready = {.qp = fault.qp, .epoch = link->data[0].epoch};
    struct verbs_check_msg check = {.id = fuzz_u8(in), .question = pick_question(in)};
    struct verbs_checked_msg checked = {.id = htole32((uint32_t)fuzz_near(in, link->check_id))};
    struct verbs_hello hello;
    struct verbs_keys_msg keys;
    fault.question = check.question;
    ready.verdict = checked.verdict = (int32_t)htole32((uint32_t)fuzz_near(in, 0));
    switch (kind) {
    case VERBS_HELLO:
        fill_hello(run, &hello);
        memcpy(body, &hello, sizeof hello);
        return sizeof hello;
    case VERBS_FAULT:
        memcpy(body, &fault, sizeof fault);
        return sizeof fault;
    case VERBS_READY:
        if (fuzz_u8(in) & 1)
            ready.verdict = (int32_t)htole32((uint32_t)WEFT_EAGAIN);
        memcpy(body, &ready, sizeof ready);
        return sizeof ready;
    case VERBS_CHECK:
        memcpy(body, &check, sizeof check);
        return sizeof check;
    case VERBS_CHECKED:
        memcpy(body, &checked, sizeof checked);
        return sizeof checked;
    case VERBS_KEYS:
        fill_keys(in, &keys);
        memcpy(body, &keys, sizeof keys);
        return sizeof keys;
    case VERBS_MSG:
        return fuzz_u16(in) % VERBS_MAX_SEND;
    default:
        return 0;
    }
}

static void post(struct ibv_qp *qp, struct ibv_send_wr *wr, uint32_t len)
{
    struct ibv_sge sge = {.addr = (uintptr_t)room, .length = len, .lkey = mr->lkey};
    struct ibv_send_wr *bad;
    wr->sg_list = &sge;
    wr->num_sge = len > 0;
    ibv_post_send(qp, wr, &bad);
}

static void say(struct run *run)
{
    struct fuzz_in *in = &run->in;
    enum verbs_kind kind = (enum verbs_kind)fuzz_pick(in, VERBS_KINDS + 1);
    const struct verbs_link *link = (struct verbs_link *)rig.link;
    uint8_t how = fuzz_u8(in);
    uint32_t taken = how & 1 ? link->sent - link->acked : 0;
    if (how >= 240)
        taken = fuzz_u8(in);
    uint32_t len = fill_body(run, kind, room);
    if (how >= 224)
        len = fuzz_u8(in); /* of another length than its kind has */
    struct ibv_send_wr wr = {
        .opcode = how >= 216 ? IBV_WR_SEND : IBV_WR_SEND_WITH_IMM,
        .imm_data = htobe32(verbs_imm(kind & 15, taken & 0xfff, how & 2 ? fuzz_u8(in) : 0))};
    post(run->control, &wr, len);
}

static void reach(struct run *run)
{
    static const enum ibv_wr_opcode ops[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
                                             IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD};
    struct fuzz_in *in = &run->in;
    struct verbs_question q = pick_question(in);
    struct ibv_send_wr wr = {.opcode = ops[fuzz_pick(in, 4)], .imm_data = 7};
    if (wr.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = le64toh(q.addr);
        wr.wr.atomic.rkey = le32toh(q.rkey);
        wr.wr.atomic.compare_add = 1;
        post(run->data, &wr, 8);
        return;
    }
    wr.wr.rdma.remote_addr = le64toh(q.addr);
    wr.wr.rdma.rkey = le32toh(q.rkey);
    post(run->data, &wr, le64toh(q.len) % 4096);
}

static void connect_link(struct run *run, bool damaged)
{
    uint8_t bytes[sizeof run->mine];
    size_t len = sizeof bytes;
    memcpy(bytes, &run->mine, sizeof bytes);
    if (damaged)
        len = fuzz_damage(&run->in, bytes, len);
    int rc = rig.ops->link_connect(rig.link, bytes, len);
    FUZZ_CHECK(rc <= 0);
    FUZZ_CHECK(rc < 0 || run->up || !run->keyed || run->proven);
    run->up = run->up || rc == 0;
}

static void own_cmd(struct run *run)
{
    struct weft_cmd cmd;
    uint8_t how;
    if (!run->up || rig.down || !rig_choose(&rig, &run->in, &cmd, &how))
        return;
    cmd.remote_addr = (uintptr_t)room;
    cmd.remote_key = how & 4 ? mr->rkey : WRONG_KEY;
    cmd.len = cmd.op == WEFT_OP_ADD64 ? 8 : how & 8 ? fuzz_u16(&run->in) % 8192 : how;
    cmd.flags = how & 16 && cmd.len <= VERBS_MAX_INLINE ? WEFT_CMD_INLINE : 0;
    rig_post(&rig, &cmd, how & 1 && cmd.op != WEFT_OP_ADD64 && cmd.op != WEFT_OP_FENCE);
}

static void step(struct run *run)
{
    uint8_t what = fuzz_u8(&run->in);
    if (what < 96)
        say(run);
    else if (what < 128)
        reach(run);
    else if (what < 176)
        connect_link(run, what >= 160);
    else if (what < 224)
        own_cmd(run);
    else if (what < 232)
        rig_forget(&rig, what % RIG_MEMS);
    rig_poll(&rig, RIG_COMPS);
    drain(run);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct run run = {.in = {data, data + size}};
    struct weft_link *link;
    if (!rig.nic)
        set_up();
    uint8_t how = fuzz_u8(&run.in);
    struct weft_link_opts opts = {.role = how & 1 ? WEFT_ROLE_ACTIVE : WEFT_ROLE_PASSIVE,
                                  .key = how & 128 ? fuzz_link_key() : NULL};
    run.active = how & 1;
    run.keyed = opts.key;
    FUZZ_OK(rig.ops->link_open(rig.nic, &opts, &link));
    FUZZ_CHECK(rig.ops->link_address(link, &run.theirs, WEFT_LINK_ADDRESS_MAX) ==
               sizeof run.theirs);
    rig_begin(&rig, link);
    begin_peer(&run);
    for (int i = 0; i < STEPS && fuzz_more(&run.in); i++)
        step(&run);
    rig.ops->link_close(link);
    rig.down = true; /* from here on any comp is one too many */
    end_peer(&run);
    rig_poll(&rig, RIG_COMPS);
    rig_end(&rig);
    return 0;
}
