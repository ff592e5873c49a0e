/* SPDX-License-Identifier: Apache-2.0 */
/* The runtime's functions, for gpu/vendor. The runtime was found before any of them is called. */
#include "hip_gpu.h"

#include <string.h>

static __thread int before; /* the thread's device; enter and leave do not nest */

static const char *text(int result)
{
    return hip_table.error_text ? hip_table.error_text(result) : NULL;
}

/* The runtime keeps a context of each device by itself, from its first use on. */
static int attach(struct vendor_gpu *gpu)
{
    gpu->device = gpu->base.ordinal;
    return VENDOR_OK;
}

static void detach(struct vendor_gpu *gpu)
{
    (void)gpu;
}

static int capture_mode(int *mode)
{
    return hip_table.capture_mode ? hip_told(hip_table.capture_mode(mode)) : VENDOR_EUNSUPPORTED;
}

static int enter(const struct vendor_gpu *gpu)
{
    int result = hip_told(hip_table.device_now(&before));
    if (result == 0 && before != gpu->device)
        result = hip_told(hip_table.device_set(gpu->device));
    return result;
}

static void leave(const struct vendor_gpu *gpu)
{
    if (before != gpu->device)
        hip_told(hip_table.device_set(before));
}

static int stream_create(void **stream)
{
    return hip_told(hip_table.stream_create(stream, HIP_STREAM_ALONE));
}

static int stream_destroy(void *stream)
{
    return hip_told(hip_table.stream_destroy(stream));
}

/* The default stream has no handle. */
static void *stream_of(void *stream)
{
    return stream == WEFT_STREAM_DEFAULT ? NULL : stream;
}

static int stream_wait(void *stream)
{
    return hip_told(hip_table.stream_wait(stream_of(stream)));
}

static int event_create(void **event)
{
    return hip_told(hip_table.event_create(event, HIP_EVENT_NO_TIMES));
}

static int event_destroy(void *event)
{
    return hip_told(hip_table.event_destroy(event));
}

static int event_record(void *event, void *stream)
{
    return hip_told(hip_table.event_record(event, stream_of(stream)));
}

static int event_query(void *event)
{
    return hip_told(hip_table.event_query(event));
}

static int copy(uintptr_t dst, uintptr_t src, size_t len, void *stream)
{
    return hip_told(
        hip_table.copy((void *)dst, (const void *)src, len, HIP_COPY_ANY, stream_of(stream)));
}

static int alloc(uintptr_t *addr, size_t len)
{
    void *at = NULL;
    int result = hip_told(hip_table.mem_alloc(&at, len));
    *addr = (uintptr_t)at;
    return result;
}

static int free_memory(uintptr_t addr)
{
    return hip_told(hip_table.mem_free((void *)addr));
}

static int range(uintptr_t addr, uintptr_t *base, size_t *len)
{
    void *start = NULL;
    int result = hip_told(hip_table.mem_range(&start, len, (void *)addr));
    *base = (uintptr_t)start;
    return result;
}

/* Is this byte pinned? The range that it is pinned in cannot be had. */
static bool is_pinned(uintptr_t host)
{
    struct hip_pointer what = {.type = -1};
    return hip_told(hip_table.mem_attributes(&what, (const void *)host)) == 0 &&
           what.type == hip_table.numbers->host;
}

static int host_pinned(uintptr_t host, size_t len)
{
    return is_pinned(host) && is_pinned(host + len - 1) ? VENDOR_OK : VENDOR_EINVAL;
}

/* The runtime (5.7 to 6.2 at least) registers again what is pinned already, and the end of either is the end of the other. */
static int host_register(void *host, size_t len)
{
    if (is_pinned((uintptr_t)host) || is_pinned((uintptr_t)host + len - 1))
        return VENDOR_EREGISTERED;
    return hip_told(hip_table.host_register(host, len, HIP_HOST_PORTABLE | HIP_HOST_MAPPED));
}

static int host_unregister(void *host)
{
    return hip_told(hip_table.host_unregister(host));
}

static int host_addr(void *host, uintptr_t *addr)
{
    void *at = NULL;
    int result = hip_told(hip_table.host_addr(&at, host, 0));
    *addr = (uintptr_t)at;
    return result;
}

static int dmabuf(uintptr_t addr, size_t len, int *fd, uint64_t *offset)
{
    if (!hip_table.dmabuf)
        return VENDOR_EUNSUPPORTED;
    return hip_table.dmabuf((const void *)addr, len, fd, offset) ? VENDOR_EUNSUPPORTED : VENDOR_OK;
}

static int ipc_get(void *handle, uintptr_t base)
{
    struct hip_ipc ipc = {.bytes = {0}};
    int result = hip_told(hip_table.ipc_get(&ipc, (void *)base));
    memcpy(handle, &ipc, sizeof ipc);
    return result;
}

static int ipc_open(uintptr_t *base, const void *handle)
{
    struct hip_ipc ipc;
    void *start = NULL;
    memcpy(&ipc, handle, sizeof ipc);
    int result = hip_told(hip_table.ipc_open(&start, ipc, hip_table.numbers->ipc_peers));
    *base = (uintptr_t)start;
    return result;
}

static int ipc_close(uintptr_t base)
{
    return hip_told(hip_table.ipc_close((void *)base));
}

static int module_load(void **module, const void *image)
{
    return hip_told(hip_table.module_load(module, image));
}

static int module_unload(void *module)
{
    return hip_told(hip_table.module_unload(module));
}

static int module_kernel(void **kernel, void *module, const char *name)
{
    return hip_told(hip_table.module_kernel(kernel, module, name));
}

static int launch(void *kernel, uint32_t blocks, uint32_t threads, uint32_t shared_bytes,
                  void *stream, const void *args)
{
    void *parameters[] = {(void *)(uintptr_t)args}; /* which are copied */
    return hip_told(hip_table.launch(kernel, blocks, 1, 1, threads, 1, 1, shared_bytes,
                                     stream_of(stream), parameters, NULL));
}

const struct vendor hip_vendor = {
    .backend = &weft_gpu_hip,
    .text = text,
    .attach = attach,
    .detach = detach,
    .capture_mode = capture_mode,
    .enter = enter,
    .leave = leave,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_wait = stream_wait,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_query = event_query,
    .copy = copy,
    .alloc = alloc,
    .free = free_memory,
    .range = range,
    .host_register = host_register,
    .host_unregister = host_unregister,
    .host_addr = host_addr,
    .host_pinned = host_pinned,
    .dmabuf = dmabuf,
    .ipc_get = ipc_get,
    .ipc_open = ipc_open,
    .ipc_close = ipc_close,
    .kernels_setting = "WEFT_HIP_KERNELS",
    .image = HIP_IMAGE,
    .module_load = module_load,
    .module_unload = module_unload,
    .module_kernel = module_kernel,
    .launch = launch,
};
