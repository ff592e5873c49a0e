/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's functions, for gpu/vendor. The driver was found before any of them is called. */
#include "cuda_gpu.h"

#include <stdatomic.h>
#include <string.h>

static const char *text(int result)
{
    const struct cuda_api *api = &cuda_table;
    const char *out = NULL;
    return api->error_text && api->error_text(result, &out) == 0 ? out : NULL;
}

/* The primary one of each device that was used; it may be another after all have let go of it. */
static _Atomic(cuda_ctx_t) primary[64];

bool cuda_is_primary(const struct cuda_ctx *ctx, int ordinal)
{
    return ordinal >= 0 && ordinal < 64 && atomic_load(&primary[ordinal]) == ctx;
}

static int capture_mode(int *mode)
{
    return cuda_table.capture_mode(mode);
}

static int attach(struct vendor_gpu *gpu)
{
    const struct cuda_api *api = &cuda_table;
    cuda_ctx_t ctx = NULL;
    int result = api->device_get(&gpu->device, gpu->base.ordinal);
    if (result == 0)
        result = api->ctx_retain(&ctx, gpu->device);
    gpu->ctx = ctx; /* which the runtime and torch use, too */
    if (result == 0 && gpu->base.ordinal < 64)
        atomic_store(&primary[gpu->base.ordinal], ctx);
    return result;
}

static void detach(struct vendor_gpu *gpu)
{
    cuda_table.ctx_release(gpu->device);
}

static int enter(const struct vendor_gpu *gpu)
{
    return cuda_table.ctx_push(gpu->ctx);
}

static void leave(const struct vendor_gpu *gpu)
{
    cuda_ctx_t ctx;
    (void)gpu;
    cuda_table.ctx_pop(&ctx);
}

static int stream_create(void **stream)
{
    cuda_stream_t made = NULL;
    int result = cuda_table.stream_create(&made, CUDA_STREAM_ALONE);
    *stream = made;
    return result;
}

static int stream_destroy(void *stream)
{
    return cuda_table.stream_destroy(stream);
}

static int stream_wait(void *stream)
{
    return cuda_table.stream_wait(stream);
}

static int stream_query(void *stream)
{
    return cuda_table.stream_query(stream);
}

/* Flags 0 (CU_STREAM_WRITE_VALUE_DEFAULT): behind a fence for the whole system. */
static int word_write(void *stream, uintptr_t word, uint32_t value)
{
    return cuda_table.word_write(stream, word, value, 0);
}

static int event_create(void **event)
{
    cuda_event_t made = NULL;
    int result = cuda_table.event_create(&made, CUDA_EVENT_NO_TIMES);
    *event = made;
    return result;
}

static int event_destroy(void *event)
{
    return cuda_table.event_destroy(event);
}

/* WEFT_STREAM_DEFAULT is the driver's CU_STREAM_LEGACY. */
static int event_record(void *event, void *stream)
{
    return cuda_table.event_record(event, stream);
}

static int event_query(void *event)
{
    return cuda_table.event_query(event);
}

static int copy(uintptr_t dst, uintptr_t src, size_t len, void *stream)
{
    return cuda_table.copy(dst, src, len, stream);
}

static int alloc(uintptr_t *addr, size_t len)
{
    cuda_addr at = 0;
    int result = cuda_table.mem_alloc(&at, len);
    *addr = at;
    return result;
}

static int free_memory(uintptr_t addr)
{
    return cuda_table.mem_free(addr);
}

static int range(uintptr_t addr, uintptr_t *base, size_t *len)
{
    cuda_addr start = 0;
    int result = cuda_table.mem_range(&start, len, addr);
    *base = start;
    return result;
}

static int host_register(void *host, size_t len)
{
    return cuda_table.host_register(host, len, CUDA_HOST_PORTABLE | CUDA_HOST_MAPPED);
}

static int host_unregister(void *host)
{
    return cuda_table.host_unregister(host);
}

static int host_addr(void *host, uintptr_t *addr)
{
    cuda_addr at = 0;
    int result = cuda_table.host_addr(&at, host, 0);
    *addr = at;
    return result;
}

static int host_pinned(uintptr_t host, size_t len)
{
    int attributes[] = {CUDA_OF_TYPE, CUDA_OF_BASE, CUDA_OF_SIZE};
    unsigned type = 0;
    cuda_addr base = 0;
    size_t size = 0;
    void *values[] = {&type, &base, &size};
    int result = cuda_table.mem_attributes(sizeof attributes / sizeof *attributes, attributes,
                                           values, host);
    bool all = type == CUDA_TYPE_HOST && host >= base && len <= size && host - base <= size - len;
    return result == 0 && !all ? VENDOR_EINVAL : result;
}

static int dmabuf(uintptr_t addr, size_t len, int *fd, uint64_t *offset)
{
    *offset = 0;
    return cuda_table.mem_handle(fd, addr, len, CUDA_HANDLE_DMABUF, 0);
}

static int ipc_get(void *handle, uintptr_t base)
{
    return cuda_table.ipc_get(handle, base);
}

static int ipc_open(uintptr_t *base, const void *handle)
{
    struct cuda_ipc ipc;
    cuda_addr start = 0;
    memcpy(&ipc, handle, sizeof ipc);
    int result = cuda_table.ipc_open(&start, ipc, CUDA_IPC_PEERS);
    *base = start;
    return result;
}

static int ipc_close(uintptr_t base)
{
    return cuda_table.ipc_close(base);
}

/* --- what the program maps by itself --------------------------------------------------------------------- */

static int segment_retain(uint64_t *segment, uintptr_t addr)
{
    return cuda_table.segment_retain(segment, (void *)addr);
}

static int segment_release(uint64_t segment)
{
    return cuda_table.segment_release(segment);
}

static int segment_to_fd(int *fd, uint64_t segment)
{
    return cuda_table.segment_export(fd, segment, CUDA_SEGMENT_FD, 0);
}

static int segment_from_fd(uint64_t *segment, int fd)
{
    return cuda_table.segment_import(segment, (void *)(intptr_t)fd, CUDA_SEGMENT_FD);
}

static int range_reserve(uintptr_t *addr, size_t len)
{
    cuda_addr at = 0;
    int result = cuda_table.range_reserve(&at, len, 0, 0, 0);
    *addr = at;
    return result;
}

static int range_unreserve(uintptr_t addr, size_t len)
{
    return cuda_table.range_free(addr, len);
}

static int range_map(uintptr_t addr, size_t len, uint64_t segment)
{
    return cuda_table.range_map(addr, len, 0, segment, 0);
}

static int range_unmap(uintptr_t addr, size_t len)
{
    return cuda_table.range_unmap(addr, len);
}

static int range_allow(const struct vendor_gpu *gpu, uintptr_t addr, size_t len)
{
    const struct cuda_access access = {CUDA_AT_DEVICE, gpu->device, CUDA_READ_WRITE};
    return cuda_table.range_allow(addr, len, &access, 1);
}

static const struct vendor_segments segments = {
    .retain = segment_retain,
    .release = segment_release,
    .to_fd = segment_to_fd,
    .from_fd = segment_from_fd,
    .reserve = range_reserve,
    .unreserve = range_unreserve,
    .map = range_map,
    .unmap = range_unmap,
    .allow = range_allow,
};

static int module_load(void **module, const void *image)
{
    return cuda_table.module_load(module, image);
}

static int module_unload(void *module)
{
    return cuda_table.module_unload(module);
}

static int module_kernel(void **kernel, void *module, const char *name)
{
    return cuda_table.module_kernel(kernel, module, name);
}

static int launch(void *kernel, uint32_t blocks, uint32_t threads, uint32_t shared_bytes,
                  void *stream, const void *args)
{
    void *parameters[] = {(void *)(uintptr_t)args}; /* which are copied */
    return cuda_table.launch(kernel, blocks, 1, 1, threads, 1, 1, shared_bytes, stream, parameters,
                             NULL);
}

const struct vendor cuda_vendor = {
    .backend = &weft_gpu_cuda,
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
    .word_write = word_write,
    .stream_query = stream_query,
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
    .segments = &segments,
    .kernels_setting = "WEFT_CUDA_KERNELS",
    .image = CUDA_IMAGE,
    .module_load = module_load,
    .module_unload = module_unload,
    .module_kernel = module_kernel,
    .launch = launch,
    .graph_make = cuda_graph_make,
    .graph_launch = cuda_graph_launch,
    .graph_unmake = cuda_graph_unmake,
};
