/* SPDX-License-Identifier: Apache-2.0 */
/* What a test in the same process may say to the double, and ask of it. Any thread. */
#ifndef FAKE_FABRIC_H
#define FAKE_FABRIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Settings instead of those of FAKE_FABRIC, for what is asked for and opened from now on; what is not in it is off, but
 * `minor`, which is asked for once. */
void fake_fabric_set(const char *settings);

/* From now on whatever is sent ends with EFA's "unresponsive remote"; what libfabric takes over at once is lost without a word. */
void fake_fabric_unreachable(bool on);

/* While it is on, what arrived with data is told once its endpoint has been closed, as if it had come at the last moment. */
void fake_fabric_late(bool on);

/* The len bytes at addr are a GPU's: nothing is at that address, and the bytes that nics move are those at `bytes`, which the
 * caller keeps. bytes NULL: it is not any more. Both ends of a link have to be in this process. */
void fake_fabric_gpu(void *addr, size_t len, void *bytes);

/* WRITEs and READs that went out from this device (a domain's name), so far. */
unsigned fake_fabric_carried(const char *device);

/* WRITEs and READs for which there was no room (the setting), so far. */
unsigned fake_fabric_refused(void);

/* The last registration of a GPU's memory. */
struct fake_fabric_registration {
    unsigned count; /* of all so far */
    int iface;      /* enum fi_hmem_iface */
    uint64_t device;
    int dmabuf; /* 1: by a dma-buf */
};
void fake_fabric_registered(struct fake_fabric_registration *out);

#endif
