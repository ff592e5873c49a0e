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

static void stranger_close(struct stranger *s)
{
    kill(s->pid, SIGKILL);
    CHECK(waitpid(s->pid, NULL, 0) == s->pid, "waitpid: %m");
}

static void one_that_ends_is_dead_and_holds_nothing(void **state)
{
    (void)state;
    struct efa_nic nic;
    struct efa_process *process;
    struct stranger s = stranger_open();
    nic_open(&nic);
    int before = test_count_fds();
    assert_int_equal(efa_process_watch(&nic, &s.address, &process), 0);
    assert_non_null(process);
    assert_true(efa_process_alive(process));
    stranger_close(&s);
    assert_false(efa_process_alive(process));
    efa_process_look(&nic);
    assert_true(process->dead);
    assert_false(efa_process_alive(process));
    assert_int_equal(test_count_fds(), before); /* who refers to it may do so for long */
    efa_process_put(&nic, process);
    close(nic.epoll_fd);
}

static void another_of_the_same_number_is_not_the_peer(void **state)
{
    (void)state;
    struct efa_nic nic;
    struct efa_process *process;
    struct stranger s = stranger_open();
    nic_open(&nic);
    s.address.started++;
    assert_int_equal(efa_process_watch(&nic, &s.address, &process), WEFT_ELINK);
    efa_process_put(&nic, process);
    stranger_close(&s);
    close(nic.epoll_fd);
}

/* The last descriptor is the watch's: /proc cannot be read, as it cannot where it hides the processes of others. */
static void one_that_cannot_be_looked_at_is_not_dead(void **state)
{
    (void)state;
    struct efa_nic nic;
    struct efa_process *process;
    struct rlimit limit, few;
    struct stranger s = stranger_open();
    nic_open(&nic);
    int last = dup(nic.epoll_fd);
    close(last);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    few = (struct rlimit){(rlim_t)last + 1, limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    assert_int_equal(efa_process_watch(&nic, &s.address, &process), 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_non_null(process);
    assert_int_equal(process->fd, last);
    assert_true(efa_process_alive(process));
    stranger_close(&s);
    assert_false(efa_process_alive(process));
    efa_process_put(&nic, process);
    close(nic.epoll_fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_that_ends_is_dead_and_holds_nothing),
        cmocka_unit_test(another_of_the_same_number_is_not_the_peer),
        cmocka_unit_test(one_that_cannot_be_looked_at_is_not_dead),
    };
    return cmocka_run_group_tests_name("efa_process", tests, NULL, NULL);
}
