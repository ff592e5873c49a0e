/* SPDX-License-Identifier: Apache-2.0 */
/* How far devices are from a GPU, from memory, or from where a thread runs. */
#ifndef WEFT_CORE_TOPOLOGY_H
#define WEFT_CORE_TOPOLOGY_H

#include "weft/transport.h"

/* -EINVAL with a sentence if it is not what weft_endpoint_opts.near may be. */
int weft__near_check(const char *near);
/* Fill in the distances of devices. A code with a sentence: all are unknown. */
int weft__topology_measure(const char *near, struct weft_device_info *list, int n);
/* "below the same PCIe switch" */
const char *weft__distance_text(int distance);

#endif
