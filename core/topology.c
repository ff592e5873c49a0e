/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Distances, by hwloc, which is opened when the first one is asked for. Without it, and for what it
 * does not find, they are unknown; that is no error.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_getaffinity */
#endif
#include "topology.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const texts[] = {
    [WEFT_DISTANCE_SWITCH] = "below the same PCIe switch",
    [WEFT_DISTANCE_ROOT] = "below the same PCIe root",
    [WEFT_DISTANCE_NODE] = "at the same NUMA node",
    [WEFT_DISTANCE_SOCKET] = "at the same socket",
    [WEFT_DISTANCE_FAR] = "at another socket",
};

const char *weft__distance_text(int distance)
{
    return distance < 0 || distance > WEFT_DISTANCE_FAR ? "at an unknown distance"
                                                        : texts[distance];
}

/* --- what to be near to -------------------------------------------------------------------------- */

struct near {
    bool pci;
    unsigned domain, bus, dev, func;
    int numa; /* -1: where the thread may run */
};

static bool is_made_of(const char *text, const char *characters)
{
    return *text && text[strspn(text, characters)] == 0;
}

/* "0000:3b:00.0", or without the domain. */
static bool parse_pci(const char *text, struct near *near)
{
    int end = 0;
    if (!is_made_of(text, "0123456789abcdefABCDEF:."))
        return false;
    if (sscanf(text, "%8x:%2x:%2x.%1x%n", &near->domain, &near->bus, &near->dev, &near->func,
               &end) != 4) {
        near->domain = 0;
        if (sscanf(text, "%2x:%2x.%1x%n", &near->bus, &near->dev, &near->func, &end) != 3)
            return false;
    }
    near->pci = end && !text[end];
    return near->pci;
}

#define NUMA "numa:"
#define NUMA_DIGITS 5 /* Linux has at most 1024 nodes */

static bool parse_near(const char *text, struct near *near)
{
    *near = (struct near){.numa = -1};
    if (!*text || parse_pci(text, near))
        return true;
    const char *number = strncmp(text, NUMA, strlen(NUMA)) ? "" : text + strlen(NUMA);
    near->numa = atoi(number);
    return is_made_of(number, "0123456789") && strlen(number) <= NUMA_DIGITS;
}

int weft__near_check(const char *text)
{
    struct near near;
    if (parse_near(text, &near))
        return 0;
    return weft_fail(-EINVAL,
                     "'%s' is no place to be near to: a PCI address like 0000:3b:00.0, "
                     "or numa:N",
                     text);
}

#ifdef WEFT_WITH_HWLOC

#include <dlfcn.h>
#include <hwloc.h>
#include <pthread.h>
#include <sched.h>

#if HWLOC_API_VERSION < 0x00020000 || HWLOC_API_VERSION >= 0x00030000
#error "hwloc 2 is needed"
#endif
#define LIBRARY "libhwloc.so.15" /* of all versions 2 */
#define CPUS_MAX 8192            /* the most that Linux can be built for */

/* What is used of it. Its inline functions would have to be linked. */
#define FUNCTIONS(XX)                                                                             \
    XX(topology_init)                                                                             \
    XX(topology_destroy)                                                                          \
    XX(topology_set_flags)                                                                        \
    XX(topology_set_type_filter)                                                                  \
    XX(topology_load)                                                                             \
    XX(get_type_depth)                                                                            \
    XX(get_nbobjs_by_depth)                                                                       \
    XX(get_obj_by_depth)                                                                          \
    XX(bitmap_alloc)                                                                              \
    XX(bitmap_free)                                                                               \
    XX(bitmap_or)                                                                                 \
    XX(bitmap_set)                                                                                \
    XX(bitmap_weight)                                                                             \
    XX(bitmap_intersects)                                                                         \
    XX(bitmap_list_snprintf)

static struct {
#define FUNCTION(name) __typeof__(hwloc_##name) *name;
    FUNCTIONS(FUNCTION)
#undef FUNCTION
    hwloc_topology_t topology; /* for good once it is loaded: machines do not change */
} hw;

static struct weft_static_lock lock = WEFT_STATIC_LOCK(.foreign = 1);

static int find_functions(void)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return weft_fail(WEFT_EUNSUPPORTED, LIBRARY " (package libhwloc15) cannot be opened: %s",
                         dlerror());
#define FIND(name)                                                                                \
    *(void **)&hw.name = dlsym(library, "hwloc_" #name);                                          \
    if (!hw.name) {                                                                               \
        dlclose(library);                                                                         \
        return weft_fail(WEFT_EUNSUPPORTED, LIBRARY " has no hwloc_" #name);                      \
    }
    FUNCTIONS(FIND)
#undef FIND
    return 0;
}

static int load_topology(void)
{
    hwloc_topology_t topology;
    if (hw.topology_init(&topology))
        return weft_fail(-errno, "hwloc: no topology: %m");
    /* also what this process may not use: the devices there are there all the same */
    hw.topology_set_flags(topology, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
    hw.topology_set_type_filter(topology, HWLOC_OBJ_PCI_DEVICE, HWLOC_TYPE_FILTER_KEEP_ALL);
    hw.topology_set_type_filter(topology, HWLOC_OBJ_BRIDGE, HWLOC_TYPE_FILTER_KEEP_ALL);
    if (hw.topology_load(topology)) {
        int rc = weft_fail(-errno, "hwloc: the topology cannot be read: %m");
        hw.topology_destroy(topology);
        return rc;
    }
    hw.topology = topology;
    return 0;
}

/* The lock is held. */
static int load(void)
{
    if (hw.topology)
        return 0;
    static bool found;
    int rc = found ? 0 : find_functions();
    found = rc == 0;
    return rc ? rc : load_topology();
}

/* --- places: the lock is held --------------------------------------------------------------------- */

struct place {
    hwloc_obj_t pci;        /* NULL: not a PCI device */
    hwloc_bitmap_t nodes;   /* NUMA nodes; none: not known */
    hwloc_bitmap_t sockets; /* by logical index */
};

static hwloc_obj_t nth_of(int depth, unsigned i)
{
    return hw.get_obj_by_depth(hw.topology, depth, i);
}

static int place_open(struct place *place)
{
    *place = (struct place){.nodes = hw.bitmap_alloc(), .sockets = hw.bitmap_alloc()};
    return place->nodes && place->sockets ? 0 : weft_fail(-ENOMEM, "no memory for a set");
}

static void place_close(struct place *place)
{
    hw.bitmap_free(place->nodes);
    hw.bitmap_free(place->sockets);
}

/* The place is, or is also, at this object. */
static void add_object(struct place *place, hwloc_obj_t obj)
{
    while (obj && !obj->nodeset)
        obj = obj->parent; /* devices and bridges have none of their own */
    if (!obj)
        return;
    hw.bitmap_or(place->nodes, place->nodes, obj->nodeset);
    while (obj && obj->type != HWLOC_OBJ_PACKAGE)
        obj = obj->parent;
    if (obj)
        hw.bitmap_set(place->sockets, obj->logical_index);
}

static void add_pci(struct place *place, const struct near *at)
{
    hwloc_obj_t obj;
    for (unsigned i = 0; (obj = nth_of(HWLOC_TYPE_DEPTH_PCI_DEVICE, i)); i++) {
        const struct hwloc_pcidev_attr_s *pci = &obj->attr->pcidev;
        if (pci->domain != at->domain || pci->bus != at->bus || pci->dev != at->dev ||
            pci->func != at->func)
            continue;
        place->pci = obj;
        add_object(place, obj);
    }
}

static void add_numa(struct place *place, int numa)
{
    hwloc_obj_t obj;
    for (unsigned i = 0; (obj = nth_of(HWLOC_TYPE_DEPTH_NUMANODE, i)); i++)
        if (obj->os_index == (unsigned)numa)
            add_object(place, obj);
}

/* Where the calling thread may run: a binding is a decision, where it runs right now is chance. */
static void add_thread(struct place *place)
{
    static cpu_set_t cpus[CPUS_MAX / CPU_SETSIZE]; /* of who holds the lock */
    hwloc_obj_t obj;
    int depth = hw.get_type_depth(hw.topology, HWLOC_OBJ_PU);
    memset(cpus, 0, sizeof cpus);
    if (sched_getaffinity(0, sizeof cpus, cpus))
        return;
    for (unsigned i = 0; (obj = nth_of(depth, i)); i++)
        if (CPU_ISSET_S(obj->os_index, sizeof cpus, cpus))
            add_object(place, obj);
}

static bool is_known(const struct place *place)
{
    return hw.bitmap_weight(place->nodes) > 0;
}

/* --- distances ------------------------------------------------------------------------------------ */

static bool same_board(const struct hwloc_pcidev_attr_s *a, const struct hwloc_pcidev_attr_s *b)
{
    return a->domain == b->domain && a->bus == b->bus && a->dev == b->dev;
}

/* The nearest bridge above both, NULL if there is none. */
static hwloc_obj_t common_bridge(hwloc_obj_t a, hwloc_obj_t b)
{
    for (hwloc_obj_t x = a->parent; x && x->type == HWLOC_OBJ_BRIDGE; x = x->parent)
        for (hwloc_obj_t y = b->parent; y && y->type == HWLOC_OBJ_BRIDGE; y = y->parent)
            if (x == y)
                return x;
    return NULL;
}

static int distance(const struct place *a, const struct place *b)
{
    if (!is_known(a) || !is_known(b))
        return WEFT_DISTANCE_UNKNOWN;
    if (a->pci && b->pci) {
        hwloc_obj_t bridge = common_bridge(a->pci, b->pci);
        if (same_board(&a->pci->attr->pcidev, &b->pci->attr->pcidev) ||
            (bridge && bridge->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI))
            return WEFT_DISTANCE_SWITCH;
        if (bridge)
            return WEFT_DISTANCE_ROOT;
    }
    if (hw.bitmap_intersects(a->nodes, b->nodes))
        return WEFT_DISTANCE_NODE;
    return hw.bitmap_intersects(a->sockets, b->sockets) ? WEFT_DISTANCE_SOCKET : WEFT_DISTANCE_FAR;
}

static int measure_device(const struct place *here, const struct weft_device_info *device)
{
    struct place there;
    struct near at;
    int rc = place_open(&there);
    if (rc == 0 && parse_pci(device->pci, &at))
        add_pci(&there, &at);
    if (rc == 0 && !is_known(&there) && device->numa >= 0)
        add_numa(&there, device->numa);
    int found = rc == 0 ? distance(here, &there) : WEFT_DISTANCE_UNKNOWN;
    place_close(&there);
    return found;
}

static int open_near(const char *text, struct place *here)
{
    struct near near;
    int rc = place_open(here);
    if (rc || !parse_near(text, &near))
        return rc ? rc : weft__near_check(text);
    if (near.pci)
        add_pci(here, &near);
    else if (near.numa >= 0)
        add_numa(here, near.numa);
    else
        add_thread(here);
    if (!is_known(here))
        return weft_fail(WEFT_ENODEV, "hwloc does not know where %s is",
                         *text ? text : "this thread runs");
    return 0;
}

/* The lock is held, and stays so while *here is in use; it is closed also after a failure. */
static int begin(const char *near, struct place *here)
{
    *here = (struct place){0};
    int rc = load();
    return rc ? rc : open_near(near, here);
}

int weft__topology_measure(const char *near, struct weft_device_info *list, int n)
{
    struct place here;
    weft_static_lock(&lock);
    int rc = begin(near, &here);
    for (int i = 0; i < n; i++)
        list[i].distance = rc ? WEFT_DISTANCE_UNKNOWN : measure_device(&here, &list[i]);
    if (here.nodes)
        place_close(&here);
    weft_static_unlock(&lock);
    return rc;
}

int weft_topology_info(struct weft_topology_info *info)
{
    struct place here;
    char nodes[64] = "";
    if (!info)
        return weft_fail(-EINVAL, "weft_topology_info: info is NULL");
    const char *near = weft_config_str("WEFT_NEAR");
    char before[512]; /* of a call that ends well, the sentence stays that of an earlier one */
    snprintf(before, sizeof before, "%s", weft_last_error());
    memset(info, 0, sizeof *info);
    weft_static_lock(&lock);
    int rc = begin(near, &here);
    if (rc == 0)
        hw.bitmap_list_snprintf(nodes, sizeof nodes, here.nodes);
    if (here.nodes)
        place_close(&here);
    weft_static_unlock(&lock);
    info->known = rc == 0;
    snprintf(info->near, sizeof info->near, "%s%sNUMA node %s",
             *near ? near : "where this thread may run", *near ? ", " : ": ", nodes);
    if (rc)
        snprintf(info->reason, sizeof info->reason, "%s", weft_last_error());
    weft_fail(0, "%s", before);
    return 0;
}

#else

#define WITHOUT "this libweft was built without hwloc's headers (package libhwloc-dev)"

int weft__topology_measure(const char *near, struct weft_device_info *list, int n)
{
    for (int i = 0; i < n; i++)
        list[i].distance = WEFT_DISTANCE_UNKNOWN;
    (void)near;
    return weft_fail(WEFT_EUNSUPPORTED, WITHOUT);
}

int weft_topology_info(struct weft_topology_info *info)
{
    if (!info)
        return weft_fail(-EINVAL, "weft_topology_info: info is NULL");
    *info = (struct weft_topology_info){.reason = WITHOUT};
    return 0;
}

#endif
