/* SPDX-License-Identifier: Apache-2.0 */
/* Two endpoints that are not set up alike, or not on one host: who may connect to whom, over which
 * transport and how many links. The run says what differs (docs/testing.md, two hosts). */
#include "duo.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#define T TEST_DEADLINE_MS

static void conn_info(struct host *host, void *arg)
{
    WEFT_OK(weft_conn_info(host->conns[0], arg));
}

static void lanes(struct host *host, void *arg)
{
    (void)host;
    int64_t lanes = weft_config_int("WEFT_LANES");
    bool staged = strcmp(test_gpu(), "host") && !strcmp(test_common_transport(), "tcp");
    *(int64_t *)arg = lanes ? lanes : staged ? 2 : 1; /* of one progress thread */
}

/* One link for each lane that both have, of the first transport of A's list that B has. */
static void both_ends_take_the_same_path(void **state)
{
    struct duo *d = *state;
    struct weft_conn_info info[2];
    int64_t n[2];
    for (enum who who = A; who <= B; who++) {
        duo_call(d, who, conn_info, &info[who], sizeof info[who]);
        duo_call(d, who, lanes, &n[who], sizeof n[who]);
    }
    for (enum who who = A; who <= B; who++) {
        assert_string_equal(info[who].transport, test_common_transport());
        assert_int_equal(info[who].links, n[A] < n[B] ? n[A] : n[B]);
        assert_int_equal(info[who].same_host, test_same_host());
        assert_int_equal(info[who].initiator, who == A);
    }
    print_message("conn: %s, because: %s\n", info[A].path, info[A].why);
}

struct connect_arg {
    char bytes[WEFT_METADATA_MAX];
    int len;
};

static void connect_back(struct host *host, void *arg)
{
    struct connect_arg *a = arg;
    CHECK(host->nconns < MAX_CONNS, "too many conns");
    WEFT_OK(weft_endpoint_connect(host->endpoint, a->bytes, (size_t)a->len, NULL,
                                  &host->conns[host->nconns++]));
}

/* B finds A by A's metadata, too; both conns work side by side. */
static void either_may_connect(void **state)
{
    struct duo *d = *state;
    struct connect_arg a;
    struct area near = duo_area(d, A, 100000, 0, 0), far = duo_area(d, B, 100000, 0, 0);
    a.len = WEFT_OK(weft_endpoint_metadata(d->a.endpoint, a.bytes, sizeof a.bytes));
    duo_call(d, B, connect_back, &a, sizeof a);
    WEFT_OK(weft_endpoint_accept(d->a.endpoint, T, &d->a.conns[d->a.nconns++]));
    for (int conn = 0; conn < 2; conn++) {
        duo_fill(d, near, (uint64_t)conn);
        weft_op_t recv = duo_recv(d, B, conn, far, 0, far.len);
        weft_op_t send = duo_send(d, A, conn, near, 0, near.len);
        duo_wait(d, A, send, 0);
        duo_wait(d, B, recv, 0);
        duo_check(d, far, 0, far.len, (uint64_t)conn);
    }
}

/* --- addresses that several hosts have ------------------------------------------------------- */

/* Side B's endpoint, as if its host had 127.0.0.1 beside 127.0.0.2, where it listens; and who is
 * at the first one. */
struct twins {
    weft_endpoint_t a, b, other;
    int fd; /* or a listener that says nothing */
    char bytes[WEFT_METADATA_MAX];
    size_t len;
};

static weft_endpoint_t endpoint_at(const char *host, int port, bool secret)
{
    struct weft_endpoint_opts opts = duo_opts();
    opts.secret = secret ? "one secret for all" : NULL;
    opts.secret_len = secret ? strlen(opts.secret) : 0;
    char text[64];
    weft_endpoint_t endpoint;
    snprintf(text, sizeof text, "%s:%d", host, port);
    opts.listen = text;
    WEFT_OK(weft_endpoint_open(&opts, &endpoint));
    return endpoint;
}

static void twins_open(struct twins *t, bool silent, bool secret)
{
    int port = 0;
    *t = (struct twins){.a = endpoint_at("127.0.0.1", 0, secret), .fd = -1};
    if (silent)
        t->fd = duo_listener(&port);
    else
        t->other = endpoint_at("127.0.0.1", 0, secret);
    t->b = endpoint_at("127.0.0.2", silent ? port : weft_endpoint_port(t->other), secret);
    t->len = duo_metadata_of_two(t->b, t->bytes);
}

static void twins_close(struct twins *t)
{
    WEFT_OK(weft_endpoint_close(t->a));
    WEFT_OK(weft_endpoint_close(t->b));
    if (t->fd >= 0)
        close(t->fd);
    else
        WEFT_OK(weft_endpoint_close(t->other));
}

static void the_wrong_one_at_an_address_is_passed_over(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct twins t;
        weft_conn_t conn, end;
        struct weft_conn_info info;
        struct weft_metadata_info named;
        twins_open(&t, i & 1, i & 2);
        WEFT_OK(weft_endpoint_connect(t.a, t.bytes, t.len,
                                      WEFT_OPTS(weft_connect_opts, .timeout_ms = 4000), &conn));
        WEFT_OK(weft_endpoint_accept(t.b, T, &end));
        WEFT_OK(weft_conn_info(conn, &info));
        WEFT_OK(weft_metadata_parse(t.bytes, t.len, &named));
        assert_memory_equal(info.peer_uuid, named.uuid, sizeof named.uuid);
        WEFT_OK(weft_notify(conn, "you", 3, T));
        twins_close(&t);
    }
}

/* A listener that answers no one any more, not even that it is there. The connections that fill it are in `fds`. */
static int swallow_all(int listener, int port, int fds[8])
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(listen(listener, 0), 0);
    for (int n = 0; n < 8; n++) {
        fds[n] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        CHECK(!connect(fds[n], (struct sockaddr *)&at, sizeof at) || errno == EINPROGRESS, "connect: %m");
        if (poll(&(struct pollfd){.fd = fds[n], .events = POLLOUT}, 1, 200) == 0)
            return n + 1;
    }
    fail_msg("a listener with no room has taken 8");
    return 0;
}

static void an_address_that_swallows_everything_leaves_time_for_the_next(void **state)
{
    (void)state;
    struct twins t;
    weft_conn_t conn, end;
    int fds[8];
    twins_open(&t, true, false);
    int n = swallow_all(t.fd, weft_endpoint_port(t.b), fds);
    WEFT_OK(weft_endpoint_connect(t.a, t.bytes, t.len,
                                  WEFT_OPTS(weft_connect_opts, .timeout_ms = 3000), &conn));
    WEFT_OK(weft_endpoint_accept(t.b, T, &end));
    WEFT_OK(weft_notify(conn, "you", 3, T));
    while (n--)
        close(fds[n]);
    twins_close(&t);
}

/* Also when there is no right one: its process ended, and another took its port. */
static void only_the_named_endpoint_will_do(void **state)
{
    (void)state;
    weft_endpoint_t a = duo_endpoint(), b = duo_endpoint();
    char bytes[WEFT_METADATA_MAX];
    weft_conn_t conn;
    size_t len = (size_t)WEFT_OK(weft_endpoint_metadata(b, bytes, sizeof bytes));
    bytes[8] ^= 1; /* the uuid, behind magic and version */
    WEFT_FAILS(WEFT_EREFUSED, weft_endpoint_connect(a, bytes, len, NULL, &conn));
    assert_non_null(strstr(weft_last_error(), "another one listens"));
    WEFT_FAILS(WEFT_ETIMEOUT, weft_endpoint_accept(b, 20, &conn));
    bytes[8] ^= 1;
    WEFT_OK(weft_endpoint_connect(a, bytes, len, NULL, &conn));
    WEFT_OK(weft_endpoint_close(a));
    WEFT_OK(weft_endpoint_close(b));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_BOTH(both_ends_take_the_same_path),
        IN_BOTH(either_may_connect),
        cmocka_unit_test(the_wrong_one_at_an_address_is_passed_over),
        cmocka_unit_test(an_address_that_swallows_everything_leaves_time_for_the_next),
        cmocka_unit_test(only_the_named_endpoint_will_do),
    };
    return DUO_MAIN("endpoint_sides", tests);
}
