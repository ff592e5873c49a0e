/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A transport as a module: `local` under another name, with nics that say so, and devices of which the nearest is busy and the
 * others are many. The module's GPU backend is of another interface, and is refused.
 */
#include <stdio.h>
#include <string.h>

#include "weft/gpu.h"
#include "weft/transport.h"

#define DEVICES 9

extern const struct weft_transport weft_transport_local;

static struct weft_transport_ops twin_ops;
static struct weft_transport twin;

static int twin_probe(struct weft_device_info *list, int max)
{
    for (int i = 0; i < DEVICES && i < max; i++) {
        list[i] = (struct weft_device_info){.usable = 1, .numa = i == 0 ? 0 : -1};
        snprintf(list[i].name, sizeof list[i].name, "twin%d", i);
    }
    return DEVICES;
}

static int twin_open(const struct weft_nic_opts *opts, struct weft_nic **nic)
{
    struct weft_nic_opts own = *opts;
    own.device = "local";
    if (!strcmp(opts->device, "twin0"))
        return weft_fail(WEFT_ENODEV, "twin0 is busy");
    int rc = weft_transport_local.ops->open(&own, nic);
    if (rc == 0)
        (*nic)->transport = &twin;
    return rc;
}

WEFT_API weft_module_transport_fn weft_module_transport;
const struct weft_transport *weft_module_transport(void)
{
    twin_ops = *weft_transport_local.ops;
    twin_ops.probe = twin_probe;
    twin_ops.open = twin_open;
    twin = weft_transport_local;
    twin.name = "twin";
    twin.summary = "local, as a module";
    twin.priority = 1;
    twin.ops = &twin_ops;
    return &twin;
}

WEFT_API weft_module_gpu_fn weft_module_gpu;
const struct weft_gpu_backend *weft_module_gpu(void)
{
    static const struct weft_gpu_backend stale = {.abi = WEFT_ABI + 42, .name = "stale_gpu"};
    return &stale;
}
