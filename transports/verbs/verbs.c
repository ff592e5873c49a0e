/* SPDX-License-Identifier: Apache-2.0 */
/* The transport's table, and a nic: opened with what its device grants, closed. */
#include "verbs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define MAX_CQE 32767       /* completions of a nic; what Soft-RoCE grants at most */
#define MAX_READS 128       /* READs and ADD64s that a queue pair executes at once */
#define CLOSE_NS 100000000u /* that close waits for goodbyes to be acknowledged */

static weft_open_fn verbs_open;
static weft_close_fn verbs_close;

static const struct weft_transport_ops verbs_ops = {
    .probe = verbs_probe,
    .open = verbs_open,
    .close = verbs_close,
    .mem_reg = verbs_mem_reg,
    .mem_dereg = verbs_mem_dereg,
    .link_open = verbs_link_open,
    .link_address = verbs_link_address,
    .link_connect = verbs_link_connect,
    .link_close = verbs_link_close,
    .post = verbs_post,
    .poll = verbs_poll,
    .wait_fd = verbs_wait_fd,
};

const struct weft_transport weft_transport_verbs = {
    .abi = WEFT_ABI,
    .name = "verbs",
    .summary = "RDMA over InfiniBand and RoCE",
    .priority = 500,
    .ops = &verbs_ops,
};

/* --- what the device grants ------------------------------------------------------------------------------ */

static uint32_t least(uint32_t a, int b)
{
    return b < 0 ? 0 : a < (uint32_t)b ? a : (uint32_t)b;
}

static void read_mtu(struct verbs_nic *nic)
{
    int64_t mtu = weft_config_int("WEFT_VERBS_MTU");
    uint8_t code = IBV_MTU_256;
    while (mtu != 128 << code)
        code++;
    if (code < nic->mtu)
        nic->mtu = code;
}

static void read_settings(struct verbs_nic *nic)
{
    nic->ndata = (uint32_t)weft_config_int("WEFT_VERBS_QPS");
    nic->credits = (uint32_t)weft_config_int("WEFT_VERBS_CREDITS");
    nic->srq_most = (uint32_t)weft_config_int("WEFT_VERBS_RECVS");
    nic->chunk = (uint64_t)weft_config_int("WEFT_VERBS_CHUNK");
    nic->flap_ns = (uint64_t)weft_config_int("WEFT_VERBS_FLAP") * 1000000u;
    nic->timeout = (uint8_t)weft_config_int("WEFT_VERBS_TIMEOUT");
    nic->retries = (uint8_t)weft_config_int("WEFT_VERBS_RETRY");
    nic->traffic_class = (uint8_t)weft_config_int("WEFT_VERBS_TRAFFIC_CLASS");
    nic->service_level = (uint8_t)weft_config_int("WEFT_VERBS_SERVICE_LEVEL");
    nic->relaxed = (int)weft_config_int("WEFT_VERBS_RELAXED");
}

static int find_pkey(struct verbs_nic *nic)
{
    int64_t wanted = weft_config_int("WEFT_VERBS_PKEY");
    __be16 key;
    if (wanted == 0) /* whatever stands first in the table */
        return 0;
    for (int i = 0; nic->lib->query_pkey(nic->context, nic->port, i, &key) == 0; i++) {
        if ((be16toh(key) & 0x7fff) != (wanted & 0x7fff)) /* the upper bit is membership */
            continue;
        nic->pkey_index = (uint16_t)i;
        return 0;
    }
    return weft_fail(WEFT_ENODEV, "verbs %s: the port has no partition key 0x%x (WEFT_VERBS_PKEY=%s)",
                     nic->name, (unsigned)wanted, weft_config_str("WEFT_VERBS_PKEY"));
}

static int read_limits(struct verbs_nic *nic, struct ibv_device_attr *attr)
{
    *attr = (struct ibv_device_attr){0};
    int rc = nic->lib->query_device(nic->context, attr);
    if (rc)
        return weft_fail(rc > 0 ? -rc : -EIO, "verbs %s: cannot query the device", nic->name);
    nic->max_sge = least(VERBS_MAX_SGE, attr->max_sge);
    nic->depth = least(VERBS_DEPTH, attr->max_qp_wr);
    nic->control_depth = least(VERBS_CONTROL_DEPTH, attr->max_qp_wr);
    nic->reads_in = (uint8_t)least(MAX_READS, attr->max_qp_rd_atom);
    nic->reads_out = (uint8_t)least(MAX_READS, attr->max_qp_init_rd_atom);
    nic->cq_room = nic->cq_size = least(MAX_CQE, attr->max_cqe);
    /* half of the control queue pair is for what needs no credit; its receives may be in it, too */
    nic->credits = least(nic->credits, (int)nic->control_depth / 2);
    nic->credits = least(nic->credits, (int)nic->control_depth - VERBS_SPARE_RECVS);
    nic->imms = least(VERBS_IMMS, attr->max_qp_wr);
    if (attr->max_srq > 0 && attr->max_srq_wr > 0)
        nic->srq_most = least(nic->srq_most, attr->max_srq_wr);
    else
        nic->srq_most = 0;
    if (nic->chunk > nic->max_msg)
        nic->chunk = nic->max_msg;
    nic->mr_max = attr->max_mr_size > 0 ? attr->max_mr_size : UINT64_MAX;
    nic->short_max = nic->plain_max = nic->chunk < VERBS_SHORT ? nic->chunk : VERBS_SHORT;
    if (nic->max_sge > 0 && nic->depth >= 8 && nic->credits > 0 && nic->chunk >= 4096)
        return 0;
    return weft_fail(WEFT_ENODEV, "verbs %s: the device's limits are too small", nic->name);
}

/* Soft-RoCE (Linux, drivers/infiniband/sw/rxe/rxe_param.h; 0 before commit 0184afd15a14) and Soft-iWARP (sw/siw/siw.h). */
static bool is_software(const struct ibv_device_attr *attr)
{
    return attr->vendor_id == 0xffffff || attr->vendor_id == 0x626d74 || attr->vendor_id == 0;
}

static void declare(struct verbs_nic *nic, const struct ibv_device_attr *attr)
{
    struct weft_nic_attr *a = &nic->base.attr;
    *a = (struct weft_nic_attr){
        .ops = WEFT_OP_BIT(WEFT_OP_SEND) | WEFT_OP_BIT(WEFT_OP_WRITE) |
               WEFT_OP_BIT(WEFT_OP_WRITE_IMM) | WEFT_OP_BIT(WEFT_OP_READ) |
               WEFT_OP_BIT(WEFT_OP_FENCE),
        .mem_kinds = verbs_mem_kinds(nic),
        .order = WEFT_ORDER_NONE,
        .done = WEFT_DONE_DELIVERED,
        .imm_bits = 32,
        .software = is_software(attr),
        .quick_poll = 1,
        .max_inline = VERBS_MAX_INLINE,
        .max_send = nic->max_msg < VERBS_MAX_SEND ? (uint32_t)nic->max_msg : VERBS_MAX_SEND,
        .max_iov = VERBS_MAX_IOV,
        .tx_depth = nic->depth,
        .max_msg = VERBS_MAX_MSG,
    };
    if (nic->reads_in == 0 || nic->reads_out == 0)
        a->ops &= ~WEFT_OP_BIT(WEFT_OP_READ);
    else if (attr->atomic_cap != IBV_ATOMIC_NONE)
        a->ops |= WEFT_OP_BIT(WEFT_OP_ADD64);
    a->add_global = attr->atomic_cap == IBV_ATOMIC_GLOB;
}

/* --- what it owns ---------------------------------------------------------------------------------------- */

static int watch(struct verbs_nic *nic, int fd)
{
    struct epoll_event event = {.events = EPOLLIN};
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ||
        epoll_ctl(nic->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0)
        return weft_fail(-errno, "verbs %s: cannot watch a descriptor: %m", nic->name);
    return 0;
}

static int open_descriptors(struct verbs_nic *nic)
{
    nic->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    nic->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (nic->epoll_fd < 0 || nic->timer_fd < 0)
        return weft_fail(-errno, "verbs %s: cannot make a descriptor: %m", nic->name);
    int rc = watch(nic, nic->timer_fd);
    if (rc == 0)
        rc = watch(nic, nic->context->async_fd);
    return rc ? rc : watch(nic, nic->channel->fd);
}

static int open_queues(struct verbs_nic *nic)
{
    struct ibv_srq_init_attr srq = {.attr = {.max_wr = nic->srq_most, .max_sge = 1}};
    nic->pd = nic->lib->alloc_pd(nic->context);
    if (!nic->pd)
        return weft_fail(-errno, "verbs %s: cannot make a protection domain: %m", nic->name);
    nic->channel = nic->lib->create_comp_channel(nic->context);
    if (!nic->channel)
        return weft_fail(-errno, "verbs %s: cannot make a completion channel: %m", nic->name);
    nic->cq = nic->lib->create_cq(nic->context, (int)nic->cq_room, nic, nic->channel, 0);
    if (!nic->cq)
        return weft_fail(-errno, "verbs %s: cannot make a queue for %lld completions: %m",
                         nic->name, (long long)nic->cq_room);
    /* a device may say that it has shared queues and not make one: each link then has its own */
    if (nic->srq_most > 0)
        nic->srq = nic->lib->create_srq(nic->pd, &srq);
    return 0;
}

static void close_all(struct verbs_nic *nic)
{
    verbs_pool_fini(&nic->sends);
    verbs_pool_fini(&nic->smalls);
    verbs_pool_fini(&nic->recvs);
    if (nic->srq)
        nic->lib->destroy_srq(nic->srq);
    if (nic->unacked)
        nic->lib->ack_cq_events(nic->cq, nic->unacked);
    if (nic->cq)
        nic->lib->destroy_cq(nic->cq);
    if (nic->channel)
        nic->lib->destroy_comp_channel(nic->channel);
    if (nic->pd)
        nic->lib->dealloc_pd(nic->pd);
    if (nic->context)
        nic->lib->close_device(nic->context);
    if (nic->timer_fd >= 0)
        close(nic->timer_fd);
    if (nic->epoll_fd >= 0)
        close(nic->epoll_fd);
    while (nic->free_ops) {
        struct verbs_op *op = nic->free_ops;
        nic->free_ops = op->next;
        free(op);
    }
    while (nic->free_notes) {
        struct verbs_note *note = nic->free_notes;
        nic->free_notes = note->next;
        free(note);
    }
    free(nic->stash);
    free(nic->qps);
    free(nic->lives);
    free(nic->by_qpn);
    free(nic);
}

/* --- open and close -------------------------------------------------------------------------------------- */

static struct verbs_nic *nic_new(const struct verbs_lib *lib)
{
    struct verbs_nic *nic = calloc(1, sizeof *nic);
    if (!nic)
        return NULL;
    nic->by_qpn = calloc(VERBS_BUCKETS, sizeof *nic->by_qpn);
    if (!nic->by_qpn) {
        free(nic);
        return NULL;
    }
    nic->base.transport = &weft_transport_verbs;
    nic->lib = lib;
    nic->epoll_fd = nic->timer_fd = -1;
    nic->busy_tail = &nic->busy;
    nic->harvest_tail = &nic->harvest;
    nic->done.tail = &nic->done.head;
    return nic;
}

static int set_up(struct verbs_nic *nic, const char *device)
{
    struct ibv_device_attr attr;
    int rc = verbs_device_open(nic, device);
    if (rc)
        return rc;
    read_settings(nic);
    read_mtu(nic);
    rc = find_pkey(nic);
    if (rc == 0)
        rc = read_limits(nic, &attr);
    if (rc == 0)
        rc = open_queues(nic);
    if (rc == 0)
        rc = open_descriptors(nic);
    if (rc == 0)
        rc = verbs_qp_probe(nic);
    if (rc)
        return rc;
    verbs_pool_init(&nic->sends, nic, VERBS_MAX_SEND);
    verbs_pool_init(&nic->smalls, nic, VERBS_MAX_INLINE);
    verbs_pool_init(&nic->recvs, nic, VERBS_MAX_SEND);
    declare(nic, &attr);
    return 0;
}

static int verbs_open(const struct weft_nic_opts *opts, struct weft_nic **out)
{
    const struct verbs_lib *lib = verbs_lib();
    if (!lib)
        return WEFT_ENODEV;
    struct verbs_nic *nic = nic_new(lib);
    if (!nic)
        return weft_fail(-ENOMEM, "verbs: no memory for a nic");
    int rc = set_up(nic, opts->device);
    if (rc) {
        close_all(nic);
        return rc;
    }
    *out = &nic->base;
    return 0;
}

/* Goodbyes that are still on their way. */
static bool any_unsaid(const struct verbs_nic *nic)
{
    for (const struct verbs_link *link = nic->closed; link; link = link->next)
        if (!link->finishing)
            return true;
    return false;
}

static void verbs_close(struct weft_nic *base)
{
    struct verbs_nic *nic = (struct verbs_nic *)base;
    struct weft_comp comps[VERBS_BATCH];
    uint64_t end = weft_now() + CLOSE_NS;
    while (any_unsaid(nic) && weft_now() < end)
        verbs_poll(base, comps, VERBS_BATCH);
    while (nic->closed)
        verbs_link_free(nic->closed);
    verbs_recvs_take_back(nic);
    close_all(nic);
}
