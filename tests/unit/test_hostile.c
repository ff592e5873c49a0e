/* SPDX-License-Identifier: Apache-2.0 */
/* Peers that have come in and mean no good: each costs a bounded amount, and others go on. */
#include "bare_peer.h"

#include "conn.h"
#include "endpoint.h"
#include "match.h"
#include "mem.h"
#include "util.h"

#define T TEST_DEADLINE_MS
/* More than anyone may have outstanding, so the endpoint has to end it before. */
#define MANY 100000

struct hostile {
    weft_endpoint_t server, friend;
    weft_conn_t to_server, at_server; /* the friend's conn, at its two ends */
    struct bare_peer peer;
    weft_conn_t conn; /* the server's to the bare peer */
};

static int setup_with(void **state, const char *lanes)
{
    struct hostile *h = calloc(1, sizeof *h);
    uint8_t metadata[WEFT_METADATA_MAX];
    struct weft_endpoint_opts opts = {.struct_size = sizeof opts, .transport = "tcp"};
    weft_config_set("WEFT_LANES", lanes);
    WEFT_OK(weft_endpoint_open(&opts, &h->server));
    WEFT_OK(weft_endpoint_open(&opts, &h->friend));
    weft_config_set("WEFT_LANES", NULL);
    size_t len = (size_t)WEFT_OK(weft_endpoint_metadata(h->server, metadata, sizeof metadata));
    WEFT_OK(weft_endpoint_connect(h->friend, metadata, len, NULL, &h->to_server));
    WEFT_OK(weft_endpoint_accept(h->server, T, &h->at_server));
    bare_connect(&h->peer, weft_endpoint_port(h->server), atoi(lanes));
    WEFT_OK(weft_endpoint_accept(h->server, T, &h->conn));
    *state = h;
    return 0;
}

static int setup(void **state)
{
    return setup_with(state, "1");
}

static int setup_links(void **state)
{
    return setup_with(state, "2");
}

/* What the friend and the server do has its bytes in place, both ways. */
static void others_go_on(struct hostile *h)
{
    static char here[65536], there[65536];
    weft_mem_t mem;
    struct weft_remote remote;
    WEFT_OK(weft_mem_reg(h->server, there, sizeof there, NULL, &mem));
    WEFT_OK(weft_mem_advertise(mem, there, sizeof there, &remote));
    for (uint64_t i = 0; i < 20; i++) {
        test_fill(here, sizeof here, i, 0);
        assert_int_equal(weft_write(h->to_server, here, sizeof here, &remote, 0, T), sizeof here);
        assert_true(test_differs(there, sizeof there, i, 0) < 0);
        test_zero(here, sizeof here);
        assert_int_equal(weft_read(h->to_server, here, sizeof here, &remote, 0, T), sizeof here);
        assert_true(test_differs(here, sizeof here, i, 0) < 0);
        WEFT_OK(weft_notify(h->at_server, "on", 2, T));
        struct weft_notif notif;
        WEFT_OK(weft_endpoint_notif(h->friend, T, &notif));
        weft_notif_free(&notif);
    }
    WEFT_OK(weft_mem_dereg(mem));
}

static int teardown(void **state)
{
    struct hostile *h = *state;
    if (!test_failed())
        others_go_on(h);
    bare_close(&h->peer);
    WEFT_OK(weft_endpoint_close(h->server));
    WEFT_OK(weft_endpoint_close(h->friend));
    free(h);
    return 0;
}

static struct weft_conn_info info_of(weft_conn_t conn)
{
    struct weft_conn_info info;
    WEFT_OK(weft_conn_info(conn, &info));
    return info;
}

static void goes_down(const struct hostile *h, const char *words)
{
    TEST_UNTIL(info_of(h->conn).state == WEFT_CONN_DOWN, test_sleep_ms(1), "the conn to go down");
    assert_int_equal(info_of(h->conn).status, WEFT_EPROTO);
    CHECK(strstr(info_of(h->conn).why, words), "it went down: %s", info_of(h->conn).why);
}

/* Messages of the server that wait to be sent to the peer. */
static int waiting(const struct hostile *h)
{
    int n = 0;
    struct weft__conn *conn = weft__handle_get(h->conn, WEFT__CONN);
    pthread_mutex_lock(&conn->ep->lock);
    for (struct weft__msg *msg = conn->outq; msg; msg = msg->next)
        n++;
    pthread_mutex_unlock(&conn->ep->lock);
    weft__handle_put(h->conn);
    return n;
}

/* --- asks, and does not read ------------------------------------------------------------------- */

static void additions(void **state)
{
    struct hostile *h = *state;
    uint8_t body[32] = {0};
    struct weft__msg_head head = {.type = WEFT__MSG_ADD};
    int n = 0;
    while (n < MANY && bare_message(&h->peer, 0, head, body, sizeof body))
        n++;
    assert_in_range(n, WEFT__WINDOW, MANY - 1);
    goes_down(h, "a message of the peer");
}

static void add_at(struct hostile *h, const struct weft__remote *r, uint64_t addr, uint64_t value)
{
    uint8_t body[32];
    struct weft__writer w = {body, body + sizeof body, false};
    weft__put_u64(&w, 1);
    weft__put_u64(&w, addr);
    weft__put_u64(&w, r->key);
    weft__put_u64(&w, value);
    assert_true(bare_message(&h->peer, 0, (struct weft__msg_head){.type = WEFT__MSG_ADD}, body, sizeof body));
}

/* Beside the memory, over its ends, between two words; then in it. */
static void additions_out_of_bounds(void **state)
{
    struct hostile *h = *state;
    _Alignas(8) static uint64_t words[6];
    weft_mem_t mem;
    struct weft_remote remote;
    struct weft__remote r;
    WEFT_OK(weft_mem_reg(h->server, &words[2], 16, NULL, &mem));
    WEFT_OK(weft_mem_advertise(mem, &words[2], 16, &remote));
    WEFT_OK(weft__remote_decode(&remote, &r));
    static const int64_t offsets[] = {-16, -8, -4, 4, 12, 16, 24, INT64_MAX - 7, INT64_MIN};
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++)
        add_at(h, &r, r.addr + (uint64_t)offsets[i], 100);
    add_at(h, &r, r.addr + 8, 1);
    TEST_UNTIL(__atomic_load_n(&words[3], __ATOMIC_SEQ_CST) == 1, test_sleep_ms(1), "the addition that is right");
    assert_true(!words[0] && !words[1] && !words[2] && !words[4] && !words[5]);
    WEFT_OK(weft_mem_dereg(mem));
}

/* Memory that peers may write to, but not add to. */
static void an_addition_where_none_may_be(void **state)
{
    struct hostile *h = *state;
    _Alignas(8) static uint64_t words[2];
    const struct weft__msg_head then = {.type = WEFT__MSG_EAGER, .stream = WEFT__STREAM_NOTIFY};
    struct weft_remote remote;
    struct weft_notif notif;
    struct weft__remote r;
    weft_mem_t mem;
    WEFT_OK(weft_mem_reg(h->server, words, sizeof words, WEFT_OPTS(weft_mem_opts, .access = WEFT_READ | WEFT_WRITE), &mem));
    WEFT_OK(weft_mem_advertise(mem, words, sizeof words, &remote));
    WEFT_OK(weft__remote_decode(&remote, &r));
    add_at(h, &r, r.addr, 100);
    assert_true(bare_message(&h->peer, 0, then, NULL, 0));
    WEFT_OK(weft_endpoint_notif(h->server, T, &notif));
    weft_notif_free(&notif);
    assert_true(words[0] == 0 && words[1] == 0);
    WEFT_OK(weft_mem_dereg(mem));
}

static void large_notifications(void **state)
{
    struct hostile *h = *state;
    struct weft_remote remote;
    struct weft__writer w = {remote.bytes, remote.bytes + sizeof remote.bytes, false};
    uint64_t len = (uint64_t)1 << 40; /* more than the queue ever holds: refused with an answer */
    memset(&remote, 0, sizeof remote);
    weft__put_u8(&w, 1);
    weft__put_u8(&w, WEFT_READ);
    weft__put_u16(&w, 0x7257);
    weft__put_u32(&w, weft__owner_id(h->peer.uuid));
    weft__put_u64(&w, 4096);
    weft__put_u64(&w, len);
    struct weft__msg_head head = {.type = WEFT__MSG_LARGE, .stream = WEFT__STREAM_NOTIFY,
                                  .len = len};
    int n = 0;
    while (n < MANY && bare_message(&h->peer, 0, head, remote.bytes, sizeof remote.bytes)) {
        head.index++;
        n++;
    }
    assert_in_range(n, WEFT__WINDOW, MANY - 1);
    goes_down(h, "a message of the peer");
}

/* It asks to be told of each one at once: that needs no more than one message. */
static void counts(void **state)
{
    struct hostile *h = *state;
    struct weft__msg_head head = {
        .type = WEFT__MSG_EAGER, .flags = WEFT__MSG_URGENT, .stream = WEFT__STREAM_NOTIFY};
    struct weft_notif notif;
    for (int i = 0; i < 20000; i++, head.index++) {
        assert_true(bare_message(&h->peer, 0, head, NULL, 0));
        if (i % 100)
            continue;
        for (int k = 0; k < (i ? 100 : 1); k++) {
            WEFT_OK(weft_endpoint_notif(h->server, T, &notif));
            weft_notif_free(&notif);
        }
        assert_in_range(waiting(h), 0, 4);
    }
    assert_int_equal(info_of(h->conn).state, WEFT_CONN_UP);
}

static void lost_links(void **state)
{
    struct hostile *h = *state;
    struct weft__msg_head head = {.type = WEFT__MSG_LINK_LOST, .index = 0};
    assert_true(bare_message(&h->peer, 1, head, NULL, 0));
    TEST_UNTIL(info_of(h->conn).links == 1, test_sleep_ms(1), "a link to be closed");
    assert_int_equal(info_of(h->conn).state, WEFT_CONN_UP);
    bare_message(&h->peer, 1, head, NULL, 0);
    goes_down(h, "protocol");
}

/* Fewer links than there could be are a conn, none and others are not. */
static void joined_links(void **state)
{
    struct hostile *h = *state;
    weft_conn_t conn;
    static const uint8_t wrong[] = {0, 4, 7, 0x80};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        struct bare_peer peer;
        bare_connect_by(&peer, weft_endpoint_port(h->server), 2, wrong[i]);
        WEFT_FAILS(WEFT_ETIMEOUT, weft_endpoint_accept(h->server, 50, &conn));
        bare_close(&peer);
    }
    for (int i = 0; i < 2; i++) {
        struct bare_peer peer;
        struct weft__msg_head head = {.type = WEFT__MSG_EAGER, .stream = WEFT__STREAM_NOTIFY};
        struct weft_notif notif;
        bare_connect_by(&peer, weft_endpoint_port(h->server), 2, (uint8_t)(1 << i));
        WEFT_OK(weft_endpoint_accept(h->server, T, &conn));
        assert_int_equal(info_of(conn).links, 1);
        assert_int_equal(info_of(conn).links_of, 2);
        assert_true(bare_message(&peer, i, head, NULL, 0));
        WEFT_OK(weft_endpoint_notif(h->server, T, &notif));
        weft_notif_free(&notif);
        WEFT_OK(weft_conn_close(conn));
        bare_close(&peer);
    }
}

/* --- fills what it can reach --------------------------------------------------------------------- */

/* Notifications without a byte are not without cost. */
static void empty_notifications(void **state)
{
    enum { QUEUE = 65536 };
    struct hostile *h = *state;
    struct weft_endpoint_opts opts = {.struct_size = sizeof opts, .transport = "tcp"};
    weft_config_set("WEFT_NOTIFY_QUEUE", "64K");
    bare_close(&h->peer);
    WEFT_OK(weft_endpoint_close(h->server));
    WEFT_OK(weft_conn_close(h->to_server));
    WEFT_OK(weft_endpoint_open(&opts, &h->server));
    weft_config_set("WEFT_NOTIFY_QUEUE", NULL);
    uint8_t metadata[WEFT_METADATA_MAX];
    size_t len = (size_t)WEFT_OK(weft_endpoint_metadata(h->server, metadata, sizeof metadata));
    WEFT_OK(weft_endpoint_connect(h->friend, metadata, len, NULL, &h->to_server));
    WEFT_OK(weft_endpoint_accept(h->server, T, &h->at_server));
    for (int again = 0; again < 5; again++) { /* also when it comes back */
        struct weft__msg_head head = {.type = WEFT__MSG_EAGER, .stream = WEFT__STREAM_NOTIFY};
        bare_connect(&h->peer, weft_endpoint_port(h->server), 1);
        WEFT_OK(weft_endpoint_accept(h->server, T, &h->conn));
        int n = 0;
        while (n < MANY && bare_message(&h->peer, 0, head, NULL, 0)) {
            head.index++;
            n++;
        }
        assert_in_range(n, WEFT__WINDOW, MANY - 1);
        goes_down(h, "protocol");
        WEFT_OK(weft_conn_close(h->conn));
        if (again < 4)
            bare_close(&h->peer);
    }
    int held = 0;
    struct weft_notif notif;
    for (; weft_endpoint_notif(h->server, 0, &notif) == 0; held++)
        weft_notif_free(&notif);
    assert_in_range(held, 1, QUEUE / sizeof(struct weft__arrival) + 1);
}

/* --- stops reading ------------------------------------------------------------------------------- */

static void read_much(struct hostile *h, const struct weft_remote *remote, uint32_t calls)
{
    struct weft__remote r;
    WEFT_OK(weft__remote_decode(remote, &r));
    for (uint32_t call = 0; call < calls; call++)
        assert_true(bare_frame(&h->peer, 0,
                               (struct tcp_frame){.type = TCP_READ, .id = call,
                                                  .word = {r.key, r.addr, r.len}}, NULL));
}

/* Reads are asked for and not taken: others have their turns, and the memory is given back with the
 * peer's links when its owner closes. */
static void reads_that_are_not_taken(void **state)
{
    enum { LEN = 8 << 20 };
    struct hostile *h = *state;
    char *memory = calloc(1, LEN);
    weft_mem_t mem;
    struct weft_remote remote;
    WEFT_OK(weft_mem_reg(h->server, memory, LEN, NULL, &mem));
    WEFT_OK(weft_mem_advertise(mem, memory, LEN, &remote));
    read_much(h, &remote, 16);
    char byte;
    assert_int_equal(recv(h->peer.fd[0], &byte, 1, MSG_PEEK), 1); /* they are being answered */
    others_go_on(h);
    others_go_on(h);
    WEFT_FAILS(WEFT_ETIMEOUT, weft_mem_dereg(mem)); /* part of it is still on its way */
    others_go_on(h);
    WEFT_OK(weft_endpoint_close(h->server)); /* the registration goes, a sanitizer sees it */
    free(memory);
    struct weft_endpoint_opts opts = {.struct_size = sizeof opts, .transport = "tcp"};
    uint8_t metadata[WEFT_METADATA_MAX];
    WEFT_OK(weft_endpoint_open(&opts, &h->server));
    size_t len = (size_t)WEFT_OK(weft_endpoint_metadata(h->server, metadata, sizeof metadata));
    WEFT_OK(weft_endpoint_connect(h->friend, metadata, len, NULL, &h->to_server));
    WEFT_OK(weft_endpoint_accept(h->server, T, &h->at_server));
}

/* Conns with something left to say to peers that do not listen cost one grace, not one each. */
static void the_grace_is_for_all(void **state)
{
    enum { PEERS = 8, GRACE_MS = 500 };
    struct hostile *h = *state;
    struct bare_peer peers[PEERS];
    weft_endpoint_t endpoint;
    weft_config_set("WEFT_CANCEL_GRACE", "500");
    WEFT_OK(weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .transport = "tcp"), &endpoint));
    weft_config_set("WEFT_CANCEL_GRACE", "50");
    for (int i = 0; i < PEERS; i++) {
        weft_conn_t conn;
        struct weft_local local = {h, 1, 0};
        bare_connect(&peers[i], weft_endpoint_port(endpoint), 1);
        WEFT_OK(weft_endpoint_accept(endpoint, T, &conn));
        WEFT_OK(weft_post(conn, WEFT_OPTS(weft_xfer, .op = WEFT_XFER_SEND, .local = &local,
                                          .nlocal = 1), NULL));
    }
    uint64_t begin = weft_now();
    WEFT_OK(weft_endpoint_close(endpoint));
    assert_in_range((weft_now() - begin) / 1000000, GRACE_MS - 100, 3 * GRACE_MS);
    for (int i = 0; i < PEERS; i++)
        bare_close(&peers[i]);
}

#define HOSTILE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    weft_config_set("WEFT_LOG", "error");
    weft_config_set("WEFT_CANCEL_GRACE", "50");
    const struct CMUnitTest tests[] = {
        HOSTILE(additions),
        HOSTILE(additions_out_of_bounds),
        HOSTILE(an_addition_where_none_may_be),
        HOSTILE(large_notifications),
        HOSTILE(counts),
        cmocka_unit_test_setup_teardown(lost_links, setup_links, teardown),
        cmocka_unit_test_setup_teardown(joined_links, setup_links, teardown),
        HOSTILE(empty_notifications),
        HOSTILE(reads_that_are_not_taken),
        HOSTILE(the_grace_is_for_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
