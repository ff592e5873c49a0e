/* SPDX-License-Identifier: Apache-2.0 */
/*
 * efa: every byte that goes to the peer.
 *
 * An *address* is carried by core, once each way. Everything else is a message between the message
 * endpoints of two nics: a head, and one of the bodies below. Messages may overtake each other: each
 * kind says what then holds. All numbers are little-endian.
 */
#ifndef WEFT_EFA_WIRE_H
#define WEFT_EFA_WIRE_H

#include <stdint.h>

#include "weft/transport.h"

#define EFA_MAGIC 0x41464557u /* "WEFA" */
#define EFA_VERSION 1
#define EFA_MAX_NAME 160 /* bytes of an endpoint's address, as libfabric has it */
#define EFA_MAX_PROVIDER 32

#define EFA_ADDRESS_KEYED 1u

struct efa_address {
    uint32_t magic;
    uint8_t version;
    uint8_t flags; /* EFA_ADDRESS_* */
    uint16_t credits; /* messages that the peer may send before it hears that they were taken */
    uint32_t check; /* of all other bytes, to find damage before libfabric reads them */
    uint32_t link;  /* number of the link at its nic */
    uint64_t token; /* random; messages of the link carry it */
    uint8_t boot[16]; /* of the host */
    uint64_t pidns; /* number of the process namespace, 0: unknown */
    uint64_t started; /* when the process did, in ticks after boot */
    uint32_t pid;
    uint16_t format; /* FI_ADDR_* of name */
    uint16_t len;    /* of name */
    char provider[EFA_MAX_PROVIDER]; /* ends with 0 */
    uint8_t name[EFA_MAX_NAME]; /* of the message endpoint; 0 behind len */
};
_Static_assert(sizeof(struct efa_address) == 256, "the layout is the wire's");

/* What a message is. Those above BYE, but for QUIET, have a number, `seq`, and take a credit each. */
enum efa_kind {
    EFA_CREDIT = 1, /* says no more than its head */
    EFA_BYE,        /* the link is closed; seq: messages that had a number, in all */
    EFA_HELLO,      /* joining, both ways: struct efa_hello */
    EFA_UP,         /* joining, the passive end's last word */
    EFA_TARGET,     /* from now on the sender's memory is reached there: struct efa_target */
    EFA_MSG,        /* a SEND of the user */
    EFA_LOOKUP,     /* what is behind this key? struct efa_lookup_msg */
    EFA_ANSWER,     /* struct efa_answer_msg */
    EFA_REVOKE,     /* give it back: struct efa_revoke_msg; both ways */
    EFA_ADD,        /* ADD64, executed by the target's processor: struct efa_add_msg */
    EFA_ADDED,      /* struct efa_added_msg */
    EFA_IMM,        /* an immediate: struct efa_imm_msg */
    EFA_STAY,       /* do not sleep, your progress is wanted: struct efa_stay_msg */
    EFA_FETCH,      /* READ by messages: struct efa_fetch_msg */
    EFA_DATA,       /* struct efa_data_msg, and bytes */
    EFA_QUIET,      /* answer to a BYE: nothing of the sender is under way to the receiver's memory */
    EFA_KINDS
};

struct efa_head {
    uint32_t link;  /* number of the receiver's link */
    uint32_t seq;   /* 0, 1, ... */
    uint64_t token; /* the receiver's */
    uint32_t ack;   /* messages before this number were taken, all of them */
    uint8_t kind;
    uint8_t pad[3];
};

/* Where a nic's memory is reached. Of two the one with the higher epoch holds. */
struct efa_target {
    uint32_t epoch;
    uint16_t len;
    uint16_t pad;
    uint8_t name[EFA_MAX_NAME];
};

/* Proof of the link's key: weft_mac of both addresses, this target and the direction; zeros without a key. */
struct efa_hello {
    uint8_t mac[WEFT_MAC];
    struct efa_target target;
};

/* The id is the asker's, new with each question. */
struct efa_lookup_msg {
    uint64_t key;
    uint32_t id;
    uint32_t pad;
};

struct efa_answer_msg {
    uint32_t id;
    int32_t status; /* 0, or the rest means nothing */
    uint64_t addr, len;
    uint64_t rkey;  /* libfabric's */
    uint64_t base;  /* what libfabric counts from: 0, or addr */
    uint32_t access; /* WEFT_ACCESS_* */
    uint32_t epoch; /* of the target at which it holds, or a later one */
};

/* To who asked: end what is under way there, and ask no more; back: it has ended. May come before the
 * answer to id. */
struct efa_revoke_msg {
    uint64_t key;
    uint32_t id;
    uint32_t done; /* 0: asks; 1: answers */
};

struct efa_add_msg {
    uint64_t key, addr, value;
    uint32_t id;
    uint32_t pad;
};

struct efa_added_msg {
    uint32_t id;
    int32_t status;
    uint64_t value; /* before the addition */
};

struct efa_fetch_msg {
    uint64_t key, addr, len;
    uint32_t id;
    uint32_t pad;
};

/* Bytes from `offset` of what was asked for; of a bad status none, and none later. */
struct efa_data_msg {
    uint64_t offset;
    uint32_t id;
    int32_t status;
};

/* paired: a WRITE carries `seq`, and the immediate has arrived when both have. Else: it has. */
struct efa_imm_msg {
    uint32_t imm;
    uint16_t seq;
    uint16_t paired;
    uint64_t len; /* of the WRITE */
};

/* To a nic that nobody can wake, while something is under way to its memory for longer. */
struct efa_stay_msg {
    uint32_t stay;
    uint32_t count; /* 1, 2, ...: of two the later one holds */
};

/* What a WRITE carries for the target's completion queue: 16 bits of link number, 16 of seq, and, where 64 bits
 * arrive, the immediate below them. */
static inline uint32_t efa_tag(uint32_t link, uint16_t seq)
{
    return (link & 0xffffu) << 16 | seq;
}

#endif
