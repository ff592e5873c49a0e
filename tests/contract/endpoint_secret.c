/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shared secret: who has it connects, who has not is told so on both sides, and what was
 * recorded of one handshake is worth nothing in the next.
 *
 * `relay` stands between two endpoints: it carries their bootstrap frames, keeps them, and damages
 * the one it is told to.
 */
#include "duo.h"

#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include "auth.h"
#include "handshake.h"
#include "registry.h"
#include "util.h"

#define T TEST_DEADLINE_MS
/* Bootstrap frames, all together, of one direction. */
#define STREAM_MAX 65536

static const char secret[] = "the secret of these tests", other_secret[] = "another secret!!";

static weft_endpoint_t open_with(struct weft_endpoint_opts opts, const char *text)
{
    weft_endpoint_t endpoint;
    opts.secret = text;
    opts.secret_len = text ? strlen(text) : 0;
    WEFT_OK(weft_endpoint_open(&opts, &endpoint));
    return endpoint;
}

static weft_endpoint_t endpoint_with(const char *text)
{
    return open_with(duo_opts(), text);
}

/* Where strangers are counted: none of another program's. */
static weft_endpoint_t apart_with(const char *text)
{
    return open_with(duo_apart(), text);
}

struct metadata {
    char bytes[WEFT_METADATA_MAX];
    size_t len;
};

static struct metadata metadata_of(weft_endpoint_t endpoint)
{
    struct metadata m;
    m.len = (size_t)WEFT_OK(weft_endpoint_metadata(endpoint, m.bytes, sizeof m.bytes));
    return m;
}

/* Bytes go from one end to the other, both ways. */
static void use(weft_conn_t conn, weft_conn_t other)
{
    char got[8];
    weft_conn_t end[2] = {conn, other};
    for (int i = 0; i < 2; i++) {
        struct weft_local local = {got, sizeof got, 0};
        weft_op_t op;
        memset(got, 0, sizeof got);
        WEFT_OK(weft_post(end[!i], WEFT_OPTS(weft_xfer, .op = WEFT_XFER_RECV, .local = &local,
                                             .nlocal = 1), &op));
        WEFT_OK(weft_send(end[i], "secured", 8, T));
        WEFT_OK(weft_op_wait(op, T, NULL));
        assert_string_equal(got, "secured");
    }
}

static void join(weft_endpoint_t from, weft_endpoint_t to, weft_conn_t *conn, weft_conn_t *other)
{
    struct metadata m = metadata_of(to);
    WEFT_OK(weft_endpoint_connect(from, m.bytes, m.len, NULL, conn));
    WEFT_OK(weft_endpoint_accept(to, T, other));
    use(*conn, *other);
}

/* Connecting fails, with this code and a sentence with these words, and long before its deadline. */
static void refused(weft_endpoint_t from, weft_endpoint_t to, int code, const char *words)
{
    struct metadata m = metadata_of(to);
    weft_conn_t conn = 99, none;
    int there = weft_endpoint_conns(to, NULL, 0), here = weft_endpoint_conns(from, NULL, 0);
    uint64_t begin = weft_now();
    WEFT_FAILS(code, weft_endpoint_connect(from, m.bytes, m.len,
                                           WEFT_OPTS(weft_connect_opts, .timeout_ms = T), &conn));
    CHECK(strstr(weft_last_error(), words), "the sentence is: %s", weft_last_error());
    CHECK(weft_now() - begin < T / 2 * 1000000ull, "the refusal came late");
    assert_int_equal(conn, 99);
    WEFT_FAILS(WEFT_ETIMEOUT, weft_endpoint_accept(to, 10, &none));
    assert_int_equal(weft_endpoint_conns(to, NULL, 0), there);
    assert_int_equal(weft_endpoint_conns(from, NULL, 0), here);
}

/* --- logs ---------------------------------------------------------------------------------- */

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static int warned;
static char warning[512];

static void count_warnings(enum weft_log_level level, const char *subsystem, const char *line,
                           void *user)
{
    (void)user;
    pthread_mutex_lock(&log_lock);
    if (level == WEFT_LOG_WARN && !strcmp(subsystem, "auth")) {
        warned++;
        snprintf(warning, sizeof warning, "%s", line);
    }
    pthread_mutex_unlock(&log_lock);
}

static void quiet(void)
{
    warned = 0;
    weft_log_set(count_warnings, NULL);
}

/* --- who has the secret, and who has not ------------------------------------------------------- */

static void who_has_it_connects(void **state)
{
    (void)state;
    weft_endpoint_t a = endpoint_with(secret), b = endpoint_with(secret);
    weft_conn_t conn[12], other[12];
    for (int i = 0; i < 12; i++)
        join(i & 1 ? b : a, i & 1 ? a : b, &conn[i], &other[i]);
    for (int i = 0; i < 12; i++)
        use(conn[i], other[i]);
    for (int i = 0; i < 4; i++) { /* again, after the end of one */
        WEFT_OK(weft_conn_close(conn[i]));
        WEFT_OK(weft_conn_close(other[i]));
        join(a, b, &conn[i], &other[i]);
    }
    char text[64];
    snprintf(text, sizeof text, "127.0.0.1:%d", weft_endpoint_port(b));
    WEFT_OK(weft_endpoint_connect_to(a, text, NULL, &conn[0])); /* without metadata */
    WEFT_OK(weft_endpoint_accept(b, T, &other[0]));
    use(conn[0], other[0]);
    join(a, a, &conn[1], &other[1]);
    WEFT_OK(weft_endpoint_close(a));
    WEFT_OK(weft_endpoint_close(b));
}

static void open_there(struct host *host, void *arg)
{
    WEFT_OK(weft_endpoint_close(host->endpoint));
    host->nconns = 0;
    host->endpoint = endpoint_with(arg);
}

static void metadata_there(struct host *host, void *arg)
{
    *(struct metadata *)arg = metadata_of(host->endpoint);
}

static void send_there(struct host *host, void *arg)
{
    (void)arg;
    WEFT_OK(weft_notify(host->conns[host->nconns - 1], "hello", 5, T));
}

/* The other process has another secret, then the same one. */
static void in_two_processes(void **state)
{
    struct duo *d = *state;
    struct metadata m = {0};
    weft_conn_t conn;
    struct weft_notif notif;
    char text[sizeof secret] = {0};
    quiet();
    WEFT_OK(weft_endpoint_close(d->a.endpoint));
    d->a.endpoint = endpoint_with(secret);
    d->a.nconns = 0;
    memcpy(text, other_secret, sizeof other_secret);
    duo_call(d, B, open_there, text, sizeof text);
    duo_call(d, B, metadata_there, &m, sizeof m);
    WEFT_FAILS(WEFT_EAUTH, weft_endpoint_connect(d->a.endpoint, m.bytes, m.len, NULL, &conn));
    memcpy(text, secret, sizeof secret);
    duo_call(d, B, open_there, text, sizeof text);
    for (int i = 0; i < 3; i++) {
        duo_connect(d);
        duo_call(d, B, send_there, NULL, 0);
        WEFT_OK(weft_endpoint_notif(d->a.endpoint, T, &notif));
        assert_int_equal(notif.len, 5);
        weft_notif_free(&notif);
    }
    weft_log_set(NULL, NULL);
}

static void another_secret_is_refused(void **state)
{
    (void)state;
    weft_endpoint_t a = apart_with(secret), b = apart_with(secret);
    weft_endpoint_t c = apart_with(other_secret);
    weft_conn_t conn, other;
    quiet();
    join(a, b, &conn, &other);
    for (int i = 0; i < 20; i++)
        refused(c, b, WEFT_EAUTH, "another shared secret");
    use(conn, other);
    join(a, b, &conn, &other);
    assert_int_equal(warned, 1); /* of twenty */
    CHECK(strstr(warning, "127.0.0.1") && strstr(warning, "secret"), "logged: %s", warning);
    WEFT_OK(weft_endpoint_close(a));
    WEFT_OK(weft_endpoint_close(b));
    WEFT_OK(weft_endpoint_close(c));
    weft_log_set(NULL, NULL);
}

static void none_on_one_side_is_refused(void **state)
{
    (void)state;
    weft_endpoint_t a = apart_with(secret), b = apart_with(NULL), c = apart_with(secret);
    weft_endpoint_t d = apart_with(NULL);
    weft_conn_t conn, other;
    quiet();
    refused(a, b, WEFT_EAUTH, "the peer has no shared secret");
    assert_int_equal(warned, 1);
    refused(b, a, WEFT_EAUTH, "wants proof");
    assert_int_equal(warned, 2);
    join(a, c, &conn, &other); /* and the others go on */
    join(b, d, &conn, &other);
    weft_endpoint_t all[] = {a, b, c, d};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        WEFT_OK(weft_endpoint_close(all[i]));
    weft_log_set(NULL, NULL);
}

/* --- strangers ----------------------------------------------------------------------------- */

static int dial(int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                             .sin_port = htons((uint16_t)port)};
    struct timeval limit = {.tv_sec = T / 1000};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && !connect(fd, (struct sockaddr *)&at, sizeof at), "connect: %m");
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return fd;
}

/* All that comes until the end of the connection, which must come. */
static size_t read_all(int fd, uint8_t *bytes, size_t cap)
{
    size_t len = 0;
    ssize_t n = 1;
    while (n > 0 && len < cap) {
        n = recv(fd, bytes + len, cap - len, 0);
        len += n > 0 ? (size_t)n : 0;
    }
    CHECK(n == 0 || errno == ECONNRESET, "the endpoint does not hang up: %m");
    close(fd);
    return len;
}

static uint16_t type_of(const uint8_t *frame)
{
    return (uint16_t)(frame[6] | frame[7] << 8);
}

static size_t size_of(const uint8_t *frame)
{
    return WEFT__FRAME_HEAD + (frame[8] | (size_t)frame[9] << 8 | (size_t)frame[10] << 16);
}

static size_t head(uint8_t *frame, uint16_t type, uint32_t len)
{
    struct weft__writer w = {frame, frame + WEFT__FRAME_HEAD, false};
    weft__put_u32(&w, 0x54464557u);
    weft__put_u16(&w, WEFT__BOOT_VERSION);
    weft__put_u16(&w, type);
    weft__put_u32(&w, len);
    return WEFT__FRAME_HEAD;
}

/* Of anything but a challenge, the head is too much already. */
static void only_a_challenge_is_read(void **state)
{
    (void)state;
    static uint8_t bytes[STREAM_MAX];
    weft_endpoint_t a = endpoint_with(secret), b = endpoint_with(secret);
    weft_conn_t conn, other;
    quiet();
    for (uint16_t type = 0; type < 12; type++) {
        static const uint32_t lengths[] = {0, 1, 47, 48, 49, 16000, UINT32_MAX};
        for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
            if (type == WEFT__CHALLENGE && lengths[i] == 48)
                continue;
            int fd = dial(weft_endpoint_port(b));
            size_t len = head(bytes, type, lengths[i]);
            assert_int_equal(send(fd, bytes, len, MSG_NOSIGNAL), len);
            read_all(fd, bytes, sizeof bytes);
        }
    }
    assert_int_equal(weft_endpoint_conns(b, NULL, 0), 0);
    join(a, b, &conn, &other);
    WEFT_OK(weft_endpoint_close(a));
    WEFT_OK(weft_endpoint_close(b));
    weft_log_set(NULL, NULL);
}

/* One at the first of two addresses begins as the endpoint that is called would, and goes: then it is at the second. */
static void who_challenges_and_goes_is_passed_over(void **state)
{
    (void)state;
    struct weft_endpoint_opts opts = duo_opts();
    struct weft_metadata_info named;
    uint8_t frame[WEFT__FRAME_HEAD + WEFT__NONCE + 16] = {0};
    char bytes[WEFT_METADATA_MAX], text[64];
    int port, listener = duo_listener(&port);
    snprintf(text, sizeof text, "127.0.0.2:%d", port);
    opts.listen = text;
    weft_endpoint_t a = endpoint_with(secret), b = open_with(opts, secret);
    weft_conn_t conn, other;
    size_t len = duo_metadata_of_two(b, bytes);
    WEFT_OK(weft_metadata_parse(bytes, len, &named));
    memcpy(frame + head(frame, WEFT__CHALLENGE, WEFT__NONCE + 16) + WEFT__NONCE, named.uuid, 16);
    WEFT_OK(weft_endpoint_connect(a, bytes, len, WEFT_OPTS(weft_connect_opts, .nonblocking = 1), &conn));
    int fd = accept(listener, NULL, NULL);
    assert_int_equal(send(fd, frame, sizeof frame, MSG_NOSIGNAL), sizeof frame);
    for (size_t got = 0; got <= sizeof frame;) { /* its challenge, and some of its proof: it has seen ours */
        ssize_t n = recv(fd, bytes, sizeof bytes, 0);
        assert_true(n > 0);
        got += (size_t)n;
    }
    close(fd);
    WEFT_OK(weft_conn_wait(conn, T));
    WEFT_OK(weft_endpoint_accept(b, T, &other));
    use(conn, other);
    WEFT_OK(weft_endpoint_close(a));
    WEFT_OK(weft_endpoint_close(b));
    close(listener);
}

/* --- between two endpoints --------------------------------------------------------------------- */

/* Carries the frames of one bootstrap connection. Direction 0 is to the passive side. */
struct relay {
    int listener, port, target;
    pthread_t thread;
    uint8_t bytes[2][STREAM_MAX];
    size_t len[2];
    int direction, frame; /* which one to damage; frame -1: none */
    size_t at;            /* its byte; beyond its end: the last one */
    int *intruded;        /* try to join the first link without its key; where to say how it went */
};

/* Who reads the bootstrap knows where a link listens and under which token. */
static int intrude(const uint8_t *links, size_t len)
{
    struct weft__reader r = {links + 4, links + len, false}; /* attempt, how many, open, key slot */
    size_t size = weft__get_u16(&r);
    const void *address = weft__get_span(&r, size);
    const struct weft_transport *transport = weft__transport_find(test_transport());
    struct weft_device_info device;
    CHECK(address && transport->ops->probe(&device, 1) > 0, "the relay cannot intrude");
    struct weft_nic_opts nic_opts = {.device = device.name};
    struct weft_link_opts opts = {.role = WEFT_ROLE_ACTIVE};
    struct weft_comp comps[4];
    struct weft_nic *nic;
    struct weft_link *link;
    WEFT_OK(transport->ops->open(&nic_opts, &nic));
    WEFT_OK(transport->ops->link_open(nic, &opts, &link));
    int rc = WEFT_EAGAIN;
    TEST_UNTIL((rc = transport->ops->link_connect(link, address, size)) != WEFT_EAGAIN,
               transport->ops->poll(nic, comps, 4), "a link to refuse a stranger");
    transport->ops->link_close(link);
    transport->ops->close(nic);
    return rc;
}

static bool forward(struct relay *r, int direction, int from, int to, size_t *sent, int *frame)
{
    uint8_t *bytes = r->bytes[direction];
    ssize_t n = recv(from, bytes + r->len[direction], STREAM_MAX - r->len[direction], 0);
    if (n <= 0)
        return false;
    r->len[direction] += (size_t)n;
    for (;; (*frame)++) {
        uint8_t *next = bytes + *sent;
        size_t have = r->len[direction] - *sent, size;
        if (have < WEFT__FRAME_HEAD || have < (size = size_of(next)))
            return true;
        if (direction == r->direction && *frame == r->frame)
            next[r->at < size ? r->at : size - 1] ^= 0x10;
        if (direction == 1 && type_of(next) == WEFT__LINKS && r->intruded)
            *r->intruded = intrude(next + WEFT__FRAME_HEAD, size - WEFT__FRAME_HEAD);
        if (send(to, next, size, MSG_NOSIGNAL) < 0)
            return false;
        *sent += size;
    }
}

static void *relay_run(void *arg)
{
    struct relay *r = arg;
    int end[2] = {accept(r->listener, NULL, NULL), dial(r->target)}, frame[2] = {0};
    size_t sent[2] = {0};
    bool open = true;
    while (open) {
        struct pollfd p[2] = {{.fd = end[0], .events = POLLIN}, {.fd = end[1], .events = POLLIN}};
        CHECK(poll(p, 2, T) > 0, "the relay has nothing to do");
        for (int i = 0; open && i < 2; i++)
            if (p[i].revents)
                open = forward(r, i, end[i], end[!i], &sent[i], &frame[i]);
    }
    close(end[0]);
    close(end[1]);
    return NULL;
}

/* Metadata of an endpoint that leads to another port. Offsets are those of endpoint.c. */
static struct metadata metadata_via(weft_endpoint_t endpoint, int port)
{
    struct metadata m = metadata_of(endpoint);
    struct weft_metadata_info info;
    m.bytes[52] = (char)port;
    m.bytes[53] = (char)(port >> 8);
    WEFT_OK(weft_metadata_parse(m.bytes, m.len, &info));
    assert_int_equal(info.port, port);
    return m;
}

static int connect_via(struct relay *r, weft_endpoint_t from, weft_endpoint_t to, int timeout_ms,
                       weft_conn_t *conn)
{
    r->listener = duo_listener(&r->port);
    r->target = weft_endpoint_port(to);
    r->len[0] = r->len[1] = 0;
    assert_int_equal(pthread_create(&r->thread, NULL, relay_run, r), 0);
    struct metadata m = metadata_via(to, r->port);
    int rc = weft_endpoint_connect(from, m.bytes, m.len,
                                   WEFT_OPTS(weft_connect_opts, .timeout_ms = timeout_ms), conn);
    return rc;
}

static void relay_end(struct relay *r)
{
    pthread_join(r->thread, NULL);
    close(r->listener);
}

static struct relay relay;

static void record(weft_endpoint_t a, weft_endpoint_t b)
{
    weft_conn_t conn, other;
    relay.frame = -1;
    WEFT_OK(connect_via(&relay, a, b, T, &conn));
    WEFT_OK(weft_endpoint_accept(b, T, &other));
    use(conn, other);
    WEFT_OK(weft_conn_close(conn));
    WEFT_OK(weft_conn_close(other));
    relay_end(&relay);
}

static int frames_of(int direction)
{
    int n = 0;
    for (size_t at = 0; at < relay.len[direction]; n++)
        at += size_of(relay.bytes[direction] + at);
    return n;
}

/* What the active side said once, said again. */
static void a_replay_to_the_passive_side_is_refused(void **state)
{
    (void)state;
    static uint8_t answer[STREAM_MAX];
    weft_endpoint_t a = endpoint_with(secret), b = endpoint_with(secret);
    weft_conn_t conn, other;
    quiet();
    record(a, b);
    int fd = dial(weft_endpoint_port(b));
    assert_int_equal(send(fd, relay.bytes[0], relay.len[0], MSG_NOSIGNAL), relay.len[0]);
    size_t len = read_all(fd, answer, sizeof answer);
    assert_int_equal(type_of(answer), WEFT__CHALLENGE);
    size_t next = size_of(answer);
    CHECK(len == next + WEFT__FRAME_HEAD + 1, "%zu bytes answer a replay", len);
    assert_int_equal(type_of(answer + next), WEFT__DENY);
    assert_int_equal(weft_endpoint_conns(b, NULL, 0), 0);
    join(a, b, &conn, &other);
    WEFT_OK(weft_endpoint_close(a));
    WEFT_OK(weft_endpoint_close(b));
    weft_log_set(NULL, NULL);
}

struct speaker {
    int listener;
    bool echo; /* says what it hears; else what was recorded of the passive side */
};

static void *speak(void *arg)
{
    struct speaker *s = arg;
    uint8_t bytes[4096];
    ssize_t n;
    int fd = accept(s->listener, NULL, NULL);
    if (!s->echo)
        (void)!send(fd, relay.bytes[1], relay.len[1], MSG_NOSIGNAL);
    while ((n = recv(fd, bytes, sizeof bytes, 0)) > 0)
        if (s->echo)
            (void)!send(fd, bytes, (size_t)n, MSG_NOSIGNAL);
    close(fd);
    return NULL;
}

/* What the passive side said once, and what the active side says itself, proves nothing to it. */
static void a_replay_to_the_active_side_is_refused(void **state)
{
    (void)state;
    weft_endpoint_t a = endpoint_with(secret), b = endpoint_with(secret);
    weft_conn_t conn = 99, other;
    record(a, b);
    for (int echo = 0; echo < 2; echo++) {
        int port;
        struct speaker s = {.listener = duo_listener(&port), .echo = echo};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, speak, &s), 0);
        struct metadata m = metadata_via(b, port);
        WEFT_FAILS(WEFT_EAUTH, weft_endpoint_connect(a, m.bytes, m.len, NULL, &conn));
        assert_int_equal(conn, 99);
        pthread_join(thread, NULL);
        close(s.listener);
    }
    join(a, b, &conn, &other);
    WEFT_OK(weft_endpoint_close(a));
    WEFT_OK(weft_endpoint_close(b));
}

/* Damage a frame and connect. The passive side has no conn afterwards, whatever the active one thought
 * for a moment. */
static void damaged(weft_endpoint_t a, weft_endpoint_t b, int direction, int frame, size_t at,
                    bool last)
{
    weft_conn_t conn = 99, none;
    relay.direction = direction;
    relay.frame = frame;
    relay.at = at;
    int rc = connect_via(&relay, a, b, T, &conn);
    bool whom = direction == 0 && frame == 0 && at == STREAM_MAX; /* it looks for another one */
    /* the active side may see that its links are not taken before it reads why */
    bool joining = direction == 0 && frame == 4 && rc == WEFT_ENOPATH;
    CHECK(last || joining || rc == (whom ? WEFT_EREFUSED : WEFT_EAUTH), "byte %zu of frame %d, direction %d, gave %s: %s", at, frame,
          direction, weft_err_name(rc), weft_last_error());
    if (rc == 0) { /* its last frame: it is up, and learns that the peer is not */
        char byte;
        assert_int_equal(weft_recv(conn, &byte, 1, T), WEFT_EPEER);
        WEFT_OK(weft_conn_close(conn));
    }
    WEFT_FAILS(WEFT_ETIMEOUT, weft_endpoint_accept(b, 1, &none));
    relay_end(&relay);
}

static void one_wrong_bit_is_refused(void **state)
{
    (void)state;
    weft_endpoint_t a = endpoint_with(secret), b = endpoint_with(secret);
    weft_conn_t conn, other;
    quiet();
    record(a, b);
    int frames[2] = {frames_of(0), frames_of(1)};
    assert_true(frames[0] >= 6 && frames[1] >= 5);
    for (int direction = 0; direction < 2; direction++)
        for (int frame = 0; frame < frames[direction]; frame++) {
            bool last = direction == 0 && frame == frames[0] - 1;
            damaged(a, b, direction, frame, WEFT__FRAME_HEAD, last);
            if (frame >= 2) { /* magic, version, type, code */
                damaged(a, b, direction, frame, 0, last);
                damaged(a, b, direction, frame, 4, last);
                damaged(a, b, direction, frame, 6, last);
            }
            damaged(a, b, direction, frame, STREAM_MAX, last);
        }
    join(a, b, &conn, &other);
    WEFT_OK(weft_endpoint_close(a));
    WEFT_OK(weft_endpoint_close(b));
    weft_log_set(NULL, NULL);
}

/* A length that was made larger: the rest of the frame never comes. */
static void a_wrong_length_ends_by_the_deadline(void **state)
{
    (void)state;
    weft_endpoint_t a = endpoint_with(secret), b = endpoint_with(secret);
    weft_conn_t conn;
    relay.direction = 1;
    relay.frame = 2;
    relay.at = 9;
    WEFT_FAILS(WEFT_ETIMEOUT, connect_via(&relay, a, b, 500, &conn));
    relay_end(&relay);
    WEFT_OK(weft_endpoint_close(a));
    WEFT_OK(weft_endpoint_close(b));
}

/* An eavesdropper gets to the link first, and is not let in; the peer is. */
static void a_link_wants_its_key(void **state)
{
    (void)state;
    weft_endpoint_t a = endpoint_with(secret), b = endpoint_with(secret);
    int rc = 0;
    relay.intruded = &rc;
    record(a, b);
    relay.intruded = NULL;
    CHECK(rc < 0, "a stranger has joined a link");
    WEFT_OK(weft_endpoint_close(a));
    WEFT_OK(weft_endpoint_close(b));
}

/* Who has the secret and answers in another's place says so. */
static void another_endpoint_in_its_place(void **state)
{
    (void)state;
    weft_endpoint_t a = endpoint_with(secret), b = endpoint_with(secret), c = endpoint_with(secret);
    weft_conn_t conn = 99;
    struct metadata m = metadata_via(b, weft_endpoint_port(c));
    quiet();
    WEFT_FAILS(WEFT_EREFUSED, weft_endpoint_connect(a, m.bytes, m.len, NULL, &conn));
    assert_int_equal(conn, 99);
    WEFT_OK(weft_endpoint_close(a));
    WEFT_OK(weft_endpoint_close(b));
    WEFT_OK(weft_endpoint_close(c));
    weft_log_set(NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_has_it_connects),
        IN_TWO(in_two_processes),
        cmocka_unit_test(another_secret_is_refused),
        cmocka_unit_test(none_on_one_side_is_refused),
        cmocka_unit_test(only_a_challenge_is_read),
        cmocka_unit_test(who_challenges_and_goes_is_passed_over),
        cmocka_unit_test(a_replay_to_the_passive_side_is_refused),
        cmocka_unit_test(a_replay_to_the_active_side_is_refused),
        cmocka_unit_test(one_wrong_bit_is_refused),
        cmocka_unit_test(a_wrong_length_ends_by_the_deadline),
        cmocka_unit_test(a_link_wants_its_key),
        cmocka_unit_test(another_endpoint_in_its_place),
    };
    return DUO_MAIN("endpoint_secret", tests);
}
