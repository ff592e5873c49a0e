/* SPDX-License-Identifier: Apache-2.0 */
/* A transport whose name is one of the library's. */
#include "weft/transport.h"

extern const struct weft_transport weft_transport_local;

WEFT_API weft_module_transport_fn weft_module_transport;
const struct weft_transport *weft_module_transport(void)
{
    return &weft_transport_local;
}
