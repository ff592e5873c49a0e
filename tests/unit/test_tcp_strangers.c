/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tcp nic among strangers: bytes that no honest peer sends cost the one who sent them, and no one
 * else. Side B of a healthy pair also has a link whose peer is a bare socket of this test.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <netinet/in.h>

#include <cmocka.h>

#include "pair.h"
#include "transports/tcp/tcp_wire.h"

extern const struct weft_transport weft_transport_tcp;

#define KEY 0xfeedfacecafebeefull
#define READ_KEY 77
#define HEALTHY_KEY 4711
#define LEN 8192
#define HUGE ((uint64_t)5 << 30)
#define FAR (((uint64_t)4 << 30) + 12345) /* an offset that does not fit into 32 bits */
#define DEPTH 64

struct stranger {
    struct pair pair;
    struct weft_link *link; /* its peer is us */
    uint8_t address[WEFT_LINK_ADDRESS_MAX];
    int fd[2];
    uint8_t *mem; /* LEN bytes at B under KEY, readable under READ_KEY */
    uint8_t healthy[64];
    struct weft_mem_handle handles[3];
};

/* --- sockets ------------------------------------------------------------------------------- */

static int dial(const struct stranger *s)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(tcp_get16(s->address + 8))};
    struct timeval limit = {.tv_sec = PAIR_WAIT_MS / 1000};
    memcpy(&to.sin_addr, s->address + 16, 4);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return fd;
}

static void say(int fd, const void *data, size_t len)
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

static void hear(struct stranger *s, int fd, void *data, size_t len)
{
    for (size_t got = 0; got < len;) {
        await(s, fd);
        ssize_t n = recv(fd, (char *)data + got, len - got, 0);
        assert_true(n > 0);
        got += (size_t)n;
    }
}

static void hear_end(struct stranger *s, int fd)
{
    char byte;
    await(s, fd);
    assert_true(recv(fd, &byte, 1, 0) <= 0);
    close(fd);
}

static struct tcp_hello hello_for(const struct stranger *s, uint8_t index)
{
    struct tcp_hello hello = {
        .version = TCP_VERSION, .index = index, .sockets = 2, .depth = DEPTH};
    memcpy(hello.token, s->address + 32, TCP_TOKEN);
    return hello;
}

static void say_hello(int fd, struct tcp_hello hello)
{
    uint8_t bytes[TCP_HELLO_SIZE];
    tcp_hello_encode(bytes, &hello);
    say(fd, bytes, sizeof bytes);
}

static int finish_connect(struct stranger *s)
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
static void join(struct stranger *s)
{
    uint8_t answer[TCP_HELLO_SIZE];
    for (uint8_t i = 0; i < 2; i++) {
        s->fd[i] = dial(s);
        say_hello(s->fd[i], hello_for(s, i));
        hear(s, s->fd[i], answer, sizeof answer);
    }
    assert_int_equal(finish_connect(s), 0);
}

/* --- fixture ------------------------------------------------------------------------------- */

static void open_link(struct stranger *s)
{
    struct weft_link_opts opts = {.role = WEFT_ROLE_PASSIVE};
    PAIR_OK(s->pair.ops->link_open(s->pair.side[PAIR_B].nic, &opts, &s->link));
    assert_int_equal(s->pair.ops->link_address(s->link, s->address, sizeof s->address),
                     TCP_ADDRESS_SIZE);
}

static int setup(void **state)
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
    open_link(s);
    *state = s;
    return 0;
}

static int setup_joined(void **state)
{
    setup(state);
    join(*state);
    return 0;
}

static void close_link(struct stranger *s)
{
    for (int i = 0; i < 2; i++)
        if (s->fd[i] >= 0)
            close(s->fd[i]);
    s->fd[0] = s->fd[1] = -1;
    s->pair.ops->link_close(s->link);
}

/* The other link of the nic works. */
static void check_healthy(struct stranger *s)
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

static int teardown(void **state)
{
    struct stranger *s = *state;
    check_healthy(s);
    close_link(s);
    /* nothing that strangers began keeps memory busy */
    for (int i = 0; i < 3; i++)
        assert_int_equal(s->pair.ops->mem_dereg(s->pair.side[PAIR_B].nic, s->handles[i].mem), 0);
    pair_close(&s->pair);
    free(s->mem);
    free(s);
    return 0;
}

static void await_down(struct stranger *s, int status)
{
    struct weft_comp comp = pair_wait(&s->pair, PAIR_B, WEFT_OP_LINK_DOWN, 0).comp;
    assert_ptr_equal(comp.link, s->link);
    assert_int_equal(comp.status, status);
}

/* --- frames -------------------------------------------------------------------------------- */

static size_t encode(uint8_t *bytes, struct tcp_frame frame)
{
    return tcp_frame_encode(bytes, &frame);
}

static void say_frame(int fd, struct tcp_frame frame)
{
    uint8_t bytes[TCP_FRAME_MAX];
    say(fd, bytes, encode(bytes, frame));
}

static struct tcp_frame hear_frame(struct stranger *s, int fd)
{
    uint8_t bytes[TCP_FRAME_MAX];
    struct tcp_frame frame;
    hear(s, fd, bytes, TCP_HEAD);
    int words = tcp_frame_words(bytes[0]);
    assert_true(words >= 0);
    hear(s, fd, bytes + TCP_HEAD, 8 * (size_t)words);
    assert_true(tcp_frame_decode(bytes, sizeof bytes, &frame) > 0);
    return frame;
}

/* Skips acknowledgements. */
static struct tcp_frame hear_type(struct stranger *s, int fd, uint8_t type)
{
    struct tcp_frame frame = hear_frame(s, fd);
    while (frame.type == TCP_ACK && type != TCP_ACK)
        frame = hear_frame(s, fd);
    assert_int_equal(frame.type, type);
    return frame;
}

static struct tcp_frame write_of(const struct stranger *s, uint8_t type, uint32_t len)
{
    return (struct tcp_frame){
        .type = type, .len = len, .id = 99, .word = {KEY, (uintptr_t)s->mem}};
}

/* --- strangers at the door ----------------------------------------------------------------- */

static void wrong_hellos_are_dropped(void **state)
{
    struct stranger *s = *state;
    for (int wrong = 0; wrong < 8; wrong++) {
        struct tcp_hello hello = hello_for(s, 0);
        uint8_t bytes[TCP_HELLO_SIZE];
        hello.token[15] ^= wrong == 0;
        hello.token[0] ^= wrong == 1 ? 0x80 : 0;
        hello.version += wrong == 2;
        hello.sockets = wrong == 3 ? 0 : wrong == 4 ? 3 : 2;
        hello.index = wrong == 5 ? 2 : 0;
        hello.depth = wrong == 6 ? 0 : DEPTH;
        tcp_hello_encode(bytes, &hello);
        bytes[0] ^= wrong == 7;
        int fd = dial(s);
        say(fd, bytes, sizeof bytes);
        hear_end(s, fd);
        check_healthy(s);
    }
    join(s); /* the link itself has not noticed */
}

static void garbage_at_the_door_is_dropped(void **state)
{
    struct stranger *s = *state;
    uint8_t bytes[512];
    for (int i = 0; i < 100; i++) {
        int fd = dial(s);
        weft_random(bytes, sizeof bytes);
        say(fd, bytes, sizeof bytes);
        hear_end(s, fd);
    }
    join(s);
}

static void half_a_hello_and_away(void **state)
{
    struct stranger *s = *state;
    uint8_t bytes[TCP_HELLO_SIZE];
    struct tcp_hello hello = hello_for(s, 0);
    tcp_hello_encode(bytes, &hello);
    for (size_t len = 0; len < TCP_HELLO_SIZE; len++) {
        int fd = dial(s);
        if (len)
            say(fd, bytes, len);
        pair_poll(&s->pair, PAIR_B);
        close(fd);
        pair_poll(&s->pair, PAIR_B);
    }
    join(s);
}

/* More than may be half open: the oldest go, the newest get in. */
static void silent_callers_push_each_other_out(void **state)
{
    enum { CALLERS = 100, KEPT = 64 };
    struct stranger *s = *state;
    int fd[CALLERS];
    for (int i = 0; i < CALLERS; i++) {
        fd[i] = dial(s);
        for (int k = 0; k < 4; k++)
            pair_poll(&s->pair, PAIR_B);
    }
    for (int i = 0; i < CALLERS - KEPT; i++)
        hear_end(s, fd[i]);
    join(s);
    for (int i = CALLERS - KEPT; i < CALLERS; i++)
        close(fd[i]);
}

/* The same socket twice, or other terms than the first one's. */
static void a_second_hello_must_fit_the_first(void **state)
{
    struct stranger *s = *state;
    uint8_t answer[TCP_HELLO_SIZE];
    s->fd[0] = dial(s);
    say_hello(s->fd[0], hello_for(s, 0));
    hear(s, s->fd[0], answer, sizeof answer);
    int fd = dial(s);
    say_hello(fd, hello_for(s, 0));
    hear_end(s, fd);
    struct tcp_hello alone = hello_for(s, 0);
    alone.sockets = 1;
    fd = dial(s);
    say_hello(fd, alone);
    hear_end(s, fd);
    s->fd[1] = dial(s);
    say_hello(s->fd[1], hello_for(s, 1));
    assert_int_equal(finish_connect(s), 0);
    fd = dial(s); /* a link that is up takes no more */
    say_hello(fd, hello_for(s, 1));
    hear_end(s, fd);
}

static void a_hello_byte_by_byte(void **state)
{
    struct stranger *s = *state;
    for (uint8_t i = 0; i < 2; i++) {
        uint8_t bytes[TCP_HELLO_SIZE], answer[TCP_HELLO_SIZE];
        struct tcp_hello hello = hello_for(s, i), back;
        tcp_hello_encode(bytes, &hello);
        s->fd[i] = dial(s);
        for (size_t k = 0; k < sizeof bytes; k++) {
            say(s->fd[i], bytes + k, 1);
            pair_poll(&s->pair, PAIR_B);
        }
        hear(s, s->fd[i], answer, sizeof answer);
        assert_true(tcp_hello_decode(answer, &back));
        assert_int_equal(back.index, i);
        assert_int_equal(back.sockets, 2);
        assert_memory_equal(back.token, hello.token, TCP_TOKEN);
    }
    assert_int_equal(finish_connect(s), 0);
}

static void gone_before_the_link_is_up(void **state)
{
    struct stranger *s = *state;
    uint8_t answer[TCP_HELLO_SIZE];
    for (uint8_t i = 0; i < 2; i++) {
        s->fd[i] = dial(s);
        say_hello(s->fd[i], hello_for(s, i));
        hear(s, s->fd[i], answer, sizeof answer);
    }
    struct linger hard = {.l_onoff = 1};
    setsockopt(s->fd[1], SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    close(s->fd[1]);
    s->fd[1] = -1;
    for (int i = 0; i < 100; i++)
        pair_poll(&s->pair, PAIR_B);
    assert_int_equal(finish_connect(s), WEFT_EPEER);
}

/* --- frames that break the protocol -------------------------------------------------------- */

/* Socket, and what is said on it after joining. */
struct bad {
    const char *what;
    int sock;
    struct tcp_frame frame;
};

static const struct bad bads[] = {
    {"a message on a socket for chunks", 1, {.type = TCP_SEND, .len = 1}},
    {"a message that is too long", 0, {.type = TCP_SEND, .len = 65537}},
    {"a message of 4 GiB", 0, {.type = TCP_SEND, .len = UINT32_MAX}},
    {"payload where none belongs", 0, {.type = TCP_ACK, .len = 1}},
    {"an addition with payload", 0, {.type = TCP_ADD, .len = 8, .word = {KEY}}},
    {"a chunk past its range", 1, {.type = TCP_PART, .len = 9, .word = {KEY, 0, 16, 8}}},
    {"a chunk that starts past it", 1, {.type = TCP_PART, .len = 0, .word = {KEY, 0, 16, 17}}},
    {"an offset that overflows", 1, {.type = TCP_PART, .len = 9, .word = {KEY, 0, 16, -4ull}}},
    {"a range of 2^63", 1, {.type = TCP_PART, .len = 9, .word = {KEY, 0, 1ull << 63, 0}}},
    {"a read of 2^63", 0, {.type = TCP_READ, .word = {KEY, 0, 1ull << 63}}},
    {"data for no read", 1, {.type = TCP_DATA, .len = 1, .id = 3}},
    {"data for no call", 1, {.type = TCP_DATA, .len = 1, .id = UINT32_MAX}},
    {"the end of no read", 0, {.type = TCP_END, .id = 5, .word = {0, TCP_CODE_KEY}}},
    {"the end of no call", 0, {.type = TCP_END, .id = 1u << 31, .word = {0, TCP_CODE_KEY}}},
    {"an answer to no addition", 0, {.type = TCP_ADDED, .id = 0}},
    {"refusal of nothing", 0, {.type = TCP_NACK, .id = 0, .word = {0, TCP_CODE_KEY}}},
    {"refusal on no socket", 0, {.type = TCP_NACK, .id = 0, .word = {2, TCP_CODE_KEY}}},
    {"refusal on a far socket", 0, {.type = TCP_NACK, .word = {1ull << 40, TCP_CODE_KEY}}},
    {"refusal for no reason", 0, {.type = TCP_NACK, .word = {0, TCP_OK}}},
    {"refusal on another socket", 1, {.type = TCP_NACK, .word = {0, TCP_CODE_KEY}}},
    {"acknowledgement of nothing", 0, {.type = TCP_ACK, .ack = 1}},
    {"acknowledgement of all", 0, {.type = TCP_ACK, .ack = UINT32_MAX}},
    {"acknowledgement of a far socket", 0, {.type = TCP_ACK, .ack_sock = 2}},
    {"acknowledgement of no socket", 0, {.type = TCP_ACK, .ack_sock = 255}},
};

static void rejoin(struct stranger *s)
{
    close_link(s);
    open_link(s);
    join(s);
}

static void bad_frames_take_their_link_down(void **state)
{
    struct stranger *s = *state;
    for (size_t i = 0; i < sizeof bads / sizeof *bads; i++) {
        say_frame(s->fd[bads[i].sock], bads[i].frame);
        await_down(s, WEFT_EPROTO);
        check_healthy(s);
        rejoin(s);
    }
}

static void no_frames_take_their_link_down(void **state)
{
    struct stranger *s = *state;
    static const uint8_t types[] = {0, TCP_TYPES, TCP_TYPES + 1, 0x7f, 0x80, 0xff};
    uint8_t bytes[TCP_HEAD];
    for (size_t i = 0; i < sizeof types; i++) {
        memset(bytes, 0, sizeof bytes);
        bytes[0] = types[i];
        say(s->fd[i % 2], bytes, 1); /* the type alone is enough */
        await_down(s, WEFT_EPROTO);
        rejoin(s);
    }
    for (size_t at = 2; at < 4; at++) {
        encode(bytes, (struct tcp_frame){.type = TCP_ACK});
        bytes[at] = 1;
        say(s->fd[0], bytes, sizeof bytes);
        await_down(s, WEFT_EPROTO);
        rejoin(s);
    }
    assert_int_equal(s->mem[0], 0);
}

static void noise_takes_its_link_down(void **state)
{
    struct stranger *s = *state;
    uint64_t noise[512];
    for (int i = 0; i < 60; i++) {
        weft_random(noise, sizeof noise);
        /* Make it plausible: a valid type first, so that every parser is entered. */
        ((uint8_t *)noise)[0] = (uint8_t)(1 + i % (TCP_TYPES - 1));
        ((uint8_t *)noise)[2] = ((uint8_t *)noise)[3] = 0;
        say(s->fd[i % 2], noise, sizeof noise);
        /* it may also be waiting for the rest of a refused write */
        shutdown(s->fd[i % 2], SHUT_WR);
        int status = pair_wait(&s->pair, PAIR_B, WEFT_OP_LINK_DOWN, 0).comp.status;
        assert_true(status == WEFT_EPROTO || status == WEFT_EPEER);
        rejoin(s);
    }
    for (size_t i = 0; i < LEN; i++)
        assert_int_equal(s->mem[i], 0);
}

/* More READs than were agreed, sent by one who does not take the answers. */
static void a_flood_of_reads_is_cut_off(void **state)
{
    struct stranger *s = *state;
    struct tcp_frame read = {.type = TCP_READ, .word = {KEY, (uintptr_t)s->mem, LEN}};
    for (int i = 0; i < 100000; i++) {
        uint8_t bytes[TCP_FRAME_MAX];
        size_t len = encode(bytes, read);
        if (send(s->fd[0], bytes, len, MSG_NOSIGNAL) < 0)
            break;
        if (i % 256 == 0 && pair_poll(&s->pair, PAIR_B) > 0)
            break;
    }
    await_down(s, WEFT_EPROTO);
}

static void a_flood_of_additions_is_cut_off(void **state)
{
    struct stranger *s = *state;
    struct tcp_frame add = {.type = TCP_ADD, .word = {KEY, (uintptr_t)s->mem, 1}};
    uint64_t deadline = weft_now() + PAIR_WAIT_MS * 1000000ull;
    bool down = false;
    while (!down) {
        uint8_t bytes[64 * TCP_FRAME_MAX];
        size_t len = 0;
        while (len < sizeof bytes - TCP_FRAME_MAX)
            len += encode(bytes + len, add);
        down = send(s->fd[0], bytes, len, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno != EAGAIN;
        pair_poll(&s->pair, PAIR_B);
        assert_true(weft_now() < deadline);
    }
    await_down(s, WEFT_EPROTO);
}

/* --- frames in odd pieces ------------------------------------------------------------------ */

static void drip(struct stranger *s, int fd, const uint8_t *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        say(fd, bytes + i, 1);
        pair_poll(&s->pair, PAIR_B);
    }
}

static void frames_byte_by_byte(void **state)
{
    struct stranger *s = *state;
    uint8_t bytes[1000], text[100];
    pair_fill(text, sizeof text, 5);
    for (int sock = 0; sock < 2; sock++) {
        size_t len = encode(bytes, write_of(s, TCP_WRITE_IMM, sizeof text));
        memcpy(bytes + len, text, sizeof text);
        drip(s, s->fd[sock], bytes, len + sizeof text);
        struct weft_comp comp = pair_wait(&s->pair, PAIR_B, WEFT_OP_WRITE_IMM, 0).comp;
        assert_int_equal(comp.imm, 99);
        assert_ptr_equal(comp.link, s->link);
        assert_true(pair_filled(s->mem, sizeof text, 5));
        memset(s->mem, 0, sizeof text);
    }
    size_t len = encode(bytes, (struct tcp_frame){.type = TCP_SEND, .len = sizeof text});
    memcpy(bytes + len, text, sizeof text);
    drip(s, s->fd[0], bytes, len + sizeof text);
    struct pair_comp got = pair_wait(&s->pair, PAIR_B, WEFT_OP_RECV, 0);
    assert_int_equal(got.comp.len, sizeof text);
    assert_true(pair_filled(got.data, sizeof text, 5));
    free(got.data);
}

/* One segment holds many frames; the last one is cut anywhere and goes on in the next. */
static void many_frames_cut_anywhere(void **state)
{
    struct stranger *s = *state;
    enum { FRAMES = 20, TEXT = 37 };
    uint8_t bytes[FRAMES * (TCP_FRAME_MAX + TEXT)];
    size_t len = 0;
    for (uint32_t i = 0; i < FRAMES; i++) {
        len += encode(bytes + len, (struct tcp_frame){.type = TCP_SEND, .len = TEXT});
        pair_fill(bytes + len, TEXT, i);
        len += TEXT;
    }
    for (size_t cut = 1; cut < 120; cut += 3) {
        say(s->fd[0], bytes, cut);
        pair_poll(&s->pair, PAIR_B);
        say(s->fd[0], bytes + cut, len - cut);
        for (uint32_t i = 0; i < FRAMES; i++) {
            struct pair_comp got = pair_wait(&s->pair, PAIR_B, WEFT_OP_RECV, 0);
            assert_true(got.comp.len == TEXT && pair_filled(got.data, TEXT, i));
            free(got.data);
        }
    }
}

static void half_a_frame_and_away(void **state)
{
    struct stranger *s = *state;
    uint8_t bytes[TCP_FRAME_MAX + 64] = {0};
    size_t len = encode(bytes, write_of(s, TCP_WRITE, 5000));
    for (size_t cut = 0; cut <= len + 64; cut += 7) {
        memset(s->mem, 0xee, LEN);
        say(s->fd[1], bytes, cut ? cut : 1);
        pair_poll(&s->pair, PAIR_B);
        close(s->fd[1]);
        s->fd[1] = -1;
        await_down(s, WEFT_EPEER);
        for (size_t i = 64; i < LEN; i++)
            assert_int_equal(s->mem[i], 0xee);
        rejoin(s);
    }
}

/* --- one-sided operations of strangers ----------------------------------------------------- */

static void refused_writes_are_told_and_thrown_away(void **state)
{
    struct stranger *s = *state;
    uint8_t payload[3000];
    static const struct {
        uint64_t key, shift, code;
    } cases[] = {{KEY + 1, 0, TCP_CODE_KEY},
                 {KEY, LEN - 2999, TCP_CODE_BOUNDS},
                 {KEY, -1ull, TCP_CODE_BOUNDS},
                 {READ_KEY, 0, TCP_CODE_ACCESS}};
    memset(payload, 1, sizeof payload);
    for (uint32_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tcp_frame frame = write_of(s, i & 1 ? TCP_WRITE_IMM : TCP_WRITE, sizeof payload);
        frame.word[0] = cases[i].key;
        frame.word[1] += cases[i].shift;
        say_frame(s->fd[1], frame);
        say(s->fd[1], payload, sizeof payload);
        struct tcp_frame nack = hear_type(s, s->fd[0], TCP_NACK);
        assert_int_equal(nack.word[0], 1);
        assert_int_equal(nack.word[1], cases[i].code);
        assert_int_equal(nack.id, i);
        struct tcp_frame ack = hear_type(s, s->fd[0], TCP_ACK);
        assert_int_equal(ack.ack_sock, 1);
        assert_int_equal(ack.ack, i + 1);
    }
    for (size_t i = 0; i < LEN; i++)
        assert_int_equal(s->mem[i], 0);
    struct pair_comp none;
    assert_false(pair_take(&s->pair, PAIR_B, WEFT_OP_WRITE_IMM, 0, &none));
}

static uint8_t *map_huge(void)
{
    uint8_t *at = mmap(NULL, HUGE, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

/* A chunk beyond 4 GiB lands there. */
static void chunks_beyond_4_gib(void **state)
{
    struct stranger *s = *state;
    uint8_t text[50], *huge = map_huge();
    if (!huge)
        skip();
    struct weft_mem_handle handle = pair_reg(&s->pair, PAIR_B, huge, HUGE, PAIR_ALL, 5);
    pair_fill(text, sizeof text, 9);
    struct tcp_frame part = {
        .type = TCP_PART_IMM, .len = sizeof text, .word = {5, (uintptr_t)huge + 1, HUGE - 1, FAR}};
    say_frame(s->fd[1], part);
    say(s->fd[1], text, sizeof text);
    pair_wait(&s->pair, PAIR_B, WEFT_OP_WRITE_IMM, 0);
    assert_true(pair_filled(huge + 1 + FAR, sizeof text, 9));
    assert_int_equal(huge[1 + (uint32_t)FAR], 0);
    part.word[2] = HUGE; /* one byte more than there is */
    say_frame(s->fd[1], part);
    say(s->fd[1], text, sizeof text);
    assert_int_equal(hear_type(s, s->fd[0], TCP_NACK).word[1], TCP_CODE_BOUNDS);
    assert_int_equal(s->pair.ops->mem_dereg(s->pair.side[PAIR_B].nic, handle.mem), 0);
    munmap(huge, HUGE);
}

static struct weft_cmd huge_cmd(enum weft_op op, uint8_t *huge)
{
    return (struct weft_cmd){.op = (uint8_t)op,
                             .len = HUGE,
                             .remote_addr = 0x1000,
                             .remote_key = 3,
                             .ctx = 8,
                             .one = {.addr = huge, .len = HUGE}};
}

/* A READ of 5 GiB asks for 5 GiB, and takes a chunk at its end. */
static void a_read_beyond_4_gib(void **state)
{
    struct stranger *s = *state;
    uint8_t text[50], *huge = map_huge();
    if (!huge)
        skip();
    struct weft_cmd cmd = huge_cmd(WEFT_OP_READ, huge);
    assert_int_equal(s->pair.ops->post(s->link, &cmd, 1), 1);
    struct tcp_frame read = hear_type(s, s->fd[0], TCP_READ);
    assert_true(read.word[0] == 3 && read.word[1] == 0x1000 && read.word[2] == HUGE);
    pair_fill(text, sizeof text, 4);
    say_frame(s->fd[1], (struct tcp_frame){.type = TCP_DATA,
                                           .id = read.id,
                                           .len = sizeof text,
                                           .word = {HUGE - sizeof text}});
    say(s->fd[1], text, sizeof text);
    say_frame(s->fd[0], (struct tcp_frame){
                            .type = TCP_END, .id = read.id, .word = {sizeof text, TCP_CODE_KEY}});
    struct weft_comp comp = pair_wait(&s->pair, PAIR_B, WEFT_OP_READ, 8).comp;
    assert_int_equal(comp.status, WEFT_EKEY);
    assert_true(pair_filled(huge + HUGE - sizeof text, sizeof text, 4));
    munmap(huge, HUGE);
}

/* A WRITE of 5 GiB announces all of it in each chunk. */
static void a_write_beyond_4_gib(void **state)
{
    struct stranger *s = *state;
    uint8_t *huge = map_huge(), *sink = malloc(1 << 20);
    if (!huge)
        skip();
    struct weft_cmd cmd = huge_cmd(WEFT_OP_WRITE, huge);
    assert_int_equal(s->pair.ops->post(s->link, &cmd, 1), 1);
    for (uint64_t offset = 0; offset < 4 << 20;) {
        struct tcp_frame part = hear_type(s, s->fd[1], TCP_PART);
        assert_true(part.word[1] == 0x1000 && part.word[2] == HUGE && part.word[3] == offset);
        assert_true(part.len > 0 && part.len <= 1 << 20);
        hear(s, s->fd[1], sink, part.len);
        offset += part.len;
    }
    close(s->fd[1]);
    s->fd[1] = -1;
    await_down(s, WEFT_EPEER);
    munmap(huge, HUGE);
    free(sink);
}

/* --- answers of strangers ------------------------------------------------------------------ */

static uint32_t post_read(struct stranger *s, void *into, uint64_t len)
{
    struct weft_cmd cmd = {
        .op = WEFT_OP_READ, .len = len, .ctx = 6, .one = {.addr = into, .len = len}};
    assert_int_equal(s->pair.ops->post(s->link, &cmd, 1), 1);
    return hear_type(s, s->fd[0], TCP_READ).id;
}

static void say_data(struct stranger *s, int sock, uint32_t call, uint64_t offset, uint32_t len)
{
    uint8_t bytes[256];
    memset(bytes, 0xaa, sizeof bytes);
    say_frame(s->fd[sock],
              (struct tcp_frame){.type = TCP_DATA, .id = call, .len = len, .word = {offset}});
    say(s->fd[sock], bytes, len);
}

/* Too much, outside, twice, after the end: never a byte outside the READ. */
static void wrong_answers_to_a_read(void **state)
{
    struct stranger *s = *state;
    uint8_t *into = malloc(300);
    for (int wrong = 0; wrong < 6; wrong++) {
        memset(into, 0, 300);
        uint32_t call = post_read(s, into, 100);
        if (wrong == 0)
            say_data(s, 0, call, 0, 101);
        if (wrong == 1)
            say_data(s, 1, call, 1, 100);
        if (wrong == 2)
            say_data(s, 1, call, -50ull, 100);
        if (wrong == 3) {
            say_data(s, 1, call, 0, 60);
            say_data(s, 1, call, 0, 60);
        }
        if (wrong == 4) {
            say_frame(s->fd[0],
                      (struct tcp_frame){.type = TCP_END, .id = call, .word = {10, TCP_CODE_KEY}});
            pair_poll(&s->pair, PAIR_B);
            say_data(s, 0, call, 0, 11);
        }
        if (wrong == 5)
            say_frame(s->fd[0], (struct tcp_frame){.type = TCP_ADDED, .id = call});
        await_down(s, WEFT_EPROTO);
        for (int i = 100; i < 300; i++)
            assert_int_equal(into[i], 0);
        rejoin(s);
    }
    free(into);
}

/* An answer that fails ends the READ only when what was sent before has come. */
static void an_end_waits_for_its_chunks(void **state)
{
    struct stranger *s = *state;
    uint8_t into[100] = {0}, bytes[40];
    struct pair_comp none;
    uint32_t call = post_read(s, into, sizeof into);
    say_frame(s->fd[0],
              (struct tcp_frame){.type = TCP_END, .id = call, .word = {40, TCP_CODE_KEY}});
    say_frame(s->fd[1], (struct tcp_frame){.type = TCP_DATA, .id = call, .len = 40, .word = {60}});
    memset(bytes, 7, sizeof bytes);
    say(s->fd[1], bytes, 39);
    for (int i = 0; i < 100; i++)
        pair_poll(&s->pair, PAIR_B);
    assert_false(pair_take(&s->pair, PAIR_B, WEFT_OP_READ, 6, &none));
    say(s->fd[1], bytes, 1);
    assert_int_equal(pair_wait(&s->pair, PAIR_B, WEFT_OP_READ, 6).comp.status, WEFT_EKEY);
    assert_int_equal(into[99], 7);
}

/* The peer's depth holds if it is the smaller one. */
static void no_more_cmds_than_the_peer_takes(void **state)
{
    struct stranger *s = *state;
    uint8_t byte = 0;
    struct weft_cmd cmds[DEPTH + 10];
    for (int i = 0; i < DEPTH + 10; i++)
        cmds[i] = (struct weft_cmd){
            .op = WEFT_OP_SEND, .len = 1, .one = {.addr = &byte, .len = 1}};
    assert_int_equal(s->pair.ops->post(s->link, cmds, DEPTH + 10), DEPTH);
    assert_int_equal(s->pair.ops->post(s->link, cmds, 1), 0);
}

int main(void)
{
#define OUTSIDE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
#define JOINED(test) cmocka_unit_test_setup_teardown(test, setup_joined, teardown)
    const struct CMUnitTest tests[] = {
        OUTSIDE(wrong_hellos_are_dropped),
        OUTSIDE(garbage_at_the_door_is_dropped),
        OUTSIDE(half_a_hello_and_away),
        OUTSIDE(silent_callers_push_each_other_out),
        OUTSIDE(a_second_hello_must_fit_the_first),
        OUTSIDE(a_hello_byte_by_byte),
        OUTSIDE(gone_before_the_link_is_up),
        JOINED(bad_frames_take_their_link_down),
        JOINED(no_frames_take_their_link_down),
        JOINED(noise_takes_its_link_down),
        JOINED(a_flood_of_reads_is_cut_off),
        JOINED(a_flood_of_additions_is_cut_off),
        JOINED(frames_byte_by_byte),
        JOINED(many_frames_cut_anywhere),
        JOINED(half_a_frame_and_away),
        JOINED(refused_writes_are_told_and_thrown_away),
        JOINED(chunks_beyond_4_gib),
        JOINED(a_read_beyond_4_gib),
        JOINED(a_write_beyond_4_gib),
        JOINED(wrong_answers_to_a_read),
        JOINED(an_end_waits_for_its_chunks),
        JOINED(no_more_cmds_than_the_peer_takes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
