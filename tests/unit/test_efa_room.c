/* SPDX-License-Identifier: Apache-2.0 */
/* efa over a provider that takes few operations of a link at once, as shm does: it is not asked in vain again and again, nor
 * never again. */
#include "efa_pair.h"

#include "transports/efa/efa.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define A PAIR_A
#define B PAIR_B
#define REST 64 /* polls before the first question that may be in vain */
#define MOST_REST 1024

static const struct efa_name *target_of(const struct efa_pair *ep)
{
    return ((struct efa_link *)ep->pair.side[A].link)->target;
}

/* Polls of A until so many WRITEs have ended. */
static unsigned end(struct efa_pair *ep, int n)
{
    unsigned polls = 0;
    struct pair_comp comp;
    for (uint64_t until = test_deadline(); n > 0; polls++) {
        assert_true(weft_now() < until);
        pair_poll(&ep->pair, A);
        pair_poll(&ep->pair, B);
        while (pair_take(&ep->pair, A, WEFT_OP_WRITE, 1, &comp)) {
            assert_int_equal(comp.comp.status, 0);
            n--;
        }
    }
    return polls;
}

/* A pair whose first WRITE has ended: what is behind the key is known. */
static struct weft_cmd open_known(struct efa_pair *ep)
{
    efa_pair_open(ep, "", NULL);
    struct weft_cmd cmd = efa_pair_cmd(ep, WEFT_OP_WRITE, 64);
    assert_int_equal(pair_do(&ep->pair, A, &cmd), 0);
    return cmd;
}

static void seldom_in_vain(void **state)
{
    (void)state;
    struct efa_pair ep;
    struct weft_cmd cmd = open_known(&ep);
    fake_fabric_set("room=1");
    unsigned before = fake_fabric_refused();
    for (int i = 0; i < 200; i++)
        pair_post(&ep.pair, A, &cmd);
    unsigned polls = end(&ep, 200), vain = fake_fabric_refused() - before;
    CHECK(vain >= 2 && vain <= 2 + polls / REST, "asked %u times in vain in %u polls", vain, polls);
    efa_pair_close(&ep);
}

/* Post two WRITEs where there is room for one until the target's rest is this. */
static void refuse_until(struct efa_pair *ep, const struct weft_cmd *cmd, uint32_t rest)
{
    const struct efa_name *target = target_of(ep);
    for (uint64_t until = test_deadline(); target->rest != rest;) {
        assert_true(weft_now() < until);
        assert_true(target->rest < rest);
        pair_post(&ep->pair, A, cmd);
        pair_post(&ep->pair, A, cmd);
        end(ep, 2);
    }
    assert_int_equal(target->most, 1);
}

/* Once in vain is no reason to rest; each time after that makes the rest twice as long, up to a limit. */
static void more_seldom_each_time(void **state)
{
    (void)state;
    struct efa_pair ep;
    struct weft_cmd cmd = open_known(&ep);
    fake_fabric_set("room=1,hold=8,delay=8");
    assert_int_equal(target_of(&ep)->most, UINT32_MAX);
    pair_post(&ep.pair, A, &cmd);
    pair_post(&ep.pair, A, &cmd);
    assert_int_equal(target_of(&ep)->most, 1);
    assert_int_equal(target_of(&ep)->rest, 0);
    end(&ep, 2);
    for (uint32_t rest = REST; rest <= MOST_REST; rest *= 2)
        refuse_until(&ep, &cmd, rest);
    uint64_t last = target_of(&ep)->most_poll;
    for (uint64_t until = test_deadline(); target_of(&ep)->most_poll == last;) {
        assert_true(weft_now() < until);
        pair_post(&ep.pair, A, &cmd);
        pair_post(&ep.pair, A, &cmd);
        end(&ep, 2);
    }
    assert_true(target_of(&ep)->most_poll - last >= MOST_REST);
    assert_int_equal(target_of(&ep)->rest, MOST_REST);
    fake_fabric_set("");
    efa_pair_close(&ep);
}

/* Four under way always, until more than `most` of them are at libfabric. */
static void keep_four_until_more(struct efa_pair *ep, const struct weft_cmd *cmd, uint32_t most)
{
    struct efa_link *link = (struct efa_link *)ep->pair.side[A].link;
    for (uint64_t until = test_deadline(); link->target->nflying <= most;) {
        assert_true(weft_now() < until);
        if (link->nposted < 4)
            pair_post(&ep->pair, A, cmd);
        pair_poll(&ep->pair, A);
        pair_poll(&ep->pair, B);
        while (pair_take(&ep->pair, A, WEFT_OP_WRITE, 1, &(struct pair_comp){0}))
            ;
    }
}

/* It was others' work that was in the way: by and by more is under way again, and if that is too much it begins anew. */
static void tries_with_more_again(void **state)
{
    (void)state;
    for (int room = 1; room < 4; room += 2) {
        struct efa_pair ep;
        char setting[32];
        struct weft_cmd cmd = open_known(&ep);
        const struct efa_name *target = target_of(&ep);
        snprintf(setting, sizeof setting, "room=%d,hold=8", room);
        fake_fabric_set(setting);
        for (uint64_t until = test_deadline(); target->rest != REST;) {
            assert_true(weft_now() < until);
            for (int i = 0; i < room + 1; i++)
                pair_post(&ep.pair, A, &cmd);
            end(&ep, room + 1);
        }
        uint32_t most = target->most;
        uint64_t first = target->most_poll;
        assert_in_range(most, 1, room);
        fake_fabric_set("hold=8");
        keep_four_until_more(&ep, &cmd, most);
        assert_true(efa_pair_nic(&ep, A)->polls - first >= REST);
        assert_int_equal(target->most, UINT32_MAX);
        while (((struct efa_link *)ep.pair.side[A].link)->nposted > 0)
            end(&ep, 1);
        fake_fabric_set("room=1,hold=8");
        pair_post(&ep.pair, A, &cmd);
        pair_post(&ep.pair, A, &cmd);
        assert_int_equal(target->most, 1);
        assert_int_equal(target->rest, 0);
        end(&ep, 2);
        fake_fabric_set("");
        efa_pair_close(&ep);
    }
}

/* --- two links to one target -------------------------------------------------------------------------------- */

static void open_second(struct efa_pair *ep, struct weft_link *link[2])
{
    const struct weft_transport_ops *ops = ep->pair.ops;
    uint8_t address[2][WEFT_LINK_ADDRESS_MAX];
    int len[2], rc[2] = {WEFT_EAGAIN, WEFT_EAGAIN};
    for (int i = 0; i < 2; i++) {
        struct weft_link_opts opts = {.role = i == A ? WEFT_ROLE_ACTIVE : WEFT_ROLE_PASSIVE};
        PAIR_OK(ops->link_open(ep->pair.side[i].nic, &opts, &link[i]));
        len[i] = PAIR_OK(ops->link_address(link[i], address[i], sizeof address[i]));
    }
    for (uint64_t until = test_deadline(); rc[A] || rc[B];) {
        assert_true(weft_now() < until);
        for (int i = 0; i < 2; i++) {
            if (rc[i] == WEFT_EAGAIN)
                rc[i] = ops->link_connect(link[i], address[!i], (size_t)len[!i]);
            pair_poll(&ep->pair, i);
        }
    }
}

/* There is room for one operation to the target. Each link gets it in its turn, and neither asks in vain while the other has it. */
static void two_links_share_what_there_is(void **state)
{
    (void)state;
    struct efa_pair ep;
    struct weft_link *second[2], *own;
    struct weft_cmd cmd = open_known(&ep), other = cmd;
    struct pair_comp comp;
    unsigned ended[2] = {0}, polls = 0;
    own = ep.pair.side[A].link;
    other.ctx = 2;
    open_second(&ep, second);
    PAIR_OK(ep.pair.ops->post(second[A], &other, 1));
    pair_wait(&ep.pair, A, WEFT_OP_WRITE, 2);
    assert_ptr_equal(((struct efa_link *)second[A])->target, target_of(&ep));
    fake_fabric_set("room=1");
    unsigned before = fake_fabric_refused();
    for (uint64_t until = test_deadline(); ended[0] + ended[1] < 400; polls++) {
        assert_true(weft_now() < until);
        while (((struct efa_link *)own)->nposted < 8 && PAIR_OK(ep.pair.ops->post(own, &cmd, 1)) == 1)
            ;
        while (((struct efa_link *)second[A])->nposted < 8 && PAIR_OK(ep.pair.ops->post(second[A], &other, 1)) == 1)
            ;
        pair_poll(&ep.pair, A);
        pair_poll(&ep.pair, B);
        for (unsigned k = 0; k < 2; k++)
            while (pair_take(&ep.pair, A, WEFT_OP_WRITE, 1 + k, &comp))
                ended[k]++;
    }
    unsigned vain = fake_fabric_refused() - before;
    CHECK(ended[0] > 100 && ended[1] > 100, "%u and %u have ended", ended[0], ended[1]);
    CHECK(vain <= 2 + polls / REST, "asked %u times in vain in %u polls", vain, polls);
    fake_fabric_set("");
    TEST_UNTIL(((struct efa_link *)own)->nposted + ((struct efa_link *)second[A])->nposted == 0,
               (pair_poll(&ep.pair, A), pair_poll(&ep.pair, B)), "the last WRITEs");
    for (int i = 0; i < 2; i++)
        ep.pair.ops->link_close(second[i]);
    while (pair_take(&ep.pair, A, WEFT_OP_WRITE, 1, &comp) || pair_take(&ep.pair, A, WEFT_OP_WRITE, 2, &comp))
        ;
    efa_pair_close(&ep);
}

/* --- who lives -------------------------------------------------------------------------------------------------- */

/* A process that the link of A takes for its peer. It has died, which nobody but the kernel knows. */
static pid_t dead_peer(struct efa_pair *ep, struct efa_process *process)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(0);
    *process = (struct efa_process){.refs = 1, .pid = (uint32_t)pid, .fd = (int)syscall(SYS_pidfd_open, pid, 0)};
    assert_true(process->fd >= 0);
    struct pollfd fd = {.fd = process->fd, .events = POLLIN};
    assert_int_equal(poll(&fd, 1, 10000), 1);
    assert_null(((struct efa_link *)ep->pair.side[A].link)->process); /* this one's own */
    ((struct efa_link *)ep->pair.side[A].link)->process = process;
    return pid;
}

static void forget_peer(struct efa_pair *ep, const struct efa_process *process, pid_t pid)
{
    ((struct efa_link *)ep->pair.side[A].link)->process = NULL;
    close(process->fd);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

/* Whose operation has just been seen to end is not asked after for the next one; that it was seen long ago says nothing. */
static void who_died_since_gets_nothing(void **state)
{
    (void)state;
    struct efa_pair ep;
    struct efa_process process;
    struct weft_cmd cmd = open_known(&ep);
    struct efa_link *link = (struct efa_link *)ep.pair.side[A].link;
    fake_fabric_set("room=1");
    for (int i = 0; i < 3; i++)
        pair_post(&ep.pair, A, &cmd);
    assert_int_equal(link->nflying, 1);
    pid_t pid = dead_peer(&ep, &process);
    end(&ep, 3); /* of which the second and the third are posted by the poll that sees the one before end */
    pair_post(&ep.pair, A, &cmd);
    for (int i = 0; i < 10; i++) {
        pair_poll(&ep.pair, A);
        assert_int_equal(link->nflying, 0);
    }
    forget_peer(&ep, &process, pid);
    end(&ep, 1);
    efa_pair_close(&ep);
}

/* A message says that its sender lives, for one post. */
static void a_message_is_good_for_one_post(void **state)
{
    (void)state;
    struct efa_pair ep;
    struct efa_process process;
    struct weft_cmd cmd = open_known(&ep);
    struct efa_link *link = (struct efa_link *)ep.pair.side[A].link;
    pid_t pid = dead_peer(&ep, &process);
    process.heard = true;
    pair_post(&ep.pair, A, &cmd);
    assert_int_equal(link->nflying, 1);
    assert_false(process.heard);
    TEST_UNTIL(link->nflying == 0, (efa_progress(efa_pair_nic(&ep, B)), efa_progress(efa_pair_nic(&ep, A))),
               "the WRITE, without a poll, which may post");
    pair_post(&ep.pair, A, &cmd);
    assert_int_equal(link->nflying, 0);
    process.heard = process.dead = true; /* the link is about to go down */
    pair_poll(&ep.pair, A);
    assert_int_equal(link->nflying, 0);
    process.dead = false;
    forget_peer(&ep, &process, pid);
    end(&ep, 2);
    efa_pair_close(&ep);
}

/* A target that fails an operation may have died. */
static void who_fails_one_says_nothing(void **state)
{
    (void)state;
    struct efa_pair ep;
    struct efa_process process = {.refs = 1, .fd = -1};
    struct weft_cmd cmd = open_known(&ep);
    struct efa_link *link = (struct efa_link *)ep.pair.side[A].link;
    link->process = &process;
    fake_fabric_set("fail=1");
    pair_post(&ep.pair, A, &cmd);
    struct pair_comp comp = pair_wait(&ep.pair, A, WEFT_OP_WRITE, 1);
    assert_int_not_equal(comp.comp.status, 0);
    assert_int_equal(process.ended, 0);
    fake_fabric_set("");
    assert_int_equal(pair_do(&ep.pair, A, &cmd), 0);
    assert_int_not_equal(process.ended, 0);
    link->process = NULL;
    efa_pair_close(&ep);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(seldom_in_vain),
        cmocka_unit_test(more_seldom_each_time),
        cmocka_unit_test(tries_with_more_again),
        cmocka_unit_test(two_links_share_what_there_is),
        cmocka_unit_test(who_died_since_gets_nothing),
        cmocka_unit_test(a_message_is_good_for_one_post),
        cmocka_unit_test(who_fails_one_says_nothing),
    };
    cmocka_set_test_filter(test_env("WEFT_TEST_CASE", "*"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
