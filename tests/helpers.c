/* SPDX-License-Identifier: Apache-2.0 */
#include "helpers.h"

#include <dirent.h>
#include <malloc.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/* --- failing ------------------------------------------------------------------------------- */

static pid_t main_thread;
static bool failed;

__attribute__((constructor)) static void remember_main_thread(void)
{
    main_thread = getpid();
}

void test_fail(const char *file, int line, const char *fmt, ...)
{
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (syscall(SYS_gettid) == main_thread) {
        failed = true;
        print_error("%s\n", text);
        _fail(file, line);
    }
    fprintf(stderr, "%s:%d: in %s: %s\n", file, line,
            getpid() == main_thread ? "a thread" : "the peer process", text);
    _exit(1);
}

void test_begin(void)
{
    failed = false;
}

bool test_failed(void)
{
    return failed;
}

void test_need(bool there, const char *what)
{
    const char *no_skip = getenv("WEFT_TEST_NO_SKIP");
    if (there)
        return;
    CHECK(!no_skip || strcmp(no_skip, "1"), "nothing may be skipped, but there is no %s", what);
    print_message("skipped: no %s\n", what);
    skip();
}

/* --- the run ------------------------------------------------------------------------------- */

void test_sweep_shm(void)
{
    DIR *dir = strcmp(test_env("WEFT_EFA_PROVIDER", ""), "shm") ? NULL : opendir("/dev/shm");
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        unsigned uid, number;
        int pid, end = 0;
        if (sscanf(entry->d_name, "%d:%u:%u%n", &pid, &uid, &number, &end) == 3 &&
            !entry->d_name[end] && uid == getuid() && kill(pid, 0) && errno == ESRCH)
            shm_unlink(entry->d_name);
    }
    if (dir)
        closedir(dir);
}

const char *test_env(const char *name, const char *preset)
{
    const char *value = getenv(name);
    return value && *value ? value : preset;
}

const char *test_transport(void)
{
    return test_env("WEFT_TEST_TRANSPORT", "local");
}

const char *test_gpu(void)
{
    return test_env("WEFT_TEST_GPU", "host");
}

const char *test_fault(void)
{
    return test_env("WEFT_TEST_FAULT", "");
}

/* --- time ---------------------------------------------------------------------------------- */

int test_deadline_ms(void)
{
    return atoi(test_env("WEFT_TEST_DEADLINE", "60000"));
}

uint64_t test_deadline(void)
{
    return weft_now() + (uint64_t)TEST_DEADLINE_MS * 1000000u;
}

void test_sleep_ms(int ms)
{
    poll(NULL, 0, ms);
}

/* --- processes ----------------------------------------------------------------------------- */

pid_t test_fork(test_child_fn *fn, void *arg, int *fd)
{
    int ends[2];
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), "socketpair: %m");
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0, "fork: %m");
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a child never outlives a test that crashed */
        close(ends[0]);
        fn(ends[1], arg);
        _exit(0);
    }
    close(ends[1]);
    *fd = ends[0];
    return pid;
}

/* The linker's names for the ends of the program. It may be loaded at another address in the other
 * process. */
extern const char __executable_start[], etext[];

uint64_t test_fn_pack(test_any_fn *fn)
{
    return (uintptr_t)fn - (uintptr_t)__executable_start;
}

test_any_fn *test_fn_unpack(uint64_t packed)
{
    CHECK(packed < (uintptr_t)etext - (uintptr_t)__executable_start,
          "there is no function at %" PRIx64, packed);
    return (test_any_fn *)((uintptr_t)__executable_start + packed);
}

struct call {
    uint64_t fn; /* 0, where no function is: end */
    size_t size;
};

static bool readable(int fd, int ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, ms) == 1;
}

void test_serve(int fd, void *self, test_run_fn *run, void (*idle)(void *self))
{
    static _Alignas(16) char arg[TEST_MAX_ARG + 1];
    struct call call;
    for (;;) {
        while (!readable(fd, idle ? 0 : -1))
            if (idle)
                idle(self);
        if (!test_recv(fd, &call, sizeof call))
            _exit(1); /* the test is gone, and has said why */
        if (!call.fn)
            return;
        if (call.size > TEST_MAX_ARG || !test_recv(fd, arg, call.size))
            _exit(1);
        run(self, test_fn_unpack(call.fn), arg);
        test_send(fd, arg, call.size + 1); /* one byte more: an answer of no bytes is one too */
    }
}

void test_call_begin(int fd, test_any_fn *fn, const void *arg, size_t size)
{
    CHECK(size <= TEST_MAX_ARG, "a call with %zu bytes of arguments", size);
    test_send(fd, &(struct call){test_fn_pack(fn), size}, sizeof(struct call));
    test_send(fd, arg, size);
}

void test_call_finish(int fd, void *arg, size_t size, void (*idle)(void *), void *self)
{
    char done;
    TEST_UNTIL(readable(fd, idle ? 0 : 100), if (idle) idle(self), "the peer process to answer");
    CHECK(test_recv(fd, arg, size) && test_recv(fd, &done, 1), "the peer process is gone");
}

void test_call(int fd, test_any_fn *fn, void *arg, size_t size, void (*idle)(void *), void *self)
{
    test_call_begin(fd, fn, arg, size);
    test_call_finish(fd, arg, size, idle, self);
}

void test_call_end(int fd)
{
    test_send(fd, &(struct call){0, 0}, sizeof(struct call));
}

void test_join(pid_t pid, int signal)
{
    int status = 0;
    pid_t got = 0;
    TEST_UNTIL((got = waitpid(pid, &status, WNOHANG)), test_sleep_ms(1), "a child to end");
    CHECK(got == pid, "waitpid: %m");
    test_check_status(status, signal);
}

void test_check_status(int status, int signal)
{
    if (WIFSIGNALED(status))
        CHECK(WTERMSIG(status) == signal, "a child was killed by signal %d", WTERMSIG(status));
    else
        CHECK(WEXITSTATUS(status) == 0, "a child exited with %d", WEXITSTATUS(status));
}

bool test_recv(int fd, void *data, size_t len)
{
    for (char *at = data; len;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        CHECK(poll(&p, 1, TEST_DEADLINE_MS) == 1, "deadline: waited for the other process");
        ssize_t n = recv(fd, at, len, 0);
        if (n <= 0)
            return false;
        at += n;
        len -= (size_t)n;
    }
    return true;
}

void test_send(int fd, const void *data, size_t len)
{
    for (const char *at = data; len;) {
        ssize_t n = send(fd, at, len, MSG_NOSIGNAL);
        CHECK(n > 0, "the other process is gone: %m");
        at += n;
        len -= (size_t)n;
    }
}

int test_count_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    CHECK(d, "/proc/self/fd: %m");
    int n = 0;
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

#ifdef TEST_THREAD_SANITIZER
/* Called by the sanitizer, before main. Two threads of a process may copy to the same bytes one
 * after the other, for two links: what puts the second after the first is the peer process. */
__attribute__((visibility("default"))) const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
    return "race_top:process_vm_readv\n"
           "race_top:process_vm_writev\n";
}
#endif

/* Of a sanitizer, which has its own allocator. */
size_t __sanitizer_get_current_allocated_bytes(void) __attribute__((weak));

size_t test_allocated(void)
{
    if (__sanitizer_get_current_allocated_bytes)
        return __sanitizer_get_current_allocated_bytes();
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}
