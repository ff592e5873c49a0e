/* SPDX-License-Identifier: Apache-2.0 */
/* The transports that are built in or loaded, by name and by policy text. */
#ifndef WEFT_CORE_REGISTRY_H
#define WEFT_CORE_REGISTRY_H

#include "weft/transport.h"

/* i-th transport (0 <= i), best first within the built-in table; NULL past the end. */
const struct weft_transport *weft__transport_at(int i);
const struct weft_transport *weft__transport_find(const char *name);
/* The transports a policy text ("auto", "tcp", "local,tcp") names, in order of preference.
 * Returns how many; WEFT_ENODEV and a sentence naming the unknown one; -EINVAL for a name that is empty. */
int weft__transport_select(const char *policy, const struct weft_transport **list, int max);
/* open, through the fault decorator when fault is not "". */
int weft__nic_open(const struct weft_transport *transport, const char *fault,
                   const struct weft_nic_opts *opts, struct weft_nic **nic);

/* The first GPU backend that this process uses; "host" if there is none. */
const struct weft_gpu_backend *weft__gpu_used(void);

#endif
