/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cable is pulled: peers live in network namespaces of their own, each joined to this process's
 * by a veth pair, and `ip link set down` takes one of them away under operations, in a handshake,
 * and from idle conns. Operations end with WEFT_EPEER on both sides in about WEFT_TCP_TIMEOUT, the
 * others do not notice; a cable that is back before that costs nothing but time.
 *
 * Needs to be root, to make namespaces.
 */
#include "deed.h"

#define T TEST_DEADLINE_MS
#define SHORT_TIMEOUT "2000" /* WEFT_TCP_TIMEOUT of those that are to die, ms */
/* Until both sides have noticed: the timeout, keepalive probes in whole seconds, and a machine that
 * has other things to do. The kernel by itself takes a quarter of an hour. */
#define NOTICED_MS 15000

/* --- cables ------------------------------------------------------------------------------------ */

/* A party in a namespace of its own, and the cable to it. */
struct remote_party {
    struct party party;
    int number; /* of the cable: veth w<number>, addresses 10.77.<number>.1 and .2 */
    weft_conn_t conn;
};

static int cables;

static void shell(const char *fmt, ...) WEFT_PRINTF(1, 2);
static void shell(const char *fmt, ...)
{
    char text[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    int rc = system(text);
    CHECK(rc == 0, "%s: status %d", text, rc);
}

static void enter_namespace(struct member *member, void *arg)
{
    (void)member;
    (void)arg;
    CHECK(!unshare(CLONE_NEWNET), "unshare: %m");
}

static void plug_there(struct member *member, void *arg)
{
    (void)member;
    int number = *(int *)arg;
    shell("ip link set lo up");
    shell("ip addr add 10.77.%d.2/24 dev w%d", number, number);
    shell("ip link set w%d up", number);
}

static void remote_fork(struct remote_party *r)
{
    party_fork(&r->party);
    r->number = ++cables;
    party_call(&r->party, enter_namespace, NULL, 0);
    shell("ip link add w%d type veth peer name w%d netns %d", r->number, r->number,
          (int)r->party.pid);
    shell("ip addr add 10.77.%d.1/24 dev w%d", r->number, r->number);
    shell("ip link set w%d up", r->number);
    party_call(&r->party, plug_there, &r->number, sizeof r->number);
    snprintf(r->party.listen, sizeof r->party.listen, "10.77.%d.2", r->number);
    party_open(&r->party);
}

static void plug_there_again(struct member *member, void *arg)
{
    (void)member;
    shell("ip link set w%d up", *(int *)arg);
}

static void pull_there(struct member *member, void *arg)
{
    (void)member;
    shell("ip link set w%d down", *(int *)arg);
}

static void pull(const struct remote_party *r)
{
    shell("ip link set w%d down", r->number);
}

static void plug(const struct remote_party *r)
{
    shell("ip link set w%d up", r->number);
}

/* --- this side --------------------------------------------------------------------------------- */

struct here {
    weft_endpoint_t endpoint;
    struct test_mem mem;
    weft_mem_t handle;
    struct weft_remote remote;
};

static void here_open(struct here *h)
{
    struct weft_endpoint_opts opts = party_opts();
    opts.listen = "0.0.0.0";
    WEFT_OK(weft_endpoint_open(&opts, &h->endpoint));
    test_mem_open(&h->mem, PARTY_LEN, 0);
    WEFT_OK(weft_mem_reg(h->endpoint, h->mem.at, PARTY_LEN, NULL, &h->handle));
    WEFT_OK(weft_mem_advertise(h->handle, h->mem.at, PARTY_LEN, &h->remote));
}

static void here_close(struct here *h)
{
    WEFT_OK(weft_endpoint_close(h->endpoint));
    test_mem_close(&h->mem);
}

/* --- pulled for good --------------------------------------------------------------------------- */

/* One side does a deed, the other its part, each until it fails. */
struct pair {
    struct remote_party r;
    struct here *here;
    struct deed deed;
    bool initiator; /* this side */
    pthread_t thread;
    int rc, there;
    _Atomic(uint64_t) ended;
};

struct part {
    struct deed deed;
    bool initiator;
    int rc;
};

static void act_there(struct member *member, void *arg)
{
    struct part *p = arg;
    p->rc = p->initiator ? deed_act(member->conn, &p->deed, member->mem.at)
                         : deed_answer(member->endpoint, member->conn, &p->deed, member->mem.at);
}

static void *act_here(void *arg)
{
    struct pair *p = arg;
    static unsigned char memory[64][PARTY_LEN]; /* of each its own: they receive into it */
    unsigned char *mem = memory[p->r.number];
    struct deed deed = p->deed;
    deed.remote = p->r.party.remote;
    p->rc = p->initiator ? deed_act(p->r.conn, &deed, mem)
                         : deed_answer(p->here->endpoint, p->r.conn, &deed, mem);
    atomic_store(&p->ended, weft_now());
    return NULL;
}

static void pair_start(struct pair *p, struct here *here, struct deed deed, bool initiator)
{
    p->here = here;
    p->deed = deed;
    p->initiator = initiator;
    p->r.conn = party_connect(here->endpoint, &p->r.party);
    struct part part = {.deed = deed, .initiator = !initiator};
    part.deed.remote = here->remote;
    party_start(&p->r.party, act_there, &part, sizeof part);
    CHECK(!pthread_create(&p->thread, NULL, act_here, p), "pthread_create");
}

/* Both ends of the pair's conn have failed in time. */
static void pair_end(struct pair *p, uint64_t pulled)
{
    struct part part;
    struct weft_conn_info info;
    party_finish(&p->r.party, &part, sizeof part);
    uint64_t there = (weft_now() - pulled) / 1000000;
    pthread_join(p->thread, NULL);
    uint64_t here = (atomic_load(&p->ended) - pulled) / 1000000;
    CHECK(p->rc == WEFT_EPEER && part.rc == WEFT_EPEER,
          "operation %d ended with %s here, %s there", p->deed.op, weft_err_name(p->rc),
          weft_err_name(part.rc));
    CHECK(here < NOTICED_MS && there < NOTICED_MS,
          "operation %d, %s: %" PRIu64 " ms here, %" PRIu64 " ms there", p->deed.op,
          p->initiator ? "initiator" : "target", here, there);
    WEFT_OK(weft_conn_info(p->r.conn, &info));
    assert_int_equal(info.state, WEFT_CONN_DOWN);
    assert_true(*info.why);
    WEFT_OK(weft_conn_close(p->r.conn));
}

/* Each operation by either side, large and small: of a small one a side may have nothing on its way
 * but an answer that the other's kernel has not acknowledged. */
#define PAIRS (2 * 2 * 6)

static void under_every_operation(void **state)
{
    (void)state;
    static struct pair pairs[PAIRS];
    struct remote_party other;
    struct witness witness = {.rounds = 0};
    struct here here;
    WEFT_OK(weft_config_set("WEFT_TCP_TIMEOUT", SHORT_TIMEOUT));
    for (int i = 0; i < PAIRS; i++) { /* small ones have no other socket that would tell them */
        WEFT_OK(weft_config_set("WEFT_TCP_SOCKETS", i & 2 ? "2" : "1"));
        remote_fork(&pairs[i].r);
    }
    WEFT_OK(weft_config_set("WEFT_TCP_SOCKETS", NULL));
    remote_fork(&other);
    witness.party = other.party;
    here_open(&here);
    witness_start(&witness, here.endpoint);
    for (int i = 0; i < PAIRS; i++)
        pair_start(&pairs[i], &here,
                   (struct deed){.op = WEFT_XFER_WRITE + i / 4,
                                 .shape = i & 2 && i < PAIRS - 4 ? ONE_LARGE : ONE_SMALL,
                                 .posted = i / 4 % 2},
                   i & 1);
    test_sleep_ms(100);
    uint64_t pulled = weft_now();
    for (int i = 0; i < PAIRS; i++)
        pull(&pairs[i].r);
    for (int i = 0; i < PAIRS; i++)
        pair_end(&pairs[i], pulled);
    witness_goes_on(&witness);
    witness_stop(&witness);
    for (int i = 0; i < PAIRS; i++)
        party_close(&pairs[i].r.party);
    here_close(&here);
    WEFT_OK(weft_config_set("WEFT_TCP_TIMEOUT", NULL));
}

/* --- pulled in a handshake --------------------------------------------------------------------- */

#define CONNECT_MS 2000
#define CONNECT_SLACK_MS 5000 /* beyond that, on a machine that has other things to do */
#define HANDSHAKES 8

static int connect_for(struct here *here, struct remote_party *r, weft_conn_t *conn)
{
    uint64_t begin = weft_now();
    int rc = weft_endpoint_connect(here->endpoint, r->party.metadata,
                                   (size_t)r->party.metadata_len,
                                   WEFT_OPTS(weft_connect_opts, .timeout_ms = CONNECT_MS), conn);
    uint64_t ms = (weft_now() - begin) / 1000000;
    CHECK(ms < CONNECT_MS + CONNECT_SLACK_MS, "connecting took %" PRIu64 " ms", ms);
    return rc;
}

static void *pull_soon(void *arg)
{
    struct remote_party *r = arg;
    test_sleep_ms(r->number % 3);
    pull(r);
    return NULL;
}

static void connect_and_pull(struct here *here, struct remote_party *r)
{
    pthread_t thread;
    weft_conn_t conn;
    CHECK(!pthread_create(&thread, NULL, pull_soon, r), "pthread_create");
    int rc = connect_for(here, r, &conn);
    pthread_join(thread, NULL);
    plug(r);
    CHECK(rc == 0 || *weft_last_error(), "a connect failed without a sentence");
    if (rc)
        return;
    int64_t n = weft_write(conn, here->mem.at, PARTY_LEN, &r->party.remote, 0, T);
    CHECK(n == (int64_t)PARTY_LEN, "the cable is back, and a write ends: %s", weft_last_error());
    WEFT_OK(weft_conn_close(conn));
}

static void while_connecting(void **state)
{
    (void)state;
    struct remote_party r;
    struct here here;
    weft_conn_t conn;
    remote_fork(&r);
    here_open(&here);
    pull(&r);
    int rc = connect_for(&here, &r, &conn);
    CHECK(rc == -ENETUNREACH || rc == -EHOSTUNREACH || rc == WEFT_ETIMEOUT,
          "connecting without a cable: %s", weft_err_name(rc));
    assert_true(*weft_last_error());
    plug(&r);
    party_call(&r.party, pull_there, &r.number, sizeof r.number);
    rc = connect_for(&here, &r, &conn);
    CHECK(rc == -ENETUNREACH || rc == -EHOSTUNREACH || rc == WEFT_ETIMEOUT,
          "connecting to a peer that has no cable: %s", weft_err_name(rc));
    party_call(&r.party, plug_there_again, &r.number, sizeof r.number);
    for (int i = 0; i < HANDSHAKES; i++)
        connect_and_pull(&here, &r);
    WEFT_OK(connect_for(&here, &r, &conn));
    assert_int_equal(weft_write(conn, here.mem.at, 100, &r.party.remote, 0, T), 100);
    here_close(&here);
    party_close(&r.party);
}

/* --- back in time ------------------------------------------------------------------------------ */

#define OUTAGE_MS 1500
#define AROUND_MS 500 /* of traffic before and after */
#define LONG_NOTE 30000

/* Message, notification and addition number i, of changing lengths. */
static size_t number_len(uint64_t i)
{
    return i % 5 ? 8 : LONG_NOTE;
}

struct tally {
    uint64_t messages, notifs, adds;
};

/* In the other process: everything comes once and in order, until an empty message. */
static void take_all(struct member *member, void *arg)
{
    struct tally *t = arg;
    static unsigned char buf[LONG_NOTE];
    struct weft_notif notif;
    *t = (struct tally){0};
    for (;;) {
        int64_t n = WEFT_OK(weft_recv(member->conn, buf, sizeof buf, T));
        if (n == 0)
            break;
        CHECK((size_t)n == number_len(t->messages) &&
                  test_differs(buf, (size_t)n, t->messages, 0) < 0,
              "message %" PRIu64 " is wrong", t->messages);
        t->messages++;
        while (weft_endpoint_notif(member->endpoint, 0, &notif) == 0) {
            CHECK(notif.len == number_len(t->notifs) &&
                      test_differs(notif.data, notif.len, t->notifs, 0) < 0,
                  "notification %" PRIu64 " is wrong", t->notifs);
            weft_notif_free(&notif);
            t->notifs++;
        }
    }
    while (weft_endpoint_notif(member->endpoint, 100, &notif) == 0) {
        weft_notif_free(&notif);
        t->notifs++;
    }
    t->adds = test_get_word(member->mem.at + PARTY_LEN - 8);
}

static void *pull_and_plug(void *arg)
{
    test_sleep_ms(AROUND_MS);
    pull(arg);
    test_sleep_ms(OUTAGE_MS);
    plug(arg);
    return NULL;
}

static void back_in_time(void **state)
{
    (void)state;
    struct remote_party r;
    struct witness witness = {.rounds = 0};
    struct here here;
    struct tally t = {0};
    pthread_t thread;
    static unsigned char buf[LONG_NOTE];
    remote_fork(&r);
    here_open(&here);
    witness.party = r.party; /* writes and reads over the same cable, on a conn of its own */
    witness_start(&witness, here.endpoint);
    weft_conn_t conn = party_connect(here.endpoint, &r.party);
    party_start(&r.party, take_all, &t, sizeof t);
    CHECK(!pthread_create(&thread, NULL, pull_and_plug, &r), "pthread_create");
    uint64_t end = weft_now() + (2 * AROUND_MS + OUTAGE_MS) * 1000000ull, n = 0;
    for (; weft_now() < end; n++) {
        size_t len = number_len(n);
        test_fill(buf, len, n, 0);
        WEFT_OK(weft_notify(conn, buf, len, T));
        WEFT_OK(weft_send(conn, buf, len, T));
        WEFT_OK(weft_add(conn, &r.party.remote, PARTY_LEN - 8, 1, NULL, T));
    }
    WEFT_OK(weft_send(conn, buf, 0, T));
    pthread_join(thread, NULL);
    party_finish(&r.party, &t, sizeof t);
    assert_int_equal(t.messages, n);
    assert_int_equal(t.notifs, n);
    assert_int_equal(t.adds, n);
    witness_goes_on(&witness);
    witness_stop(&witness);
    here_close(&here);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(under_every_operation),
        cmocka_unit_test(while_connecting),
        cmocka_unit_test(back_in_time),
    };
    weft_config_set("WEFT_LOG", "error");
    setenv("WEFT_TEST_TRANSPORT", "tcp", 1); /* what a cable is for */
    if (unshare(CLONE_NEWNET)) {
        fprintf(stderr, "skipped: no network namespace can be made: %m\n");
        return 77;
    }
    if (system("ip link set lo up && ip link add w0 type veth peer name v0")) {
        fprintf(stderr, "skipped: no ip command (iproute2), or no veth devices\n");
        return 77;
    }
    return cmocka_run_group_tests_name("unplug", tests, NULL, NULL);
}
