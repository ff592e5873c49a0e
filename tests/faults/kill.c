/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A side is killed at any moment of any operation, whichever of the two had begun it: the other
 * one's operations end with WEFT_EPEER, its other conn goes on meanwhile, and when it has closed
 * the conn nothing of it is left.
 */
#include "deed.h"

#define T TEST_DEADLINE_MS
#define LATEST_MS 12 /* of the kill, after the first operation */
#define WARM_UP 12   /* deaths after which all pools are filled */
#define SLACK                                                                                     \
    (3 << 20) /* of memory: pools that grow still; the buffers that tcp keeps are 2 MiB */

/* --- the victim -------------------------------------------------------------------------------- */

static void *kill_myself(void *arg)
{
    test_sleep_ms(*(int *)arg);
    kill(getpid(), SIGKILL);
    return NULL;
}

static void die_while(struct member *member, struct deed *d, bool initiator)
{
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, kill_myself, &d->kill_ms), "pthread_create");
    if (initiator)
        deed_act(member->conn, d, member->mem.at);
    else
        deed_answer(member->endpoint, member->conn, d, member->mem.at);
    pthread_join(thread, NULL);
}

static void die_acting(struct member *member, void *arg)
{
    die_while(member, arg, true);
}

static void die_answering(struct member *member, void *arg)
{
    die_while(member, arg, false);
}

/* --- the survivor ------------------------------------------------------------------------------ */

struct survivor {
    weft_endpoint_t endpoint;
    struct witness witness;
    struct test_mem mem;
    weft_mem_t handle;
    struct weft_remote remote;
    struct party *victims;
    int nvictims, deaths;
    struct holding before;
    uint64_t random;
};

static void survivor_open(struct survivor *s)
{
    struct weft_endpoint_opts opts = party_opts();
    WEFT_OK(weft_endpoint_open(&opts, &s->endpoint));
    test_mem_open(&s->mem, PARTY_LEN, 0);
    WEFT_OK(weft_mem_reg(s->endpoint, s->mem.at, PARTY_LEN, NULL, &s->handle));
    WEFT_OK(weft_mem_advertise(s->handle, s->mem.at, PARTY_LEN, &s->remote));
    witness_start(&s->witness, s->endpoint);
}

/* The conn is down, and says why; the memory is this side's again: over libfabric, which may still have what the peer had sent,
 * when the conn is closed. */
static void check_corpse(struct survivor *s, weft_conn_t conn)
{
    struct weft_conn_info info;
    bool late = !strcmp(test_env("WEFT_TEST_TRANSPORT", ""), "efa");
    WEFT_OK(weft_conn_info(conn, &info));
    assert_int_equal(info.state, WEFT_CONN_DOWN);
    assert_int_equal(info.status, WEFT_EPEER);
    assert_true(*info.why);
    WEFT_FAILS(WEFT_EPEER, weft_send(conn, "", 1, T));
    test_fill(s->mem.at, PARTY_LEN, 7, 0);
    WEFT_OK(weft_conn_close(conn));
    WEFT_FAILS(WEFT_EHANDLE, weft_conn_info(conn, &info));
    assert_true(late || test_differs(s->mem.at, PARTY_LEN, 7, 0) < 0);
    test_fill(s->mem.at, PARTY_LEN, 8, 0);
}

static void one_death(struct survivor *s, struct deed d, bool initiator)
{
    struct party *victim = &s->victims[s->deaths++];
    party_open(victim);
    struct deed there = d;
    there.remote = s->remote;
    there.kill_ms = d.kill_ms = (int)(test_random(&s->random) % LATEST_MS);
    d.remote = victim->remote;
    weft_conn_t conn = party_connect(s->endpoint, victim);
    party_start(victim, initiator ? die_answering : die_acting, &there, sizeof there);
    int rc = initiator ? deed_act(conn, &d, s->mem.at)
                       : deed_answer(s->endpoint, conn, &d, s->mem.at);
    CHECK(rc == WEFT_EPEER, "operation %d, shape %d, %s, as %s: ended with %s", d.op, d.shape,
          d.posted ? "posted" : "blocking", initiator ? "initiator" : "target", weft_err_name(rc));
    test_join(victim->pid, SIGKILL);
    close(victim->fd);
    check_corpse(s, conn);
    witness_goes_on(&s->witness);
    CHECK(test_differs(s->mem.at, PARTY_LEN, 8, 0) < 0, "memory is touched after the conn was closed");
    if (s->deaths == WARM_UP)
        s->before = holding_now();
    if (s->deaths <= WARM_UP)
        return;
    s->before.fds--; /* the victim's socket */
    holding_check(&s->before, SLACK);
}

static void deaths_under(struct survivor *s, enum weft_xfer_op op, enum shape most)
{
    for (enum shape shape = ONE_SMALL; shape <= most; shape++)
        for (int i = 0; i < 4; i++)
            one_death(s, (struct deed){.op = op, .shape = shape, .posted = i & 1}, i & 2);
}

static void writing(void **state)
{
    deaths_under(*state, WEFT_XFER_WRITE, VECTOR);
}

static void reading(void **state)
{
    deaths_under(*state, WEFT_XFER_READ, VECTOR);
}

static void sending(void **state)
{
    deaths_under(*state, WEFT_XFER_SEND, VECTOR);
}

static void receiving(void **state)
{
    deaths_under(*state, WEFT_XFER_RECV, VECTOR);
}

static void notifying(void **state)
{
    deaths_under(*state, WEFT_XFER_NOTIFY, ONE_LARGE);
}

static void adding(void **state)
{
    deaths_under(*state, WEFT_XFER_ADD, ONE_SMALL);
}

#define DEATHS (4 * (4 * SHAPES + 2 + 1))

static int setup(void **state)
{
    struct survivor *s = calloc(1, sizeof *s);
    s->nvictims = DEATHS;
    s->victims = calloc(DEATHS, sizeof *s->victims);
    s->random = (uint64_t)getpid();
    for (int i = 0; i < DEATHS; i++)
        party_fork(&s->victims[i]);
    party_fork(&s->witness.party);
    party_open(&s->witness.party);
    survivor_open(s);
    *state = s;
    return 0;
}

static int teardown(void **state)
{
    struct survivor *s = *state;
    for (int i = s->deaths; i < s->nvictims; i++)
        party_kill(&s->victims[i]); /* a test has failed */
    if (test_failed())
        return 0;
    witness_stop(&s->witness);
    WEFT_OK(weft_endpoint_close(s->endpoint));
    test_mem_close(&s->mem);
    free(s->victims);
    free(s);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(writing),   cmocka_unit_test(reading),   cmocka_unit_test(sending),
        cmocka_unit_test(receiving), cmocka_unit_test(notifying), cmocka_unit_test(adding),
    };
    if (party_must_skip())
        return 77;
    weft_config_set("WEFT_LOG", "error");
    return cmocka_run_group_tests_name("kill", tests, setup, teardown);
}
