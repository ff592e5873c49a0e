/* SPDX-License-Identifier: Apache-2.0 */
/*
 * soak [--seconds N] [--seed S] [--round-ms N] [--round R] [--transport T]: rounds until the time
 * is over; see soak.h. Prints each round's plan, and what was moved in all. --round R plays only
 * that round: its plan, and what each worker wants to do, follow from seed and number.
 */
#include "soak.h"
#include "../number.h"

#include <getopt.h>
#include <limits.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define NOTIF_MS 20
#define MS_NS 1000000ull
#define SPARE_S 300 /* what it may take longer than it was asked to before it is killed */

struct options {
    int seconds, round_ms;
    uint64_t seed;
    uint32_t round; /* 0: all */
    const char *transport;
};

static const struct options *options;
static pid_t other; /* the child, in the parent */

void count(struct side *side, enum total what, uint64_t n)
{
    atomic_fetch_add_explicit(&side->ledger->total[side->me][what], n, memory_order_relaxed);
}

/* --- the two processes ------------------------------------------------------------------------- */

static void other_lives(void)
{
    int status;
    CHECK(!other || waitpid(other, &status, WNOHANG) == 0, "the other process has failed");
}

/* Both processes are here. Who waits goes on serving the other one. */
static void meet(struct side *side)
{
    _Atomic(int) *met = side->ledger->met;
    int n = atomic_fetch_add(&met[side->me], 1) + 1;
    uint64_t until = weft_now() + 2 * HANG_MS * MS_NS;
    while (atomic_load(&met[side->peer]) < n) {
        CHECK(weft_now() < until, "deadline: waited for the other process");
        other_lives();
        if (side->endpoint)
            weft_endpoint_progress(side->endpoint, 1);
        else
            test_sleep_ms(1);
    }
}

/* --- a round ----------------------------------------------------------------------------------- */

static void ledger_reset(struct ledger *ledger, uint32_t round)
{
    memset(ledger->account, 0, sizeof ledger->account);
    memset(ledger->messages, 0, sizeof ledger->messages);
    for (int i = 0; i < SIDES; i++) {
        atomic_store(&ledger->hot_sum[i], 0);
        atomic_store(&ledger->hot_maybe[i], 0);
        atomic_store(&ledger->running[i], SLOTS * WORKERS);
    }
    for (int i = 0; i < SLOTS; i++) {
        atomic_store(&ledger->epoch[i], 0);
        atomic_store(&ledger->ended[i], 0);
    }
    ledger->round = round;
    atomic_store(&ledger->stop, false);
}

static void side_open(struct side *side)
{
    struct ledger *ledger = side->ledger;
    int me = side->me;
    plan_apply(ledger->seed, ledger->round, me);
    side->plan = plan_draw(ledger->seed, ledger->round, options->transport);
    WEFT_OK(weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .transport = side->plan.transport,
                                         .fault = side->plan.side[me].fault,
                                         .progress_threads = side->plan.side[me].progress_threads),
                               &side->endpoint));
    ledger->metadata_len[me] = WEFT_OK(
        weft_endpoint_metadata(side->endpoint, ledger->metadata[me], sizeof ledger->metadata[me]));
    for (int s = 0; s < SLOTS; s++) {
        slot_open(side, s);
        for (int w = 0; w < WORKERS; w++) {
            struct account *a = &ledger->account[me][s][w];
            host_open(side, &side->hosted[s][w], &a->remote);
            memset(a->known, 1, AREA); /* zeros */
            atomic_store(&a->generation, 2);
        }
    }
    host_open(side, &side->hot, &ledger->hot[me]);
    memset(side->last_notif, 0, sizeof side->last_notif);
    memset(side->last_epoch, 0, sizeof side->last_epoch);
}

static void take_notifs(struct side *side, int timeout_ms)
{
    struct weft_notif notif;
    while (weft_endpoint_notif(side->endpoint, timeout_ms, &notif) == 0) {
        notif_received(side, &notif);
        weft_notif_free(&notif);
        timeout_ms = 0;
    }
}

static bool all_done(const struct side *side)
{
    const struct ledger *ledger = side->ledger;
    return atomic_load(&ledger->running[0]) + atomic_load(&ledger->running[1]) == 0 &&
           notifs_complete(side);
}

/* The main thread of a side takes notifications; that of the first one looks at the clock. */
static void side_work(struct side *side)
{
    uint64_t begin = weft_now(), stop = begin + (uint64_t)options->round_ms * MS_NS;
    while (!all_done(side)) {
        CHECK(weft_now() < stop + 3 * HANG_MS * MS_NS, "deadline: %d workers; notifications %s",
              atomic_load(&side->ledger->running[side->me]),
              notifs_complete(side) ? "came" : "are missing");
        take_notifs(side, NOTIF_MS);
        other_lives();
        if (side->me == 0 && weft_now() >= stop)
            atomic_store(&side->ledger->stop, true);
    }
}

static void check_conns(struct side *side)
{
    weft_conn_t conns[SLOTS * 4];
    int n = WEFT_OK(weft_endpoint_conns(side->endpoint, conns, ARRAY_LEN(conns)));
    for (int i = 0; i < n && i < (int)ARRAY_LEN(conns); i++) {
        struct weft_conn_stats s;
        if (weft_conn_stats(conns[i], &s))
            continue; /* not accepted, and gone meanwhile */
        CHECK(s.ops_posted == s.ops_done + s.ops_failed,
              "of %" PRIu64 " operations %" PRIu64 " were done and %" PRIu64 " failed",
              s.ops_posted, s.ops_done, s.ops_failed);
    }
}

static void hosted_close(struct hosted *hosted)
{
    if (hosted->handle % 2) /* endpoints that still have mems close, too */
        WEFT_OK(weft_mem_dereg(hosted->handle));
}

static void side_close(struct side *side)
{
    for (int s = 0; s < SLOTS; s++) {
        for (int w = 0; w < WORKERS; w++)
            hosted_close(&side->hosted[s][w]);
        weft_conn_t conn = side->slots[s].conn;
        slot_close(&side->slots[s]);
        if (conn && side->ledger->round % 2 && !atomic_load(&side->slots[s].shut))
            WEFT_OK(weft_conn_close(conn));
    }
    WEFT_OK(weft_endpoint_close(side->endpoint));
    WEFT_FAILS(WEFT_EHANDLE, weft_endpoint_close(side->endpoint));
    WEFT_FAILS(WEFT_EHANDLE, weft_mem_dereg(side->hot.handle));
    side->endpoint = 0;
    for (int s = 0; s < SLOTS; s++)
        for (int w = 0; w < WORKERS; w++)
            test_mem_close(&side->hosted[s][w].mem);
    test_mem_close(&side->hot.mem);
}

static void play(struct side *side)
{
    struct worker *workers[SLOTS * WORKERS];
    pthread_t threads[SLOTS * WORKERS + 1];
    side_open(side);
    meet(side);
    CHECK(!pthread_create(&threads[SLOTS * WORKERS], NULL, doorman, side), "pthread_create");
    for (int i = 0; i < SLOTS * WORKERS; i++) {
        workers[i] = worker_new(side, i / WORKERS, i % WORKERS);
        CHECK(!pthread_create(&threads[i], NULL, worker_main, workers[i]), "pthread_create");
    }
    side_work(side);
    meet(side); /* from here on nothing is under way */
    for (size_t i = 0; i < ARRAY_LEN(threads); i++)
        pthread_join(threads[i], NULL);
    take_notifs(side, 0);
    side_check(side);
    check_conns(side);
    for (int i = 0; i < SLOTS * WORKERS; i++)
        worker_free(workers[i]);
    meet(side); /* the other side has checked its memory, too */
    side_close(side);
}

/* --- all rounds -------------------------------------------------------------------------------- */

static void side_run(struct ledger *ledger, int me)
{
    struct side side = {.me = me, .peer = !me, .ledger = ledger};
    uint64_t until = weft_now() + (uint64_t)options->seconds * 1000 * MS_NS;
    for (uint32_t n = 1;; n++) {
        if (me == 0) {
            bool over = weft_now() >= until;
            ledger_reset(ledger, over ? 0 : options->round ? options->round : n);
            plan_print(ledger, options->transport);
        }
        meet(&side);
        if (!ledger->round)
            return;
        play(&side);
        leak_check(n);
        meet(&side);
    }
}

static void child(int fd, void *ledger)
{
    (void)fd;
    other = 0;
    side_run(ledger, 1);
}

static void report(const struct ledger *ledger)
{
    static const char *const names[] = {"operations",    "bytes of data", "messages",
                                        "notifications", "additions",     "canceled",
                                        "conns",         "registrations"};
    for (int i = 0; i < TOTALS; i++)
        printf("%s%" PRIu64 " %s", i ? ", " : "",
               atomic_load(&ledger->total[0][i]) + atomic_load(&ledger->total[1][i]), names[i]);
    printf("\n");
}

static int usage(void)
{
    fprintf(stderr, "usage: soak [--seconds N] [--seed S] [--round-ms N] [--round R]"
                    " [--transport local|tcp|auto]\n");
    return 2;
}

static bool parse(int argc, char **argv, struct options *o)
{
    static const struct option list[] = {
        {"seconds", required_argument, NULL, 's'},   {"seed", required_argument, NULL, 'S'},
        {"round-ms", required_argument, NULL, 'm'},  {"round", required_argument, NULL, 'r'},
        {"transport", required_argument, NULL, 't'}, {0}};
    for (int c; (c = getopt_long(argc, argv, "", list, NULL)) != -1;) {
        uint64_t number = 0;
        if (c == '?' || (c != 't' && !test_number(optarg, &number)))
            return false;
        if (c == 'S')
            o->seed = number;
        else if (c == 't')
            o->transport = optarg;
        else if (number > INT_MAX / 2)
            return false;
        else if (c == 's')
            o->seconds = (int)number;
        else if (c == 'm')
            o->round_ms = (int)number;
        else if (c == 'r')
            o->round = (uint32_t)number;
    }
    return optind == argc && o->seconds > 0 && o->round_ms > 0;
}

int main(int argc, char **argv)
{
    struct options o = {.seconds = 6, .round_ms = 1500, .seed = 1};
    if (!parse(argc, argv, &o))
        return usage();
    options = &o;
    alarm((unsigned)(o.seconds + SPARE_S));
    WEFT_OK(weft_config_set("WEFT_LOG", "error"));
    struct ledger *ledger = mmap(NULL, sizeof *ledger, PROT_READ | PROT_WRITE,
                                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(ledger != MAP_FAILED, "no memory for the ledger: %m");
    ledger->seed = o.seed;
    printf("seed %" PRIu64 "\n", o.seed);
    fflush(stdout);
    int fd;
    other = test_fork(child, ledger, &fd);
    side_run(ledger, 0);
    pid_t pid = other;
    other = 0;
    test_join(pid, 0);
    report(ledger);
    printf("seed %" PRIu64 ": passed\n", o.seed);
    return 0;
}
