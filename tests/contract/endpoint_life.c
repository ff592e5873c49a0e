/* SPDX-License-Identifier: Apache-2.0 */
/* Endpoints: options, where they listen, metadata, progress, what close ends, handles. */
#include "duo.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define T TEST_DEADLINE_MS

static weft_endpoint_t open_at(const char *listen)
{
    struct weft_endpoint_opts opts = duo_opts();
    weft_endpoint_t endpoint;
    opts.listen = listen;
    WEFT_OK(weft_endpoint_open(&opts, &endpoint));
    return endpoint;
}

static struct weft_metadata_info info_of(weft_endpoint_t endpoint)
{
    char bytes[WEFT_METADATA_MAX];
    struct weft_metadata_info info;
    int len = WEFT_OK(weft_endpoint_metadata(endpoint, bytes, sizeof bytes));
    WEFT_OK(weft_metadata_parse(bytes, (size_t)len, &info));
    return info;
}

/* --- open ---------------------------------------------------------------------------------- */

static void every_option_has_a_default(void **state)
{
    (void)state;
    weft_endpoint_t endpoint;
    WEFT_OK(weft_endpoint_open(NULL, &endpoint));
    assert_true(endpoint != 0);
    assert_true(weft_endpoint_port(endpoint) > 0);
    assert_string_equal(info_of(endpoint).host, "127.0.0.1");
    WEFT_OK(weft_endpoint_close(endpoint));
    WEFT_OK(weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .listen = NULL), &endpoint));
    WEFT_OK(weft_endpoint_close(endpoint));
}

static void listen_takes_all_its_forms(void **state)
{
    (void)state;
    const char *const forms[] = {"127.0.0.1", "127.0.0.1:0", ":0", "localhost", "localhost:0",
                                 "[::1]:0", "[::1]", "0.0.0.0:0", "[::]:0"};
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        weft_endpoint_t endpoint = open_at(forms[i]);
        struct weft_metadata_info info = info_of(endpoint);
        assert_int_equal(info.port, weft_endpoint_port(endpoint));
        assert_true(info.port > 0 && *info.host);
        WEFT_OK(weft_endpoint_close(endpoint));
    }
}

static void a_port_may_be_chosen_and_is_taken_once(void **state)
{
    (void)state;
    struct weft_endpoint_opts opts = duo_apart();
    weft_endpoint_t first = open_at(opts.listen), second = 99;
    char text[80];
    int port = weft_endpoint_port(first);
    snprintf(text, sizeof text, "%s:%d", info_of(first).host, port);
    opts.listen = text;
    WEFT_FAILS(-EADDRINUSE, weft_endpoint_open(&opts, &second));
    assert_int_equal(second, 99);
    WEFT_OK(weft_endpoint_close(first));
    second = open_at(text); /* at once: no waiting for old conns to time out */
    assert_int_equal(weft_endpoint_port(second), port);
    WEFT_OK(weft_endpoint_close(second));
}

static void open_refuses_what_it_cannot_do(void **state)
{
    (void)state;
    weft_endpoint_t endpoint = 99;
    struct weft_endpoint_opts bad[] = {duo_opts(), duo_opts(), duo_opts(), duo_opts(), duo_opts(),
                                       duo_opts(), duo_opts(), duo_opts()};
    bad[0].struct_size = 0;
    bad[1].transport = "no_such_transport";
    bad[2].gpu = "no_such_gpu";
    bad[3].listen = "127.0.0.1:99999";
    bad[4].listen = "127.0.0.1:port";
    bad[5].listen = "[::1";
    bad[6].listen = "203.0.113.7:0"; /* an address that no machine has */
    bad[7].progress_threads = -7;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        int rc = weft_endpoint_open(&bad[i], &endpoint);
        CHECK(rc < 0, "bad options %zu were taken", i);
        CHECK(*weft_last_error(), "bad options %zu were refused without a sentence", i);
        assert_int_equal(endpoint, 99);
    }
    WEFT_FAILS(WEFT_ENODEV, weft_endpoint_open(&bad[1], &endpoint));
    assert_non_null(strstr(weft_last_error(), "no_such_transport"));
    WEFT_FAILS(-EINVAL, weft_endpoint_open(&bad[0], &endpoint));
    WEFT_FAILS(-EINVAL, weft_endpoint_open(NULL, NULL));
}

/* A caller that was built with a newer header: fine as long as what we do not know is zero. */
static void options_of_a_newer_caller(void **state)
{
    (void)state;
    struct {
        struct weft_endpoint_opts opts;
        uint64_t later;
    } newer = {duo_opts(), 0};
    weft_endpoint_t endpoint;
    newer.opts.struct_size = sizeof newer;
    WEFT_OK(weft_endpoint_open(&newer.opts, &endpoint));
    WEFT_OK(weft_endpoint_close(endpoint));
    newer.later = 1;
    WEFT_FAILS(-EINVAL, weft_endpoint_open(&newer.opts, &endpoint));
}

static void several_endpoints_are_several(void **state)
{
    (void)state;
    weft_endpoint_t e[6];
    struct weft_metadata_info info[6];
    for (int i = 0; i < 6; i++) {
        e[i] = duo_endpoint();
        info[i] = info_of(e[i]);
        for (int j = 0; j < i; j++) {
            assert_true(e[i] != e[j]);
            assert_true(info[i].port != info[j].port);
            assert_memory_not_equal(info[i].uuid, info[j].uuid, sizeof info[i].uuid);
        }
    }
    for (int i = 0; i < 6; i++)
        WEFT_OK(weft_endpoint_close(e[i]));
}

static void close_gives_everything_back(void **state)
{
    (void)state;
    int before = 0;
    for (int i = 0; i < 12; i++) {
        weft_endpoint_t a = duo_endpoint(), b = duo_endpoint();
        weft_conn_t conn, other;
        duo_join(a, b, &conn, &other);
        WEFT_OK(weft_endpoint_close(a));
        WEFT_OK(weft_endpoint_close(b));
        if (i == 1) /* what stays open after the first use stays open once */
            before = test_count_fds();
    }
    assert_int_equal(test_count_fds(), before);
}

/* --- metadata ------------------------------------------------------------------------------ */

static void metadata_says_who_and_where(void **state)
{
    (void)state;
    weft_endpoint_t endpoint = open_at("127.0.0.1");
    struct weft_metadata_info info = info_of(endpoint);
    char name[64] = "";
    gethostname(name, sizeof name - 1);
    assert_int_equal(info.pid, getpid());
    assert_int_equal(info.port, weft_endpoint_port(endpoint));
    assert_string_equal(info.host, "127.0.0.1");
    assert_string_equal(info.hostname, name);
    WEFT_OK(weft_endpoint_close(endpoint));
}

static void metadata_does_not_overrun(void **state)
{
    (void)state;
    weft_endpoint_t endpoint = duo_endpoint();
    unsigned char bytes[WEFT_METADATA_MAX + 1], again[WEFT_METADATA_MAX];
    int len = WEFT_OK(weft_endpoint_metadata(endpoint, NULL, 0));
    assert_true(len > 0 && len <= WEFT_METADATA_MAX);
    memset(bytes, 0x5a, sizeof bytes);
    assert_int_equal(weft_endpoint_metadata(endpoint, bytes, (size_t)len - 1), len);
    for (size_t i = 0; i < sizeof bytes; i++)
        assert_int_equal(bytes[i], 0x5a);
    assert_int_equal(weft_endpoint_metadata(endpoint, bytes, (size_t)len), len);
    assert_int_equal(bytes[len], 0x5a);
    WEFT_OK(weft_endpoint_metadata(endpoint, again, sizeof again));
    assert_memory_equal(bytes, again, len);
    WEFT_OK(weft_endpoint_close(endpoint));
}

static int parse(const unsigned char *bytes, size_t len)
{
    struct weft_metadata_info info;
    unsigned char *copy = malloc(len + 1); /* a sanitizer sees reads beyond the end */
    memcpy(copy, bytes, len);
    unsigned char *exact = realloc(copy, len ? len : 1);
    int rc = weft_metadata_parse(exact, len, &info);
    free(exact);
    return rc;
}

static void damaged_metadata_is_told_apart(void **state)
{
    (void)state;
    weft_endpoint_t endpoint = duo_endpoint();
    unsigned char bytes[WEFT_METADATA_MAX];
    size_t len = (size_t)WEFT_OK(weft_endpoint_metadata(endpoint, bytes, sizeof bytes));
    int versions = 0;
    struct weft_metadata_info info;
    for (size_t n = 0; n < len; n++)
        assert_int_equal(parse(bytes, n), WEFT_EPROTO);
    WEFT_FAILS(WEFT_EPROTO, weft_metadata_parse(bytes, (size_t)WEFT_ECLOSED, &info)); /* a code, not a length */
    WEFT_FAILS(WEFT_EPROTO, weft_metadata_parse(bytes, WEFT_METADATA_MAX + 1, &info));
    for (size_t i = 0; i < len; i++)
        for (unsigned change = 1; change < 256; change <<= 1) {
            bytes[i] ^= (unsigned char)change;
            int rc = parse(bytes, len);
            CHECK(rc == 0 || rc == WEFT_EPROTO || rc == WEFT_EVERSION, "damaged metadata gave %s",
                  weft_err_name(rc));
            versions += rc == WEFT_EVERSION;
            bytes[i] ^= (unsigned char)change;
        }
    assert_true(versions > 0);
    for (uint64_t seed = 0; seed < 200; seed++) {
        test_fill(bytes, sizeof bytes, seed, 0);
        assert_int_equal(parse(bytes, sizeof bytes), WEFT_EPROTO);
    }
    WEFT_OK(weft_endpoint_close(endpoint));
}

/* --- progress ------------------------------------------------------------------------------ */

static void progress_waits_no_longer_than_told(void **state)
{
    (void)state;
    for (int threads = -1; threads <= 2; threads += 1 + !threads) {
        struct weft_endpoint_opts opts = duo_opts();
        weft_endpoint_t endpoint;
        opts.progress_threads = threads;
        WEFT_OK(weft_endpoint_open(&opts, &endpoint));
        for (int i = 0; i < 20; i++)
            assert_true(weft_endpoint_progress(endpoint, i & 1) >= 0);
        WEFT_OK(weft_endpoint_close(endpoint));
    }
}

/* Two endpoints that only callers drive, in one thread. */
static void callers_alone_can_make_progress(void **state)
{
    (void)state;
    struct weft_endpoint_opts opts = duo_opts();
    weft_endpoint_t a, b;
    char from[10000], to[10000];
    opts.progress_threads = WEFT_PROGRESS_CALLER;
    WEFT_OK(weft_endpoint_open(&opts, &a));
    WEFT_OK(weft_endpoint_open(&opts, &b));
    weft_conn_t conn = duo_join_driven(a, b);
    weft_mem_t mem;
    struct weft_remote remote;
    WEFT_OK(weft_mem_reg(b, to, sizeof to, NULL, &mem));
    WEFT_OK(weft_mem_advertise(mem, to, sizeof to, &remote));
    test_fill(from, sizeof from, 1, 0);
    struct weft_local local = {from, sizeof from, 0};
    weft_op_t op;
    WEFT_OK(weft_post(conn, WEFT_OPTS(weft_xfer, .op = WEFT_XFER_WRITE, .local = &local,
                                      .nlocal = 1, .remote = &remote, .nremote = 1,
                                      .notify = "x", .notify_len = 1), &op));
    int rc = 0;
    TEST_UNTIL((rc = weft_op_poll(op, NULL)), weft_endpoint_progress(a, 0);
               weft_endpoint_progress(b, 0), "a write");
    assert_int_equal(rc, 1);
    assert_true(test_differs(to, sizeof to, 1, 0) < 0);
    struct weft_notif notif;
    WEFT_OK(weft_endpoint_notif(b, 0, &notif));
    weft_notif_free(&notif);
    WEFT_OK(weft_endpoint_close(a));
    WEFT_OK(weft_endpoint_close(b));
}

static uint64_t unexpected(weft_conn_t conn)
{
    struct weft_conn_stats stats;
    WEFT_OK(weft_conn_stats(conn, &stats));
    return stats.msgs_unexpected;
}

/* A message that nobody has posted a receive for comes while the caller polls an operation: who waits for anything to
 * happen need not wait then. */
static void what_another_call_saw_has_happened(void **state)
{
    (void)state;
    struct weft_endpoint_opts opts = duo_opts();
    weft_endpoint_t a, b;
    weft_conn_t near[2], far[2];
    weft_op_t never, send;
    uint64_t out = 7, in = 0;
    opts.progress_threads = WEFT_PROGRESS_CALLER;
    WEFT_OK(weft_endpoint_open(&opts, &a));
    WEFT_OK(weft_endpoint_open(&opts, &b));
    for (int i = 0; i < 2; i++)
        duo_join_both_driven(a, b, &near[i], &far[i]);
    struct weft_local into = {&in, sizeof in, 0}, from = {&out, sizeof out, 0};
    WEFT_OK(weft_post(near[0], WEFT_OPTS(weft_xfer, .op = WEFT_XFER_RECV, .local = &into, .nlocal = 1), &never));
    TEST_UNTIL(WEFT_OK(weft_endpoint_progress(a, 20)) == 0, weft_endpoint_progress(b, 0), "silence");
    WEFT_OK(weft_post(far[1], WEFT_OPTS(weft_xfer, .op = WEFT_XFER_SEND, .local = &from, .nlocal = 1), &send));
    TEST_UNTIL(unexpected(near[1]) == 1, (weft_endpoint_progress(b, 0), assert_int_equal(weft_op_poll(never, NULL), 0)), "the message");
    for (int i = 0; i < 200; i++) { /* what comes after it */
        weft_endpoint_progress(b, 0);
        assert_int_equal(weft_op_poll(never, NULL), 0);
    }
    assert_int_equal(WEFT_OK(weft_endpoint_progress(a, 1000)), 1);
    WEFT_OK(weft_endpoint_close(a));
    WEFT_OK(weft_endpoint_close(b));
}

/* --- close --------------------------------------------------------------------------------- */

struct waiter {
    weft_op_t op;
    weft_endpoint_t endpoint;
    int op_rc, notif_rc, accept_rc;
};

static void *wait_op(void *arg)
{
    struct waiter *w = arg;
    w->op_rc = weft_op_wait(w->op, WEFT_FOREVER, NULL);
    return NULL;
}

static void *wait_notif(void *arg)
{
    struct waiter *w = arg;
    struct weft_notif notif;
    w->notif_rc = weft_endpoint_notif(w->endpoint, WEFT_FOREVER, &notif);
    return NULL;
}

static void *wait_accept(void *arg)
{
    struct waiter *w = arg;
    weft_conn_t conn;
    w->accept_rc = weft_endpoint_accept(w->endpoint, WEFT_FOREVER, &conn);
    return NULL;
}

static void close_ends_what_waits(void **state)
{
    (void)state;
    weft_endpoint_t a = duo_endpoint(), b = duo_endpoint();
    weft_conn_t conn, other;
    char memory[64];
    struct weft_local local = {memory, sizeof memory, 0};
    struct waiter w = {.endpoint = a};
    pthread_t threads[3];
    duo_join(a, b, &conn, &other);
    WEFT_OK(weft_post(conn, WEFT_OPTS(weft_xfer, .op = WEFT_XFER_RECV, .local = &local,
                                      .nlocal = 1), &w.op));
    pthread_create(&threads[0], NULL, wait_op, &w);
    pthread_create(&threads[1], NULL, wait_notif, &w);
    pthread_create(&threads[2], NULL, wait_accept, &w);
    test_sleep_ms(300); /* in all likelihood they wait now */
    WEFT_OK(weft_endpoint_close(a));
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(w.op_rc, WEFT_ECLOSED);
    assert_int_equal(w.notif_rc, WEFT_ECLOSED);
    assert_int_equal(w.accept_rc, WEFT_ECLOSED);
    assert_int_equal(weft_recv(other, memory, sizeof memory, T), WEFT_EPEER);
    WEFT_OK(weft_endpoint_close(b));
}

/* Nobody drives the peer: what its conns were sent is not known to have come, and each would be waited for. */
static void close_waits_once_for_all_conns(void **state)
{
    (void)state;
    enum { CONNS = 8, GRACE_MS = 1000 }; /* WEFT_CANCEL_GRACE is not set */
    weft_endpoint_t a = duo_endpoint(), b = duo_undriven(duo_opts().transport);
    for (int c = 0; c < CONNS; c++)
        duo_clog(duo_join_driven(a, b));
    uint64_t since = weft_now();
    WEFT_OK(weft_endpoint_close(a));
    uint64_t ms = (weft_now() - since) / 1000000;
    CHECK(ms < CONNS * GRACE_MS / 2, "%d ms: each of %d conns has a time of its own", (int)ms, CONNS);
    WEFT_OK(weft_endpoint_close(b));
}

/* --- handles ------------------------------------------------------------------------------- */

static void expect_stale(weft_endpoint_t e, weft_conn_t c, weft_mem_t m, weft_op_t op)
{
    char bytes[WEFT_METADATA_MAX], byte = 0;
    struct weft_remote remote = {{0}};
    struct weft_conn_info info;
    struct weft_conn_stats stats;
    struct weft_notif notif;
    weft_conn_t conn;
    weft_mem_t mem;
    WEFT_FAILS(WEFT_EHANDLE, weft_endpoint_metadata(e, bytes, sizeof bytes));
    WEFT_FAILS(WEFT_EHANDLE, weft_endpoint_port(e));
    WEFT_FAILS(WEFT_EHANDLE, weft_endpoint_progress(e, 0));
    WEFT_FAILS(WEFT_EHANDLE, weft_endpoint_connect_to(e, "127.0.0.1:1", NULL, &conn));
    WEFT_FAILS(WEFT_EHANDLE, weft_endpoint_connect_to(e, "nobody.invalid:1", NULL, &conn)); /* which is not looked up */
    WEFT_FAILS(WEFT_EHANDLE, weft_endpoint_accept(e, 0, &conn));
    WEFT_FAILS(WEFT_EHANDLE, weft_endpoint_conns(e, &conn, 1));
    WEFT_FAILS(WEFT_EHANDLE, weft_endpoint_notif(e, 0, &notif));
    WEFT_FAILS(WEFT_EHANDLE, weft_mem_reg(e, bytes, sizeof bytes, NULL, &mem));
    WEFT_FAILS(WEFT_EHANDLE, weft_endpoint_close(e));
    WEFT_FAILS(WEFT_EHANDLE, weft_conn_wait(c, 0));
    WEFT_FAILS(WEFT_EHANDLE, weft_conn_info(c, &info));
    WEFT_FAILS(WEFT_EHANDLE, weft_conn_stats(c, &stats));
    WEFT_FAILS(WEFT_EHANDLE, weft_notify(c, "x", 1, 0));
    WEFT_FAILS(WEFT_EHANDLE, weft_send(c, &byte, 1, 0));
    WEFT_FAILS(WEFT_EHANDLE, weft_recv(c, &byte, 1, 0));
    WEFT_FAILS(WEFT_EHANDLE, weft_conn_close(c));
    WEFT_FAILS(WEFT_EHANDLE, weft_mem_advertise(m, bytes, 1, &remote));
    WEFT_FAILS(WEFT_EHANDLE, weft_mem_dereg(m));
    WEFT_FAILS(WEFT_EHANDLE, weft_op_poll(op, NULL));
    WEFT_FAILS(WEFT_EHANDLE, weft_op_wait(op, 0, NULL));
    WEFT_FAILS(WEFT_EHANDLE, weft_op_cancel(op));
}

static void stale_foreign_and_null_handles(void **state)
{
    (void)state;
    static char memory[64];
    weft_endpoint_t a = duo_endpoint(), b = duo_endpoint();
    weft_conn_t conn, other;
    weft_mem_t mem;
    weft_op_t op;
    struct weft_local local = {memory, 8, 0};
    duo_join(a, b, &conn, &other);
    WEFT_OK(weft_mem_reg(a, memory, sizeof memory, NULL, &mem));
    WEFT_OK(weft_post(conn, WEFT_OPTS(weft_xfer, .op = WEFT_XFER_RECV, .local = &local,
                                      .nlocal = 1), &op));
    expect_stale(0, 0, 0, 0);
    expect_stale(UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX);
    expect_stale(conn, mem, op, a); /* of another kind */
    expect_stale(a + 1, conn + 1, mem + 1, op + 1);
    expect_stale(a + (1ull << 32), conn + (1ull << 32), mem + (1ull << 32), op + (1ull << 32));
    weft_op_cancel(op);
    weft_op_wait(op, T, NULL);
    WEFT_OK(weft_endpoint_close(a));
    expect_stale(a, conn, mem, op);
    WEFT_OK(weft_endpoint_close(b));
}

/* What a child does with its parent's handles does nothing to them. */
static void a_forked_child_has_no_handles(void **state)
{
    (void)state;
    static char memory[64];
    weft_endpoint_t a = duo_endpoint(), b = duo_endpoint();
    weft_conn_t conn, other;
    weft_mem_t mem;
    struct weft_remote remote;
    int status;
    duo_join(a, b, &conn, &other);
    WEFT_OK(weft_mem_reg(b, memory, sizeof memory, NULL, &mem));
    WEFT_OK(weft_mem_advertise(mem, memory, sizeof memory, &remote));
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        bool refused = weft_write(conn, "child", 5, &remote, 0, 0) == WEFT_EHANDLE &&
                       weft_notify(conn, "child", 5, 0) == WEFT_EHANDLE &&
                       weft_endpoint_progress(a, 0) == WEFT_EHANDLE &&
                       weft_mem_dereg(mem) == WEFT_EHANDLE &&
                       weft_conn_close(conn) == WEFT_EHANDLE &&
                       weft_endpoint_close(a) == WEFT_EHANDLE &&
                       weft_endpoint_close(b) == WEFT_EHANDLE;
        _exit(refused ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(WEFT_OK(weft_write(conn, "parent", 6, &remote, 0, T)), 6);
    assert_memory_equal(memory, "parent", 6);
    WEFT_OK(weft_endpoint_close(a));
    WEFT_OK(weft_endpoint_close(b));
}

struct busy {
    struct weft_endpoint_opts opts;
    char bytes[WEFT_METADATA_MAX];
    size_t len;
    _Atomic(bool) over;
};

/* An endpoint and a conn of its own: 0, or what failed. */
static int live_once(const struct busy *b, int progress_threads)
{
    struct weft_endpoint_opts opts = b->opts;
    weft_endpoint_t endpoint;
    weft_conn_t conn;
    opts.progress_threads = progress_threads;
    int rc = weft_endpoint_open(&opts, &endpoint);
    if (rc)
        return rc;
    rc = weft_endpoint_connect(endpoint, b->bytes, b->len, NULL, &conn);
    if (rc == 0)
        rc = (int)weft_notify(conn, "here", 4, T);
    int closed = weft_endpoint_close(endpoint);
    return rc < 0 ? rc : closed;
}

static void *live_again_and_again(void *arg)
{
    struct busy *b = arg;
    while (!atomic_load(&b->over))
        if (live_once(b, 1))
            return arg;
    return NULL;
}

/* Other threads hold the library's locks when it forks; the child, which does not have these threads, does all that they
 * do. Not over a vendor's library, which has locks and devices of its own. */
static void a_child_forked_while_others_are_busy(void **state)
{
    (void)state;
    enum { THREADS = 2, CHILDREN = 40 };
    static struct busy b;
    struct weft_notif notif;
    pthread_t threads[THREADS];
    void *failed;
    int status;
#ifdef WEFT_SANITIZED
    return; /* malloc has locks, too, and a sanitizer's are not open in a child */
#endif
    if (strcmp(test_transport(), "tcp") && strcmp(test_transport(), "local"))
        return;
    b.opts = duo_opts();
    b.opts.gpu = "host"; /* a vendor's is its process's alone */
    b.opts.passive_accept = 1;
    weft_endpoint_t server;
    WEFT_OK(weft_endpoint_open(&b.opts, &server));
    b.len = (size_t)WEFT_OK(weft_endpoint_metadata(server, b.bytes, sizeof b.bytes));
    atomic_store(&b.over, false);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, live_again_and_again, &b), 0);
    for (int i = 0; i < CHILDREN; i++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL); /* one that hangs ends with the test */
            _exit(live_once(&b, WEFT_PROGRESS_CALLER) ? 1 : 0);
        }
        TEST_UNTIL(waitpid(child, &status, WNOHANG) == child, test_sleep_ms(1), "child %d", i);
        assert_int_equal(status, 0);
        while (weft_endpoint_notif(server, 0, &notif) == 0)
            weft_notif_free(&notif);
    }
    atomic_store(&b.over, true);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    WEFT_OK(weft_endpoint_close(server));
}

#define ALONE(test) cmocka_unit_test(test)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ALONE(every_option_has_a_default),
        ALONE(listen_takes_all_its_forms),
        ALONE(a_port_may_be_chosen_and_is_taken_once),
        ALONE(open_refuses_what_it_cannot_do),
        ALONE(options_of_a_newer_caller),
        ALONE(several_endpoints_are_several),
        ALONE(close_gives_everything_back),
        ALONE(metadata_says_who_and_where),
        ALONE(metadata_does_not_overrun),
        ALONE(damaged_metadata_is_told_apart),
        ALONE(progress_waits_no_longer_than_told),
        ALONE(callers_alone_can_make_progress),
        ALONE(what_another_call_saw_has_happened),
        ALONE(close_ends_what_waits),
        ALONE(close_waits_once_for_all_conns),
        ALONE(stale_foreign_and_null_handles),
        ALONE(a_forked_child_has_no_handles),
        ALONE(a_child_forked_while_others_are_busy),
    };
    return DUO_MAIN("endpoint_life", tests);
}
