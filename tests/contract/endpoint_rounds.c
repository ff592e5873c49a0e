/* SPDX-License-Identifier: Apache-2.0 */
/* Registered, transferred, deregistered, again and again: WEFT_TEST_ROUNDS times (400). Nothing is left of it. */
#include "duo.h"

#define T TEST_DEADLINE_MS
#define LEN 20000
/* The run has parts, after a beginning as long as each, in which pools and areas are made. What leaks does so in each of them, while
 * a pool grows in one; what it may have grown by in each: one leaked registration in each round would be more. */
#define PARTS 3
#define GROWN 20000

struct round {
    uint64_t seed;
    struct weft_remote remote;
    struct test_mem mem;
    weft_mem_t handle;
    int64_t differs;
};

static void begin(struct host *host, void *arg)
{
    struct round *r = arg;
    test_zero(r->mem.at, LEN);
    WEFT_OK(weft_mem_reg(host->endpoint, r->mem.at, LEN, NULL, &r->handle));
    WEFT_OK(weft_mem_advertise(r->handle, r->mem.at, LEN, &r->remote));
}

static void end(struct host *host, void *arg)
{
    struct round *r = arg;
    (void)host;
    WEFT_OK(weft_mem_dereg(r->handle));
    r->differs = test_differs(r->mem.at, LEN, r->seed, 0);
}

static void open_memory(struct host *host, void *arg)
{
    (void)host;
    struct round *r = arg;
    test_mem_open_on(&r->mem, LEN, 0, test_memory(B));
}

static void close_memory(struct host *host, void *arg)
{
    (void)host;
    test_mem_close(&((struct round *)arg)->mem);
}

static void again_and_again(void **state)
{
    struct duo *d = *state;
    int rounds = atoi(test_env("WEFT_TEST_ROUNDS", "400"));
    struct round r = {.seed = 0};
    struct test_mem near;
    size_t allocated[PARTS + 1], grown = SIZE_MAX;
    int fds = 0;
    test_mem_open_on(&near, LEN, 0, test_memory(A));
    duo_call(d, B, open_memory, &r, sizeof r);
    for (int i = 0; i < rounds; i++) {
        weft_mem_t mem;
        for (int part = 0; part < PARTS; part++)
            if (i == rounds * (part + 1) / (PARTS + 1))
                allocated[part] = test_allocated();
        if (i == rounds / (PARTS + 1))
            fds = test_count_fds();
        r.seed = (uint64_t)i + 1;
        test_fill(near.at, LEN, r.seed, 0);
        duo_call(d, B, begin, &r, sizeof r);
        WEFT_OK(weft_mem_reg(d->a.endpoint, near.at, LEN, NULL, &mem));
        assert_int_equal(weft_write(d->conn, near.at, LEN, &r.remote, 0, T), LEN);
        test_zero(near.at, LEN);
        assert_int_equal(weft_read(d->conn, near.at, LEN, &r.remote, 0, T), LEN);
        assert_true(test_differs(near.at, LEN, r.seed, 0) < 0);
        WEFT_OK(weft_mem_dereg(mem));
        duo_call(d, B, end, &r, sizeof r);
        CHECK(r.differs < 0, "byte %" PRId64 " of round %d is wrong", r.differs, i);
    }
    allocated[PARTS] = test_allocated();
    for (int part = 0; part < PARTS; part++) {
        size_t more = allocated[part + 1] > allocated[part] ? allocated[part + 1] - allocated[part]
                                                            : 0;
        grown = more < grown ? more : grown;
    }
    CHECK(grown < GROWN, "%zu bytes became %zu in %d rounds, steadily", allocated[0],
          allocated[PARTS], rounds - rounds / (PARTS + 1));
    /* the last mapping of the other side's memory may be there or not, both times */
    int now = test_count_fds();
    CHECK(now <= fds + 1, "%d descriptors became %d", fds, now);
    duo_call(d, B, close_memory, &r, sizeof r);
    test_mem_close(&near);
}

int main(void)
{
    const struct CMUnitTest tests[] = {IN_BOTH(again_and_again)};
    return DUO_MAIN("endpoint_rounds", tests);
}
