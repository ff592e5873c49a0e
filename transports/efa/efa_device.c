/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Providers and their devices: which there are, which would be used, and why others are not.
 *
 * A provider of IP sockets (tcp;ofi_rxm) is one device, "ip", bound to the address that the endpoint listens on, as
 * transports/tcp is. All others have a device for each of libfabric's domains.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "efa.h"

#define MOST_PROVIDERS 64
#define IP_DEVICE "ip"
#define LOOPBACK "127.0.0.1"

/* What Weft can do: libfabric then says what it wants done of it. */
#define MR_MODES (FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_HMEM)
#define LEAST_DATA 4 /* bytes that come with a WRITE: a tag */

/* --- asking libfabric ---------------------------------------------------------------------------------- */

static struct fi_info *hints_new(const struct efa_lib *lib, const char *provider, bool gpu)
{
    struct fi_info *hints = lib->dupinfo(NULL);
    if (!hints)
        return NULL;
    hints->fabric_attr->prov_name = (char *)(uintptr_t)provider; /* taken out before freeinfo */
    hints->caps = FI_MSG | FI_RMA | (gpu ? FI_HMEM : 0);
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = MR_MODES;
    hints->domain_attr->threading = FI_THREAD_DOMAIN;
    hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
    hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
    return hints;
}

/* What this provider has of what is needed. host: NULL, or where to be bound. */
static int ask(const struct efa_lib *lib, const char *provider, const char *host, bool gpu,
               struct fi_info **list)
{
    *list = NULL;
    if (*provider == '^')
        return -FI_EINVAL; /* to libfabric it is any but that one */
    struct fi_info *hints = hints_new(lib, provider, gpu);
    efa_quirk_prepare();
    if (!hints)
        return -FI_ENOMEM;
    int rc = lib->getinfo(lib->api, host, NULL, host ? FI_SOURCE : 0, hints, list);
    hints->fabric_attr->prov_name = NULL;
    lib->freeinfo(hints);
    return rc;
}

static bool is_ip(const struct fi_info *info)
{
    return info->addr_format == FI_SOCKADDR || info->addr_format == FI_SOCKADDR_IN ||
           info->addr_format == FI_SOCKADDR_IN6;
}

/* Is it bound to whatever address this host has? One of RDMA devices is bound to theirs. */
static bool is_sockets(const struct efa_lib *lib, const char *provider)
{
    struct fi_info *list;
    bool any = ask(lib, provider, LOOPBACK, false, &list) == 0 && is_ip(list);
    lib->freeinfo(list);
    return any;
}

static const char *wanted_provider(void)
{
    const char *provider = weft_config_str("WEFT_EFA_PROVIDER");
    return *provider ? provider : "efa"; /* to libfabric nothing is any */
}

static bool is_wanted(const char *device, uint64_t *met)
{
    return weft_config_selects("WEFT_EFA_DEVICES", &device, 1, met);
}

/* --- the devices of the provider that is asked for ------------------------------------------------------- */

struct list {
    struct weft_device_info *list;
    int max, n;
    char provider[64]; /* that has them: libfabric takes "tcp" for "tcp;ofi_rxm" */
};

static void add(struct list *all, const struct weft_device_info *info)
{
    if (all->n < all->max)
        all->list[all->n] = *info;
    all->n++;
}

static bool is_listed(const struct fi_info *first, const struct fi_info *info)
{
    for (; first != info; first = first->next)
        if (strcmp(first->domain_attr->name, info->domain_attr->name) == 0)
            return true;
    return false;
}

static void describe(const struct fi_info *info, struct weft_device_info *device)
{
    *device = (struct weft_device_info){.numa = -1, .usable = 1};
    snprintf(device->name, sizeof device->name, "%s", info->domain_attr->name);
    snprintf(device->summary, sizeof device->summary, "%s, libfabric %u.%u",
             info->fabric_attr->prov_name, FI_MAJOR(info->fabric_attr->api_version),
             FI_MINOR(info->fabric_attr->api_version));
    if (info->nic && info->nic->link_attr)
        device->bits_per_s = info->nic->link_attr->speed;
    if (info->nic && info->nic->bus_attr && info->nic->bus_attr->bus_type == FI_BUS_PCI) {
        const struct fi_pci_attr *pci = &info->nic->bus_attr->attr.pci;
        snprintf(device->pci, sizeof device->pci, "%04x:%02x:%02x.%u", pci->domain_id,
                 pci->bus_id, pci->device_id, pci->function_id & 7u);
    }
    if (info->domain_attr->cq_data_size < LEAST_DATA) {
        device->usable = 0;
        snprintf(device->reason, sizeof device->reason,
                 "carries %zu bytes of data with a write, %d are needed",
                 info->domain_attr->cq_data_size, LEAST_DATA);
    }
}

/* False: the provider has no device at all. In *met the items of the user's list that one is called. */
static bool list_own(const struct efa_lib *lib, const char *provider, struct list *all,
                     uint64_t *met)
{
    struct fi_info *list;
    struct weft_device_info device;
    int rc = ask(lib, provider, NULL, false, &list);
    snprintf(all->provider, sizeof all->provider, "%s", rc ? provider : list->fabric_attr->prov_name);
    if (rc == 0 && is_sockets(lib, provider)) {
        describe(list, &device);
        snprintf(device.name, sizeof device.name, IP_DEVICE);
        if (is_wanted(device.name, met))
            add(all, &device);
    } else {
        for (const struct fi_info *info = list; info; info = info->next) {
            describe(info, &device);
            if (!is_listed(list, info) && is_wanted(device.name, met))
                add(all, &device);
        }
    }
    bool any = list;
    lib->freeinfo(list);
    return any;
}

/* --- all the others -------------------------------------------------------------------------------------- */

/* "tcp;ofi_rxm" and "ofi_rxm;tcp" are the same to libfabric; it gives one of them. */
static bool same_provider(const char *a, const char *b)
{
    return strcasecmp(a, b) == 0;
}

static bool is_tested(const char *provider)
{
    static const char *const tested[] = {"efa", "shm", "tcp;ofi_rxm", "udp;ofi_rxd", "verbs;ofi_rxm"};
    for (size_t i = 0; i < sizeof tested / sizeof *tested; i++)
        if (same_provider(provider, tested[i]))
            return true;
    return false;
}

static void why_not(const struct efa_lib *lib, const struct fi_info *all, const char *provider,
                    char *reason, size_t size)
{
    struct fi_info *own;
    uint64_t caps = 0;
    bool rdm = false;
    for (const struct fi_info *info = all; info; info = info->next) {
        if (!same_provider(info->fabric_attr->prov_name, provider) ||
            info->ep_attr->type != FI_EP_RDM)
            continue;
        rdm = true;
        caps |= info->caps;
    }
    int rc = ask(lib, provider, NULL, false, &own);
    const char *given = rc == 0 ? own->fabric_attr->prov_name : ""; /* libfabric takes "tcp" for "tcp;ofi_rxm" */
    if (rc == 0 && !same_provider(given, provider))
        snprintf(reason, size, "not asked for: WEFT_EFA_PROVIDER='%s' gives '%s'%s", provider, given,
                 is_tested(given) ? "" : ", over which Weft is not tested");
    else if (rc == 0)
        snprintf(reason, size, "not asked for: WEFT_EFA_PROVIDER='%s' uses it%s", provider,
                 is_tested(provider) ? "" : ", but Weft is not tested over it");
    else if (!rdm)
        snprintf(reason, size, "has no reliable datagram endpoint (FI_EP_RDM)");
    else if (!(caps & FI_MSG) || !(caps & FI_RMA))
        snprintf(reason, size, "has no %s", caps & FI_MSG ? "RMA (FI_RMA)" : "messages (FI_MSG)");
    else
        snprintf(reason, size, "has not all that is needed together (FI_MSG, FI_RMA, "
                               "FI_DELIVERY_COMPLETE, FI_RM_ENABLED): %s", lib->strerror(-rc));
    lib->freeinfo(own);
}

static void list_others(const struct efa_lib *lib, struct list *out)
{
    const char *names[MOST_PROVIDERS];
    struct fi_info *all = NULL;
    int n = 0;
    lib->getinfo(lib->api, NULL, NULL, 0, NULL, &all);
    for (const struct fi_info *info = all; info && n < MOST_PROVIDERS; info = info->next) {
        const char *name = info->fabric_attr->prov_name;
        bool known = same_provider(name, out->provider);
        for (int i = 0; i < n; i++)
            known |= same_provider(name, names[i]);
        if (!known)
            names[n++] = name;
    }
    for (int i = 0; i < n; i++) {
        struct weft_device_info device = {.numa = -1};
        snprintf(device.name, sizeof device.name, "%s", names[i]);
        snprintf(device.summary, sizeof device.summary, "provider of libfabric");
        why_not(lib, all, names[i], device.reason, sizeof device.reason);
        add(out, &device);
    }
    lib->freeinfo(all);
}

static void none_of(const struct efa_lib *lib, const char *provider, struct list *all)
{
    struct weft_device_info device = {.numa = -1};
    struct fi_info *list;
    int rc = ask(lib, provider, NULL, false, &list);
    lib->freeinfo(list);
    snprintf(device.name, sizeof device.name, "%s", provider);
    snprintf(device.summary, sizeof device.summary, "provider of libfabric");
    if (rc == 0)
        snprintf(device.reason, sizeof device.reason, "WEFT_EFA_DEVICES=%s leaves none of its devices",
                 weft_config_str("WEFT_EFA_DEVICES"));
    else
        snprintf(device.reason, sizeof device.reason,
                 "libfabric %u.%u has no device here for provider '%s' (WEFT_EFA_PROVIDER), with FI_MSG, FI_RMA and "
                 "FI_DELIVERY_COMPLETE: %s",
                 FI_MAJOR(lib->version()), FI_MINOR(lib->version()), provider,
                 rc == -FI_ENODATA ? "weft_info -v lists the other providers" : lib->strerror(-rc));
    add(all, &device);
}

int efa_probe(struct weft_device_info *list, int max)
{
    const struct efa_lib *lib = efa_lib();
    struct list all = {.list = list, .max = max};
    const char *provider = wanted_provider();
    if (!lib)
        return 0;
    uint64_t met = 0;
    bool any = list_own(lib, provider, &all, &met);
    if (all.n == 0)
        none_of(lib, provider, &all);
    if (any)
        all.n = weft_config_unmet("WEFT_EFA_DEVICES", met, "weft_info -v lists them where it is not set", list, max, all.n);
    list_others(lib, &all);
    return all.n;
}

/* --- one of them ----------------------------------------------------------------------------------------- */

/* Where a provider of sockets is bound: NULL, wherever libfabric likes, which is an address of this host by which others
 * reach it. Endpoints of this host meet by IPv4 whatever they listen on. */
static const char *bound_to(const char *host)
{
    struct in_addr v4;
    struct in6_addr v6;
    if (!host)
        return LOOPBACK;
    if (inet_pton(AF_INET, host, &v4) == 1)
        return v4.s_addr == htonl(INADDR_ANY) ? NULL : host;
    if (inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6))
        return LOOPBACK;
    return inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_UNSPECIFIED(&v6) ? NULL : host;
}

int efa_device_info(const struct efa_lib *lib, const char *device, const char *host, bool gpu,
                    struct fi_info **out)
{
    const char *provider = wanted_provider();
    bool ip = strcmp(device, IP_DEVICE) == 0 && is_sockets(lib, provider);
    const char *at = ip ? bound_to(host) : NULL;
    const struct fi_info *found = NULL;
    uint64_t met = 0;
    struct fi_info *list;
    int rc = ask(lib, provider, at, gpu, &list);
    if (rc && ip)
        return weft_fail(WEFT_ENODEV, "efa: %s cannot be bound to %s: %s", provider,
                         at ? at : "any address", lib->strerror(-rc));
    for (const struct fi_info *info = list; info && !found && is_wanted(device, &met); info = info->next)
        if (ip ? is_ip(info) : strcmp(info->domain_attr->name, device) == 0)
            found = info;
    *out = found ? lib->dupinfo(found) : NULL;
    lib->freeinfo(list);
    if (*out)
        return 0;
    return found ? weft_fail(-ENOMEM, "efa %s: no memory", device)
                 : weft_fail(WEFT_ENODEV, "efa: %s has no device '%s'", provider, device);
}
