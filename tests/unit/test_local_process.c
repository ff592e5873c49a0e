/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The local transport between two processes: copies by the kernel and through the ring, memory
 * that vanishes, a peer that is killed, sleeping and being woken.
 */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "pair.h"
#include "transports/local/local.h"

extern const struct weft_transport weft_transport_local;

#define LEN (4u << 20)
#define KEY 99

/* The test drives the active end; a child is the passive end and polls. */
struct duo {
    const struct weft_transport_ops *ops;
    struct weft_nic *nic;
    struct weft_link *link;
    pid_t child;
    int fd;          /* to the child */
    uint64_t remote; /* address of LEN bytes there, registered under KEY */
    uint8_t *local;
};

/* --- one end -------------------------------------------------------------------------------- */

static void open_end(struct duo *duo, enum weft_role role)
{
    struct weft_nic_opts opts = {.device = "local"};
    struct weft_link_opts link_opts = {.role = role};
    duo->ops = weft_transport_local.ops;
    PAIR_OK(duo->ops->open(&opts, &duo->nic));
    PAIR_OK(duo->ops->link_open(duo->nic, &link_opts, &duo->link));
}

static void connect_end(struct duo *duo)
{
    uint8_t ours[WEFT_LINK_ADDRESS_MAX], theirs[WEFT_LINK_ADDRESS_MAX];
    struct weft_comp comps[4];
    int rc = PAIR_OK(duo->ops->link_address(duo->link, ours, sizeof ours));
    assert_int_equal(send(duo->fd, ours, (size_t)rc, 0), rc);
    ssize_t len = recv(duo->fd, theirs, sizeof theirs, 0);
    while ((rc = duo->ops->link_connect(duo->link, theirs, (size_t)len)) == WEFT_EAGAIN)
        duo->ops->poll(duo->nic, comps, 4);
    PAIR_OK(rc);
}

/* The child: answers every SEND with the same bytes, until its link is down. */
static void serve(struct duo *duo, bool sleeps)
{
    struct weft_comp comps[16];
    uint8_t *target = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct weft_mem_range range = {.addr = target,
                                   .len = LEN,
                                   .access = PAIR_ALL,
                                   .kind = WEFT_MEM_HOST,
                                   .dmabuf_fd = -1,
                                   .key = KEY};
    struct weft_mem_handle handle;
    static uint8_t echo[LOCAL_MAX_SEND];
    uint64_t addr = (uintptr_t)target;
    PAIR_OK(duo->ops->mem_reg(duo->nic, &range, &handle));
    send(duo->fd, &addr, sizeof addr, 0);
    for (;;) {
        int n = duo->ops->poll(duo->nic, comps, 16);
        for (int i = 0; i < n; i++) {
            if (comps[i].op == WEFT_OP_LINK_DOWN)
                _exit(0);
            if (comps[i].op != WEFT_OP_RECV)
                continue;
            memcpy(echo, comps[i].data, comps[i].len);
            struct weft_cmd cmd = {.op = WEFT_OP_SEND,
                                   .len = comps[i].len,
                                   .one = {.addr = echo, .len = comps[i].len}};
            duo->ops->post(duo->link, &cmd, 1);
        }
        struct pollfd wait = {.fd = sleeps ? duo->ops->wait_fd(duo->nic) : -1, .events = POLLIN};
        if (wait.fd >= 0)
            poll(&wait, 1, 5000);
    }
}

static int begin(void **state, bool sleeps)
{
    struct duo *duo = calloc(1, sizeof *duo);
    int fds[2];
    socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds);
    duo->child = fork();
    duo->fd = fds[duo->child ? 0 : 1];
    close(fds[duo->child ? 1 : 0]);
    if (!duo->child) {
        alarm(60);
        open_end(duo, WEFT_ROLE_PASSIVE);
        connect_end(duo);
        serve(duo, sleeps);
    }
    open_end(duo, WEFT_ROLE_ACTIVE);
    connect_end(duo);
    assert_int_equal(recv(duo->fd, &duo->remote, sizeof duo->remote, 0), sizeof duo->remote);
    duo->local = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *state = duo;
    return 0;
}

static int setup(void **state)
{
    return begin(state, false);
}

static int setup_sleeping(void **state)
{
    return begin(state, true);
}

static int setup_ring(void **state)
{
    weft_config_set("WEFT_LOCAL_CMA", "0");
    return begin(state, false);
}

static int teardown(void **state)
{
    struct duo *duo = *state;
    duo->ops->link_close(duo->link);
    duo->ops->close(duo->nic);
    if (duo->local)
        munmap(duo->local, LEN);
    int status;
    waitpid(duo->child, &status, 0);
    close(duo->fd);
    free(duo);
    weft_config_set("WEFT_LOCAL_CMA", NULL);
    return 0;
}

/* --- what the tests do ---------------------------------------------------------------------- */

/* Wait for the next comp. */
static struct weft_comp next(struct duo *duo)
{
    struct weft_comp comp;
    uint64_t deadline = weft_now() + PAIR_WAIT_MS * 1000000ull;
    while (PAIR_OK(duo->ops->poll(duo->nic, &comp, 1)) == 0)
        assert_true(weft_now() < deadline);
    return comp;
}

static struct weft_cmd whole(struct duo *duo, enum weft_op op, uint64_t len)
{
    return (struct weft_cmd){.op = (uint8_t)op,
                             .remote_addr = duo->remote,
                             .remote_key = KEY,
                             .len = len,
                             .ctx = 1,
                             .one = {.addr = duo->local, .len = len}};
}

static int execute(struct duo *duo, struct weft_cmd cmd)
{
    assert_int_equal(PAIR_OK(duo->ops->post(duo->link, &cmd, 1)), 1);
    struct weft_comp comp = next(duo);
    assert_int_equal(comp.op, cmd.op);
    assert_int_equal(comp.ctx, cmd.ctx);
    return comp.status;
}

static void there_and_back(void **state)
{
    static const uint64_t sizes[] = {1, 4096, 4097, 100001, LEN};
    struct duo *duo = *state;
    struct local_link *link = (struct local_link *)duo->link;
    assert_false(link->same_process);
    assert_int_equal(link->pid, duo->child);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        pair_fill(duo->local, sizes[i], (uint32_t)i);
        assert_int_equal(execute(duo, whole(duo, WEFT_OP_WRITE, sizes[i])), 0);
        memset(duo->local, 0, sizes[i]);
        assert_int_equal(execute(duo, whole(duo, WEFT_OP_READ, sizes[i])), 0);
        assert_true(pair_filled(duo->local, sizes[i], (uint32_t)i));
    }
}

static void ring_only(void **state)
{
    struct duo *duo = *state;
    struct local_link *link = (struct local_link *)duo->link;
    assert_false(link->direct_in || link->direct_out);
    there_and_back(state);
}

/* The initiator's memory is gone: the copy by the kernel says so, and only that. */
static void local_memory_vanishes(void **state)
{
    struct duo *duo = *state;
    if (!((struct local_link *)duo->link)->direct_out)
        skip();
    munmap(duo->local + LEN / 2, LEN / 2);
    assert_int_equal(execute(duo, whole(duo, WEFT_OP_WRITE, LEN)), -EFAULT);
    assert_int_equal(execute(duo, whole(duo, WEFT_OP_READ, LEN)), -EFAULT);
    assert_int_equal(execute(duo, whole(duo, WEFT_OP_WRITE, LEN / 2)), 0);
    munmap(duo->local, LEN / 2);
    duo->local = NULL;
}

static void killed_peer(void **state)
{
    struct duo *duo = *state;
    struct weft_cmd cmd = whole(duo, WEFT_OP_WRITE, LEN);
    for (int i = 0; i < 50; i++)
        PAIR_OK(duo->ops->post(duo->link, &cmd, 1));
    kill(duo->child, SIGKILL);
    struct weft_comp comp;
    do
        comp = next(duo);
    while (comp.op == WEFT_OP_WRITE);
    assert_int_equal(comp.op, WEFT_OP_LINK_DOWN);
    assert_int_equal(comp.status, WEFT_EPEER);
    assert_int_equal(duo->ops->post(duo->link, &cmd, 1), WEFT_ELINK);
}

/* A peer that is stopped does not hold link_close up for long. */
static void closed_while_peer_is_stopped(void **state)
{
    struct duo *duo = *state;
    struct weft_cmd cmd = whole(duo, WEFT_OP_WRITE, LEN);
    for (int i = 0; i < 50; i++)
        PAIR_OK(duo->ops->post(duo->link, &cmd, 1));
    kill(duo->child, SIGSTOP);
    uint64_t start = weft_now();
    duo->ops->link_close(duo->link);
    assert_true(weft_now() - start < 5000000000u);
    kill(duo->child, SIGCONT);
    /* teardown closes a link */
    struct weft_link_opts opts = {.role = WEFT_ROLE_ACTIVE};
    PAIR_OK(duo->ops->link_open(duo->nic, &opts, &duo->link));
}

static void sleeper_is_woken(void **state)
{
    struct duo *duo = *state;
    for (uint32_t i = 0; i < 200; i++) {
        pair_fill(duo->local, 64, i);
        struct weft_cmd cmd = whole(duo, WEFT_OP_SEND, 64);
        assert_int_equal(PAIR_OK(duo->ops->post(duo->link, &cmd, 1)), 1);
        for (int ends = 0; ends < 2;) {
            struct weft_comp comp;
            int n = PAIR_OK(duo->ops->poll(duo->nic, &comp, 1));
            ends += n;
            if (n && comp.op == WEFT_OP_RECV)
                assert_true(pair_filled(comp.data, comp.len, i));
            int fd = n || ends == 2 ? -1 : duo->ops->wait_fd(duo->nic);
            struct pollfd wait = {.fd = fd, .events = POLLIN};
            if (fd >= 0)
                assert_int_equal(poll(&wait, 1, PAIR_WAIT_MS), 1);
        }
        if (i % 20 == 0)
            usleep(3000); /* long enough for both to be asleep */
    }
}

/* Nothing to do: the descriptor stays quiet. */
static void idle_is_quiet(void **state)
{
    struct duo *duo = *state;
    struct weft_comp comp;
    int fd;
    while ((fd = duo->ops->wait_fd(duo->nic)) == WEFT_EAGAIN)
        duo->ops->poll(duo->nic, &comp, 1);
    PAIR_OK(fd);
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&wait, 1, 50), 0);
}

#define WITH(begin_, test)                                                                        \
    {                                                                                             \
#test " (" #begin_ ")", test, begin_, teardown, NULL                                      \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH(setup, there_and_back),
        WITH(setup_ring, ring_only),
        WITH(setup_sleeping, there_and_back),
        WITH(setup, local_memory_vanishes),
        WITH(setup, killed_peer),
        WITH(setup_ring, killed_peer),
        WITH(setup_sleeping, killed_peer),
        WITH(setup, closed_while_peer_is_stopped),
        WITH(setup_sleeping, sleeper_is_woken),
        WITH(setup_sleeping, idle_is_quiet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
