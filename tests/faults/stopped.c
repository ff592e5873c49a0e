/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peers that are alive and do nothing: stopped in the middle of everything, briefly and for longer
 * than WEFT_TCP_TIMEOUT, and going on; or slow, taking a little now and then. Nothing fails, each
 * byte arrives, and the conn to another peer does not notice.
 */
#include "work.h"

#include <sys/wait.h>

#define T TEST_DEADLINE_MS
#define TIMEOUT "1000"    /* WEFT_TCP_TIMEOUT: it is for hosts that are gone, ms */
#define LONG_STOP_MS 2500 /* more than that, also when it is counted from the first probe */
#define SHORT_STOPS 12

/* --- this side --------------------------------------------------------------------------------- */

static void work_there(struct member *member, void *arg)
{
    struct work *w = arg;
    if (w->acts)
        work_act(member->conn, w);
    else
        work_answer(member->endpoint, member->conn, w);
}

/* One victim, and an endpoint here that has a conn to it and one to the witness. */
struct stage {
    struct party victim;
    struct witness witness;
    weft_endpoint_t endpoint;
    weft_conn_t conn, second;
    struct test_mem mem;
    weft_mem_t handle;
    struct work here;
    pthread_t thread;
};

static void stage_fork(struct stage *s)
{
    party_fork(&s->victim);
    party_fork(&s->witness.party);
}

static void stage_open(struct stage *s)
{
    struct weft_endpoint_opts opts = party_opts();
    party_open(&s->victim);
    party_open(&s->witness.party);
    WEFT_OK(weft_endpoint_open(&opts, &s->endpoint));
    test_mem_open(&s->mem, PARTY_LEN, 0);
    WEFT_OK(weft_mem_reg(s->endpoint, s->mem.at, PARTY_LEN, NULL, &s->handle));
    witness_start(&s->witness, s->endpoint);
    s->second = party_connect(s->endpoint, &s->victim); /* it forgets that one */
    s->conn = party_connect(s->endpoint, &s->victim);
}

static void stage_close(struct stage *s)
{
    witness_stop(&s->witness);
    WEFT_OK(weft_endpoint_close(s->endpoint));
    test_mem_close(&s->mem);
    party_close(&s->victim);
}

static void *work_here(void *arg)
{
    struct stage *s = arg;
    if (s->here.acts)
        work_act(s->conn, &s->here);
    else
        work_answer(s->endpoint, s->conn, &s->here);
    return NULL;
}

static void stage_work(struct stage *s, bool victim_acts, bool posted, int run_ms)
{
    struct work there = {.acts = victim_acts, .posted = posted, .run_ms = run_ms};
    WEFT_OK(weft_mem_advertise(s->handle, s->mem.at, PARTY_LEN, &there.remote));
    s->here = there;
    s->here.acts = !victim_acts;
    s->here.remote = s->victim.remote;
    party_start(&s->victim, work_there, &there, sizeof there);
    CHECK(!pthread_create(&s->thread, NULL, work_here, s), "pthread_create");
}

static void stage_done(struct stage *s)
{
    struct work there;
    struct weft_conn_info info;
    party_finish(&s->victim, &there, sizeof there);
    pthread_join(s->thread, NULL);
    CHECK(there.rounds == s->here.rounds && there.rounds > 0,
          "%" PRIu64 " rounds here, %" PRIu64 " there", s->here.rounds, there.rounds);
    WEFT_OK(weft_conn_info(s->conn, &info));
    assert_int_equal(info.state, WEFT_CONN_UP);
}

/* --- stopped ----------------------------------------------------------------------------------- */

#define STAGES 4
#define RUN_MS (LONG_STOP_MS + 600)
#define FULL_LEN 800000
#define FULL_OPS 32

static void signal_all(const struct stage *stages, int signal)
{
    for (int i = 0; i < STAGES; i++)
        kill(stages[i].victim.pid, signal);
}

static void stop_for(struct stage *stages, int ms)
{
    signal_all(stages, SIGSTOP);
    test_sleep_ms(ms);
    signal_all(stages, SIGCONT);
}

/* A process goes on until the thread that the signal is for has had a processor. */
static void await_stop(const struct party *p)
{
    siginfo_t info = {0};
    TEST_UNTIL(info.si_pid == p->pid,
               {
                   CHECK(!waitid(P_PID, (id_t)p->pid, &info, WSTOPPED | WNOHANG), "waitid: %m");
                   test_sleep_ms(1);
               },
               "a process to stop");
}

/* More than all buffers on the way hold, to who is stopped: then it has no room for as long. */
static void stop_and_fill(struct stage *stages)
{
    static unsigned char from[FULL_LEN], back[FULL_LEN];
    struct stage *s = &stages[0];
    struct weft_local local = {.addr = from, .len = FULL_LEN};
    uint64_t at = WORK_LARGE; /* what lies below is the other conn's */
    weft_op_t ops[FULL_OPS];
    test_fill(from, FULL_LEN, 77, 0);
    signal_all(stages, SIGSTOP);
    await_stop(&s->victim);
    for (int i = 0; i < FULL_OPS; i++)
        WEFT_OK(
            weft_post(s->second,
                      WEFT_OPTS(weft_xfer, .op = WEFT_XFER_WRITE, .local = &local, .nlocal = 1,
                                .remote = &s->victim.remote, .nremote = 1, .remote_offset = &at),
                      &ops[i]));
    test_sleep_ms(LONG_STOP_MS);
    for (int i = 0; i < STAGES; i++)
        witness_goes_on(&stages[i].witness);
    assert_int_equal(weft_op_poll(ops[FULL_OPS - 1], NULL), 0);
    signal_all(stages, SIGCONT);
    for (int i = 0; i < FULL_OPS; i++)
        WEFT_OK(weft_op_wait(ops[i], T, NULL));
    int64_t n = weft_read(s->second, back, FULL_LEN, &s->victim.remote, at, T);
    CHECK(n == FULL_LEN && test_differs(back, FULL_LEN, 77, 0) < 0, "what was written is wrong");
}

static void stopped_and_going_on(void **state)
{
    (void)state;
    static struct stage stages[STAGES];
    for (int i = 0; i < STAGES; i++)
        stage_fork(&stages[i]);
    for (int i = 0; i < STAGES; i++)
        stage_open(&stages[i]);
    for (int i = 0; i < STAGES; i++)
        stage_work(&stages[i], i & 1, i & 2, RUN_MS);
    for (int i = 0; i < SHORT_STOPS; i++) {
        test_sleep_ms(10);
        stop_for(stages, 1 + i * 3);
    }
    test_sleep_ms(20);
    stop_and_fill(stages);
    for (int i = 0; i < STAGES; i++)
        stage_done(&stages[i]);
    for (int i = 0; i < STAGES; i++)
        stage_close(&stages[i]);
}

/* --- closing what leads to who is stopped -------------------------------------------------------- */

#define CLOSE_CONNS 7 /* the victim reads over the last one */
#define CLOSE_OPS 8
/* weft_conn_close waits WEFT_CANCEL_GRACE (1 s) for what it has sent to arrive, and a transport for
 * a peer that is stopped with its hands in this side's memory; and some. */
#define CLOSE_MS 6000

static void read_on(struct member *member, void *arg)
{
    while (weft_read(member->conn, member->mem.at, PARTY_LEN, arg, 0, T) >= 0)
        ;
}

static void write_much(const struct stage *s, weft_conn_t conn, weft_op_t ops[CLOSE_OPS])
{
    static unsigned char from[FULL_LEN];
    struct weft_local local = {.addr = from, .len = FULL_LEN};
    for (int i = 0; i < CLOSE_OPS; i++)
        WEFT_OK(weft_post(conn,
                          WEFT_OPTS(weft_xfer, .op = WEFT_XFER_WRITE, .local = &local, .nlocal = 1,
                                    .remote = &s->victim.remote, .nremote = 1),
                          &ops[i]));
}

static void took(uint64_t begun, const char *what)
{
    uint64_t ms = (weft_now() - begun) / 1000000;
    CHECK(ms < CLOSE_MS, "%s took %" PRIu64 " ms", what, ms);
}

/* The victim is in the middle of a copy when it is stopped, or nearly so: that is why there are
 * several of them. */
static void close_one(const struct stage *s, weft_conn_t conn)
{
    weft_op_t ops[CLOSE_OPS];
    write_much(s, conn, ops);
    test_sleep_ms(1);
    kill(s->victim.pid, SIGSTOP);
    uint64_t begun = weft_now();
    WEFT_OK(weft_conn_close(conn));
    took(begun, "weft_conn_close");
    for (int i = 0; i < CLOSE_OPS; i++) {
        int rc = weft_op_wait(ops[i], 0, NULL);
        CHECK(rc == 0 || rc == WEFT_ECLOSED, "a write: %s", weft_err_name(rc));
    }
    kill(s->victim.pid, SIGCONT);
}

static void closing_does_not_wait_for_who_is_stopped(void **state)
{
    (void)state;
    static struct stage s;
    struct weft_remote remote;
    weft_conn_t conns[CLOSE_CONNS];
    weft_op_t ops[CLOSE_OPS];
    s = (struct stage){.here = {.acts = false}};
    stage_fork(&s);
    stage_open(&s);
    for (int i = 0; i < CLOSE_CONNS; i++)
        conns[i] = party_connect(s.endpoint, &s.victim);
    WEFT_OK(weft_mem_advertise(s.handle, s.mem.at, PARTY_LEN, &remote));
    party_start(&s.victim, read_on, &remote, sizeof remote);
    for (int i = 0; i < CLOSE_CONNS - 1; i++)
        close_one(&s, conns[i]);
    witness_goes_on(&s.witness);
    write_much(&s, s.second, ops);
    kill(s.victim.pid, SIGSTOP);
    for (int i = 0; i < 2; i++) /* closing waits for messages, but not for ever */
        WEFT_OK(
            weft_post(i ? s.conn : s.second, WEFT_OPTS(weft_xfer, .op = WEFT_XFER_SEND), NULL));
    uint64_t begun = weft_now();
    WEFT_OK(weft_conn_close(s.second));
    took(begun, "weft_conn_close");
    witness_goes_on(&s.witness);
    witness_stop(&s.witness);
    begun = weft_now();
    WEFT_OK(weft_endpoint_close(s.endpoint));
    took(begun, "weft_endpoint_close");
    kill(s.victim.pid, SIGCONT);
    party_finish(&s.victim, &remote, sizeof remote);
    test_mem_close(&s.mem);
    party_close(&s.victim);
}

/* A blocking call that cannot have its memory back takes the conn with it, and says so; so does whoever uses that one then. */
static void a_call_that_gives_up_closes_its_conn(void **state)
{
    (void)state;
    static struct stage s;
    static unsigned char into[FULL_LEN];
    struct weft_conn_info info;
    const struct weft_remote *remote = &s.victim.remote;
    s = (struct stage){.here = {.acts = false}};
    stage_fork(&s);
    stage_open(&s);
    kill(s.victim.pid, SIGSTOP);
    await_stop(&s.victim);
    WEFT_FAILS(WEFT_ETIMEOUT, weft_read(s.second, into, FULL_LEN, remote, 0, 100));
    CHECK(strstr(weft_last_error(), "its conn was closed"), "'%s'", weft_last_error());
    WEFT_FAILS(WEFT_ECLOSED, weft_read(s.second, into, FULL_LEN, remote, 0, 100));
    assert_int_equal(weft_err_scope(WEFT_ECLOSED), WEFT_SCOPE_CONN);
    WEFT_OK(weft_conn_info(s.second, &info));
    assert_int_equal(info.state, WEFT_CONN_DOWN);
    assert_int_equal(info.status, WEFT_ECLOSED);
    kill(s.victim.pid, SIGCONT);
    assert_int_equal(weft_read(s.conn, into, FULL_LEN, remote, 0, T), FULL_LEN); /* the other one lives */
    stage_close(&s);
}

/* --- slow -------------------------------------------------------------------------------------- */

#define PAUSE_MS 4
#define SLOW_RUN_MS 500

/* The same work, of a process whose endpoint goes on only when it is asked to, and that is seldom. */
static void open_slow(struct member *member, void *arg)
{
    struct party *p = arg;
    struct weft_endpoint_opts opts = party_opts();
    opts.progress_threads = WEFT_PROGRESS_CALLER;
    party_open_here(member, p, &opts);
}

static void accept_slowly(struct member *member, void *arg)
{
    (void)arg;
    WEFT_OK(weft_endpoint_accept(member->endpoint, T, &member->conn));
}

/* One thing at a time, and a pause after each look. */
static void dawdle(struct member *member, void *arg)
{
    struct work *w = arg;
    uint64_t times = w->posted ? WORK_DEPTH : 1, messages = 0, notifs = 0;
    unsigned char *buf = malloc(WORK_LARGE);
    struct weft_notif notif;
    for (bool ended = false; !ended;) {
        struct weft_op_status status;
        weft_op_t op;
        struct weft_local local = {.addr = buf, .len = WORK_LARGE};
        WEFT_OK(weft_post(member->conn,
                          WEFT_OPTS(weft_xfer, .op = WEFT_XFER_RECV, .local = &local, .nlocal = 1),
                          &op));
        int rc = 0;
        TEST_UNTIL((rc = weft_op_poll(op, &status)), test_sleep_ms(PAUSE_MS), "a message");
        WEFT_OK(rc);
        ended = status.bytes == 0;
        CHECK(ended || (status.bytes == work_len(messages / times) &&
                        test_differs(buf, status.bytes, messages / times, 0) < 0),
              "message %" PRIu64 " is wrong", messages);
        messages += !ended;
        for (; weft_endpoint_notif(member->endpoint, 0, &notif) == 0; notifs++) {
            CHECK(notif.len == work_len(notifs / times) &&
                      test_differs(notif.data, notif.len, notifs / times, 0) < 0,
                  "notification %" PRIu64 " is wrong", notifs);
            weft_notif_free(&notif);
        }
    }
    CHECK(messages == notifs, "%" PRIu64 " messages, %" PRIu64 " notifications", messages, notifs);
    w->rounds = messages / times;
    free(buf);
}

static void slow_target(bool posted)
{
    static struct stage s;
    struct weft_endpoint_opts opts = party_opts();
    s = (struct stage){.here = {.acts = true, .posted = posted, .run_ms = SLOW_RUN_MS}};
    struct party there;
    stage_fork(&s);
    there = s.victim;
    party_call(&s.victim, open_slow, &there, sizeof there);
    there.fd = s.victim.fd;
    s.victim = there;
    party_open(&s.witness.party);
    WEFT_OK(weft_endpoint_open(&opts, &s.endpoint));
    witness_start(&s.witness, s.endpoint);
    party_start(&s.victim, accept_slowly, NULL, 0);
    WEFT_OK(weft_endpoint_connect(s.endpoint, s.victim.metadata, (size_t)s.victim.metadata_len,
                                  NULL, &s.conn));
    party_finish(&s.victim, NULL, 0);
    struct work w = s.here;
    s.here.remote = s.victim.remote;
    party_start(&s.victim, dawdle, &w, sizeof w);
    CHECK(!pthread_create(&s.thread, NULL, work_here, &s), "pthread_create");
    witness_goes_on(&s.witness);
    stage_done(&s);
    witness_stop(&s.witness);
    WEFT_OK(weft_endpoint_close(s.endpoint));
    party_close(&s.victim);
}

static void slow_under_blocking_calls(void **state)
{
    (void)state;
    slow_target(false);
}

static void slow_under_posted_operations(void **state)
{
    (void)state;
    slow_target(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stopped_and_going_on),
        cmocka_unit_test(closing_does_not_wait_for_who_is_stopped),
        cmocka_unit_test(a_call_that_gives_up_closes_its_conn),
        cmocka_unit_test(slow_under_blocking_calls),
        cmocka_unit_test(slow_under_posted_operations),
    };
    if (party_must_skip())
        return 77;
    weft_config_set("WEFT_LOG", "error");
    weft_config_set("WEFT_TCP_TIMEOUT", TIMEOUT);
    weft_config_set("WEFT_TCP_RCVBUF", "32K"); /* who does not read is full at once */
    return cmocka_run_group_tests_name("stopped", tests, NULL, NULL);
}
