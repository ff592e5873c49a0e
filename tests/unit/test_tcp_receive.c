/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How tcp receives (transports/tcp/tcp_rx.c): frames cut anywhere on a socket for long ones, payload that goes straight to its
 * place, messages that stay with the caller while more is received, ends right behind data, and where there is no memory.
 */
#include "still_clock.h"
#include "tcp_stranger.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/uio.h>

#include "transports/tcp/tcp.h"

#define LONG_KEY 79
#define LONG 50000
#define FRAMES 6
#define MESSAGE 60000
#define LINKS 8 /* more sockets than a nic reads without being told to (TCP_HOT) */

/* --- the kernel --------------------------------------------------------------------------------- */

static uintptr_t place, place_end; /* memory of the test's */
static uint64_t placed, elsewhere; /* bytes received into it, and not */

static void note(const struct iovec *iov, size_t niov, ssize_t n)
{
    for (size_t i = 0; i < niov && n > 0; i++) {
        uint64_t part = iov[i].iov_len < (size_t)n ? iov[i].iov_len : (uint64_t)n;
        uintptr_t at = (uintptr_t)iov[i].iov_base;
        *(at >= place && at < place_end ? &placed : &elsewhere) += part;
        n -= (ssize_t)part;
    }
}

ssize_t __real_recv(int fd, void *data, size_t len, int flags);
ssize_t __wrap_recv(int fd, void *data, size_t len, int flags);
ssize_t __wrap_recv(int fd, void *data, size_t len, int flags)
{
    ssize_t n = __real_recv(fd, data, len, flags);
    note(&(struct iovec){data, len}, 1, n);
    return n;
}

ssize_t __real_recvmsg(int fd, struct msghdr *msg, int flags);
ssize_t __wrap_recvmsg(int fd, struct msghdr *msg, int flags);
ssize_t __wrap_recvmsg(int fd, struct msghdr *msg, int flags)
{
    ssize_t n = __real_recvmsg(fd, msg, flags);
    note(msg->msg_iov, msg->msg_iovlen, n);
    return n;
}

static bool starving; /* no buffer is to be had */
static struct tcp_buf *kept;

void *__real_malloc(size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_malloc(size_t n)
{
    return starving && n == sizeof(struct tcp_buf) ? NULL : __real_malloc(n);
}

static void starve(struct tcp_nic *nic)
{
    starving = true;
    for (struct tcp_buf *buf; (buf = tcp_buf_get(nic)); kept = buf)
        buf->next = kept;
}

static void feed(struct tcp_nic *nic)
{
    starving = false;
    for (struct tcp_buf *buf; (buf = kept); tcp_buf_put(nic, buf))
        kept = buf->next;
}

/* --- long frames -------------------------------------------------------------------------------- */

struct target {
    uint8_t *mem; /* FRAMES * LONG bytes under LONG_KEY */
    struct weft_mem_handle handle;
};

static struct target target_open(struct stranger *s)
{
    struct target t = {.mem = calloc(FRAMES, LONG)};
    t.handle = pair_reg(&s->pair, PAIR_B, t.mem, FRAMES * LONG, PAIR_ALL, LONG_KEY);
    place = (uintptr_t)t.mem;
    place_end = place + FRAMES * LONG;
    placed = elsewhere = 0;
    return t;
}

static void target_close(struct stranger *s, struct target *t)
{
    assert_int_equal(s->pair.ops->mem_dereg(s->pair.side[PAIR_B].nic, t->handle.mem), 0);
    free(t->mem);
    place = place_end = 0;
}

static size_t put_write(const struct target *t, uint8_t *bytes, uint32_t i, uint32_t seed)
{
    uint8_t *to = t->mem + (size_t)i * LONG;
    size_t len = stranger_encode(
        bytes, (struct tcp_frame){
                   .type = TCP_WRITE_IMM, .len = LONG, .id = i, .word = {LONG_KEY, (uintptr_t)to}});
    pair_fill(bytes + len, LONG, seed + i);
    return len + LONG;
}

/* Said while it is taken: it is more than a socket may hold. */
static void say_all(struct stranger *s, int fd, const uint8_t *bytes, size_t len)
{
    uint64_t deadline = weft_now() + PAIR_WAIT_MS * 1000000ull;
    for (size_t done = 0; done < len;) {
        ssize_t n = send(fd, bytes + done, len - done, MSG_NOSIGNAL | MSG_DONTWAIT);
        assert_true(n > 0 || errno == EAGAIN);
        done += n > 0 ? (size_t)n : 0;
        if (n < 0)
            pair_poll(&s->pair, PAIR_B);
        assert_true(weft_now() < deadline);
    }
}

static void check_writes(struct stranger *s, const struct target *t, uint32_t seed)
{
    for (uint32_t i = 0; i < FRAMES; i++) {
        assert_int_equal(pair_wait(&s->pair, PAIR_B, WEFT_OP_WRITE_IMM, 0).comp.imm, i);
        assert_true(pair_filled(t->mem + (size_t)i * LONG, LONG, seed + i));
    }
}

/* The cut wanders over heads, the first and last bytes of payloads, and through them. */
static void long_frames_cut_anywhere(void **state)
{
    struct stranger *s = *state;
    struct target t = target_open(s);
    uint8_t *bytes = malloc(FRAMES * (TCP_FRAME_MAX + LONG));
    const size_t frame = TCP_HEAD + 16 + LONG;
    for (int sock = 0; sock < 2; sock++) {
        for (size_t cut = 1, k = 0; cut < 3 * frame; k++) {
            size_t len = 0, second = cut + 1 + k % 90;
            for (uint32_t i = 0; i < FRAMES; i++)
                len += put_write(&t, bytes + len, i, (uint32_t)cut);
            say_all(s, s->fd[sock], bytes, cut);
            pair_poll(&s->pair, PAIR_B);
            say_all(s, s->fd[sock], bytes + cut, second - cut);
            pair_poll(&s->pair, PAIR_B);
            say_all(s, s->fd[sock], bytes + second, len - second);
            check_writes(s, &t, (uint32_t)cut);
            bool at_end = cut % frame < 48 || cut % frame > frame - 8;
            cut += at_end ? 1 + k % 2 : 4099;
            if (!at_end && cut % frame < 4099 && cut > frame)
                cut -= cut % frame + 4; /* not past a head */
        }
    }
    free(bytes);
    target_close(s, &t);
}

/* Where only long frames come, at most the next head is received with a payload, and nothing of one into a buffer. */
static void long_payload_is_received_in_place(void **state)
{
    struct stranger *s = *state;
    struct target t = target_open(s);
    uint8_t *bytes = malloc(FRAMES * (TCP_FRAME_MAX + LONG));
    for (uint32_t round = 0; round < 5; round++) {
        size_t len = 0;
        for (uint32_t i = 0; i < FRAMES; i++)
            len += put_write(&t, bytes + len, i, round);
        placed = elsewhere = 0;
        say_all(s, s->fd[1], bytes, len);
        check_writes(s, &t, round);
        assert_int_equal(placed + elsewhere, len);
        assert_in_range(elsewhere, 1, FRAMES * TCP_FRAME_MAX);
    }
    free(bytes);
    target_close(s, &t);
}

/* All that was said is where the nic receives it from. */
static void await_delivery(int fd)
{
    uint64_t deadline = weft_now() + PAIR_WAIT_MS * 1000000ull;
    int left;
    do {
        assert_int_equal(ioctl(fd, SIOCOUTQ, &left), 0);
        assert_true(weft_now() < deadline);
    } while (left > 0);
}

/* --- other links ---------------------------------------------------------------------------------- */

static void close_other(struct stranger *s, const struct stranger_link *other)
{
    close(other->fd[0]);
    close(other->fd[1]);
    struct pair_comp down = pair_wait(&s->pair, PAIR_B, WEFT_OP_LINK_DOWN, 0);
    assert_ptr_equal(down.comp.link, other->link);
    assert_int_equal(down.comp.status, WEFT_EPEER);
    s->pair.ops->link_close(other->link);
}

static void write_byte(struct stranger *s, const struct stranger_link *to, int i, uint8_t byte)
{
    uint8_t bytes[TCP_FRAME_MAX + 1];
    struct tcp_frame write = stranger_write_of(s, TCP_WRITE, 1);
    write.word[1] += (uint64_t)i;
    size_t len = stranger_encode(bytes, write);
    bytes[len] = byte;
    stranger_say(to->fd[0], bytes, len + 1);
}

/* --- pauses ------------------------------------------------------------------------------------- */

#define WHOLE (FRAMES * LONG) /* one frame */
#define PIECE 1000
#define FEW 10     /* pieces after which epoll still watches the socket */
#define PIECES 120 /* after so many the socket is read all the time, and epoll is not asked for it */
#define IDLE_POLLS 300 /* nothing is read without epoll any more; it is asked at least once in half of them */
#define LEFT_LEAST 131072 /* with less to come there is no pause */
#define ONE_NS 8000       /* how long it takes where one socket carries what is long */
#define TWO_NS 16000      /* ... and where more do */
#define LITTLE_NS 100

/* A link whose second socket is in the middle of one long frame. */
struct flow {
    struct stranger *s;
    const struct tcp_link *link;
    int fd;
    struct target target;
    uint8_t *payload;
    size_t done; /* bytes of it that were said */
};

/* Said, and where the nic receives it from. Nobody polls meanwhile. */
static void say_piece(struct flow *f, size_t len)
{
    int before = 0, now = 0, tries = 0;
    assert_int_equal(ioctl(f->link->socks[1].fd, FIONREAD, &before), 0);
    stranger_say(f->fd, f->payload + f->done, len);
    f->done += len;
    while (now < before + (int)len) {
        assert_int_equal(ioctl(f->link->socks[1].fd, FIONREAD, &now), 0);
        assert_true(++tries < 100000000); /* the clock may be stopped */
    }
}

static void polls(struct stranger *s, int n)
{
    for (int i = 0; i < n; i++)
        pair_poll(&s->pair, PAIR_B);
}

static void await_placed(const struct flow *f)
{
    uint64_t deadline = weft_now() + PAIR_WAIT_MS * 1000000ull;
    while (placed < f->done) {
        pair_poll(&f->s->pair, PAIR_B);
        assert_true(weft_now() < deadline);
    }
}

/* So many pieces; then the clock stands, and a pause has begun. */
static struct flow flow_begin(struct stranger *s, const struct weft_link *link, int fd, int pieces)
{
    struct flow f = {.s = s, .link = (const struct tcp_link *)link, .fd = fd, .target = target_open(s), .payload = malloc(WHOLE)};
    struct tcp_frame frame = {.type = TCP_WRITE_IMM, .len = WHOLE, .id = 5, .word = {LONG_KEY, (uintptr_t)f.target.mem}};
    pair_fill(f.payload, WHOLE, 70);
    stranger_say_frame(fd, frame);
    polls(s, 100);
    for (int i = 0; i < pieces; i++) {
        say_piece(&f, PIECE);
        await_placed(&f);
    }
    stopped = weft_now() + 2 * TWO_NS; /* a pause that began before is over */
    say_piece(&f, PIECE);
    polls(s, 1);
    assert_int_equal(placed, f.done);
    return f;
}

static void flow_end(struct flow *f)
{
    stopped = 0;
    free(f->payload);
    target_close(f->s, &f->target);
}

/* What has come is left where it is until the time is over. */
static void check_pause(struct flow *f, uint64_t ns)
{
    uint64_t begun = stopped;
    say_piece(f, PIECE);
    polls(f->s, 200);
    stopped = begun + ns - LITTLE_NS;
    polls(f->s, 200);
    assert_int_equal(placed, f->done - PIECE);
    stopped = begun + ns + LITTLE_NS;
    polls(f->s, 1);
    assert_int_equal(placed, f->done);
}

/* What comes in the middle of a long payload waits for more, for microseconds. Its end does not. */
static void an_emptied_socket_is_left_alone_for_a_moment(void **state)
{
    struct stranger *s = *state;
    struct flow f = flow_begin(s, s->link, s->fd[1], PIECES);
    check_pause(&f, ONE_NS);
    stopped = 0;
    for (size_t end = WHOLE - LEFT_LEAST + PIECE; f.done < end;) {
        say_piece(&f, end - f.done < LONG ? end - f.done : LONG);
        await_placed(&f);
    }
    stopped = weft_now();
    for (int i = 0; i < 10; i++) { /* less than that is missing: each piece is taken at once */
        say_piece(&f, PIECE);
        polls(s, 1);
        assert_int_equal(placed, f.done);
    }
    stopped = 0;
    stranger_say(s->fd[1], f.payload + f.done, WHOLE - f.done);
    assert_int_equal(pair_wait(&s->pair, PAIR_B, WEFT_OP_WRITE_IMM, 0).comp.imm, 5);
    assert_true(pair_filled(f.target.mem, WHOLE, 70));
    flow_end(&f);
}

/* ... for longer where another one can be read meanwhile. */
static void with_more_sockets_it_is_a_longer_moment(void **state)
{
    struct stranger *s = *state;
    struct weft_link *first = s->link;
    uint8_t answer[TCP_HELLO_SIZE];
    int fd[3];
    stranger_open_link(s);
    struct weft_link *link = s->link;
    for (uint8_t i = 0; i < 3; i++) {
        struct tcp_hello hello = stranger_hello_for(s, i);
        hello.sockets = 3;
        fd[i] = stranger_dial(s);
        stranger_say_hello(fd[i], hello);
        stranger_hear(s, fd[i], answer, sizeof answer);
    }
    assert_int_equal(stranger_finish_connect(s), 0);
    s->link = first;
    struct flow f = flow_begin(s, link, fd[1], PIECES);
    check_pause(&f, TWO_NS);
    stopped = 0;
    for (int i = 0; i < 3; i++)
        close(fd[i]);
    assert_int_equal(pair_wait(&s->pair, PAIR_B, WEFT_OP_LINK_DOWN, 0).comp.status, WEFT_EPEER);
    s->pair.ops->link_close(link);
    flow_end(&f);
}

/* Nor is it read at once because epoll tells of it: while it is read without epoll, too, and when it is not. */
static void epoll_ends_no_pause(void **state)
{
    struct stranger *s = *state;
    struct stranger_link others[TCP_HOT];
    for (int i = 0; i < TCP_HOT; i++)
        others[i] = stranger_join_another(s);
    struct flow f = flow_begin(s, s->link, s->fd[1], FEW);
    const struct tcp_sock *sock = &f.link->socks[1];
    assert_true(sock->hot && !sock->unwatched);
    check_pause(&f, ONE_NS);
    stopped += 2 * TWO_NS;
    polls(s, IDLE_POLLS);
    for (int i = 0; i < TCP_HOT; i++)
        write_byte(s, &others[i], i, (uint8_t)(i + 1));
    polls(s, IDLE_POLLS / 2);
    for (int i = 0; i < TCP_HOT; i++)
        assert_int_equal(s->mem[i], i + 1);
    say_piece(&f, PIECE);
    polls(s, IDLE_POLLS / 2);
    assert_int_equal(placed, f.done);
    assert_false(sock->hot); /* others are */
    check_pause(&f, ONE_NS);
    say_piece(&f, PIECE);
    shutdown(s->fd[1], SHUT_WR);
    polls(s, IDLE_POLLS); /* that it tells of an end does */
    assert_int_equal(placed, f.done);
    stopped = 0;
    stranger_await_down(s, WEFT_EPEER);
    for (int i = 0; i < TCP_HOT; i++)
        close_other(s, &others[i]);
    flow_end(&f);
}

/* Who would sleep is told of what has been left there. */
static void nobody_sleeps_on_what_was_left(void **state)
{
    struct stranger *s = *state;
    struct flow f = flow_begin(s, s->link, s->fd[1], PIECES);
    say_piece(&f, PIECE);
    polls(s, 10);
    assert_int_equal(placed, f.done - PIECE);
    assert_int_equal(s->pair.ops->wait_fd(s->pair.side[PAIR_B].nic), WEFT_EAGAIN);
    polls(s, 1);
    assert_int_equal(placed, f.done);
    check_pause(&f, ONE_NS); /* nor is that the end of pauses */
    stopped = 0;
    shutdown(s->fd[1], SHUT_WR);
    stranger_await_down(s, WEFT_EPEER);
    flow_end(&f);
}

/* The end of a connection in a moment in which it is left alone. */
static void an_end_during_a_pause_is_heard(void **state)
{
    struct stranger *s = *state;
    struct flow f = flow_begin(s, s->link, s->fd[1], PIECES);
    say_piece(&f, PIECE);
    shutdown(s->fd[1], SHUT_WR);
    polls(s, 10);
    stopped = 0;
    stranger_await_down(s, WEFT_EPEER);
    assert_int_equal(placed, f.done);
    flow_end(&f);
}

/* --- messages that the caller has --------------------------------------------------------------- */

/* Two of them fill a buffer, and what is behind them comes in the same poll: cut within a head, or within a payload whose rest is
 * received in place, with another message behind it. */
static void messages_stay_as_they_are_until_the_next_poll(void **state)
{
    struct stranger *s = *state;
    struct target t = target_open(s);
    uint8_t *bytes = malloc(4 * (MESSAGE + LONG));
    const size_t both = 2 * (size_t)(TCP_HEAD + MESSAGE);
    for (size_t k = 0; k < 3; k++) {
        size_t len = 0;
        for (uint32_t i = 0; i < 2; i++) {
            len += stranger_encode(bytes + len, (struct tcp_frame){.type = TCP_SEND, .len = MESSAGE});
            pair_fill(bytes + len, MESSAGE, 50 + i);
            len += MESSAGE;
        }
        assert_int_equal(len, both);
        /* the buffer ends in the payload of a WRITE, of a third message, or behind a head */
        size_t rest = TCP_BUF - both, text = k == 1 ? MESSAGE : k == 2 ? rest - TCP_HEAD - 5 : 0;
        if (k == 0) {
            len += put_write(&t, bytes + len, 0, 60);
        } else {
            len += stranger_encode(bytes + len, (struct tcp_frame){.type = TCP_SEND, .len = (uint32_t)text});
            pair_fill(bytes + len, text, 52);
            len += text;
        }
        len += stranger_encode(bytes + len, (struct tcp_frame){.type = TCP_SEND, .len = MESSAGE});
        pair_fill(bytes + len, MESSAGE, 53);
        len += MESSAGE;
        stranger_say(s->fd[0], bytes, len);
        await_delivery(s->fd[0]);
        for (uint32_t i = 0; i < (k == 0 ? 3 : 4); i++) {
            struct pair_comp got = pair_wait(&s->pair, PAIR_B, WEFT_OP_RECV, 0);
            uint32_t seed = k == 0 && i == 2 ? 53 : 50 + i;
            assert_true(pair_filled(got.data, got.comp.len, seed));
            free(got.data);
        }
        if (k == 0) {
            pair_wait(&s->pair, PAIR_B, WEFT_OP_WRITE_IMM, 0);
            assert_true(pair_filled(t.mem, LONG, 60));
        }
    }
    free(bytes);
    target_close(s, &t);
}

/* --- ends --------------------------------------------------------------------------------------- */

/* Data and the end behind it are one edge of epoll's: who stops reading where the data ends is not told again. */
static void an_end_right_behind_data_is_heard(void **state)
{
    struct stranger *s = *state;
    struct stranger_link others[LINKS];
    for (int i = 0; i < LINKS; i++)
        others[i] = stranger_join_another(s);
    for (int i = 0; i < LINKS; i++) {
        write_byte(s, &others[i], i, (uint8_t)(i + 1));
        shutdown(others[i].fd[0], SHUT_WR);
    }
    for (int i = 0; i < LINKS; i++)
        assert_int_equal(pair_wait(&s->pair, PAIR_B, WEFT_OP_LINK_DOWN, 0).comp.status, WEFT_EPEER);
    for (int i = 0; i < LINKS; i++) {
        assert_int_equal(s->mem[i], i + 1);
        close(others[i].fd[0]);
        close(others[i].fd[1]);
        s->pair.ops->link_close(others[i].link);
    }
}

/* What was received waits for its caller, who takes one at a time, and the end is behind it. */
static void an_end_behind_what_waits_is_heard(void **state)
{
    enum { MESSAGES = 10 };
    struct stranger *s = *state;
    struct stranger_link others[TCP_HOT];
    for (int i = 0; i < TCP_HOT; i++)
        others[i] = stranger_join_another(s);
    struct stranger_link last = stranger_join_another(s);
    for (int i = 0; i < TCP_HOT; i++)
        write_byte(s, &others[i], i, (uint8_t)(i + 1));
    polls(s, IDLE_POLLS / 2);
    uint8_t bytes[MESSAGES * (TCP_FRAME_MAX + 1)] = {0};
    size_t len = 0;
    for (int i = 0; i < MESSAGES; i++)
        len += stranger_encode(bytes + len, (struct tcp_frame){.type = TCP_SEND, .len = 1}) + 1;
    stranger_say(last.fd[0], bytes, len);
    shutdown(last.fd[0], SHUT_WR);
    uint64_t deadline = weft_now() + PAIR_WAIT_MS * 1000000ull;
    int messages = 0;
    for (bool down = false; !down;) {
        struct weft_comp comp;
        if (s->pair.ops->poll(s->pair.side[PAIR_B].nic, &comp, 1) == 1) {
            assert_ptr_equal(comp.link, last.link);
            down = comp.op == WEFT_OP_LINK_DOWN;
            messages += comp.op == WEFT_OP_RECV;
        }
        assert_true(weft_now() < deadline);
    }
    assert_int_equal(messages, MESSAGES);
    close(last.fd[0]);
    close(last.fd[1]);
    s->pair.ops->link_close(last.link);
    for (int i = 0; i < TCP_HOT; i++)
        close_other(s, &others[i]);
}

static int unread_bytes(const struct tcp_sock *sock)
{
    int n = -1;
    assert_int_equal(ioctl(sock->fd, FIONREAD, &n), 0);
    return n;
}

/* What comes while there is no memory to receive it waits, as long as its peer does: an end behind it is heard of. */
static void no_memory_hides_no_end(void **state)
{
    struct stranger *s = *state;
    struct tcp_nic *nic = (struct tcp_nic *)s->pair.side[PAIR_B].nic;
    const struct tcp_link *link = (const struct tcp_link *)s->link;
    const struct tcp_frame ack = {.type = TCP_ACK}; /* wants no answer, for which there is no memory either */
    for (int round = 0; round < 2; round++) {
        starve(nic);
        stranger_say_frame(s->fd[0], ack);
        await_delivery(s->fd[0]);
        polls(s, IDLE_POLLS);
        assert_int_equal(link->state, TCP_LINK_UP);
        assert_int_not_equal(unread_bytes(&link->socks[0]), 0);
        feed(nic);
        polls(s, IDLE_POLLS);
        assert_int_equal(unread_bytes(&link->socks[0]), 0);
        for (int i = 0; !link->socks[0].unwatched; i++) { /* once more, now that it is read without epoll */
            stranger_say_frame(s->fd[0], ack);
            polls(s, 1);
            assert_true(i < 10000);
        }
    }
    starve(nic);
    stranger_say_frame(s->fd[0], ack);
    shutdown(s->fd[0], SHUT_WR);
    stranger_await_down(s, -ENOMEM);
    feed(nic);
}

/* Also after a test that has failed while the clock stood, or memory was short. */
static int teardown(void **state)
{
    struct stranger *s = *state;
    stopped = 0;
    feed((struct tcp_nic *)s->pair.side[PAIR_B].nic);
    return stranger_teardown(state);
}

int main(void)
{
#define CASE(test) cmocka_unit_test_setup_teardown(test, stranger_setup_joined, teardown)
    const struct CMUnitTest tests[] = {
        CASE(long_frames_cut_anywhere),
        CASE(long_payload_is_received_in_place),
        CASE(an_emptied_socket_is_left_alone_for_a_moment),
        CASE(with_more_sockets_it_is_a_longer_moment),
        CASE(epoll_ends_no_pause),
        CASE(nobody_sleeps_on_what_was_left),
        CASE(an_end_during_a_pause_is_heard),
        CASE(messages_stay_as_they_are_until_the_next_poll),
        CASE(an_end_right_behind_data_is_heard),
        CASE(an_end_behind_what_waits_is_heard),
        CASE(no_memory_hides_no_end),
    };
    return cmocka_run_group_tests_name("tcp_receive", tests, NULL, NULL);
}
