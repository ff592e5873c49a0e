/* SPDX-License-Identifier: Apache-2.0 */
/* The double's devices: a provider's only one, several times, as nics in a machine. */
#ifndef FAKE_DEVICES_H
#define FAKE_DEVICES_H

#include <rdma/fabric.h>

#pragma GCC visibility push(default)
#include "fake_fabric.h"
#pragma GCC visibility pop

#define FAKE_DEVICE_SPEED 100000000000u

/* Instead of this one n, of at most 4: rdmap3s0-rdm, rdmap4s0-rdm, rdmap131s0-rdm, rdmap132s0-rdm, at PCI buses of these numbers.
 * dup: libfabric's. Returns the others that were in its list. */
struct fi_info *fake_devices_make(struct fi_info *(*dup)(const struct fi_info *),
                                  struct fi_info *first, unsigned n);
/* A WRITE or a READ goes out from it. */
void fake_device_carries(const char *name);
/* For the real provider, which knows one. */
void fake_devices_unmake(struct fi_info *info);

#endif
