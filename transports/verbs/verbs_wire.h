/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verbs: every byte that goes to the peer.
 *
 * An *address* is carried by core, once each way. Everything else is a message of the control queue
 * pair: a SEND whose immediate says what it is and gives credits back, with one of the bodies below.
 * All numbers are little-endian; the immediate is in network order, as verbs wants it.
 */
#ifndef WEFT_VERBS_WIRE_H
#define WEFT_VERBS_WIRE_H

#include <stdint.h>

#include "weft/transport.h"

#define VERBS_MAGIC 0x42525657u /* "WVRB" */
#define VERBS_VERSION 2
#define VERBS_NONCE 16
#define VERBS_MAX_DATA 8 /* data queue pairs of a link */

#define VERBS_ADDRESS_KEYED 1u

struct verbs_address {
    uint32_t magic;
    uint8_t version;
    uint8_t flags;      /* VERBS_ADDRESS_* */
    uint8_t link_layer; /* of enum below */
    uint8_t mtu;        /* enum ibv_mtu */
    uint16_t lid;
    uint8_t ndata;
    uint8_t reads;    /* READs and ADD64s of the peer it executes at once, a queue pair */
    uint16_t credits; /* messages that the peer may send before it hears more */
    uint16_t imms;    /* immediates, of each data queue pair */
    uint8_t gid[16];
    uint8_t nonce[VERBS_NONCE];
    uint32_t qpn[1 + VERBS_MAX_DATA]; /* control, then data; unused ones are 0 */
    uint32_t psn[1 + VERBS_MAX_DATA];
};
_Static_assert(sizeof(struct verbs_address) == 120, "the layout is the wire's");

enum verbs_layer { VERBS_INFINIBAND = 1, VERBS_ETHERNET = 2 };

/* What the question of a fault is about: what a device said was the cause, or had no answer; or the first request, of which
 * no device said so, which went with the key that the user has, or with one of a table. */
enum verbs_guess { VERBS_NO_GUESS, VERBS_GUESS, VERBS_GUESS_TABLED, VERBS_GUESSES };

/* What a message of the control queue pair is. Those above CREDIT take a credit each. */
enum verbs_kind {
    VERBS_BYE = 1, /* nothing follows: the link is closed */
    VERBS_CREDIT,  /* says no more than its immediate */
    VERBS_MSG,     /* a SEND of the user */
    VERBS_HELLO,   /* joining, both ways: struct verbs_hello */
    VERBS_UP,      /* joining, the passive end's last word */
    VERBS_FAULT,   /* a data queue pair failed: struct verbs_fault_msg */
    VERBS_READY,   /* it is as new: struct verbs_ready_msg */
    VERBS_CHECK,   /* may I? struct verbs_check_msg */
    VERBS_CHECKED, /* struct verbs_checked_msg */
    VERBS_KEYS,    /* before a READY: struct verbs_keys_msg */
    VERBS_KINDS
};

/* Immediate of a message: kind in bits 28..31, messages taken in 16..27, immediates in 0..15. */
#define VERBS_IMM_TAKEN_MAX 0xfffu
#define VERBS_IMM_IMMS_MAX 0xffffu

static inline uint32_t verbs_imm(enum verbs_kind kind, uint32_t taken, uint32_t imms)
{
    return (uint32_t)kind << 28 | taken << 16 | imms;
}

/* Proof of the link's key: weft_mac of both nonces and the direction; zeros without a key. */
struct verbs_hello {
    uint8_t mac[WEFT_MAC];
};

/* One-sided access that the target is asked to judge. */
struct verbs_question {
    uint64_t addr, len;
    uint32_t rkey;
    uint8_t op; /* enum weft_op; 0xff: none */
    uint8_t pad[3];
};
#define VERBS_NO_QUESTION 0xffu

struct verbs_fault_msg {
    uint8_t qp;    /* index of the data queue pair */
    uint8_t epoch; /* its next life's number */
    uint8_t guess; /* enum verbs_guess */
    uint8_t pad;
    uint32_t psn;  /* with which the sender of this will begin */
    uint32_t imms; /* immediates of the peer that have arrived through it, ever */
    uint32_t pad2;
    struct verbs_question question;
};

struct verbs_ready_msg {
    uint8_t qp, epoch;
    uint16_t pad;
    /* on the question: 0 or a WEFT_E code; WEFT_EAGAIN: it is in order, and this link has been told the keys
     * that it takes */
    int32_t verdict;
};

#define VERBS_KEYS_AT_ONCE 10
#define VERBS_MAX_PARTS 16384 /* of one memory */
#define VERBS_LEAST_PART 12   /* log2: no part that has another behind it is shorter than this */

/* Memory whose parts, but for the last, end at multiples of 2^shift. As many messages as it takes, one after the
 * other; keys beyond the last part are 0. */
struct verbs_keys_msg {
    uint64_t addr, len;
    uint32_t key;   /* of the first part, which the question had */
    uint16_t index; /* of the part that the first key here is of */
    uint8_t shift;
    uint8_t pad;
    uint32_t keys[VERBS_KEYS_AT_ONCE];
};
_Static_assert(sizeof(struct verbs_keys_msg) == 64, "it has to fit into a note");

struct verbs_check_msg {
    uint32_t id;
    uint32_t pad;
    struct verbs_question question;
};

struct verbs_checked_msg {
    uint32_t id;
    int32_t verdict;
};

#endif
