/* SPDX-License-Identifier: Apache-2.0 */
/* A listener when descriptors run out: callers are refused, or wait; nobody is woken for nothing. */
#include "helpers.h"

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>

struct door {
    struct weft_listener listener;
    int epoll, tag;
    struct sockaddr_in at;
};

static int setup(void **state)
{
    struct door *d = calloc(1, sizeof *d);
    socklen_t len = sizeof d->at;
    d->at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    d->epoll = epoll_create1(EPOLL_CLOEXEC);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    CHECK(!bind(fd, (struct sockaddr *)&d->at, sizeof d->at) && !listen(fd, 8) &&
              !getsockname(fd, (struct sockaddr *)&d->at, &len),
          "listen: %m");
    WEFT_OK(weft_listener_open(&d->listener, fd, d->epoll, &d->tag));
    *state = d;
    return 0;
}

static int teardown(void **state)
{
    struct door *d = *state;
    weft_listener_close(&d->listener);
    assert_int_equal(d->listener.fd, -1);
    weft_listener_close(&d->listener);
    close(d->epoll);
    free(d);
    return 0;
}

/* No descriptor beyond these may be opened; -1: as many as there may be. */
static void allow_below(int fd)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = fd < 0 ? limit.rlim_max : (rlim_t)fd;
    CHECK(!setrlimit(RLIMIT_NOFILE, &limit), "setrlimit: %m");
}

static int dial(const struct door *d)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(!connect(fd, (const struct sockaddr *)&d->at, sizeof d->at), "connect: %m");
    return fd;
}

static bool is_told(const struct door *d)
{
    struct epoll_event event;
    int n = epoll_wait(d->epoll, &event, 1, 0);
    assert_true(n == 0 || (n == 1 && event.data.ptr == &d->tag));
    return n == 1;
}

static bool is_hung_up(int fd)
{
    char byte;
    return recv(fd, &byte, 1, MSG_DONTWAIT) == 0 || errno == ECONNRESET;
}

static void expect_accepted(struct door *d, int caller)
{
    struct sockaddr_storage from;
    char byte = 0;
    assert_true(is_told(d));
    int fd = weft_listener_accept(&d->listener, &from, "test");
    assert_true(fd >= 0);
    assert_int_equal(from.ss_family, AF_INET);
    assert_int_equal(send(caller, "x", 1, 0), 1);
    TEST_UNTIL(recv(fd, &byte, 1, MSG_DONTWAIT) == 1, test_sleep_ms(1), "a byte");
    assert_int_equal(byte, 'x');
    assert_false(is_told(d));
    close(fd);
}

static void nobody(void **state)
{
    struct door *d = *state;
    assert_false(is_told(d));
    assert_int_equal(weft_listener_accept(&d->listener, NULL, "test"), -1);
    assert_int_equal(d->listener.resume, 0);
}

static void a_caller(void **state)
{
    struct door *d = *state;
    int fd = dial(d);
    expect_accepted(d, fd);
    close(fd);
}

/* The reserve is there again after each. */
static void callers_are_refused(void **state)
{
    struct door *d = *state;
    int fds[3], next;
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        fds[i] = dial(d);
    next = dup(0);
    close(next);
    allow_below(next);
    for (size_t i = 0; i < ARRAY_LEN(fds); i++) {
        assert_true(is_told(d));
        assert_int_equal(weft_listener_accept(&d->listener, NULL, "test"), -1);
        assert_int_equal(d->listener.resume, 0);
        assert_true(is_hung_up(fds[i]));
    }
    assert_false(is_told(d));
    allow_below(-1);
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        close(fds[i]);
    a_caller(state);
}

/* The reserve is taken by somebody else: the caller waits, and nobody is woken for that. */
static void callers_wait(void **state)
{
    struct door *d = *state;
    int before = test_count_fds(), fd = dial(d);
    allow_below(3);
    assert_true(is_told(d));
    for (int i = 0; i < 3; i++) {
        uint64_t since = weft_now();
        assert_int_equal(weft_listener_accept(&d->listener, NULL, "test"), -1);
        assert_int_not_equal(d->listener.resume, 0);
        assert_false(is_told(d));
        TEST_UNTIL(d->listener.resume == 0,
                   {
                       test_sleep_ms(1);
                       weft_listener_look(&d->listener);
                   },
                   "the listener to be watched again");
        assert_true(weft_now() - since >= 100000000); /* core/listener.c: 0.1 s */
        assert_true(is_told(d)); /* it asks again, now and then */
    }
    allow_below(-1);
    expect_accepted(d, fd);
    close(fd);
    assert_int_equal(test_count_fds(), before); /* the reserve, too */
    callers_are_refused(state);
}

static void what_cannot_be_watched(void **state)
{
    struct door *d = *state;
    struct weft_listener l;
    int before = test_count_fds();
    assert_int_equal(weft_listener_open(&l, 1000000, d->epoll, NULL), -EBADF);
    assert_int_equal(l.fd, -1);
    weft_listener_close(&l);
    assert_int_equal(test_count_fds(), before);
}

#define WITH_DOOR(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_DOOR(nobody),
        WITH_DOOR(a_caller),
        WITH_DOOR(callers_are_refused),
        WITH_DOOR(callers_wait),
        WITH_DOOR(what_cannot_be_watched),
    };
    weft_config_set("WEFT_LOG", "error");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
