/* SPDX-License-Identifier: Apache-2.0 */
/* A tcp nic among strangers; see tcp_stranger.h. */
#include "tcp_stranger.h"

#include <netinet/in.h>

extern const struct weft_transport weft_transport_tcp;

#define HEALTHY_KEY 4711

/* --- sockets ------------------------------------------------------------------------------- */

int stranger_dial(const struct stranger *s)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(tcp_get16(s->address + 8))};
    struct timeval limit = {.tv_sec = PAIR_WAIT_MS / 1000};
    memcpy(&to.sin_addr, s->address + 16, 4);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return fd;
}

void stranger_say(int fd, const void *data, size_t len)
{
    assert_int_equal(send(fd, data, len, MSG_NOSIGNAL), len);
}

/* Poll B until the socket has something to read, which may be its end. */
static void await(struct stranger *s, int fd)
{
    char byte;
    uint64_t deadline = weft_now() + PAIR_WAIT_MS * 1000000ull;
    while (recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN) {
        pair_poll(&s->pair, PAIR_B);
        assert_true(weft_now() < deadline);
    }
}

void stranger_hear(struct stranger *s, int fd, void *data, size_t len)
{
    for (size_t got = 0; got < len;) {
        await(s, fd);
        ssize_t n = recv(fd, (char *)data + got, len - got, 0);
        assert_true(n > 0);
        got += (size_t)n;
    }
}

void stranger_hear_end(struct stranger *s, int fd)
{
    char byte;
    await(s, fd);
    assert_true(recv(fd, &byte, 1, 0) <= 0);
    close(fd);
}

struct tcp_hello stranger_hello_for(const struct stranger *s, uint8_t index)
{
    struct tcp_hello hello = {
        .version = TCP_VERSION, .index = index, .sockets = 2, .depth = DEPTH};
    memcpy(hello.token, s->address + 32, TCP_TOKEN);
    return hello;
}

void stranger_say_hello(int fd, struct tcp_hello hello)
{
    uint8_t bytes[TCP_HELLO_SIZE];
    tcp_hello_encode(bytes, &hello);
    stranger_say(fd, bytes, sizeof bytes);
}

int stranger_finish_connect(struct stranger *s)
{
    uint8_t mine[TCP_ADDRESS_SIZE] = {0};
    int rc;
    tcp_put32(mine, TCP_MAGIC);
    mine[4] = TCP_VERSION;
    uint64_t deadline = weft_now() + PAIR_WAIT_MS * 1000000ull;
    while ((rc = s->pair.ops->link_connect(s->link, mine, sizeof mine)) == WEFT_EAGAIN) {
        pair_poll(&s->pair, PAIR_B);
        assert_true(weft_now() < deadline);
    }
    return rc;
}

/* Both sockets of the link are ours. */
void stranger_join(struct stranger *s)
{
    uint8_t answer[TCP_HELLO_SIZE];
    for (uint8_t i = 0; i < 2; i++) {
        s->fd[i] = stranger_dial(s);
        stranger_say_hello(s->fd[i], stranger_hello_for(s, i));
        stranger_hear(s, s->fd[i], answer, sizeof answer);
    }
    assert_int_equal(stranger_finish_connect(s), 0);
}

/* --- fixture ------------------------------------------------------------------------------- */

void stranger_open_link(struct stranger *s)
{
    struct weft_link_opts opts = {.role = WEFT_ROLE_PASSIVE};
    PAIR_OK(s->pair.ops->link_open(s->pair.side[PAIR_B].nic, &opts, &s->link));
    assert_int_equal(s->pair.ops->link_address(s->link, s->address, sizeof s->address),
                     TCP_ADDRESS_SIZE);
}

struct stranger_link stranger_join_another(struct stranger *s)
{
    struct stranger_link first = {.link = s->link, .fd = {s->fd[0], s->fd[1]}};
    stranger_open_link(s);
    stranger_join(s);
    struct stranger_link made = {.link = s->link, .fd = {s->fd[0], s->fd[1]}};
    s->link = first.link;
    memcpy(s->fd, first.fd, sizeof s->fd);
    return made;
}

int stranger_setup(void **state)
{
    struct stranger *s = calloc(1, sizeof *s);
    pair_open(&s->pair, &weft_transport_tcp, "tcp");
    pair_connect(&s->pair);
    s->mem = calloc(1, LEN);
    s->fd[0] = s->fd[1] = -1;
    s->handles[0] = pair_reg(&s->pair, PAIR_B, s->mem, LEN, PAIR_ALL, KEY);
    s->handles[1] = pair_reg(&s->pair, PAIR_B, s->mem, LEN, WEFT_ACCESS_READ, READ_KEY);
    s->handles[2] = pair_reg(&s->pair, PAIR_B, s->healthy, sizeof s->healthy, PAIR_ALL,
                             HEALTHY_KEY);
    stranger_open_link(s);
    *state = s;
    return 0;
}

int stranger_setup_joined(void **state)
{
    stranger_setup(state);
    stranger_join(*state);
    return 0;
}

int stranger_setup_with(int (*setup)(void **state), void **state, const char *name, const char *value)
{
    weft_config_set(name, value);
    int rc = setup(state);
    weft_config_set(name, NULL);
    return rc;
}

void stranger_close_link(struct stranger *s)
{
    for (int i = 0; i < 2; i++)
        if (s->fd[i] >= 0)
            close(s->fd[i]);
    s->fd[0] = s->fd[1] = -1;
    s->pair.ops->link_close(s->link);
}

/* The other link of the nic works. */
void stranger_check_healthy(struct stranger *s)
{
    uint8_t bytes[sizeof s->healthy];
    static uint32_t seed;
    pair_fill(bytes, sizeof bytes, ++seed);
    struct weft_cmd cmd = {.op = WEFT_OP_WRITE,
                           .remote_addr = (uintptr_t)s->healthy,
                           .remote_key = HEALTHY_KEY,
                           .len = sizeof bytes,
                           .ctx = 1,
                           .one = {.addr = bytes, .len = sizeof bytes}};
    assert_int_equal(pair_do(&s->pair, PAIR_A, &cmd), 0);
    assert_true(pair_filled(s->healthy, sizeof bytes, seed));
}

int stranger_teardown(void **state)
{
    struct stranger *s = *state;
    stranger_check_healthy(s);
    stranger_close_link(s);
    /* nothing that strangers began keeps memory busy */
    for (int i = 0; i < 3; i++)
        assert_int_equal(s->pair.ops->mem_dereg(s->pair.side[PAIR_B].nic, s->handles[i].mem), 0);
    pair_close(&s->pair);
    free(s->mem);
    free(s);
    return 0;
}

void stranger_await_down(struct stranger *s, int status)
{
    struct weft_comp comp = pair_wait(&s->pair, PAIR_B, WEFT_OP_LINK_DOWN, 0).comp;
    assert_ptr_equal(comp.link, s->link);
    assert_int_equal(comp.status, status);
}

/* --- frames -------------------------------------------------------------------------------- */

size_t stranger_encode(uint8_t *bytes, struct tcp_frame frame)
{
    return tcp_frame_encode(bytes, &frame);
}

void stranger_say_frame(int fd, struct tcp_frame frame)
{
    uint8_t bytes[TCP_FRAME_MAX];
    stranger_say(fd, bytes, stranger_encode(bytes, frame));
}

static struct tcp_frame hear_frame(struct stranger *s, int fd)
{
    uint8_t bytes[TCP_FRAME_MAX];
    struct tcp_frame frame;
    stranger_hear(s, fd, bytes, TCP_HEAD);
    int words = tcp_frame_words(bytes[0]);
    assert_true(words >= 0);
    stranger_hear(s, fd, bytes + TCP_HEAD, 8 * (size_t)words);
    assert_true(tcp_frame_decode(bytes, sizeof bytes, &frame) > 0);
    return frame;
}

/* Skips acknowledgements. */
struct tcp_frame stranger_hear_type(struct stranger *s, int fd, uint8_t type)
{
    struct tcp_frame frame = hear_frame(s, fd);
    while (frame.type == TCP_ACK && type != TCP_ACK)
        frame = hear_frame(s, fd);
    assert_int_equal(frame.type, type);
    return frame;
}

struct tcp_frame stranger_write_of(const struct stranger *s, uint8_t type, uint32_t len)
{
    return (struct tcp_frame){
        .type = type, .len = len, .id = 99, .word = {KEY, (uintptr_t)s->mem}};
}
