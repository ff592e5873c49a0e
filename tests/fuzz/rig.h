/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A nic of a real transport with one link, for targets that are the link's peer: memory that is
 * registered in three ways, and cmds of the nic's own that are under way meanwhile.
 *
 * Checked: a cmd ends once, nothing comes after LINK_DOWN, no byte beside the memory changes.
 */
#ifndef WEFT_FUZZ_RIG_H
#define WEFT_FUZZ_RIG_H

#include "fuzz.h"

#define RIG_CMDS 48    /* of one input */
#define RIG_MEMS 3     /* one for each of the keys below */
#define RIG_GUARD 4096 /* around memory */
#define RIG_FILL 0x33  /* what memory holds at first */
#define RIG_COMPS 32   /* most that a poll asks for */

#define RIG_KEY 11
#define RIG_READ_KEY 12
#define RIG_WORD_KEY 13
#define RIG_WORDS 16 /* under RIG_WORD_KEY, at the end of the memory */

struct rig_cmd {
    uint8_t *memory; /* NULL: has ended */
    struct weft_iov_local iov[3];
    uint8_t op;
};

struct rig {
    const struct weft_transport_ops *ops;
    struct weft_nic *nic;
    uint8_t *memory,
        *guarded; /* guarded begins a RIG_GUARD before memory, and ends one after it */
    uint32_t len;
    uint8_t *received; /* a copy of the last message */
    uint32_t max_recv;
    /* of one input */
    struct weft_link *link;
    bool down;
    struct rig_cmd cmds[RIG_CMDS];
    int ncmds;
    void *mems[RIG_MEMS];
};

/* Memory of len bytes, with guards; where they begin. */
uint8_t *rig_memory(uint32_t len);
/* As it was at first. */
void rig_fill(uint8_t *guarded, uint32_t len);
bool rig_untouched(const uint8_t *guarded, uint32_t len);

/* Once for a process. len: of the registered memory; max_recv: of a message that may come. */
void rig_open(struct rig *rig, const struct weft_transport *transport, uint32_t len,
              uint32_t max_recv);
/* A link is up: a new input begins. */
void rig_begin(struct rig *rig, struct weft_link *link);
/* The link is closed, and the memory is deregistered and checked. */
void rig_end(struct rig *rig);
/* Deregister the i-th memory; false: not yet. */
bool rig_forget(struct rig *rig, int i);

void rig_poll(struct rig *rig, int max);
/* Choose what the next cmd does; how: a byte for the rest. False: there have been enough. */
bool rig_choose(const struct rig *rig, struct fuzz_in *in, struct weft_cmd *cmd, uint8_t *how);
/* Post it with cmd->len bytes of payload, in three pieces or one; what post said. */
int rig_post(struct rig *rig, struct weft_cmd *cmd, bool pieces);

/* What a peer's cmd names: mostly registered. */
uint64_t rig_pick_key(struct fuzz_in *in);
uint64_t rig_pick_addr(const struct rig *rig, struct fuzz_in *in, uint64_t key);

#endif
