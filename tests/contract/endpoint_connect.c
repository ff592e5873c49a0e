/* SPDX-License-Identifier: Apache-2.0 */
/* Conns: how endpoints find each other, what a conn says of itself, and everything that can stand
 * behind an address instead of an endpoint. */
#include "duo.h"

#include <arpa/inet.h>
#include <limits.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "registry.h"

#define T TEST_DEADLINE_MS

/* One write and one message each way. */
static void use(weft_endpoint_t to, weft_conn_t conn, weft_conn_t other)
{
    static char from[5000], into[5000];
    weft_mem_t mem;
    struct weft_remote remote;
    WEFT_OK(weft_mem_reg(to, into, sizeof into, NULL, &mem));
    WEFT_OK(weft_mem_advertise(mem, into, sizeof into, &remote));
    test_fill(from, sizeof from, 1, 0);
    test_zero(into, sizeof into);
    assert_int_equal(weft_write(conn, from, sizeof from, &remote, 0, T), sizeof from);
    assert_true(test_differs(into, sizeof into, 1, 0) < 0);
    WEFT_OK(weft_notify(other, "there", 5, T));
    WEFT_OK(weft_notify(conn, "back", 4, T));
    WEFT_OK(weft_mem_dereg(mem));
}

static void drain(weft_endpoint_t endpoint)
{
    struct weft_notif notif;
    while (weft_endpoint_notif(endpoint, 0, &notif) == 0)
        weft_notif_free(&notif);
}

static int metadata_of(weft_endpoint_t endpoint, char bytes[WEFT_METADATA_MAX])
{
    return WEFT_OK(weft_endpoint_metadata(endpoint, bytes, WEFT_METADATA_MAX));
}

/* --- the ways to connect ------------------------------------------------------------------- */

static void both_sides_know_what_they_have(void **state)
{
    (void)state;
    weft_endpoint_t a = duo_endpoint(), b = duo_endpoint();
    weft_conn_t conn, other;
    struct weft_conn_info at_a, at_b;
    char bytes[WEFT_METADATA_MAX];
    struct weft_metadata_info of_a, of_b;
    duo_join(a, b, &conn, &other);
    WEFT_OK(weft_conn_wait(other, T));
    WEFT_OK(weft_conn_info(conn, &at_a));
    WEFT_OK(weft_conn_info(other, &at_b));
    WEFT_OK(weft_metadata_parse(bytes, (size_t)metadata_of(a, bytes), &of_a));
    WEFT_OK(weft_metadata_parse(bytes, (size_t)metadata_of(b, bytes), &of_b));
    assert_int_equal(at_a.state, WEFT_CONN_UP);
    assert_int_equal(at_b.state, WEFT_CONN_UP);
    assert_int_equal(at_a.status | at_b.status, 0);
    assert_int_equal(at_a.initiator, 1);
    assert_int_equal(at_b.initiator, 0);
    assert_int_equal(at_a.same_host & at_b.same_host, 1);
    assert_true(at_a.links >= 1 && at_a.links == at_b.links);
    assert_int_equal(at_a.peer_pid, getpid());
    assert_memory_equal(at_a.peer_uuid, of_b.uuid, 16);
    assert_memory_equal(at_b.peer_uuid, of_a.uuid, 16);
    assert_string_equal(at_a.transport, test_transport());
    assert_string_equal(at_b.transport, test_transport());
    assert_non_null(strstr(at_a.path, test_transport()));
    assert_true(*at_a.why && *at_b.why && *at_a.peer && *at_b.peer);
    use(b, conn, other);
    WEFT_OK(weft_endpoint_close(a));
    WEFT_OK(weft_endpoint_close(b));
}

static void by_host_and_port(void **state)
{
    (void)state;
    const char *const forms[][2] = {{"127.0.0.1:0", "127.0.0.1:%d"}, {"[::1]:0", "[::1]:%d"},
                                    {"127.0.0.1:0", "localhost:%d"}, {":0", "127.0.0.1:%d"},
                                    {"[::]:0", "[::1]:%d"}};
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        struct weft_endpoint_opts opts = duo_opts();
        weft_endpoint_t a = duo_endpoint(), b;
        weft_conn_t conn, other;
        char text[64];
        opts.listen = forms[i][0];
        WEFT_OK(weft_endpoint_open(&opts, &b));
        snprintf(text, sizeof text, forms[i][1], weft_endpoint_port(b));
        WEFT_OK(weft_endpoint_connect_to(a, text, NULL, &conn));
        WEFT_OK(weft_endpoint_accept(b, T, &other));
        use(b, conn, other);
        WEFT_OK(weft_endpoint_close(a));
        WEFT_OK(weft_endpoint_close(b));
    }
}

/* The metadata of an endpoint on all interfaces, or on IPv6, leads to it as well. */
static void by_metadata_of_every_listener(void **state)
{
    (void)state;
    const char *const forms[] = {":0", "[::1]:0", "[::]:0", "localhost:0"};
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        struct weft_endpoint_opts opts = duo_opts();
        weft_endpoint_t a = duo_endpoint(), b;
        weft_conn_t conn, other;
        opts.listen = forms[i];
        WEFT_OK(weft_endpoint_open(&opts, &b));
        duo_join(a, b, &conn, &other);
        use(b, conn, other);
        WEFT_OK(weft_endpoint_close(a));
        WEFT_OK(weft_endpoint_close(b));
    }
}

static void passive_accept(void **state)
{
    (void)state;
    struct weft_endpoint_opts opts = duo_opts();
    weft_endpoint_t a = duo_endpoint(), b;
    weft_conn_t conn[3], list[8] = {0};
    char bytes[WEFT_METADATA_MAX];
    opts.passive_accept = 1;
    WEFT_OK(weft_endpoint_open(&opts, &b));
    int len = metadata_of(b, bytes);
    assert_int_equal(weft_endpoint_conns(b, NULL, 0), 0);
    WEFT_FAILS(-EINVAL, weft_endpoint_conns(b, NULL, 1));
    for (int i = 0; i < 3; i++)
        WEFT_OK(weft_endpoint_connect(a, bytes, (size_t)len, NULL, &conn[i]));
    TEST_UNTIL(weft_endpoint_conns(b, list, 8) == 3, test_sleep_ms(1), "three conns to be listed");
    assert_int_equal(weft_endpoint_conns(b, list, 1), 3);
    weft_conn_t none;
    WEFT_FAILS(-EINVAL, weft_endpoint_accept(b, -1, &none));
    assert_int_equal(weft_endpoint_conns(b, list, 8), 3);
    for (int i = 0; i < 3; i++)
        use(b, conn[i], list[i]);
    for (int i = 0; i < 3; i++)
        WEFT_OK(weft_conn_close(conn[i]));
    TEST_UNTIL(weft_endpoint_conns(b, list, 8) == 0, test_sleep_ms(1),
               "passive conns to go with their peers");
    WEFT_OK(weft_endpoint_close(a));
    WEFT_OK(weft_endpoint_close(b));
}

static void several_conns_of_one_pair(void **state)
{
    (void)state;
    weft_endpoint_t a = duo_endpoint(), b = duo_endpoint();
    weft_conn_t conn[4], other[4], list[8];
    for (int i = 0; i < 4; i++)
        duo_join(i & 1 ? b : a, i & 1 ? a : b, &conn[i], &other[i]);
    assert_int_equal(weft_endpoint_conns(a, list, 8), 4);
    assert_int_equal(weft_endpoint_conns(b, list, 8), 4);
    for (int i = 0; i < 4; i++)
        use(i & 1 ? a : b, conn[i], other[i]);
    for (int i = 0; i < 4; i += 2) {
        WEFT_OK(weft_conn_close(conn[i]));
        use(a, conn[i + 1], other[i + 1]);
    }
    assert_int_equal(weft_endpoint_conns(a, list, 8), 2);
    WEFT_OK(weft_endpoint_close(a));
    WEFT_OK(weft_endpoint_close(b));
}

static void to_oneself(void **state)
{
    (void)state;
    weft_endpoint_t a = duo_endpoint();
    weft_conn_t conn, other;
    duo_join(a, a, &conn, &other);
    assert_true(conn != other);
    use(a, conn, other);
    drain(a);
    WEFT_OK(weft_notify(conn, "to myself", 9, T));
    struct weft_notif notif;
    WEFT_OK(weft_endpoint_notif(a, T, &notif));
    assert_int_equal(notif.conn, other);
    assert_memory_equal(notif.data, "to myself", 9);
    weft_notif_free(&notif);
    WEFT_OK(weft_endpoint_close(a));
}

static void nonblocking_with_operations_at_once(void **state)
{
    (void)state;
    weft_endpoint_t a = duo_endpoint(), b = duo_endpoint();
    weft_conn_t conn, other;
    char bytes[WEFT_METADATA_MAX], text[] = "early", got[8];
    int len = metadata_of(b, bytes);
    struct weft_local local = {text, 5, 0};
    weft_op_t op;
    WEFT_OK(weft_endpoint_connect(a, bytes, (size_t)len,
                                  WEFT_OPTS(weft_connect_opts, .nonblocking = 1), &conn));
    WEFT_OK(weft_post(conn, WEFT_OPTS(weft_xfer, .op = WEFT_XFER_SEND, .local = &local,
                                      .nlocal = 1), &op));
    WEFT_OK(weft_endpoint_accept(b, T, &other));
    assert_int_equal(weft_recv(other, got, sizeof got, T), 5);
    assert_memory_equal(got, "early", 5);
    assert_int_equal(weft_op_wait(op, T, NULL), 0);
    assert_int_equal(weft_conn_wait(conn, T), 0);
    WEFT_OK(weft_endpoint_close(a));
    WEFT_OK(weft_endpoint_close(b));
}

/* --- the end of a conn --------------------------------------------------------------------- */

static void close_is_seen_and_reconnect_works(void **state)
{
    (void)state;
    weft_endpoint_t a = duo_endpoint(), b = duo_endpoint();
    weft_conn_t conn, other, old = 0;
    char byte;
    struct weft_conn_info info;
    for (int i = 0; i < 6; i++) {
        duo_join(a, b, &conn, &other);
        assert_true(conn != old);
        use(b, conn, other);
        WEFT_OK(weft_conn_close(i & 1 ? other : conn));
        WEFT_FAILS(WEFT_EHANDLE, weft_conn_close(i & 1 ? other : conn));
        weft_conn_t left = i & 1 ? conn : other;
        assert_int_equal(weft_recv(left, &byte, 1, T), WEFT_EPEER);
        WEFT_OK(weft_conn_info(left, &info)); /* it stays, and tells why */
        assert_int_equal(info.state, WEFT_CONN_DOWN);
        assert_int_equal(info.status, WEFT_EPEER);
        assert_true(*info.why);
        assert_int_equal(weft_send(left, &byte, 1, T), WEFT_EPEER);
        WEFT_OK(weft_conn_close(left));
        old = conn;
    }
    WEFT_OK(weft_endpoint_close(a));
    WEFT_OK(weft_endpoint_close(b));
}

static enum weft_conn_state state_of(weft_conn_t conn)
{
    struct weft_conn_info info;
    WEFT_OK(weft_conn_info(conn, &info));
    return info.state;
}

/* The peer is up, and gone, before this side has read that the handshake is over. */
static void gone_before_it_is_up_here(void **state)
{
    (void)state;
    struct weft_endpoint_opts opts = duo_opts();
    char bytes[WEFT_METADATA_MAX];
    weft_endpoint_t near = duo_endpoint(), far;
    weft_conn_t conn, other;
    opts.progress_threads = WEFT_PROGRESS_CALLER;
    WEFT_OK(weft_endpoint_open(&opts, &far));
    size_t len = (size_t)metadata_of(far, bytes);
    WEFT_OK(weft_endpoint_connect(near, bytes, len,
                                  WEFT_OPTS(weft_connect_opts, .nonblocking = 1), &conn));
    /* the peer does all that it can between two steps of this side */
    TEST_UNTIL(state_of(conn) != WEFT_CONN_CONNECTING,
               weft_endpoint_progress(far, 0); test_sleep_ms(2), "the conn to be up at its peer");
    WEFT_OK(weft_conn_close(conn));
    WEFT_OK(weft_endpoint_accept(far, T, &other));
    char byte;
    assert_int_equal(weft_recv(other, &byte, 1, T), WEFT_EPEER);
    assert_int_equal(state_of(other), WEFT_CONN_DOWN);
    WEFT_OK(weft_endpoint_close(near));
    WEFT_OK(weft_endpoint_close(far));
}

static void close_ends_its_operations(void **state)
{
    (void)state;
    weft_endpoint_t a = duo_endpoint(), b = duo_endpoint();
    weft_conn_t conn, other;
    char bytes[2][64];
    struct weft_local local[2] = {{bytes[0], 64, 0}, {bytes[1], 64, 0}};
    weft_op_t op[2];
    duo_join(a, b, &conn, &other);
    weft_conn_t ends[2] = {conn, other};
    for (int i = 0; i < 2; i++)
        WEFT_OK(weft_post(ends[i], WEFT_OPTS(weft_xfer, .op = WEFT_XFER_RECV,
                                             .local = &local[i], .nlocal = 1), &op[i]));
    WEFT_OK(weft_conn_close(conn));
    struct weft_op_status status;
    assert_int_equal(weft_op_wait(op[0], T, &status), WEFT_ECLOSED);
    assert_true(*status.text);
    assert_int_equal(weft_op_wait(op[1], T, &status), WEFT_EPEER);
    assert_true(*status.text);
    WEFT_OK(weft_endpoint_close(a));
    WEFT_OK(weft_endpoint_close(b));
}

/* --- nobody, strangers, garbage ------------------------------------------------------------ */

static int connect_to(weft_endpoint_t a, int port, int timeout_ms)
{
    char text[64];
    weft_conn_t conn = 99;
    snprintf(text, sizeof text, "127.0.0.1:%d", port);
    uint64_t begin = weft_now();
    int rc = weft_endpoint_connect_to(
        a, text, WEFT_OPTS(weft_connect_opts, .timeout_ms = timeout_ms), &conn);
    uint64_t took = (weft_now() - begin) / 1000000;
    CHECK(rc < 0 && conn == 99, "connecting to nobody worked");
    CHECK(strstr(weft_last_error(), text), "connecting to %s: '%s'", text, weft_last_error());
    CHECK(took < (uint64_t)timeout_ms + 2000, "connecting took %" PRIu64 " ms", took);
    return rc;
}

static void with_the_longest_timeout(void **state)
{
    (void)state;
    weft_endpoint_t a = duo_endpoint();
    char bytes[WEFT_METADATA_MAX];
    size_t len = (size_t)metadata_of(a, bytes);
    weft_conn_t conn;
    WEFT_OK(weft_endpoint_connect(
        a, bytes, len, WEFT_OPTS(weft_connect_opts, .timeout_ms = INT_MAX), &conn));
    WEFT_OK(weft_endpoint_close(a));
}

static void to_nobody(void **state)
{
    (void)state;
    weft_endpoint_t a = duo_endpoint(), b = duo_endpoint();
    char bytes[WEFT_METADATA_MAX];
    weft_conn_t conn;
    int port, fd = duo_listener(&port), len = metadata_of(b, bytes);
    close(fd);
    connect_to(a, port, 3000);
    WEFT_OK(weft_endpoint_close(b));
    assert_true(weft_endpoint_connect(a, bytes, (size_t)len, NULL, &conn) < 0);
    assert_true(*weft_last_error());
    WEFT_OK(weft_endpoint_close(a));
}

static void to_one_who_says_nothing(void **state)
{
    (void)state;
    weft_endpoint_t a = duo_endpoint();
    int port, fd = duo_listener(&port);
    assert_int_equal(connect_to(a, port, 150), WEFT_ETIMEOUT);
    close(fd);
    WEFT_OK(weft_endpoint_close(a));
}

struct stranger {
    size_t len;
    uint64_t seed; /* 0: zeros */
};

static void speak_garbage(int fd, void *arg)
{
    struct stranger *s = arg;
    char bytes[4096] = {0};
    int port, at = duo_listener(&port);
    test_send(fd, &port, sizeof port);
    int peer = accept(at, NULL, NULL);
    if (s->seed)
        test_fill(bytes, s->len, s->seed, 0);
    (void)!write(peer, bytes, s->len);
    test_recv(fd, bytes, 1); /* until the test has seen it */
}

static void to_one_who_speaks_garbage(void **state)
{
    (void)state;
    const struct stranger all[] = {{0, 0}, {1, 0}, {64, 0}, {4096, 0}, {64, 1}, {4096, 2}};
    weft_endpoint_t a = duo_endpoint();
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        struct stranger s = all[i];
        int port, fd;
        pid_t pid = test_fork(speak_garbage, &s, &fd);
        assert_true(test_recv(fd, &port, sizeof port));
        int rc = connect_to(a, port, 300);
        CHECK(rc == WEFT_EPROTO || rc == WEFT_EVERSION || rc == WEFT_ETIMEOUT,
              "garbage %zu gave %s", i, weft_err_name(rc));
        CHECK(all[i].len < 4096 || rc != WEFT_ETIMEOUT, "garbage of 4096 bytes was waited on");
        close(fd);
        test_join(pid, 0);
    }
    WEFT_OK(weft_endpoint_close(a));
}

/* Whoever connects to the endpoint's port and is no endpoint harms nobody. */
static void strangers_at_the_door(void **state)
{
    (void)state;
    weft_endpoint_t a = duo_endpoint(), b = duo_endpoint();
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                             .sin_port = htons((uint16_t)weft_endpoint_port(b))};
    int fds[24];
    for (int i = 0; i < 24; i++) {
        char junk[2000];
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK(!connect(fds[i], (struct sockaddr *)&at, sizeof at), "connect: %m");
        test_fill(junk, sizeof junk, (uint64_t)i, 0);
        if (i % 3)
            (void)!send(fds[i], junk, (size_t)(i % 3 == 1 ? i : 2000), MSG_NOSIGNAL);
        if (i % 4 == 3)
            close(fds[i]);
    }
    weft_conn_t conn, other, none;
    duo_join(a, b, &conn, &other);
    use(b, conn, other);
    WEFT_FAILS(WEFT_ETIMEOUT, weft_endpoint_accept(b, 10, &none));
    assert_int_equal(weft_endpoint_conns(b, NULL, 0), 1);
    for (int i = 0; i < 24; i++)
        if (i % 4 != 3)
            close(fds[i]);
    use(b, conn, other);
    WEFT_OK(weft_endpoint_close(a));
    WEFT_OK(weft_endpoint_close(b));
}

static void garbage_metadata_and_addresses(void **state)
{
    (void)state;
    weft_endpoint_t a = duo_endpoint(), b = duo_endpoint();
    char bytes[WEFT_METADATA_MAX];
    int len = metadata_of(b, bytes);
    weft_conn_t conn = 99;
    for (int n = 0; n < len; n++)
        WEFT_FAILS(WEFT_EPROTO, weft_endpoint_connect(a, bytes, (size_t)n, NULL, &conn));
    struct weft_metadata_info info;
    WEFT_OK(weft_metadata_parse(bytes, (size_t)len, &info));
    char *host = memmem(bytes, (size_t)len, info.host, strlen(info.host));
    CHECK(strlen(info.host) == 9 && host, "the host of metadata is %s", info.host);
    memcpy(host, "cafe.dead", 9); /* a name, though each letter is a digit */
    WEFT_FAILS(WEFT_EPROTO, weft_endpoint_connect(a, bytes, (size_t)len, NULL, &conn));
    memcpy(host, info.host, 9);
    const char *const texts[] = {"", ":", "127.0.0.1", "127.0.0.1:", "127.0.0.1:0:0", "[::1:80",
                                 "127.0.0.1:99999", "127.0.0.1:x"};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        int rc = weft_endpoint_connect_to(a, texts[i],
                                          WEFT_OPTS(weft_connect_opts, .timeout_ms = 500), &conn);
        CHECK(rc < 0, "address '%s' was taken", texts[i]);
    }
    WEFT_FAILS(-EINVAL, weft_endpoint_connect_to(a, NULL, NULL, &conn));
    WEFT_FAILS(-EINVAL, weft_endpoint_connect(
                            a, bytes, (size_t)len,
                            WEFT_OPTS(weft_connect_opts, .timeout_ms = WEFT_FOREVER), &conn));
    WEFT_FAILS(WEFT_ENODEV, weft_endpoint_connect(
                                a, bytes, (size_t)len,
                                WEFT_OPTS(weft_connect_opts, .transport = "nonesuch"), &conn));
    CHECK(strstr(weft_last_error(), "this build, which has"), "%s",
          weft_last_error());
    const char *const lists[] = {"tcp,", ",tcp", "tcp,,local", ","};
    for (size_t i = 0; i < ARRAY_LEN(lists); i++)
        WEFT_FAILS(-EINVAL, weft_endpoint_connect(
                                a, bytes, (size_t)len,
                                WEFT_OPTS(weft_connect_opts, .transport = lists[i]), &conn));
    assert_int_equal(conn, 99);
    assert_int_equal(weft_endpoint_conns(a, NULL, 0), 0);
    WEFT_OK(weft_endpoint_close(a));
    WEFT_OK(weft_endpoint_close(b));
}

struct acceptor {
    weft_endpoint_t endpoint;
    int accepted, end;
};

static void *accepts_for_ever(void *arg)
{
    struct acceptor *a = arg;
    weft_conn_t conn;
    while ((a->end = weft_endpoint_accept(a->endpoint, WEFT_FOREVER, &conn)) == 0)
        a->accepted++;
    return NULL;
}

/* What one of them takes is no reason for the others to return. */
static void several_accept_at_once(void **state)
{
    (void)state;
    enum { N = 3, CONNS = 200 };
    weft_endpoint_t a = duo_endpoint(), b = duo_endpoint();
    struct acceptor acceptors[N];
    pthread_t threads[N];
    int accepted = 0;
    for (int i = 0; i < N; i++) {
        acceptors[i] = (struct acceptor){.endpoint = b};
        assert_int_equal(pthread_create(&threads[i], NULL, accepts_for_ever, &acceptors[i]), 0);
    }
    char bytes[WEFT_METADATA_MAX];
    int len = WEFT_OK(weft_endpoint_metadata(b, bytes, sizeof bytes));
    for (int i = 0; i < CONNS; i++) {
        weft_conn_t conn;
        WEFT_OK(weft_endpoint_connect(a, bytes, (size_t)len, NULL, &conn));
        if (i % 2)
            WEFT_OK(weft_conn_close(conn));
    }
    WEFT_OK(weft_endpoint_close(b));
    for (int i = 0; i < N; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        /* or it came back for more when the endpoint was gone */
        CHECK(acceptors[i].end == WEFT_ECLOSED || acceptors[i].end == WEFT_EHANDLE, "%s",
              weft_err_name(acceptors[i].end));
        accepted += acceptors[i].accepted;
    }
    CHECK(accepted <= CONNS && accepted > CONNS / 2, "%d accepted of %d", accepted, CONNS);
    WEFT_OK(weft_endpoint_close(a));
}

static void nobody_accepts_in_time(void **state)
{
    (void)state;
    weft_endpoint_t a = duo_endpoint();
    weft_conn_t conn = 99;
    WEFT_FAILS(WEFT_ETIMEOUT, weft_endpoint_accept(a, 0, &conn));
    WEFT_FAILS(WEFT_ETIMEOUT, weft_endpoint_accept(a, 20, &conn));
    assert_int_equal(conn, 99);
    WEFT_OK(weft_endpoint_close(a));
}

static void a_full_backlog_refuses(void **state)
{
    (void)state;
    weft_config_set("WEFT_BACKLOG", "2");
    weft_endpoint_t a = duo_endpoint(), b = duo_endpoint();
    weft_config_set("WEFT_BACKLOG", NULL);
    char bytes[WEFT_METADATA_MAX];
    int len = metadata_of(b, bytes);
    weft_conn_t conn, other;
    for (int i = 0; i < 2; i++)
        WEFT_OK(weft_endpoint_connect(a, bytes, (size_t)len, NULL, &conn));
    WEFT_FAILS(WEFT_EREFUSED, weft_endpoint_connect(a, bytes, (size_t)len, NULL, &conn));
    WEFT_OK(weft_endpoint_accept(b, T, &other));
    WEFT_OK(weft_endpoint_connect(a, bytes, (size_t)len, NULL, &conn));
    WEFT_OK(weft_endpoint_close(a));
    WEFT_OK(weft_endpoint_close(b));
}

/* Its metadata comes from another host, and names an address that is this one's own. */
static void a_peer_that_listens_on_its_loopback(void **state)
{
    (void)state;
    enum { BOOT_ID = 4 + 2 + 2 + 16 }; /* where it is in metadata */
    char bytes[WEFT_METADATA_MAX];
    struct weft_endpoint_opts opts = duo_apart();
    weft_endpoint_t a = duo_endpoint(), b;
    weft_conn_t conn;
    WEFT_OK(weft_endpoint_open(&opts, &b));
    int len = metadata_of(b, bytes);
    WEFT_OK(weft_endpoint_close(b));
    WEFT_FAILS(-ECONNREFUSED, weft_endpoint_connect(a, bytes, (size_t)len, NULL, &conn));
    assert_null(strstr(weft_last_error(), "loopback"));
    bytes[BOOT_ID] ^= 1;
    WEFT_FAILS(-ECONNREFUSED, weft_endpoint_connect(a, bytes, (size_t)len, NULL, &conn));
    CHECK(strstr(weft_last_error(), "loopback only"), "%s", weft_last_error());
    WEFT_OK(weft_endpoint_close(a));
}

/* Endpoints that have no transport in common say so. */
static void no_common_transport(void **state)
{
    (void)state;
    const char *others[] = {"tcp", "local"};
    struct weft_endpoint_opts opts = duo_opts();
    for (size_t i = 0; i < ARRAY_LEN(others); i++) {
        weft_endpoint_t a, b;
        weft_conn_t conn;
        char bytes[WEFT_METADATA_MAX];
        if (!strcmp(others[i], test_transport()) || !weft__transport_find(others[i]))
            continue;
        opts.transport = others[i];
        WEFT_OK(weft_endpoint_open(&opts, &b));
        a = duo_endpoint();
        int len = metadata_of(b, bytes);
        WEFT_FAILS(WEFT_ENOPATH, weft_endpoint_connect(a, bytes, (size_t)len, NULL, &conn));
        assert_non_null(strstr(weft_last_error(), test_transport()));
        WEFT_OK(weft_endpoint_close(a));
        WEFT_OK(weft_endpoint_close(b));
    }
}

#define ALONE(test) cmocka_unit_test(test)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ALONE(both_sides_know_what_they_have),
        ALONE(by_host_and_port),
        ALONE(by_metadata_of_every_listener),
        ALONE(passive_accept),
        ALONE(several_conns_of_one_pair),
        ALONE(to_oneself),
        ALONE(nonblocking_with_operations_at_once),
        ALONE(close_is_seen_and_reconnect_works),
        ALONE(close_ends_its_operations),
        ALONE(gone_before_it_is_up_here),
        ALONE(with_the_longest_timeout),
        ALONE(to_nobody),
        ALONE(to_one_who_says_nothing),
        ALONE(to_one_who_speaks_garbage),
        ALONE(strangers_at_the_door),
        ALONE(garbage_metadata_and_addresses),
        ALONE(several_accept_at_once),
        ALONE(nobody_accepts_in_time),
        ALONE(a_full_backlog_refuses),
        ALONE(a_peer_that_listens_on_its_loopback),
        ALONE(no_common_transport),
    };
    return DUO_MAIN("endpoint_connect", tests);
}
