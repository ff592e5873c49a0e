/* SPDX-License-Identifier: Apache-2.0 */
/* A peer that has joined and then breaks the protocol, or keeps to it in odd ways. */
#include "tcp_stranger.h"
#include "../helpers.h"

#include <poll.h>
#include <sys/mman.h>

#include "transports/tcp/tcp.h"

#define HUGE ((uint64_t)5 << 30)
#define FAR (((uint64_t)4 << 30) + 12345) /* an offset that does not fit into 32 bits */

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
    {"a message that is neither patient nor not", 0, {.type = TCP_SEND, .len = 1, .id = 2}},
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
    stranger_close_link(s);
    stranger_open_link(s);
    stranger_join(s);
}

static void bad_frames_take_their_link_down(void **state)
{
    struct stranger *s = *state;
    for (size_t i = 0; i < sizeof bads / sizeof *bads; i++) {
        stranger_say_frame(s->fd[bads[i].sock], bads[i].frame);
        stranger_await_down(s, WEFT_EPROTO);
        stranger_check_healthy(s);
        rejoin(s);
    }
}

/* What a message acknowledges is looked at later. A lie is found all the same, alone and with what comes behind it. */
static void a_message_that_lies_takes_its_link_down(void **state)
{
    struct stranger *s = *state;
    const struct tcp_frame lies[] = {{.type = TCP_SEND, .len = 1, .ack = 5},
                                     {.type = TCP_SEND, .len = 1, .ack = UINT32_MAX},
                                     {.type = TCP_SEND, .len = 1, .ack_sock = 200}};
    const struct tcp_frame then[] = {stranger_write_of(s, TCP_WRITE, 1), {.type = TCP_SEND, .len = 1}, {.type = TCP_ACK}};
    for (size_t i = 0; i < 3; i++) {
        for (size_t k = 0; k < 4; k++) { /* the last time, nothing */
            uint8_t bytes[4 * TCP_FRAME_MAX];
            size_t len = stranger_encode(bytes, lies[i]);
            bytes[len++] = 'x';
            if (k < 3)
                len += stranger_encode(bytes + len, then[k]);
            bytes[len] = 'y';
            stranger_say(s->fd[0], bytes, len + (k < 2));
            stranger_await_down(s, WEFT_EPROTO);
            stranger_check_healthy(s);
            assert_int_equal(s->mem[0], 0);
            rejoin(s);
        }
    }
}

/* What was acknowledged with a message before the protocol was broken has been done. */
static void what_was_earned_before_is_handed_out(void **state)
{
    struct stranger *s = *state;
    struct weft_nic *nic = s->link->nic;
    struct weft_cmd cmd = {
        .op = WEFT_OP_SEND, .len = 1, .ctx = 4711, .one = {.addr = s->healthy, .len = 1}};
    uint8_t bytes[2 * TCP_FRAME_MAX];
    assert_int_equal(nic->transport->ops->post(s->link, &cmd, 1), 1);
    size_t len = stranger_encode(bytes, (struct tcp_frame){.type = TCP_SEND, .len = 1, .ack = 1});
    bytes[len++] = 'x';
    bytes[len++] = 0x7f; /* no frame */
    pair_poll(&s->pair, PAIR_B);
    stranger_say(s->fd[0], bytes, len);
    assert_int_equal(pair_wait(&s->pair, PAIR_B, WEFT_OP_SEND, 4711).comp.status, 0);
    stranger_await_down(s, WEFT_EPROTO);
}

static void no_frames_take_their_link_down(void **state)
{
    struct stranger *s = *state;
    static const uint8_t types[] = {0, TCP_TYPES, TCP_TYPES + 1, 0x7f, 0x80, 0xff};
    uint8_t bytes[TCP_HEAD];
    for (size_t i = 0; i < sizeof types; i++) {
        memset(bytes, 0, sizeof bytes);
        bytes[0] = types[i];
        stranger_say(s->fd[i % 2], bytes, 1); /* the type alone is enough */
        stranger_await_down(s, WEFT_EPROTO);
        rejoin(s);
    }
    assert_int_equal(s->mem[0], 0);
}

/* Payload is lent or it is not, and where there is none it is not. */
static void what_is_lent_is_payload(void **state)
{
    struct stranger *s = *state;
    uint8_t bytes[TCP_FRAME_MAX];
    for (uint8_t type = 1; type < TCP_TYPES; type++)
        for (int at = 2; at < 4; at++) {
            size_t len = stranger_encode(bytes, (struct tcp_frame){.type = type, .id = 1, .word = {KEY}});
            bytes[at] = at == 2 && tcp_frame_lends(type) ? 2 : 1;
            stranger_say(s->fd[0], bytes, len);
            stranger_await_down(s, WEFT_EPROTO);
            rejoin(s);
        }
    struct tcp_frame write = stranger_write_of(s, TCP_WRITE, 8);
    write.lent = true; /* however short */
    stranger_say_frame(s->fd[1], write);
    stranger_say(s->fd[1], "lent out", 8);
    TEST_UNTIL(s->mem[7] == 't', pair_poll(&s->pair, PAIR_B), "the bytes");
    assert_memory_equal(s->mem, "lent out", 8);
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
        stranger_say(s->fd[i % 2], noise, sizeof noise);
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
        size_t len = stranger_encode(bytes, read);
        if (send(s->fd[0], bytes, len, MSG_NOSIGNAL) < 0)
            break;
        if (i % 256 == 0 && pair_poll(&s->pair, PAIR_B) > 0)
            break;
    }
    stranger_await_down(s, WEFT_EPROTO);
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
            len += stranger_encode(bytes + len, add);
        down = send(s->fd[0], bytes, len, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno != EAGAIN;
        pair_poll(&s->pair, PAIR_B);
        assert_true(weft_now() < deadline);
    }
    stranger_await_down(s, WEFT_EPROTO);
}

/* Between two words, and over the ends of the memory: refused, and the link lives. */
static void additions_that_are_no_words_of_it(void **state)
{
    struct stranger *s = *state;
    static const int64_t offsets[] = {-8, 1, 4, LEN - 4, LEN, LEN + 8};
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
        stranger_say_frame(s->fd[0], (struct tcp_frame){.type = TCP_ADD, .id = (uint32_t)i,
                                                        .word = {KEY, (uintptr_t)s->mem + (uint64_t)offsets[i], 1}});
        struct tcp_frame answer = stranger_hear_type(s, s->fd[0], TCP_ADDED);
        assert_int_equal(answer.id, i);
        assert_int_equal(answer.word[1], TCP_CODE_BOUNDS);
    }
    for (size_t i = 0; i < LEN; i++)
        assert_int_equal(s->mem[i], 0);
}

/* --- frames in odd pieces ------------------------------------------------------------------ */

static void drip(struct stranger *s, int fd, const uint8_t *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        stranger_say(fd, bytes + i, 1);
        pair_poll(&s->pair, PAIR_B);
    }
}

static void frames_byte_by_byte(void **state)
{
    struct stranger *s = *state;
    uint8_t bytes[1000], text[100];
    pair_fill(text, sizeof text, 5);
    for (int sock = 0; sock < 2; sock++) {
        size_t len = stranger_encode(bytes, stranger_write_of(s, TCP_WRITE_IMM, sizeof text));
        memcpy(bytes + len, text, sizeof text);
        drip(s, s->fd[sock], bytes, len + sizeof text);
        struct weft_comp comp = pair_wait(&s->pair, PAIR_B, WEFT_OP_WRITE_IMM, 0).comp;
        assert_int_equal(comp.imm, 99);
        assert_ptr_equal(comp.link, s->link);
        assert_true(pair_filled(s->mem, sizeof text, 5));
        memset(s->mem, 0, sizeof text);
    }
    size_t len = stranger_encode(bytes, (struct tcp_frame){.type = TCP_SEND, .len = sizeof text});
    memcpy(bytes + len, text, sizeof text);
    drip(s, s->fd[0], bytes, len + sizeof text);
    struct pair_comp got = pair_wait(&s->pair, PAIR_B, WEFT_OP_RECV, 0);
    assert_int_equal(got.comp.len, sizeof text);
    assert_true(pair_filled(got.data, sizeof text, 5));
    free(got.data);
}

/* What a WRITE that came as a whole says of our frames counts, and has to be true. */
static void a_short_write_acknowledges(void **state)
{
    struct stranger *s = *state;
    uint8_t byte = 1, bytes[TCP_FRAME_MAX + 1];
    struct weft_cmd cmd = {
        .op = WEFT_OP_SEND, .len = 1, .ctx = 7, .one = {.addr = &byte, .len = 1}};
    struct tcp_frame write = stranger_write_of(s, TCP_WRITE, 1);
    write.ack = 1;
    size_t len = stranger_encode(bytes, write);
    bytes[len] = 0x5a;
    assert_int_equal(s->pair.ops->post(s->link, &cmd, 1), 1);
    stranger_hear_type(s, s->fd[0], TCP_SEND);
    stranger_say(s->fd[0], bytes, len + 1);
    assert_int_equal(pair_wait(&s->pair, PAIR_B, WEFT_OP_SEND, 7).comp.status, 0);
    assert_int_equal(s->mem[0], 0x5a);
    write.ack = 2; /* there was one */
    stranger_encode(bytes, write);
    bytes[len] = 0x77;
    stranger_say(s->fd[0], bytes, len + 1);
    stranger_await_down(s, WEFT_EPROTO);
    assert_int_equal(s->mem[0], 0x5a);
}

/* The peer is told; and what is patient makes nothing else go in turns. In place, and copied behind its head. */
static void patience_is_told(void **state)
{
    struct stranger *s = *state;
    const struct tcp_nic *nic = (struct tcp_nic *)s->pair.side[PAIR_B].nic;
    const size_t lens[] = {1, TCP_COPY_MAX + 1};
    uint8_t bytes[TCP_COPY_MAX + 1] = {0};
    for (uint32_t i = 0; i < 4; i++) {
        bool patient = i < 2;
        uint64_t before = nic->short_poll;
        pair_poll(&s->pair, PAIR_B);
        struct weft_cmd cmd = {.op = WEFT_OP_SEND, .len = lens[i % 2]};
        cmd.flags = patient ? WEFT_CMD_PATIENT : 0;
        cmd.one = (struct weft_iov_local){.addr = bytes, .len = cmd.len};
        assert_int_equal(s->pair.ops->post(s->link, &cmd, 1), 1);
        assert_int_equal(stranger_hear_type(s, s->fd[0], TCP_SEND).id, patient);
        stranger_hear(s, s->fd[0], bytes, cmd.len);
        stranger_say_frame(s->fd[0], (struct tcp_frame){.type = TCP_ACK, .ack = i + 1});
        assert_int_equal(pair_wait(&s->pair, PAIR_B, WEFT_OP_SEND, 0).comp.status, 0);
        assert_int_equal(nic->short_poll > before, !patient);
    }
}

/* A message comes that acknowledges so many frames, in a poll of its own; the comps of that poll. */
static int poll_message(struct stranger *s, uint32_t ack, struct weft_comp *comps, int max)
{
    uint8_t bytes[TCP_FRAME_MAX + 1] = {0};
    size_t len = stranger_encode(bytes, (struct tcp_frame){.type = TCP_SEND, .len = 1, .ack = ack});
    struct pollfd here = {.fd = ((struct tcp_link *)s->link)->socks[0].fd, .events = POLLIN};
    stranger_say(s->fd[0], bytes, len + 1);
    assert_int_equal(poll(&here, 1, TEST_DEADLINE_MS), 1);
    return s->pair.ops->poll(s->link->nic, comps, max);
}

static void post_sends(struct stranger *s, uint32_t flags, int n)
{
    static const uint8_t byte;
    for (int i = 0; i < n; i++) {
        struct weft_cmd cmd = {.op = WEFT_OP_SEND, .flags = (uint8_t)flags, .len = 1, .ctx = 1};
        cmd.one = (struct weft_iov_local){.addr = (void *)(uintptr_t)&byte, .len = 1};
        assert_int_equal(s->pair.ops->post(s->link, &cmd, 1), 1);
    }
}

/* Quiet cmds leave a poll to what has come, until there is nothing, or much of them, or one that is not quiet. */
static void quiet_ones_end_when_there_is_nothing_else(void **state)
{
    struct stranger *s = *state;
    struct weft_comp comps[DEPTH];
    const uint32_t most = DEPTH / 4;
    post_sends(s, WEFT_CMD_QUIET, (int)most);
    for (uint32_t i = 1; i <= most; i++) {
        assert_int_equal(poll_message(s, i, comps, DEPTH), 1);
        assert_int_equal(comps[0].op, WEFT_OP_RECV);
    }
    assert_int_equal(s->pair.ops->poll(s->link->nic, comps, DEPTH), most);
    for (uint32_t i = 0; i < most; i++)
        assert_true(comps[i].op == WEFT_OP_SEND && comps[i].ctx == 1 && comps[i].status == 0);
    post_sends(s, WEFT_CMD_QUIET, (int)most + 1);
    assert_int_equal(poll_message(s, 2 * most + 1, comps, DEPTH), 1);
    assert_int_equal(poll_message(s, 2 * most + 1, comps, DEPTH), most + 1);
    assert_int_equal(comps[0].op, WEFT_OP_SEND);
    assert_int_equal(s->pair.ops->poll(s->link->nic, comps, DEPTH), 1);
    post_sends(s, WEFT_CMD_QUIET, 1);
    uint32_t more = 0; /* messages that come without end do not keep it for ever */
    do
        CHECK(more++ < 100, "a quiet cmd waits behind %" PRIu32 " messages", more);
    while (poll_message(s, 2 * most + 2, comps, DEPTH) == 1 && comps[0].op == WEFT_OP_RECV);
    assert_int_equal(comps[0].op, WEFT_OP_SEND);
    assert_int_equal(s->pair.ops->poll(s->link->nic, comps, DEPTH), 1);
    post_sends(s, 0, 1);
    post_sends(s, WEFT_CMD_QUIET, 1);
    assert_int_equal(poll_message(s, 2 * most + 3, comps, DEPTH), 1);
    assert_int_equal(poll_message(s, 2 * most + 4, comps, DEPTH), 1);
    assert_int_equal(comps[0].op, WEFT_OP_SEND);
    assert_int_equal(s->pair.ops->poll(s->link->nic, comps, DEPTH), 1);
    assert_int_equal(comps[0].op, WEFT_OP_RECV);
    assert_int_equal(s->pair.ops->poll(s->link->nic, comps, DEPTH), 1);
    assert_int_equal(comps[0].op, WEFT_OP_SEND);
}

/* One segment holds many frames; the last one is cut anywhere and goes on in the next. */
static void many_frames_cut_anywhere(void **state)
{
    struct stranger *s = *state;
    enum { FRAMES = 20, TEXT = 37 };
    uint8_t bytes[FRAMES * (TCP_FRAME_MAX + TEXT)];
    size_t len = 0;
    for (uint32_t i = 0; i < FRAMES; i++) {
        len += stranger_encode(bytes + len, (struct tcp_frame){.type = TCP_SEND, .len = TEXT});
        pair_fill(bytes + len, TEXT, i);
        len += TEXT;
    }
    for (size_t cut = 1; cut < 120; cut += 3) {
        stranger_say(s->fd[0], bytes, cut);
        pair_poll(&s->pair, PAIR_B);
        stranger_say(s->fd[0], bytes + cut, len - cut);
        for (uint32_t i = 0; i < FRAMES; i++) {
            struct pair_comp got = pair_wait(&s->pair, PAIR_B, WEFT_OP_RECV, 0);
            assert_true(got.comp.len == TEXT && pair_filled(got.data, TEXT, i));
            free(got.data);
        }
    }
}

/* The end of a short WRITE may come later than its head. */
static void a_short_write_cut_anywhere(void **state)
{
    struct stranger *s = *state;
    enum { TEXT = 37 };
    uint8_t bytes[2 * TCP_FRAME_MAX + TEXT];
    size_t len = stranger_encode(bytes, stranger_write_of(s, TCP_WRITE, TEXT));
    pair_fill(bytes + len, TEXT, 3);
    len += TEXT;
    size_t all = len + stranger_encode(bytes + len, (struct tcp_frame){.type = TCP_SEND});
    for (size_t cut = 1; cut < len; cut++) {
        stranger_say(s->fd[0], bytes, cut);
        pair_poll(&s->pair, PAIR_B);
        stranger_say(s->fd[0], bytes + cut, all - cut);
        free(pair_wait(&s->pair, PAIR_B, WEFT_OP_RECV, 0).data);
        assert_true(pair_filled(s->mem, TEXT, 3));
        memset(s->mem, 0, TEXT);
    }
}

static void half_a_frame_and_away(void **state)
{
    struct stranger *s = *state;
    uint8_t bytes[TCP_FRAME_MAX + 64] = {0};
    size_t len = stranger_encode(bytes, stranger_write_of(s, TCP_WRITE, 5000));
    for (size_t cut = 0; cut <= len + 64; cut += 7) {
        memset(s->mem, 0xee, LEN);
        stranger_say(s->fd[1], bytes, cut ? cut : 1);
        pair_poll(&s->pair, PAIR_B);
        close(s->fd[1]);
        s->fd[1] = -1;
        stranger_await_down(s, WEFT_EPEER);
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
        struct tcp_frame frame = stranger_write_of(s, i & 1 ? TCP_WRITE_IMM : TCP_WRITE,
                                                   sizeof payload);
        frame.word[0] = cases[i].key;
        frame.word[1] += cases[i].shift;
        stranger_say_frame(s->fd[1], frame);
        stranger_say(s->fd[1], payload, sizeof payload);
        struct tcp_frame nack = stranger_hear_type(s, s->fd[0], TCP_NACK);
        assert_int_equal(nack.word[0], 1);
        assert_int_equal(nack.word[1], cases[i].code);
        assert_int_equal(nack.id, i);
        struct tcp_frame ack = stranger_hear_type(s, s->fd[0], TCP_ACK);
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
    stranger_say_frame(s->fd[1], part);
    stranger_say(s->fd[1], text, sizeof text);
    pair_wait(&s->pair, PAIR_B, WEFT_OP_WRITE_IMM, 0);
    assert_true(pair_filled(huge + 1 + FAR, sizeof text, 9));
    assert_int_equal(huge[1 + (uint32_t)FAR], 0);
    part.word[2] = HUGE; /* one byte more than there is */
    stranger_say_frame(s->fd[1], part);
    stranger_say(s->fd[1], text, sizeof text);
    assert_int_equal(stranger_hear_type(s, s->fd[0], TCP_NACK).word[1], TCP_CODE_BOUNDS);
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
    struct tcp_frame read = stranger_hear_type(s, s->fd[0], TCP_READ);
    assert_true(read.word[0] == 3 && read.word[1] == 0x1000 && read.word[2] == HUGE);
    pair_fill(text, sizeof text, 4);
    stranger_say_frame(s->fd[1], (struct tcp_frame){.type = TCP_DATA,
                                                    .id = read.id,
                                                    .len = sizeof text,
                                                    .word = {HUGE - sizeof text}});
    stranger_say(s->fd[1], text, sizeof text);
    stranger_say_frame(
        s->fd[0],
        (struct tcp_frame){.type = TCP_END, .id = read.id, .word = {sizeof text, TCP_CODE_KEY}});
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
        struct tcp_frame part = stranger_hear_type(s, s->fd[1], TCP_PART);
        assert_true(part.word[1] == 0x1000 && part.word[2] == HUGE && part.word[3] == offset);
        assert_true(part.len > 0 && part.len <= 1 << 20);
        stranger_hear(s, s->fd[1], sink, part.len);
        offset += part.len;
    }
    close(s->fd[1]);
    s->fd[1] = -1;
    stranger_await_down(s, WEFT_EPEER);
    munmap(huge, HUGE);
    free(sink);
}

/* --- answers of strangers ------------------------------------------------------------------ */

static uint32_t post_read(struct stranger *s, void *into, uint64_t len)
{
    struct weft_cmd cmd = {
        .op = WEFT_OP_READ, .len = len, .ctx = 6, .one = {.addr = into, .len = len}};
    assert_int_equal(s->pair.ops->post(s->link, &cmd, 1), 1);
    return stranger_hear_type(s, s->fd[0], TCP_READ).id;
}

static void say_data_of(struct stranger *s, int sock, struct tcp_frame frame)
{
    uint8_t bytes[256];
    memset(bytes, 0xaa, sizeof bytes);
    stranger_say_frame(s->fd[sock], frame);
    stranger_say(s->fd[sock], bytes, frame.len);
}

static void say_data(struct stranger *s, int sock, uint32_t call, uint64_t offset, uint32_t len)
{
    say_data_of(s, sock, (struct tcp_frame){.type = TCP_DATA, .id = call, .len = len, .word = {offset}});
}

/* What has been said on socket 0, without another poll. False: nothing. */
static bool heard(struct stranger *s, struct tcp_frame *frame)
{
    uint8_t bytes[TCP_FRAME_MAX];
    ssize_t n = recv(s->fd[0], bytes, sizeof bytes, MSG_DONTWAIT);
    if (n < 0)
        return false;
    assert_int_equal(tcp_frame_decode(bytes, (uint32_t)n, frame), n);
    return true;
}

/* Who waits for nothing more may never poll again: that it has what it was lent is said at once. */
static void the_last_read_gives_back_what_it_was_lent(void **state)
{
    struct stranger *s = *state;
    uint8_t into[100];
    struct tcp_frame frame;
    for (uint32_t i = 1; i <= 3; i++) {
        uint32_t call = post_read(s, into, sizeof into);
        say_data_of(s, 1, (struct tcp_frame){.type = TCP_DATA, .lent = true, .id = call, .len = sizeof into});
        assert_int_equal(pair_wait(&s->pair, PAIR_B, WEFT_OP_READ, 6).comp.status, 0);
        assert_true(heard(s, &frame));
        assert_true(frame.type == TCP_ACK && frame.ack_sock == 1 && frame.ack == i);
    }
}

/* Who has asked for more polls again, and says it with the next question, or by itself. */
static void what_was_lent_to_one_of_several_reads_is_given_back_later(void **state)
{
    struct stranger *s = *state;
    uint8_t into[3][100];
    struct tcp_frame frame;
    uint32_t calls[3];
    struct weft_cmd cmd = {.op = WEFT_OP_READ, .len = 100, .ctx = 7, .one = {.addr = into[2], .len = 100}};
    for (int i = 0; i < 2; i++)
        calls[i] = post_read(s, into[i], 100);
    say_data_of(s, 1, (struct tcp_frame){.type = TCP_DATA, .lent = true, .id = calls[0], .len = 100});
    assert_int_equal(pair_wait(&s->pair, PAIR_B, WEFT_OP_READ, 6).comp.status, 0);
    assert_false(heard(s, &frame));
    assert_int_equal(s->pair.ops->post(s->link, &cmd, 1), 1);
    TEST_UNTIL(heard(s, &frame), pair_poll(&s->pair, PAIR_B), "the question");
    assert_true(frame.type == TCP_READ && frame.ack_sock == 1 && frame.ack == 1);
    calls[2] = frame.id;
    say_data_of(s, 1, (struct tcp_frame){.type = TCP_DATA, .lent = true, .id = calls[2], .len = 100});
    assert_int_equal(pair_wait(&s->pair, PAIR_B, WEFT_OP_READ, 7).comp.status, 0);
    assert_false(heard(s, &frame));
    TEST_UNTIL(heard(s, &frame), pair_poll(&s->pair, PAIR_B), "the acknowledgement");
    assert_true(frame.type == TCP_ACK && frame.ack_sock == 1 && frame.ack == 2);
    say_data(s, 1, calls[1], 0, 100); /* not lent: nothing is owed for it */
    assert_int_equal(pair_wait(&s->pair, PAIR_B, WEFT_OP_READ, 6).comp.status, 0);
    for (int i = 0; i < 100; i++) {
        pair_poll(&s->pair, PAIR_B);
        assert_false(heard(s, &frame));
    }
}

static void say_end(struct stranger *s, uint32_t call, uint64_t sent, uint64_t code)
{
    stranger_say_frame(s->fd[0], (struct tcp_frame){.type = TCP_END, .id = call, .word = {sent, code}});
    for (int i = 0; i < 100; i++)
        pair_poll(&s->pair, PAIR_B);
}

/* Too much, too little, outside, twice, after the end: never a byte outside the READ, and it does not end well. */
static void wrong_answers_to_a_read(void **state)
{
    struct stranger *s = *state;
    uint8_t *into = malloc(300);
    for (int wrong = 0; wrong < 13; wrong++) {
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
            say_end(s, call, 10, TCP_CODE_KEY);
            say_data(s, 0, call, 0, 11);
        }
        if (wrong == 5)
            stranger_say_frame(s->fd[0], (struct tcp_frame){.type = TCP_ADDED, .id = call});
        if (wrong == 6) { /* an end before what has been sent */
            say_data(s, 1, call, 0, 20);
            for (int i = 0; i < 100; i++)
                pair_poll(&s->pair, PAIR_B);
            say_end(s, call, 10, TCP_CODE_KEY);
        }
        if (wrong == 7) /* of nothing */
            say_data(s, 1, call, 0, 0);
        if (wrong == 8) { /* the same, while a half of what there is comes */
            stranger_say_frame(s->fd[1], (struct tcp_frame){.type = TCP_DATA, .id = call, .len = 60});
            stranger_say(s->fd[1], "half of it", 10);
            for (int i = 0; i < 100; i++)
                pair_poll(&s->pair, PAIR_B);
            say_data(s, 0, call, 0, 0);
        }
        if (wrong == 9) /* of all, for no reason */
            say_end(s, call, 100, TCP_OK);
        if (wrong == 10)
            say_end(s, call, 101, TCP_CODE_KEY);
        if (wrong == 11)
            say_end(s, call, 0, TCP_CODES);
        if (wrong == 12) {
            say_end(s, call, 40, TCP_CODE_KEY);
            say_end(s, call, 50, TCP_CODE_KEY);
        }
        stranger_await_down(s, WEFT_EPROTO);
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
    stranger_say_frame(
        s->fd[0], (struct tcp_frame){.type = TCP_END, .id = call, .word = {40, TCP_CODE_KEY}});
    stranger_say_frame(s->fd[1],
                       (struct tcp_frame){.type = TCP_DATA, .id = call, .len = 40, .word = {60}});
    memset(bytes, 7, sizeof bytes);
    stranger_say(s->fd[1], bytes, 39);
    for (int i = 0; i < 100; i++)
        pair_poll(&s->pair, PAIR_B);
    assert_false(pair_take(&s->pair, PAIR_B, WEFT_OP_READ, 6, &none));
    stranger_say(s->fd[1], bytes, 1);
    assert_int_equal(pair_wait(&s->pair, PAIR_B, WEFT_OP_READ, 6).comp.status, WEFT_EKEY);
    assert_int_equal(into[99], 7);
}

static int setup_large_frames(void **state)
{
    weft_config_set("WEFT_TCP_SNDBUF", "4608");
    int rc = stranger_setup_with(stranger_setup_joined, state, "WEFT_TCP_CHUNK", "64M");
    weft_config_set("WEFT_TCP_SNDBUF", NULL);
    return rc;
}

/* The memory of a WRITE is not given back while a part of it has still to be sent. */
static void an_acknowledgement_of_what_was_not_sent(void **state)
{
    struct stranger *s = *state;
    uint64_t len = 64 << 20; /* one frame, and more than the socket takes while no one reads */
    void *from = calloc(1, len);
    struct weft_cmd cmd = {
        .op = WEFT_OP_WRITE, .len = len, .ctx = 6, .one = {.addr = from, .len = len}};
    assert_int_equal(s->pair.ops->post(s->link, &cmd, 1), 1);
    stranger_say_frame(s->fd[0], (struct tcp_frame){.type = TCP_ACK, .ack_sock = 1, .ack = 1});
    stranger_await_down(s, WEFT_EPROTO);
    free(from);
}

/* --- what is said of this side's frames ---------------------------------------------------------- */

static void post_one(struct stranger *s, enum weft_op op, void *from, uint64_t len)
{
    struct weft_cmd cmd = {.op = (uint8_t)op, .len = len, .ctx = 21, .one = {.addr = from, .len = len}};
    assert_int_equal(PAIR_OK(s->pair.ops->post(s->link, &cmd, 1)), 1);
}

/* A message is refused by nobody, and a WRITE for a reason that there is. */
static void refusals_that_make_no_sense(void **state)
{
    struct stranger *s = *state;
    static const uint64_t codes[] = {TCP_CODES, 1ull << 32 | TCP_CODE_KEY, 1ull << 40, UINT64_MAX};
    uint8_t bytes[16] = {0};
    post_one(s, WEFT_OP_SEND, bytes, 1);
    stranger_hear_type(s, s->fd[0], TCP_SEND);
    stranger_say_frame(s->fd[0], (struct tcp_frame){.type = TCP_NACK, .word = {0, TCP_CODE_KEY}});
    stranger_await_down(s, WEFT_EPROTO);
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        rejoin(s);
        post_one(s, WEFT_OP_WRITE, bytes, sizeof bytes);
        stranger_hear_type(s, s->fd[0], TCP_WRITE);
        stranger_say_frame(s->fd[0], (struct tcp_frame){.type = TCP_NACK, .word = {0, codes[i]}});
        stranger_await_down(s, WEFT_EPROTO);
    }
}

#define SMALL_CHUNK 4096u

static int setup_small_chunks(void **state)
{
    return stranger_setup_with(stranger_setup_joined, state, "WEFT_TCP_CHUNK", "4K");
}

static void hear_parts(struct stranger *s, uint32_t n)
{
    uint8_t sink[SMALL_CHUNK];
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(stranger_hear_type(s, s->fd[1], TCP_PART).len, SMALL_CHUNK);
        stranger_hear(s, s->fd[1], sink, SMALL_CHUNK);
    }
}

/* What was said first is why it failed, and it ends when all that went out has been counted. */
static void the_first_refusal_counts(void **state)
{
    struct stranger *s = *state;
    static uint8_t from[5 * SMALL_CHUNK];
    struct pair_comp none;
    post_one(s, WEFT_OP_WRITE, from, sizeof from);
    hear_parts(s, 5);
    stranger_say_frame(s->fd[0], (struct tcp_frame){.type = TCP_NACK, .id = 1, .word = {1, TCP_CODE_BOUNDS}});
    stranger_say_frame(s->fd[0], (struct tcp_frame){.type = TCP_NACK, .id = 3, .word = {1, TCP_CODE_KEY}});
    stranger_say_frame(s->fd[0], (struct tcp_frame){.type = TCP_ACK, .ack_sock = 1, .ack = 4});
    for (int i = 0; i < 100; i++)
        pair_poll(&s->pair, PAIR_B);
    assert_false(pair_take(&s->pair, PAIR_B, WEFT_OP_WRITE, 21, &none));
    stranger_say_frame(s->fd[0], (struct tcp_frame){.type = TCP_ACK, .ack_sock = 1, .ack = 5});
    assert_int_equal(pair_wait(&s->pair, PAIR_B, WEFT_OP_WRITE, 21).comp.status, WEFT_EBOUNDS);
}

/* A peer that counts nothing gets no more chunks than it has said it takes. */
static void no_more_chunks_than_the_peer_takes(void **state)
{
    struct stranger *s = *state;
    enum { CHUNKS = 3 * DEPTH };
    uint8_t *from = calloc(CHUNKS, SMALL_CHUNK), byte;
    post_one(s, WEFT_OP_WRITE, from, CHUNKS * (uint64_t)SMALL_CHUNK);
    for (uint32_t i = 1; i <= CHUNKS / DEPTH; i++) {
        hear_parts(s, DEPTH);
        for (int k = 0; k < 200; k++)
            pair_poll(&s->pair, PAIR_B);
        assert_int_equal(recv(s->fd[1], &byte, 1, MSG_DONTWAIT), -1);
        stranger_say_frame(s->fd[0], (struct tcp_frame){.type = TCP_ACK, .ack_sock = 1, .ack = i * DEPTH});
    }
    assert_int_equal(pair_wait(&s->pair, PAIR_B, WEFT_OP_WRITE, 21).comp.status, 0);
    free(from);
}

/* A poll hears two peers. The one that lies is found out, whichever is heard first, and the other is believed. */
static void a_lie_beside_a_message_of_another(void **state)
{
    struct stranger *s = *state;
    for (int i = 0; i < 4; i++) {
        struct stranger_link other = stranger_join_another(s);
        bool first = i % 2;
        int lying = first ? s->fd[0] : other.fd[0], honest = first ? other.fd[0] : s->fd[0];
        struct weft_link *liar = first ? s->link : other.link;
        uint8_t bytes[TCP_FRAME_MAX + 1], sound[TCP_FRAME_MAX + 1];
        size_t len = stranger_encode(bytes, (struct tcp_frame){.type = TCP_SEND, .len = 1, .ack = 7});
        assert_int_equal(stranger_encode(sound, (struct tcp_frame){.type = TCP_SEND, .len = 1}), len);
        bytes[len] = sound[len] = 'x';
        stranger_say(lying, bytes, len + 1);
        stranger_say(honest, sound, len + 1);
        struct weft_comp down = pair_wait(&s->pair, PAIR_B, WEFT_OP_LINK_DOWN, 0).comp;
        assert_ptr_equal(down.link, liar);
        assert_int_equal(down.status, WEFT_EPROTO);
        for (struct pair_comp got = pair_wait(&s->pair, PAIR_B, WEFT_OP_RECV, 0);; got = pair_wait(&s->pair, PAIR_B, WEFT_OP_RECV, 0)) {
            free(got.data);
            if (got.comp.link != liar)
                break;
        }
        stranger_say(honest, sound, len + 1); /* it goes on */
        free(pair_wait(&s->pair, PAIR_B, WEFT_OP_RECV, 0).data);
        close(other.fd[0]);
        close(other.fd[1]);
        s->pair.ops->link_close(other.link);
        rejoin(s);
        while (s->pair.side[PAIR_B].ncomps > 0) /* of the other that hung up */
            free(s->pair.side[PAIR_B].comps[--s->pair.side[PAIR_B].ncomps].data);
    }
}

/* --- memory and links that go ------------------------------------------------------------------ */

/* From the first call of mem_dereg on nothing more begins in memory that is still written to. */
static void memory_that_is_to_go_takes_no_more(void **state)
{
    struct stranger *s = *state;
    struct weft_nic *nic = s->pair.side[PAIR_B].nic;
    static uint8_t mem[2 * LEN], payload[LEN];
    struct weft_mem_handle handle = pair_reg(&s->pair, PAIR_B, mem, sizeof mem, PAIR_ALL, 5);
    struct tcp_frame write = {.type = TCP_WRITE, .len = sizeof mem, .word = {5, (uintptr_t)mem}};
    memset(payload, 1, sizeof payload);
    stranger_say_frame(s->fd[1], write);
    stranger_say(s->fd[1], payload, LEN);
    TEST_UNTIL(mem[LEN - 1] == 1, pair_poll(&s->pair, PAIR_B), "half of a WRITE");
    assert_int_equal(s->pair.ops->mem_dereg(nic, handle.mem), WEFT_EAGAIN);
    write.len = 1;
    memset(payload, 2, sizeof payload);
    stranger_say_frame(s->fd[0], write);
    stranger_say(s->fd[0], payload, 1);
    assert_int_equal(stranger_hear_type(s, s->fd[0], TCP_NACK).word[1], TCP_CODE_KEY);
    assert_int_equal(mem[0], 1);
    stranger_say(s->fd[1], payload, LEN); /* what had begun ends */
    TEST_UNTIL(mem[2 * LEN - 1] == 2, pair_poll(&s->pair, PAIR_B), "the rest of it");
    assert_int_equal(s->pair.ops->mem_dereg(nic, handle.mem), 0);
    struct weft_mem_range over = {.addr = (void *)-4096ul, .len = 8192, .key = 6, .access = PAIR_ALL, .kind = WEFT_MEM_HOST};
    assert_int_equal(s->pair.ops->mem_reg(nic, &over, &handle), -EINVAL);
}

/* Who closes as soon as it has taken a message says that it has. */
static void who_closes_says_what_was_taken(void **state)
{
    struct stranger *s = *state;
    uint8_t bytes[TCP_FRAME_MAX + 1] = {0};
    size_t len = stranger_encode(bytes, (struct tcp_frame){.type = TCP_SEND, .len = 1});
    stranger_say(s->fd[0], bytes, len + 1);
    free(pair_wait(&s->pair, PAIR_B, WEFT_OP_RECV, 0).data);
    s->pair.ops->link_close(s->link);
    struct tcp_frame ack = stranger_hear_type(s, s->fd[0], TCP_ACK);
    assert_int_equal(ack.ack, 1);
    close(s->fd[0]);
    close(s->fd[1]);
    stranger_open_link(s);
    stranger_join(s);
}

/* Polls until nothing is left to do: the descriptor to sleep on. */
static void until_asleep(struct stranger *s)
{
    TEST_UNTIL(s->pair.ops->wait_fd(s->link->nic) >= 0, pair_poll(&s->pair, PAIR_B), "sleep");
}

static void say_and_wait(struct stranger *s, const uint8_t *bytes, size_t len)
{
    struct pollfd here = {.fd = ((struct tcp_link *)s->link)->socks[0].fd, .events = POLLIN};
    stranger_say(s->fd[0], bytes, len);
    assert_int_equal(poll(&here, 1, TEST_DEADLINE_MS), 1);
}

/* What no descriptor will tell of: an end, an acknowledgement that is owed, and that a link is down. Each alone. */
static void who_has_something_left_does_not_sleep(void **state)
{
    struct stranger *s = *state;
    struct weft_nic *nic = s->link->nic;
    struct weft_comp comps[4];
    uint8_t bytes[2 * TCP_FRAME_MAX] = {0};
    for (int i = 0; i < 2; i++) {
        post_one(s, WEFT_OP_SEND, bytes, 1);
        stranger_hear_type(s, s->fd[0], TCP_SEND);
        stranger_hear(s, s->fd[0], bytes, 1);
    }
    until_asleep(s);
    size_t len = stranger_encode(bytes, (struct tcp_frame){.type = TCP_ACK, .ack = 2});
    say_and_wait(s, bytes, len);
    assert_int_equal(s->pair.ops->poll(nic, comps, 1), 1);
    assert_int_equal(s->pair.ops->wait_fd(nic), WEFT_EAGAIN); /* the other one's end */
    assert_int_equal(s->pair.ops->poll(nic, comps, 1), 1);
    until_asleep(s);

    struct tcp_frame write = stranger_write_of(s, TCP_WRITE, 1);
    write.ack = 2;
    len = stranger_encode(bytes, write);
    say_and_wait(s, bytes, len + 1);
    assert_int_equal(s->pair.ops->poll(nic, comps, 4), 0);
    assert_int_equal(s->pair.ops->wait_fd(nic), WEFT_EAGAIN); /* the peer has not been told */
    assert_int_equal(stranger_hear_type(s, s->fd[0], TCP_ACK).ack, 1);
    until_asleep(s);

    post_one(s, WEFT_OP_SEND, bytes, 1);
    stranger_hear_type(s, s->fd[0], TCP_SEND);
    until_asleep(s);
    len = stranger_encode(bytes, (struct tcp_frame){.type = TCP_ACK, .ack = 3});
    bytes[len++] = 0x7f; /* no frame */
    say_and_wait(s, bytes, len);
    assert_int_equal(s->pair.ops->poll(nic, comps, 1), 1);
    assert_int_equal(comps[0].op, WEFT_OP_SEND);
    assert_int_equal(s->pair.ops->wait_fd(nic), WEFT_EAGAIN); /* the link is down */
    stranger_await_down(s, WEFT_EPROTO);
}

static int setup_small_buffers(void **state)
{
    return stranger_setup_with(stranger_setup, state, "WEFT_TCP_SNDBUF", "4608");
}

/* The peer asks and does not read, while this side sends all it can: there is room for the answers. */
static void answers_find_room_behind_all_that_is_sent(void **state)
{
    struct stranger *s = *state;
    uint8_t bytes[TCP_COPY_MAX] = {0}, answer[TCP_HELLO_SIZE];
    const uint32_t sends = 4 * TCP_BUF / TCP_COPY_MAX;
    for (uint8_t i = 0; i < 2; i++) { /* one that takes more at once than there are buffers for */
        struct tcp_hello hello = stranger_hello_for(s, i);
        hello.depth = (uint16_t)sends;
        s->fd[i] = stranger_dial(s);
        stranger_say_hello(s->fd[i], hello);
        stranger_hear(s, s->fd[i], answer, sizeof answer);
    }
    assert_int_equal(stranger_finish_connect(s), 0);
    for (uint32_t i = 0; i < sends; i++)
        post_one(s, WEFT_OP_SEND, bytes, sizeof bytes);
    for (uint32_t i = 0; i < DEPTH; i++)
        stranger_say_frame(s->fd[0], (struct tcp_frame){.type = TCP_ADD, .id = i, .word = {KEY, (uintptr_t)s->mem, 1}});
    TEST_UNTIL(s->mem[0] == DEPTH, pair_poll(&s->pair, PAIR_B), "the additions");
    for (uint32_t heard = 0, answered = 0; heard < sends || answered < DEPTH;) {
        uint8_t head[TCP_FRAME_MAX];
        stranger_hear(s, s->fd[0], head, TCP_HEAD);
        stranger_hear(s, s->fd[0], head + TCP_HEAD, 8 * (size_t)tcp_frame_words(head[0]));
        if (head[0] == TCP_SEND)
            stranger_hear(s, s->fd[0], bytes, sizeof bytes);
        heard += head[0] == TCP_SEND;
        answered += head[0] == TCP_ADDED;
    }
    stranger_say_frame(s->fd[0], (struct tcp_frame){.type = TCP_ACK, .ack = sends});
    for (uint32_t i = 0; i < sends; i++)
        assert_int_equal(pair_wait(&s->pair, PAIR_B, WEFT_OP_SEND, 21).comp.status, 0);
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

/* --- long answers ------------------------------------------------------------------------------ */

#define LONG 80000   /* lent: what it is sent out of stays busy until it is acknowledged */
#define COPIED 40000 /* to the kernel, which is all that its memory waits for */
#define LONG_KEY 78

static void ask_for(struct stranger *s, const void *mem, uint64_t len, void *sink)
{
    struct tcp_frame read = {.type = TCP_READ, .id = 1, .word = {LONG_KEY, (uintptr_t)mem, len}};
    stranger_say_frame(s->fd[0], read);
    struct tcp_frame data = stranger_hear_type(s, s->fd[1], TCP_DATA);
    assert_true(data.len == len && data.id == 1 && data.lent == (len == LONG));
    stranger_hear(s, s->fd[1], sink, (size_t)len);
}

static void a_shorter_answer_leaves_its_memory(void **state)
{
    struct stranger *s = *state;
    uint8_t *mem = calloc(1, COPIED), *sink = malloc(COPIED);
    struct weft_mem_handle handle = pair_reg(&s->pair, PAIR_B, mem, COPIED, WEFT_ACCESS_READ, LONG_KEY);
    for (int i = 0; i < 3 * DEPTH; i++)
        ask_for(s, mem, COPIED, sink);
    assert_int_equal(s->pair.ops->mem_dereg(s->pair.side[PAIR_B].nic, handle.mem), 0);
    free(mem);
    free(sink);
}

static void a_long_answer_keeps_its_memory(void **state)
{
    struct stranger *s = *state;
    const struct weft_transport_ops *ops = s->pair.ops;
    struct weft_nic *nic = s->pair.side[PAIR_B].nic;
    uint8_t *mem = calloc(1, LONG), *sink = malloc(LONG);
    struct tcp_frame wrong[] = {
        {.type = TCP_NACK, .id = 0, .word = {1, TCP_CODE_KEY}}, /* it is no WRITE */
        {.type = TCP_ACK, .ack_sock = 1, .ack = 2},
    };
    for (int i = 0; i < 3; i++) {
        struct weft_mem_handle handle = pair_reg(&s->pair, PAIR_B, mem, LONG, WEFT_ACCESS_READ, LONG_KEY);
        ask_for(s, mem, LONG, sink);
        for (int k = 0; k < 100; k++)
            pair_poll(&s->pair, PAIR_B);
        assert_int_equal(ops->mem_dereg(nic, handle.mem), WEFT_EAGAIN);
        if (i < 2) {
            stranger_say_frame(s->fd[0], wrong[i]);
            stranger_await_down(s, WEFT_EPROTO);
            rejoin(s);
        } else {
            stranger_say_frame(s->fd[0], (struct tcp_frame){.type = TCP_ACK, .ack_sock = 1, .ack = 1});
        }
        uint64_t deadline = weft_now() + PAIR_WAIT_MS * 1000000ull;
        while (ops->mem_dereg(nic, handle.mem) == WEFT_EAGAIN) {
            pair_poll(&s->pair, PAIR_B);
            assert_true(weft_now() < deadline);
        }
    }
    free(mem);
    free(sink);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(bad_frames_take_their_link_down, stranger_setup_joined,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(a_message_that_lies_takes_its_link_down, stranger_setup_joined,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(what_was_earned_before_is_handed_out, stranger_setup_joined,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(no_frames_take_their_link_down, stranger_setup_joined,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(what_is_lent_is_payload, stranger_setup_joined,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(noise_takes_its_link_down, stranger_setup_joined,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(a_flood_of_reads_is_cut_off, stranger_setup_joined,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(additions_that_are_no_words_of_it, stranger_setup_joined,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(a_flood_of_additions_is_cut_off, stranger_setup_joined,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(frames_byte_by_byte, stranger_setup_joined,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(a_short_write_acknowledges, stranger_setup_joined,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(patience_is_told, stranger_setup_joined,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(quiet_ones_end_when_there_is_nothing_else, stranger_setup_joined,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(many_frames_cut_anywhere, stranger_setup_joined,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(a_short_write_cut_anywhere, stranger_setup_joined,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(half_a_frame_and_away, stranger_setup_joined,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(refused_writes_are_told_and_thrown_away,
                                        stranger_setup_joined, stranger_teardown),
        cmocka_unit_test_setup_teardown(chunks_beyond_4_gib, stranger_setup_joined,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(a_read_beyond_4_gib, stranger_setup_joined,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(a_write_beyond_4_gib, stranger_setup_joined,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(the_last_read_gives_back_what_it_was_lent, stranger_setup_joined,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(what_was_lent_to_one_of_several_reads_is_given_back_later,
                                        stranger_setup_joined, stranger_teardown),
        cmocka_unit_test_setup_teardown(wrong_answers_to_a_read, stranger_setup_joined,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(an_end_waits_for_its_chunks, stranger_setup_joined,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(an_acknowledgement_of_what_was_not_sent,
                                        setup_large_frames, stranger_teardown),
        cmocka_unit_test_setup_teardown(a_shorter_answer_leaves_its_memory, stranger_setup_joined,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(a_long_answer_keeps_its_memory, stranger_setup_joined,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(refusals_that_make_no_sense, stranger_setup_joined,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(the_first_refusal_counts, setup_small_chunks,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(no_more_chunks_than_the_peer_takes, setup_small_chunks,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(a_lie_beside_a_message_of_another, stranger_setup_joined,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(memory_that_is_to_go_takes_no_more, stranger_setup_joined,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(who_closes_says_what_was_taken, stranger_setup_joined,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(who_has_something_left_does_not_sleep, stranger_setup_joined,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(answers_find_room_behind_all_that_is_sent, setup_small_buffers,
                                        stranger_teardown),
        cmocka_unit_test_setup_teardown(no_more_cmds_than_the_peer_takes, stranger_setup_joined,
                                        stranger_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
