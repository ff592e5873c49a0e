/* SPDX-License-Identifier: Apache-2.0 */
/* The table, and a nic: its settings, its limits, what it owns. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "efa.h"

#define CLOSE_NS 100000000u /* for goodbyes to leave */
#define SMALL 320           /* bytes of a slot: the transport's own messages, inline payload */
#define LEAST_SEND 4096     /* what core needs */
#define MOST_INJECT 512     /* beyond, a copy costs more than a completion */

/* --- limits ---------------------------------------------------------------------------------------------- */

static void read_settings(struct efa_nic *nic)
{
    nic->chunk = (uint64_t)weft_config_int("WEFT_EFA_CHUNK");
    nic->credits = (uint32_t)weft_config_int("WEFT_EFA_CREDITS");
    nic->recvs_most = (uint32_t)weft_config_int("WEFT_EFA_RECVS");
    nic->wakes = weft_config_int("WEFT_EFA_WAIT");
    nic->depth = EFA_DEPTH;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* From what libfabric says of the device. */
static int read_limits(struct efa_nic *nic)
{
    const struct fi_info *info = nic->info;
    size_t key_size = info->domain_attr->mr_key_size;
    nic->chunk = least(nic->chunk, info->ep_attr->max_msg_size);
    nic->recvs_most = (uint32_t)least(nic->recvs_most, info->rx_attr->size);
    nic->inject = (uint32_t)least(info->tx_attr->inject_size, MOST_INJECT);
    nic->flying_most = UINT32_MAX;
    nic->fetch_below = info->caps & FI_READ ? 0 : UINT64_MAX;
    efa_quirk_limit(nic);
    nic->max_pieces = (uint32_t)least(info->tx_attr->iov_limit, EFA_MAX_PIECES);
    nic->wide = info->domain_attr->cq_data_size >= sizeof(uint64_t);
    nic->virt = info->domain_attr->mr_mode & FI_MR_VIRT_ADDR;
    nic->late_imms = !efa_quirk_data(info);
    nic->pick_keys = !(info->domain_attr->mr_mode & FI_MR_PROV_KEY);
    nic->key_mask = key_size >= sizeof(uint64_t) ? UINT64_MAX : ((uint64_t)1 << 8 * key_size) - 1;
    if (info->ep_attr->max_msg_size < LEAST_SEND + sizeof(struct efa_head) || nic->max_pieces == 0)
        return weft_fail(WEFT_EUNSUPPORTED, "efa %s: its messages are too short (%zu bytes)",
                         nic->name, info->ep_attr->max_msg_size);
    return 0;
}

static void declare(struct efa_nic *nic)
{
    uint64_t longest = least(nic->info->ep_attr->max_msg_size, EFA_MAX_SEND);
    nic->base.attr = (struct weft_nic_attr){
        .ops = WEFT_OP_BIT(WEFT_OP_SEND) | WEFT_OP_BIT(WEFT_OP_WRITE) |
               WEFT_OP_BIT(WEFT_OP_WRITE_IMM) | WEFT_OP_BIT(WEFT_OP_READ) |
               WEFT_OP_BIT(WEFT_OP_ADD64) | WEFT_OP_BIT(WEFT_OP_FENCE),
        .mem_kinds = efa_mem_kinds(nic),
        .order = WEFT_ORDER_NONE,
        .done = WEFT_DONE_DELIVERED,
        .imm_bits = 32,
        .local_reg = (nic->info->domain_attr->mr_mode & FI_MR_LOCAL) != 0,
        .chosen_keys = 1,
        .add_global = 1,
        .target_progress = nic->info->domain_attr->data_progress != FI_PROGRESS_AUTO,
        .quick_poll = efa_quirk_polls(nic->info),
        .max_inline = EFA_MAX_INLINE,
        .max_send = (uint32_t)(longest - sizeof(struct efa_head)),
        .max_iov = EFA_MAX_IOV,
        .tx_depth = nic->depth,
        .max_msg = EFA_MAX_MSG,
    };
}

/* --- open and close -------------------------------------------------------------------------------------- */

static struct efa_nic *nic_new(const struct efa_lib *lib, const char *device)
{
    struct efa_nic *nic = calloc(1, sizeof *nic);
    if (!nic)
        return NULL;
    nic->base.transport = &weft_transport_efa;
    nic->lib = lib;
    nic->message.fd = nic->work.fd = nic->target.fd = nic->epoll_fd = nic->timer_fd = -1;
    nic->imms_tail = &nic->imms;
    snprintf(nic->name, sizeof nic->name, "%s", device);
    struct weft_list *lists[] = {&nic->lent,   &nic->back,      &nic->links,    &nic->busy,
                                &nic->flying, &nic->again,     &nic->free_reqs, &nic->free_ops,
                                &nic->done,   &nic->arrivals,  &nic->last,     &nic->telling};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        weft_list_init(lists[i]);
    efa_pool_init(&nic->smalls, nic, SMALL);
    efa_pool_init(&nic->larges, nic, EFA_MAX_SEND);
    return nic;
}

static int open_descriptors(struct efa_nic *nic)
{
    nic->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    nic->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (nic->epoll_fd < 0 || nic->timer_fd < 0)
        return weft_fail(-errno, "efa %s: cannot make a descriptor: %m", nic->name);
    struct epoll_event event = {.events = EPOLLIN};
    if (epoll_ctl(nic->epoll_fd, EPOLL_CTL_ADD, nic->timer_fd, &event) < 0)
        return weft_fail(-errno, "efa %s: cannot watch a descriptor: %m", nic->name);
    return 0;
}

static void free_list(struct weft_list *list, size_t offset)
{
    while (!weft_list_empty(list)) {
        struct weft_list *item = list->next;
        weft_list_remove(item);
        free((char *)item - offset);
    }
}

static void close_all(struct efa_nic *nic)
{
    efa_ep_close_all(nic);
    free_list(&nic->free_ops, offsetof(struct efa_op, in));
    free_list(&nic->free_reqs, offsetof(struct efa_req, in));
    while (nic->imms) {
        struct efa_arrival *imm = nic->imms;
        nic->imms = imm->next;
        free(imm);
    }
    while (nic->processes) {
        struct efa_process *process = nic->processes;
        nic->processes = process->next;
        if (process->fd >= 0)
            close(process->fd);
        free(process);
    }
    while (nic->names) {
        struct efa_name *name = nic->names;
        nic->names = name->next;
        free(name);
    }
    if (nic->info)
        nic->lib->freeinfo(nic->info);
    if (nic->timer_fd >= 0)
        close(nic->timer_fd);
    if (nic->epoll_fd >= 0)
        close(nic->epoll_fd);
    free(nic->by_number);
    free(nic);
}

static int open_device(struct efa_nic *nic, const struct weft_nic_opts *opts,
                       enum fi_hmem_iface iface)
{
    bool gpu = iface != FI_HMEM_SYSTEM;
    int rc = efa_device_info(nic->lib, opts->device, opts->bind_host, gpu, &nic->info);
    if (rc)
        return rc;
    nic->iface = iface;
    read_settings(nic);
    rc = read_limits(nic);
    if (rc == 0 && gpu && nic->fetch_below > 0)
        rc = weft_fail(WEFT_EUNSUPPORTED, "efa %s: READ goes by messages, which the processor copies",
                       nic->name);
    if (rc == 0)
        rc = efa_ep_open_all(nic);
    if (rc == 0)
        return 0;
    efa_ep_close_all(nic);
    nic->lib->freeinfo(nic->info);
    nic->info = NULL;
    return rc;
}

/* With the GPUs' memory, or else without. */
static int open_either(struct efa_nic *nic, const struct weft_nic_opts *opts)
{
    enum fi_hmem_iface iface = efa_gpu_iface(opts->gpu);
    if (iface != FI_HMEM_SYSTEM) {
        if (open_device(nic, opts, iface) == 0)
            return 0;
        weft_log(WEFT_LOG_INFO, "efa", "%s: not with memory of %s GPUs: %s", nic->name, opts->gpu,
                 weft_last_error());
    }
    return open_device(nic, opts, FI_HMEM_SYSTEM);
}

static int set_up(struct efa_nic *nic, const struct weft_nic_opts *opts)
{
    int rc = open_descriptors(nic);
    if (rc == 0)
        rc = open_either(nic, opts);
    if (rc)
        return rc;
    efa_process_describe(nic);
    nic->looked = weft_now();
    declare(nic);
    efa_msg_receive(nic);
    return nic->lost;
}

static int efa_open(const struct weft_nic_opts *opts, struct weft_nic **out)
{
    const struct efa_lib *lib = efa_lib();
    if (!lib)
        return WEFT_ENODEV;
    struct efa_nic *nic = nic_new(lib, opts->device);
    if (!nic)
        return weft_fail(-ENOMEM, "efa: no memory for a nic");
    int rc = set_up(nic, opts);
    if (rc) {
        close_all(nic);
        return rc;
    }
    *out = &nic->base;
    return 0;
}

static void efa_close(struct weft_nic *base)
{
    struct efa_nic *nic = (struct efa_nic *)base;
    uint64_t end = weft_now() + CLOSE_NS;
    while ((nic->nlast > 0 || !weft_list_empty(&nic->last)) && !nic->lost && weft_now() < end) {
        efa_msg_last_again(nic);
        efa_progress(nic);
    }
    close_all(nic);
}

/* --- the table ------------------------------------------------------------------------------------------- */

static const struct weft_transport_ops efa_ops = {
    .probe = efa_probe,
    .open = efa_open,
    .close = efa_close,
    .mem_reg = efa_mem_reg,
    .mem_dereg = efa_mem_dereg,
    .link_open = efa_link_open,
    .link_address = efa_link_address,
    .link_connect = efa_link_connect,
    .link_close = efa_link_close,
    .post = efa_post,
    .poll = efa_poll,
    .wait_fd = efa_wait_fd,
};

const struct weft_transport weft_transport_efa = {
    .abi = WEFT_ABI,
    .name = "efa",
    .summary = "libfabric: Amazon EFA, or another provider when asked (WEFT_EFA_PROVIDER)",
    .priority = 400,
    .ops = &efa_ops,
};
