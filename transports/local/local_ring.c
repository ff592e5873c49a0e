/* SPDX-License-Identifier: Apache-2.0 */
/* The ring of local_ring.h. */
#include "local_ring.h"

#include <string.h>

#include "weft/base.h"

/* Entries start at multiples of this, so a head never crosses the end of the ring. */
#define RING_ALIGN 8
_Static_assert(sizeof(struct local_entry) == RING_ALIGN, "a pad of any size has room for a head");

static uint64_t round_up(uint64_t len)
{
    return (len + RING_ALIGN - 1) & ~(uint64_t)(RING_ALIGN - 1);
}

void local_ring_tx_init(struct local_ring_tx *tx, struct local_ring_shared *shared, void *data,
                        uint64_t size)
{
    *tx = (struct local_ring_tx){.shared = shared, .data = data, .size = size};
}

void local_ring_rx_init(struct local_ring_rx *rx, struct local_ring_shared *shared, void *data,
                        uint64_t size)
{
    *rx = (struct local_ring_rx){.shared = shared, .data = data, .size = size};
}

static bool fits(const struct local_ring_tx *tx, uint64_t need)
{
    return tx->size - (tx->tail - tx->head) >= need;
}

static void put_head(void *at, uint32_t len, uint8_t type, uint8_t op, uint16_t slot)
{
    struct local_entry *head = at;
    head->len = len;
    head->type = type;
    head->op = op;
    head->slot = slot;
}

/* Not by __builtin_prefetch: for any x86-64 gcc has it fetch the line to read, and the write then has to take it from the other core
 * all the same. All of them know prefetchw, if only as an instruction that does nothing. */
static inline void fetch_to_write(const void *line)
{
#ifdef __x86_64__
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)line));
#else
    __builtin_prefetch(line, 1);
#endif
}

/* Look at how far the consumer is. */
static void reload_head(struct local_ring_tx *tx)
{
    /* acquire: pairs with the store in local_ring_release; the consumer has read the bytes that
     * are about to be overwritten */
    uint64_t head = atomic_load_explicit(&tx->shared->head, memory_order_acquire);
    /* it moves forward and not past the tail */
    tx->broken = tx->broken || head - tx->head > tx->published - tx->head;
    tx->head = tx->broken ? tx->tail - tx->size : head;
}

void *local_ring_reserve(struct local_ring_tx *tx, uint64_t len, uint8_t type, uint8_t op, uint16_t slot)
{
    uint64_t at = tx->tail & (tx->size - 1), left = tx->size - at;
    uint64_t need = round_up(sizeof(struct local_entry) + len), pad = left < need ? left : 0;
    if (!fits(tx, need + pad)) {
        reload_head(tx);
        if (!fits(tx, need + pad))
            return NULL;
    }
    if (pad) {
        put_head(tx->data + at, (uint32_t)pad, LOCAL_PAD, 0, 0);
        at = 0;
    }
    put_head(tx->data + at, (uint32_t)(sizeof(struct local_entry) + len), type, op, slot);
    tx->tail += need + pad;
    /* the next entry's lines are in the consumer's cache: begin to fetch them */
    fetch_to_write(tx->data + (tx->tail & (tx->size - 1)));
    fetch_to_write(tx->data + ((tx->tail + LOCAL_CACHE_LINE) & (tx->size - 1)));
    return tx->data + at + sizeof(struct local_entry);
}

bool local_ring_publish(struct local_ring_tx *tx)
{
    if (tx->published == tx->tail)
        return false;
    tx->published = tx->tail;
    /* release, for the entries: pairs with the load in local_ring_peek; and sequentially
     * consistent with the load below: pairs with local_ring_sleep */
    atomic_store_explicit(&tx->shared->tail, tx->tail, memory_order_seq_cst);
    return atomic_load_explicit(&tx->shared->asleep, memory_order_seq_cst) &&
           atomic_exchange_explicit(&tx->shared->asleep, 0, memory_order_seq_cst);
}

bool local_ring_starve(struct local_ring_tx *tx)
{
    /* pairs with local_ring_release */
    atomic_store_explicit(&tx->shared->starved, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&tx->shared->head, memory_order_seq_cst) == tx->head)
        return true;
    atomic_store_explicit(&tx->shared->starved, 0, memory_order_relaxed);
    return false;
}

/* 1: there are entries up to rx->tail. */
static int reload_tail(struct local_ring_rx *rx)
{
    if (rx->frozen)
        return 0;
    /* acquire: pairs with local_ring_publish; the entries below tail are there */
    uint64_t tail = atomic_load_explicit(&rx->shared->tail, memory_order_acquire);
    if (tail == rx->head)
        return 0;
    if (tail - rx->head > rx->size || tail % RING_ALIGN)
        return WEFT_EPROTO;
    rx->tail = tail;
    return 1;
}

/* Read the head at `at` and check that the entry lies within the published bytes and the ring. */
static int read_head(const struct local_ring_rx *rx, uint64_t at, struct local_entry *head)
{
    uint64_t published = rx->tail - rx->head, left = rx->size - at;
    local_ring_read(head, rx->data + at, sizeof *head);
    uint64_t len = round_up(head->len);
    if (head->len < sizeof *head || len > published || len > left)
        return WEFT_EPROTO;
    /* a pad goes to the end; two in a row would make peek unbounded */
    if (head->type == LOCAL_PAD && (len != left || at == 0))
        return WEFT_EPROTO;
    return 1;
}

int local_ring_peek(struct local_ring_rx *rx, struct local_entry *head, const uint8_t **body)
{
    for (;;) {
        int rc = rx->head == rx->tail ? reload_tail(rx) : 1;
        if (rc <= 0)
            return rc;
        uint64_t at = rx->head & (rx->size - 1);
        rc = read_head(rx, at, head);
        if (rc < 0)
            return rc;
        *body = rx->data + at + sizeof *head;
        if (head->type != LOCAL_PAD)
            return 1;
        local_ring_advance(rx, head);
    }
}

void local_ring_advance(struct local_ring_rx *rx, const struct local_entry *head)
{
    rx->head += round_up(head->len);
}

bool local_ring_release(struct local_ring_rx *rx)
{
    if (rx->released == rx->head)
        return false;
    rx->released = rx->head;
    /* release, for the reads of the entries: pairs with reload_head; and sequentially consistent
     * with the load below: pairs with local_ring_starve */
    atomic_store_explicit(&rx->shared->head, rx->head, memory_order_seq_cst);
    return atomic_load_explicit(&rx->shared->starved, memory_order_seq_cst) &&
           atomic_exchange_explicit(&rx->shared->starved, 0, memory_order_seq_cst);
}

bool local_ring_sleep(struct local_ring_rx *rx)
{
    /* pairs with local_ring_publish */
    atomic_store_explicit(&rx->shared->asleep, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&rx->shared->tail, memory_order_seq_cst) == rx->head)
        return true;
    local_ring_awake(rx);
    return false;
}

void local_ring_awake(struct local_ring_rx *rx)
{
    /* relaxed: a producer that still sees the flag sends one wake-up too many */
    atomic_store_explicit(&rx->shared->asleep, 0, memory_order_relaxed);
}

void local_ring_freeze(struct local_ring_rx *rx, bool keep)
{
    if (!keep || reload_tail(rx) < 0)
        rx->tail = rx->head;
    rx->frozen = true;
}

void local_ring_read(void *dst, const void *src, size_t len)
{
    memcpy(dst, src, len);
    /* the compiler may not read src again in place of dst: the peer may have changed it */
    atomic_signal_fence(memory_order_acq_rel);
}
