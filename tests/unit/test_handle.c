/* SPDX-License-Identifier: Apache-2.0 */
/* core/handle.c: stale, foreign, doubled and recycled handles, and use by several threads. */
#include "helpers.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "util.h"

static void a_handle_names_its_object(void **state)
{
    (void)state;
    int object;
    uint64_t h = weft__handle_open(WEFT__CONN, &object, NULL);
    assert_true(h != 0);
    assert_ptr_equal(weft__handle_get(h, WEFT__CONN), &object);
    weft__handle_put(h);
    assert_true(weft__handle_shut(h, WEFT__CONN));
    weft__handle_drain(h, 0);
}

static void wrong_handles_are_refused(void **state)
{
    (void)state;
    int object;
    uint64_t h = weft__handle_open(WEFT__CONN, &object, NULL);
    const uint64_t wrong[] = {0,
                              1,
                              h + 1,
                              h - 1,
                              h ^ ((uint64_t)1 << 40),
                              UINT64_MAX,
                              h << 32,
                              (h & 0x0fffffffffffffffu)};
    for (size_t i = 0; i < WEFT__ARRAY_LEN(wrong); i++)
        assert_null(weft__handle_get(wrong[i], WEFT__CONN));
    assert_null(weft__handle_get(h, WEFT__MEM));
    assert_false(weft__handle_shut(h, WEFT__MEM));
    /* right but for the kind, which its bearer has changed */
    uint64_t forged = weft__handle_make(WEFT__MEM, weft__handle_slot(h), (uint32_t)h);
    assert_null(weft__handle_get(forged, WEFT__MEM));
    assert_null(weft__handle_peek(forged, WEFT__MEM, NULL));
    assert_false(weft__handle_shut(forged, WEFT__MEM));
    assert_true(weft__handle_shut(h, WEFT__CONN));
    assert_false(weft__handle_shut(h, WEFT__CONN));
    assert_null(weft__handle_get(h, WEFT__CONN));
    weft__handle_drain(h, 0);
    assert_null(weft__handle_get(h, WEFT__CONN));
}

static void a_recycled_slot_has_another_handle(void **state)
{
    (void)state;
    enum { N = 2000 };
    static uint64_t seen[N];
    int object;
    for (int i = 0; i < N; i++) {
        seen[i] = weft__handle_open(WEFT__MEM, &object, NULL);
        assert_true(weft__handle_shut(seen[i], WEFT__MEM));
        assert_true(weft__handle_try_drain(seen[i]));
        for (int j = 0; j < i; j++)
            assert_true(seen[j] != seen[i]);
    }
}

static void draining_waits_for_users(void **state)
{
    (void)state;
    int object;
    uint64_t h = weft__handle_open(WEFT__MEM, &object, NULL);
    assert_non_null(weft__handle_get(h, WEFT__MEM));
    assert_true(weft__handle_shut(h, WEFT__MEM));
    assert_false(weft__handle_try_drain(h));
    weft__handle_put(h);
    assert_true(weft__handle_try_drain(h));
}

struct shared {
    _Atomic(uint64_t) handle;
    _Atomic(bool) stop;
    _Atomic(long) hits;
};

static void *user(void *arg)
{
    struct shared *s = arg;
    while (!atomic_load(&s->stop)) {
        uint64_t h = atomic_load(&s->handle);
        _Atomic(int) *object = weft__handle_get(h, WEFT__OP);
        if (!object)
            continue;
        if (atomic_load(object) != 42)
            return "a freed object was handed out";
        atomic_fetch_add(&s->hits, 1);
        weft__handle_put(h);
    }
    return NULL;
}

/* Objects come and go while other threads look them up: none is seen after it was freed. */
static void lookups_race_with_closing(void **state)
{
    (void)state;
    struct shared s = {0};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, user, &s), 0);
    for (int i = 0; i < 2000 || atomic_load(&s.hits) == 0; i++) {
        _Atomic(int) *object = malloc(sizeof *object);
        atomic_store(object, 42);
        uint64_t h = weft__handle_open(WEFT__OP, object, NULL);
        atomic_store(&s.handle, h);
        sched_yield();
        assert_true(weft__handle_shut(h, WEFT__OP));
        weft__handle_drain(h, 0);
        atomic_store(object, 0);
        free(object);
    }
    atomic_store(&s.stop, true);
    for (int i = 0; i < 2; i++) {
        void *why;
        pthread_join(threads[i], &why);
        assert_null(why);
    }
}

/* It has its own, and its parent's stay as they are. */
static void a_forked_child_has_none_of_them(void **state)
{
    (void)state;
    int object, status;
    uint64_t h = weft__handle_open(WEFT__CONN, &object, NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        bool none = !weft__handle_get(h, WEFT__CONN) && !weft__handle_peek(h, WEFT__CONN, NULL) &&
                    !weft__handle_shut(h, WEFT__CONN);
        uint64_t own = weft__handle_open(WEFT__CONN, &object, NULL);
        bool works = own && own != h && weft__handle_get(own, WEFT__CONN) == &object;
        _exit(none && works ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_ptr_equal(weft__handle_get(h, WEFT__CONN), &object);
    weft__handle_put(h);
    assert_true(weft__handle_shut(h, WEFT__CONN));
    weft__handle_drain(h, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_handle_names_its_object),
        cmocka_unit_test(wrong_handles_are_refused),
        cmocka_unit_test(a_recycled_slot_has_another_handle),
        cmocka_unit_test(a_forked_child_has_none_of_them),
        cmocka_unit_test(draining_waits_for_users),
        cmocka_unit_test(lookups_race_with_closing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
