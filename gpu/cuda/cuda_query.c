/* SPDX-License-Identifier: Apache-2.0 */
/* Whose is an address, or a stream? */
#include "cuda_gpu.h"

#include <errno.h>

/* Memory that a processor reaches as well, pinned or managed, counts as the host's. */
int cuda_query(const void *addr, struct weft_gpu_range *range)
{
    const struct cuda_api *api = addr ? cuda_api_quick() : NULL;
    int attributes[] = {CUDA_OF_TYPE, CUDA_OF_MANAGED, CUDA_OF_ORDINAL,
                        CUDA_OF_BASE, CUDA_OF_SIZE,    CUDA_OF_CONTEXT};
    unsigned type = 0, managed = 0;
    cuda_ctx_t ctx = NULL; /* none: it belongs to a pool, or is mapped by the program */
    int ordinal = -1;
    cuda_addr base = 0;
    size_t size = 0;
    void *values[] = {&type, &managed, &ordinal, &base, &size, &ctx};
    if (!api) /* then nothing is a GPU's */
        return 0;
    int result = api->mem_attributes(sizeof attributes / sizeof *attributes, attributes, values,
                                     (uintptr_t)addr);
    if (result == VENDOR_EINVAL || result == VENDOR_ESTARTED || result == VENDOR_EENDED)
        return 0; /* nor where there is no driver any more */
    if (result)
        return cuda_fail(result, "cannot tell whose memory it is");
    if (type != CUDA_TYPE_DEVICE || managed || !base)
        return 0;
    *range = (struct weft_gpu_range){.base = (void *)(uintptr_t)base,
                                     .len = size,
                                     .kind = WEFT_MEM_PEER,
                                     .ordinal = ordinal,
                                     .reached = !ctx || cuda_is_primary(ctx, ordinal)};
    return 1;
}

/* WEFT_STREAM_DEFAULT is the driver's CU_STREAM_LEGACY. */
int cuda_stream_gpu(void *stream, int *ordinal)
{
    const struct cuda_api *api = cuda_api_quick();
    cuda_ctx_t ctx = NULL;
    int device = -1;
    if (!api)
        return WEFT_ENODEV;
    int result = api->stream_ctx(stream, &ctx);
    if (result == VENDOR_ENOCONTEXT)
        return weft_fail(-EINVAL, "gpu cuda: a default stream is that of the GPU which the thread "
                                  "uses, and this one uses none (cudaSetDevice)");
    if (result == 0)
        result = api->ctx_push(ctx);
    if (result)
        return cuda_fail(result, "cannot tell whose stream it is");
    result = api->ctx_device(&device);
    api->ctx_pop(&ctx);
    int n = 0, at = -1, found = -1;
    api->device_count(&n);
    while (++at < n && found != device)
        api->device_get(&found, at);
    if (result || found != device)
        return cuda_fail(result ? result : VENDOR_EDEVICE, "cannot tell whose stream it is");
    *ordinal = at - 1;
    return 0;
}
