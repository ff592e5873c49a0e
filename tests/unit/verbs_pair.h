/* SPDX-License-Identifier: Apache-2.0 */
/* A pair of verbs nics over the fake libibverbs, linked, with memory at both ends: what unit tests
 * of the verbs transport start from. */
#ifndef WEFT_TESTS_UNIT_VERBS_PAIR_H
#define WEFT_TESTS_UNIT_VERBS_PAIR_H

#include "helpers.h"

#include "fake_ibverbs.h"
#include "pair.h"

extern const struct weft_transport weft_transport_verbs;

#define VERBS_PAIR_BYTES (4u << 20)

struct verbs_pair {
    struct pair pair;
    uint8_t *buf[2];
    struct weft_mem_handle mem[2];
};

static inline struct verbs_nic *nic_of(struct verbs_pair *vp, int side)
{
    return (struct verbs_nic *)vp->pair.side[side].nic;
}

static inline struct verbs_link *link_of(struct verbs_pair *vp, int side)
{
    return (struct verbs_link *)vp->pair.side[side].link;
}

/* A cmocka setup: the fake as new, settings of verbs at their defaults. */
int verbs_pair_reset(void **state);
/* Nothing was misused, nothing is left. */
void verbs_pair_check_fake(void);

/* Devices like this (FAKE_VERBS), one nic of the first one at each side, and a link. */
void verbs_pair_open(struct verbs_pair *vp, const char *config);
/* Close the link at one side. */
void verbs_pair_end(struct verbs_pair *vp, int side);
/* Both sides, then verbs_pair_check_fake. A link that is down is closed like any other. */
void verbs_pair_close(struct verbs_pair *vp);

/* Between the buffers, at these offsets; ctx is 1000 + the remote offset. */
struct weft_cmd verbs_pair_cmd(struct verbs_pair *vp, int side, enum weft_op op, size_t local,
                               size_t remote, size_t len);
/* Post them once: how many were accepted. */
int verbs_pair_try(struct verbs_pair *vp, int side, const struct weft_cmd *cmds, int n);
/* Post them at once, polling until all are accepted. */
void verbs_pair_post(struct verbs_pair *vp, int side, const struct weft_cmd *cmds, int n);
/* The link is up, and a write of each side arrives. */
void verbs_pair_works(struct verbs_pair *vp);
/* Wait for LINK_DOWN; it has a sentence. Returns why. */
int verbs_pair_down(struct verbs_pair *vp, int side);

#endif
