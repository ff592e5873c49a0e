/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors that run out: each call fails in time and with a sentence, conns that are up go on, no
 * thread spins on a socket that it cannot accept, and when there are descriptors again all works.
 */
#include "party.h"

#include <fcntl.h>
#include <sys/resource.h>

#define T TEST_DEADLINE_MS
#define CONNECT_MS 2000
#define MOST 64             /* more descriptors than a round needs */
#define WATCH_MS 1000       /* in which a listener that can accept no one has to be quiet */
#define QUIET_NS 500000000u /* of processor time: who spins takes all there is */
#define NO_RESERVE (-1)
#define MOST_FREE 9         /* descriptors that accepting a conn takes, at most */

/* --- the limit --------------------------------------------------------------------------------- */

static int first_free_fd(void)
{
    int fd = fcntl(0, F_DUPFD, 0);
    close(fd);
    return fd;
}

/* No more than n descriptors beside those that are open; n < 0: as many as there may be. */
static void allow_fds(int n)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = n < 0 ? limit.rlim_max : (rlim_t)(first_free_fd() + n);
    CHECK(!setrlimit(RLIMIT_NOFILE, &limit), "setrlimit: %m");
}

/* --- each descriptor fails once ---------------------------------------------------------------- */

struct couple {
    weft_endpoint_t a, b;
    weft_conn_t conn, other;
    char from[64], to[64];
};

static void use(struct couple *c)
{
    weft_mem_t mem;
    struct weft_remote remote;
    test_fill(c->from, sizeof c->from, 1, 0);
    WEFT_OK(weft_mem_reg(c->b, c->to, sizeof c->to, NULL, &mem));
    WEFT_OK(weft_mem_advertise(mem, c->to, sizeof c->to, &remote));
    assert_int_equal(weft_write(c->conn, c->from, sizeof c->from, &remote, 0, T), sizeof c->from);
    assert_true(test_differs(c->to, sizeof c->to, 1, 0) < 0);
    WEFT_OK(weft_mem_dereg(mem));
}

/* Who lacks a descriptor knows it; to the other one the peer is gone, or no transport reaches it. It is
 * not told that anyone broke the protocol. */
static void check_why(int rc, const char *why, int n)
{
    CHECK(rc == 0 || rc == -EMFILE || rc == WEFT_EPEER || rc == WEFT_ENOPATH,
          "with %d descriptors: %s: %s", n, weft_err_name(rc), why);
    CHECK(rc == 0 || (*why && !strstr(why, weft_strerror(WEFT_EPROTO))),
          "with %d descriptors: '%s'", n, why);
}

/* Two endpoints meet with no more than n descriptors. True: that was enough. */
static bool meet_with(int n)
{
    struct weft_endpoint_opts opts = party_opts();
    struct couple c = {0};
    char metadata[WEFT_METADATA_MAX], why[512] = "";
    bool met = false;
    allow_fds(n);
    int rc = weft_endpoint_open(&opts, &c.a), len = 0;
    if (rc == 0)
        rc = weft_endpoint_open(&opts, &c.b);
    if (rc == 0)
        len = WEFT_OK(weft_endpoint_metadata(c.b, metadata, sizeof metadata));
    if (rc == 0) {
        rc = weft_endpoint_connect(c.a, metadata, (size_t)len,
                                   WEFT_OPTS(weft_connect_opts, .timeout_ms = CONNECT_MS),
                                   &c.conn);
        met = rc == 0;
    }
    snprintf(why, sizeof why, "%s", rc ? weft_last_error() : "");
    allow_fds(-1);
    if (met) {
        WEFT_OK(weft_endpoint_accept(c.b, T, &c.other));
        use(&c);
    } else if (c.b == 0) { /* what an endpoint lacks, it knows itself */
        CHECK(rc == -EMFILE, "open with %d descriptors: %s: %s", n, weft_err_name(rc), why);
    }
    check_why(rc, why, n);
    if (c.b)
        WEFT_OK(weft_endpoint_close(c.b));
    if (c.a)
        WEFT_OK(weft_endpoint_close(c.a));
    return met;
}

static void each_descriptor_fails_once(void **state)
{
    (void)state;
    CHECK(meet_with(MOST), "a conn needs more than %d descriptors", MOST);
    struct holding before = holding_now();
    int n = 0;
    while (n < MOST && !meet_with(n)) {
        CHECK(test_count_fds() == before.fds, "without descriptor %d one was lost", n);
        n++;
    }
    CHECK(n > 4 && n < MOST, "%d descriptors are enough for two endpoints", n);
    holding_check(&before, 64 << 10);
}

static void allow_no_fds(void)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 3;
    CHECK(!setrlimit(RLIMIT_NOFILE, &limit), "setrlimit: %m");
}

/* --- a listener without descriptors ------------------------------------------------------------ */

struct caller {
    char metadata[WEFT_METADATA_MAX], why[256];
    int len, rc;
};

static void call(struct member *member, void *arg)
{
    struct caller *c = arg;
    weft_conn_t conn;
    c->rc = weft_endpoint_connect(member->endpoint, c->metadata, (size_t)c->len,
                                  WEFT_OPTS(weft_connect_opts, .timeout_ms = CONNECT_MS), &conn);
    snprintf(c->why, sizeof c->why, "%s", c->rc ? weft_last_error() : "");
    if (c->rc == 0)
        WEFT_OK(weft_conn_close(conn));
}

/* A peer calls while n descriptors are left; n < 0: not even those that are kept in reserve. */
static int called_with(int n, struct party *peer, struct caller *c, struct witness *witness)
{
    if (n == NO_RESERVE)
        allow_no_fds();
    else
        allow_fds(n);
    atomic_store(&witness->pause, true);
    uint64_t before = party_cpu_ns();
    party_call(peer, call, c, sizeof *c);
    if (n != NO_RESERVE)
        check_why(c->rc, c->why, n);
    else
        CHECK(c->rc == WEFT_ETIMEOUT, "nobody can answer: %s", weft_err_name(c->rc));
    test_sleep_ms(WATCH_MS);
    uint64_t used = party_cpu_ns() - before;
    atomic_store(&witness->pause, false);
    CHECK(used < QUIET_NS, "with %d descriptors left, %" PRIu64 " ms of processor time in %d", n,
          used / 1000000, WATCH_MS);
    witness_goes_on(witness);
    allow_fds(-1);
    return c->rc;
}

static void a_full_listener_is_quiet(void **state)
{
    (void)state;
    struct party peer;
    struct witness witness = {.rounds = 0};
    struct weft_endpoint_opts opts = party_opts();
    struct caller c;
    weft_endpoint_t endpoint;
    int failed = 0;
    opts.passive_accept = 1;
    party_fork(&peer);
    party_fork(&witness.party);
    party_open(&peer);
    party_open(&witness.party);
    WEFT_OK(weft_endpoint_open(&opts, &endpoint));
    c.len = WEFT_OK(weft_endpoint_metadata(endpoint, c.metadata, sizeof c.metadata));
    witness_start(&witness, endpoint);
    for (int n = 0; n < MOST_FREE; n++)
        failed += called_with(n, &peer, &c, &witness) != 0;
    CHECK(failed > 0 && failed < MOST_FREE, "%d of %d calls failed", failed, MOST_FREE);
    called_with(NO_RESERVE, &peer, &c, &witness);
    party_call(&peer, call, &c, sizeof c);
    CHECK(c.rc == 0, "with descriptors again: %s", c.why);
    called_with(0, &peer, &c, &witness); /* the reserve is there again */
    witness_stop(&witness);
    party_close(&peer);
    WEFT_OK(weft_endpoint_close(endpoint));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_descriptor_fails_once),
        cmocka_unit_test(a_full_listener_is_quiet),
    };
    if (party_must_skip())
        return 77;
    weft_config_set("WEFT_LOG", "error");
    return cmocka_run_group_tests_name("exhausted", tests, NULL, NULL);
}
