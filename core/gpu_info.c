/* SPDX-License-Identifier: Apache-2.0 */
/* What GPUs there are, and how their memory is moved. */
#include "endpoint.h"
#include "mem.h"
#include "util.h"
#include "weft/fabric.h"
#include "weft/gpu.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TRIED 65536 /* bytes of an allocation that is tried */

static const struct weft_gpu_backend *find(const char *backend, int j, int *n)
{
    const struct weft_gpu_backend *b = weft_gpu_find(backend);
    *n = b && j >= 0 ? b->ops->probe() : 0;
    return b;
}

static int numa_of(const char *pci)
{
    char path[128];
    int node = -1;
    snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/numa_node", pci);
    FILE *file = *pci ? fopen(path, "re") : NULL;
    if (file && fscanf(file, "%d", &node) != 1)
        node = -1;
    if (file)
        fclose(file);
    return node;
}

int weft_gpu_device_info(const char *backend, int j, struct weft_gpu_device_info *info)
{
    int n;
    struct weft_gpu_device device;
    const struct weft_gpu_backend *b = find(backend, j, &n);
    if (!b)
        return WEFT_ENODEV;
    if (!info)
        return weft_fail(-EINVAL, "weft_gpu_device_info: info is NULL");
    if (j < 0 || j >= n)
        return -ENOENT;
    int rc = b->ops->describe(j, &device);
    if (rc)
        return rc;
    *info = (struct weft_gpu_device_info){
        .numa = numa_of(device.pci), .bytes = device.bytes, .wave = device.wave};
    memcpy(info->name, device.name, sizeof info->name);
    memcpy(info->pci, device.pci, sizeof info->pci);
    return 0;
}

int weft_gpu_link(const char *backend, int from, int to)
{
    int n;
    const struct weft_gpu_backend *b = find(backend, from, &n);
    if (!b)
        return WEFT_ENODEV;
    if (from < 0 || from >= n || to < 0 || to >= n)
        return weft_fail(-EINVAL, "weft_gpu_link: %s has %d devices", b->name, n);
    return b->ops->link(from, to);
}

/* Could a peer of this host map it? 0, or what went wrong after weft_fail. */
static int try_to_map(struct weft__endpoint *ep, int ordinal, void *addr)
{
    uint8_t handle[WEFT_GPU_IPC_BYTES];
    int fd = -1;
    int rc = weft__gpu_need(ep, ordinal);
    if (rc == 0)
        rc = ep->gpu->ops->ipc_export(weft__gpu_opened(ep, ordinal), addr, TRIED, handle, &fd);
    if (fd >= 0)
        close(fd);
    return rc;
}

/* Peers copy by themselves: how what is many and short? */
static void say_mapped(struct weft__endpoint *ep, const struct weft__reg *reg, char *why,
                       size_t size)
{
    struct weft_gpu_launch ask = {
        .kernel = "weft_copy"}; /* gpu/kernels: no arguments are wrong, if there is one */
    const char *no = !ep->copier.kernels ? "WEFT_GPU_KERNELS is 0"
                     : !reg->reached     ? "kernels do not reach its memory"
                                         : NULL;
    if (!no && ep->gpu->ops->launch(weft__gpu_opened(ep, reg->ordinal), &ask) != -EINVAL)
        no = weft_last_error();
    if (no)
        snprintf(why, size,
                 "peers of this host copy by themselves (short pieces one by one: %s); the rest "
                 "is staged",
                 no);
    else
        snprintf(why, size,
                 "peers of this host copy by themselves (short pieces by a kernel); the rest is "
                 "staged");
}

/* Do the nics reach what was registered? */
static int way_of(struct weft__endpoint *ep, weft_mem_t mem, void *addr, char *why, size_t size)
{
    struct weft__reg *reg;
    pthread_mutex_lock(&ep->lock);
    int rc = weft__mem_reg_of(ep, mem, addr, TRIED, &reg);
    pthread_mutex_unlock(&ep->lock);
    for (int i = 0; rc == 0 && i < ep->nlanes; i++)
        if (reg->unreached >> i & 1) {
            if (!ep->lanes[i]->nic->attr.enters)
                snprintf(why, size, "%s", weft__reg_why(reg, ep->lanes[i]));
            else if (try_to_map(ep, reg->ordinal, addr))
                snprintf(why, size, "peers of this host cannot map it: %s", weft_last_error());
            else if (!ep->ipc)
                snprintf(why, size, "WEFT_IPC is 0");
            else {
                say_mapped(ep, reg, why, size);
                return WEFT_GPU_MAPPED;
            }
            return WEFT_GPU_STAGED;
        }
    return rc ? rc : WEFT_GPU_DIRECT;
}

static int try_memory(weft_endpoint_t endpoint, void *addr, char *why, size_t size)
{
    weft_mem_t mem;
    int rc = weft_mem_reg(endpoint, addr, TRIED, NULL, &mem);
    if (rc)
        return rc;
    struct weft__endpoint *ep = weft__handle_get(endpoint, WEFT__ENDPOINT);
    rc = ep ? way_of(ep, mem, addr, why, size) : WEFT_EHANDLE;
    if (ep)
        weft__handle_put(endpoint);
    weft_mem_dereg(mem);
    return rc;
}

static int try_endpoint(const struct weft_gpu_backend *b, int j, weft_endpoint_t endpoint,
                        char *why, size_t size)
{
    struct weft_gpu *gpu;
    void *addr;
    int rc = b->ops->open(j, &gpu);
    if (rc)
        return rc;
    rc = b->ops->alloc(gpu, TRIED, &addr);
    if (rc == 0) {
        rc = try_memory(endpoint, addr, why, size);
        b->ops->free(gpu, addr);
    }
    b->ops->close(gpu);
    return rc;
}

int weft_gpu_way(const char *backend, int j, const char *transport, char *why, size_t size)
{
    int n;
    weft_endpoint_t endpoint;
    if (!transport || !why || !size)
        return weft_fail(-EINVAL, "weft_gpu_way: an argument is NULL");
    *why = 0;
    const struct weft_gpu_backend *b = find(backend, j, &n);
    int rc = b ? 0 : WEFT_ENODEV;
    if (b && (j < 0 || j >= n))
        rc = weft_fail(-ENOENT, "%s has no device %d", b->name, j);
    if (rc == 0)
        rc = weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .transport = transport,
                                          .gpu = b->name, .listen = "127.0.0.1",
                                          .progress_threads = WEFT_PROGRESS_CALLER),
                                &endpoint);
    if (rc == 0) {
        rc = try_endpoint(b, j, endpoint, why, size);
        weft_endpoint_close(endpoint);
    }
    if (rc < 0)
        snprintf(why, size, "%s", weft_last_error());
    return rc;
}
