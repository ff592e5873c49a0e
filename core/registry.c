/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Backends: the table built in by CMake (backends.h), and modules found in WEFT_MODULE_PATH.
 *
 * A backend is refused, with both numbers, if it was built for another WEFT_ABI, or if its table
 * lacks a required function. Optional functions that are missing get their default here, so no
 * caller tests for NULL; but for those of attr.enters, without which that is 0.
 */
#include "registry.h"
#include "rail.h"
#include "weft/gpu.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends.h"

#define MAX_BACKENDS 32

struct known_transport {
    struct weft_transport transport; /* copy, ops points to the next member */
    struct weft_transport_ops ops;
    int from_module;
};

struct known_gpu {
    struct weft_gpu_backend backend;
    struct weft_gpu_ops ops;
    int from_module;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct known_transport transports[MAX_BACKENDS];
static struct known_gpu gpus[MAX_BACKENDS];
static int ntransports, ngpus;

static int default_link_pass(struct weft_link *link, uint64_t number, int fd)
{
    (void)link, (void)number, (void)fd;
    return weft_fail(WEFT_EUNSUPPORTED, "this transport passes no descriptors");
}

static int default_link_take(struct weft_link *link, uint64_t number, int *fd)
{
    (void)fd;
    return default_link_pass(link, number, -1);
}

static int default_wait_fd(struct weft_nic *nic)
{
    (void)nic;
    return WEFT_EUNSUPPORTED;
}

static void default_rx_release(struct weft_nic *nic, const struct weft_comp *comp)
{
    (void)nic;
    (void)comp;
}

static void *default_extension(const char *name)
{
    (void)name;
    return NULL;
}

static int default_copy_start(struct weft_gpu *gpu, const struct weft_gpu_copy *list, int n,
                              uint32_t flags, struct weft_gpu_job **job)
{
    int rc = 0;
    (void)flags;
    *job = NULL;
    for (int i = 0; rc == 0 && i < n; i++)
        rc = gpu->backend->ops->copy(gpu, list[i].dst, list[i].src, list[i].len, NULL);
    return rc;
}

static int default_copy_done(struct weft_gpu *gpu, struct weft_gpu_job *job)
{
    (void)gpu, (void)job;
    return 1;
}

static int default_present(void)
{
    return 0;
}

static int default_stream_gpu(void *stream, int *ordinal)
{
    (void)stream, (void)ordinal;
    return weft_fail(WEFT_EUNSUPPORTED, "this GPU backend has no streams");
}

static int default_mark(struct weft_gpu *gpu, void *stream, struct weft_gpu_job **job)
{
    (void)job;
    return default_stream_gpu(stream, &gpu->ordinal);
}

static int default_describe(int ordinal, struct weft_gpu_device *device)
{
    *device = (struct weft_gpu_device){.bytes = 0};
    snprintf(device->name, sizeof device->name, "device %d", ordinal);
    return 0;
}

static int default_link(int from, int to)
{
    return from == to ? WEFT_GPU_LINK_SELF : WEFT_GPU_LINK_NONE;
}

static int default_export_dmabuf(struct weft_gpu *gpu, void *addr, uint64_t len, int *fd,
                                 uint64_t *offset)
{
    (void)addr, (void)len, (void)fd, (void)offset;
    return weft_fail(WEFT_EUNSUPPORTED, "gpu %s: no dma-buf export", gpu->backend->name);
}

static int default_ipc_export(struct weft_gpu *gpu, void *addr, uint64_t len, void *handle,
                              int *fd)
{
    (void)addr, (void)len, (void)handle, (void)fd;
    return weft_fail(WEFT_EUNSUPPORTED, "gpu %s: no ipc", gpu->backend->name);
}

static int default_ipc_open(struct weft_gpu *gpu, const void *handle, int fd, uint64_t len,
                            void **addr)
{
    (void)handle, (void)fd, (void)len, (void)addr;
    return weft_fail(WEFT_EUNSUPPORTED, "gpu %s: no ipc", gpu->backend->name);
}

static void default_ipc_close(struct weft_gpu *gpu, void *addr)
{
    (void)gpu, (void)addr;
}

static int refuse_abi(const char *kind, const char *name, uint32_t abi)
{
    weft_log(WEFT_LOG_ERROR, "registry", "%s %s: built for interface %u, this library has %u",
             kind, name, abi, WEFT_ABI);
    return WEFT_EABI;
}

static int refuse(const char *kind, const char *name, const char *why)
{
    weft_log(WEFT_LOG_ERROR, "registry", "%s %s: %s", kind, name, why);
    return WEFT_EABI;
}

static bool transport_complete(const struct weft_transport_ops *ops)
{
    return ops && ops->probe && ops->open && ops->close && ops->mem_reg && ops->mem_dereg &&
           ops->link_open && ops->link_address && ops->link_connect && ops->link_close &&
           ops->post && ops->poll;
}

static int add_transport(const struct weft_transport *t, int from_module)
{
    if (t->abi != WEFT_ABI)
        return refuse_abi("transport", t->name, t->abi);
    if (!transport_complete(t->ops))
        return refuse("transport", t->name, "a required function is missing");
    for (int i = 0; i < ntransports; i++)
        if (!strcmp(transports[i].transport.name, t->name))
            return refuse("transport", t->name, "there is one of this name already");
    if (ntransports == MAX_BACKENDS)
        return refuse("transport", t->name, "there are too many");
    struct known_transport *k = &transports[ntransports++];
    k->transport = *t;
    k->ops = *t->ops;
    k->transport.ops = &k->ops;
    k->from_module = from_module;
    if (!k->ops.link_pass || !k->ops.link_take) {
        k->ops.link_pass = default_link_pass;
        k->ops.link_take = default_link_take;
    }
    if (!k->ops.wait_fd)
        k->ops.wait_fd = default_wait_fd;
    if (!k->ops.rx_release)
        k->ops.rx_release = default_rx_release;
    if (!k->ops.extension)
        k->ops.extension = default_extension;
    return 0;
}

static bool gpu_complete(const struct weft_gpu_ops *ops)
{
    return ops && ops->probe && ops->open && ops->close && ops->alloc && ops->free && ops->query &&
           ops->copy && ops->launch && ops->host_map && ops->host_unmap;
}

static int add_gpu(const struct weft_gpu_backend *b, int from_module)
{
    if (b->abi != WEFT_ABI)
        return refuse_abi("gpu backend", b->name, b->abi);
    if (!gpu_complete(b->ops))
        return refuse("gpu backend", b->name, "a required function is missing");
    for (int i = 0; i < ngpus; i++)
        if (!strcmp(gpus[i].backend.name, b->name))
            return refuse("gpu backend", b->name, "there is one of this name already");
    if (ngpus == MAX_BACKENDS)
        return refuse("gpu backend", b->name, "there are too many");
    struct known_gpu *k = &gpus[ngpus++];
    k->backend = *b;
    k->ops = *b->ops;
    k->backend.ops = &k->ops;
    k->from_module = from_module;
    if (!k->ops.describe)
        k->ops.describe = default_describe;
    if (!k->ops.link)
        k->ops.link = default_link;
    if (!k->ops.present)
        k->ops.present = default_present;
    if (!k->ops.copy_start || !k->ops.copy_done) { /* one is nothing without the other */
        k->ops.copy_start = default_copy_start;
        k->ops.copy_done = default_copy_done;
    }
    if (!k->ops.stream_gpu || !k->ops.mark) {
        k->ops.stream_gpu = default_stream_gpu;
        k->ops.mark = default_mark;
    }
    if (!k->ops.export_dmabuf)
        k->ops.export_dmabuf = default_export_dmabuf;
    if (!k->ops.ipc_export || !k->ops.ipc_open || !k->ops.ipc_close) {
        k->ops.ipc_export = default_ipc_export;
        k->ops.ipc_open = default_ipc_open;
        k->ops.ipc_close = default_ipc_close;
    }
    if (!k->ops.extension)
        k->ops.extension = default_extension;
    return 0;
}

/* Modules of which anything was taken stay loaded: objects of theirs may live anywhere. */
static void load_module(const char *path)
{
    void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!so) {
        weft_log(WEFT_LOG_WARN, "registry", "module %s: %s", path, dlerror());
        return;
    }
    weft_module_transport_fn *transport;
    weft_module_gpu_fn *gpu;
    *(void **)&transport = dlsym(so, WEFT_MODULE_TRANSPORT);
    *(void **)&gpu = dlsym(so, WEFT_MODULE_GPU);
    bool taken = transport && add_transport(transport(), 1) == 0;
    taken |= gpu && add_gpu(gpu(), 1) == 0;
    if (!transport && !gpu)
        weft_log(WEFT_LOG_WARN, "registry", "module %s: exports neither %s nor %s", path,
                 WEFT_MODULE_TRANSPORT, WEFT_MODULE_GPU);
    if (!taken)
        dlclose(so);
}

static bool is_module(const char *name)
{
    size_t len = strlen(name);
    return len > 8 && !strncmp(name, "weft_", 5) && !strcmp(name + len - 3, ".so");
}

static void load_directory(const char *dir)
{
    DIR *d = opendir(dir);
    if (!d) {
        weft_log(WEFT_LOG_WARN, "registry", "module directory %s: %m", dir);
        return;
    }
    for (struct dirent *e; (e = readdir(d));) {
        char path[4096];
        if (is_module(e->d_name) &&
            snprintf(path, sizeof path, "%s/%s", dir, e->d_name) < (int)sizeof path)
            load_module(path);
    }
    closedir(d);
}

static void load_all(void)
{
    for (int i = 0; weft__transports[i]; i++)
        add_transport(weft__transports[i], 0);
    for (int i = 0; weft__gpus[i]; i++)
        add_gpu(weft__gpus[i], 0);
    char *dirs = strdup(weft_config_str("WEFT_MODULE_PATH")), *rest = dirs, *dir;
    while (rest && (dir = strsep(&rest, ":")))
        if (*dir)
            load_directory(dir);
    free(dirs);
}

const struct weft_transport *weft__transport_at(int i)
{
    pthread_once(&once, load_all);
    return i >= 0 && i < ntransports ? &transports[i].transport : NULL;
}

/* One more name of a list that is for people: ", " between them, and what does not fit is left out. */
static void add_name(char *names, size_t size, const char *name)
{
    size_t len = strlen(names);
    if (len + strlen(name) + 2 < size)
        snprintf(names + len, size - len, "%s%s", len ? ", " : "", name);
}

static WEFT_COLD void no_transport(const char *name)
{
    char known[128] = "";
    const struct weft_transport *t;
    for (int i = 0; (t = weft__transport_at(i)); i++)
        add_name(known, sizeof known, t->name);
    weft_fail(WEFT_ENODEV, "there is no transport '%s' in this build, which has %s", name, known);
}

const struct weft_transport *weft__transport_find(const char *name)
{
    const struct weft_transport *t;
    for (int i = 0; (t = weft__transport_at(i)); i++)
        if (!strcmp(t->name, name))
            return t;
    no_transport(name);
    return NULL;
}

/* A transport of priority 0 is only used when it is named. */
static int select_auto(const struct weft_transport **list, int max)
{
    int n = 0;
    const struct weft_transport *t;
    for (int i = 0; (t = weft__transport_at(i)); i++) {
        if (t->priority <= 0 || n == max)
            continue;
        int at = n++;
        for (; at > 0 && list[at - 1]->priority < t->priority; at--)
            list[at] = list[at - 1];
        list[at] = t;
    }
    return n;
}

int weft__transport_select(const char *policy, const struct weft_transport **list, int max)
{
    if (!*policy || !strcmp(policy, "auto"))
        return select_auto(list, max);
    int n = 0;
    const char *at = policy;
    do {
        char name[32];
        size_t len = strcspn(at, ",");
        snprintf(name, sizeof name, "%.*s", (int)len, at);
        if (!*name)
            return weft_fail(-EINVAL, "the list of transports '%s' has a name that is empty", policy);
        const struct weft_transport *t = weft__transport_find(name);
        if (!t)
            return WEFT_ENODEV;
        bool twice = false;
        for (int i = 0; i < n; i++)
            twice |= list[i] == t;
        if (!twice && n < max)
            list[n++] = t;
        at += len;
    } while (*at++ == ',');
    return n;
}

/* A nic of another transport, wrapped, may promise what the wrapper has no functions for. */
static int opened(const struct weft_transport *transport, struct weft_nic *nic)
{
    const struct weft_transport_ops *ops = transport->ops;
    nic->transport = transport; /* its table has the defaults */
    if (!ops->link_enter || !ops->link_leave || !ops->link_recall || !ops->link_recalled)
        nic->attr.enters = 0;
    return 0;
}

int weft__nic_open(const struct weft_transport *transport, const char *fault,
                   const struct weft_nic_opts *opts, struct weft_nic **nic)
{
    if (!*fault) {
        int rc = transport->ops->open(opts, nic);
        return rc ? rc : opened(transport, *nic);
    }
    const struct weft_transport *decorator = weft__transport_find("fault");
    weft_wrap_fn *wrap = NULL;
    if (decorator)
        *(void **)&wrap = decorator->ops->extension(WEFT_EXTENSION_WRAP);
    if (!wrap)
        return weft_fail(WEFT_ENODEV, "WEFT_FAULT is set, but this build has no fault transport");
    return wrap(transport, fault, opts, nic);
}

static WEFT_COLD void no_gpu(const char *name)
{
    char known[128] = "";
    for (int i = 0; i < ngpus; i++)
        add_name(known, sizeof known, gpus[i].backend.name);
    weft_fail(WEFT_ENODEV, "there is no gpu backend '%s' in this build, which has %s", name, known);
}

const struct weft_gpu_backend *weft_gpu_find(const char *name)
{
    pthread_once(&once, load_all);
    if (!name)
        name = weft_config_str("WEFT_GPU");
    bool any = !*name || !strcmp(name, "auto");
    const struct weft_gpu_backend *best = NULL;
    for (int i = 0; i < ngpus; i++) {
        const struct weft_gpu_backend *b = &gpus[i].backend;
        /* the host backend is what there is when nothing better has a device */
        if (any ? b->ops->probe() > 0 && (!best || !strcmp(best->name, "host"))
                : !strcmp(b->name, name))
            best = b;
    }
    if (!best)
        no_gpu(name);
    return best;
}

/* --- fabric.h ------------------------------------------------------------------------------ */

static const char *const op_names[] = {"send", "recv",  "write", "write_imm",
                                       "read", "add64", "fence", "link_down"};

const char *weft_op_name(enum weft_op op)
{
    return (unsigned)op < WEFT_OP_COUNT ? op_names[op] : "?";
}

/* Run a probe so that it leaves a reason when it finds nothing. */
static int probe_reason(int n, char *reason, size_t cap, const char *nothing)
{
    if (n > 0)
        return 1;
    snprintf(reason, cap, "%s", *weft_last_error() ? weft_last_error() : nothing);
    return 0;
}

int weft_transport_info(int i, struct weft_transport_info *info)
{
    const struct weft_transport *t = weft__transport_at(i);
    if (!t)
        return -ENOENT;
    memset(info, 0, sizeof *info);
    snprintf(info->name, sizeof info->name, "%s", t->name);
    snprintf(info->summary, sizeof info->summary, "%s", t->summary);
    info->priority = t->priority;
    info->from_module = transports[i].from_module;
    weft_fail(0, "%s", "");
    info->ndevices = t->ops->probe(NULL, 0);
    info->usable = probe_reason(info->ndevices, info->reason, sizeof info->reason, "no device");
    if (info->ndevices < 0)
        info->ndevices = 0;
    struct weft_device_info device;
    for (int j = 0; info->usable && j < info->ndevices; j++) {
        if (weft_device_info(t->name, j, &device) == 0 && device.usable)
            return 0;
        if (j == 0) /* the one that is wanted most */
            snprintf(info->reason, sizeof info->reason, "%s", device.reason);
    }
    info->usable = 0;
    return 0;
}

int weft_device_info(const char *transport, int j, struct weft_device_info *info)
{
    const struct weft_transport *t = weft__transport_find(transport);
    struct weft_device_info *list;
    const char *near = weft_config_str("WEFT_NEAR");
    char before[512]; /* of a call that ends well, the sentence stays that of an earlier one */
    if (!t)
        return WEFT_ENODEV;
    snprintf(before, sizeof before, "%s", weft_last_error());
    int n = weft__devices(t, near, WEFT__MEASURE_ALL, &list);
    if (n < 0)
        return n;
    int rc = j < 0 || j >= n ? -ENOENT : 0;
    if (rc == 0)
        *info = list[j];
    free(list);
    weft_fail(0, "%s", before);
    return rc;
}

int weft_device_attr(const char *transport, const char *device, struct weft_nic_attr *attr)
{
    const struct weft_transport *t = weft__transport_find(transport);
    struct weft_device_info info;
    if (!t)
        return WEFT_ENODEV;
    for (int j = 0; !device; j++) {
        int rc = weft_device_info(transport, j, &info);
        if (rc)
            return weft_fail(WEFT_ENODEV, "transport %s has no usable device", transport);
        if (info.usable)
            device = info.name;
    }
    struct weft_nic *nic;
    int rc = t->ops->open(&(struct weft_nic_opts){.device = device}, &nic);
    if (rc)
        return rc;
    *attr = nic->attr;
    t->ops->close(nic);
    return 0;
}

const struct weft_gpu_backend *weft__gpu_used(void)
{
    pthread_once(&once, load_all);
    const struct weft_gpu_backend *host = NULL;
    for (int i = 0; i < ngpus; i++) {
        const struct weft_gpu_backend *b = &gpus[i].backend;
        if (b->ops->present() && b->ops->probe() > 0)
            return b;
        if (!strcmp(b->name, "host"))
            host = b;
    }
    return host;
}

int weft_gpu_info(int i, struct weft_gpu_info *info)
{
    pthread_once(&once, load_all);
    if (i < 0 || i >= ngpus)
        return -ENOENT;
    const struct weft_gpu_backend *b = &gpus[i].backend;
    memset(info, 0, sizeof *info);
    snprintf(info->name, sizeof info->name, "%s", b->name);
    snprintf(info->summary, sizeof info->summary, "%s", b->summary);
    info->from_module = gpus[i].from_module;
    weft_fail(0, "%s", "");
    info->ndevices = b->ops->probe();
    info->usable = probe_reason(info->ndevices, info->reason, sizeof info->reason, "no device");
    if (info->ndevices < 0)
        info->ndevices = 0;
    return 0;
}
