/* SPDX-License-Identifier: Apache-2.0 */
/* Whose is an address, or a stream? */
#include "hip_gpu.h"

/* Memory that a processor reaches as well, pinned or managed, counts as the host's. */
int hip_query(const void *addr, struct weft_gpu_range *range)
{
    const struct hip_api *api = addr ? hip_api_quick() : NULL;
    struct hip_pointer what = {.device = -1};
    void *base = NULL;
    size_t size = 0;
    if (!api) /* then nothing is a GPU's */
        return 0;
    int result = hip_told(api->mem_attributes(&what, addr));
    if (result == VENDOR_EINVAL || result == VENDOR_ENODEVICE || result == VENDOR_EDEVICE ||
        result == VENDOR_ESTARTED || result == VENDOR_EENDED)
        return 0; /* nor where there is no GPU, or no runtime any more */
    if (result)
        return hip_fail(result, "cannot tell whose memory it is");
    if (what.type != api->numbers->device || what.managed)
        return 0;
    result = hip_told(api->mem_range(&base, &size, (void *)(uintptr_t)addr));
    if (result)
        return hip_fail(result, "cannot tell how long the memory is");
    *range = (struct weft_gpu_range){
        .base = base, .len = size, .kind = WEFT_MEM_PEER, .ordinal = what.device, .reached = 1};
    return 1;
}

/* The runtime's default stream has no handle, and is the thread's device's. */
int hip_stream_gpu(void *stream, int *ordinal)
{
    const struct hip_api *api = hip_api_quick();
    int device = -1, result = 0;
    if (!api)
        return WEFT_ENODEV;
    if (stream == WEFT_STREAM_DEFAULT)
        result = hip_told(api->device_now(&device));
    else if (api->stream_device)
        result = hip_told(api->stream_device(stream, &device));
    else if (api->stream_ordinal)
        device = api->stream_ordinal(stream);
    if (result || device < 0)
        return hip_fail(result ? result : VENDOR_EINVAL, "cannot tell whose stream it is");
    *ordinal = device;
    return 0;
}
