/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a process may do beside its transfers: take a signal a thousand times a second, fork, have a
 * limit on the size of files. Transfers and conns do not notice; what a limit refuses is refused with
 * a code, and does not end the process.
 */
#include "work.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>

#define T TEST_DEADLINE_MS
#define RUN_MS 400
#define TICK_US 1000 /* between two signals */
#define CONNECTS 15
#define FORKS 30
#define MOST_FDS 256
#define WATCH_MS 400        /* in which there is nothing to do */
#define QUIET_NS 200000000u /* of processor time: who spins takes all there is */

/* --- two endpoints ----------------------------------------------------------------------------- */

struct scene {
    struct party peer;
    weft_endpoint_t endpoint;
    weft_conn_t conn;
    struct test_mem mem;
    weft_mem_t handle;
};

/* threads: as in weft_endpoint_opts. */
static void scene_open(struct scene *s, int threads)
{
    struct weft_endpoint_opts opts = party_opts();
    opts.progress_threads = threads;
    party_fork(&s->peer);
    party_open(&s->peer);
    WEFT_OK(weft_endpoint_open(&opts, &s->endpoint));
    test_mem_open(&s->mem, PARTY_LEN, 0);
    WEFT_OK(weft_mem_reg(s->endpoint, s->mem.at, PARTY_LEN, NULL, &s->handle));
    s->conn = party_connect(s->endpoint, &s->peer);
}

static void scene_close(struct scene *s)
{
    WEFT_OK(weft_endpoint_close(s->endpoint));
    test_mem_close(&s->mem);
    party_close(&s->peer);
}

/* Where the peer's work begins, and what it did. */
static void there_begin(struct scene *s, member_fn *fn, struct work *w)
{
    struct work there = *w;
    there.acts = !w->acts;
    WEFT_OK(weft_mem_advertise(s->handle, s->mem.at, PARTY_LEN, &there.remote));
    w->remote = s->peer.remote;
    party_start(&s->peer, fn, &there, sizeof there);
}

static void there_end(struct scene *s, const struct work *w)
{
    struct work there;
    party_finish(&s->peer, &there, sizeof there);
    CHECK(there.rounds == w->rounds && w->rounds > 0, "%" PRIu64 " rounds here, %" PRIu64 " there",
          w->rounds, there.rounds);
}

static void do_work(weft_endpoint_t endpoint, weft_conn_t conn, struct work *w)
{
    if (w->acts)
        work_act(conn, w);
    else
        work_answer(endpoint, conn, w);
}

static void write_some(weft_conn_t conn, struct scene *s, struct party *p)
{
    test_fill(s->mem.at, WORK_LARGE, 3, 0);
    int64_t n = weft_write(conn, s->mem.at, WORK_LARGE, &p->remote, 0, T);
    CHECK(n == WORK_LARGE, "a write: %s", weft_last_error());
    test_zero(s->mem.at, WORK_LARGE);
    n = weft_read(conn, s->mem.at, WORK_LARGE, &p->remote, 0, T);
    CHECK(n == WORK_LARGE && test_differs(s->mem.at, WORK_LARGE, 3, 0) < 0, "a read is wrong");
}

/* --- signals ----------------------------------------------------------------------------------- */

static _Atomic(int) ticks;
static pid_t ticks_at; /* the thread that is to have them */
static _Atomic(int) elsewhere;

static void tick(int signal)
{
    (void)signal;
    atomic_fetch_add(&ticks, 1);
    if (gettid() != ticks_at)
        atomic_fetch_add(&elsewhere, 1);
}

static void storm(bool on)
{
    struct sigaction act = {.sa_handler = tick}; /* no SA_RESTART */
    struct itimerval each = {{0, on ? TICK_US : 0}, {0, on ? TICK_US : 0}};
    ticks_at = gettid();
    CHECK(!sigaction(SIGALRM, &act, NULL), "sigaction: %m");
    CHECK(!setitimer(ITIMER_REAL, &each, NULL), "setitimer: %m");
}

static void storm_there(struct member *member, void *arg)
{
    storm(true);
    do_work(member->endpoint, member->conn, arg);
    storm(false);
}

/* The calls themselves make progress at this side, threads do at the other; and the other way. */
static void work_in_a_storm(int threads, bool acts, bool posted)
{
    struct scene s;
    struct work w = {.acts = acts, .posted = posted, .run_ms = RUN_MS};
    atomic_store(&ticks, 0);
    scene_open(&s, threads);
    there_begin(&s, storm_there, &w);
    storm(true);
    do_work(s.endpoint, s.conn, &w);
    storm(false);
    there_end(&s, &w);
    CHECK(atomic_load(&ticks) > RUN_MS / 10, "there were but %d signals", atomic_load(&ticks));
    CHECK(atomic_load(&elsewhere) == 0, "%d signals went to threads of the library",
          atomic_load(&elsewhere));
    scene_close(&s);
}

static void transfers_under_signals(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++)
        work_in_a_storm(i & 1 ? WEFT_PROGRESS_CALLER : 1, i & 2, i == 1 || i == 2);
}

static void connecting_under_signals(void **state)
{
    struct weft_endpoint_opts opts = party_opts();
    char metadata[WEFT_METADATA_MAX];
    (void)state;
    atomic_store(&ticks, 0);
    storm(true);
    for (int i = 0; i < CONNECTS; i++) {
        weft_endpoint_t a, b;
        weft_conn_t conn, other;
        char byte = 'x', got = 0;
        opts.progress_threads = 1;
        WEFT_OK(weft_endpoint_open(&opts, &a));
        opts.progress_threads = i % 2 ? WEFT_PROGRESS_CALLER : 1;
        WEFT_OK(weft_endpoint_open(&opts, &b));
        int len = WEFT_OK(weft_endpoint_metadata(a, metadata, sizeof metadata));
        WEFT_OK(weft_endpoint_connect(b, metadata, (size_t)len, NULL, &conn));
        WEFT_OK(weft_endpoint_accept(a, T, &other));
        WEFT_OK(weft_post(conn,
                          WEFT_OPTS(weft_xfer, .op = WEFT_XFER_SEND,
                                    .local = &(struct weft_local){.addr = &byte, .len = 1},
                                    .nlocal = 1),
                          NULL));
        WEFT_OK(weft_endpoint_progress(b, 0));
        assert_int_equal(weft_recv(other, &got, 1, T), 1);
        assert_int_equal(got, 'x');
        WEFT_OK(weft_endpoint_close(b)); /* the other one still makes progress, and hears of it */
        WEFT_OK(weft_endpoint_close(a));
    }
    storm(false);
    CHECK(atomic_load(&ticks) > 0, "there were no signals");
}

/* What the application has blocked, to wait for it, is not taken by a thread of the library. */
static void a_signal_waits_for_its_thread(void **state)
{
    struct scene s;
    sigset_t set, before;
    struct timespec none = {0, 0};
    (void)state;
    scene_open(&s, 1);
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &set, &before);
    kill(getpid(), SIGUSR1); /* whose thread takes it ends the process */
    test_sleep_ms(20);
    assert_int_equal(sigtimedwait(&set, NULL, &none), SIGUSR1);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    scene_close(&s);
}

/* --- fork -------------------------------------------------------------------------------------- */

static void plain_there(struct member *member, void *arg)
{
    do_work(member->endpoint, member->conn, arg);
}

struct worker {
    struct scene *scene;
    struct work work;
};

static void *work_here(void *arg)
{
    struct worker *w = arg;
    do_work(w->scene->endpoint, w->scene->conn, &w->work);
    return NULL;
}

/* Open descriptors that another program would get, too. */
static int inheritable(void)
{
    int n = 0;
    for (int fd = 0; fd < MOST_FDS; fd++) {
        int flags = fcntl(fd, F_GETFD);
        n += flags >= 0 && !(flags & FD_CLOEXEC);
    }
    return n;
}

/* Has this process shared memory of a link? Without an allocation: another thread may have had the
 * allocator's lock when this process was forked. */
static bool maps_a_link(void)
{
    static char maps[1 << 20];
    size_t len = 0;
    ssize_t n;
    int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && len < sizeof maps - 1 &&
           (n = read(fd, maps + len, sizeof maps - 1 - len)) > 0)
        len += (size_t)n;
    maps[len] = 0;
    return fd < 0 || strstr(maps, "memfd:weft-local");
}

/* A child that ends at once, after a while, or as another program. What it has of the library: no
 * descriptor that it would hand on, and no memory of links. */
static pid_t fork_one(int i, int fds)
{
    pid_t pid = fork();
    CHECK(pid >= 0, "fork: %m");
    if (pid)
        return pid;
    if (i % 3 == 0)
        _exit(inheritable() > fds);
    if (i % 3 == 1) {
        test_sleep_ms(20);
        _exit(maps_a_link());
    }
    execl("/bin/true", "true", (char *)NULL);
    _exit(1);
}

static void forks_in_the_middle(void **state)
{
    (void)state;
    for (int acts = 0; acts < 2; acts++) {
        struct scene s;
        pthread_t thread;
        pid_t children[FORKS];
        int fds = inheritable();
        scene_open(&s, 1);
        fds += !(fcntl(s.peer.fd, F_GETFD) & FD_CLOEXEC);
        struct worker w = {&s, {.acts = acts, .posted = true, .run_ms = RUN_MS}};
        there_begin(&s, plain_there, &w.work);
        CHECK(!pthread_create(&thread, NULL, work_here, &w), "pthread_create");
        for (int i = 0; i < FORKS; i++) {
            children[i] = fork_one(i, fds);
            test_sleep_ms(RUN_MS / FORKS / 2);
        }
        for (int i = 0; i < FORKS; i++)
            test_join(children[i], 0);
        pthread_join(thread, NULL);
        there_end(&s, &w.work);
        scene_close(&s);
    }
}

static void sees_the_end(struct member *member, void *arg)
{
    char byte;
    *(int *)arg = (int)weft_recv(member->conn, &byte, 1, T);
}

/* A child that lives on has copies of all sockets. The conn ends nevertheless when it is closed, and
 * what still comes to the copies does not keep the parent busy. */
static void a_child_does_not_hold_a_conn(void **state)
{
    struct scene s;
    int rc = 0;
    (void)state;
    scene_open(&s, 1);
    pid_t child = fork();
    CHECK(child >= 0, "fork: %m");
    if (child == 0) {
        test_sleep_ms(2 * T);
        _exit(0);
    }
    party_start(&s.peer, sees_the_end, &rc, sizeof rc);
    WEFT_OK(weft_conn_close(s.conn));
    party_finish(&s.peer, &rc, sizeof rc);
    CHECK(rc == WEFT_EPEER, "the peer's receive ended with %s", weft_err_name(rc));
    uint64_t before = party_cpu_ns();
    test_sleep_ms(WATCH_MS);
    uint64_t used = party_cpu_ns() - before;
    CHECK(used < QUIET_NS, "%" PRIu64 " ms of processor time in %d", used / 1000000, WATCH_MS);
    write_some(party_connect(s.endpoint, &s.peer), &s, &s.peer);
    kill(child, SIGKILL);
    test_join(child, SIGKILL);
    scene_close(&s);
}

/* --- the size of files ------------------------------------------------------------------------- */

static void allow_files(bool any)
{
    struct rlimit limit;
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = any ? limit.rlim_max : 4096;
    CHECK(!setrlimit(RLIMIT_FSIZE, &limit), "setrlimit: %m");
}

/* Shared memory is a file to the kernel, which sends a signal to who makes it too large. A progress
 * thread has that blocked; a caller that makes the progress itself does not. */
static void connect_without_large_files(int threads)
{
    struct scene s;
    weft_conn_t conn;
    scene_open(&s, threads);
    allow_files(false);
    int rc = weft_endpoint_connect(s.endpoint, s.peer.metadata, (size_t)s.peer.metadata_len,
                                   WEFT_OPTS(weft_connect_opts, .timeout_ms = 3000), &conn);
    CHECK(rc == 0 || *weft_last_error(), "connecting failed without a sentence");
    if (!strcmp(test_transport(), "local"))
        CHECK(rc == -EFBIG || rc == WEFT_ENOPATH, "connecting: %s: %s", weft_err_name(rc),
              weft_last_error());
    else
        CHECK(rc == 0, "connecting: %s: %s", weft_err_name(rc), weft_last_error());
    write_some(s.conn, &s, &s.peer);
    allow_files(true);
    if (rc) {
        WEFT_OK(weft_endpoint_connect(s.endpoint, s.peer.metadata, (size_t)s.peer.metadata_len,
                                      NULL, &conn));
        write_some(conn, &s, &s.peer);
    }
    scene_close(&s);
}

static void no_large_files(void **state)
{
    (void)state;
    connect_without_large_files(1);
    connect_without_large_files(WEFT_PROGRESS_CALLER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transfers_under_signals),
        cmocka_unit_test(connecting_under_signals),
        cmocka_unit_test(a_signal_waits_for_its_thread),
        cmocka_unit_test(forks_in_the_middle),
        cmocka_unit_test(a_child_does_not_hold_a_conn),
        cmocka_unit_test(no_large_files),
    };
    if (party_must_skip())
        return 77;
    weft_config_set("WEFT_LOG", "error");
    return cmocka_run_group_tests_name("disturbed", tests, NULL, NULL);
}
