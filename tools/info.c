/* SPDX-License-Identifier: Apache-2.0 */
/* What weft_info tells, as text and as JSON. */
#include "info.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "common.h"

static const struct {
    uint32_t bit;
    const char *name;
} mem_kinds[] = {
    {WEFT_MEM_HOST, "host"},
    {WEFT_MEM_DMABUF, "dmabuf"},
    {WEFT_MEM_PEER, "peer"},
};
#define MEM_KINDS (sizeof mem_kinds / sizeof *mem_kinds)

static const char *order_name(const struct weft_nic_attr *a)
{
    return a->order == WEFT_ORDER_LINK ? "link" : "none";
}

static const char *done_name(const struct weft_nic_attr *a)
{
    return a->done == WEFT_DONE_DELIVERED ? "delivered" : "sent";
}

/* --- text ---------------------------------------------------------------------------------- */

static void add_word(char text[INFO_TEXT_MAX], const char *word)
{
    size_t used = strlen(text);
    snprintf(text + used, INFO_TEXT_MAX - used, "%s%s", used ? " " : "", word);
}

/* Appends to a list of attributes. */
struct list {
    struct info_attr *at;
    int n;
};

static char *add(struct list *list, const char *name)
{
    list->n += list->n < INFO_MAX_ATTRS;
    struct info_attr *a = &list->at[list->n - 1];
    a->name = name;
    a->text[0] = '\0';
    return a->text;
}

static void add_text(struct list *list, const char *name, const char *text)
{
    snprintf(add(list, name), INFO_TEXT_MAX, "%s", text);
}

static void add_size(struct list *list, const char *name, uint64_t bytes)
{
    char text[SIZE_TEXT_MAX];
    add_text(list, name, bytes == UINT64_MAX ? "unlimited" : size_format(bytes, text));
}

static void add_number(struct list *list, const char *name, uint64_t value)
{
    snprintf(add(list, name), INFO_TEXT_MAX, "%" PRIu64, value);
}

static void add_flag(struct list *list, const char *name, int value)
{
    add_text(list, name, value ? "yes" : "no");
}

int info_attrs(const char *transport, const char *device, struct info_attr *attrs)
{
    struct weft_nic_attr a;
    struct list list = {.at = attrs};
    int rc = weft_device_attr(transport, device, &a);
    if (rc < 0)
        return rc;
    char *ops = add(&list, "operations");
    for (int op = 0; op < WEFT_OP_COUNT; op++)
        if (a.ops & WEFT_OP_BIT(op))
            add_word(ops, weft_op_name((enum weft_op)op));
    char *kinds = add(&list, "memory");
    for (size_t i = 0; i < MEM_KINDS; i++)
        if (a.mem_kinds & mem_kinds[i].bit)
            add_word(kinds, mem_kinds[i].name);
    add_text(&list, "order", order_name(&a));
    add_text(&list, "done means", done_name(&a));
    add_number(&list, "immediate bits", a.imm_bits);
    add_size(&list, "max inline", a.max_inline);
    add_size(&list, "max send", a.max_send);
    add_size(&list, "max message", a.max_msg);
    add_number(&list, "max pieces", a.max_iov);
    add_number(&list, "depth", a.tx_depth);
    add_flag(&list, "local reg", a.local_reg);
    add_flag(&list, "chosen keys", a.chosen_keys);
    add_flag(&list, "adds atomic everywhere", a.add_global);
    add_flag(&list, "target polls", a.target_progress);
    add_flag(&list, "sees death", a.peer_death);
    add_flag(&list, "scatters", a.rx_scatter);
    add_flag(&list, "enters", a.enters);
    add_flag(&list, "software", a.software);
    add_flag(&list, "quick poll", a.quick_poll);
    return list.n;
}

const char *info_distance(int distance)
{
    static const char *const names[] = {"same switch", "same root", "same node", "same socket",
                                        "another socket"};
    bool known = distance >= 0 && (size_t)distance < sizeof names / sizeof *names;
    return known ? names[distance] : "unknown";
}

const char *info_device(const struct weft_device_info *d, char text[INFO_TEXT_MAX])
{
    char numa[32] = "", rate[32] = "", distance[32] = "";
    if (d->numa >= 0)
        snprintf(numa, sizeof numa, ", NUMA node %d", d->numa);
    if (d->bits_per_s)
        snprintf(rate, sizeof rate, ", %g Gbit/s", (double)d->bits_per_s / 1e9);
    if (d->distance >= 0)
        snprintf(distance, sizeof distance, ", %s", info_distance(d->distance));
    snprintf(text, INFO_TEXT_MAX, "%s%s%s%s%s%s", d->summary, *d->pci ? ", " : "", d->pci, numa,
             distance, rate);
    return text;
}

const char *info_source(enum weft_config_source source)
{
    switch (source) {
    case WEFT_FROM_DEFAULT:
        return "default";
    case WEFT_FROM_ENVIRONMENT:
        return "environment";
    default:
        return "program";
    }
}

/* --- JSON ---------------------------------------------------------------------------------- */

static cJSON *attributes_json(const struct weft_nic_attr *a)
{
    cJSON *o = cJSON_CreateObject();
    cJSON *ops = cJSON_AddArrayToObject(o, "ops");
    for (int op = 0; op < WEFT_OP_COUNT; op++)
        if (a->ops & WEFT_OP_BIT(op))
            cJSON_AddItemToArray(ops, cJSON_CreateString(weft_op_name((enum weft_op)op)));
    cJSON *kinds = cJSON_AddArrayToObject(o, "mem_kinds");
    for (size_t i = 0; i < MEM_KINDS; i++)
        if (a->mem_kinds & mem_kinds[i].bit)
            cJSON_AddItemToArray(kinds, cJSON_CreateString(mem_kinds[i].name));
    cJSON_AddStringToObject(o, "order", order_name(a));
    cJSON_AddStringToObject(o, "done", done_name(a));
    cJSON_AddNumberToObject(o, "imm_bits", a->imm_bits);
    cJSON_AddNumberToObject(o, "max_inline", a->max_inline);
    cJSON_AddNumberToObject(o, "max_send", a->max_send);
    cJSON_AddNumberToObject(o, "max_msg", (double)a->max_msg);
    cJSON_AddNumberToObject(o, "max_iov", a->max_iov);
    cJSON_AddNumberToObject(o, "tx_depth", a->tx_depth);
    cJSON_AddBoolToObject(o, "local_reg", a->local_reg);
    cJSON_AddBoolToObject(o, "chosen_keys", a->chosen_keys);
    cJSON_AddBoolToObject(o, "add_global", a->add_global);
    cJSON_AddBoolToObject(o, "target_progress", a->target_progress);
    cJSON_AddBoolToObject(o, "peer_death", a->peer_death);
    cJSON_AddBoolToObject(o, "rx_scatter", a->rx_scatter);
    cJSON_AddBoolToObject(o, "enters", a->enters);
    cJSON_AddBoolToObject(o, "software", a->software);
    cJSON_AddBoolToObject(o, "quick_poll", a->quick_poll);
    return o;
}

/* Common to transports, devices and GPU backends. */
static cJSON *entry_json(const char *name, const char *summary, int usable, const char *reason)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "name", name);
    cJSON_AddStringToObject(o, "summary", summary);
    cJSON_AddBoolToObject(o, "usable", usable);
    cJSON_AddStringToObject(o, "reason", reason);
    return o;
}

static cJSON *devices_json(const char *transport)
{
    cJSON *list = cJSON_CreateArray();
    struct weft_device_info d;
    struct weft_nic_attr attr;
    for (int j = 0; weft_device_info(transport, j, &d) == 0; j++) {
        cJSON *o = entry_json(d.name, d.summary, d.usable, d.rail ? "" : d.reason);
        cJSON_AddNumberToObject(o, "numa", d.numa);
        cJSON_AddStringToObject(o, "pci", d.pci);
        cJSON_AddNumberToObject(o, "bits_per_s", (double)d.bits_per_s);
        cJSON_AddStringToObject(o, "distance", info_distance(d.distance));
        cJSON_AddNumberToObject(o, "rail", d.rail);
        if (d.usable && weft_device_attr(transport, d.name, &attr) == 0)
            cJSON_AddItemToObject(o, "attributes", attributes_json(&attr));
        cJSON_AddItemToArray(list, o);
    }
    return list;
}

static cJSON *transports_json(void)
{
    cJSON *list = cJSON_CreateArray();
    struct weft_transport_info t;
    for (int i = 0; weft_transport_info(i, &t) == 0; i++) {
        cJSON *o = entry_json(t.name, t.summary, t.usable, t.usable ? "" : t.reason);
        cJSON_AddNumberToObject(o, "priority", t.priority);
        cJSON_AddBoolToObject(o, "from_module", t.from_module);
        cJSON_AddItemToObject(o, "devices", devices_json(t.name));
        cJSON_AddItemToArray(list, o);
    }
    return list;
}

static cJSON *topology_json(void)
{
    cJSON *o = cJSON_CreateObject();
    struct weft_topology_info t;
    if (weft_topology_info(&t))
        return o;
    cJSON_AddBoolToObject(o, "known", t.known);
    cJSON_AddStringToObject(o, "near", t.near);
    cJSON_AddStringToObject(o, "reason", t.reason);
    return o;
}

const char *info_gpu(const struct weft_gpu_device_info *d, char text[INFO_TEXT_MAX])
{
    char numa[32] = "", wave[32] = "", bytes[32] = "";
    if (d->numa >= 0)
        snprintf(numa, sizeof numa, ", NUMA node %d", d->numa);
    if (d->bytes)
        snprintf(bytes, sizeof bytes, ", %.1f GiB", (double)d->bytes / (1 << 30));
    if (d->wave)
        snprintf(wave, sizeof wave, ", waves of %u", d->wave);
    snprintf(text, INFO_TEXT_MAX, "%s%s%s%s%s%s", d->name, d->pci[0] ? ", " : "", d->pci, numa,
             bytes, wave);
    return text;
}

const char *info_link(int link)
{
    switch (link) {
    case WEFT_GPU_LINK_NONE:
        return "the host";
    case WEFT_GPU_LINK_PCI:
        return "PCIe";
    case WEFT_GPU_LINK_FABRIC:
        return "NVLink/xGMI";
    case WEFT_GPU_LINK_SELF:
        return "itself";
    default:
        return "unknown";
    }
}

const char *info_way(int way)
{
    return way == WEFT_GPU_DIRECT   ? "direct"
           : way == WEFT_GPU_MAPPED ? "mapped"
           : way == WEFT_GPU_STAGED ? "staged"
                                    : "impossible";
}

int info_gpu_way(const char *backend, int j, const struct weft_transport_info *t, char *why,
                 size_t size)
{
    if (t->usable)
        return weft_gpu_way(backend, j, t->name, why, size);
    snprintf(why, size, "the transport is not usable");
    return WEFT_ENODEV;
}

int info_nearest(const char *transport, const struct weft_gpu_device_info *gpu,
                 struct weft_device_info *nearest)
{
    int rc = -1;
    if (!gpu->pci[0] || weft_config_set("WEFT_NEAR", gpu->pci))
        return -1;
    for (int j = 0; rc && weft_device_info(transport, j, nearest) == 0; j++)
        if (nearest->usable && nearest->distance != WEFT_DISTANCE_UNKNOWN)
            rc = 0;
    weft_config_set("WEFT_NEAR", NULL);
    return rc;
}

static cJSON *ways_json(const char *backend, int j, const struct weft_gpu_device_info *gpu)
{
    cJSON *list = cJSON_CreateArray();
    struct weft_transport_info t;
    struct weft_device_info d;
    for (int i = 0; weft_transport_info(i, &t) == 0; i++) {
        char why[192];
        cJSON *o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "transport", t.name);
        int way = info_gpu_way(backend, j, &t, why, sizeof why);
        cJSON_AddStringToObject(o, "way", info_way(way));
        cJSON_AddStringToObject(o, "reason", why);
        if (info_nearest(t.name, gpu, &d) == 0) {
            cJSON_AddStringToObject(o, "nearest", d.name);
            cJSON_AddStringToObject(o, "distance", info_distance(d.distance));
        }
        cJSON_AddItemToArray(list, o);
    }
    return list;
}

static cJSON *gpu_devices_json(const struct weft_gpu_info *g)
{
    cJSON *list = cJSON_CreateArray();
    struct weft_gpu_device_info d;
    for (int j = 0; j < g->ndevices && g->usable; j++) {
        cJSON *o = cJSON_CreateObject(), *links = cJSON_CreateArray();
        cJSON_AddItemToArray(list, o);
        if (weft_gpu_device_info(g->name, j, &d)) {
            cJSON_AddStringToObject(o, "reason", weft_last_error());
            cJSON_Delete(links);
            continue;
        }
        cJSON_AddStringToObject(o, "name", d.name);
        cJSON_AddStringToObject(o, "pci", d.pci);
        cJSON_AddNumberToObject(o, "numa", d.numa);
        cJSON_AddNumberToObject(o, "bytes", (double)d.bytes);
        cJSON_AddNumberToObject(o, "wave", d.wave);
        for (int to = 0; to < g->ndevices; to++)
            cJSON_AddItemToArray(links,
                                 cJSON_CreateString(info_link(weft_gpu_link(g->name, j, to))));
        cJSON_AddItemToObject(o, "links", links);
        cJSON_AddItemToObject(o, "transports", ways_json(g->name, j, &d));
    }
    return list;
}

static cJSON *gpus_json(void)
{
    cJSON *list = cJSON_CreateArray();
    struct weft_gpu_info g;
    for (int i = 0; weft_gpu_info(i, &g) == 0; i++) {
        cJSON *o = entry_json(g.name, g.summary, g.usable, g.usable ? "" : g.reason);
        cJSON_AddNumberToObject(o, "ndevices", g.ndevices);
        cJSON_AddBoolToObject(o, "from_module", g.from_module);
        cJSON_AddItemToObject(o, "devices", gpu_devices_json(&g));
        cJSON_AddItemToArray(list, o);
    }
    return list;
}

static cJSON *config_json(void)
{
    cJSON *list = cJSON_CreateArray();
    struct weft_config_item item;
    for (int i = 0; weft_config_get(i, &item) == 0; i++) {
        cJSON *o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "name", item.name);
        cJSON_AddStringToObject(o, "type", item.type);
        cJSON_AddStringToObject(o, "value", item.value);
        cJSON_AddStringToObject(o, "default", item.preset);
        cJSON_AddStringToObject(o, "source", info_source(item.source));
        cJSON_AddStringToObject(o, "help", item.help);
        cJSON_AddItemToArray(list, o);
    }
    return list;
}

cJSON *info_json(void)
{
    cJSON *all = cJSON_CreateObject();
    if (!all)
        return NULL;
    cJSON_AddStringToObject(all, "version", weft_version());
    cJSON_AddItemToObject(all, "transports", transports_json());
    cJSON_AddItemToObject(all, "topology", topology_json());
    cJSON_AddItemToObject(all, "gpus", gpus_json());
    cJSON_AddItemToObject(all, "settings", config_json());
    return all;
}
