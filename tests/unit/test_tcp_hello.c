/* SPDX-License-Identifier: Apache-2.0 */
/* Strangers at the door: what is not a sound hello is dropped, and the link does not notice. */
#include "tcp_stranger.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>

#include "transports/tcp/tcp.h"

static void wrong_hellos_are_dropped(void **state)
{
    struct stranger *s = *state;
    for (int wrong = 0; wrong < 9; wrong++) {
        struct tcp_hello hello = stranger_hello_for(s, 0);
        uint8_t bytes[TCP_HELLO_SIZE];
        hello.token[15] ^= wrong == 0;
        hello.token[0] ^= wrong == 1 ? 0x80 : 0;
        hello.version += wrong == 2;
        hello.sockets = wrong == 3 ? 0 : wrong == 4 ? 3 : wrong == 8 ? 1 : 2;
        hello.index = wrong == 5 ? 2 : wrong == 8; /* of two, and of one that the link has, too */
        hello.depth = wrong == 6 ? 0 : DEPTH;
        tcp_hello_encode(bytes, &hello);
        bytes[0] ^= wrong == 7;
        int fd = stranger_dial(s);
        stranger_say(fd, bytes, sizeof bytes);
        stranger_hear_end(s, fd);
        stranger_check_healthy(s);
    }
    stranger_join(s); /* the link itself has not noticed */
}

static void garbage_at_the_door_is_dropped(void **state)
{
    struct stranger *s = *state;
    uint8_t bytes[512];
    for (int i = 0; i < 100; i++) {
        int fd = stranger_dial(s);
        weft_random(bytes, sizeof bytes);
        stranger_say(fd, bytes, sizeof bytes);
        stranger_hear_end(s, fd);
    }
    stranger_join(s);
}

static void half_a_hello_and_away(void **state)
{
    struct stranger *s = *state;
    uint8_t bytes[TCP_HELLO_SIZE];
    struct tcp_hello hello = stranger_hello_for(s, 0);
    tcp_hello_encode(bytes, &hello);
    for (size_t len = 0; len < TCP_HELLO_SIZE; len++) {
        int fd = stranger_dial(s);
        if (len)
            stranger_say(fd, bytes, len);
        pair_poll(&s->pair, PAIR_B);
        close(fd);
        pair_poll(&s->pair, PAIR_B);
    }
    stranger_join(s);
}

/* More than may be half open: the oldest go, the newest get in. */
static void silent_callers_push_each_other_out(void **state)
{
    enum { CALLERS = 100, KEPT = 64 };
    struct stranger *s = *state;
    int fd[CALLERS];
    for (int i = 0; i < CALLERS; i++) {
        fd[i] = stranger_dial(s);
        for (int k = 0; k < 4; k++)
            pair_poll(&s->pair, PAIR_B);
    }
    for (int i = 0; i < CALLERS - KEPT; i++)
        stranger_hear_end(s, fd[i]);
    stranger_join(s);
    for (int i = CALLERS - KEPT; i < CALLERS; i++)
        close(fd[i]);
}

/* By the clock of who polls, and has nothing else under way. */
static void a_silent_caller_is_let_go_where_nobody_sleeps(void **state)
{
    struct stranger *s = *state;
    int fd = stranger_dial(s);
    stranger_hear_end(s, fd);
    stranger_join(s);
}

/* Nothing wakes B but the timer, which is set anew for each. */
static void and_where_all_sleep(void **state)
{
    struct stranger *s = *state;
    struct weft_nic *nic = s->pair.side[PAIR_B].nic;
    for (int i = 0; i < 2; i++) {
        struct pollfd seen[] = {{.fd = stranger_dial(s), .events = POLLIN}, {.events = POLLIN}};
        uint64_t deadline = weft_now() + PAIR_WAIT_MS * 1000000ull;
        while (!seen[0].revents) {
            assert_true(weft_now() < deadline);
            seen[1].fd = s->pair.ops->wait_fd(nic);
            if (seen[1].fd >= 0)
                assert_true(poll(seen, 2, PAIR_WAIT_MS) > 0);
            pair_poll(&s->pair, PAIR_B);
        }
        stranger_hear_end(s, seen[0].fd);
    }
    stranger_join(s);
}

/* Without descriptors the link's sockets can be neither accepted nor refused: the link says so. */
static void no_descriptor_for_a_caller(void **state)
{
    struct stranger *s = *state;
    struct rlimit limit, none;
    int fd = stranger_dial(s);
    getrlimit(RLIMIT_NOFILE, &limit);
    none = limit;
    none.rlim_cur = 3;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    int rc = stranger_finish_connect(s);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_int_equal(rc, -EMFILE);
    stranger_check_healthy(s);
    s->pair.ops->link_close(s->link);
    stranger_open_link(s);
    close(fd);
    stranger_join(s); /* another link has descriptors again */
}

/* The same socket twice, or other terms than the first one's. */
static void a_second_hello_must_fit_the_first(void **state)
{
    struct stranger *s = *state;
    uint8_t answer[TCP_HELLO_SIZE];
    s->fd[0] = stranger_dial(s);
    stranger_say_hello(s->fd[0], stranger_hello_for(s, 0));
    stranger_hear(s, s->fd[0], answer, sizeof answer);
    int fd = stranger_dial(s);
    stranger_say_hello(fd, stranger_hello_for(s, 0));
    stranger_hear_end(s, fd);
    struct tcp_hello alone = stranger_hello_for(s, 0);
    alone.sockets = 1;
    fd = stranger_dial(s);
    stranger_say_hello(fd, alone);
    stranger_hear_end(s, fd);
    s->fd[1] = stranger_dial(s);
    stranger_say_hello(s->fd[1], stranger_hello_for(s, 1));
    assert_int_equal(stranger_finish_connect(s), 0);
    fd = stranger_dial(s); /* a link that is up takes no more */
    stranger_say_hello(fd, stranger_hello_for(s, 1));
    stranger_hear_end(s, fd);
}

static void a_hello_byte_by_byte(void **state)
{
    struct stranger *s = *state;
    for (uint8_t i = 0; i < 2; i++) {
        uint8_t bytes[TCP_HELLO_SIZE], answer[TCP_HELLO_SIZE];
        struct tcp_hello hello = stranger_hello_for(s, i), back;
        tcp_hello_encode(bytes, &hello);
        s->fd[i] = stranger_dial(s);
        for (size_t k = 0; k < sizeof bytes; k++) {
            stranger_say(s->fd[i], bytes + k, 1);
            pair_poll(&s->pair, PAIR_B);
        }
        stranger_hear(s, s->fd[i], answer, sizeof answer);
        assert_true(tcp_hello_decode(answer, &back));
        assert_int_equal(back.index, i);
        assert_int_equal(back.sockets, 2);
        assert_memory_equal(back.token, hello.token, TCP_TOKEN);
    }
    assert_int_equal(stranger_finish_connect(s), 0);
}

static void gone_before_the_link_is_up(void **state)
{
    struct stranger *s = *state;
    uint8_t answer[TCP_HELLO_SIZE];
    for (uint8_t i = 0; i < 2; i++) {
        s->fd[i] = stranger_dial(s);
        stranger_say_hello(s->fd[i], stranger_hello_for(s, i));
        stranger_hear(s, s->fd[i], answer, sizeof answer);
    }
    struct linger hard = {.l_onoff = 1};
    setsockopt(s->fd[1], SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    close(s->fd[1]);
    s->fd[1] = -1;
    for (int i = 0; i < 100; i++)
        pair_poll(&s->pair, PAIR_B);
    assert_int_equal(stranger_finish_connect(s), WEFT_EPEER);
    int fd = stranger_dial(s); /* nobody joins it any more */
    stranger_say_hello(fd, stranger_hello_for(s, 1));
    stranger_hear_end(s, fd);
}

static int setup_patient(void **state)
{
    return stranger_setup_with(stranger_setup, state, "WEFT_TCP_TIMEOUT", "60000");
}

/* Who has begun to speak stays before all who say nothing, as soon as these have had a second. */
static void who_speaks_is_not_pushed_out_by_who_does_not(void **state)
{
    enum { KEPT = 64 };
    struct stranger *s = *state;
    uint8_t bytes[TCP_HELLO_SIZE], answer[TCP_HELLO_SIZE];
    struct tcp_hello hello = stranger_hello_for(s, 0);
    int fd[KEPT + 8];
    tcp_hello_encode(bytes, &hello);
    s->fd[0] = stranger_dial(s);
    stranger_say(s->fd[0], bytes, 10);
    for (int i = 0; i < KEPT + 8; i++) {
        if (i == KEPT - 1)
            usleep(1100000);
        fd[i] = stranger_dial(s);
        for (int k = 0; k < 4; k++)
            pair_poll(&s->pair, PAIR_B);
    }
    stranger_say(s->fd[0], bytes + 10, sizeof bytes - 10);
    stranger_hear(s, s->fd[0], answer, sizeof answer);
    s->fd[1] = stranger_dial(s);
    stranger_say_hello(s->fd[1], stranger_hello_for(s, 1));
    stranger_hear(s, s->fd[1], answer, sizeof answer);
    assert_int_equal(stranger_finish_connect(s), 0);
    for (int i = 0; i < KEPT + 8; i++)
        close(fd[i]);
}

/* --- the active end ------------------------------------------------------------------------ */

static void open_active(struct stranger *s, const uint8_t *key, struct weft_link **link)
{
    struct weft_link_opts opts = {.role = WEFT_ROLE_ACTIVE, .key = key};
    PAIR_OK(s->pair.ops->link_open(s->pair.side[PAIR_B].nic, &opts, link));
}

static int listen_on(struct sockaddr_in *at)
{
    socklen_t len = sizeof *at;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    *at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(bind(listener, (struct sockaddr *)at, sizeof *at), 0);
    assert_int_equal(listen(listener, 4), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)at, &len), 0);
    return listener;
}

/* link_connect of an active end towards this address, until it knows. */
static int connect_until(struct stranger *s, struct weft_link *link, const uint8_t *address)
{
    int rc;
    uint64_t deadline = weft_now() + PAIR_WAIT_MS * 1000000ull;
    while ((rc = s->pair.ops->link_connect(link, address, TCP_ADDRESS_SIZE)) == WEFT_EAGAIN) {
        pair_poll(&s->pair, PAIR_B);
        assert_true(weft_now() < deadline);
    }
    return rc;
}

/* No field of an address is taken as it is. */
static void addresses_that_make_no_sense(void **state)
{
    struct stranger *s = *state;
    static const struct {
        uint8_t at, value[2];
        int status;
    } wrongs[] = {{0, {0}, WEFT_EPROTO},     /* magic */
                  {4, {99}, WEFT_EVERSION},
                  {5, {0}, WEFT_EPROTO},     /* that of an active end */
                  {6, {0}, WEFT_EPROTO},     /* sockets */
                  {6, {TCP_MAX_SOCKETS + 1}, WEFT_EPROTO},
                  {7, {5}, WEFT_EPROTO},     /* family */
                  {7, {0}, WEFT_EPROTO},
                  {8, {0, 0}, WEFT_EPROTO}}; /* port */
    struct weft_link *link;
    uint8_t address[TCP_ADDRESS_SIZE];
    for (size_t i = 0; i < sizeof wrongs / sizeof *wrongs; i++) {
        open_active(s, NULL, &link);
        memcpy(address, s->address, sizeof address);
        memcpy(address + wrongs[i].at, wrongs[i].value, wrongs[i].at == 8 ? 2 : 1);
        assert_int_equal(s->pair.ops->link_connect(link, address, sizeof address), wrongs[i].status);
        memcpy(address, s->address, sizeof address);
        for (size_t len = 0; len < sizeof address; len += 5)
            assert_int_equal(s->pair.ops->link_connect(link, address, len), WEFT_EPROTO);
        assert_int_equal(s->pair.ops->link_address(link, address, TCP_ADDRESS_SIZE - 1), -EINVAL);
        s->pair.ops->link_close(link);
    }
    stranger_join(s);
    memcpy(address, s->address, sizeof address); /* of a passive end, to one */
    stranger_close_link(s);
    stranger_open_link(s);
    assert_int_equal(s->pair.ops->link_connect(s->link, address, sizeof address), WEFT_EPROTO);
}

/* Where nobody listens, and where no way leads: said as what it is, and again when it is asked again. */
static void places_where_nobody_is(void **state)
{
    struct stranger *s = *state;
    struct sockaddr_in at;
    uint8_t address[TCP_ADDRESS_SIZE];
    memcpy(address, s->address, sizeof address);
    close(listen_on(&at)); /* its port is free */
    tcp_put16(address + 8, ntohs(at.sin_port));
    for (int i = 0; i < 2; i++) {
        struct weft_link *link;
        open_active(s, NULL, &link);
        int rc = connect_until(s, link, address);
        assert_true(rc < 0 && (i == 1 || rc == -ECONNREFUSED));
        assert_int_equal(s->pair.ops->link_connect(link, address, sizeof address), rc);
        s->pair.ops->link_close(link);
        memset(address + 16, 255, 4); /* to all: no connection is made to them */
    }
}

/* It has no token before it dials, and is joined with none. */
static void an_active_end_is_joined_by_nobody(void **state)
{
    struct stranger *s = *state;
    struct weft_link *link;
    open_active(s, NULL, &link);
    for (uint8_t i = 0; i < 2; i++) {
        struct tcp_hello hello = stranger_hello_for(s, i);
        memset(hello.token, 0, sizeof hello.token);
        int fd = stranger_dial(s);
        stranger_say_hello(fd, hello);
        stranger_hear_end(s, fd);
    }
    s->pair.ops->link_close(link);
}

/* An answer that is not to what was asked, field by field. */
static void answers_that_make_no_sense(void **state)
{
    struct stranger *s = *state;
    struct sockaddr_in at;
    int listener = listen_on(&at);
    uint8_t address[TCP_ADDRESS_SIZE], bytes[TCP_HELLO_SIZE];
    memcpy(address, s->address, sizeof address);
    tcp_put16(address + 8, ntohs(at.sin_port));
    for (int wrong = 0; wrong < 6; wrong++) {
        struct weft_link *link;
        struct tcp_hello hello = {0};
        open_active(s, NULL, &link);
        assert_int_equal(s->pair.ops->link_connect(link, address, sizeof address), WEFT_EAGAIN);
        int fd[2];
        for (int i = 0; i < 2; i++)
            fd[i] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        stranger_hear(s, fd[0], bytes, sizeof bytes);
        assert_true(tcp_hello_decode(bytes, &hello));
        hello.index ^= wrong == 0;
        hello.sockets += wrong == 1 ? 1 : wrong == 2 ? -1 : 0;
        hello.depth = wrong == 3 ? 0 : hello.depth;
        hello.token[TCP_TOKEN - 1] ^= wrong == 4;
        tcp_hello_encode(bytes, &hello);
        bytes[0] ^= wrong == 5;
        stranger_say(fd[0], bytes, sizeof bytes);
        assert_int_equal(connect_until(s, link, address), WEFT_EPROTO);
        s->pair.ops->link_close(link);
        close(fd[0]);
        close(fd[1]);
    }
    close(listener);
}

/* --- keys ---------------------------------------------------------------------------------- */

static uint8_t key[WEFT_MAC] = "who has this may join the link";

/* In the place of the fixture's link one with a key. */
static void open_keyed(struct stranger *s)
{
    struct weft_link_opts opts = {.role = WEFT_ROLE_PASSIVE, .key = key};
    stranger_close_link(s);
    PAIR_OK(s->pair.ops->link_open(s->pair.side[PAIR_B].nic, &opts, &s->link));
    assert_int_equal(s->pair.ops->link_address(s->link, s->address, sizeof s->address),
                     TCP_ADDRESS_SIZE);
}

static void prove(uint8_t *hello, enum weft_role who, const uint8_t *with)
{
    uint8_t said[1 + TCP_HELLO_PROVEN] = {(uint8_t)who};
    memcpy(said + 1, hello, TCP_HELLO_PROVEN);
    PAIR_OK(weft_mac(with, said, sizeof said, hello + TCP_HELLO_PROVEN));
}

static void proven_hello(const struct stranger *s, uint8_t index, uint8_t *bytes)
{
    struct tcp_hello hello = stranger_hello_for(s, index);
    tcp_hello_encode(bytes, &hello);
    prove(bytes, WEFT_ROLE_ACTIVE, key);
}

static void is_dropped(struct stranger *s, const uint8_t *bytes)
{
    int fd = stranger_dial(s);
    stranger_say(fd, bytes, TCP_HELLO_SIZE);
    stranger_hear_end(s, fd);
}

/* Both sockets join with proofs; `said` is what an eavesdropper has heard. */
static void join_keyed(struct stranger *s, uint8_t said[2][TCP_HELLO_SIZE])
{
    for (uint8_t i = 0; i < 2; i++) {
        uint8_t answer[TCP_HELLO_SIZE], right[TCP_HELLO_SIZE];
        proven_hello(s, i, said[i]);
        s->fd[i] = stranger_dial(s);
        stranger_say(s->fd[i], said[i], TCP_HELLO_SIZE);
        stranger_hear(s, s->fd[i], answer, sizeof answer);
        memcpy(right, answer, sizeof right);
        prove(right, WEFT_ROLE_PASSIVE, key);
        assert_memory_equal(answer, right, sizeof answer);
        is_dropped(s, said[i]);
    }
}

static void only_who_has_the_key_joins(void **state)
{
    struct stranger *s = *state;
    uint8_t bytes[TCP_HELLO_SIZE], said[2][TCP_HELLO_SIZE], other[WEFT_MAC] = "another one";
    proven_hello(s, 0, bytes); /* the fixture's link has no key */
    is_dropped(s, bytes);
    open_keyed(s);
    for (int wrong = 0; wrong < 6; wrong++) {
        proven_hello(s, 0, bytes);
        if (wrong == 0)
            memset(bytes + TCP_HELLO_PROVEN, 0, TCP_PROOF);
        else if (wrong == 1)
            prove(bytes, WEFT_ROLE_ACTIVE, other);
        else if (wrong == 2)
            prove(bytes, WEFT_ROLE_PASSIVE, key);
        else if (wrong == 3)
            bytes[5] = 1; /* the proof is of socket 0 */
        else
            bytes[wrong == 4 ? TCP_HELLO_SIZE - 1 : TCP_HELLO_PROVEN] ^= 1;
        is_dropped(s, bytes);
    }
    join_keyed(s, said);
    assert_int_equal(stranger_finish_connect(s), 0);
}

/* What one link was joined with joins it no second time, and no other link. */
static void a_recorded_hello_joins_nothing(void **state)
{
    struct stranger *s = *state;
    uint8_t said[2][TCP_HELLO_SIZE];
    open_keyed(s);
    join_keyed(s, said);
    assert_int_equal(stranger_finish_connect(s), 0);
    for (int i = 0; i < 2; i++)
        is_dropped(s, said[i]);
    open_keyed(s); /* even with the same key */
    for (int i = 0; i < 2; i++)
        is_dropped(s, said[i]);
    join_keyed(s, said);
    assert_int_equal(stranger_finish_connect(s), 0);
}

/* Who answers in the passive end's place has heard all, and has no key. */
static void an_answer_needs_the_key(void **state)
{
    struct stranger *s = *state;
    struct sockaddr_in at;
    int listener = listen_on(&at);
    uint8_t address[TCP_ADDRESS_SIZE];
    memcpy(address, s->address, sizeof address);
    tcp_put16(address + 8, ntohs(at.sin_port));
    for (int wrong = 0; wrong < 3; wrong++) {
        struct weft_link *link;
        uint8_t hello[TCP_HELLO_SIZE];
        int rc = WEFT_EAGAIN, fd[2] = {-1, -1};
        open_active(s, key, &link);
        uint64_t deadline = weft_now() + PAIR_WAIT_MS * 1000000ull;
        for (int n = 0; rc == WEFT_EAGAIN; pair_poll(&s->pair, PAIR_B)) {
            rc = s->pair.ops->link_connect(link, address, sizeof address);
            if (n == 2)
                continue;
            fd[n] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
            pair_poll(&s->pair, PAIR_B);
            stranger_hear(s, fd[n], hello, sizeof hello);
            if (wrong == 0)
                memset(hello + TCP_HELLO_PROVEN, 0, TCP_PROOF);
            if (wrong == 1)
                hello[TCP_HELLO_PROVEN] ^= 1;
            stranger_say(fd[n++], hello, sizeof hello);
            assert_true(weft_now() < deadline);
        }
        assert_int_equal(rc, WEFT_EAUTH);
        s->pair.ops->link_close(link);
        close(fd[0]);
        close(fd[1]);
    }
    close(listener);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(wrong_hellos_are_dropped, stranger_setup,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(garbage_at_the_door_is_dropped, stranger_setup,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(half_a_hello_and_away, stranger_setup, stranger_teardown),
        cmocka_unit_test_setup_teardown(silent_callers_push_each_other_out, stranger_setup,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(a_silent_caller_is_let_go_where_nobody_sleeps,
                                        stranger_setup, stranger_teardown),
        cmocka_unit_test_setup_teardown(and_where_all_sleep, stranger_setup, stranger_teardown),
        cmocka_unit_test_setup_teardown(no_descriptor_for_a_caller, stranger_setup,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(a_second_hello_must_fit_the_first, stranger_setup,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(a_hello_byte_by_byte, stranger_setup, stranger_teardown),
        cmocka_unit_test_setup_teardown(gone_before_the_link_is_up, stranger_setup,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(who_speaks_is_not_pushed_out_by_who_does_not, setup_patient,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(addresses_that_make_no_sense, stranger_setup,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(places_where_nobody_is, stranger_setup,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(an_active_end_is_joined_by_nobody, stranger_setup,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(answers_that_make_no_sense, stranger_setup,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(only_who_has_the_key_joins, stranger_setup,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(a_recorded_hello_joins_nothing, stranger_setup,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(an_answer_needs_the_key, stranger_setup,
                                        stranger_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
