/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the device, what is known of any address, and the host's memory for the device. */
#include "cuda_gpu.h"

#include <errno.h>
#include <inttypes.h>
#include <unistd.h>

int cuda_alloc(struct weft_gpu *base, uint64_t len, void **addr)
{
    struct cuda_gpu *gpu = cuda_of(base);
    cuda_addr at = 0;
    if (len == 0)
        return weft_fail(-EINVAL, "gpu cuda: an allocation of 0 bytes");
    int rc = cuda_enter(gpu);
    if (rc)
        return rc;
    int result = cuda_of(base)->api->mem_alloc(&at, len);
    cuda_leave(cuda_of(base));
    if (result == CUDA_ENOMEM)
        return weft_fail(-ENOMEM, "gpu cuda: device %d has no room for %" PRIu64 " bytes",
                         base->ordinal, len);
    if (result)
        return cuda_fail(result, "cannot allocate");
    *addr = (void *)(uintptr_t)at;
    return 0;
}

void cuda_free(struct weft_gpu *base, void *addr)
{
    if (!addr || cuda_enter(cuda_of(base)))
        return;
    int result = cuda_of(base)->api->mem_free((uintptr_t)addr);
    cuda_leave(cuda_of(base));
    if (result)
        weft_log(WEFT_LOG_ERROR, "gpu", "cuda: free of %p: the driver says %d", addr, result);
}

/* Memory that a processor reaches as well, pinned or managed, counts as the host's. */
int cuda_query(const void *addr, struct weft_gpu_range *range)
{
    const struct cuda_api *api = addr ? cuda_api_quick() : NULL;
    int attributes[] = {CUDA_OF_TYPE, CUDA_OF_MANAGED, CUDA_OF_ORDINAL, CUDA_OF_BASE, CUDA_OF_SIZE};
    unsigned type = 0, managed = 0;
    int ordinal = -1;
    cuda_addr base = 0;
    size_t size = 0;
    void *values[] = {&type, &managed, &ordinal, &base, &size};
    if (!api) /* then nothing is a GPU's */
        return 0;
    int result = api->mem_attributes(sizeof attributes / sizeof *attributes, attributes, values,
                                     (uintptr_t)addr);
    if (result == CUDA_EINVAL || result == CUDA_ESTARTED || result == CUDA_EENDED)
        return 0; /* nor where there is no driver any more */
    if (result)
        return cuda_fail(result, "cannot tell whose memory it is");
    if (type != CUDA_TYPE_DEVICE || managed || !base)
        return 0;
    *range = (struct weft_gpu_range){.base = (void *)(uintptr_t)base,
                                     .len = size,
                                     .kind = WEFT_MEM_PEER,
                                     .ordinal = ordinal};
    return 1;
}

int cuda_export_dmabuf(struct weft_gpu *base, void *addr, uint64_t len, int *fd, uint64_t *offset)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE); /* what is exported starts and ends at one */
    int opened = -1, rc = cuda_enter(cuda_of(base));
    uintptr_t from = (uintptr_t)addr & ~(page - 1);
    uintptr_t to = ((uintptr_t)addr + len + page - 1) & ~(page - 1);
    if (rc)
        return rc;
    int result = cuda_of(base)->api->mem_handle(&opened, from, to - from, CUDA_HANDLE_DMABUF, 0);
    cuda_leave(cuda_of(base));
    if (result)
        return cuda_fail(result, "cannot export a dma-buf");
    *fd = opened;
    *offset = (uintptr_t)addr - from;
    return 0;
}

/* Is all of it pinned? What is in the way of registering it may be a part, or a page that it shares with its neighbour. */
static bool is_pinned(const struct cuda_api *api, const void *host, uint64_t len)
{
    int attributes[] = {CUDA_OF_TYPE, CUDA_OF_BASE, CUDA_OF_SIZE};
    unsigned type = 0;
    cuda_addr base = 0, at = (uintptr_t)host;
    size_t size = 0;
    void *values[] = {&type, &base, &size};
    int result = api->mem_attributes(sizeof attributes / sizeof *attributes, attributes, values,
                                     at);
    return result == 0 && type == CUDA_TYPE_HOST && at >= base && len <= size &&
           at - base <= size - len;
}

int cuda_host_map(struct weft_gpu *base, void *host, uint64_t len, void **dev)
{
    const struct cuda_api *api = cuda_of(base)->api;
    cuda_addr at = 0;
    if (!host || len == 0)
        return weft_fail(-EINVAL, "gpu cuda: cannot map %" PRIu64 " bytes at %p", len, host);
    int rc = cuda_enter(cuda_of(base));
    if (rc)
        return rc;
    int result = api->host_register(host, len, CUDA_HOST_PORTABLE | CUDA_HOST_MAPPED);
    bool before = result == CUDA_EREGISTERED && is_pinned(api, host, len);
    if (result == 0 || before) {
        result = api->host_addr(&at, host, 0);
        if (result && !before)
            api->host_unregister(host);
    }
    cuda_leave(cuda_of(base));
    if (result)
        return cuda_fail(result, "cannot map the host's memory");
    *dev = (void *)(uintptr_t)at;
    return before;
}

void cuda_host_unmap(struct weft_gpu *base, void *host)
{
    if (cuda_enter(cuda_of(base)))
        return;
    int result = cuda_of(base)->api->host_unregister(host);
    cuda_leave(cuda_of(base));
    if (result)
        weft_log(WEFT_LOG_ERROR, "gpu", "cuda: unmap of %p: the driver says %d", host, result);
}
