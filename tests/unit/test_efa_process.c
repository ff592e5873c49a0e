/* SPDX-License-Identifier: Apache-2.0 */
/* Who is watched at the other end, and whether he lives: another process of the same number does not, and of one that cannot be
 * looked at nobody says that he is dead. */
#include "helpers.h"
#include "transports/efa/efa.h"

#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* A process that waits for its end, and what it says of itself. */
struct stranger {
    struct efa_address address;
    pid_t pid;
};

static void nic_open(struct efa_nic *nic)
{
    *nic = (struct efa_nic){.epoll_fd = epoll_create1(EPOLL_CLOEXEC)};
    weft_list_init(&nic->links);
    CHECK(nic->epoll_fd >= 0, "epoll_create1: %m");
    efa_process_describe(nic);
}

static struct stranger stranger_open(void)
{
    int to_here[2];
    struct efa_nic there;
    struct stranger s = {.pid = 0};
    CHECK(!pipe(to_here), "pipe: %m");
    s.pid = fork();
    if (s.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        nic_open(&there);
        bool said = write(to_here[1], &there.started, sizeof there.started) == sizeof there.started;
        pause();
        _exit(!said);
    }
    nic_open(&there); /* of this process: the same host and namespace */
    CHECK(read(to_here[0], &s.address.started, sizeof s.address.started) == sizeof s.address.started, "read: %m");
    CHECK(s.address.started, "when a process began is not known");
    close(there.epoll_fd);
    close(to_here[0]);
    close(to_here[1]);
    s.address.pid = (uint32_t)s.pid;
    s.address.pidns = there.pidns;
    memcpy(s.address.boot, there.boot, sizeof s.address.boot);
    return s;
}

static void stranger_end(struct stranger *s)
{
    kill(s->pid, SIGKILL);
    CHECK(waitpid(s->pid, NULL, 0) == s->pid, "waitpid: %m");
    s->pid = 0;
}

/* A nic, and a stranger that it has not met. */
struct scene {
    struct efa_nic nic;
    struct stranger peer;
    struct efa_process *process; /* as the nic watches it */
};

static int scene_open(void **state)
{
    struct scene *s = calloc(1, sizeof *s);
    s->peer = stranger_open();
    nic_open(&s->nic);
    *state = s;
    return 0;
}

static int scene_close(void **state)
{
    struct scene *s = *state;
    if (s->peer.pid)
        stranger_end(&s->peer);
    efa_process_put(&s->nic, s->process);
    close(s->nic.epoll_fd);
    free(s);
    return 0;
}

static int watch(struct scene *s)
{
    return efa_process_watch(&s->nic, &s->peer.address, &s->process);
}

static void one_that_ends_is_dead_and_holds_nothing(void **state)
{
    struct scene *s = *state;
    int before = test_count_fds();
    assert_int_equal(watch(s), 0);
    assert_non_null(s->process);
    assert_true(efa_process_alive(s->process));
    stranger_end(&s->peer);
    assert_false(efa_process_alive(s->process));
    efa_process_look(&s->nic);
    assert_true(s->process->dead);
    assert_false(efa_process_alive(s->process));
    assert_int_equal(test_count_fds(), before); /* who refers to it may do so for long */
}

static void another_of_the_same_number_is_not_the_peer(void **state)
{
    struct scene *s = *state;
    s->peer.address.started++;
    assert_int_equal(watch(s), WEFT_ELINK);
}

/* The last descriptor is the watch's: /proc cannot be read, as it cannot where it hides the processes of others. */
static void one_that_cannot_be_looked_at_is_not_dead(void **state)
{
    struct scene *s = *state;
    struct rlimit limit, few;
    int last = dup(s->nic.epoll_fd);
    close(last);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    few = (struct rlimit){(rlim_t)last + 1, limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    int rc = watch(s);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_int_equal(rc, 0);
    assert_non_null(s->process);
    assert_int_equal(s->process->fd, last);
    assert_true(efa_process_alive(s->process));
    stranger_end(&s->peer);
    assert_false(efa_process_alive(s->process));
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, scene_open, scene_close)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(one_that_ends_is_dead_and_holds_nothing),
        CASE(another_of_the_same_number_is_not_the_peer),
        CASE(one_that_cannot_be_looked_at_is_not_dead),
    };
    return cmocka_run_group_tests_name("efa_process", tests, NULL, NULL);
}
