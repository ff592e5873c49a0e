/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges in several allocations (core/span.c), of a backend that says what this test wants. */
#include "../helpers.h"

#include <errno.h>

#include "core/span.h"

/* By addresses: allocations side by side, with a hole at 500, and one at the end of all addresses. */
static const struct weft_gpu_range all[] = {
    {(void *)100, 100, WEFT_MEM_PEER, 0, 1},
    {(void *)200, 100, WEFT_MEM_PEER, 0, 1},
    {(void *)300, 100, WEFT_MEM_PEER, 0, 0},
    {(void *)400, 100, WEFT_MEM_PEER, 1, 1},
    {(void *)600, 100, WEFT_MEM_PEER, 0, 1},
    {(void *)(UINTPTR_MAX - 99), 100, WEFT_MEM_PEER, 0, 1},
};
static int fails_at; /* an address; 0: none */

static int query(const void *addr, struct weft_gpu_range *range)
{
    if (fails_at && (uintptr_t)addr == (uintptr_t)fails_at)
        return weft_fail(-EIO, "the device is lost");
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        if ((uintptr_t)addr - (uintptr_t)all[i].base < all[i].len) {
            *range = all[i];
            return 1;
        }
    return 0;
}

static const struct weft_gpu_ops ops = {.query = query};

/* Returns what weft__gpu_span does; *reached: of all. */
static int span(uintptr_t addr, uint64_t len, int *reached)
{
    struct weft_gpu_range range = {.reached = -1};
    int rc = weft__gpu_span(&ops, (void *)addr, len, &range);
    *reached = range.reached;
    return rc;
}

static void what_is_covered(void **state)
{
    (void)state;
    static const struct {
        uintptr_t addr;
        uint64_t len;
        int rc, reached;
    } cases[] = {
        {100, 100, 1, 1},
        {150, 50, 1, 1},
        {150, 51, 1, 1},
        {100, 200, 1, 1},
        {100, 201, 1, 0}, /* of which one is not reached */
        {100, 300, 1, 0},
        {100, 301, 0, 0}, /* another device's is behind it */
        {400, 100, 1, 1},
        {400, 101, 0, 1}, /* nothing is */
        {600, 100, 1, 1},
        {600, UINT64_MAX, 0, 1},
        {500, 1, 0, -1},
        {UINTPTR_MAX - 9, 10, 1, 1},
        {UINTPTR_MAX - 9, 11, 0, 1},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        int reached, rc = span(cases[i].addr, cases[i].len, &reached);
        CHECK(rc == cases[i].rc, "case %zu: %d, not %d", i, rc, cases[i].rc);
        CHECK(reached == cases[i].reached, "case %zu: reached is %d", i, reached);
    }
}

static void a_query_that_fails(void **state)
{
    (void)state;
    int reached;
    fails_at = 200;
    assert_int_equal(span(100, 101, &reached), -EIO);
    assert_int_equal(span(100, 100, &reached), 1);
    fails_at = 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_covered),
        cmocka_unit_test(a_query_that_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
