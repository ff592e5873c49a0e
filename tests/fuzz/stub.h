/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two transports for fuzzing what is above a transport: `stub`, and `stub2`, which reaches peers on
 * this host only, does not notice their death, and makes its own keys. They move no byte: the target looks at the cmds
 * that core has posted, and makes the comps.
 *
 * What a transport may do with memory is done: payload is read when it is posted and when it ends,
 * also when its link is closed; where a READ would put bytes, bytes are put.
 */
#ifndef WEFT_FUZZ_STUB_H
#define WEFT_FUZZ_STUB_H

#include <stdbool.h>

#include "weft/transport.h"

#define STUB_DEPTH 32
#define STUB_MAX_SEND 8192
#define STUB_MAX_IOV 8

/* What the next calls do; all zero: what they should. */
struct stub_script {
    uint32_t hide;      /* operations that opened nics lack */
    int open_fails;     /* link_open: so many calls from now, 0 never */
    int connect_later;  /* link_connect: WEFT_EAGAIN so many times */
    int connect_result; /* then this */
    int connect_spared; /* but for the first so many calls that would give it, which go well */
    int accept_at_most; /* post: cmds of one call, less one; 0: all */
    int dereg_later;    /* mem_dereg: WEFT_EAGAIN so many times */
    bool shut;          /* link_enter: 0 */
    int recall_later;   /* link_recalled: 0 so many times */
    int take_later;     /* link_take: WEFT_EAGAIN so many times */
};
extern struct stub_script stub_script;

/* An accepted cmd that has not ended. */
struct stub_cmd {
    struct stub_cmd *next;
    struct weft_link *link;
    struct weft_cmd cmd;
};

/* The n-th such cmd of all nics, oldest first, NULL past the end. */
struct stub_cmd *stub_cmd_at(int n);
/* Copy the first cap bytes of its payload; its whole length. */
uint64_t stub_payload(const struct stub_cmd *cmd, void *buf, uint64_t cap);
/* It ends with this status; a comp follows. */
void stub_end(struct stub_cmd *cmd, int status, uint64_t value);
/* The n-th open link of all nics, NULL past the end. */
struct weft_link *stub_link_at(int n);
/* A message of the peer arrives. */
void stub_receive(struct weft_link *link, const void *data, size_t len);
/* The link dies: no comp after this one. */
void stub_down(struct weft_link *link, int status);
int stub_nregs(void);

/* --- the GPU "stub", whose memory no nic reaches (stub_gpu.c) ------------------------------------ */

#define STUB_GPU_BYTES ((size_t)1 << 20)
#define STUB_PEER_BYTES 32768 /* of a peer's GPU, which can be mapped once at a time */

struct stub_gpu_script {
    bool pin_fails, start_fails, done_fails, ipc_fails, ipc_passes;
    int later; /* a copy that begins now ends when it is asked for once more than so many times */
};
extern struct stub_gpu_script stub_gpu_script;

/* The addresses of its memory, and where its bytes are. */
uint8_t *stub_gpu_memory(void);
uint8_t *stub_gpu_bytes(void);
/* Mappings of the peer's. */
int stub_gpu_mapped(void);
/* Ranges of the host that are pinned for it. */
int stub_gpu_pinned(void);

#endif
