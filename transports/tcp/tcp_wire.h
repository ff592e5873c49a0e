/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tcp puts on the wire. All numbers are little-endian.
 *
 * Address of a link (carried by core), TCP_ADDRESS_SIZE bytes: magic u32, version u8, role u8 (0
 * active, 1 passive), sockets u8, family u8 (4 or 6), port u16, 6 bytes of zero, host 16 bytes (v4:
 * the first 4), token 16 bytes. The active end listens nowhere: from `sockets` on, zero.
 *
 * Socket, first bytes, active to passive: struct tcp_hello; the answer has the same layout. Both end
 * with a proof: zeros, or, where the link has a key, the weft_mac code of the role of who speaks (u8)
 * and the bytes before the proof.
 *
 * Then frames: a head of 16 bytes, as many words of 64 bits as the type has, `len` bytes of
 * payload:
 *
 *      0 type u8 | 1 ack_sock u8 | 2 lent u8 | 3 zero u8 | 4 ack u32 | 8 len u32 | 12 id u32 | 16 words
 *
 * lent: 1 if the payload may be on its way out of the sender's own pages (of WRITE*, PART* and DATA), else 0.
 *
 * Each frame that does something at the target without an answer of its own (SEND, WRITE*, PART*)
 * is counted on its socket, and so is each DATA that is lent, at the initiator. `ack` says how many of those that came on
 * socket `ack_sock` have been executed; acks are valid in frames of socket 0 only, where NACKs, which precede the ack that
 * covers them, travel too.
 *
 *      type        id        words                    payload
 *      SEND        patient                            the message; on socket 0 only. 1: it is a step of
 *                                                     something long, and nobody hurries for it
 *      WRITE       0         key addr                 all of a WRITE
 *      WRITE_IMM   imm       key addr                 all of a WRITE_IMM
 *      PART        0         key addr total offset    a chunk; addr and total are the whole range
 *      PART_IMM    imm       key addr total offset    last chunk of a WRITE_IMM, whose chunks all
 *                                                     use one socket
 *      READ        call      key addr len
 *      DATA        call      offset                   a chunk of a READ's answer
 *      END         call      sent code                a READ fails after `sent` bytes of DATA
 *      ADD         call      key addr value
 *      ADDED       call      value code
 *      ACK         0
 *      NACK        nth       sock code                frame `nth` of socket `sock` was refused
 *
 * A call is a number the initiator chose, below the depth; it may be used again after the answer.
 * Codes are 0 (ADDED only), 1 unknown key, 2 bounds, 3 access.
 */
#ifndef WEFT_TCP_WIRE_H
#define WEFT_TCP_WIRE_H

#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "weft/base.h"

#define TCP_MAGIC 0x74666577u /* "weft" */
#define TCP_VERSION 4
#define TCP_TOKEN 16

enum tcp_type {
    TCP_SEND = 1,
    TCP_WRITE,
    TCP_WRITE_IMM,
    TCP_PART,
    TCP_PART_IMM,
    TCP_READ,
    TCP_DATA,
    TCP_END,
    TCP_ADD,
    TCP_ADDED,
    TCP_ACK,
    TCP_NACK,
    TCP_TYPES
};

#define TCP_HEAD 16
#define TCP_WORDS 4 /* most words of a frame */
#define TCP_FRAME_MAX (TCP_HEAD + 8 * TCP_WORDS)

struct tcp_frame {
    uint8_t type;
    uint8_t ack_sock;
    bool lent;
    uint32_t ack;
    uint32_t len;
    uint32_t id;
    uint64_t word[TCP_WORDS];
};

enum tcp_code { TCP_OK, TCP_CODE_KEY, TCP_CODE_BOUNDS, TCP_CODE_ACCESS, TCP_CODES };

struct tcp_hello {
    uint8_t token[TCP_TOKEN];
    uint8_t version;
    uint8_t index;   /* of this socket in the link */
    uint8_t sockets; /* of the link */
    uint16_t depth;  /* most READ and ADD without an answer, and most unacknowledged frames of a
                        socket, that the sender of this will have; the smaller one holds */
};
#define TCP_HELLO_PROVEN 32 /* bytes of a hello before its proof */
#define TCP_PROOF 32
#define TCP_HELLO_SIZE (TCP_HELLO_PROVEN + TCP_PROOF)
#define TCP_ADDRESS_SIZE 48

static inline void tcp_put16(uint8_t *p, uint16_t v)
{
    v = htole16(v);
    memcpy(p, &v, sizeof v);
}

static inline void tcp_put32(uint8_t *p, uint32_t v)
{
    v = htole32(v);
    memcpy(p, &v, sizeof v);
}

static inline void tcp_put64(uint8_t *p, uint64_t v)
{
    v = htole64(v);
    memcpy(p, &v, sizeof v);
}

static inline uint16_t tcp_get16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return le16toh(v);
}

static inline uint32_t tcp_get32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return le32toh(v);
}

static inline uint64_t tcp_get64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return le64toh(v);
}

/* Words of a frame of this type, -1 if there is no such type. */
static inline int tcp_frame_words(uint8_t type)
{
    static const int8_t words[TCP_TYPES] = {
        [0] = -1,           [TCP_SEND] = 0, [TCP_WRITE] = 2, [TCP_WRITE_IMM] = 2, [TCP_PART] = 4,
        [TCP_PART_IMM] = 4, [TCP_READ] = 3, [TCP_DATA] = 1,  [TCP_END] = 2,       [TCP_ADD] = 3,
        [TCP_ADDED] = 2,    [TCP_ACK] = 0,  [TCP_NACK] = 2,
    };
    if (WEFT_UNLIKELY(type >= TCP_TYPES))
        return -1;
    return words[type];
}

/* Whether the payload of such a frame may be lent. */
static inline bool tcp_frame_lends(uint8_t type)
{
    return (type >= TCP_WRITE && type <= TCP_PART_IMM) || type == TCP_DATA;
}

/* Returns the bytes written to buf, at most TCP_FRAME_MAX. */
static inline uint32_t tcp_frame_encode(uint8_t *buf, const struct tcp_frame *frame)
{
    int words = tcp_frame_words(frame->type);
    buf[0] = frame->type;
    buf[1] = frame->ack_sock;
    tcp_put16(buf + 2, frame->lent);
    tcp_put32(buf + 4, frame->ack);
    tcp_put32(buf + 8, frame->len);
    tcp_put32(buf + 12, frame->id);
    for (int i = 0; i < words; i++)
        tcp_put64(buf + TCP_HEAD + 8 * i, frame->word[i]);
    return TCP_HEAD + 8 * (uint32_t)words;
}

/* Returns the bytes that head and words take; 0: not all of them are there; -1: not a frame. */
static inline int tcp_frame_decode(const uint8_t *buf, uint32_t avail, struct tcp_frame *frame)
{
    if (avail == 0)
        return 0;
    int words = tcp_frame_words(buf[0]);
    if (WEFT_UNLIKELY(words < 0))
        return -1;
    int size = TCP_HEAD + 8 * words;
    if (WEFT_UNLIKELY(avail < (uint32_t)size))
        return 0;
    uint16_t lent = tcp_get16(buf + 2);
    if (WEFT_UNLIKELY(lent > 0) && lent > tcp_frame_lends(buf[0]))
        return -1;
    frame->type = buf[0];
    frame->ack_sock = buf[1];
    frame->lent = lent;
    frame->ack = tcp_get32(buf + 4);
    frame->len = tcp_get32(buf + 8);
    frame->id = tcp_get32(buf + 12);
    /* mostly there is more behind it, and a loop of known length costs less */
    int known = words > 0 && avail >= TCP_FRAME_MAX ? TCP_WORDS : words;
    for (int i = 0; i < known; i++)
        frame->word[i] = tcp_get64(buf + TCP_HEAD + 8 * i);
    return size;
}

static inline void tcp_hello_encode(uint8_t *buf, const struct tcp_hello *hello)
{
    memset(buf, 0, TCP_HELLO_SIZE);
    tcp_put32(buf, TCP_MAGIC);
    buf[4] = hello->version;
    buf[5] = hello->index;
    buf[6] = hello->sockets;
    tcp_put16(buf + 8, hello->depth);
    memcpy(buf + 16, hello->token, TCP_TOKEN);
}

/* False: not a hello of this version. */
static inline int tcp_hello_decode(const uint8_t *buf, struct tcp_hello *hello)
{
    if (tcp_get32(buf) != TCP_MAGIC || buf[4] != TCP_VERSION)
        return 0;
    hello->version = buf[4];
    hello->index = buf[5];
    hello->sockets = buf[6];
    hello->depth = tcp_get16(buf + 8);
    memcpy(hello->token, buf + 16, TCP_TOKEN);
    return 1;
}

#endif
