/* SPDX-License-Identifier: Apache-2.0 */
/* Several nics, each driven by its own thread, at once. A thread sanitizer sees what is shared. */
#include "pair.h"

#include <pthread.h>
#include <stdatomic.h>

#define THREADS 4
#define ROUNDS 60
#define LEN 50000

/* Mixed traffic over a pair that one thread drives. */
static void traffic(struct pair *p, uint64_t seed, int rounds)
{
    struct buf near = pair_buf(p, A, LEN, 0, ACCESS_ALL), far = pair_buf(p, B, LEN, 0, ACCESS_ALL);
    struct buf back = pair_buf(p, A, LEN, 0, 0);
    for (int i = 0; i < rounds; i++) {
        uint64_t len = (uint64_t)i * 977 % LEN;
        pair_fill(p, near, seed + (uint64_t)i);
        pair_do(p, A, 0, cmd_write(near, 0, far, 0, len), 0);
        pair_do(p, B, 0, cmd_send(far, 0, 64), 0);
        pair_do(p, A, 0, cmd_read(back, 0, far, 0, len), 0);
        pair_check(p, back, 0, len, seed + (uint64_t)i);
        pair_arrival(p, A, (size_t)i);
    }
}

static void *pair_thread(void *arg)
{
    struct pair p;
    pair_open(&p, false);
    pair_link(&p, A);
    traffic(&p, (uintptr_t)arg * 1000, ROUNDS);
    pair_close(&p);
    return NULL;
}

static void *open_and_close(void *arg)
{
    (void)arg;
    for (int i = 0; i < ROUNDS / 4; i++) {
        struct pair p;
        pair_open(&p, false);
        pair_link(&p, i & 1 ? A : B);
        pair_close(&p);
    }
    return NULL;
}

static void run(void *(*const *fns)(void *), int n)
{
    pthread_t threads[THREADS];
    for (int i = 0; i < n; i++)
        assert_int_equal(
            pthread_create(&threads[i], NULL, fns[i], (void *)(uintptr_t)(i + 1)), 0);
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
}

static void each_thread_its_own_pair(void **state)
{
    (void)state;
    run((void *(*[])(void *)){pair_thread, pair_thread, pair_thread, pair_thread}, THREADS);
}

static void nics_come_and_go_beside_traffic(void **state)
{
    (void)state;
    run((void *(*[])(void *)){pair_thread, open_and_close, pair_thread, open_and_close}, THREADS);
}

/* --- the two ends of a link in two threads -------------------------------------------------- */

struct end {
    struct side *side;
    struct weft_cmd write, read;
    _Atomic(int) *running; /* ends that still have cmds or messages to come */
};

static void *drive(void *arg)
{
    struct end *e = arg;
    struct side *side = e->side;
    struct weft_cmd send = e->write;
    send.op = WEFT_OP_SEND;
    send.len = send.one.len = 64;
    const struct weft_cmd *const cmds[] = {&e->write, &send, &e->read};
    for (int i = 0; i < 3 * ROUNDS; i++)
        CHECK(side_post(side, 0, cmds[i % 3]) >= 0, "post: %s", weft_last_error());
    TEST_UNTIL(!side->pending && side->narrivals == ROUNDS, side_pump(side),
               "%zu cmds, and %zu of %d messages are here", side->pending, side->narrivals, ROUNDS);
    atomic_fetch_sub(e->running, 1);
    TEST_UNTIL(!atomic_load(e->running), side_pump(side), "the other end, which needs this one");
    return NULL;
}

static void the_two_ends_in_two_threads(void **state)
{
    struct pair *p = *state;
    struct side *sides[2] = {&p->a, &p->b};
    _Atomic(int) running = 2;
    struct end ends[2];
    pthread_t threads[2];
    struct buf from[2], to[2], back[2];
    for (int i = 0; i < 2; i++) {
        from[i] = pair_buf(p, i, LEN, 0, ACCESS_ALL);
        to[i] = pair_buf(p, i, LEN, 0, ACCESS_ALL);
        back[i] = pair_buf(p, i, LEN, 0, 0);
        pair_fill(p, from[i], 50 + (uint64_t)i);
    }
    for (int i = 0; i < 2; i++) {
        ends[i] = (struct end){sides[i], cmd_write(from[i], 0, to[!i], 0, LEN),
                               cmd_read(back[i], 0, from[!i], 0, LEN), &running};
        sides[i]->other = NULL;
    }
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, drive, &ends[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++) {
        sides[i]->other = sides[!i];
        pair_check(p, to[i], 0, LEN, 50 + (uint64_t)!i);
        pair_check(p, back[i], 0, LEN, 50 + (uint64_t)!i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_thread_its_own_pair),
        cmocka_unit_test(nics_come_and_go_beside_traffic),
        IN_ONE(the_two_ends_in_two_threads),
    };
    return PAIR_MAIN("transport_threads", tests);
}
