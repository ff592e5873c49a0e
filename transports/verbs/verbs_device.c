/* SPDX-License-Identifier: Apache-2.0 */
/* Devices and their ports: which there are, which may be used, and under which address. */
#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "verbs.h"

#define MAX_GIDS 256
#define NAME_LEN sizeof(((struct weft_device_info *)0)->name)

/* --- the list of the user --------------------------------------------------------------------------- */

/* WEFT_VERBS_DEVICES names devices, or a port of one as "name:port". */
static bool is_wanted(const char *device, int port, uint64_t *met)
{
    char full[NAME_LEN + 8];
    const char *names[] = {device, full};
    snprintf(full, sizeof full, "%s:%d", device, port);
    return weft_config_selects("WEFT_VERBS_DEVICES", names, 2, met);
}

/* --- the address ------------------------------------------------------------------------------------ */

static bool is_mapped_v4(const union ibv_gid *gid)
{
    static const uint8_t prefix[12] = {[10] = 0xff, [11] = 0xff};
    return memcmp(gid->raw, prefix, sizeof prefix) == 0;
}

static bool is_link_local(const union ibv_gid *gid)
{
    return gid->raw[0] == 0xfe && (gid->raw[1] & 0xc0) == 0x80;
}

static bool is_null(const union ibv_gid *gid)
{
    static const uint8_t none[16];
    return memcmp(gid->raw, none, sizeof none) == 0;
}

/* RoCE v2 goes through routers and knows congestion control; IPv4 is what most networks route. */
static int rank(const struct ibv_gid_entry *entry)
{
    bool v2 = entry->gid_type == IBV_GID_TYPE_ROCE_V2;
    if (is_null(&entry->gid))
        return 0;
    if (is_mapped_v4(&entry->gid))
        return v2 ? 6 : 3;
    return (v2 ? 4 : 1) + !is_link_local(&entry->gid);
}

/* All of the port's, with their types if the library can tell. */
static int list_gids(struct verbs_nic *nic, const struct ibv_port_attr *port,
                     struct ibv_gid_entry *list)
{
    int n = 0;
    if (nic->lib->query_gid_table) {
        ssize_t all = nic->lib->query_gid_table(nic->context, list, MAX_GIDS, 0, sizeof list[0]);
        for (ssize_t i = 0; i < all; i++)
            if (list[i].port_num == nic->port)
                list[n++] = list[i];
        if (all >= 0)
            return n;
    }
    for (int i = 0; i < port->gid_tbl_len && n < MAX_GIDS; i++) {
        list[n] = (struct ibv_gid_entry){.gid_index = (uint32_t)i,
                                         .gid_type = IBV_GID_TYPE_ROCE_V2};
        if (nic->lib->query_gid(nic->context, nic->port, i, &list[n].gid) == 0)
            n++;
    }
    return n;
}

static int choose_gid(struct verbs_nic *nic, const struct ibv_port_attr *port)
{
    struct ibv_gid_entry list[MAX_GIDS];
    int64_t asked = weft_config_int("WEFT_VERBS_GID_INDEX");
    int best = 0;
    if (nic->layer == VERBS_INFINIBAND && asked < 0)
        asked = 0;
    if (asked >= 0) {
        nic->gid_index = (int)asked;
        if (nic->lib->query_gid(nic->context, nic->port, nic->gid_index, &nic->gid) == 0 &&
            !is_null(&nic->gid))
            return 0;
        return weft_fail(WEFT_ENODEV,
                         "verbs %s: WEFT_VERBS_GID_INDEX=%d: the port has no such GID (ibv_devinfo "
                         "-v lists them)",
                         nic->name, nic->gid_index);
    }
    for (int i = 0, n = list_gids(nic, port, list); i < n; i++) {
        if (rank(&list[i]) <= best)
            continue;
        best = rank(&list[i]);
        nic->gid_index = (int)list[i].gid_index;
        nic->gid = list[i].gid;
    }
    return best ? 0
                : weft_fail(WEFT_ENODEV,
                            "verbs %s: the port has no GID: has its network "
                            "interface an address?",
                            nic->name);
}

/* --- a port ----------------------------------------------------------------------------------------- */

/* lanes x rate of one, in Gbit/s, as the InfiniBand specification numbers them */
static uint64_t rate_of(const struct ibv_port_attr *port)
{
    static const struct {
        uint8_t code;
        uint16_t tenths;
    } speeds[] = {{1, 25},   {2, 50},   {4, 100},  {8, 100},
                  {16, 140}, {32, 250}, {64, 500}, {128, 1000}};
    static const uint8_t widths[][2] = {{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}};
    uint64_t speed = 0, width = 0;
    for (size_t i = 0; i < sizeof speeds / sizeof *speeds; i++)
        if (speeds[i].code == port->active_speed)
            speed = speeds[i].tenths;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        if (widths[i][0] == port->active_width)
            width = widths[i][1];
    return speed * width * 100000000u;
}

static const char *state_name(enum ibv_port_state state)
{
    switch (state) {
    case IBV_PORT_DOWN:
        return "down";
    case IBV_PORT_INIT:
        return "initialising: is a subnet manager running?";
    case IBV_PORT_ARMED:
        return "armed, not active";
    default:
        return "not active";
    }
}

/* Fill in what links need to know of the port, or say why it cannot be used. */
static int look_at_port(struct verbs_nic *nic, struct ibv_port_attr *port)
{
    *port = (struct ibv_port_attr){0};
    int rc = nic->lib->query_port(nic->context, nic->port, (struct _compat_ibv_port_attr *)port);
    if (rc)
        return weft_fail(-rc, "verbs %s: cannot query port %u: %s", nic->name, nic->port,
                         strerror(rc));
    nic->layer = port->link_layer == IBV_LINK_LAYER_ETHERNET ? VERBS_ETHERNET : VERBS_INFINIBAND;
    nic->lid = port->lid;
    nic->mtu = (uint8_t)port->active_mtu;
    nic->max_msg = port->max_msg_sz;
    if (nic->context->device->transport_type == IBV_TRANSPORT_IWARP)
        return weft_fail(WEFT_ENODEV,
                         "verbs %s: iWARP, which needs a connection manager, is not "
                         "supported",
                         nic->name);
    if (port->state != IBV_PORT_ACTIVE)
        return weft_fail(WEFT_ENODEV, "verbs %s: port %u is %s", nic->name, nic->port,
                         state_name(port->state));
    return choose_gid(nic, port);
}

static int read_line(const char *dir, const char *name, char *line, size_t size)
{
    char path[PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "re");
    bool any = f && fgets(line, (int)size, f);
    if (f)
        fclose(f);
    return any ? 0 : -ENOENT;
}

/* Where it is in the machine, as the kernel tells. */
static void look_at_place(const struct ibv_device *device, struct weft_device_info *info)
{
    char path[PATH_MAX], real[PATH_MAX], line[32];
    snprintf(path, sizeof path, "%s/device", device->ibdev_path);
    info->numa = read_line(path, "numa_node", line, sizeof line) == 0 ? atoi(line) : -1;
    if (info->numa < -1)
        info->numa = -1;
    const char *last = realpath(path, real) ? strrchr(real, '/') : NULL;
    unsigned domain, bus, slot, function;
    if (last && sscanf(last, "/%x:%x:%x.%u", &domain, &bus, &slot, &function) == 4)
        snprintf(info->pci, sizeof info->pci, "%04x:%02x:%02x.%u", domain & 0xffffu, bus & 0xffu,
                 slot & 0xffu, function & 7u);
}

static void describe(struct verbs_nic *nic, struct weft_device_info *info)
{
    struct ibv_port_attr port;
    char text[INET6_ADDRSTRLEN] = "";
    int rc = look_at_port(nic, &port);
    look_at_place(nic->context->device, info);
    info->bits_per_s = rate_of(&port);
    info->usable = rc == 0;
    if (rc)
        snprintf(info->reason, sizeof info->reason, "%s", weft_last_error());
    if (nic->layer == VERBS_INFINIBAND)
        snprintf(info->summary, sizeof info->summary, "InfiniBand port %u, lid %u", nic->port,
                 nic->lid);
    else if (rc == 0 && is_mapped_v4(&nic->gid))
        snprintf(info->summary, sizeof info->summary, "RoCE port %u, GID %d %s", nic->port,
                 nic->gid_index, inet_ntop(AF_INET, nic->gid.raw + 12, text, sizeof text));
    else if (rc == 0)
        snprintf(info->summary, sizeof info->summary, "RoCE port %u, GID %d %s", nic->port,
                 nic->gid_index, inet_ntop(AF_INET6, nic->gid.raw, text, sizeof text));
    else
        snprintf(info->summary, sizeof info->summary, "RoCE port %u", nic->port);
}

/* --- all of them ------------------------------------------------------------------------------------ */

static int ports_of(struct verbs_nic *nic)
{
    struct ibv_device_attr attr = {0};
    return nic->lib->query_device(nic->context, &attr) == 0 ? attr.phys_port_cnt : 0;
}

static void name_port(char *name, size_t size, const char *device, int port, int nports)
{
    if (nports == 1)
        snprintf(name, size, "%s", device);
    else
        snprintf(name, size, "%.*s:%u", (int)(size - 5), device, (uint8_t)port);
}

/* The ports of one device that the user lets in, behind the n that are listed. */
static int probe_device(const struct verbs_lib *lib, struct ibv_device *device,
                        struct weft_device_info *list, int max, int n, uint64_t *met)
{
    struct verbs_nic nic = {.lib = lib};
    const char *name = lib->get_device_name(device);
    nic.context = lib->open_device(device);
    int nports = nic.context ? ports_of(&nic) : 1;
    for (int port = 1; port <= nports; port++) {
        struct weft_device_info info = {.numa = -1};
        if (!is_wanted(name, port, met))
            continue;
        name_port(info.name, sizeof info.name, name, port, nports);
        memcpy(nic.name, info.name, sizeof nic.name);
        nic.port = (uint8_t)port;
        if (nic.context) {
            describe(&nic, &info);
        } else {
            snprintf(info.summary, sizeof info.summary, "RDMA device");
            snprintf(info.reason, sizeof info.reason,
                     "cannot be opened: %s (is /dev/infiniband there and readable?)",
                     strerror(errno));
        }
        if (n < max)
            list[n] = info;
        n++;
    }
    if (nic.context)
        lib->close_device(nic.context);
    return n;
}

int verbs_probe(struct weft_device_info *list, int max)
{
    const struct verbs_lib *lib = verbs_lib();
    uint64_t met = 0;
    int ndevices = 0, n = 0;
    if (!lib)
        return 0;
    struct ibv_device **devices = lib->get_device_list(&ndevices);
    for (int i = 0; devices && i < ndevices; i++)
        n = probe_device(lib, devices[i], list, max, n, &met);
    if (devices)
        lib->free_device_list(devices);
    if (ndevices > 0)
        n = weft_config_unmet("WEFT_VERBS_DEVICES", met, "ibv_devices lists them", list, max, n);
    if (n == 0)
        weft_fail(WEFT_ENODEV,
                  ndevices > 0 ? "verbs: WEFT_VERBS_DEVICES=%s leaves none of %d RDMA devices "
                                 "(ibv_devices lists them)"
                               : "verbs: this machine has no RDMA device",
                  weft_config_str("WEFT_VERBS_DEVICES"), ndevices);
    return n;
}

/* Open this device if the name is one of its ports. 0, WEFT_ENODEV, or why it failed. */
static int try_device(struct verbs_nic *nic, struct ibv_device *device, const char *name)
{
    uint64_t met = 0;
    const char *device_name = nic->lib->get_device_name(device);
    size_t len = strlen(device_name);
    if (strncmp(name, device_name, len) != 0 || (name[len] && name[len] != ':'))
        return WEFT_ENODEV;
    nic->context = nic->lib->open_device(device);
    if (!nic->context)
        return weft_fail(-errno, "verbs %s: cannot be opened: %m", name);
    for (int port = 1, nports = ports_of(nic); port <= nports; port++) {
        char full[NAME_LEN];
        name_port(full, sizeof full, device_name, port, nports);
        if (strcmp(full, name) == 0 && is_wanted(device_name, port, &met)) {
            nic->port = (uint8_t)port;
            return 0;
        }
    }
    nic->lib->close_device(nic->context);
    nic->context = NULL;
    return WEFT_ENODEV;
}

int verbs_device_open(struct verbs_nic *nic, const char *name)
{
    struct ibv_port_attr port;
    int ndevices = 0, rc = WEFT_ENODEV;
    struct ibv_device **devices = nic->lib->get_device_list(&ndevices);
    snprintf(nic->name, sizeof nic->name, "%s", name);
    for (int i = 0; devices && rc == WEFT_ENODEV && i < ndevices; i++)
        rc = try_device(nic, devices[i], name);
    if (devices)
        nic->lib->free_device_list(devices);
    if (rc == WEFT_ENODEV)
        return weft_fail(rc, "verbs: there is no device '%s'", name);
    if (rc == 0)
        rc = look_at_port(nic, &port);
    if (rc && nic->context) {
        nic->lib->close_device(nic->context);
        nic->context = NULL;
    }
    return rc;
}
