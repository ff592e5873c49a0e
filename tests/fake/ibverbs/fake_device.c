/* SPDX-License-Identifier: Apache-2.0 */
/* Devices, their ports and tables, and opened devices (contexts). */
#include "fake.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The macros of verbs.h stand before the functions of these names. */
#undef ibv_query_port

#define FULL_PKEY 0xffff
#define OTHER_PKEY 0x8000 /* plus its index */
#define PAGE_SIZES 0xfffff000u
#define COMP_VECTORS 1

struct fake_device fake__devices[FAKE_DEVICES];
struct fake_context *fake__contexts;

/* --- devices -------------------------------------------------------------------------------- */

/* Kinds of entries of a GID table. %d: device and port. */
static const struct gid_kind {
    const char *name, *address;
    enum ibv_gid_type type;
} gid_kinds[] = {
    {"link1", "fe80::fa:%x:%x", IBV_GID_TYPE_ROCE_V1},
    {"link2", "fe80::fa:%x:%x", IBV_GID_TYPE_ROCE_V2},
    {"ipv4v1", "::ffff:10.99.%d.%d", IBV_GID_TYPE_ROCE_V1},
    {"ipv4v2", "::ffff:10.99.%d.%d", IBV_GID_TYPE_ROCE_V2},
    {"ipv6v1", "2001:db8::fa:%x:%x", IBV_GID_TYPE_ROCE_V1},
    {"ipv6v2", "2001:db8::fa:%x:%x", IBV_GID_TYPE_ROCE_V2},
    {"zero", "::", IBV_GID_TYPE_ROCE_V2},
    {"ib", "fe80::1bfa:%x:%x", IBV_GID_TYPE_IB},
};

static void fill_gid(struct fake_gid *gid, const char *kind, int device, int port)
{
    char address[64];
    for (size_t i = 0; i < sizeof gid_kinds / sizeof *gid_kinds; i++) {
        if (strcmp(gid_kinds[i].name, kind) != 0)
            continue;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(address, sizeof address, gid_kinds[i].address, device + 1, port);
#pragma GCC diagnostic pop
        inet_pton(AF_INET6, address, gid->gid.raw);
        gid->type = gid_kinds[i].type;
        return;
    }
    fake__fault("'%s' is no kind of GID", kind);
}

static void make_port(struct fake_port *port, int device, int number)
{
    char kinds[sizeof fake__config.gid], *rest = kinds;
    bool ib = fake__config.link == IBV_LINK_LAYER_INFINIBAND;
    memset(port, 0, sizeof *port);
    port->state = IBV_PORT_ACTIVE;
    port->lid = ib ? (uint16_t)(1 + device * FAKE_PORTS + number) : 0;
    strcpy(kinds, ib ? "ib" : fake__config.gid);
    char *kind;
    for (int i = 0; i < FAKE_GIDS && (kind = strsep(&rest, "+")); i++)
        fill_gid(&port->gids[i], kind, device, number);
}

static void make_device(struct fake_device *device, int index)
{
    uint32_t qpn = device->next_qpn; /* numbers are not used again soon */
    memset(device, 0, sizeof *device);
    device->pub.node_type = IBV_NODE_CA;
    device->pub.transport_type = IBV_TRANSPORT_IB;
    device->next_qpn = qpn ? qpn : FAKE_QPN_FIRST;
    snprintf(device->pub.name, sizeof device->pub.name, "fake%d", index);
    snprintf(device->pub.dev_name, sizeof device->pub.dev_name, "uverbs%d", index);
    snprintf(device->pub.dev_path, sizeof device->pub.dev_path,
             "/sys/class/infiniband_verbs/uverbs%d", index);
    snprintf(device->pub.ibdev_path, sizeof device->pub.ibdev_path, "%s/fake%d",
             fake__config.sysfs, index);
    for (int port = 1; port <= FAKE_PORTS; port++)
        make_port(&device->ports[port], index, port);
}

void fake__devices_make(void)
{
    for (int i = 0; i < FAKE_DEVICES; i++)
        make_device(&fake__devices[i], i);
}

struct fake_device *fake__device(const char *name)
{
    for (uint64_t i = 0; i < fake__config.devices; i++)
        if (!strcmp(fake__devices[i].pub.name, name))
            return &fake__devices[i];
    return NULL;
}

bool fake__port_exists(uint32_t port)
{
    return port >= 1 && port <= fake__config.ports;
}

struct ibv_device **ibv_get_device_list(int *num_devices)
{
    fake__lock();
    int err = fake__plan_call(__func__), n = (int)fake__config.devices;
    fake__unlock();
    struct ibv_device **list = err ? NULL : calloc((size_t)n + 1, sizeof *list);
    if (num_devices)
        *num_devices = list ? n : 0;
    if (!list) {
        errno = err ? err : ENOMEM;
        return NULL;
    }
    for (int i = 0; i < n; i++)
        list[i] = &fake__devices[i].pub;
    return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
    free(list);
}

const char *ibv_get_device_name(struct ibv_device *device)
{
    return device->name;
}

/* --- contexts ------------------------------------------------------------------------------- */

struct fake_context *fake__context(struct ibv_context *pub)
{
    for (struct fake_context *c = fake__contexts; c; c = c->next)
        if (&c->pub.context == pub)
            return c;
    fake__fault("this context is not open");
    return NULL;
}

static void fill_port_attr(struct fake_device *device, int number, struct ibv_port_attr *attr)
{
    const struct fake_port *port = &device->ports[number];
    bool ib = fake__config.link == IBV_LINK_LAYER_INFINIBAND;
    *attr = (struct ibv_port_attr){
        .state = port->state,
        .max_mtu = IBV_MTU_4096,
        .active_mtu = (enum ibv_mtu)fake__config.mtu,
        .gid_tbl_len = FAKE_GIDS,
        .port_cap_flags = IBV_PORT_CM_SUP,
        .max_msg_sz = (uint32_t)fake__config.max_msg,
        .pkey_tbl_len = (uint16_t)fake__config.pkeys,
        .lid = port->lid,
        .sm_lid = ib ? 1 : 0,
        .max_vl_num = 1,
        .active_width = 2, /* four lanes */
        .active_speed = 32,
        .phys_state = port->state == IBV_PORT_ACTIVE ? 5 : 3, /* link up, disabled */
        .link_layer = (uint8_t)fake__config.link,
    };
}

static int query_port(struct ibv_context *pub, uint8_t port, struct ibv_port_attr *attr,
                      size_t len)
{
    struct ibv_port_attr all;
    fake__lock();
    struct fake_context *context = fake__context(pub);
    int err = context ? fake__plan_call("ibv_query_port") : EINVAL;
    if (!err && !fake__port_exists(port))
        err = EINVAL;
    if (!err) {
        fill_port_attr(context->device, port, &all);
        memcpy(attr, &all, len < sizeof all ? len : sizeof all);
    }
    fake__unlock();
    return err;
}

/* Who was compiled with older headers has less room. */
int ibv_query_port(struct ibv_context *context, uint8_t port_num,
                   struct _compat_ibv_port_attr *port_attr)
{
    return query_port(context, port_num, (struct ibv_port_attr *)port_attr,
                      offsetof(struct ibv_port_attr, flags));
}

static void fill_context(struct fake_context *context, struct fake_device *device)
{
    struct verbs_context *pub = &context->pub;
    pub->sz = sizeof *pub;
    pub->query_port = query_port;
    pub->context.device = &device->pub;
    pub->context.abi_compat = __VERBS_ABI_IS_EXTENDED;
    pub->context.cmd_fd = -1;
    pub->context.async_fd = context->async.fd;
    pub->context.num_comp_vectors = COMP_VECTORS;
    pub->context.ops.poll_cq = fake__poll_cq;
    pub->context.ops.req_notify_cq = fake__req_notify_cq;
    pub->context.ops.post_send = fake__post_send;
    pub->context.ops.post_recv = fake__post_recv;
    pub->context.ops.post_srq_recv = fake__post_srq_recv;
}

static int open_device(struct fake_device *device, struct fake_context **out)
{
    if (device->fatal)
        return EIO;
    struct fake_context *context = calloc(1, sizeof *context);
    if (!context)
        return ENOMEM;
    int err = fake__events_open(&context->async);
    if (!err && !fake__contexts) {
        err = fake__clock_start();
        if (err)
            fake__events_close(&context->async);
    }
    if (err) {
        free(context);
        return err;
    }
    context->device = device;
    fill_context(context, device);
    fake__object_make(&context->object, FAKE_CONTEXT, context);
    context->next = fake__contexts;
    fake__contexts = context;
    *out = context;
    return 0;
}

struct ibv_context *ibv_open_device(struct ibv_device *pub)
{
    struct fake_context *context = NULL;
    fake__lock();
    int err = fake__plan_call(__func__);
    struct fake_device *device = fake__device(pub->name);
    if (!err)
        err = device ? open_device(device, &context) : ENODEV;
    fake__unlock();
    if (err)
        errno = err;
    return err ? NULL : &context->pub.context;
}

/* The kernel takes back what is left; here that is a fault. */
static void abandon(struct fake_context *context)
{
    int left = -1; /* itself */
    for (int kind = 0; kind < FAKE_KINDS; kind++)
        left += context->live[kind];
    if (!left)
        return;
    fake__fault("%s is closed with %d domains, %d registrations, %d channels, %d completion "
                "queues, %d receive queues, %d queue pairs left",
                context->device->pub.name, context->live[FAKE_PD], context->live[FAKE_MR],
                context->live[FAKE_CHANNEL], context->live[FAKE_CQ], context->live[FAKE_SRQ],
                context->live[FAKE_QP]);
    fake__qp_abandon(context);
    fake__mr_abandon(context);
    fake__objects -= left;
}

int ibv_close_device(struct ibv_context *pub)
{
    fake__lock();
    struct fake_context *context = fake__context(pub);
    if (!context) {
        fake__unlock();
        errno = EINVAL;
        return -1;
    }
    abandon(context);
    struct fake_context **at = &fake__contexts;
    while (*at != context)
        at = &(*at)->next;
    *at = context->next;
    fake__events_close(&context->async);
    bool last = !fake__contexts;
    fake__object_retire(&context->object, context);
    fake__unlock();
    if (last)
        fake__clock_stop();
    return 0;
}

/* --- what can be asked ---------------------------------------------------------------------- */

static void fill_device_attr(struct fake_device *device, struct ibv_device_attr *attr)
{
    const struct fake_config *config = &fake__config;
    *attr = (struct ibv_device_attr){
        .fw_ver = "fake",
        .node_guid = htobe64(0xfa4e0000u + (uint64_t)(device - fake__devices)),
        .max_mr_size = config->max_mr_size,
        .page_size_cap = PAGE_SIZES,
        .vendor_id = (uint32_t)config->vendor,
        .max_qp = (int)config->max_qp,
        .max_qp_wr = (int)config->max_qp_wr,
        .device_cap_flags = IBV_DEVICE_PORT_ACTIVE_EVENT | IBV_DEVICE_RC_RNR_NAK_GEN,
        .max_sge = (int)config->max_sge,
        .max_sge_rd = (int)config->max_sge,
        .max_cq = (int)config->max_qp,
        .max_cqe = (int)config->max_cqe,
        .max_mr = (int)config->max_mr,
        .max_pd = (int)config->max_qp,
        .max_qp_rd_atom = (int)config->max_rd_atom,
        .max_res_rd_atom = (int)(config->max_rd_atom * config->max_qp),
        .max_qp_init_rd_atom = (int)config->max_rd_atom,
        .atomic_cap = (enum ibv_atomic_cap)config->atomics,
        .max_srq = config->srq ? (int)config->max_qp : 0,
        .max_srq_wr = config->srq ? (int)config->max_srq_wr : 0,
        .max_srq_sge = config->srq ? (int)config->max_sge : 0,
        .max_pkeys = (uint16_t)config->pkeys,
        .local_ca_ack_delay = 15,
        .phys_port_cnt = (uint8_t)config->ports,
    };
    attr->sys_image_guid = attr->node_guid;
}

int ibv_query_device(struct ibv_context *pub, struct ibv_device_attr *attr)
{
    fake__lock();
    struct fake_context *context = fake__context(pub);
    int err = context ? fake__plan_call(__func__) : EINVAL;
    if (!err)
        fill_device_attr(context->device, attr);
    fake__unlock();
    return err;
}

int ibv_query_gid(struct ibv_context *pub, uint8_t port_num, int index, union ibv_gid *gid)
{
    fake__lock();
    struct fake_context *context = fake__context(pub);
    int err = context ? fake__plan_call(__func__) : EINVAL;
    if (!err && (!fake__port_exists(port_num) || index < 0 || index >= FAKE_GIDS))
        err = EINVAL;
    if (!err)
        *gid = context->device->ports[port_num].gids[index].gid;
    fake__unlock();
    if (err)
        errno = err;
    return err ? -1 : 0;
}

#ifndef FAKE_OLD
static bool gid_is_set(const union ibv_gid *gid)
{
    static const union ibv_gid zero;
    return memcmp(gid, &zero, sizeof zero) != 0;
}

static ssize_t fill_gid_table(const struct fake_device *device, uint8_t *entries, size_t max,
                              size_t entry_size)
{
    size_t n = 0;
    for (uint32_t port = 1; port <= fake__config.ports; port++) {
        for (uint32_t i = 0; i < FAKE_GIDS; i++) {
            const struct fake_gid *gid = &device->ports[port].gids[i];
            if (!gid_is_set(&gid->gid))
                continue;
            if (n == max)
                return -EINVAL;
            struct ibv_gid_entry entry = {gid->gid, i, port, gid->type, 1};
            memset(entries + n * entry_size, 0, entry_size);
            memcpy(entries + n++ * entry_size, &entry,
                   entry_size < sizeof entry ? entry_size : sizeof entry);
        }
    }
    return (ssize_t)n;
}

ssize_t _ibv_query_gid_table(struct ibv_context *pub, struct ibv_gid_entry *entries,
                             size_t max_entries, uint32_t flags, size_t entry_size)
{
    fake__lock();
    struct fake_context *context = fake__context(pub);
    int err = context ? fake__plan_call(__func__) : EINVAL;
    if (!err && !fake__config.gid_table)
        err = EOPNOTSUPP;
    if (!err && flags)
        err = EINVAL;
    ssize_t n = err ? -err
                    : fill_gid_table(context->device, (uint8_t *)entries, max_entries, entry_size);
    fake__unlock();
    return n;
}
#endif

int ibv_query_pkey(struct ibv_context *pub, uint8_t port_num, int index, __be16 *pkey)
{
    fake__lock();
    struct fake_context *context = fake__context(pub);
    int err = context ? fake__plan_call(__func__) : EINVAL;
    if (!err && (!fake__port_exists(port_num) || index < 0 || index >= (int)fake__config.pkeys))
        err = EINVAL;
    fake__unlock();
    if (err) {
        errno = err;
        return -1;
    }
    *pkey = htobe16((uint16_t)(index ? OTHER_PKEY + index : FULL_PKEY));
    return 0;
}
