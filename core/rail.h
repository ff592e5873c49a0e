/* SPDX-License-Identifier: Apache-2.0 */
/* Rails: the devices of a transport that an endpoint uses at once. */
#ifndef WEFT_CORE_RAIL_H
#define WEFT_CORE_RAIL_H

#include <stdbool.h>

#include "weft/transport.h"

#define WEFT__MOST_LANES 8 /* nics of one device */

struct weft__endpoint;

/* Where distances are asked for: always, or only where there is something to choose. */
enum weft__measure { WEFT__MEASURE_ALL, WEFT__MEASURE_CHOICE };

/* All devices of a transport, nearest first, unusable ones last; *list is malloc'd, also when there are
 * none. Those that an endpoint would use have their `rail`. Returns how many, or a code and no list. */
int weft__devices(const struct weft_transport *transport, const char *near,
                  enum weft__measure measure, struct weft_device_info **list);

struct weft__rails_opts {
    const char *near, *fault, *bind_host;
    int later; /* transports that are still to come: a nic is left for each */
};
/*
 * Nics of each device that WEFT_LANES asks for, of a transport that moves the bytes by processor (as in struct weft_transport), and
 * beyond this host. Two for each thread where memory of GPUs is staged: the pieces wait for steps of both sides, and with a nic
 * more a thread that waits in Weft is one more that moves them, between steps (figures: bench/results/2026-11-27-gpu.md).
 */
int weft__lanes_asked(const struct weft__endpoint *ep, bool by_processor, bool beyond);
/*
 * Open nics of a transport's devices: of up to WEFT_RAILS devices as many each as WEFT_LANES asks for, and in such an order
 * that the first links of a conn go by different devices. A device that cannot be opened is left out,
 * and the next one takes its place; it is an error if all are.
 */
int weft__rails_open(struct weft__endpoint *ep, const struct weft_transport *transport,
                     const struct weft__rails_opts *opts);

#endif
