/* SPDX-License-Identifier: Apache-2.0 */
/* The table of backends for tests of rails, in place of the generated one. */
#ifndef WEFT_BACKENDS_H
#define WEFT_BACKENDS_H

#include "weft/gpu.h"
#include "weft/transport.h"

extern const struct weft_transport weft_transport_fault;
extern const struct weft_transport weft_transport_local;
extern const struct weft_transport weft_transport_rails;

static const struct weft_transport *const weft__transports[] = {
    &weft_transport_fault, &weft_transport_local, &weft_transport_rails, NULL,
};

extern const struct weft_gpu_backend weft_gpu_host;

static const struct weft_gpu_backend *const weft__gpus[] = {
    &weft_gpu_host,
    NULL,
};

#endif
