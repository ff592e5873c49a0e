/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two endpoints of this process with a conn, and memory of GPUs at both, over the double of a GPU's driver: what tests of memory
 * that a nic does not reach start from. A call that fails ends the test.
 */
#ifndef WEFT_TESTS_UNIT_TWO_H
#define WEFT_TESTS_UNIT_TWO_H

#include "contract/duo.h"

#define TWO_LEN ((size_t)3 << 20)

struct two {
    weft_endpoint_t a, b;
    weft_conn_t conn, other;   /* an end at A, and the one at B */
    struct test_mem near, far; /* TWO_LEN bytes at A and at B: GPUs, unless they are the host's */
    weft_mem_t near_mem, far_mem;
    struct weft_remote remote; /* far */
};

/* The driver's settings are these from here on (tests/fake/cuda/README.md). */
void fake_driver(const char *settings);

/* The GPUs' numbers; -1 is the host, and then A has no GPU. Registered and filled. The transport is WEFT_TEST_TRANSPORT, or tcp. */
void two_open(struct two *t, const char *settings, int near, int far);
/* The same, with WEFT_STAGE_CHUNK at A and at B; NULL: its default. */
void two_open_chunks(struct two *t, const char *settings, int near, int far, const char *near_chunk, const char *far_chunk);
void two_close(struct two *t);

weft_endpoint_t two_endpoint(const char *gpu);
/* With every access. */
weft_mem_t two_reg(weft_endpoint_t ep, void *addr, size_t len);
/* A write and a read of all of it, looked at. */
void two_work(struct two *t);
/* A write or a read of all of it, from A. */
weft_op_t two_post(struct two *t, enum weft_xfer_op kind);
/* How it ended. */
struct weft_op_status two_end(weft_op_t op);

#endif
