/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_devices.h"

#include <rdma/fi_errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_NAME 64

/* Where the nics of tests/rails/two_sockets.xml are. */
static const uint8_t buses[] = {0x03, 0x04, 0x83, 0x84};

static atomic_uint carried[sizeof buses];

static int place_of(const char *device)
{
    unsigned bus;
    for (unsigned i = 0; sscanf(device, "rdmap%us0-rdm", &bus) == 1 && i < sizeof buses; i++)
        if (buses[i] == bus)
            return (int)i;
    return -1;
}

void fake_device_carries(const char *device)
{
    int i = place_of(device);
    if (i >= 0)
        atomic_fetch_add(&carried[i], 1);
}

unsigned fake_fabric_carried(const char *device)
{
    int i = place_of(device);
    return i < 0 ? 0 : atomic_load(&carried[i]);
}

struct nic {
    struct fid_nic fid;
    struct fi_device_attr device;
    struct fi_bus_attr bus;
    struct fi_link_attr link;
};

static char real_name[MOST_NAME];

static int nic_close(struct fid *fid)
{
    free(fid); /* its first member */
    return 0;
}

static int nic_control(struct fid *fid, int command, void *arg);

static struct fi_ops nic_ops = {.size = sizeof nic_ops, .close = nic_close, .control = nic_control};

static struct fid_nic *nic_new(uint8_t bus)
{
    struct nic *nic = calloc(1, sizeof *nic);
    if (!nic)
        return NULL;
    nic->fid = (struct fid_nic){.fid = {.fclass = FI_CLASS_NIC, .ops = &nic_ops},
                                .device_attr = &nic->device,
                                .bus_attr = &nic->bus,
                                .link_attr = &nic->link};
    nic->bus = (struct fi_bus_attr){.bus_type = FI_BUS_PCI, .attr.pci.bus_id = bus};
    nic->link = (struct fi_link_attr){.speed = FAKE_DEVICE_SPEED, .state = FI_LINK_UP};
    return &nic->fid;
}

/* libfabric copies them by asking them to. */
static int nic_control(struct fid *fid, int command, void *arg)
{
    if (command != FI_DUP)
        return -FI_ENOSYS;
    struct fid_nic *copy = nic_new(((struct nic *)fid)->bus.attr.pci.bus_id);
    *(struct fid_nic **)arg = copy;
    return copy ? 0 : -FI_ENOMEM;
}

static void name(struct fi_info *info, unsigned i)
{
    char own[MOST_NAME];
    snprintf(own, sizeof own, "rdmap%us0-rdm", buses[i]);
    snprintf(real_name, sizeof real_name, "%s", info->domain_attr->name);
    free(info->domain_attr->name);
    info->domain_attr->name = strdup(own);
    info->nic = nic_new(buses[i]);
}

struct fi_info *fake_devices_make(struct fi_info *(*dup)(const struct fi_info *),
                                  struct fi_info *first, unsigned n)
{
    struct fi_info *last = first, *rest = first->next;
    if (first->nic || n > sizeof buses)
        return NULL;
    for (unsigned i = 1; i < n; i++) {
        struct fi_info *copy = dup(first);
        if (!copy)
            break;
        name(copy, i);
        last->next = copy;
        last = copy;
    }
    last->next = NULL;
    name(first, 0);
    return rest;
}

void fake_devices_unmake(struct fi_info *info)
{
    if (!info->nic || info->nic->fid.ops != &nic_ops)
        return;
    nic_close(&info->nic->fid);
    info->nic = NULL;
    free(info->domain_attr->name);
    info->domain_attr->name = strdup(real_name);
}
