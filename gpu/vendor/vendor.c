/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts, and what went wrong. */
#include "vendor_kernel.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int code_of(int result)
{
    switch (result) {
    case VENDOR_EINVAL:
        return -EINVAL;
    case VENDOR_ENOMEM:
        return -ENOMEM;
    case VENDOR_ESTUB:
    case VENDOR_EUNAVAILABLE:
    case VENDOR_ENODEVICE:
    case VENDOR_EDEVICE:
        return WEFT_ENODEV;
    case VENDOR_EUNSUPPORTED:
        return WEFT_EUNSUPPORTED;
    default:
        return -EIO;
    }
}

int vendor_fail(const struct vendor *vendor, int result, const char *what)
{
    const char *text = vendor->text(result);
    return weft_fail(code_of(result), "gpu %s: %s: %s (%d)", vendor->backend->name, what,
                     text ? text : "unknown to the library", result);
}

void vendor_complain(const struct vendor_gpu *gpu, int result, const char *what, const void *addr)
{
    const char *text = result ? gpu->vendor->text(result) : NULL;
    if (result)
        weft_log(WEFT_LOG_ERROR, "gpu", "%s: %s of %p: %s (%d)", gpu->base.backend->name, what,
                 addr, text ? text : "unknown to the library", result);
}

void vendor_find(void *library, const char *symbol, void *slot)
{
    void *found = dlsym(library, symbol);
    memcpy(slot, &found, sizeof found);
}

/* --- captures of the application's -------------------------------------------------------------------- */

/* The thread's stream capture mode before, or -1. Who relaxes it restores it before anybody else does. */
static __thread int capture_mode;

void vendor_capture_relax(const struct vendor *vendor)
{
    int mode = VENDOR_CAPTURE_RELAXED;
    capture_mode = vendor->capture_mode(&mode) ? -1 : mode;
}

void vendor_capture_restore(const struct vendor *vendor)
{
    int mode = capture_mode;
    if (mode >= 0)
        vendor->capture_mode(&mode);
}

/* --- contexts ------------------------------------------------------------------------------------------ */

int vendor_try_enter(const struct vendor_gpu *gpu)
{
    vendor_capture_relax(gpu->vendor);
    int result = gpu->vendor->enter(gpu);
    if (result)
        vendor_capture_restore(gpu->vendor);
    return result;
}

int vendor_enter(const struct vendor_gpu *gpu)
{
    int result = vendor_try_enter(gpu);
    return result ? vendor_fail(gpu->vendor, result, "cannot use the device") : 0;
}

void vendor_leave(const struct vendor_gpu *gpu)
{
    gpu->vendor->leave(gpu);
    vendor_capture_restore(gpu->vendor);
}

static int attach(struct vendor_gpu *gpu)
{
    vendor_capture_relax(gpu->vendor);
    int result = gpu->vendor->attach(gpu);
    vendor_capture_restore(gpu->vendor);
    return result;
}

static void detach(struct vendor_gpu *gpu)
{
    vendor_capture_relax(gpu->vendor);
    gpu->vendor->detach(gpu);
    vendor_capture_restore(gpu->vendor);
}

/* In the context. */
static void unmake(struct vendor_gpu *gpu)
{
    vendor_copy_end(gpu);
    vendor_words_unmake(gpu);
    vendor_graphs_unmake(gpu);
    vendor_kernels_unload(gpu);
    for (int i = 0; i < VENDOR_WAYS; i++)
        if (gpu->ways[i].stream)
            gpu->vendor->stream_destroy(gpu->ways[i].stream);
    if (gpu->stream)
        gpu->vendor->stream_destroy(gpu->stream);
}

/* The context, and in it the streams. */
static int make(struct vendor_gpu *gpu)
{
    const struct vendor *vendor = gpu->vendor;
    int result = attach(gpu), unfit = 0;
    if (result)
        return vendor_fail(vendor, result, "cannot open the device");
    int rc = vendor_enter(gpu);
    if (rc == 0) {
        result = vendor->stream_create(&gpu->stream);
        for (int i = 0; i < VENDOR_WAYS && result == 0; i++)
            result = vendor->stream_create(&gpu->ways[i].stream);
        if (result)
            unmake(gpu);
        else
            unfit = vendor_kernels_load(gpu);
        if (result == 0)
            vendor_words_make(gpu);
        if (result == 0)
            vendor_graphs_make(gpu);
        vendor_leave(gpu);
        if (unfit) {
            vendor_fail(vendor, unfit, "Weft's kernels are not for this device");
            weft_log(WEFT_LOG_INFO, "gpu", "%s", weft_last_error());
        }
        rc = result ? vendor_fail(vendor, result, "cannot make a stream") : 0;
    }
    if (rc)
        detach(gpu);
    return rc;
}

int vendor_open(const struct vendor *vendor, int ordinal, struct weft_gpu **out)
{
    const char *name = vendor->backend->name;
    int n = vendor->backend->ops->probe();
    if (n == 0)
        return WEFT_ENODEV;
    if (ordinal < 0 || ordinal >= n)
        return weft_fail(WEFT_ENODEV, "gpu %s: there is no device %d, only 0 to %d", name, ordinal,
                         n - 1);
    struct vendor_gpu *gpu = calloc(1, sizeof *gpu);
    if (!gpu)
        return weft_fail(-ENOMEM, "gpu %s: no memory for a context", name);
    gpu->base = (struct weft_gpu){.backend = vendor->backend, .ordinal = ordinal};
    gpu->vendor = vendor;
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

void vendor_close(struct weft_gpu *base)
{
    struct vendor_gpu *gpu = vendor_of(base);
    if (vendor_enter(gpu) == 0) {
        unmake(gpu);
        vendor_leave(gpu);
    }
    detach(gpu);
    pthread_mutex_destroy(&gpu->lock);
    free(gpu);
}
