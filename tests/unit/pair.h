/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two nics of one transport in this process, and a link between them: what unit tests of
 * transports start from. Each side keeps the comps it was given until the test asks for them.
 */
#ifndef WEFT_TESTS_UNIT_PAIR_H
#define WEFT_TESTS_UNIT_PAIR_H

#include <stdbool.h>
#include <stdint.h>

#include "weft/transport.h"

/* Everything is loud: a call that fails ends the test with weft_last_error. */
#define PAIR_OK(call) pair_ok((call), #call, __FILE__, __LINE__)

#define PAIR_A 0 /* active end */
#define PAIR_B 1 /* passive end */
#define PAIR_COMPS 4096
#define PAIR_WAIT_MS 10000

struct pair_comp {
    struct weft_comp comp;
    uint8_t *data; /* copy of what a RECV brought: whoever takes the comp frees it */
};

struct pair_side {
    struct weft_nic *nic;
    struct weft_link *link;
    struct pair_comp comps[PAIR_COMPS];
    int ncomps;
};

struct pair {
    const struct weft_transport_ops *ops;
    struct pair_side side[2];
};

int pair_ok(int rc, const char *call, const char *file, int line);

/* Open both nics of this transport's device; then connect them. */
void pair_open(struct pair *pair, const struct weft_transport *transport, const char *device);
/* The same with nics that the test has opened. */
void pair_adopt(struct pair *pair, struct weft_nic *a, struct weft_nic *b);
void pair_connect(struct pair *pair);
void pair_close(struct pair *pair);

/* Poll one side once and keep what came. Returns how many comps. */
int pair_poll(struct pair *pair, int side);
/* Poll both until the side has a comp with this op and ctx: take it. Fails the test in time. */
struct pair_comp pair_wait(struct pair *pair, int side, enum weft_op op, uint64_t ctx);
/* Take such a comp if it is there. */
bool pair_take(struct pair *pair, int side, enum weft_op op, uint64_t ctx, struct pair_comp *out);
/* Post one cmd, polling until it is accepted. */
void pair_post(struct pair *pair, int side, const struct weft_cmd *cmd);
/* Post, wait, and return the status. */
int pair_do(struct pair *pair, int side, const struct weft_cmd *cmd);
/* Register memory at a side, under a key. */
struct weft_mem_handle pair_reg(struct pair *pair, int side, void *addr, uint64_t len,
                                uint32_t access, uint64_t key);

#define PAIR_ALL (WEFT_ACCESS_READ | WEFT_ACCESS_WRITE | WEFT_ACCESS_ATOMIC)

/* Bytes that depend on their place and a seed. */
void pair_fill(void *buf, uint64_t len, uint32_t seed);
bool pair_filled(const void *buf, uint64_t len, uint32_t seed);

#endif
