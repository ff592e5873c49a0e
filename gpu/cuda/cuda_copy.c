/* SPDX-License-Identifier: Apache-2.0 */
/* Copies. The driver finds out itself where each address lives (unified addressing). */
#include "cuda_gpu.h"

int cuda_copy(struct weft_gpu *base, void *dst, const void *src, uint64_t len, void *stream)
{
    struct cuda_gpu *gpu = cuda_of(base);
    const struct cuda_api *api = gpu->api;
    cuda_stream_t on = stream ? stream : gpu->stream;
    if (len == 0)
        return 0;
    int rc = cuda_enter(gpu);
    if (rc)
        return rc;
    int result = api->copy((uintptr_t)dst, (uintptr_t)src, len, on);
    if (result == 0 && !stream)
        result = api->stream_wait(on);
    cuda_leave(gpu);
    return result ? cuda_fail(result, "cannot copy") : 0;
}
