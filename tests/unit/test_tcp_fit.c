/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Send buffers of tcp's sockets (transports/tcp/tcp_out.c): fitted on short paths, within what the system lets a program
 * ask for, and left to the kernel elsewhere. The kernel's round trip and its bound (net.core.wmem_max) are told here.
 */
#include "contract/pair.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#define BIG (16u << 20)
#define ROUNDS 8 /* of BIG, there and back */
#define USUAL 212992 /* net.core.wmem_max of most systems */
#define LEAST (256 * 1024)
#define LEAST_LENT (512 * 1024)
#define MOST (4 << 20)
#define LOCK 72 /* SO_BUF_LOCK */
#define RECEIVE_LOCK 2 /* SOCK_RCVBUF_LOCK */

static int bound;         /* net.core.wmem_max, whatever this system has */
static uint32_t rtt;      /* microseconds; 0: the real one */
static int sets, unlocks; /* of connected sockets */
static int locked;        /* what the last of these left to the program: SOCK_RCVBUF_LOCK */
static int least_set, most_set;

static bool is_connected(int fd)
{
    struct sockaddr_storage peer;
    socklen_t len = sizeof(peer);
    return getpeername(fd, (struct sockaddr *)&peer, &len) == 0;
}

static void note(int value)
{
    least_set = sets && least_set < value ? least_set : value;
    most_set = sets && most_set > value ? most_set : value;
    sets++;
}

int __real_setsockopt(int fd, int level, int name, const void *value, socklen_t len);
int __wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t len);
int __wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
    int size = level == SOL_SOCKET && name == SO_SNDBUF ? *(const int *)value : 0;
    if (level == SOL_SOCKET && name == LOCK) {
        unlocks++;
        locked = *(const int *)value;
    }
    if (size && is_connected(fd))
        note(size);
    return __real_setsockopt(fd, level, name, value, len);
}

int __real_getsockopt(int fd, int level, int name, void *value, socklen_t *len);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *len);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
    int rc = __real_getsockopt(fd, level, name, value, len);
    if (rc == 0 && rtt && level == IPPROTO_TCP && name == TCP_INFO)
        ((struct tcp_info *)value)->tcpi_min_rtt = rtt;
    if (rc == 0 && level == SOL_SOCKET && name == SO_SNDBUF)
        *(int *)value = 2 * bound;
    return rc;
}

static void move(struct pair *p)
{
    struct buf near = pair_buf(p, A, BIG, 0, 0), far = pair_buf(p, B, BIG, 0, ACCESS_ALL);
    for (uint64_t i = 0; i < ROUNDS; i++) {
        pair_fill(p, near, i);
        pair_do(p, A, 0, cmd_write(near, 0, far, 0, BIG), 0);
        pair_check(p, far, 0, BIG, i);
    }
}

/* As if nothing had been set, on a system with this bound. */
static void begin(int most)
{
    sets = unlocks = 0;
    rtt = 0;
    bound = most;
}

static int setup(void **state)
{
    begin(MOST);
    return pair_setup(state);
}

static int setup_usual(void **state)
{
    begin(USUAL);
    return pair_setup(state);
}

static int setup_copying(void **state)
{
    begin(MOST);
    return pair_setup_with(state, "WEFT_TCP_ZEROCOPY", "0");
}

static int setup_receive(void **state)
{
    begin(MOST);
    return pair_setup_with(state, "WEFT_TCP_RCVBUF", "1M");
}

static int setup_asked(void **state)
{
    begin(MOST);
    return pair_setup_with(state, "WEFT_TCP_SNDBUF", "300K");
}

static void on_a_short_path_it_is_fitted(void **state)
{
    rtt = 4;
    move(*state);
    assert_in_range(sets, 1, 8); /* and then it stays */
    assert_in_range(least_set, LEAST_LENT, MOST);
    assert_in_range(most_set, LEAST_LENT, MOST);
    assert_int_equal(unlocks, 0);
}

static void what_is_copied_has_less(void **state)
{
    rtt = 1;
    move(*state);
    assert_in_range(sets, 1, 8);
    assert_in_range(least_set, LEAST, LEAST_LENT - 1);
}

static void it_follows_the_round_trip(void **state)
{
    rtt = 500;
    move(*state);
    assert_in_range(most_set, LEAST_LENT + 1, MOST);
}

/* The kernel's own growth ends where a buffer is set, and goes beyond this bound. */
static void within_a_small_bound_it_is_the_kernels(void **state)
{
    rtt = 700;
    move(*state);
    assert_int_equal(sets, 0);
}

static void within_a_host_the_bound_will_do(void **state)
{
    rtt = 4;
    move(*state);
    assert_in_range(sets, 1, 2);
    assert_int_equal(most_set, USUAL);
}

static void on_a_long_path_it_is_the_kernels(void **state)
{
    rtt = 5000;
    move(*state);
    assert_int_equal(sets, 0);
    assert_int_equal(unlocks, 0);
}

static void a_path_that_becomes_long_is_given_back(void **state)
{
    rtt = 4;
    move(*state);
    assert_true(sets > 0);
    rtt = 5000;
    sets = 0;
    move(*state);
    assert_int_equal(sets, 0);
    assert_int_equal(unlocks, 1);
    assert_int_equal(locked, 0);
}

/* What was asked for the way in is not given back with the way out. */
static void a_receive_buffer_that_was_asked_for_stays(void **state)
{
    rtt = 4;
    move(*state);
    rtt = 5000;
    move(*state);
    assert_int_equal(unlocks, 1);
    assert_int_equal(locked, RECEIVE_LOCK);
}

static void what_was_asked_for_stays(void **state)
{
    rtt = 4;
    sets = 0; /* as links came up */
    move(*state);
    assert_int_equal(sets, 0);
}

#define WITH(test, before) cmocka_unit_test_setup_teardown(test, before, pair_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH(on_a_short_path_it_is_fitted, setup),
        WITH(what_is_copied_has_less, setup_copying),
        WITH(it_follows_the_round_trip, setup),
        WITH(within_a_small_bound_it_is_the_kernels, setup_usual),
        WITH(within_a_host_the_bound_will_do, setup_usual),
        WITH(on_a_long_path_it_is_the_kernels, setup),
        WITH(a_path_that_becomes_long_is_given_back, setup),
        WITH(a_receive_buffer_that_was_asked_for_stays, setup_receive),
        WITH(what_was_asked_for_stays, setup_asked),
    };
    return PAIR_MAIN("tcp_fit", tests);
}
