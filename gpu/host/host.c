/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPU backend of machines without a GPU: one device whose memory is process memory. It knows
 * its own allocations, as a vendor's driver does, so that everything above it runs the same way.
 */
#include "host_kernels.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* What a vendor's allocator promises (gpu.h): kernels load and store 16 bytes a lane. */
#define HOST_ALIGN 256

/* One piece of "device" memory. */
struct host_alloc {
    struct host_alloc *next;
    struct weft_gpu *gpu;
    char *base;
    uint64_t len;
};

/* query has no context, so the allocations of all contexts are in one list. */
static struct weft_static_lock allocs_lock = WEFT_STATIC_LOCK();
static struct host_alloc *allocs;

static weft_gpu_probe_fn host_probe;
static weft_gpu_open_fn host_open;
static weft_gpu_close_fn host_close;
static weft_gpu_alloc_fn host_alloc;
static weft_gpu_free_fn host_free;
static weft_gpu_query_fn host_query;
static weft_gpu_copy_fn host_copy;
static weft_gpu_host_map_fn host_map;
static weft_gpu_host_unmap_fn host_unmap;

static const struct weft_gpu_ops host_ops = {
    .probe = host_probe,
    .open = host_open,
    .close = host_close,
    .alloc = host_alloc,
    .free = host_free,
    .query = host_query,
    .copy = host_copy,
    .launch = host_launch,
    .host_map = host_map,
    .host_unmap = host_unmap,
};

const struct weft_gpu_backend weft_gpu_host = {
    .abi = WEFT_ABI,
    .name = "host",
    .summary = "no GPU: device memory is process memory",
    .ops = &host_ops,
};

static int host_probe(void)
{
    return 1;
}

static int host_open(int ordinal, struct weft_gpu **gpu)
{
    if (ordinal != 0)
        return weft_fail(WEFT_ENODEV, "gpu host: there is no device %d, only device 0", ordinal);
    struct weft_gpu *opened = malloc(sizeof *opened);
    if (!opened)
        return weft_fail(-ENOMEM, "gpu host: no memory for a context");
    *opened = (struct weft_gpu){.backend = &weft_gpu_host, .ordinal = ordinal};
    *gpu = opened;
    return 0;
}

static void host_close(struct weft_gpu *gpu)
{
    free(gpu);
}

static int host_alloc(struct weft_gpu *gpu, uint64_t len, void **addr)
{
    if (len == 0)
        return weft_fail(-EINVAL, "gpu host: an allocation of 0 bytes");
    struct host_alloc *alloc = malloc(sizeof *alloc);
    void *base = NULL;
    if (!alloc || posix_memalign(&base, HOST_ALIGN, len)) {
        free(alloc);
        return weft_fail(-ENOMEM, "gpu host: no memory for %" PRIu64 " bytes", len);
    }
    weft_static_lock(&allocs_lock);
    *alloc = (struct host_alloc){.next = allocs, .gpu = gpu, .base = base, .len = len};
    allocs = alloc;
    weft_static_unlock(&allocs_lock);
    *addr = base;
    return 0;
}

static void host_free(struct weft_gpu *gpu, void *addr)
{
    weft_static_lock(&allocs_lock);
    struct host_alloc **at = &allocs;
    while (*at && ((*at)->base != addr || (*at)->gpu != gpu))
        at = &(*at)->next;
    struct host_alloc *alloc = *at;
    if (alloc)
        *at = alloc->next;
    weft_static_unlock(&allocs_lock);
    if (alloc)
        free(alloc->base);
    else if (addr)
        weft_log(WEFT_LOG_ERROR, "gpu", "host: free of %p, which is no allocation", addr);
    free(alloc);
}

static int host_query(const void *addr, struct weft_gpu_range *range)
{
    int found = 0;
    weft_static_lock(&allocs_lock);
    for (const struct host_alloc *alloc = allocs; alloc && !found; alloc = alloc->next) {
        /* below base, the difference wraps to more than any length */
        found = (uintptr_t)addr - (uintptr_t)alloc->base < alloc->len;
        if (found)
            *range = (struct weft_gpu_range){.base = alloc->base,
                                             .len = alloc->len,
                                             .kind = WEFT_MEM_HOST,
                                             .ordinal = alloc->gpu->ordinal};
    }
    weft_static_unlock(&allocs_lock);
    return found;
}

static int host_copy(struct weft_gpu *gpu, void *dst, const void *src, uint64_t len, void *stream)
{
    (void)gpu;
    if (stream)
        return weft_fail(WEFT_EUNSUPPORTED, "gpu host: has no streams");
    if (len)
        memmove(dst, src, len);
    return 0;
}

static int host_map(struct weft_gpu *gpu, void *host, uint64_t len, void **dev)
{
    (void)gpu;
    if (!host || len == 0)
        return weft_fail(-EINVAL, "gpu host: cannot map %" PRIu64 " bytes at %p", len, host);
    *dev = host;
    return 0;
}

static void host_unmap(struct weft_gpu *gpu, void *host)
{
    (void)gpu;
    (void)host;
}
