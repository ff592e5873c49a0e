/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the two sides of weft_perf say to each other: messages of Weft on a conn of their own, so
 * that they never mix with what is measured.
 *
 * One thread of the initiator and its partner at the target:
 *
 *   initiator                       target
 *   HELLO    what is to be measured
 *                                   WELCOME   or ERROR; first thread: then an ADDRESS per thread
 *   (connects the conns that are measured; before and after it, IDLE: perf_idle.h)
 *   RUN      one size               READY     its memory is filled
 *   GO                              both start their clocks and operations
 *   END      mine are delivered     FINISHED  mine too (if the target initiates as well)
 *                                   RESULT    CPU time, and whether all bytes were right
 *   ... BYE
 */
#ifndef WEFT_TOOLS_PERF_MSG_H
#define WEFT_TOOLS_PERF_MSG_H

#include <stdint.h>

#include "weft.h"

enum perf_msg_type {
    PERF_MSG_HELLO = 1,
    PERF_MSG_WELCOME,
    PERF_MSG_ADDRESS,
    PERF_MSG_IDLE,
    PERF_MSG_RUN,
    PERF_MSG_READY,
    PERF_MSG_GO,
    PERF_MSG_END,
    PERF_MSG_FINISHED,
    PERF_MSG_RESULT,
    PERF_MSG_BYE,
    PERF_MSG_ERROR,
    PERF_MSG_TYPES
};

#define PERF_FLAG_BIDIR 1u
#define PERF_FLAG_VERIFY 2u /* HELLO: check at all. RUN: check this one. */
#define PERF_FLAG_GPU_MEM 4u
#define PERF_FLAG_PINGPONG 8u
#define PERF_FLAG_RIGHT 16u /* RESULT: every byte was right */
#define PERF_FLAG_IDLE 32u  /* HELLO: an IDLE comes before the conns that are measured */
#define PERF_FLAG_AWAY 64u  /* WELCOME: the target sleeps meanwhile */
#define PERF_FLAG_SAME 128u /* RUN: all operations have the same memory */
#define PERF_FLAG_INJECT 256u /* RUN: messages without a handle */
#define PERF_FLAG_ALL 511u

#define PERF_MSG_BLOB 512 /* metadata, one or two remotes, or text */
_Static_assert(PERF_MSG_BLOB >= WEFT_METADATA_MAX, "ADDRESS carries metadata");
#define PERF_MSG_WIRE 84 /* bytes before the blob */
#define PERF_MSG_MAX (PERF_MSG_WIRE + PERF_MSG_BLOB)

/* Fields that a type does not use are 0. */
struct perf_msg {
    uint32_t type;
    uint32_t test, flags;  /* HELLO */
    uint32_t threads;      /* HELLO */
    uint32_t conns;        /* HELLO: of each thread */
    uint32_t timeout_s;    /* HELLO: for one size. IDLE: how long */
    uint32_t iovs, slots;  /* RUN */
    uint64_t bytes, iters; /* RUN. RESULT of IDLE: resident bytes */
    uint64_t seed;         /* RUN: of the contents */
    uint64_t footprint;    /* HELLO: bytes of memory each direction needs */
    uint64_t behind;       /* HELLO: bytes of the operation that is always under way */
    uint64_t cpu_ns;       /* RESULT */
    uint32_t blob_len;
    uint8_t blob[PERF_MSG_BLOB];
};

/* Returns the length. */
size_t perf_msg_encode(const struct perf_msg *msg, uint8_t wire[PERF_MSG_MAX]);
/* Bytes of a stranger -> msg. 0, or -1 if they are no message of this version. */
int perf_msg_decode(const uint8_t *wire, size_t len, struct perf_msg *msg);
const char *perf_msg_name(uint32_t type);

/* One side's end of the control conn. A receive is always posted, so that a message never waits
 * for its receiver to look. */
struct perf_channel {
    weft_endpoint_t endpoint;
    weft_conn_t conn;
    weft_op_t recv;
    uint8_t in[PERF_MSG_MAX], out[PERF_MSG_MAX];
};

/* These return -1 after perf_fail (perf_fail.h) has been told why. */
int perf_channel_open(struct perf_channel *channel, weft_endpoint_t endpoint, weft_conn_t conn);
/* Returns when the peer has it. */
int perf_channel_send(struct perf_channel *channel, const struct perf_msg *msg);
/* 1: a message; 0: none yet. Makes no progress by itself. */
int perf_channel_poll(struct perf_channel *channel, struct perf_msg *msg);
/* Sleep until a message arrives; it must be of this type. */
int perf_channel_expect(struct perf_channel *channel, enum perf_msg_type type, int timeout_ms,
                        struct perf_msg *msg);
/* Sleep until any message arrives. */
int perf_channel_wait(struct perf_channel *channel, int timeout_ms, struct perf_msg *msg);
/* The last message. The target may be gone before it has confirmed it: that is no failure. */
void perf_channel_bye(struct perf_channel *channel);
/* Tell the peer why this side gives up, if it still listens. */
void perf_channel_error(struct perf_channel *channel, const char *text);

#endif
