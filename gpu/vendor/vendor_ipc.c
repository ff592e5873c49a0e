/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory for other processes of this host. Whole allocations are shared; a handle says where in them. What the library has no
 * handle for, since the program has mapped it by itself, goes segment by segment (vendor_segments.c).
 */
#include <string.h>

#include "vendor.h"

struct handle {
    uint8_t ipc[VENDOR_IPC_BYTES];
    uint64_t offset;
    struct vendor_shared shared; /* bytes 0: the library's handle is it */
    char backend[8]; /* whose library it is for: another's would take it for its own */
};
_Static_assert(sizeof(struct handle) <= WEFT_GPU_IPC_BYTES, "the handle does not fit");

/* len bytes, from its offset on, are inside so many. */
static bool fits(const struct handle *handle, uint64_t len, uint64_t size)
{
    return handle->offset <= size && len <= size - handle->offset;
}

/* In the context. */
static int export(const struct vendor_gpu *gpu, uintptr_t addr, uint64_t len,
                  struct handle *handle, int *fd)
{
    const struct vendor *vendor = gpu->vendor;
    uintptr_t start = 0;
    size_t size = 0;
    int result = vendor->range(addr, &start, &size);
    handle->offset = addr - start;
    bool one = result == 0 && fits(handle, len, size);
    if (one)
        result = vendor->ipc_get(handle->ipc, start);
    if (one && result == 0)
        return 0;
    if (start && vendor_segments_has(vendor, addr))
        return vendor_segments_share(gpu, addr, len, &handle->shared, &handle->offset, fd);
    return result ? vendor_fail(vendor, result, "cannot share the allocation")
                  : weft_fail(WEFT_EUNSUPPORTED, "gpu %s: it is more than one allocation",
                              gpu->base.backend->name);
}

int vendor_ipc_export(struct weft_gpu *base, void *addr, uint64_t len, void *out, int *fd)
{
    const struct vendor_gpu *gpu = vendor_of(base);
    struct handle handle = {.offset = 0};
    strncpy(handle.backend, base->backend->name, sizeof handle.backend - 1);
    int rc = vendor_enter(gpu);
    if (rc)
        return rc;
    *fd = -1;
    rc = export(gpu, (uintptr_t)addr, len, &handle, fd);
    vendor_leave(gpu);
    if (rc)
        return rc;
    memset(out, 0, WEFT_GPU_IPC_BYTES);
    memcpy(out, &handle, sizeof handle);
    return 0;
}

static int too_short(const struct vendor *vendor)
{
    return weft_fail(WEFT_EPROTO, "gpu %s: another process's memory is shorter than it says",
                     vendor->backend->name);
}

static int open_ipc(const struct vendor *vendor, const struct handle *handle, uint64_t len,
                    uintptr_t *start)
{
    size_t size = 0;
    int result = vendor->ipc_open(start, handle->ipc);
    if (result)
        return vendor_fail(vendor, result, "cannot open another process's memory");
    if (vendor->range(*start, start, &size) == 0 && fits(handle, len, size))
        return 0;
    vendor->ipc_close(*start);
    return too_short(vendor);
}

static int open_segments(const struct vendor_gpu *gpu, const struct handle *handle, int fd,
                         uint64_t len, uintptr_t *start)
{
    if (!gpu->vendor->segments)
        return weft_fail(WEFT_EUNSUPPORTED, "gpu %s: it has no segments", gpu->base.backend->name);
    if (!fits(handle, len, handle->shared.bytes))
        return too_short(gpu->vendor);
    return vendor_segments_open(gpu, &handle->shared, fd, start);
}

int vendor_ipc_open(struct weft_gpu *base, const void *in, int fd, uint64_t len, void **addr)
{
    const struct vendor_gpu *gpu = vendor_of(base);
    struct handle handle;
    uintptr_t start = 0;
    memcpy(&handle, in, sizeof handle);
    handle.backend[sizeof handle.backend - 1] = 0;
    if (strcmp(handle.backend, base->backend->name) != 0)
        return weft_fail(WEFT_EUNSUPPORTED, "gpu %s: it is memory of another library's GPU", base->backend->name);
    int rc = vendor_enter(gpu);
    if (rc)
        return rc;
    rc = handle.shared.bytes ? open_segments(gpu, &handle, fd, len, &start)
                             : open_ipc(gpu->vendor, &handle, len, &start);
    vendor_leave(gpu);
    if (rc)
        return rc;
    *addr = (void *)(uintptr_t)(start + handle.offset);
    return 0;
}

void vendor_ipc_close(struct weft_gpu *base, void *addr)
{
    const struct vendor_gpu *gpu = vendor_of(base);
    uintptr_t start = 0;
    size_t size = 0;
    int result = 0;
    if (vendor_enter(gpu))
        return;
    if (!vendor_segments_close(gpu, (uintptr_t)addr)) {
        result = gpu->vendor->range((uintptr_t)addr, &start, &size);
        if (result == 0)
            result = gpu->vendor->ipc_close(start);
    }
    vendor_leave(gpu);
    vendor_complain(gpu, result, "close", addr);
}
