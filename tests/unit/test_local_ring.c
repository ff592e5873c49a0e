/* SPDX-License-Identifier: Apache-2.0 */
/* The shared-memory ring alone: order and bytes through many laps, and a hostile end. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "transports/local/local_ring.h"
#include "weft/base.h"

#define SIZE LOCAL_RING_MIN
#define HEAD sizeof(struct local_entry)

struct ring {
    struct local_ring_shared shared;
    _Alignas(64) uint8_t data[SIZE];
    struct local_ring_tx tx;
    struct local_ring_rx rx;
};

static int setup(void **state)
{
    struct ring *ring = NULL;
    assert_int_equal(posix_memalign((void **)&ring, 64, sizeof *ring), 0);
    memset(ring, 0, sizeof *ring);
    local_ring_tx_init(&ring->tx, &ring->shared, ring->data, SIZE);
    local_ring_rx_init(&ring->rx, &ring->shared, ring->data, SIZE);
    *state = ring;
    return 0;
}

static int teardown(void **state)
{
    free(*state);
    return 0;
}

/* An entry of this body length whose bytes all are `byte`. */
static bool put(struct ring *ring, uint32_t len, uint8_t byte)
{
    uint8_t *body = local_ring_reserve(&ring->tx, len, 3, byte, 7);
    if (!body)
        return false;
    memset(body, byte, len);
    return true;
}

static void expect(struct ring *ring, uint32_t len, uint8_t byte)
{
    struct local_entry head;
    const uint8_t *body;
    assert_int_equal(local_ring_peek(&ring->rx, &head, &body), 1);
    assert_int_equal(head.len, HEAD + len);
    assert_int_equal(head.type, 3);
    assert_int_equal(head.op, byte);
    assert_int_equal(head.slot, 7);
    for (uint32_t i = 0; i < len; i++)
        assert_int_equal(body[i], byte);
    local_ring_advance(&ring->rx, &head);
}

static int peek(struct ring *ring)
{
    struct local_entry head;
    const uint8_t *body;
    return local_ring_peek(&ring->rx, &head, &body);
}

static void nothing_before_publish(void **state)
{
    struct ring *ring = *state;
    assert_int_equal(peek(ring), 0);
    assert_true(put(ring, 5, 1));
    assert_int_equal(peek(ring), 0);
    local_ring_publish(&ring->tx);
    expect(ring, 5, 1);
    assert_int_equal(peek(ring), 0);
}

/* All lengths, so that the end of the ring is met at every place. */
static void many_laps_of_odd_sizes(void **state)
{
    struct ring *ring = *state;
    uint32_t len = 0;
    for (int i = 0; i < 20000; i++) {
        len = (len + 1237) % (uint32_t)(local_ring_max_entry(SIZE) - HEAD + 1);
        assert_true(put(ring, len, (uint8_t)i));
        local_ring_publish(&ring->tx);
        expect(ring, len, (uint8_t)i);
        local_ring_release(&ring->rx);
    }
}

static void longest_entry_fits_anywhere(void **state)
{
    struct ring *ring = *state;
    uint32_t most = (uint32_t)(local_ring_max_entry(SIZE) - HEAD);
    for (uint32_t start = 0; start < SIZE; start += 8 * 37) {
        assert_true(put(ring, start % 4096, 9));
        local_ring_publish(&ring->tx);
        expect(ring, start % 4096, 9);
        local_ring_release(&ring->rx);
        assert_true(put(ring, most, 1));
        local_ring_publish(&ring->tx);
        expect(ring, most, 1);
        local_ring_release(&ring->rx);
    }
}

static void full_and_released(void **state)
{
    struct ring *ring = *state;
    int n = 0;
    while (put(ring, 100, (uint8_t)n))
        n++;
    assert_int_equal(n, SIZE / 112); /* 108 rounded up to 8 */
    local_ring_publish(&ring->tx);
    assert_false(put(ring, 100, 0));
    expect(ring, 100, 0);
    assert_false(put(ring, 100, 0));
    local_ring_release(&ring->rx);
    for (int i = 1; i < n; i++)
        expect(ring, 100, (uint8_t)i);
    local_ring_release(&ring->rx);
    assert_true(put(ring, 100, 5));
    assert_false(ring->tx.broken);
}

static void flags_wake_once(void **state)
{
    struct ring *ring = *state;
    assert_true(local_ring_sleep(&ring->rx));
    put(ring, 8, 1);
    assert_true(local_ring_publish(&ring->tx));
    assert_false(local_ring_publish(&ring->tx));
    put(ring, 8, 2);
    assert_false(local_ring_publish(&ring->tx));
    assert_false(local_ring_sleep(&ring->rx));
    expect(ring, 8, 1);
    expect(ring, 8, 2);
    assert_false(local_ring_release(&ring->rx));
    while (put(ring, 1000, 3))
        ;
    local_ring_publish(&ring->tx);
    assert_true(local_ring_starve(&ring->tx));
    expect(ring, 1000, 3);
    assert_true(local_ring_release(&ring->rx));
    assert_false(local_ring_release(&ring->rx));
    assert_false(local_ring_starve(&ring->tx));
}

static void frozen(void **state)
{
    struct ring *ring = *state;
    put(ring, 8, 1);
    put(ring, 8, 2);
    local_ring_publish(&ring->tx);
    expect(ring, 8, 1);
    local_ring_freeze(&ring->rx, true);
    put(ring, 8, 3);
    local_ring_publish(&ring->tx);
    expect(ring, 8, 2);
    assert_int_equal(peek(ring), 0);
    ring->rx.frozen = false;
    local_ring_freeze(&ring->rx, false);
    assert_int_equal(peek(ring), 0);
}

/* --- a hostile peer ------------------------------------------------------------------------- */

static void wrong_tails(void **state)
{
    static const uint64_t tails[] = {1, 7, SIZE + 8, UINT64_MAX - 7, UINT64_MAX, 1ull << 63};
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        struct ring *ring = *state;
        atomic_store(&ring->shared.tail, tails[i]);
        assert_int_equal(peek(ring), WEFT_EPROTO);
        assert_int_equal(ring->rx.head, 0);
    }
}

static void wrong_heads(void **state)
{
    static const uint64_t heads[] = {8, SIZE * 4, UINT64_MAX, 1ull << 63, 1};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        struct ring *ring = *state;
        local_ring_tx_init(&ring->tx, &ring->shared, ring->data, SIZE);
        atomic_store(&ring->shared.head, heads[i]);
        while (put(ring, 1000, 1))
            ;
        assert_true(ring->tx.broken);
        assert_true(ring->tx.tail <= SIZE);
        assert_false(put(ring, 0, 1));
    }
}

static void wrong_entries(void **state)
{
    struct ring *ring = *state;
    static const struct local_entry wrong[] = {
        {.len = 0, .type = 1},
        {.len = 7, .type = 1},
        {.len = 65, .type = 1},
        {.len = UINT32_MAX, .type = 1},
        {.len = UINT32_MAX - 7, .type = 1},
        {.len = 16, .type = LOCAL_PAD},
        {.len = SIZE, .type = LOCAL_PAD},
        {.len = 0, .type = LOCAL_PAD},
    };
    atomic_store(&ring->shared.tail, 64);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        memcpy(ring->data, &wrong[i], sizeof wrong[i]);
        assert_int_equal(peek(ring), WEFT_EPROTO);
    }
    /* a pad where the producer needs none: it could go on for ever */
    atomic_store(&ring->shared.tail, SIZE);
    ring->rx.tail = 0;
    memcpy(ring->data, &(struct local_entry){.len = SIZE}, HEAD);
    assert_int_equal(peek(ring), WEFT_EPROTO);
    /* a head that is right but goes past the end of the ring */
    ring->rx.head = ring->rx.tail = SIZE - 16;
    atomic_store(&ring->shared.tail, SIZE + 64);
    memcpy(ring->data + SIZE - 16, &(struct local_entry){.len = 24, .type = 1}, HEAD);
    assert_int_equal(peek(ring), WEFT_EPROTO);
    /* nothing but pads comes to an end */
    memcpy(ring->data + SIZE - 16, &(struct local_entry){.len = 16}, HEAD);
    memcpy(ring->data, &(struct local_entry){.len = SIZE}, HEAD);
    atomic_store(&ring->shared.tail, SIZE - 16 + SIZE);
    assert_int_equal(peek(ring), WEFT_EPROTO);
}

/* Whatever bytes there are: peek stays inside, and ends. */
static void random_bytes(void **state)
{
    struct ring *ring = *state;
    uint32_t x = 12345;
    for (int round = 0; round < 2000; round++) {
        for (uint32_t i = 0; i < SIZE; i += 8) {
            x = x * 1664525 + 1013904223;
            struct local_entry head = {.len = x >> 16 & (x & 1 ? 0xff : 0xffff),
                                       .type = (uint8_t)(x >> 8 & 3)};
            memcpy(ring->data + i, &head, sizeof head);
        }
        atomic_store(&ring->shared.tail, ring->rx.head + (x >> 20) * 8 % SIZE);
        struct local_entry head;
        const uint8_t *body;
        for (int i = 0; i < 10000 && local_ring_peek(&ring->rx, &head, &body) == 1; i++) {
            assert_true(body >= ring->data + HEAD && body + head.len - HEAD <= ring->data + SIZE);
            local_ring_advance(&ring->rx, &head);
        }
        local_ring_rx_init(&ring->rx, &ring->shared, ring->data, SIZE);
        ring->rx.head = ring->rx.tail = (uint64_t)round * 8;
    }
}

/* --- two threads ---------------------------------------------------------------------------- */

#define ENTRIES 200000

static void *produce(void *arg)
{
    struct ring *ring = arg;
    for (int i = 0; i < ENTRIES;) {
        if (put(ring, (uint32_t)i % 300, (uint8_t)i))
            i++;
        local_ring_publish(&ring->tx);
    }
    return NULL;
}

static void two_threads(void **state)
{
    struct ring *ring = *state;
    pthread_t thread;
    pthread_create(&thread, NULL, produce, ring);
    for (int i = 0; i < ENTRIES; i++) {
        int rc;
        while ((rc = peek(ring)) == 0)
            local_ring_release(&ring->rx);
        expect(ring, (uint32_t)i % 300, (uint8_t)i);
    }
    pthread_join(thread, NULL);
}

#define ALONE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ALONE(nothing_before_publish),
        ALONE(many_laps_of_odd_sizes),
        ALONE(longest_entry_fits_anywhere),
        ALONE(full_and_released),
        ALONE(flags_wake_once),
        ALONE(frozen),
        ALONE(wrong_tails),
        ALONE(wrong_heads),
        ALONE(wrong_entries),
        ALONE(random_bytes),
        ALONE(two_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
