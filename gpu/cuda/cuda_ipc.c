/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory for other processes of this host. The driver shares whole allocations; a handle says where in it. */
#include <string.h>

#include "cuda_gpu.h"

struct handle {
    struct cuda_ipc ipc;
    uint64_t offset;
};
_Static_assert(sizeof(struct handle) <= WEFT_GPU_IPC_BYTES, "the handle does not fit");

int cuda_ipc_export(struct weft_gpu *base, void *addr, void *out)
{
    const struct cuda_api *api = cuda_of(base)->api;
    struct handle handle = {.offset = 0};
    cuda_addr start = 0;
    size_t size = 0;
    int rc = cuda_enter(cuda_of(base));
    if (rc)
        return rc;
    int result = api->mem_range(&start, &size, (uintptr_t)addr);
    if (result == 0)
        result = api->ipc_get(&handle.ipc, start);
    cuda_leave(cuda_of(base));
    if (result)
        return cuda_fail(result, "cannot share the allocation");
    handle.offset = (uintptr_t)addr - start;
    memset(out, 0, WEFT_GPU_IPC_BYTES);
    memcpy(out, &handle, sizeof handle);
    return 0;
}

int cuda_ipc_open(struct weft_gpu *base, const void *in, void **addr)
{
    struct handle handle;
    const struct cuda_api *api = cuda_of(base)->api;
    cuda_addr start = 0;
    size_t size = 0;
    memcpy(&handle, in, sizeof handle);
    int rc = cuda_enter(cuda_of(base));
    if (rc)
        return rc;
    int result = api->ipc_open(&start, handle.ipc, CUDA_IPC_PEERS);
    if (result == 0 && (api->mem_range(&start, &size, start) || handle.offset >= size)) {
        api->ipc_close(start); /* the offset is the other process's word */
        result = CUDA_EINVAL;
    }
    cuda_leave(cuda_of(base));
    if (result)
        return cuda_fail(result, "cannot open another process's memory");
    *addr = (void *)(uintptr_t)(start + handle.offset);
    return 0;
}

void cuda_ipc_close(struct weft_gpu *base, void *addr)
{
    const struct cuda_api *api = cuda_of(base)->api;
    cuda_addr start = 0;
    size_t size = 0;
    if (cuda_enter(cuda_of(base)))
        return;
    int result = api->mem_range(&start, &size, (uintptr_t)addr);
    if (result == 0)
        result = api->ipc_close(start);
    cuda_leave(cuda_of(base));
    if (result)
        weft_log(WEFT_LOG_ERROR, "gpu", "cuda: cannot close %p: the driver says %d", addr, result);
}
