/* SPDX-License-Identifier: Apache-2.0 */
/*
 * core/boot.c and core/handshake.c against strangers: garbage, other versions, absurd lengths,
 * bytes one at a time, silence, many at once. The endpoint goes on serving others.
 */
#include "helpers.h"

#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "handshake.h"
#include "util.h"

enum { HELLO = 1, OFFER = 2, LINKS = 3, READY = 4, DONE = 5, NO = 6, REJECT = 7 };

static weft_endpoint_t server;

static int open_server(void **state)
{
    (void)state;
    return weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .listen = "127.0.0.1"), &server);
}

static int close_server(void **state)
{
    (void)state;
    return weft_endpoint_close(server);
}

static int dial(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                            .sin_port = htons((uint16_t)weft_endpoint_port(server))};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    struct timeval limit = {.tv_sec = 5};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

static size_t frame(uint8_t *buf, uint16_t version, uint16_t type, const void *body, uint32_t len)
{
    struct weft__writer w = {buf, buf + 4096, false};
    weft__put_u32(&w, 0x54464557u);
    weft__put_u16(&w, version);
    weft__put_u16(&w, type);
    weft__put_u32(&w, len);
    weft__put(&w, body, len);
    return (size_t)(w.at - buf);
}

/* Read until the server hangs up; false if it has not within the time limit. */
static bool hangs_up(int fd)
{
    char buf[512];
    ssize_t n;
    while ((n = recv(fd, buf, sizeof buf, 0)) > 0)
        ;
    close(fd);
    return n == 0 || errno == ECONNRESET;
}

static void still_serves(void)
{
    weft_endpoint_t client;
    weft_conn_t conn, accepted;
    uint8_t metadata[WEFT_METADATA_MAX];
    int len = weft_endpoint_metadata(server, metadata, sizeof metadata);
    assert_int_equal(weft_endpoint_open(NULL, &client), 0);
    assert_int_equal(weft_endpoint_connect(client, metadata, (size_t)len, NULL, &conn), 0);
    assert_int_equal(weft_endpoint_accept(server, 5000, &accepted), 0);
    assert_int_equal(weft_notify(conn, "hi", 2, 5000), 0);
    struct weft_notif notif;
    assert_int_equal(weft_endpoint_notif(server, 5000, &notif), 0);
    assert_int_equal(notif.len, 2);
    weft_notif_free(&notif);
    assert_int_equal(weft_conn_close(conn), 0);
    assert_int_equal(weft_conn_close(accepted), 0);
    assert_int_equal(weft_endpoint_close(client), 0);
}

/* A valid HELLO of a made-up endpoint that has the given transport. */
static size_t hello(uint8_t *buf, const char *transport)
{
    uint8_t body[256] = {0};
    struct weft__writer w = {body, body + sizeof body, false};
    weft__put(&w, "0123456789abcdef", 16); /* uuid */
    weft__put(&w, "0123456789abcdef", 16); /* boot id */
    weft__put_u64(&w, 1);
    weft__put_u32(&w, 1);
    weft__put_u64(&w, 65536);
    weft__put_u8(&w, 1);
    weft__put_text(&w, transport);
    weft__put_u8(&w, 1);
    return frame(buf, WEFT__BOOT_VERSION, HELLO, body, (uint32_t)(w.at - body));
}

static void garbage_is_hung_up_on(void **state)
{
    (void)state;
    int fd = dial();
    assert_int_equal(send(fd, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL), 18);
    assert_true(hangs_up(fd));
    still_serves();
}

static void broken_frames_are_hung_up_on(void **state)
{
    (void)state;
    uint8_t buf[4096];
    const uint16_t types[] = {0, OFFER, LINKS, READY, DONE, NO, 8, 0xffff};
    for (size_t i = 0; i < WEFT__ARRAY_LEN(types); i++) {
        int fd = dial();
        size_t len = frame(buf, WEFT__BOOT_VERSION, types[i], "xxxxxxxx", 8);
        assert_int_equal(send(fd, buf, len, MSG_NOSIGNAL), len);
        assert_true(hangs_up(fd));
    }
    still_serves();
}

static void another_version_is_hung_up_on(void **state)
{
    (void)state;
    uint8_t buf[4096];
    int fd = dial();
    size_t len = frame(buf, WEFT__BOOT_VERSION + 1, HELLO, "x", 1);
    assert_int_equal(send(fd, buf, len, MSG_NOSIGNAL), len);
    assert_true(hangs_up(fd));
    still_serves();
}

static void an_absurd_length_is_hung_up_on(void **state)
{
    (void)state;
    uint8_t buf[4096];
    size_t len = frame(buf, WEFT__BOOT_VERSION, HELLO, "", 0);
    memset(buf + 8, 0xff, 4);
    int fd = dial();
    assert_int_equal(send(fd, buf, len, MSG_NOSIGNAL), len);
    assert_true(hangs_up(fd));
    still_serves();
}

/* Every prefix of a hello, and every hello with one byte changed, leaves the server unharmed. */
static void damaged_hellos(void **state)
{
    (void)state;
    uint8_t buf[4096], damaged[4096];
    size_t len = hello(buf, "tcp");
    for (size_t i = 0; i < len; i += 3) {
        int fd = dial();
        assert_int_equal(send(fd, buf, i, MSG_NOSIGNAL), i);
        close(fd);
        fd = dial();
        memcpy(damaged, buf, len);
        damaged[i] ^= 0x5a;
        assert_int_equal(send(fd, damaged, len, MSG_NOSIGNAL), len);
        close(fd);
    }
    still_serves();
}

/* Into a window below the least one, messages of legal length would never go. */
static void a_window_too_small_is_hung_up_on(void **state)
{
    (void)state;
    uint8_t buf[4096];
    size_t len = hello(buf, "tcp"), window = WEFT__FRAME_HEAD + 16 + 16 + 8 + 4;
    for (uint64_t size = 0; size < WEFT__WINDOW_LEAST; size = 2 * size + 1) {
        struct weft__writer w = {buf + window, buf + window + 8, false};
        weft__put_u64(&w, size);
        int fd = dial();
        char byte;
        assert_int_equal(send(fd, buf, len, MSG_NOSIGNAL), len);
        assert_true(recv(fd, &byte, 1, 0) <= 0); /* without an answer */
        close(fd);
    }
    still_serves();
}

static void a_hello_byte_by_byte_is_answered(void **state)
{
    (void)state;
    uint8_t buf[4096], answer[12];
    size_t len = hello(buf, "tcp");
    int fd = dial();
    for (size_t i = 0; i < len; i++)
        assert_int_equal(send(fd, buf + i, 1, MSG_NOSIGNAL), 1);
    assert_int_equal(recv(fd, answer, sizeof answer, MSG_WAITALL), sizeof answer);
    assert_memory_equal(answer, buf, 4);
    assert_int_equal(answer[6], HELLO);
    close(fd);
    still_serves();
}

/* An offer of a transport that is not there gets a NO, and the next offer is heard. */
static void an_unknown_transport_is_declined(void **state)
{
    (void)state;
    uint8_t buf[4096], head[12], body[4096];
    int fd = dial();
    size_t len = hello(buf, "pigeon");
    assert_int_equal(send(fd, buf, len, MSG_NOSIGNAL), len);
    for (uint8_t attempt = 1; attempt < 4; attempt++) {
        uint8_t offer[32];
        struct weft__writer w = {offer, offer + sizeof offer, false};
        weft__put_u8(&w, attempt);
        weft__put_u8(&w, 1);
        weft__put_text(&w, "pigeon");
        len = frame(buf, WEFT__BOOT_VERSION, OFFER, offer, (uint32_t)(w.at - offer));
        assert_int_equal(send(fd, buf, len, MSG_NOSIGNAL), len);
        do {
            assert_int_equal(recv(fd, head, sizeof head, MSG_WAITALL), sizeof head);
            struct weft__reader r = {head + 8, head + 12, false};
            uint32_t n = weft__get_u32(&r);
            assert_true(n <= sizeof body);
            assert_int_equal(recv(fd, body, n, MSG_WAITALL), n);
        } while (head[6] == HELLO);
        assert_int_equal(head[6], NO);
        assert_int_equal(body[0], attempt);
    }
    close(fd);
    still_serves();
}

static void many_silent_strangers(void **state)
{
    (void)state;
    enum { N = 300 }; /* more than may be in a handshake at once: the oldest make room */
    int fds[N];
    for (int i = 0; i < N; i++)
        fds[i] = dial();
    still_serves();
    for (int i = 0; i < N; i++)
        close(fds[i]);
    still_serves();
}

/* A child that does not exec holds the server's sockets open; what comes over one that the server
 * has closed must not find the object it belonged to. */
static void a_child_holds_the_socket(void **state)
{
    (void)state;
    int fds[8], ends[2];
    char byte;
    for (int i = 0; i < 8; i++)
        fds[i] = dial();
    still_serves(); /* so the server has taken them all */
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        close(ends[1]);
        _exit(read(ends[0], &byte, 1) != 0);
    }
    for (int i = 0; i < 8; i++)
        assert_int_equal(send(fds[i], "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL), 18);
    still_serves();
    for (int i = 0; i < 8; i++)
        assert_int_equal(send(fds[i], "more", 4, MSG_NOSIGNAL), 4);
    still_serves();
    still_serves();
    close(ends[0]);
    close(ends[1]);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    for (int i = 0; i < 8; i++)
        close(fds[i]);
}

/* A listener that is no endpoint, and where it is. */
static int listen_as_nobody(char address[32])
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    snprintf(address, 32, "127.0.0.1:%u", ntohs(a.sin_port));
    return fd;
}

static void a_silent_listener_is_given_up(void **state)
{
    (void)state;
    char address[32];
    int fd = listen_as_nobody(address);
    weft_conn_t conn = 77;
    int rc = weft_endpoint_connect_to(server, address,
                                      WEFT_OPTS(weft_connect_opts, .timeout_ms = 200), &conn);
    assert_int_equal(rc, WEFT_ETIMEOUT);
    assert_int_equal(weft_endpoint_conns(server, NULL, 0), 0);
    close(fd);
    rc = weft_endpoint_connect_to(server, address, NULL, &conn);
    assert_int_equal(rc, -ECONNREFUSED);
    assert_non_null(strstr(weft_last_error(), address));
}

/* What was posted on a conn that never came up ends as what it is: its peer is not there. Nor is "not yet" said of it for ever. */
static void a_conn_that_never_comes_up(void **state)
{
    (void)state;
    char address[32], text[] = "early";
    struct weft_local local = {.addr = text, .len = sizeof text};
    const struct weft_xfer *send = WEFT_OPTS(weft_xfer, .op = WEFT_XFER_SEND, .local = &local, .nlocal = 1);
    int fd = listen_as_nobody(address);
    for (int refused = 0; refused < 2; refused++) {
        weft_conn_t conn;
        weft_op_t op, late;
        struct weft_op_status status;
        if (refused)
            close(fd);
        int rc = weft_endpoint_connect_to(server, address,
                                          WEFT_OPTS(weft_connect_opts, .timeout_ms = 300, .nonblocking = 1), &conn);
        assert_int_equal(rc, 0);
        assert_int_equal(weft_post(conn, send, &op), 0);
        rc = weft_op_wait(op, 10000, &status);
        assert_int_equal(rc, WEFT_EPEER);
        assert_int_equal(status.status, WEFT_EPEER);
        assert_true(status.text[0]);
        assert_int_equal(weft_conn_wait(conn, 10000), refused ? -ECONNREFUSED : WEFT_EPEER);
        assert_true(weft_last_error()[0]);
        assert_int_equal(weft_post(conn, send, &late), WEFT_EPEER);
        assert_int_equal(weft_conn_close(conn), 0);
    }
}

/* --- frames that are well formed, and make no sense ------------------------------------------ */

static void send_all(int fd, const void *bytes, size_t len)
{
    assert_int_equal(send(fd, bytes, len, MSG_NOSIGNAL), len);
}

/* Frames up to the end, and whether one of this type was among them. */
static bool hears(int fd, uint16_t type)
{
    uint8_t head[WEFT__FRAME_HEAD], body[4096];
    bool heard = false;
    while (recv(fd, head, sizeof head, MSG_WAITALL) == sizeof head) {
        uint32_t len = weft__le32(head + 8);
        assert_true(len <= sizeof body && recv(fd, body, len, MSG_WAITALL) == (ssize_t)len);
        heard |= (head[6] | head[7] << 8) == type;
    }
    close(fd);
    return heard;
}

/* Of links for a transport, twice at once, and of none. It does not keep its place until the deadline. */
static void offers_that_make_no_sense(void **state)
{
    (void)state;
    static const char *const offers[] = {"\1\1\3\0tcp", "\1\0\3\0tcp"};
    for (int none = 0; none < 2; none++) {
        uint8_t buf[4096];
        uint64_t began = weft_now();
        int fd = dial();
        send_all(fd, buf, hello(buf, "tcp"));
        size_t n = frame(buf, WEFT__BOOT_VERSION, OFFER, offers[none], 7);
        for (int i = none; i < 2; i++)
            send_all(fd, buf, n);
        assert_int_equal(hears(fd, LINKS), !none);
        assert_true(weft_now() - began < 2000000000u); /* of the 5 s that a handshake has */
        still_serves();
    }
}

static void hang_up_on(const uint8_t *bytes, size_t len)
{
    int fd = dial();
    send_all(fd, bytes, len);
    assert_false(hears(fd, HELLO));
    still_serves();
}

/* With more transports than anyone has, and of no process. */
static void hellos_that_make_no_sense(void **state)
{
    (void)state;
    uint8_t buf[8192], body[4000];
    struct weft__writer w = {body, body + sizeof body, false};
    const size_t pid = 16 + 16 + 8;
    size_t len = hello(buf, "tcp"), fixed = pid + 4 + 8;
    memset(buf + WEFT__FRAME_HEAD + pid, 0, 4);
    hang_up_on(buf, len);
    hello(buf, "tcp");
    weft__put(&w, buf + WEFT__FRAME_HEAD, fixed);
    weft__put_u8(&w, 200);
    for (int i = 0; i < 200; i++) {
        weft__put_text(&w, "abcdefghijklmno");
        weft__put_u8(&w, 1);
    }
    hang_up_on(buf, frame(buf, WEFT__BOOT_VERSION, HELLO, body, (uint32_t)(w.at - body)));
}

/* Of more links than a conn has. */
static void links_without_end(void **state)
{
    (void)state;
    static uint8_t buf[40000], body[32000];
    static const uint8_t address[60];
    int fd = dial();
    send_all(fd, buf, hello(buf, "tcp"));
    send_all(fd, buf, frame(buf, WEFT__BOOT_VERSION, OFFER, "\1\1\3\0tcp", 7));
    struct weft__writer w = {body, body + sizeof body, false}, f = {buf, buf + sizeof buf, false};
    weft__put_u8(&w, 1);
    weft__put_u8(&w, 255);
    for (int i = 0; i < 255; i++) {
        weft__put_u8(&w, 1);
        weft__put_u8(&w, 0xff);
        weft__put_u16(&w, sizeof address);
        weft__put(&w, address, sizeof address);
    }
    uint32_t len = (uint32_t)(w.at - body);
    weft__put_u32(&f, 0x54464557u);
    weft__put_u16(&f, WEFT__BOOT_VERSION);
    weft__put_u16(&f, LINKS);
    weft__put_u32(&f, len);
    weft__put(&f, body, len);
    assert_false(f.bad || w.bad);
    send_all(fd, buf, (size_t)(f.at - buf));
    assert_true(hangs_up(fd));
    still_serves();
}

static void *refuse_for_no_reason(void *arg)
{
    uint8_t buf[4096], body[64];
    struct weft__writer w = {body, body + sizeof body, false};
    int fd = accept4(*(int *)arg, NULL, NULL, SOCK_CLOEXEC);
    weft__put_u8(&w, 0);
    weft__put_u32(&w, 0);
    weft__put_text(&w, "all is well");
    if (recv(fd, buf, sizeof buf, 0) > 0)
        send(fd, buf, frame(buf, WEFT__BOOT_VERSION, REJECT, body, (uint32_t)(w.at - body)), MSG_NOSIGNAL);
    while (recv(fd, buf, sizeof buf, 0) > 0)
        ;
    close(fd);
    return NULL;
}

/* A refusal whose code is that of success is none, and does not end a connect well. */
static void a_refusal_that_says_all_is_well(void **state)
{
    (void)state;
    char address[32];
    pthread_t thread;
    weft_conn_t conn = 77;
    int fd = listen_as_nobody(address);
    assert_int_equal(pthread_create(&thread, NULL, refuse_for_no_reason, &fd), 0);
    int rc = weft_endpoint_connect_to(server, address, WEFT_OPTS(weft_connect_opts, .timeout_ms = 3000), &conn);
    assert_int_equal(rc, WEFT_EPROTO);
    assert_int_equal(pthread_join(thread, NULL), 0);
    close(fd);
}

int main(void)
{
    weft_config_set("WEFT_BACKLOG", "64");
    weft_config_set("WEFT_CONNECT_TIMEOUT", "5000");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(garbage_is_hung_up_on, open_server, close_server),
        cmocka_unit_test_setup_teardown(broken_frames_are_hung_up_on, open_server, close_server),
        cmocka_unit_test_setup_teardown(another_version_is_hung_up_on, open_server, close_server),
        cmocka_unit_test_setup_teardown(an_absurd_length_is_hung_up_on, open_server, close_server),
        cmocka_unit_test_setup_teardown(damaged_hellos, open_server, close_server),
        cmocka_unit_test_setup_teardown(a_window_too_small_is_hung_up_on, open_server,
                                        close_server),
        cmocka_unit_test_setup_teardown(a_hello_byte_by_byte_is_answered, open_server,
                                        close_server),
        cmocka_unit_test_setup_teardown(an_unknown_transport_is_declined, open_server,
                                        close_server),
        cmocka_unit_test_setup_teardown(many_silent_strangers, open_server, close_server),
        cmocka_unit_test_setup_teardown(a_child_holds_the_socket, open_server, close_server),
        cmocka_unit_test_setup_teardown(a_silent_listener_is_given_up, open_server, close_server),
        cmocka_unit_test_setup_teardown(a_conn_that_never_comes_up, open_server, close_server),
        cmocka_unit_test_setup_teardown(offers_that_make_no_sense, open_server, close_server),
        cmocka_unit_test_setup_teardown(hellos_that_make_no_sense, open_server, close_server),
        cmocka_unit_test_setup_teardown(links_without_end, open_server, close_server),
        cmocka_unit_test_setup_teardown(a_refusal_that_says_all_is_well, open_server, close_server),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
