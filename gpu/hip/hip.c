/* SPDX-License-Identifier: Apache-2.0 */
/* The table, and devices. */
#include "hip_gpu.h"

#include <ctype.h>

static weft_gpu_probe_fn probe;
static weft_gpu_present_fn present;
static weft_gpu_describe_fn describe;
static weft_gpu_link_fn link_of;
static weft_gpu_open_fn open_device;

static const struct weft_gpu_ops hip_ops = {
    .probe = probe,
    .open = open_device,
    .close = vendor_close,
    .alloc = vendor_alloc,
    .free = vendor_free,
    .query = hip_query,
    .copy = vendor_copy,
    .launch = vendor_launch,
    .host_map = vendor_host_map,
    .host_unmap = vendor_host_unmap,
    .present = present,
    .describe = describe,
    .link = link_of,
    .copy_start = vendor_copy_start,
    .copy_done = vendor_copy_done,
    .stream_gpu = hip_stream_gpu,
    .mark = vendor_mark,
    .export_dmabuf = vendor_export_dmabuf,
    .ipc_export = vendor_ipc_export,
    .ipc_open = vendor_ipc_open,
    .ipc_close = vendor_ipc_close,
};

const struct weft_gpu_backend weft_gpu_hip = {
    .abi = WEFT_ABI,
    .name = "hip",
    .summary = "AMD GPUs, by the HIP runtime",
    .ops = &hip_ops,
};

static int probe(void)
{
    const struct hip_api *api = hip_api();
    int n = 0;
    if (!api)
        return 0;
    int result = hip_told(api->init(0)); /* of no use in the child of who has done so before */
    if (result == 0)
        result = hip_told(api->device_count(&n));
    if (result || n == 0) {
        hip_fail(result ? result : VENDOR_ENODEVICE, "no devices");
        return 0;
    }
    return n;
}

static int present(void)
{
    return hip_present();
}

static int describe(int ordinal, struct weft_gpu_device *out)
{
    const struct hip_api *api = hip_api();
    int wave = 0;
    size_t bytes = 0;
    *out = (struct weft_gpu_device){.bytes = 0};
    if (!api)
        return WEFT_ENODEV;
    int result = api->device_name(out->name, sizeof out->name, ordinal);
    if (result == 0)
        result = api->device_bytes(&bytes, ordinal);
    if (result == 0)
        result = api->device_attribute(&wave, HIP_DEVICE_WARP, ordinal);
    if (hip_told(result))
        return hip_fail(result, "cannot tell what the device is");
    if (hip_told(api->device_pci(out->pci, sizeof out->pci, ordinal)))
        *out->pci = 0; /* a device that tells none has none */
    for (char *c = out->pci; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    out->bytes = bytes;
    out->wave = (uint32_t)wave;
    return 0;
}

static int link_of(int from, int to)
{
    const struct hip_api *api = hip_api();
    int n = probe(), can = 0;
    uint32_t link = 0, hops = 0;
    if (!api)
        return WEFT_ENODEV;
    if (from < 0 || from >= n || to < 0 || to >= n)
        return hip_fail(VENDOR_EDEVICE, "cannot tell how devices reach each other");
    if (from == to)
        return WEFT_GPU_LINK_SELF;
    int result = hip_told(api->device_peer(&can, from, to));
    if (result == 0 && can)
        result = hip_told(api->device_link(from, to, &link, &hops));
    if (result)
        return hip_fail(result, "cannot tell how devices reach each other");
    return !can                    ? WEFT_GPU_LINK_NONE
           : link == HIP_LINK_XGMI ? WEFT_GPU_LINK_FABRIC
                                   : WEFT_GPU_LINK_PCI;
}

static int open_device(int ordinal, struct weft_gpu **gpu)
{
    return vendor_open(&hip_vendor, ordinal, gpu);
}
