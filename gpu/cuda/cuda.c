/* SPDX-License-Identifier: Apache-2.0 */
/* The table, and devices. */
#include "cuda_gpu.h"

#include <stdio.h>

static weft_gpu_probe_fn probe;
static weft_gpu_present_fn present;
static weft_gpu_describe_fn describe;
static weft_gpu_link_fn link_of;
static weft_gpu_open_fn open_device;

static const struct weft_gpu_ops cuda_ops = {
    .probe = probe,
    .open = open_device,
    .close = vendor_close,
    .alloc = vendor_alloc,
    .free = vendor_free,
    .query = cuda_query,
    .copy = vendor_copy,
    .launch = vendor_launch,
    .host_map = vendor_host_map,
    .host_unmap = vendor_host_unmap,
    .present = present,
    .describe = describe,
    .link = link_of,
    .copy_start = vendor_copy_start,
    .copy_done = vendor_copy_done,
    .stream_gpu = cuda_stream_gpu,
    .mark = vendor_mark,
    .export_dmabuf = vendor_export_dmabuf,
    .ipc_export = vendor_ipc_export,
    .ipc_open = vendor_ipc_open,
    .ipc_close = vendor_ipc_close,
};

const struct weft_gpu_backend weft_gpu_cuda = {
    .abi = WEFT_ABI,
    .name = "cuda",
    .summary = "NVIDIA GPUs, by the driver",
    .ops = &cuda_ops,
};

static int probe(void)
{
    const struct cuda_api *api = cuda_api();
    int n = 0;
    if (!api)
        return 0;
    int result = api->init(0); /* of no use in the child of who has done so before */
    if (result == 0)
        result = api->device_count(&n);
    if (result || n == 0) {
        cuda_fail(result ? result : VENDOR_ENODEVICE, "no devices");
        return 0;
    }
    return n;
}

static int present(void)
{
    return cuda_present();
}

/* "0000:3b:00.0"; a device that tells none has none. */
static void find_pci(const struct cuda_api *api, int device, char pci[16])
{
    int domain, bus, number;
    if (!api->device_attribute(&domain, CUDA_DEVICE_DOMAIN, device) &&
        !api->device_attribute(&bus, CUDA_DEVICE_BUS, device) &&
        !api->device_attribute(&number, CUDA_DEVICE_NUMBER, device))
        snprintf(pci, 16, "%04x:%02x:%02x.0", (unsigned)domain & 0xffff, (unsigned)bus & 0xff,
                 (unsigned)number & 0xff);
}

static int describe(int ordinal, struct weft_gpu_device *out)
{
    const struct cuda_api *api = cuda_api();
    int device, wave = 0;
    size_t bytes = 0;
    *out = (struct weft_gpu_device){.bytes = 0};
    if (!api)
        return WEFT_ENODEV;
    int result = api->device_get(&device, ordinal);
    if (result == 0)
        result = api->device_name(out->name, sizeof out->name, device);
    if (result == 0)
        result = api->device_bytes(&bytes, device);
    if (result == 0)
        result = api->device_attribute(&wave, CUDA_DEVICE_WARP, device);
    if (result)
        return cuda_fail(result, "cannot tell what the device is");
    find_pci(api, device, out->pci);
    out->bytes = bytes;
    out->wave = (uint32_t)wave;
    return 0;
}

/* Devices whose atomic operations reach one another are joined by NVLink: PCIe does not carry them. */
static int link_of(int from, int to)
{
    const struct cuda_api *api = cuda_api();
    int a, b, can = 0, atomic = 0;
    if (!api)
        return WEFT_ENODEV;
    int result = api->device_get(&a, from);
    if (result == 0)
        result = api->device_get(&b, to);
    if (result == 0 && from == to)
        return WEFT_GPU_LINK_SELF;
    if (result == 0)
        result = api->device_peer(&can, a, b);
    if (result == 0 && can)
        result = api->device_p2p(&atomic, CUDA_P2P_ATOMIC, a, b);
    if (result)
        return cuda_fail(result, "cannot tell how devices reach each other");
    return atomic ? WEFT_GPU_LINK_FABRIC : can ? WEFT_GPU_LINK_PCI : WEFT_GPU_LINK_NONE;
}

static int open_device(int ordinal, struct weft_gpu **gpu)
{
    return vendor_open(&cuda_vendor, ordinal, gpu);
}
