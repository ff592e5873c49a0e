/* SPDX-License-Identifier: Apache-2.0 */
/* weft_add: indivisible, whoever adds, by the nic or emulated; what is refused is not added. */
#include "duo.h"

#include <pthread.h>

#define T TEST_DEADLINE_MS

static void the_old_word_comes_back(void **state)
{
    struct duo *d = *state;
    struct area far = duo_area(d, B, 64, 0, 0);
    const uint64_t values[] = {0, 1, 1ull << 32, UINT64_MAX, 1ull << 63, 7};
    uint64_t want = 0x0102030405060708, old;
    duo_set_word(d, far, 16, want);
    for (size_t i = 0; i < ARRAY_LEN(values); i++) {
        assert_int_equal(weft_add(d->conn, &far.remote, 16, values[i], &old, T), 0);
        assert_true(old == want);
        want += values[i];
        assert_true(duo_word(d, far, 16) == want);
        assert_int_equal(weft_add(d->conn, &far.remote, 16, 0, NULL, T), 0);
    }
    duo_check_zero(d, far, 0, 16);
    duo_check_zero(d, far, 24, 40);
}

static void bad_places_are_refused(void **state)
{
    struct duo *d = *state;
    struct area far = duo_area(d, B, 64, 0, 0), readable = duo_area(d, B, 64, 0, WEFT_READ);
    uint64_t old = 5;
    for (uint64_t at = 1; at < 8; at++)
        WEFT_FAILS(-EINVAL, weft_add(d->conn, &far.remote, at, 1, &old, T));
    WEFT_FAILS(WEFT_EBOUNDS, weft_add(d->conn, &far.remote, 64, 1, &old, T));
    WEFT_FAILS(WEFT_EBOUNDS, weft_add(d->conn, &far.remote, (uint64_t)-8, 1, &old, T));
    WEFT_FAILS(WEFT_EACCESS, weft_add(d->conn, &readable.remote, 0, 1, &old, T));
    assert_int_equal(old, 5);
    duo_check_zero(d, far, 0, 64);
    duo_check_zero(d, readable, 0, 64);
}

static void posted_adds_all_count(void **state)
{
    struct duo *d = *state;
    enum { N = 500 };
    struct area far = duo_area(d, B, 8, 0, WEFT_ATOMIC);
    static weft_op_t ops[N];
    static uint64_t old[N];
    static bool seen[N];
    memset(seen, 0, sizeof seen);
    for (size_t i = 0; i < N; i++)
        WEFT_OK(weft_post(d->conn, WEFT_OPTS(weft_xfer, .op = WEFT_XFER_ADD, .value = 1,
                                             .remote = &far.remote, .nremote = 1,
                                             .result = &old[i]), &ops[i]));
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(duo_wait(d, A, ops[i], 0).bytes, 8);
        CHECK(old[i] < N && !seen[old[i]], "two adds saw %" PRIu64, old[i]);
        seen[old[i]] = true;
    }
    assert_int_equal(duo_word(d, far, 0), N);
}

/* --- from everywhere at once --------------------------------------------------------------- */

#define THREADS 4
#define ADDS 200

struct adder {
    weft_conn_t conn;
    struct weft_remote remote;
    uint64_t sum; /* of the old words */
};

static void *add_on(void *arg)
{
    struct adder *a = arg;
    for (int i = 0; i < ADDS; i++) {
        uint64_t old = UINT64_MAX;
        int rc = weft_add(a->conn, &a->remote, 0, 1, &old, T);
        CHECK(rc == 0 && old != UINT64_MAX, "weft_add: %s", weft_err_name(rc));
        a->sum += old;
    }
    return NULL;
}

/* Threads over several conns, initiated by both sides and by the target itself, on one word. */
static void threads_and_conns_on_one_word(void **state)
{
    struct duo *d = *state;
    struct area far = duo_area(d, B, 8, 0, 0);
    struct adder adders[THREADS];
    pthread_t threads[THREADS];
    weft_conn_t self, end;
    uint64_t sum = 0, n = THREADS * ADDS;
    duo_connect(d);
    duo_join(d->b.endpoint, d->b.endpoint, &self, &end);
    const weft_conn_t conns[THREADS] = {d->conn, d->conn, d->a.conns[1], self};
    for (int i = 0; i < THREADS; i++) {
        adders[i] = (struct adder){conns[i], far.remote, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, add_on, &adders[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        sum += adders[i].sum;
    }
    assert_int_equal(duo_word(d, far, 0), n);
    assert_int_equal(sum, n * (n - 1) / 2); /* each value was seen once */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_BOTH(the_old_word_comes_back),
        IN_BOTH(bad_places_are_refused),
        IN_BOTH(posted_adds_all_count),
        IN_ONE(threads_and_conns_on_one_word),
    };
    return DUO_MAIN("endpoint_add", tests);
}
