/* SPDX-License-Identifier: Apache-2.0 */
/* Weft's kernels, which were compiled for the vendor's GPUs when it was built, if there was a compiler. */
#include "vendor_kernel.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IMAGE_MOST ((size_t)64 << 20)

static const struct {
    const char *name;
    size_t args_len;
} kernels[VENDOR_KERNELS] = {[VENDOR_COPY] = {WEFT_COPY_KERNEL, sizeof(struct weft_copy_args)}};

/* Of the file, to be freed; NULL and why not in the log. */
static void *read_image(const struct vendor *vendor, const char *path)
{
    FILE *file = fopen(path, "rb");
    const char *why = file ? "it is empty, or too long" : strerror(errno);
    uint8_t *bytes = file ? calloc(1, IMAGE_MOST) : NULL;
    if (file && !bytes)
        why = "no memory to read it";
    size_t n = bytes ? fread(bytes, 1, IMAGE_MOST, file) : 0;
    if (n == 0 || n == IMAGE_MOST) {
        weft_log(WEFT_LOG_WARN, "gpu", "%s: %s is no file of kernels: %s", vendor->kernels_setting,
                 path, why);
        free(bytes);
        bytes = NULL;
    }
    if (file)
        fclose(file);
    return bytes;
}

static int load(struct vendor_gpu *gpu, const void *image)
{
    const struct vendor *vendor = gpu->vendor;
    void *found[VENDOR_KERNELS];
    int result = vendor->module_load(&gpu->module, image);
    for (int i = 0; i < VENDOR_KERNELS && result == 0; i++)
        result = vendor->module_kernel(&found[i], gpu->module, kernels[i].name);
    if (result == 0)
        memcpy(gpu->kernels, found, sizeof found);
    return result;
}

/* All or none. A program with a kernel of its own that does not end could not load more later: so it is done at once. */
int vendor_kernels_load(struct vendor_gpu *gpu)
{
    const struct vendor *vendor = gpu->vendor;
    const char *path = weft_config_str(vendor->kernels_setting);
    void *read = *path ? read_image(vendor, path) : NULL;
    const void *image = *path ? read : vendor->image;
    int result = image ? load(gpu, image) : 0;
    free(read);
    return result;
}

void vendor_kernels_unload(struct vendor_gpu *gpu)
{
    if (gpu->module)
        gpu->vendor->module_unload(gpu->module);
}

void vendor_graphs_make(struct vendor_gpu *gpu)
{
    static const struct weft_copy_args none;
    const struct vendor *vendor = gpu->vendor;
    int result = 0;
    if (!gpu->words || !gpu->kernels[VENDOR_COPY] || !vendor->graph_make)
        return;
    for (int i = vendor_first_way(VENDOR_BY_KERNEL); i < VENDOR_WAYS && result == 0; i++)
        result = vendor->graph_make(&gpu->ways[i].graph, gpu->kernels[VENDOR_COPY],
                                    VENDOR_KERNEL_THREADS, &none, gpu->ways[i].stream);
    if (result)
        weft_log(WEFT_LOG_INFO, "gpu", "%s: device %d: no graphs of kernels (%d)",
                 gpu->base.backend->name, gpu->base.ordinal, result);
}

static void drop_graph(struct vendor_gpu *gpu, struct vendor_way *way)
{
    if (way->graph)
        gpu->vendor->graph_unmake(way->graph);
    way->graph = NULL;
}

void vendor_graphs_unmake(struct vendor_gpu *gpu)
{
    for (int i = 0; i < VENDOR_WAYS; i++)
        drop_graph(gpu, &gpu->ways[i]);
}

int vendor_launch(struct weft_gpu *base, const struct weft_gpu_launch *what)
{
    struct vendor_gpu *gpu = vendor_of(base);
    const struct vendor *vendor = gpu->vendor;
    const char *name = base->backend->name;
    void *stream = what->stream ? what->stream : gpu->stream;
    int k = 0;
    while (k < VENDOR_KERNELS && strcmp(kernels[k].name, what->kernel) != 0)
        k++;
    if (k == VENDOR_KERNELS)
        return weft_fail(WEFT_EUNSUPPORTED, "gpu %s: has no kernel named %s", name, what->kernel);
    if (!gpu->kernels[k])
        return weft_fail(WEFT_EUNSUPPORTED, "gpu %s: kernel %s: %s", name, what->kernel,
                         vendor->image || *weft_config_str(vendor->kernels_setting)
                             ? "not for this device"
                             : "built without the vendor's compiler");
    if (what->args_len != kernels[k].args_len)
        return weft_fail(-EINVAL, "gpu %s: %s takes %zu bytes of arguments, not %zu", name,
                         what->kernel, kernels[k].args_len, what->args_len);
    int rc = vendor_enter(gpu);
    if (rc)
        return rc;
    int result = vendor->launch(gpu->kernels[k], what->blocks, what->threads, what->shared_bytes,
                                stream, what->args);
    if (result == 0 && !what->stream)
        result = vendor->stream_wait(stream);
    vendor_leave(gpu);
    return result ? vendor_fail(vendor, result, "cannot run a kernel") : 0;
}

/* --- copies ------------------------------------------------------------------------------------------------- */

/* To the arguments, from the list; returns how many of it were taken. */
static int fill(struct weft_copy_args *args, const struct weft_gpu_copy *list, int n)
{
    uint32_t ranges = 0, all = 0;
    int i = 0;
    for (; i < n && ranges < WEFT_COPY_MOST; i++) {
        const struct weft_gpu_copy one = list[i];
        if (one.len == 0)
            continue;
        args->range[ranges].dst = (uintptr_t)one.dst;
        args->range[ranges].src = (uintptr_t)one.src;
        args->range[ranges].len = one.len;
        args->chunk[ranges++] = all;
        all += (uint32_t)((one.len + WEFT_COPY_CHUNK - 1) / WEFT_COPY_CHUNK);
    }
    args->n = ranges;
    args->chunks = all;
    return i;
}

bool vendor_kernel_fits(const struct vendor_gpu *gpu, const struct weft_gpu_copy *list, int n,
                        uint32_t flags)
{
    uint64_t total = 0;
    if (!gpu->kernels[VENDOR_COPY] || !(flags & WEFT_GPU_REACHED) || n < VENDOR_KERNEL_LEAST)
        return false;
    for (int i = 0; i < n; i++)
        total += list[i].len;
    return total / (uint64_t)n <= VENDOR_KERNEL_LONGEST;
}

/*
 * A launch with nothing before it takes the driver 3 to 5 us, and half of that as a graph, arguments included: 128 ranges of 32 KiB
 * between two H200 21.6 us in all instead of 25 (bench/results/2026-11-26-gpu.md). Behind another launch nothing is gained.
 */
static int launch_copy(struct vendor_gpu *gpu, struct vendor_way *way, bool alone,
                       const struct weft_copy_args *args, uint32_t blocks)
{
    if (alone && way->graph) {
        int result = gpu->vendor->graph_launch(way->graph, blocks, args, way->stream);
        if (result == 0)
            return 0;
        weft_log(WEFT_LOG_INFO, "gpu", "%s: device %d: a graph cannot be launched (%d)",
                 gpu->base.backend->name, gpu->base.ordinal, result);
        drop_graph(gpu, way); /* what is wrong with the device a launch will tell, too */
    }
    return gpu->vendor->launch(gpu->kernels[VENDOR_COPY], blocks, VENDOR_KERNEL_THREADS, 0,
                               way->stream, args);
}

int vendor_kernel_copy(struct vendor_gpu *gpu, const struct weft_gpu_copy *list, int n, int way)
{
    const uint32_t waves = VENDOR_KERNEL_THREADS / 32;
    bool alone = vendor_word_idle(gpu, way);
    struct weft_copy_args args;
    for (int at = 0, result = 0; at < n;) {
        at += fill(&args, list + at, n - at);
        uint32_t blocks = (args.chunks + waves - 1) / waves;
        if (blocks == 0)
            continue;
        result = launch_copy(gpu, &gpu->ways[way], alone, &args,
                             blocks < VENDOR_KERNEL_BLOCKS ? blocks : VENDOR_KERNEL_BLOCKS);
        if (result)
            return result;
        alone = false;
    }
    return 0;
}
