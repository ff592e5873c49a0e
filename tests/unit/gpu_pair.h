/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two endpoints of this process with a conn, and memory of GPUs at both, over the double of a GPU's driver: what tests of memory
 * that a nic does not reach start from. A call that fails ends the test.
 */
#ifndef WEFT_TESTS_UNIT_GPU_PAIR_H
#define WEFT_TESTS_UNIT_GPU_PAIR_H

#include "contract/duo.h"

#define GPU_PAIR_LEN ((size_t)3 << 20)

struct gpu_pair {
    weft_endpoint_t a, b;
    weft_conn_t conn, other;   /* an end at A, and the one at B */
    struct test_mem near, far; /* GPU_PAIR_LEN bytes at A and at B: GPUs, unless they are the host's */
    weft_mem_t near_mem, far_mem;
    struct weft_remote remote; /* far */
};

/* The driver's settings are these from here on (tests/fake/cuda/README.md). */
void fake_driver(const char *settings);

/* The GPUs' numbers; -1 is the host, and then A has no GPU. Registered and filled. The transport is WEFT_TEST_TRANSPORT, or tcp. */
void gpu_pair_open(struct gpu_pair *t, const char *settings, int near, int far);
/* The same, with WEFT_STAGE_CHUNK at A and at B; NULL: its default. */
void gpu_pair_open_chunks(struct gpu_pair *t, const char *settings, int near, int far, const char *near_chunk, const char *far_chunk);
void gpu_pair_close(struct gpu_pair *t);

weft_endpoint_t gpu_pair_endpoint(const char *gpu);
/* With every access. */
weft_mem_t gpu_pair_reg(weft_endpoint_t ep, void *addr, size_t len);
/* A write and a read of all of it, looked at. */
void gpu_pair_work(struct gpu_pair *t);
/* A write or a read of all of it, from A. */
weft_op_t gpu_pair_post(struct gpu_pair *t, enum weft_xfer_op kind);
/* How it ended. */
struct weft_op_status gpu_pair_end(weft_op_t op);

#endif
