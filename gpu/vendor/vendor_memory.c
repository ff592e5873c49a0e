/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the device, and the host's memory for the device. */
#include "vendor.h"

#include <errno.h>
#include <inttypes.h>
#include <unistd.h>

int vendor_alloc(struct weft_gpu *base, uint64_t len, void **addr)
{
    struct vendor_gpu *gpu = vendor_of(base);
    const char *name = base->backend->name;
    uintptr_t at = 0;
    if (len == 0)
        return weft_fail(-EINVAL, "gpu %s: an allocation of 0 bytes", name);
    int rc = vendor_enter(gpu);
    if (rc)
        return rc;
    int result = gpu->vendor->alloc(&at, len);
    vendor_leave(gpu);
    if (result == VENDOR_ENOMEM)
        return weft_fail(-ENOMEM, "gpu %s: device %d has no room for %" PRIu64 " bytes", name,
                         base->ordinal, len);
    if (result)
        return vendor_fail(gpu->vendor, result, "cannot allocate");
    *addr = (void *)at;
    return 0;
}

void vendor_free(struct weft_gpu *base, void *addr)
{
    struct vendor_gpu *gpu = vendor_of(base);
    if (!addr || vendor_enter(gpu))
        return;
    int result = gpu->vendor->free((uintptr_t)addr);
    vendor_leave(gpu);
    vendor_complain(gpu, result, "free", addr);
}

int vendor_export_dmabuf(struct weft_gpu *base, void *addr, uint64_t len, int *fd,
                         uint64_t *offset)
{
    const uintptr_t page = (uintptr_t)sysconf(
        _SC_PAGESIZE); /* what is exported starts and ends at one */
    struct vendor_gpu *gpu = vendor_of(base);
    uint64_t before = 0;
    int opened = -1, rc = vendor_enter(gpu);
    uintptr_t from = (uintptr_t)addr & ~(page - 1);
    uintptr_t to = ((uintptr_t)addr + len + page - 1) & ~(page - 1);
    if (rc)
        return rc;
    int result = gpu->vendor->dmabuf(from, to - from, &opened, &before);
    vendor_leave(gpu);
    if (result)
        return vendor_fail(gpu->vendor, result, "cannot export a dma-buf");
    *fd = opened;
    *offset = before + ((uintptr_t)addr - from);
    return 0;
}

int vendor_host_map(struct weft_gpu *base, void *host, uint64_t len, void **dev)
{
    struct vendor_gpu *gpu = vendor_of(base);
    const struct vendor *vendor = gpu->vendor;
    uintptr_t at = 0;
    if (!host || len == 0)
        return weft_fail(-EINVAL, "gpu %s: cannot map %" PRIu64 " bytes at %p",
                         base->backend->name, len, host);
    int rc = vendor_enter(gpu);
    if (rc)
        return rc;
    int result = vendor->host_register(host, len);
    /* what is in the way may be a part, or a page that it shares with its neighbour */
    bool before = result == VENDOR_EREGISTERED && vendor->host_pinned((uintptr_t)host, len) == 0;
    if (result == 0 || before) {
        result = vendor->host_addr(host, &at);
        if (result && !before)
            vendor->host_unregister(host);
    }
    vendor_leave(gpu);
    if (result)
        return vendor_fail(vendor, result, "cannot map the host's memory");
    *dev = (void *)at;
    return before;
}

void vendor_host_unmap(struct weft_gpu *base, void *host)
{
    struct vendor_gpu *gpu = vendor_of(base);
    if (vendor_enter(gpu))
        return;
    int result = gpu->vendor->host_unregister(host);
    vendor_leave(gpu);
    vendor_complain(gpu, result, "unmap", host);
}
