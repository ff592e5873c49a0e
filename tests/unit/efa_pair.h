/* SPDX-License-Identifier: Apache-2.0 */
/* A pair of efa nics over the double of libfabric, linked, with memory at both ends: what unit tests of the efa transport
 * start from. */
#ifndef WEFT_TESTS_UNIT_EFA_PAIR_H
#define WEFT_TESTS_UNIT_EFA_PAIR_H

#include "../helpers.h"

#include "fake_fabric.h"
#include "pair.h"

#define EFA_PAIR_BYTES 262144u
#define LIKE_EFA "narrow=1,local=1,provkey=1" /* settings of the double */

struct efa_pair {
    struct pair pair;
    uint8_t *buf[2];
    struct weft_mem_handle mem[2];
};

static inline struct efa_nic *efa_pair_nic(const struct efa_pair *ep, int side)
{
    return (struct efa_nic *)ep->pair.side[side].nic;
}

/* With these settings of the double (fake_fabric_set), and memory of this backend's GPUs; NULL: of none. */
void efa_pair_open(struct efa_pair *ep, const char *settings, const char *gpu);
/* A link that is down is closed like any other. */
void efa_pair_close(struct efa_pair *ep);
/* Until it is done. */
void efa_pair_dereg(struct efa_pair *ep, int side, struct weft_mem_handle mem);
/* Other memory at PAIR_B, 4096 bytes at `more`, which PAIR_A has written to and so knows; cmd: that WRITE, of 64 bytes. */
struct weft_mem_handle efa_pair_more(struct efa_pair *ep, uint8_t *more, struct weft_cmd *cmd);
/* Of the first len bytes of both buffers, from PAIR_A; ctx is 1, an immediate 77. */
struct weft_cmd efa_pair_cmd(const struct efa_pair *ep, enum weft_op op, uint64_t len);

#endif
