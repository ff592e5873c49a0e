/* SPDX-License-Identifier: Apache-2.0 */
/* The double's GPUs: addresses at which nothing is, and bytes that are somewhere else. Any thread. */
#ifndef FAKE_GPU_H
#define FAKE_GPU_H

#include <rdma/fi_domain.h>
#include <stdbool.h>
#include <stdint.h>

#pragma GCC visibility push(default)
#include "fake_fabric.h"
#pragma GCC visibility pop

/* Where the bytes of this address are; NULL: it is no GPU's. */
void *fake_gpu_bytes(void *addr);
/* A registration of a GPU's memory: NULL and where its bytes are, or what is wrong with it. */
const char *fake_gpu_registers(const struct fi_mr_attr *attr, uint64_t flags, void **bytes,
                               size_t *len);

#endif
