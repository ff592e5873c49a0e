/* SPDX-License-Identifier: Apache-2.0 */
/* Two queue pairs in one process; see ibv_rig.h. */
#include "ibv_rig.h"

#include <dlfcn.h>
#include <fcntl.h>

#define RIG_PSN 0xfffffe /* soon wraps */
#define RIG_RNR_TIMER 1  /* 10 microseconds */
#define RIG_ALL                                                                                   \
    (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |                  \
     IBV_ACCESS_REMOTE_ATOMIC)

struct ibv_lib ibv;

static void *find(void *lib, const char *name)
{
    void *at = dlsym(lib, name);
    CHECK(at, "%s", dlerror());
    return at;
}

static void load(void)
{
    const char *path = test_env("WEFT_VERBS_LIBRARY", FAKE_IBVERBS);
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    CHECK(lib, "%s", dlerror());
#define IBV_LOAD(name) ibv.name = (__typeof__(ibv.name))find(lib, "ibv_" #name);
    IBV_CALLS(IBV_LOAD)
    ibv.reg_mr_iova2 = (__typeof__(ibv.reg_mr_iova2))dlsym(lib, "ibv_reg_mr_iova2");
    ibv.reg_dmabuf_mr = (__typeof__(ibv.reg_dmabuf_mr))dlsym(lib, "ibv_reg_dmabuf_mr");
    ibv.query_gid_table = (__typeof__(ibv.query_gid_table))dlsym(lib, "_ibv_query_gid_table");
    ibv.faults = (__typeof__(ibv.faults))dlsym(lib, "fake_verbs_faults");
    ibv.forgive = (__typeof__(ibv.forgive))dlsym(lib, "fake_verbs_forgive");
    ibv.objects = (__typeof__(ibv.objects))dlsym(lib, "fake_verbs_objects");
}

/* --- opening --------------------------------------------------------------------------------- */

static void open_context(struct rig_end *end, int index)
{
    int n;
    struct ibv_device **list = ibv.get_device_list(&n);
    CHECK(list && index < n, "there is no device %d of %d", index, n);
    end->context = ibv.open_device(list[index]);
    CHECK(end->context, "%s: cannot be opened", ibv.get_device_name(list[index]));
    ibv.free_device_list(list);
    int flags = fcntl(end->context->async_fd, F_GETFL);
    CHECK(!fcntl(end->context->async_fd, F_SETFL, flags | O_NONBLOCK), "fcntl");
}

static void find_address(struct rig_end *end)
{
    struct ibv_port_attr port;
    memset(&port, 0, sizeof port);
    CHECK(!ibv.query_port(end->context, 1, (struct _compat_ibv_port_attr *)&port), "query_port");
    CHECK(port.state == IBV_PORT_ACTIVE, "the port is in state %d", port.state);
    end->lid = port.lid;
    end->mtu = port.active_mtu;
    end->ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET;
    /* the last entry: addresses with an IP address come after link-local ones */
    for (int i = 0; i < port.gid_tbl_len; i++) {
        static const union ibv_gid zero;
        union ibv_gid gid;
        if (ibv.query_gid(end->context, 1, i, &gid) || !memcmp(&gid, &zero, sizeof gid))
            continue;
        end->gid = gid;
        end->gid_index = i;
    }
}

static void make_queues(struct rig *rig, struct rig_end *end)
{
    const struct rig_opts *opts = &rig->opts;
    end->channel = ibv.create_comp_channel(end->context);
    CHECK(end->channel, "create_comp_channel");
    end->cq = ibv.create_cq(end->context, opts->cqe ? opts->cqe : 64, end, end->channel, 0);
    CHECK(end->cq, "create_cq: %s", strerror(errno));
    uint32_t depth = opts->depth ? opts->depth : 16, sge = opts->sge ? opts->sge : 1;
    if (opts->srq) {
        struct ibv_srq_init_attr init = {.attr = {.max_wr = depth, .max_sge = sge}};
        end->srq = ibv.create_srq(end->pd, &init);
        CHECK(end->srq, "create_srq: %s", strerror(errno));
    }
    struct ibv_qp_init_attr init = {
        .send_cq = end->cq,
        .recv_cq = end->cq,
        .srq = end->srq,
        .cap = {depth, depth, sge, sge, opts->inlined},
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = opts->sig_all,
    };
    end->qp = ibv.create_qp(end->pd, &init);
    CHECK(end->qp, "create_qp: %s", strerror(errno));
}

void rig_open(struct rig *rig, const struct rig_opts *opts)
{
    static const struct rig_opts usual;
    if (!ibv.open_device)
        load();
    memset(rig, 0, sizeof *rig);
    rig->opts = opts ? *opts : usual;
    for (int i = 0; i < 2; i++) {
        struct rig_end *end = &rig->end[i];
        open_context(end, rig->opts.device[i]);
        find_address(end);
        end->pd = ibv.alloc_pd(end->context);
        CHECK(end->pd, "alloc_pd");
        end->buf = aligned_alloc(4096, RIG_BYTES);
        test_fill(end->buf, RIG_BYTES, (uint64_t)i + 1, 0);
        end->mr = ibv.reg_mr(end->pd, end->buf, RIG_BYTES,
                             rig->opts.access ? rig->opts.access : RIG_ALL);
        CHECK(end->mr, "reg_mr: %s", strerror(errno));
        make_queues(rig, end);
    }
}

/* --- states ---------------------------------------------------------------------------------- */

static int or_preset(int value, int preset)
{
    return value == RIG_NONE ? 0 : value ? value : preset;
}

int rig_init(struct rig *rig, int side)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT,
        .port_num = 1,
        .qp_access_flags = (unsigned int)or_preset(rig->opts.qp_access, RIG_ALL),
    };
    return ibv.modify_qp(rig->end[side].qp, &attr,
                         IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS);
}

int rig_rtr(struct rig *rig, int side)
{
    const struct rig_end *end = &rig->end[side], *peer = &rig->end[!side];
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = end->mtu,
        .dest_qp_num = peer->qp->qp_num + (side ? rig->opts.qpn_off : 0),
        .rq_psn = (RIG_PSN + (side ? rig->opts.psn_off : 0)) & 0xffffff,
        .max_dest_rd_atomic = (uint8_t)or_preset(rig->opts.rd_atom, 1),
        .min_rnr_timer = RIG_RNR_TIMER,
        .ah_attr = {.dlid = peer->lid, .port_num = 1, .is_global = end->ethernet},
    };
    if (end->ethernet) {
        attr.ah_attr.grh.dgid = peer->gid;
        attr.ah_attr.grh.sgid_index = (uint8_t)end->gid_index;
        attr.ah_attr.grh.hop_limit = 64;
    }
    return ibv.modify_qp(rig->end[side].qp, &attr,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                             IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

int rig_rts(struct rig *rig, int side)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTS,
        .sq_psn = RIG_PSN,
        .timeout = rig->opts.timeout ? rig->opts.timeout : 14,
        .retry_cnt = rig->opts.retry ? rig->opts.retry : 1,
        .rnr_retry = (uint8_t)or_preset(rig->opts.rnr_retry, 7),
        .max_rd_atomic = (uint8_t)or_preset(rig->opts.rd_atom, 1),
    };
    return ibv.modify_qp(rig->end[side].qp, &attr,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                             IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

int rig_to(struct rig *rig, int side, enum ibv_qp_state state)
{
    struct ibv_qp_attr attr = {.qp_state = state};
    return ibv.modify_qp(rig->end[side].qp, &attr, IBV_QP_STATE);
}

void rig_connect(struct rig *rig)
{
    int (*const steps[])(struct rig *, int) = {rig_init, rig_rtr, rig_rts};
    for (size_t k = 0; k < ARRAY_LEN(steps); k++) {
        for (int i = 0; i < 2; i++) {
            int err = steps[k](rig, i);
            CHECK(!err, "step %zu of side %d: %s", k, i, strerror(err));
        }
    }
}

void rig_forgive(void)
{
    if (ibv.forgive)
        ibv.forgive();
}

static void check_fake(void)
{
    char text[4096];
    int n = ibv.faults(text, sizeof text);
    CHECK(n == 0, "%d faults:\n%s", n, text);
    CHECK(ibv.objects() == 0, "%d objects are left", ibv.objects());
}

void rig_close(struct rig *rig)
{
    for (int i = 0; i < 2; i++) {
        struct rig_end *end = &rig->end[i];
        struct ibv_async_event event;
        while (!ibv.get_async_event(end->context, &event))
            ibv.ack_async_event(&event);
        CHECK(!ibv.destroy_qp(end->qp), "destroy_qp");
        CHECK(!end->srq || !ibv.destroy_srq(end->srq), "destroy_srq");
        CHECK(!ibv.destroy_cq(end->cq), "destroy_cq");
        CHECK(!ibv.destroy_comp_channel(end->channel), "destroy_comp_channel");
        CHECK(!ibv.dereg_mr(end->mr), "dereg_mr");
        CHECK(!ibv.dealloc_pd(end->pd), "dealloc_pd");
        CHECK(!ibv.close_device(end->context), "close_device");
        free(end->buf);
    }
    if (ibv.faults)
        check_fake();
}

/* --- requests and completions ---------------------------------------------------------------- */

struct ibv_wc rig_wc(struct rig *rig, int side)
{
    struct ibv_wc wc;
    int n = 0;
    TEST_UNTIL(n, n = ibv_poll_cq(rig->end[side].cq, 1, &wc), "a completion at side %d", side);
    CHECK(n == 1, "poll_cq: %d", n);
    CHECK(wc.qp_num == rig->end[side].qp->qp_num, "of queue pair %u", wc.qp_num);
    return wc;
}

void rig_no_wc(struct rig *rig, int side)
{
    struct ibv_wc wc;
    int n = ibv_poll_cq(rig->end[side].cq, 1, &wc);
    CHECK(n == 0, "%d completions, wr_id %" PRIu64 ", %s", n, wc.wr_id,
          ibv.wc_status_str(wc.status));
}

struct ibv_sge rig_sge(struct rig *rig, int side, size_t offset, uint32_t len)
{
    const struct rig_end *end = &rig->end[side];
    return (struct ibv_sge){(uintptr_t)end->buf + offset, len, end->mr->lkey};
}

int rig_post(struct rig *rig, int side, struct ibv_send_wr *wr)
{
    struct ibv_send_wr *bad = NULL;
    int err = ibv_post_send(rig->end[side].qp, wr, &bad);
    CHECK(!err == !bad, "post_send gave %d and %s request as bad", err, bad ? "a" : "no");
    return err;
}

int rig_recv(struct rig *rig, int side, uint64_t wr_id, size_t offset, uint32_t len)
{
    struct rig_end *end = &rig->end[side];
    struct ibv_sge sge = rig_sge(rig, side, offset, len);
    struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = len ? 1 : 0};
    struct ibv_recv_wr *bad = NULL;
    return end->srq ? ibv_post_srq_recv(end->srq, &wr, &bad) : ibv_post_recv(end->qp, &wr, &bad);
}

struct ibv_send_wr rig_wr(struct rig *rig, int side, enum ibv_wr_opcode opcode, uint64_t wr_id,
                          struct ibv_sge *sge, size_t remote_offset)
{
    const struct rig_end *peer = &rig->end[!side];
    struct ibv_send_wr wr = {
        .wr_id = wr_id,
        .sg_list = sge,
        .num_sge = sge ? 1 : 0,
        .opcode = opcode,
        .send_flags = IBV_SEND_SIGNALED,
    };
    uint64_t at = (uintptr_t)peer->buf + remote_offset;
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
        wr.wr.atomic.remote_addr = at;
        wr.wr.atomic.rkey = peer->mr->rkey;
    } else {
        wr.wr.rdma.remote_addr = at;
        wr.wr.rdma.rkey = peer->mr->rkey;
    }
    return wr;
}

struct ibv_async_event rig_event(struct rig *rig, int side)
{
    struct ibv_async_event event;
    TEST_UNTIL(!ibv.get_async_event(rig->end[side].context, &event), test_sleep_ms(1),
               "an asynchronous event at side %d", side);
    ibv.ack_async_event(&event);
    return event;
}
