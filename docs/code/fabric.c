/* SPDX-License-Identifier: Apache-2.0 */
/* The code of docs/fabric.md: what this build and this machine offer. */
#include <stdio.h>

#include "weft.h"

int main(void)
{
    int usable = 0;
    /* quote start */
    struct weft_transport_info transport;
    struct weft_device_info device;
    for (int i = 0; weft_transport_info(i, &transport) == 0; i++) {
        printf("%s: %s\n", transport.name, transport.usable ? "usable" : transport.reason);
        for (int j = 0; weft_device_info(transport.name, j, &device) == 0; j++)
            printf("  %s: %s\n", device.name, device.usable ? device.summary : device.reason);
        usable += transport.usable;
    }
    /* end */

    /* quote attr */
    struct weft_nic_attr attr;
    if (weft_device_attr("tcp", NULL, &attr) < 0)
        printf("tcp: %s\n", weft_last_error());
    else if (attr.ops & WEFT_OP_BIT(WEFT_OP_ADD64))
        printf("tcp adds by itself; %u commands in flight\n", attr.tx_depth);
    /* end */
    struct weft_gpu_info gpu;
    for (int i = 0; weft_gpu_info(i, &gpu) == 0; i++)
        printf("%s: %s\n", gpu.name, gpu.usable ? "usable" : gpu.reason);
    return usable == 0;
}
