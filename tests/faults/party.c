/* SPDX-License-Identifier: Apache-2.0 */
/* See party.h. */
#include "party.h"

#define PIECE 100000 /* that the witness writes: large and small frames, and several at once */

/* --- a party ----------------------------------------------------------------------------------- */

static void run(void *member, test_any_fn *fn, void *arg)
{
    ((member_fn *)fn)(member, arg);
}

static void serve(int fd, void *arg)
{
    struct member member = {0};
    (void)arg;
    test_serve(fd, &member, run, NULL);
    if (member.endpoint) {
        WEFT_OK(weft_endpoint_close(member.endpoint));
        test_mem_close(&member.mem);
    }
}

bool party_must_skip(void)
{
    const char *name = test_env("WEFT_TEST_TRANSPORT", "auto");
    struct weft_transport_info info;
    for (int i = 0; weft_transport_info(i, &info) == 0; i++) {
        if (strcmp(info.name, name) != 0 || info.usable)
            continue;
        printf("skipped: %s: %s\n", name, info.reason);
        return true;
    }
    return false;
}

void party_fork(struct party *p)
{
    *p = (struct party){0};
    p->pid = test_fork(serve, NULL, &p->fd);
}

void party_call(struct party *p, member_fn *fn, void *arg, size_t size)
{
    test_call(p->fd, (test_any_fn *)fn, arg, size, NULL, NULL);
}

void party_start(struct party *p, member_fn *fn, const void *arg, size_t size)
{
    test_call_begin(p->fd, (test_any_fn *)fn, arg, size);
}

void party_finish(struct party *p, void *arg, size_t size)
{
    test_call_finish(p->fd, arg, size, NULL, NULL);
}

struct weft_endpoint_opts party_opts(void)
{
    return (struct weft_endpoint_opts){.struct_size = sizeof(struct weft_endpoint_opts),
                                       .transport = test_transport(),
                                       .fault = test_fault(),
                                       .progress_threads = 1};
}

void party_open_here(struct member *member, struct party *p, const struct weft_endpoint_opts *opts)
{
    WEFT_OK(weft_endpoint_open(opts, &member->endpoint));
    test_mem_open(&member->mem, PARTY_LEN, 0);
    WEFT_OK(weft_mem_reg(member->endpoint, member->mem.at, PARTY_LEN, NULL, &member->handle));
    WEFT_OK(weft_mem_advertise(member->handle, member->mem.at, PARTY_LEN, &p->remote));
    p->metadata_len = WEFT_OK(
        weft_endpoint_metadata(member->endpoint, p->metadata, sizeof p->metadata));
}

static void open_member(struct member *member, void *arg)
{
    struct party *p = arg;
    struct weft_endpoint_opts opts = party_opts();
    opts.listen = *p->listen ? p->listen : NULL;
    party_open_here(member, p, &opts);
}

void party_open(struct party *p)
{
    struct party there = *p;
    party_call(p, open_member, &there, sizeof there);
    there.fd = p->fd;
    *p = there;
}

void party_close(struct party *p)
{
    test_call_end(p->fd);
    test_join(p->pid, 0);
    close(p->fd);
}

void party_kill(struct party *p)
{
    kill(p->pid, SIGKILL);
    test_join(p->pid, SIGKILL);
    close(p->fd);
}

static void accept_conn(struct member *member, void *arg)
{
    (void)arg;
    WEFT_OK(weft_endpoint_accept(member->endpoint, TEST_DEADLINE_MS, &member->conn));
}

weft_conn_t party_connect(weft_endpoint_t endpoint, struct party *p)
{
    weft_conn_t conn;
    WEFT_OK(weft_endpoint_connect(endpoint, p->metadata, (size_t)p->metadata_len, NULL, &conn));
    party_call(p, accept_conn, NULL, 0);
    return conn;
}

/* --- the witness ------------------------------------------------------------------------------- */

static void *testify(void *arg)
{
    struct witness *w = arg;
    unsigned char *from = malloc(PIECE), *back = malloc(PIECE);
    CHECK(from && back, "no memory for the witness");
    for (uint64_t i = 0; !atomic_load(&w->stop); i++) {
        size_t len = i % 2 ? 64 : PIECE;
        test_fill(from, len, i, 0);
        int64_t rc = weft_write(w->conn, from, len, &w->party.remote, 0, TEST_DEADLINE_MS);
        CHECK(rc == (int64_t)len, "the witness writes: %s", weft_last_error());
        rc = weft_read(w->conn, back, len, &w->party.remote, 0, TEST_DEADLINE_MS);
        CHECK(rc == (int64_t)len, "the witness reads: %s", weft_last_error());
        CHECK(test_differs(back, len, i, 0) < 0, "the witness reads wrong bytes");
        atomic_fetch_add(&w->rounds, 1);
        do
            test_sleep_ms(1);
        while (atomic_load(&w->pause) && !atomic_load(&w->stop));
    }
    free(from);
    free(back);
    return NULL;
}

void witness_start(struct witness *w, weft_endpoint_t endpoint)
{
    w->conn = party_connect(endpoint, &w->party);
    CHECK(!pthread_create(&w->thread, NULL, testify, w), "pthread_create");
    witness_goes_on(w);
}

void witness_goes_on(struct witness *w)
{
    uint64_t before = atomic_load(&w->rounds);
    TEST_UNTIL(atomic_load(&w->rounds) >= before + 2, test_sleep_ms(1), "the witness to go on");
}

void witness_stop(struct witness *w)
{
    atomic_store(&w->stop, true);
    pthread_join(w->thread, NULL);
    WEFT_OK(weft_conn_close(w->conn));
    party_close(&w->party);
}

/* --- what is held ------------------------------------------------------------------------------ */

/* Lines of a file that have this text. */
static int lines_with(const char *path, const char *text)
{
    char line[1024];
    int n = 0;
    FILE *f = fopen(path, "r");
    CHECK(f, "%s: %m", path);
    while (fgets(line, sizeof line, f))
        n += strstr(line, text) != NULL;
    fclose(f);
    return n;
}

static int count_threads(void)
{
    int n = 0;
    char line[256];
    FILE *f = fopen("/proc/self/status", "r");
    CHECK(f, "/proc/self/status: %m");
    while (!n && fgets(line, sizeof line, f))
        if (sscanf(line, "Threads: %d", &n) != 1)
            n = 0;
    fclose(f);
    return n;
}

struct holding holding_now(void)
{
    return (struct holding){.fds = test_count_fds(),
                            .threads = count_threads(),
                            .segments = lines_with("/proc/self/maps", "memfd:weft-local"),
                            .allocated = test_allocated()};
}

static bool no_more(const struct holding *now, const struct holding *before, size_t slack)
{
    return now->fds <= before->fds && now->threads <= before->threads &&
           now->segments <= before->segments && now->allocated <= before->allocated + slack;
}

void holding_check(const struct holding *before, size_t slack)
{
    struct holding now = holding_now();
    uint64_t until = test_deadline();
    while (!no_more(&now, before, slack) && weft_now() < until) {
        test_sleep_ms(5);
        now = holding_now();
    }
    CHECK(now.fds <= before->fds, "%d descriptors are open, %d were", now.fds, before->fds);
    CHECK(now.threads <= before->threads, "%d threads, %d were", now.threads, before->threads);
    CHECK(now.segments <= before->segments, "%d mappings of shared memory, %d were", now.segments,
          before->segments);
    CHECK(now.allocated <= before->allocated + slack, "%zu bytes are allocated, %zu were",
          now.allocated, before->allocated);
}

uint64_t party_cpu_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}
