/* SPDX-License-Identifier: Apache-2.0 */
/* SEND and RECV: matched in the order posted, whatever their sizes and whoever comes first. */
#include "duo.h"

#define T TEST_DEADLINE_MS
#define MIB ((size_t)1 << 20)

static const size_t sizes[] = {0, 1, 7, 64, 1000, 4000, 4096, 8191, 8192, 8193, 20000, 65536,
                               MIB + 1, 9 * MIB + 3};

/* --- sizes --------------------------------------------------------------------------------- */

static void any_size_whoever_is_first(void **state)
{
    struct duo *d = *state;
    struct area from = duo_area(d, A, 10 * MIB, 1, 0), to = duo_area(d, B, 10 * MIB, 3, 0);
    for (size_t i = 0; i < 2 * ARRAY_LEN(sizes); i++) {
        size_t n = sizes[i / 2];
        weft_op_t send = 0, recv = 0;
        duo_fill(d, from, i);
        duo_fill(d, to, 900);
        if (i & 1)
            recv = duo_recv(d, B, 0, to, 0, to.len); /* a larger buffer than needed */
        send = duo_send(d, A, 0, from, 0, n);
        if (!(i & 1)) {
            test_sleep_ms(2);
            recv = duo_recv(d, B, 0, to, 0, n);
        }
        assert_int_equal(duo_wait(d, B, recv, 0).bytes, n);
        assert_int_equal(duo_wait(d, A, send, 0).bytes, n);
        duo_check(d, to, 0, n, i);
        duo_check(d, to, n, 64, 900);
    }
}

static void blocking_both_ways(void **state)
{
    struct duo *d = *state;
    struct area from = duo_area(d, B, 10 * MIB, 1, 0);
    char *to = malloc(10 * MIB);
    duo_fill(d, from, 1);
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        weft_op_t send = duo_send(d, B, 0, from, 0, sizes[i]);
        assert_int_equal(weft_recv(d->conn, to, 10 * MIB, T), sizes[i]);
        assert_true(test_differs(to, sizes[i], 1, 0) < 0);
        duo_wait(d, B, send, 0);
        weft_op_t recv = duo_recv(d, B, 0, from, 0, from.len);
        test_fill(to, sizes[i], 2, 0);
        assert_int_equal(weft_send(d->conn, to, sizes[i], T), sizes[i]);
        duo_wait(d, B, recv, 0);
        duo_check(d, from, 0, sizes[i], 2);
        duo_fill(d, from, 1);
    }
    free(to);
}

/* --- vectors ------------------------------------------------------------------------------- */

static struct weft_xfer vector(enum weft_xfer_op op, const struct weft_local *local, size_t n)
{
    return (struct weft_xfer){.struct_size = sizeof(struct weft_xfer), .op = op, .local = local,
                              .nlocal = n};
}

/* Both sides cut the message into pieces in their own way. */
static void pieces_need_not_match(void **state)
{
    struct duo *d = *state;
    struct area from = duo_area(d, A, 4 * MIB, 0, 0), to = duo_area(d, B, 4 * MIB, 0, 0);
    for (size_t total = 100; total < 4 * MIB; total = total * 5 + 13) {
        struct weft_local out[20], in[31];
        size_t at = 0, back = 0;
        for (size_t i = 0; i < 20; i++) {
            size_t n = i == 19 ? total - at : i % 4 == 1 ? 0 : total / 40 * (i % 3);
            out[i] = area_local(from, at, n);
            at += n;
        }
        for (size_t i = 0; i < 31; i++) {
            size_t n = i == 30 ? to.len - back : i % 5 == 2 ? 0 : total / 60 * (i % 4);
            in[i] = area_local(to, back, n);
            back += n;
        }
        struct weft_xfer send = vector(WEFT_XFER_SEND, out, 20);
        struct weft_xfer recv = vector(WEFT_XFER_RECV, in, 31);
        duo_fill(d, from, total);
        duo_fill(d, to, 1);
        weft_op_t s = duo_post(d, A, 0, &send), r = duo_post(d, B, 0, &recv);
        assert_int_equal(duo_wait(d, B, r, 0).bytes, total);
        duo_wait(d, A, s, 0);
        duo_check(d, to, 0, total, total);
        duo_check(d, to, total, 100, 1);
    }
}

/* More pieces than any nic takes. */
static void thousands_of_pieces(void **state)
{
    struct duo *d = *state;
    enum { N = 5000 };
    char *from = malloc(N * 10), *to = malloc(N * 10);
    struct weft_local *out = calloc(N, sizeof *out), in = {to, N * 10, 0};
    weft_op_t op;
    test_fill(from, N * 10, 1, 0);
    for (size_t i = 0; i < N; i++)
        out[i] = (struct weft_local){from + i * 10, 10, 0};
    struct weft_xfer send = vector(WEFT_XFER_SEND, out, N), recv = vector(WEFT_XFER_RECV, &in, 1);
    WEFT_OK(weft_post(d->b.conns[0], &recv, &op));
    assert_int_equal(weft_transfer(d->conn, &send, T, NULL), N * 10);
    assert_int_equal(weft_op_wait(op, T, NULL), 0);
    assert_true(test_differs(to, N * 10, 1, 0) < 0);
    free(from);
    free(to);
    free(out);
}

/* --- too short ----------------------------------------------------------------------------- */

/* An error on both sides, which tells the length, and the next message is fine. */
static void a_shorter_buffer_is_an_error_on_both_sides(void **state)
{
    struct duo *d = *state;
    struct area from = duo_area(d, A, 2 * MIB, 0, 0), to = duo_area(d, B, 2 * MIB, 0, 0);
    const size_t cut[][2] = {{1, 0},       {100, 99},      {8192, 100},
                             {8193, 8192}, {MIB, MIB - 1}, {MIB, 0}};
    duo_fill(d, from, 1);
    for (size_t i = 0; i < 2 * ARRAY_LEN(cut); i++) {
        const size_t len = cut[i / 2][0], room = cut[i / 2][1];
        weft_op_t recv = 0, send;
        duo_fill(d, to, 2);
        if (i & 1)
            recv = duo_recv(d, B, 0, to, 0, room);
        send = duo_send(d, A, 0, from, 0, len);
        if (!(i & 1))
            recv = duo_recv(d, B, 0, to, 0, room);
        assert_int_equal(duo_wait(d, B, recv, WEFT_ETRUNC).bytes, len);
        duo_wait(d, A, send, WEFT_ETRUNC);
        duo_check(d, to, room, 200, 2);
        send = duo_send(d, A, 0, from, 0, len);
        recv = duo_recv(d, B, 0, to, 0, len);
        duo_wait(d, A, send, 0);
        duo_wait(d, B, recv, 0);
        duo_check(d, to, 0, len, 1);
    }
}

/* What was too long is no longer under way, either: all together is several windows. */
static void many_that_are_too_long(void **state)
{
    struct duo *d = *state;
    enum { LONG = 8000, N = 150 };
    struct area from = duo_area(d, A, LONG, 0, 0), to = duo_area(d, B, LONG, 0, 0);
    for (int i = 0; i < N; i++) {
        weft_op_t recv = duo_recv(d, B, 0, to, 0, 10), send = duo_send(d, A, 0, from, 0, LONG);
        duo_wait(d, B, recv, WEFT_ETRUNC);
        duo_wait(d, A, send, WEFT_ETRUNC);
    }
}

/* That they were is said behind much that goes the same way, and tells how many were taken well. */
static void too_long_behind_what_waits(void **state)
{
    struct duo *d = *state;
    enum { LONG = 100, N = 30, WAITING = 400 };
    struct area near = duo_area(d, A, MIB, 0, 0), far = duo_area(d, B, MIB, 0, 0);
    static weft_op_t sends[N], recvs[N], waiting[WAITING];
    for (int i = 0; i < N; i++)
        sends[i] = duo_send(d, A, 0, near, 0, i % 3 ? LONG : 10);
    weft_op_t last = duo_send(d, A, 0, near, 0, 10); /* there, when the one behind it is */
    for (int i = 0; i < WAITING; i++)
        waiting[i] = duo_send(d, B, 0, far, 0, 1000);
    for (int i = 0; i < N; i++)
        recvs[i] = duo_recv(d, B, 0, far, MIB / 2, 10);
    duo_wait(d, B, duo_recv(d, B, 0, far, MIB / 2, 10), 0);
    for (int i = 0; i < N; i++) {
        duo_wait(d, B, recvs[i], i % 3 ? WEFT_ETRUNC : 0);
        duo_wait(d, A, sends[i], i % 3 ? WEFT_ETRUNC : 0);
    }
    duo_wait(d, A, last, 0);
    for (int i = 0; i < WAITING; i++) {
        duo_wait(d, A, duo_recv(d, A, 0, near, MIB / 2, 1000), 0);
        duo_wait(d, B, waiting[i], 0);
    }
}

/* --- order --------------------------------------------------------------------------------- */

/* Messages of all sizes, sent before any receive: they are matched in the order posted. */
/* More than the window has room for: some wait, and those behind them do, too, be they long or short. */
static void many_unexpected_in_order(void **state)
{
    struct duo *d = *state;
    enum { N = 400 };
    struct area from = duo_area(d, A, MIB, 0, 0), to = duo_area(d, B, MIB, 0, 0);
    static weft_op_t sends[N];
    duo_fill(d, from, 1);
    for (size_t i = 0; i < N; i++) {
        size_t len = i % 50 == 49 ? 500000 + i : 8 + 20 * i;
        sends[i] = duo_send(d, A, 0, from, i, len);
    }
    test_sleep_ms(20);
    for (size_t i = 0; i < N; i++) {
        size_t len = i % 50 == 49 ? 500000 + i : 8 + 20 * i;
        struct area window = to;
        assert_int_equal(duo_wait(d, B, duo_recv(d, B, 0, to, i, MIB - i), 0).bytes, len);
        duo_check(d, window, i, len, 1);
    }
    for (size_t i = 0; i < N; i++)
        duo_wait(d, A, sends[i], 0);
}

/* Every other one of the same bytes, which are other ones as soon as it is posted: nobody asks for it. */
static void injected_among_others(void **state)
{
    struct duo *d = *state;
    enum { N = 60, LEN = 200 };
    struct area from = duo_area(d, A, N * LEN, 0, 0), to = duo_area(d, B, N * LEN, 0, 0);
    weft_op_t sends[N];
    duo_fill(d, from, 1);
    for (size_t i = 0; i < N; i++) {
        uint64_t number = i;
        struct weft_local local = {.addr = &number, .len = sizeof number};
        if (i % 2)
            sends[i] = duo_send(d, A, 0, from, i * LEN, LEN);
        else
            WEFT_OK(weft_post(d->conn, WEFT_OPTS(weft_xfer, .op = WEFT_XFER_SEND, .local = &local, .nlocal = 1), NULL));
    }
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(duo_wait(d, B, duo_recv(d, B, 0, to, i * LEN, LEN), 0).bytes, i % 2 ? LEN : sizeof(uint64_t));
        if (i % 2)
            duo_check(d, to, i * LEN, LEN, 1);
        else
            assert_int_equal(duo_word(d, to, i * LEN), i);
    }
    for (size_t i = 1; i < N; i += 2)
        duo_wait(d, A, sends[i], 0);
}

static void many_expected_in_order(void **state)
{
    struct duo *d = *state;
    enum { N = 400, STEP = 2000 };
    struct area from = duo_area(d, A, N * STEP, 0, 0), to = duo_area(d, B, N * STEP, 0, 0);
    static weft_op_t sends[N], recvs[N];
    duo_fill(d, from, 1);
    for (size_t i = 0; i < N; i++)
        recvs[i] = duo_recv(d, B, 0, to, i * STEP, STEP);
    for (size_t i = 0; i < N; i++)
        sends[i] = duo_send(d, A, 0, from, i * STEP, STEP - i);
    for (size_t i = 0; i < N; i++)
        assert_int_equal(duo_wait(d, B, recvs[i], 0).bytes, STEP - i);
    for (size_t i = 0; i < N; i++) {
        duo_wait(d, A, sends[i], 0);
        duo_check(d, to, i * STEP, STEP - i, 1);
    }
}

/* Far more than any window holds, while the receiver takes nothing yet. */
static void more_than_the_window(void **state)
{
    struct duo *d = *state;
    enum { N = 6000, LEN = 200 };
    char *from = malloc((size_t)N * LEN), *to = malloc((size_t)N * LEN);
    weft_op_t *ops = calloc(N, sizeof *ops);
    test_fill(from, (size_t)N * LEN, 1, 0);
    for (size_t i = 0; i < N; i++) {
        struct weft_local local = {from + i * LEN, LEN, 0};
        struct weft_xfer x = vector(WEFT_XFER_SEND, &local, 1);
        WEFT_OK(weft_post(d->conn, &x, &ops[i]));
    }
    for (size_t i = 0; i < N; i++)
        assert_int_equal(weft_recv(d->b.conns[0], to + i * LEN, LEN, T), LEN);
    assert_true(test_differs(to, (size_t)N * LEN, 1, 0) < 0);
    for (size_t i = 0; i < N; i++)
        assert_int_equal(weft_op_wait(ops[i], T, NULL), 0);
    free(from);
    free(to);
    free(ops);
}

static void both_directions_at_once(void **state)
{
    struct duo *d = *state;
    enum { N = 24 };
    struct area from[2], to[2];
    weft_op_t send[2][N], recv[2][N];
    for (int who = A; who <= B; who++) {
        from[who] = duo_area(d, who, 3 * MIB, 0, 0);
        to[who] = duo_area(d, who, 3 * MIB, 0, 0);
        duo_fill(d, from[who], 10 + (uint64_t)who);
    }
    for (size_t i = 0; i < N; i++)
        for (int who = A; who <= B; who++) {
            size_t len = i & 1 ? 100 : 100000;
            send[who][i] = duo_send(d, who, 0, from[who], i * 100000, len);
        }
    for (size_t i = 0; i < N; i++)
        for (int who = A; who <= B; who++)
            recv[who][i] = duo_recv(d, who, 0, to[who], i * 100000, 100000);
    for (size_t i = 0; i < N; i++)
        for (int who = A; who <= B; who++) {
            size_t len = i & 1 ? 100 : 100000;
            duo_wait(d, who, send[who][i], 0);
            assert_int_equal(duo_wait(d, who, recv[who][i], 0).bytes, len);
            duo_check(d, to[who], i * 100000, len, 10 + (uint64_t)!who);
        }
}

static void conns_do_not_mix(void **state)
{
    struct duo *d = *state;
    struct area from = duo_area(d, A, 4000, 0, 0), to = duo_area(d, B, 4000, 0, 0);
    weft_op_t send[4];
    for (int i = 1; i < 4; i++)
        duo_connect(d);
    duo_fill(d, from, 1);
    for (int i = 0; i < 4; i++)
        send[i] = duo_send(d, A, i, from, (size_t)i * 1000, 500 + (size_t)i);
    for (int i = 3; i >= 0; i--) {
        size_t n = 500 + (size_t)i;
        assert_int_equal(duo_wait(d, B, duo_recv(d, B, i, to, (size_t)i * 1000, 1000), 0).bytes, n);
        duo_check(d, to, (uint64_t)i * 1000, n, 1);
        duo_wait(d, A, send[i], 0);
    }
}

/* The receiver posts and does not ask again: the sender is told all the same. A wake-up that is
 * lost costs its next chance, a second: hundreds of them cannot hide in the deadline. */
static void the_sender_is_told_although_nobody_asks(void **state)
{
    struct duo *d = *state;
    enum { N = 300 };
    struct area from = duo_area(d, A, 64, 0, 0), to = duo_area(d, B, 64, 0, 0);
    static weft_op_t recvs[N];
    uint64_t end = test_deadline();
    for (int i = 0; i < N; i++) {
        weft_op_t send = duo_send(d, A, 0, from, 0, 64);
        if (i % 3 == 0)
            test_sleep_ms(1); /* both sides fall asleep */
        recvs[i] = duo_recv(d, B, 0, to, 0, 64);
        duo_wait(d, A, send, 0);
        CHECK(weft_now() < end, "only %d of %d messages came in time", i, N);
    }
    for (int i = 0; i < N; i++)
        duo_wait(d, B, recvs[i], 0);
}

/* One that is refused was the one that others were to wait for. */
static void refused_behind_a_promise(void **state)
{
    struct duo *d = *state;
    struct area from = duo_area(d, A, 64, 0, 0), to = duo_area(d, B, 64, 0, 0);
    static char bytes[64];
    const struct weft_local none = {NULL, 5, 0}, good = area_local(from, 0, 64);
    const struct weft_local bad[][3] = {
        {none},
        {{bytes, SIZE_MAX, 0}, {bytes, 1, 0}},
        {{bytes, 8192, 0}, {bytes, 1, 0}, {bytes, SIZE_MAX - 8192, 0}},
        {{bytes, 4096, 0}, {bytes, (uint64_t)1 << 63, 0}, {bytes, (uint64_t)1 << 63, 0}}};
    uint64_t end = test_deadline();
    for (int i = 0; i < 300; i++) {
        weft_op_t sent, op;
        struct weft_xfer x = vector(WEFT_XFER_SEND, &good, 1);
        x.flags = WEFT_XFER_MORE;
        WEFT_OK(weft_post(d->conn, &x, &sent));
        x = vector(WEFT_XFER_SEND, bad[i % 4], (size_t[]){1, 2, 3, 3}[i % 4]);
        WEFT_FAILS(-EINVAL, weft_post(d->conn, &x, &op));
        duo_wait(d, B, duo_recv(d, B, 0, to, 0, 64), 0);
        duo_wait(d, A, sent, 0);
        CHECK(weft_now() < end, "only %d messages came in time", i);
    }
}

/* --- canceled ------------------------------------------------------------------------------ */

static void a_canceled_receive_takes_nothing(void **state)
{
    struct duo *d = *state;
    struct area from = duo_area(d, B, 100, 0, 0), to = duo_area(d, A, 300, 0, 0);
    duo_fill(d, from, 1);
    for (int i = 0; i < 10; i++) {
        weft_op_t first = duo_recv(d, A, 0, to, 0, 100), second = duo_recv(d, A, 0, to, 200, 100);
        WEFT_OK(weft_op_cancel(first));
        duo_wait(d, A, first, WEFT_ECANCELED);
        duo_wait(d, B, duo_send(d, B, 0, from, 0, 100), 0);
        assert_int_equal(duo_wait(d, A, second, 0).bytes, 100);
        duo_check_zero(d, to, 0, 200);
    }
}

/* The receive that meets a message which was canceled after it was announced ends with
 * WEFT_ECANCELED; returns the length of the first message that was not. */
static size_t next_message(struct duo *d, struct area to, int canceled)
{
    for (;; canceled--) {
        struct weft_op_status status;
        int rc = weft_op_wait(duo_recv(d, B, 0, to, 0, to.len), T, &status);
        if (rc == 0)
            return status.bytes;
        CHECK(rc == WEFT_ECANCELED && canceled > 0, "a receive ended with %s", weft_err_name(rc));
    }
}

/* Nobody has asked for it yet: the message is gone, or was delivered; what follows is not hurt. */
static void a_canceled_send_is_skipped(void **state)
{
    struct duo *d = *state;
    struct area from = duo_area(d, A, 2 * MIB, 0, 0), to = duo_area(d, B, 2 * MIB, 0, 0);
    const size_t lens[] = {10, 8000, 9000, MIB};
    duo_fill(d, from, 1);
    for (size_t i = 0; i < ARRAY_LEN(lens); i++) {
        weft_op_t gone = duo_send(d, A, 0, from, 0, lens[i]);
        weft_op_t next = duo_send(d, A, 0, from, 0, 77);
        test_sleep_ms(i & 1 ? 2 : 0);
        WEFT_OK(weft_op_cancel(gone));
        size_t got = next_message(d, to, 1);
        if (got == lens[i]) /* it was too late: what has reached the peer stays there */
            got = next_message(d, to, 0);
        assert_int_equal(got, 77);
        duo_check(d, to, 0, 77, 1);
        duo_wait(d, A, next, 0);
        int rc = weft_op_wait(gone, T, NULL);
        CHECK(rc == WEFT_ECANCELED || rc == 0, "a canceled send ended with %s",
              weft_err_name(rc));
    }
}

static void a_blocking_send_gives_up(void **state)
{
    struct duo *d = *state;
    struct area from = duo_area(d, A, MIB, 0, 0), to = duo_area(d, B, MIB, 0, 0);
    assert_int_equal(weft_recv(d->conn, from.addr, 10, 20), WEFT_ETIMEOUT);
    duo_fill(d, from, 1);
    assert_int_equal(weft_send(d->conn, from.addr, MIB, 30), WEFT_ETIMEOUT);
    duo_fill(d, from, 2);
    weft_op_t send = duo_send(d, A, 0, from, 0, 500);
    assert_int_equal(next_message(d, to, 1), 500);
    duo_check(d, to, 0, 500, 2);
    duo_wait(d, A, send, 0);
}

/* Who closes as soon as it has its message lets the sender know that it was taken. */
static void taken_and_closed(void **state)
{
    (void)state;
    for (int i = 0; i < 40; i++) {
        bool whole = i % 2;
        WEFT_OK(weft_config_set("WEFT_CANCEL_GRACE", "20000")); /* closing waits so long for it */
        weft_endpoint_t a = duo_endpoint(), b = duo_endpoint();
        WEFT_OK(weft_config_set("WEFT_CANCEL_GRACE", NULL));
        weft_conn_t conn, other;
        weft_op_t send, recv;
        char from[64] = "taken", to[64];
        struct weft_local out = {from, sizeof from, 0}, in = {to, sizeof to, 0};
        duo_join(a, b, &conn, &other);
        WEFT_OK(weft_post(other, WEFT_OPTS(weft_xfer, .op = WEFT_XFER_RECV, .local = &in, .nlocal = 1), &recv));
        WEFT_OK(weft_post(conn, WEFT_OPTS(weft_xfer, .op = WEFT_XFER_SEND, .local = &out, .nlocal = 1), &send));
        TEST_UNTIL(weft_op_poll(recv, NULL) == 1, (void)0, "a message");
        WEFT_OK(whole ? weft_endpoint_close(b) : weft_conn_close(other));
        int rc = weft_op_wait(send, T, NULL);
        CHECK(rc == 0, "the %s was closed: %s", whole ? "endpoint" : "conn", weft_last_error());
        if (!whole)
            WEFT_OK(weft_endpoint_close(b));
        WEFT_OK(weft_endpoint_close(a));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_BOTH(any_size_whoever_is_first),
        IN_BOTH(blocking_both_ways),
        IN_BOTH(pieces_need_not_match),
        IN_ONE(thousands_of_pieces),
        IN_BOTH(a_shorter_buffer_is_an_error_on_both_sides),
        IN_BOTH(many_that_are_too_long),
        IN_BOTH(too_long_behind_what_waits),
        IN_BOTH(many_unexpected_in_order),
        IN_BOTH(injected_among_others),
        IN_BOTH(many_expected_in_order),
        IN_ONE(more_than_the_window),
        IN_BOTH(both_directions_at_once),
        IN_BOTH(conns_do_not_mix),
        IN_BOTH(the_sender_is_told_although_nobody_asks),
        IN_ONE(refused_behind_a_promise),
        cmocka_unit_test(taken_and_closed),
        IN_BOTH(a_canceled_receive_takes_nothing),
        IN_ONE(a_canceled_send_is_skipped),
        IN_ONE(a_blocking_send_gives_up),
    };
    return DUO_MAIN("endpoint_message", tests);
}
