/* SPDX-License-Identifier: Apache-2.0 */
/* A transport that was built for another version of the interface. It must never be called. */
#include "weft/transport.h"

WEFT_API weft_module_transport_fn weft_module_transport;
const struct weft_transport *weft_module_transport(void)
{
    static const struct weft_transport stale = {.abi = WEFT_ABI + 41, .name = "stale"};
    return &stale;
}
