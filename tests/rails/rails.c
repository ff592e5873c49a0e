/* SPDX-License-Identifier: Apache-2.0 */
/* The transport of rails.h. */
#include "rails.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NICS_MAX 256 /* of all endpoints of a test */

extern const struct weft_transport weft_transport_local;

struct rails_script rails = {.ndevices = 3};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    const struct weft_nic *nic;
    struct rails_device *device;
} nics[NICS_MAX];
static _Atomic(uint32_t) next_key = 1000;

void rails_reset(int ndevices)
{
    memset(&rails, 0, sizeof rails);
    rails.ndevices = ndevices;
    for (int i = 0; i < RAILS_MAX; i++)
        rails.device[i].numa = -1;
}

static const struct weft_transport_ops *local(void)
{
    return weft_transport_local.ops;
}

/* Put `to` in the place of `from`; the device, if it is not given. */
static struct rails_device *swap(const struct weft_nic *from, const struct weft_nic *to,
                                 struct rails_device *device)
{
    int i = 0;
    pthread_mutex_lock(&lock);
    while (i < NICS_MAX && nics[i].nic != from)
        i++;
    if (i == NICS_MAX)
        abort(); /* a test that opens more has to say so */
    nics[i].nic = to;
    nics[i].device = device ? device : nics[i].device;
    device = nics[i].device;
    pthread_mutex_unlock(&lock);
    return device;
}

static struct rails_device *device_of(const struct weft_nic *nic)
{
    return swap(nic, nic, NULL);
}

static int rails_probe(struct weft_device_info *list, int max)
{
    for (int i = 0; i < rails.ndevices && i < max; i++) {
        const struct rails_device *device = &rails.device[i];
        list[i] = (struct weft_device_info){
            .summary = "for tests", .usable = !device->unusable, .numa = device->numa};
        snprintf(list[i].name, sizeof list[i].name, "r%d", i);
        snprintf(list[i].pci, sizeof list[i].pci, "%s", device->pci ? device->pci : "");
        if (device->unusable)
            snprintf(list[i].reason, sizeof list[i].reason, "r%d is unusable", i);
    }
    return rails.ndevices;
}

static int rails_open(const struct weft_nic_opts *opts, struct weft_nic **nic)
{
    struct weft_nic_opts inner = *opts;
    int i = opts->device[0] == 'r' ? atoi(opts->device + 1) : RAILS_MAX;
    if (i >= rails.ndevices)
        return weft_fail(WEFT_ENODEV, "rails: there is no device %s", opts->device);
    struct rails_device *device = &rails.device[i];
    if (device->open)
        return weft_fail(device->open, "rails: %s does not open", opts->device);
    inner.device = "local";
    int rc = local()->open(&inner, nic);
    if (rc)
        return rc;
    (*nic)->attr.chosen_keys = rails.chosen_keys;
    if (device->max_msg)
        (*nic)->attr.max_msg = device->max_msg;
    device->nics++;
    swap(NULL, *nic, device);
    return 0;
}

static void rails_close(struct weft_nic *nic)
{
    swap(nic, NULL, NULL)->nics--;
    local()->close(nic);
}

static int rails_mem_reg(struct weft_nic *nic, const struct weft_mem_range *range,
                         struct weft_mem_handle *handle)
{
    struct weft_mem_range own = *range;
    if (!nic->attr.chosen_keys)
        own.key = next_key++;
    return local()->mem_reg(nic, &own, handle);
}

static int rails_mem_dereg(struct weft_nic *nic, void *mem)
{
    return local()->mem_dereg(nic, mem);
}

static int rails_link_open(struct weft_nic *nic, const struct weft_link_opts *opts,
                           struct weft_link **link)
{
    int rc = device_of(nic)->link_open;
    return rc ? weft_fail(rc, "rails: no link can be opened")
              : local()->link_open(nic, opts, link);
}

static int rails_link_address(struct weft_link *link, void *buf, size_t cap)
{
    return local()->link_address(link, buf, cap);
}

static int rails_link_connect(struct weft_link *link, const void *addr, size_t len)
{
    return device_of(link->nic)->stuck ? WEFT_EAGAIN : local()->link_connect(link, addr, len);
}

static void rails_link_close(struct weft_link *link)
{
    local()->link_close(link);
}

static int rails_link_enter(struct weft_link *link, uint32_t turn)
{
    return local()->link_enter(link, turn);
}

static void rails_link_leave(struct weft_link *link, uint32_t turn)
{
    local()->link_leave(link, turn);
}

static uint32_t rails_link_recall(struct weft_link *link, int last)
{
    return local()->link_recall(link, last);
}

static int rails_link_recalled(struct weft_link *link)
{
    return local()->link_recalled(link);
}

static int rails_link_pass(struct weft_link *link, uint64_t number, int fd)
{
    return local()->link_pass(link, number, fd);
}

static int rails_link_take(struct weft_link *link, uint64_t number, int *fd)
{
    return local()->link_take(link, number, fd);
}

static int rails_post(struct weft_link *link, const struct weft_cmd *cmds, int n)
{
    int took = local()->post(link, cmds, n);
    device_of(link->nic)->cmds += took > 0 ? took : 0;
    return took;
}

static int rails_poll(struct weft_nic *nic, struct weft_comp *comps, int max)
{
    return local()->poll(nic, comps, max);
}

static int rails_wait_fd(struct weft_nic *nic)
{
    return local()->wait_fd(nic);
}

static const struct weft_transport_ops ops = {
    .probe = rails_probe,
    .open = rails_open,
    .close = rails_close,
    .mem_reg = rails_mem_reg,
    .mem_dereg = rails_mem_dereg,
    .link_open = rails_link_open,
    .link_address = rails_link_address,
    .link_connect = rails_link_connect,
    .link_close = rails_link_close,
    .link_enter = rails_link_enter,
    .link_leave = rails_link_leave,
    .link_recall = rails_link_recall,
    .link_recalled = rails_link_recalled,
    .link_pass = rails_link_pass,
    .link_take = rails_link_take,
    .post = rails_post,
    .poll = rails_poll,
    .wait_fd = rails_wait_fd,
};

const struct weft_transport weft_transport_rails = {
    .abi = WEFT_ABI,
    .name = "rails",
    .summary = "for tests: several devices",
    .priority = 2000, /* before local */
    .same_host = 1,
    .ops = &ops,
};
