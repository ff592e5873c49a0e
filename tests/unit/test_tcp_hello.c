/* SPDX-License-Identifier: Apache-2.0 */
/* Strangers at the door: what is not a sound hello is dropped, and the link does not notice. */
#include "tcp_stranger.h"

static void wrong_hellos_are_dropped(void **state)
{
    struct stranger *s = *state;
    for (int wrong = 0; wrong < 8; wrong++) {
        struct tcp_hello hello = stranger_hello_for(s, 0);
        uint8_t bytes[TCP_HELLO_SIZE];
        hello.token[15] ^= wrong == 0;
        hello.token[0] ^= wrong == 1 ? 0x80 : 0;
        hello.version += wrong == 2;
        hello.sockets = wrong == 3 ? 0 : wrong == 4 ? 3 : 2;
        hello.index = wrong == 5 ? 2 : 0;
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
        cmocka_unit_test_setup_teardown(a_second_hello_must_fit_the_first, stranger_setup,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(a_hello_byte_by_byte, stranger_setup, stranger_teardown),
        cmocka_unit_test_setup_teardown(gone_before_the_link_is_up, stranger_setup,
                                        stranger_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
