/* SPDX-License-Identifier: Apache-2.0 */
/* The table, devices and contexts. */
#include "cuda_gpu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static weft_gpu_probe_fn probe;
static weft_gpu_present_fn present;
static weft_gpu_describe_fn describe;
static weft_gpu_link_fn link_of;
static weft_gpu_open_fn open_device;
static weft_gpu_close_fn close_device;
static weft_gpu_launch_fn launch;

static const struct weft_gpu_ops cuda_ops = {
    .probe = probe,
    .open = open_device,
    .close = close_device,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .query = cuda_query,
    .copy = cuda_copy,
    .launch = launch,
    .host_map = cuda_host_map,
    .host_unmap = cuda_host_unmap,
    .present = present,
    .describe = describe,
    .link = link_of,
    .copy_start = cuda_copy_start,
    .copy_done = cuda_copy_done,
    .stream_gpu = cuda_stream_gpu,
    .mark = cuda_mark,
    .export_dmabuf = cuda_export_dmabuf,
    .ipc_export = cuda_ipc_export,
    .ipc_open = cuda_ipc_open,
    .ipc_close = cuda_ipc_close,
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
        cuda_fail(result ? result : CUDA_ENODEVICE, "no devices");
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

int cuda_enter(const struct cuda_gpu *gpu)
{
    int result = gpu->api->ctx_push(gpu->ctx);
    return result ? cuda_fail(result, "cannot use the context") : 0;
}

void cuda_leave(const struct cuda_gpu *gpu)
{
    cuda_ctx_t ctx;
    gpu->api->ctx_pop(&ctx);
}

/* In the context. */
static void unmake(struct cuda_gpu *gpu)
{
    cuda_copy_end(gpu);
    for (int i = 0; i < CUDA_WAYS; i++)
        if (gpu->ways[i].stream)
            gpu->api->stream_destroy(gpu->ways[i].stream);
    if (gpu->stream)
        gpu->api->stream_destroy(gpu->stream);
}

/* The context, and in it the streams. */
static int make(struct cuda_gpu *gpu)
{
    const struct cuda_api *api = gpu->api;
    int result = api->device_get(&gpu->device, gpu->base.ordinal);
    if (result == 0)
        result = api->ctx_retain(&gpu->ctx, gpu->device);
    if (result)
        return cuda_fail(result, "cannot open the device");
    int rc = cuda_enter(gpu);
    if (rc == 0) {
        result = api->stream_create(&gpu->stream, CUDA_STREAM_ALONE);
        for (int i = 0; i < CUDA_WAYS && result == 0; i++)
            result = api->stream_create(&gpu->ways[i].stream, CUDA_STREAM_ALONE);
        if (result)
            unmake(gpu);
        cuda_leave(gpu);
        rc = result ? cuda_fail(result, "cannot make a stream") : 0;
    }
    if (rc)
        api->ctx_release(gpu->device);
    return rc;
}

static int open_device(int ordinal, struct weft_gpu **out)
{
    int n = probe();
    if (n == 0)
        return WEFT_ENODEV;
    if (ordinal < 0 || ordinal >= n)
        return weft_fail(WEFT_ENODEV, "gpu cuda: there is no device %d, only %d", ordinal, n);
    const struct cuda_api *api = cuda_api();
    struct cuda_gpu *gpu = calloc(1, sizeof *gpu);
    if (!gpu)
        return weft_fail(-ENOMEM, "gpu cuda: no memory for a context");
    gpu->base = (struct weft_gpu){.backend = &weft_gpu_cuda, .ordinal = ordinal};
    gpu->api = api;
    pthread_mutex_init(&gpu->lock, NULL);
    int rc = make(gpu);
    if (rc) {
        pthread_mutex_destroy(&gpu->lock);
        free(gpu);
        return rc;
    }
    *out = &gpu->base;
    return 0;
}

static void close_device(struct weft_gpu *base)
{
    struct cuda_gpu *gpu = cuda_of(base);
    const struct cuda_api *api = gpu->api;
    if (cuda_enter(gpu) == 0) {
        unmake(gpu);
        cuda_leave(gpu);
    }
    api->ctx_release(gpu->device);
    pthread_mutex_destroy(&gpu->lock);
    free(gpu);
}

static int launch(struct weft_gpu *gpu, const struct weft_gpu_launch *what)
{
    (void)gpu;
    return weft_fail(WEFT_EUNSUPPORTED, "gpu cuda: has no kernel named %s", what->kernel);
}
