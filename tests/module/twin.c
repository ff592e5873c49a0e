/* SPDX-License-Identifier: Apache-2.0 */
/* A transport as a module: `local` under another name, with nics that say so. */
#include "weft/transport.h"

extern const struct weft_transport weft_transport_local;

static struct weft_transport_ops twin_ops;
static struct weft_transport twin;

static int twin_open(const struct weft_nic_opts *opts, struct weft_nic **nic)
{
    int rc = weft_transport_local.ops->open(opts, nic);
    if (rc == 0)
        (*nic)->transport = &twin;
    return rc;
}

WEFT_API weft_module_transport_fn weft_module_transport;
const struct weft_transport *weft_module_transport(void)
{
    twin_ops = *weft_transport_local.ops;
    twin_ops.open = twin_open;
    twin = weft_transport_local;
    twin.name = "twin";
    twin.summary = "local, as a module";
    twin.priority = 1;
    twin.ops = &twin_ops;
    return &twin;
}
