/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of backends for fuzz targets, in place of the generated one: with the two stub
 * transports and the stub GPU, which come last and are used only where they are named.
 */
#ifndef WEFT_BACKENDS_H
#define WEFT_BACKENDS_H

#include "weft/gpu.h"
#include "weft/transport.h"

extern const struct weft_transport weft_transport_fault;
extern const struct weft_transport weft_transport_local;
extern const struct weft_transport weft_transport_tcp;
extern const struct weft_transport weft_transport_stub;
extern const struct weft_transport weft_transport_stub2;

static const struct weft_transport *const weft__transports[] = {
    &weft_transport_fault, &weft_transport_local, &weft_transport_tcp,
    &weft_transport_stub,  &weft_transport_stub2, NULL,
};

extern const struct weft_gpu_backend weft_gpu_host;
extern const struct weft_gpu_backend weft_gpu_stub;

static const struct weft_gpu_backend *const weft__gpus[] = {
    &weft_gpu_host,
    &weft_gpu_stub,
    NULL,
};

#endif
