/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft_perf between the two sides: each of its tests runs, checks its bytes, and ends with 0 on
 * both. Side A is the target, side B the initiator. A smoke test: how fast it was is not looked at.
 * WEFT_TEST_MEM=gpu: the side's memory is that of its GPU backend.
 */
#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>

#include "sides.h"

#define MAX_WORDS 32
#define OUTPUT 8192
#define SMOKE_S 60

struct run {
    char test[16], transport[16], address[128];
    char output[OUTPUT];
    int status;
};

/* weft_perf with these words. Its standard output and error go to *fd. */
static pid_t start(char *const words[], int *fd)
{
    int ends[2];
    CHECK(!pipe2(ends, O_CLOEXEC), "pipe: %m");
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0, "fork: %m");
    if (pid == 0) {
        dup2(ends[1], STDOUT_FILENO);
        dup2(ends[1], STDERR_FILENO);
        execv(words[0], words);
        fprintf(stderr, "%s: %s\n", words[0], strerror(errno));
        _exit(127);
    }
    close(ends[1]);
    *fd = ends[0];
    return pid;
}

/* Appends what comes until `word` is there, or the end. False at the end. */
static bool read_until(int fd, char *text, const char *word)
{
    uint64_t end = weft_now() + SMOKE_S * 1000000000ull;
    for (size_t len = strlen(text); !word || !strstr(text, word);) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        CHECK(weft_now() < end, "weft_perf is not done after %d s: %s", SMOKE_S, text);
        if (poll(&p, 1, 1000) != 1)
            continue;
        CHECK(len < OUTPUT - 1, "weft_perf says too much: %s", text);
        ssize_t n = read(fd, text + len, OUTPUT - 1 - len);
        if (n <= 0)
            return false;
        text[len += (size_t)n] = 0;
    }
    return true;
}

static void finish(pid_t pid, int fd, struct run *run)
{
    read_until(fd, run->output, NULL);
    CHECK(waitpid(pid, &run->status, 0) == pid, "waitpid: %m");
    close(fd);
}

/* Words of both sides, of which there are n. */
static int common_words(char *words[], const struct run *run, char *role, char *address)
{
    int n = 0;
    words[n++] = (char *)(uintptr_t)test_env("WEFT_TEST_PERF", WEFT_PERF);
    words[n++] = (char *)(uintptr_t)run->test;
    words[n++] = role;
    words[n++] = address;
    words[n++] = "--transport";
    words[n++] = (char *)(uintptr_t)run->transport;
    bool gpu = !strcmp(test_env("WEFT_TEST_MEM", "host"), "gpu");
    if (gpu && strcmp(run->test, "notify")) { /* whose bytes are no one's memory */
        words[n++] = "--mem=gpu";
        words[n++] = "--gpu-backend";
        words[n++] = (char *)(uintptr_t)test_gpu();
    }
    return n;
}

/* On side B. */
static void initiate(void *self, void *arg)
{
    (void)self;
    struct run *run = arg;
    char *words[MAX_WORDS];
    int fd, n = common_words(words, run, "--connect", run->address);
    bool add = !strcmp(run->test, "add");
    words[n++] = "--iters=20";
    words[n++] = add ? "--sizes=8" : "--sizes=8,4K,64K";
    words[n++] = "--timeout=20";
    words[n] = NULL;
    pid_t pid = start(words, &fd);
    finish(pid, fd, run);
}

static void call(void *self, test_any_fn *fn, void *arg)
{
    ((void (*)(void *, void *))fn)(self, arg);
}

static void serve(int fd, void *arg)
{
    (void)arg;
    test_serve(fd, NULL, call, NULL);
}

static int setup(void **state)
{
    static struct test_peer peer;
    test_begin();
    peer = (struct test_peer){0};
    test_peer_start(serve, &peer);
    *state = &peer;
    return 0;
}

static int teardown(void **state)
{
    struct test_peer *peer = *state;
    if (test_failed()) {
        test_peer_drop(peer);
        return 0;
    }
    test_call_end(peer->fd);
    test_peer_join(peer, 0);
    close(peer->fd);
    return 0;
}

static void smoke(struct test_peer *peer, const char *test)
{
    static struct run near, far;
    char *words[MAX_WORDS], place[96], *port;
    const char *host = test_bind_host() ? test_bind_host() : "127.0.0.1";
    int fd;
    memset(&near, 0, sizeof near);
    snprintf(near.test, sizeof near.test, "%s", test);
    snprintf(near.transport, sizeof near.transport, "%s", test_common_transport());
    far = near;
    snprintf(place, sizeof place, "[%s]:0", host);
    words[common_words(words, &near, "--listen", place)] = NULL;
    pid_t pid = start(words, &fd);
    bool listens = read_until(fd, near.output, "listening on port") &&
                   read_until(fd, near.output, "\n");
    CHECK(listens, "weft_perf does not listen: %s", near.output);
    port = strstr(near.output, "listening on port") + strlen("listening on port");
    snprintf(far.address, sizeof far.address, "[%s]:%d", test_here(), atoi(port));
    test_call(peer->fd, (test_any_fn *)initiate, &far, sizeof far, NULL, NULL);
    if (far.status)
        kill(pid, SIGKILL); /* it may wait for an initiator that never came */
    finish(pid, fd, &near);
    print_message("%s", far.output);
    CHECK(!far.status && !near.status, "status of side A: %x, of side B: %x; A: %s", near.status,
          far.status, near.output);
}

static void perf_write(void **state)
{
    smoke(*state, "write");
}

static void perf_read(void **state)
{
    smoke(*state, "read");
}

static void perf_send(void **state)
{
    smoke(*state, "send");
}

static void perf_notify(void **state)
{
    smoke(*state, "notify");
}

static void perf_add(void **state)
{
    smoke(*state, "add");
}

#define SMOKE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SMOKE(perf_write), SMOKE(perf_read), SMOKE(perf_send), SMOKE(perf_notify), SMOKE(perf_add),
    };
    return test_sides_main("cluster_perf", tests, ARRAY_LEN(tests), setup);
}
