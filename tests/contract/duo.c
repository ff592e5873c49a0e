/* SPDX-License-Identifier: Apache-2.0 */
/* Two endpoints, in one process or in two. See duo.h. */
#include "duo.h"

#include <arpa/inet.h>
#include <sys/socket.h>

/* How long nothing has to come before a test believes that nothing will. */
#define QUIET_MS 20

/* --- open and close ------------------------------------------------------------------------ */

struct weft_endpoint_opts duo_opts(void)
{
    return (struct weft_endpoint_opts){.struct_size = sizeof(struct weft_endpoint_opts),
                                       .transport = test_transports(), .fault = test_fault(),
                                       .gpu = test_gpu(), .progress_threads = 1};
}

struct weft_endpoint_opts duo_apart(void)
{
    static char address[32];
    struct weft_endpoint_opts opts = duo_opts();
    unsigned pid = (unsigned)getpid(); /* of 22 bits at most; all of 127.0.0.0/8 is this host's */
    snprintf(address, sizeof address, "127.%u.%u.%u:0", 64 + (pid >> 16 & 63), pid >> 8 & 255, pid & 255);
    opts.listen = address;
    return opts;
}

weft_endpoint_t duo_endpoint(void)
{
    struct weft_endpoint_opts opts = duo_opts();
    weft_endpoint_t endpoint;
    WEFT_OK(weft_endpoint_open(&opts, &endpoint));
    return endpoint;
}

static void run(void *host, test_any_fn *fn, void *arg)
{
    ((duo_fn *)fn)(host, arg);
}

static void host_close(struct host *host)
{
    WEFT_OK(weft_endpoint_close(host->endpoint));
    for (int i = 0; i < host->nareas; i++)
        test_mem_close(&host->areas[i].mem);
    free(host->areas);
}

static void serve(int fd, void *arg)
{
    (void)arg;
    struct host host = {.endpoint = duo_endpoint()};
    test_serve(fd, &host, run, NULL);
    host_close(&host);
}

void duo_call(struct duo *d, enum who who, duo_fn *fn, void *arg, size_t size)
{
    if (who == A)
        fn(&d->a, arg);
    else if (!d->peer.pid)
        fn(&d->b, arg);
    else
        test_call(d->peer.fd, (test_any_fn *)fn, arg, size, NULL, NULL);
}

static int setup(void **state, bool processes)
{
    struct duo *d = calloc(1, sizeof *d);
    CHECK(d, "no memory for two endpoints");
    *state = d;
    test_begin();
    if (processes)
        test_peer_start(serve, &d->peer);
    else
        d->b.endpoint = duo_endpoint();
    d->a.endpoint = duo_endpoint();
    duo_connect(d);
    d->conn = d->a.conns[0];
    return 0;
}

int duo_setup(void **state)
{
    return setup(state, false);
}

int duo_setup_processes(void **state)
{
    return setup(state, true);
}

int duo_teardown(void **state)
{
    struct duo *d = *state;
    if (test_failed()) {
        test_peer_drop(&d->peer);
        return 0; /* whatever is left is in an unknown state */
    }
    if (d->peer.pid) {
        test_call_end(d->peer.fd);
        test_peer_join(&d->peer, 0);
        close(d->peer.fd);
    } else {
        host_close(&d->b);
    }
    host_close(&d->a);
    free(d);
    return 0;
}

int duo_teardown_alone(void **state)
{
    struct duo *d = *state;
    if (test_failed()) {
        test_peer_drop(&d->peer);
        return 0;
    }
    close(d->peer.fd);
    host_close(&d->a);
    free(d);
    return 0;
}

/* --- conns --------------------------------------------------------------------------------- */

struct meta_arg {
    char bytes[WEFT_METADATA_MAX];
    int len;
};

static void metadata(struct host *host, void *arg)
{
    struct meta_arg *a = arg;
    a->len = WEFT_OK(weft_endpoint_metadata(host->endpoint, a->bytes, sizeof a->bytes));
}

static void take_conn(struct host *host, void *arg)
{
    CHECK(host->nconns < MAX_CONNS, "too many conns");
    WEFT_OK(weft_endpoint_accept(host->endpoint, TEST_DEADLINE_MS, &host->conns[host->nconns]));
    *(int *)arg = host->nconns++;
}

int duo_connect(struct duo *d)
{
    struct meta_arg meta;
    int n = d->a.nconns, other;
    CHECK(n < MAX_CONNS, "too many conns");
    duo_call(d, B, metadata, &meta, sizeof meta);
    WEFT_OK(weft_endpoint_connect(d->a.endpoint, meta.bytes, (size_t)meta.len, NULL,
                                  &d->a.conns[n]));
    d->a.nconns++;
    duo_call(d, B, take_conn, &other, sizeof other);
    CHECK(other == n, "conns are numbered the same on both hosts");
    return n;
}

void duo_join(weft_endpoint_t from, weft_endpoint_t to, weft_conn_t *conn, weft_conn_t *other)
{
    char bytes[WEFT_METADATA_MAX];
    int len = WEFT_OK(weft_endpoint_metadata(to, bytes, sizeof bytes));
    WEFT_OK(weft_endpoint_connect(from, bytes, (size_t)len, NULL, conn));
    WEFT_OK(weft_endpoint_accept(to, TEST_DEADLINE_MS, other));
}

void duo_join_both_driven(weft_endpoint_t from, weft_endpoint_t to, weft_conn_t *conn, weft_conn_t *other)
{
    char bytes[WEFT_METADATA_MAX];
    *other = 0;
    int len = WEFT_OK(weft_endpoint_metadata(to, bytes, sizeof bytes));
    WEFT_OK(weft_endpoint_connect(from, bytes, (size_t)len,
                                  WEFT_OPTS(weft_connect_opts, .nonblocking = 1), conn));
    TEST_UNTIL(*other || weft_endpoint_accept(to, 0, other) == 0, weft_endpoint_progress(from, 0),
               "a conn between two endpoints without threads");
    TEST_UNTIL(weft_conn_wait(*conn, 0) == 0, weft_endpoint_progress(to, 0), "the conn to be up");
}

weft_conn_t duo_join_driven(weft_endpoint_t from, weft_endpoint_t to)
{
    weft_conn_t conn, other;
    duo_join_both_driven(from, to, &conn, &other);
    return conn;
}

weft_endpoint_t duo_undriven(const char *transport)
{
    struct weft_endpoint_opts opts = duo_opts();
    weft_endpoint_t endpoint;
    opts.transport = transport;
    opts.progress_threads = WEFT_PROGRESS_CALLER;
    WEFT_OK(weft_config_set("WEFT_EAGER_WINDOW", "64M"));
    WEFT_OK(weft_endpoint_open(&opts, &endpoint));
    WEFT_OK(weft_config_set("WEFT_EAGER_WINDOW", NULL));
    return endpoint;
}

void duo_clog(weft_conn_t conn)
{
    static const char bytes[8192];
    for (int i = 0; i < 1000; i++)
        WEFT_OK(weft_post(conn, WEFT_OPTS(weft_xfer, .op = WEFT_XFER_NOTIFY, .notify = bytes,
                                          .notify_len = sizeof bytes), NULL));
}

/* --- memory -------------------------------------------------------------------------------- */

struct area_arg {
    struct area area;
    size_t len, misalign;
    uint32_t access;
    uint64_t offset, seed, value;
    int64_t differs;
};

static void area_open(struct host *host, void *arg)
{
    struct area_arg *a = arg;
    host->areas = realloc(host->areas, (size_t)(host->nareas + 1) * sizeof *host->areas);
    CHECK(host->areas, "no memory for areas");
    struct host_area *h = &host->areas[host->nareas];
    test_mem_open_on(&h->mem, a->len, a->misalign, test_memory(a->area.who));
    struct weft_mem_opts opts = {.struct_size = sizeof opts, .access = a->access};
    WEFT_OK(weft_mem_reg(host->endpoint, h->mem.at, a->len, &opts, &h->handle));
    WEFT_OK(weft_mem_advertise(h->handle, h->mem.at, a->len, &a->area.remote));
    a->area.id = host->nareas++;
    a->area.addr = (char *)h->mem.at;
    a->area.len = a->len;
    a->area.mem = h->handle;
}

struct area duo_area(struct duo *d, enum who who, size_t len, size_t misalign, uint32_t access)
{
    struct area_arg a = {.len = len, .misalign = misalign, .access = access, .area.who = who};
    duo_call(d, who, area_open, &a, sizeof a);
    return a.area;
}

static void area_fill(struct host *host, void *arg)
{
    struct area_arg *a = arg;
    const struct test_mem *mem = &host->areas[a->area.id].mem;
    test_fill(mem->at, mem->len, a->seed, 0);
}

void duo_fill(struct duo *d, struct area area, uint64_t seed)
{
    struct area_arg a = {.area = area, .seed = seed};
    duo_call(d, area.who, area_fill, &a, sizeof a);
}

static void area_check(struct host *host, void *arg)
{
    struct area_arg *a = arg;
    const struct test_mem *mem = &host->areas[a->area.id].mem;
    test_mem_check_guards(mem);
    a->differs = test_differs(mem->at + a->offset, a->len, a->seed, a->offset);
}

void duo_check(struct duo *d, struct area area, uint64_t offset, uint64_t len, uint64_t seed)
{
    struct area_arg a = {.area = area, .offset = offset, .len = len, .seed = seed};
    duo_call(d, area.who, area_check, &a, sizeof a);
    CHECK(a.differs < 0, "byte %" PRId64 " of %" PRIu64 " is wrong", a.differs, len);
}

static void area_check_zero(struct host *host, void *arg)
{
    struct area_arg *a = arg;
    const struct test_mem *mem = &host->areas[a->area.id].mem;
    test_mem_check_guards(mem);
    a->differs = test_nonzero(mem->at + a->offset, a->len);
}

void duo_check_zero(struct duo *d, struct area area, uint64_t offset, uint64_t len)
{
    struct area_arg a = {.area = area, .offset = offset, .len = len};
    duo_call(d, area.who, area_check_zero, &a, sizeof a);
    CHECK(a.differs < 0, "byte %" PRId64 " was written, which nobody may",
          a.differs + (int64_t)offset);
}

static void get_word(struct host *host, void *arg)
{
    struct area_arg *a = arg;
    a->value = test_get_word(host->areas[a->area.id].mem.at + a->offset);
}

uint64_t duo_word(struct duo *d, struct area area, uint64_t offset)
{
    struct area_arg a = {.area = area, .offset = offset};
    duo_call(d, area.who, get_word, &a, sizeof a);
    return a.value;
}

static void set_word(struct host *host, void *arg)
{
    struct area_arg *a = arg;
    test_set_word(host->areas[a->area.id].mem.at + a->offset, a->value);
}

void duo_set_word(struct duo *d, struct area area, uint64_t offset, uint64_t value)
{
    struct area_arg a = {.area = area, .offset = offset, .value = value};
    duo_call(d, area.who, set_word, &a, sizeof a);
}

struct weft_local area_local(struct area area, size_t offset, size_t len)
{
    return (struct weft_local){area.addr + offset, len, area.mem};
}

/* --- operations ---------------------------------------------------------------------------- */

struct op_arg {
    int conn, rc;
    weft_op_t op;
    struct weft_op_status status;
    struct weft_xfer xfer;
    struct weft_local local[MAX_PIECES];
    struct weft_remote remote[MAX_PIECES];
};

static void post(struct host *host, void *arg)
{
    struct op_arg *a = arg;
    a->xfer.local = a->local;
    a->xfer.remote = a->remote;
    a->rc = weft_post(host->conns[a->conn], &a->xfer, &a->op);
    CHECK(a->rc == 0, "weft_post: %s: %s", weft_err_name(a->rc), weft_last_error());
}

weft_op_t duo_post(struct duo *d, enum who who, int conn, const struct weft_xfer *xfer)
{
    struct op_arg a = {.conn = conn, .xfer = *xfer};
    CHECK(xfer->nlocal <= MAX_PIECES && xfer->nremote <= MAX_PIECES, "too many pieces");
    memcpy(a.local, xfer->local, xfer->nlocal * sizeof *a.local);
    if (xfer->nremote)
        memcpy(a.remote, xfer->remote, xfer->nremote * sizeof *a.remote);
    duo_call(d, who, post, &a, sizeof a);
    return a.op;
}

weft_op_t duo_send(struct duo *d, enum who who, int conn, struct area area, size_t offset,
                   size_t len)
{
    struct weft_local local = area_local(area, offset, len);
    return duo_post(d, who, conn, WEFT_OPTS(weft_xfer, .op = WEFT_XFER_SEND, .local = &local,
                                            .nlocal = 1));
}

weft_op_t duo_recv(struct duo *d, enum who who, int conn, struct area area, size_t offset,
                   size_t len)
{
    struct weft_local local = area_local(area, offset, len);
    return duo_post(d, who, conn, WEFT_OPTS(weft_xfer, .op = WEFT_XFER_RECV, .local = &local,
                                            .nlocal = 1));
}

static void wait_op(struct host *host, void *arg)
{
    (void)host;
    struct op_arg *a = arg;
    a->rc = weft_op_wait(a->op, TEST_DEADLINE_MS, &a->status);
    CHECK(a->rc != WEFT_ETIMEOUT || a->status.status != WEFT_EAGAIN,
          "deadline: waited for an operation");
}

struct weft_op_status duo_wait(struct duo *d, enum who who, weft_op_t op, int want)
{
    struct op_arg a = {.op = op};
    duo_call(d, who, wait_op, &a, sizeof a);
    CHECK(a.rc == want, "an operation ended with %s (%s), not %s", weft_err_name(a.rc),
          a.status.text, weft_err_name(want));
    CHECK(a.status.status == want, "weft_op_wait returned %s, its status is %s",
          weft_err_name(want), weft_err_name(a.status.status));
    CHECK(!want == !a.status.text[0], "an operation that ended with %s says '%s'",
          weft_err_name(want), a.status.text);
    return a.status;
}

/* --- notifications ------------------------------------------------------------------------- */

struct notif_arg {
    int conn;
    size_t len;
    uint64_t seed;
    int timeout_ms, rc;
};

static void notif(struct host *host, void *arg)
{
    struct notif_arg *a = arg;
    struct weft_notif n;
    a->rc = weft_endpoint_notif(host->endpoint, a->timeout_ms, &n);
    if (a->rc)
        return;
    CHECK(n.data, "a notification has no data pointer");
    CHECK(n.len == a->len, "a notification has %zu bytes, not %zu", n.len, a->len);
    CHECK(test_differs(n.data, n.len, a->seed, 0) < 0, "a notification has wrong bytes");
    CHECK(n.conn == host->conns[a->conn], "a notification names another conn");
    weft_notif_free(&n);
}

void duo_notif(struct duo *d, enum who who, int conn, size_t len, uint64_t seed)
{
    struct notif_arg a = {conn, len, seed, TEST_DEADLINE_MS, 0};
    duo_call(d, who, notif, &a, sizeof a);
    CHECK(a.rc == 0, "waited for a notification: %s", weft_err_name(a.rc));
}

void duo_no_notif(struct duo *d, enum who who)
{
    struct notif_arg a = {0, 0, 0, QUIET_MS, 0};
    duo_call(d, who, notif, &a, sizeof a);
    CHECK(a.rc == WEFT_ETIMEOUT, "a notification came that nobody sent");
}

size_t duo_metadata_of_two(weft_endpoint_t endpoint, char bytes[WEFT_METADATA_MAX])
{
    static const char list[] = "\2\x09\0"
                               "127.0.0.1\x09\0"
                               "127.0.0.2";
    const size_t old = 1 + 2 + 9; /* one address: u8 n, u16 length, text */
    size_t len = (size_t)WEFT_OK(weft_endpoint_metadata(endpoint, bytes, WEFT_METADATA_MAX)) - old;
    assert_int_equal(bytes[len], 1);
    memcpy(bytes + len, list, sizeof list - 1);
    return len + sizeof list - 1;
}

int duo_listener(int *port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(!bind(fd, (struct sockaddr *)&at, len) && !listen(fd, 8) &&
              !getsockname(fd, (struct sockaddr *)&at, &len),
          "a listener: %m");
    *port = ntohs(at.sin_port);
    return fd;
}
