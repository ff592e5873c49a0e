/* SPDX-License-Identifier: Apache-2.0 */
#include "sides.h"

#include <fnmatch.h>
#include <poll.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "lane.h"
#include "meet.h"
#include "registry.h"
#include "util.h"
#include "weft/gpu.h"

/* Side B's agent is started by a launcher, which may have to queue for its hosts. */
#define START_S "60"
#define MAX_CHILDREN 256 /* of an agent at once; a case has one */

/* What A's agent is told to do, and its answer. */
struct order {
    enum { START, SIGNAL, JOIN, END } what;
    uint32_t number;  /* START: of the child */
    uint64_t fn;      /* START: test_fn_pack */
    int32_t pid, arg; /* SIGNAL: which */
};

struct answer {
    int32_t value;  /* START: pid. SIGNAL: 0 or -errno. JOIN: 1, or 0 while it runs */
    int32_t status; /* JOIN: of waitpid */
};

/* What a side says of itself before the first case. */
struct about {
    struct weft__host host;
    char name[64];
    char transports[256]; /* those of WEFT_TEST_TRANSPORT that work there, in its order */
    char lacks[512];      /* why there is none */
};

static int agent = -1; /* A: connection to B's agent. B's agent: connection to A */
static int agent_ends = -1; /* on one host: for sockets of its children */
static bool spread;         /* over two hosts */
static pthread_mutex_t agent_lock = PTHREAD_MUTEX_INITIALIZER;
static struct about side_a, side_b; /* A knows both, B itself */
static const struct about *own;
static char bind_host[64], here[64];
static struct weft__address met;

const char *test_bind_host(void)
{
    return *bind_host ? bind_host : NULL;
}

const char *test_here(void)
{
    return *here ? here : "127.0.0.1";
}

const struct weft__address *test_met(void)
{
    return met.len ? &met : NULL;
}

/* --- peers ---------------------------------------------------------------------------------- */

/* Any thread of a test may ask. */
static struct answer ask(struct order order)
{
    struct answer answer;
    pthread_mutex_lock(&agent_lock);
    test_send(agent, &order, sizeof order);
    bool there = test_recv(agent, &answer, sizeof answer);
    pthread_mutex_unlock(&agent_lock);
    CHECK(there, "side B's agent is gone");
    return answer;
}

/* A message with a descriptor. */
struct carrier {
    struct iovec byte;
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    struct msghdr msg;
};

static void carrier_init(struct carrier *c, char *byte)
{
    memset(c, 0, sizeof *c);
    c->byte = (struct iovec){byte, 1};
    c->msg = (struct msghdr){.msg_iov = &c->byte,
                             .msg_iovlen = 1,
                             .msg_control = c->control,
                             .msg_controllen = sizeof c->control};
}

/* The other end of a socket goes to this host's agent, ahead of the order that it is for. */
static int give_end(int *ours)
{
    int ends[2];
    char byte = 0;
    struct carrier c;
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), "socketpair: %m");
    carrier_init(&c, &byte);
    struct cmsghdr *head = CMSG_FIRSTHDR(&c.msg);
    *head = (struct cmsghdr){CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(head), &ends[1], sizeof(int));
    CHECK(sendmsg(agent_ends, &c.msg, MSG_NOSIGNAL) == 1, "sendmsg: %m");
    *ours = ends[0];
    return ends[1];
}

static int take_end(void)
{
    char byte;
    int fd;
    struct carrier c;
    carrier_init(&c, &byte);
    CHECK(recvmsg(agent_ends, &c.msg, MSG_CMSG_CLOEXEC) == 1 && CMSG_FIRSTHDR(&c.msg),
          "no descriptor came: %m");
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&c.msg)), sizeof fd);
    return fd;
}

void test_peer_start(test_child_fn *fn, struct test_peer *peer)
{
    static uint32_t started;
    int theirs = -1;
    if (agent < 0) {
        peer->pid = test_fork(fn, NULL, &peer->fd);
        return;
    }
    if (!spread)
        theirs = give_end(&peer->fd);
    started++;
    uint64_t packed = test_fn_pack((test_any_fn *)fn);
    peer->pid = ask((struct order){.what = START, .number = started, .fn = packed}).value;
    CHECK(peer->pid > 0, "side B's agent cannot fork: %s", strerror(-peer->pid));
    if (spread)
        peer->fd = meet_accept(started, TEST_DEADLINE_MS);
    else
        close(theirs);
}

void test_peer_signal(const struct test_peer *peer, int signal)
{
    struct order order = {.what = SIGNAL, .pid = peer->pid, .arg = signal};
    int rc = agent < 0 ? (kill(peer->pid, signal) ? -errno : 0) : ask(order).value;
    CHECK(!rc, "signal %d to side B: %s", signal, strerror(-rc));
}

void test_peer_join(struct test_peer *peer, int signal)
{
    struct answer answer;
    if (agent < 0) {
        test_join(peer->pid, signal);
        return;
    }
    TEST_UNTIL((answer = ask((struct order){.what = JOIN, .pid = peer->pid})).value,
               test_sleep_ms(1), "side B's process to end");
    test_check_status(answer.status, signal);
}

void test_peer_kill(struct test_peer *peer)
{
    test_peer_signal(peer, SIGKILL);
    test_peer_join(peer, SIGKILL);
}

void test_peer_drop(struct test_peer *peer)
{
    if (!peer->pid)
        return;
    if (agent < 0)
        kill(peer->pid, SIGKILL);
    else
        shutdown(peer->fd, SHUT_RDWR); /* it ends when its caller is gone */
}

/* --- what a side is ------------------------------------------------------------------------- */

static bool names(const char *list, const char *name)
{
    size_t len = strlen(name);
    for (const char *at = list; (at = strstr(at, name)); at += len)
        if ((at == list || at[-1] == ',') && (!at[len] || at[len] == ','))
            return true;
    return false;
}

static bool probe(const struct weft_transport *transport)
{
    struct weft_device_info list[16] = {0};
    int n = transport->ops->probe(list, ARRAY_LEN(list));
    for (int i = 0; i < n && i < (int)ARRAY_LEN(list); i++)
        if (list[i].usable)
            return true;
    if (n > 0)
        weft_fail(WEFT_ENODEV, "%s", list[0].reason); /* of what was asked for; others follow it */
    return false;
}

static bool transport_works(const void *transport)
{
    return probe(transport);
}

/* All GPUs that the run wants are there. */
static bool gpus_work(const void *unused)
{
    (void)unused;
    const struct weft_gpu_backend *backend = weft_gpu_find(test_gpu());
    int most = test_memory(0) > test_memory(1) ? test_memory(0) : test_memory(1);
    int n = backend ? backend->ops->probe() : 0;
    if (n > 0 && n <= most)
        weft_fail(WEFT_ENODEV, "there is no GPU %d", most);
    return most < 0 || n > most;
}

/* Asked in a process of its own: the reason goes to weft_last_error. librdmacm opens devices when it is asked, once for
 * ever, and those are of no use to who is forked later; nor is NVIDIA's driver. */
static bool ask_apart(bool (*works)(const void *), const void *arg)
{
    char reason[256] = "";
    int ends[2], status = 0;
    CHECK(pipe(ends) == 0, "cannot make a pipe: %s", strerror(errno));
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0, "cannot fork: %s", strerror(errno));
    if (pid == 0) {
        bool any = works(arg);
        const char *why = weft_last_error();
        _exit(!any && write(ends[1], why, strlen(why)) >= 0);
    }
    close(ends[1]);
    ssize_t n = read(ends[0], reason, sizeof reason - 1);
    close(ends[0]);
    CHECK(n >= 0 && waitpid(pid, &status, 0) == pid, "cannot ask for devices");
    if (status)
        weft_fail(WEFT_ENODEV, "%s", reason);
    return status == 0;
}

/* Has the transport a device that works here? */
static bool usable(const struct weft_transport *transport)
{
    return ask_apart(transport_works, transport);
}

static bool skipped(const char *what)
{
    printf("skipped: %s: %s\n", what, weft_last_error());
    return strcmp(test_env("WEFT_TEST_NO_SKIP", ""), "1") != 0;
}

/* The run is about transports or GPUs of which this machine has no device. */
static bool must_skip(void)
{
    const struct weft_transport *list[WEFT__MAX_LANES];
    if (!ask_apart(gpus_work, NULL) && skipped(test_gpu()))
        return true;
    int n = weft__transport_select(test_transport(), list, WEFT__MAX_LANES);
    for (int i = 0; i < n; i++)
        if (usable(list[i]))
            return false;
    return skipped(test_transport()) && n > 0;
}

/* One after the other, as far as they work here. */
static void add_name(struct about *a, const char *name)
{
    size_t used = strlen(a->transports);
    snprintf(a->transports + used, sizeof a->transports - used, "%s%s", used ? "," : "", name);
}

static struct about about_self(void)
{
    struct about a = {0};
    const struct weft_transport *list[WEFT__MAX_LANES];
    weft__host_self(&a.host);
    gethostname(a.name, sizeof a.name - 1);
    int n = weft__transport_select(test_transport(), list, WEFT__MAX_LANES);
    for (int i = 0; i < n; i++)
        if (usable(list[i]))
            add_name(&a, list[i]->name);
    if (!*a.transports)
        snprintf(a.lacks, sizeof a.lacks, "%s: %s", test_transport(), weft_last_error());
    return a;
}

bool test_same_host(void)
{
    return !spread || weft__host_same(&side_a.host, &side_b.host);
}

const char *test_transports(void)
{
    return spread && getenv("WEFT_TEST_TRANSPORT_BUILT") ? own->transports : test_transport();
}

const char *test_common_transport(void)
{
    static char name[16];
    const struct weft_transport *list[WEFT__MAX_LANES];
    int n = weft__transport_select(spread ? side_a.transports : test_transport(), list,
                                   WEFT__MAX_LANES);
    for (int i = 0; i < n; i++) {
        if (spread && !names(side_b.transports, list[i]->name))
            continue;
        if (list[i]->same_host && !test_same_host())
            continue;
        snprintf(name, sizeof name, "%s", list[i]->name);
        return name;
    }
    return NULL;
}

/* Why nothing can be tested between the two sides; NULL: it can. */
static const char *nothing_common(void)
{
    static char why[1024];
    if (*side_a.lacks)
        snprintf(why, sizeof why, "side A: %s", side_a.lacks);
    else if (*side_b.lacks)
        snprintf(why, sizeof why, "side B: %s", side_b.lacks);
    else if (!test_common_transport())
        snprintf(why, sizeof why, "nothing joins %s and %s of %s", side_a.transports,
                 side_b.transports, test_same_host() ? "one host" : "another host");
    return *why ? why : NULL;
}

/* The address at which the sides met is good for their nics and endpoints, too. */
static void know_place(void)
{
    struct weft__address at = meet_here(agent);
    weft__address_host(&at, here, sizeof here);
    setenv("WEFT_LISTEN", here, 0); /* unless the user has said where; programs that this one starts, too */
    weft__config_read();
    WEFT_OK(weft__address_parse(weft_config_str("WEFT_LISTEN"), &at));
    weft__address_host(&at, bind_host, sizeof bind_host);
    met = meet_there(agent);
}

/* --- side B: the agent ---------------------------------------------------------------------- */

static pid_t children[MAX_CHILDREN];

static pid_t *child_find(pid_t pid)
{
    for (int i = 0; i < MAX_CHILDREN; i++)
        if (children[i] == pid)
            return &children[i];
    return NULL;
}

/* fd: to its caller, if the caller has given it. */
static void be_child(const struct order *order, int fd)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* it does not outlive the agent */
    close(agent);
    test_child_fn *fn = (test_child_fn *)test_fn_unpack(order->fn);
    fn(spread ? meet_dial(order->number, TEST_DEADLINE_MS) : fd, NULL);
    _exit(0);
}

static int start_child(const struct order *order)
{
    pid_t *place = child_find(0);
    int fd = spread ? -1 : take_end();
    if (!place)
        return -EAGAIN;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0)
        be_child(order, fd);
    if (fd >= 0)
        close(fd);
    if (pid < 0)
        return -errno;
    return *place = pid;
}

static struct answer obey(const struct order *order)
{
    struct answer answer = {0};
    pid_t *child = order->what == START ? NULL : child_find(order->pid);
    if (order->what == START)
        answer.value = start_child(order);
    else if (!child)
        answer.value = -ESRCH;
    else if (order->what == SIGNAL)
        answer.value = kill(*child, order->arg) ? -errno : 0;
    else if (waitpid(*child, &answer.status, WNOHANG) == *child) {
        answer.value = 1;
        *child = 0;
    }
    return answer;
}

static void end_children(void)
{
    for (int i = 0; i < MAX_CHILDREN; i++)
        if (children[i])
            kill(children[i], SIGKILL);
}

static bool next_order(struct order *order)
{
    struct pollfd p = {.fd = agent, .events = POLLIN};
    poll(&p, 1, -1); /* A's end, and that of its host (keepalive), end this, too */
    return test_recv(agent, order, sizeof *order);
}

/* Returns the status to exit with. */
static int obey_all(void)
{
    struct order order;
    while (next_order(&order)) {
        if (order.what == END)
            break;
        struct answer answer = obey(&order);
        test_send(agent, &answer, sizeof answer);
    }
    end_children();
    if (order.what != END)
        fprintf(stderr, "side A is gone\n");
    return order.what != END;
}

static int agent_main(void)
{
    spread = true;
    agent = meet_dial(MEET_AGENT, atoi(test_env("WEFT_TEST_START", START_S)) * 1000);
    know_place();
    side_b = about_self();
    own = &side_b;
    test_send(agent, &side_b, sizeof side_b);
    return obey_all();
}

/* An agent on this host, from which side B's processes are forked: a vendor's library is of no use to a process that was
 * forked from one that has used it. Returns its pid. */
static pid_t start_agent(void)
{
    int orders[2], ends[2];
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, orders), "socketpair: %m");
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), "socketpair: %m");
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0, "fork: %m");
    if (pid == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(orders[pid == 0 ? 0 : 1]);
    close(ends[pid == 0 ? 0 : 1]);
    agent = orders[pid == 0 ? 1 : 0];
    agent_ends = ends[pid == 0 ? 1 : 0];
    if (pid == 0)
        _exit(obey_all());
    return pid;
}

static void end_agent(pid_t pid)
{
    int status;
    test_send(agent, &(struct order){.what = END}, sizeof(struct order));
    waitpid(pid, &status, 0);
}

/* --- side A --------------------------------------------------------------------------------- */

/* Meets side B. Returns the reason why nothing can be tested, or NULL. */
static const char *meet_agent(const char *name)
{
    spread = true;
    side_a = about_self();
    own = &side_a;
    meet_listen();
    agent = meet_accept(MEET_AGENT, atoi(test_env("WEFT_TEST_START", START_S)) * 1000);
    know_place();
    CHECK(test_recv(agent, &side_b, sizeof side_b), "side B ended at once");
    printf("%s: side A: %s on %s; side B: %s on %s (%s host)\n", name, side_a.transports,
           side_a.name, side_b.transports, side_b.name, test_same_host() ? "the same" : "another");
    return nothing_common();
}

/* Those with two processes, or those with one, go to the front. Returns their number. */
static size_t sort_out(struct CMUnitTest *cases, size_t n, CMFixtureFunction two_processes,
                       bool wanted)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if ((cases[i].setup_func == two_processes) == wanted)
            cases[kept++] = cases[i];
    return kept;
}

/* A filter that lets nothing through is a mistake, not a success. */
static int run_cases(const char *name, const struct CMUnitTest *cases, size_t n)
{
    const char *filter = test_env("WEFT_TEST_CASE", "*");
    size_t i = 0;
    while (i < n && fnmatch(filter, cases[i].name, 0) != 0)
        i++;
    if (i < n)
        return _cmocka_run_group_tests(name, cases, n, NULL, NULL);
    printf("skipped: no case matches WEFT_TEST_CASE='%s'\n", filter);
    return 77;
}

static int run_pairs(const char *name, const struct CMUnitTest *cases, size_t n)
{
    const char *why = meet_agent(name);
    if (why)
        printf("skipped: %s\n", why);
    int rc = why ? 77 : run_cases(name, cases, n);
    test_send(agent, &(struct order){.what = END}, sizeof(struct order));
    return rc;
}

/* On this host. */
static int run_all(const char *name, const struct CMUnitTest *cases, size_t n)
{
    bool gpus = test_memory(0) >= 0 || test_memory(1) >= 0;
    pid_t pid = gpus ? start_agent() : 0;
    int rc = run_cases(name, cases, n);
    if (pid)
        end_agent(pid);
    return rc;
}

int test_sides_main(const char *name, const struct CMUnitTest *cases, size_t n,
                    CMFixtureFunction two_processes)
{
    const char *side = test_env("WEFT_TEST_SIDE", "");
    if (!*side && must_skip())
        return 77;
    test_sweep_shm();
    cmocka_set_test_filter(test_env("WEFT_TEST_CASE", "*"));
    cmocka_set_skip_filter(test_env("WEFT_TEST_CASE_NOT", ""));
    struct CMUnitTest *copy = malloc(n * sizeof *copy);
    CHECK(copy, "no memory for %zu cases", n);
    memcpy(copy, cases, n * sizeof *copy);
    bool one = !strcmp(side, "one");
    size_t kept = sort_out(copy, n, two_processes, !one);
    int rc = 0;
    if (!*side)
        rc = run_all(name, cases, n);
    else if (one && kept)
        rc = run_cases(name, copy, kept);
    else if (one)
        rc = 77; /* nothing to run: all cases have two */
    else if (!strcmp(side, "count"))
        printf("%zu\n", kept);
    else if (!strcmp(side, "A"))
        rc = run_pairs(name, copy, kept);
    else if (!strcmp(side, "B"))
        rc = agent_main();
    else
        FAIL("WEFT_TEST_SIDE is '%s', not A or B", side);
    free(copy);
    return rc;
}
