/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory for other processes of this host. Whole allocations are shared; a handle says where in it. */
#include <string.h>

#include "vendor.h"

struct handle {
    uint8_t ipc[VENDOR_IPC_BYTES];
    uint64_t offset;
};
_Static_assert(sizeof(struct handle) <= WEFT_GPU_IPC_BYTES, "the handle does not fit");

int vendor_ipc_export(struct weft_gpu *base, void *addr, void *out)
{
    const struct vendor_gpu *gpu = vendor_of(base);
    struct handle handle = {.offset = 0};
    uintptr_t start = 0;
    size_t size = 0;
    int rc = vendor_enter(gpu);
    if (rc)
        return rc;
    int result = gpu->vendor->range((uintptr_t)addr, &start, &size);
    if (result == 0)
        result = gpu->vendor->ipc_get(handle.ipc, start);
    vendor_leave(gpu);
    if (result)
        return vendor_fail(gpu->vendor, result, "cannot share the allocation");
    handle.offset = (uintptr_t)addr - start;
    memset(out, 0, WEFT_GPU_IPC_BYTES);
    memcpy(out, &handle, sizeof handle);
    return 0;
}

int vendor_ipc_open(struct weft_gpu *base, const void *in, void **addr)
{
    const struct vendor_gpu *gpu = vendor_of(base);
    struct handle handle;
    uintptr_t start = 0;
    size_t size = 0;
    memcpy(&handle, in, sizeof handle);
    int rc = vendor_enter(gpu);
    if (rc)
        return rc;
    int result = gpu->vendor->ipc_open(&start, handle.ipc);
    if (result == 0 && (gpu->vendor->range(start, &start, &size) || handle.offset >= size)) {
        gpu->vendor->ipc_close(start); /* the offset is the other process's word */
        result = VENDOR_EINVAL;
    }
    vendor_leave(gpu);
    if (result)
        return vendor_fail(gpu->vendor, result, "cannot open another process's memory");
    *addr = (void *)(uintptr_t)(start + handle.offset);
    return 0;
}

void vendor_ipc_close(struct weft_gpu *base, void *addr)
{
    const struct vendor_gpu *gpu = vendor_of(base);
    uintptr_t start = 0;
    size_t size = 0;
    if (vendor_enter(gpu))
        return;
    int result = gpu->vendor->range((uintptr_t)addr, &start, &size);
    if (result == 0)
        result = gpu->vendor->ipc_close(start);
    vendor_leave(gpu);
    vendor_complain(gpu, result, "close", addr);
}
