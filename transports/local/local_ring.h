/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ring of entries in shared memory: one producer, one consumer, each in a process of its own.
 *
 * An entry is a head of 8 bytes and a body, contiguous, at a multiple of 8. Both ends count bytes
 * ever written and read (tail and head); the place of a byte is its count modulo the size. Neither
 * end trusts what the other writes: counts and heads are read once, then checked, then used. The
 * producer reserves any number of entries and publishes them at once; the consumer looks at
 * entries in place, advances over them, and gives the room back at once.
 *
 * Wake-ups. An end that is about to sleep raises its flag and then looks at the other end's count
 * once more; an end that moved its count looks at the other's flag afterwards. All four accesses
 * are sequentially consistent, so at least one of the two sees the other: no wake-up is lost.
 */
#ifndef WEFT_TRANSPORTS_LOCAL_RING_H
#define WEFT_TRANSPORTS_LOCAL_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LOCAL_CACHE_LINE 64
#define LOCAL_RING_MIN 16384
#define LOCAL_RING_MAX (1u << 30)

/* The words that both ends see, a cache line for each: they are written at different times. */
struct local_ring_shared {
    _Alignas(LOCAL_CACHE_LINE) _Atomic(uint64_t) tail;    /* producer's: bytes published */
    _Alignas(LOCAL_CACHE_LINE) _Atomic(uint64_t) head;    /* consumer's: bytes consumed */
    _Alignas(LOCAL_CACHE_LINE) _Atomic(uint32_t) asleep;  /* consumer waits for entries */
    _Alignas(LOCAL_CACHE_LINE) _Atomic(uint32_t) starved; /* producer waits for room */
};

/* Head of an entry; what type, op and slot mean is the users' business, but for type 0. */
struct local_entry {
    uint32_t len; /* of head and body, without what rounds it up to 8 */
    uint8_t type; /* LOCAL_PAD: skipped, fills the end of the ring */
    uint8_t op;
    uint16_t slot;
};
#define LOCAL_PAD 0

/* The producer's end. Its own counts are private: the peer cannot change them. */
struct local_ring_tx {
    struct local_ring_shared *shared;
    uint8_t *data;
    uint64_t size; /* power of two */
    uint64_t tail, published;
    uint64_t head; /* as last read */
    bool broken;   /* the peer's head made no sense: nothing fits any more */
};

/* The consumer's end. */
struct local_ring_rx {
    struct local_ring_shared *shared;
    uint8_t *data;
    uint64_t size;
    uint64_t head, released;
    uint64_t tail; /* as last read */
    bool frozen;   /* take what is there, look for no more */
};

/* Longest entry that is sure to fit into an empty ring, wherever it starts. */
static inline uint64_t local_ring_max_entry(uint64_t size)
{
    return size / 2;
}

void local_ring_tx_init(struct local_ring_tx *tx, struct local_ring_shared *shared, void *data,
                        uint64_t size);
void local_ring_rx_init(struct local_ring_rx *rx, struct local_ring_shared *shared, void *data,
                        uint64_t size);

/* Room for the body of an entry, of len bytes, after its head, which is filled in; NULL: not now. The body, too, had better be
 * stored member by member: what was just put together in pieces elsewhere and is read as a whole waits until they are stored. */
void *local_ring_reserve(struct local_ring_tx *tx, uint64_t len, uint8_t type, uint8_t op, uint16_t slot);
/* Hand over what was reserved. True: the consumer sleeps, wake it. */
bool local_ring_publish(struct local_ring_tx *tx);
/* Before sleeping for want of room. False: there is room by now, do not sleep. */
bool local_ring_starve(struct local_ring_tx *tx);

/* Next entry: 1 and its head (a checked copy) and body; 0: none; WEFT_EPROTO: nonsense. */
int local_ring_peek(struct local_ring_rx *rx, struct local_entry *head, const uint8_t **body);
/* Go past the entry that peek gave. */
void local_ring_advance(struct local_ring_rx *rx, const struct local_entry *head);
/* Give the room of what was advanced over back. True: the producer waits for it, wake it. */
bool local_ring_release(struct local_ring_rx *rx);
/* Before sleeping. False: there are entries, do not sleep. */
bool local_ring_sleep(struct local_ring_rx *rx);
/* After sleeping: no wake-up is needed any more. */
void local_ring_awake(struct local_ring_rx *rx);

/* Look for no more entries: take those that are there (keep), or none. */
void local_ring_freeze(struct local_ring_rx *rx, bool keep);

/* Copy from shared memory once: what is checked afterwards is what is used. */
void local_ring_read(void *dst, const void *src, size_t len);

#endif
