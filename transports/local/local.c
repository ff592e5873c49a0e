/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the local transport, its one device, and a nic's beginning and end. */
#include "local.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define DEVICE_NAME "local"

static weft_probe_fn local_probe;
static weft_open_fn local_open;
static weft_close_fn local_close;

static const struct weft_transport_ops local_ops = {
    .probe = local_probe,
    .open = local_open,
    .close = local_close,
    .mem_reg = local_mem_reg,
    .mem_dereg = local_mem_dereg,
    .link_open = local_link_open,
    .link_address = local_link_address,
    .link_connect = local_link_connect,
    .link_close = local_link_close,
    .link_enter = local_link_enter,
    .link_leave = local_link_leave,
    .link_recall = local_link_recall,
    .link_recalled = local_link_recalled,
    .link_pass = local_link_pass,
    .link_take = local_link_take,
    .post = local_post,
    .poll = local_poll,
    .wait_fd = local_wait_fd,
};

const struct weft_transport weft_transport_local = {
    .abi = WEFT_ABI,
    .name = "local",
    .summary = "this host: shared memory and copies between processes",
    .priority = 1000,
    .same_host = 1,
    .by_processor = 1,
    .ops = &local_ops,
};

static int local_probe(struct weft_device_info *list, int max)
{
    if (max > 0)
        list[0] = (struct weft_device_info){.name = DEVICE_NAME,
                                            .summary = "processes of this host, this one too",
                                            .usable = 1,
                                            .numa = -1};
    return 1;
}

static struct weft_nic_attr make_attr(uint64_t ring_size)
{
    /* a quarter of the ring: it fits however much the ring's end wastes */
    uint64_t max_send = ring_size / 4 < LOCAL_MAX_SEND ? ring_size / 4 : LOCAL_MAX_SEND;
    return (struct weft_nic_attr){
        .ops = WEFT_OP_BIT(WEFT_OP_SEND) | WEFT_OP_BIT(WEFT_OP_WRITE) |
               WEFT_OP_BIT(WEFT_OP_WRITE_IMM) | WEFT_OP_BIT(WEFT_OP_READ) |
               WEFT_OP_BIT(WEFT_OP_ADD64) | WEFT_OP_BIT(WEFT_OP_FENCE),
        .mem_kinds = WEFT_MEM_HOST,
        .order = WEFT_ORDER_NONE,
        .done = WEFT_DONE_DELIVERED,
        .imm_bits = 32,
        .chosen_keys = 1,
        .add_global = 1,
        .target_progress = 1,
        .peer_death = 1,
        .enters = 1,
        .quick_poll = 1,
        .max_inline = LOCAL_MAX_INLINE,
        .max_send = (uint32_t)max_send,
        .max_iov = LOCAL_MAX_IOV,
        .tx_depth = LOCAL_DEPTH,
        .max_msg = LOCAL_MAX_MSG,
    };
}

static uint64_t ring_size_setting(void)
{
    uint64_t wanted = (uint64_t)weft_config_int("WEFT_LOCAL_RING"), size = LOCAL_RING_MIN;
    while (size < wanted && size < LOCAL_RING_MAX)
        size *= 2;
    return size;
}

static int local_open(const struct weft_nic_opts *opts, struct weft_nic **out)
{
    if (strcmp(opts->device, DEVICE_NAME))
        return weft_fail(WEFT_ENODEV, "local: there is no device %s, only " DEVICE_NAME,
                         opts->device);
    struct local_nic *nic = calloc(1, sizeof *nic);
    if (!nic)
        return weft_fail(-ENOMEM, "local: no memory for a nic");
    weft_boot_id(nic->boot_id.bytes);
    nic->ring_size = ring_size_setting();
    nic->direct = weft_config_int("WEFT_LOCAL_CMA") != 0;
    nic->share = weft_config_int("WEFT_LOCAL_SHARE") != 0;
    nic->base = (struct weft_nic){.transport = &weft_transport_local,
                                  .attr = make_attr(nic->ring_size)};
    nic->listener = WEFT_LISTENER_NONE;
    nic->listener_source = (struct local_source){LOCAL_LISTENER, -1};
    for (int i = 0; i < LOCAL_GUESTS; i++)
        nic->guests[i].source = (struct local_source){LOCAL_GUEST, -1};
    nic->arena = malloc(LOCAL_ARENA);
    nic->epoll = epoll_create1(EPOLL_CLOEXEC);
    int rc = 0;
    if (!nic->arena)
        rc = weft_fail(-ENOMEM, "local: no memory for received messages");
    else if (nic->epoll < 0)
        rc = weft_fail(-errno, "local: cannot make an epoll descriptor: %m");
    else
        rc = local_listen(nic);
    if (rc)
        local_close(&nic->base);
    else
        *out = &nic->base;
    return rc;
}

static void local_close(struct weft_nic *base)
{
    struct local_nic *nic = (struct local_nic *)base;
    for (int i = 0; i < LOCAL_GUESTS; i++)
        local_unwatch(nic, &nic->guests[i].source);
    weft_listener_close(&nic->listener);
    if (nic->epoll >= 0)
        close(nic->epoll);
    local_mem_free_all(nic);
    free(nic->active);
    free(nic->arena);
    free(nic);
}

bool local_id_equal(const struct local_id *a, const struct local_id *b)
{
    return !memcmp(a, b, sizeof *a);
}
