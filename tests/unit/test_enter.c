/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What core copies by itself from and to a peer's memory: who is inside, memory that is taken back in turns, links that are
 * closed and peers that die meanwhile (weft_link_enter_fn in weft/transport.h), over local, in one process and in two.
 */
#include "contract/pair.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>

#define PASSED 20 /* more than are read at once */

/* Side B, which enters the memory of side A. */
struct entry {
    int link;
    uint32_t turn;
    int inside;
};

static void enter_there(struct side *side, void *arg)
{
    struct entry *entry = arg;
    entry->inside = side->ops->link_enter(side->links[entry->link].link, entry->turn);
}

static void leave_there(struct side *side, void *arg)
{
    const struct entry *entry = arg;
    side->ops->link_leave(side->links[entry->link].link, entry->turn);
}

static int enter(struct pair *p, int link, uint32_t turn)
{
    struct entry entry = {link, turn, -1};
    pair_call(p, B, enter_there, &entry, sizeof entry);
    return entry.inside;
}

static void leave(struct pair *p, int link, uint32_t turn)
{
    struct entry entry = {link, turn, 0};
    pair_call(p, B, leave_there, &entry, sizeof entry);
}

static uint32_t recall_last(struct pair *p, int link)
{
    return p->a.ops->link_recall(p->a.links[link].link, 1);
}

static uint32_t recall(struct pair *p, int link)
{
    return p->a.ops->link_recall(p->a.links[link].link, 0);
}

static int recalled(struct pair *p, int link)
{
    return p->a.ops->link_recalled(p->a.links[link].link);
}

static void turns_begin_with_0_and_end(void **state)
{
    struct pair *p = *state;
    assert_true(pair_attr(p).enters);
    assert_int_equal(enter(p, 0, 1), 0);
    assert_int_equal(enter(p, 0, 0), 1);
    leave(p, 0, 0);
    for (uint32_t turn = 1; turn < 10; turn++) {
        assert_int_equal(recall(p, 0), turn);
        assert_int_equal(recalled(p, 0), 1);
        assert_int_equal(enter(p, 0, turn - 1), 0);
        assert_int_equal(enter(p, 0, turn + 1), 0);
        assert_int_equal(enter(p, 0, turn), 1);
        leave(p, 0, turn);
    }
}

/* So many since turn 0, and after a recall one more. */
static void enter_in_two_turns(struct pair *p, int first)
{
    for (int i = 0; i < first; i++)
        assert_int_equal(enter(p, 0, 0), 1);
    assert_int_equal(recall(p, 0), 1);
    assert_int_equal(recalled(p, 0), 0);
    assert_int_equal(enter(p, 0, 1), 1);
}

/* Those who enter in the next turn do not hold it up. */
static void a_recall_waits_for_who_is_inside(void **state)
{
    struct pair *p = *state;
    enter_in_two_turns(p, 2);
    leave(p, 0, 0);
    assert_int_equal(recalled(p, 0), 0);
    leave(p, 0, 0);
    assert_int_equal(recalled(p, 0), 1);
    assert_int_equal(recall(p, 0), 2);
    assert_int_equal(recalled(p, 0), 0);
    leave(p, 0, 1);
    assert_int_equal(recalled(p, 0), 1);
}

/* In no turn does anybody get in after the last one, and all who are inside count. */
static void after_the_last_turn_nobody_enters(void **state)
{
    struct pair *p = *state;
    enter_in_two_turns(p, 1);
    assert_int_equal(recall_last(p, 0), 1);
    for (uint32_t turn = 0; turn < 4; turn++)
        assert_int_equal(enter(p, 0, turn), 0);
    leave(p, 0, 0);
    assert_int_equal(recalled(p, 0), 0);
    leave(p, 0, 1);
    assert_int_equal(recalled(p, 0), 1);
    assert_int_equal(recall_last(p, 0), 1);
    assert_int_equal(recalled(p, 0), 1);
    pair_link_close(p, A, 0);
    pair_link_down(p, B, 0);
}

/* A peer that never leaves, or says so, holds up who closes the link once, not once more in link_close. */
static void link_close_does_not_wait_twice(void **state)
{
    struct pair *p = *state;
    assert_int_equal(enter(p, 0, 0), 1);
    recall_last(p, 0);
    test_sleep_ms(1000);
    assert_int_equal(recalled(p, 0), 0);
    uint64_t before = weft_now();
    pair_link_close(p, A, 0);
    assert_true(weft_now() - before < 900000000u);
    pair_link_down(p, B, 0);
}

/* Each link, and each direction, counts for itself. */
static void other_memory_is_not_held_up(void **state)
{
    struct pair *p = *state;
    int other = pair_link(p, B);
    assert_int_equal(enter(p, 0, 0), 1);
    assert_int_equal(recall(p, other), 1);
    assert_int_equal(recalled(p, other), 1);
    assert_int_equal(enter(p, other, 1), 1);
    assert_int_equal(p->a.ops->link_enter(p->a.links[0].link, 0), 1);
    p->a.ops->link_leave(p->a.links[0].link, 0);
    leave(p, 0, 0);
    leave(p, other, 1);
}

/* --- one that is inside while the link is closed ------------------------------------------------ */

#define STAY_MS 100

static _Atomic(bool) left;

static void *leave_soon(void *arg)
{
    struct pair *p = arg;
    test_sleep_ms(STAY_MS);
    atomic_store(&left, true);
    p->b.ops->link_leave(p->b.links[0].link, 0);
    return NULL;
}

static void link_close_waits_for_who_is_inside(void **state)
{
    struct pair *p = *state;
    pthread_t thread;
    atomic_store(&left, false);
    assert_int_equal(enter(p, 0, 0), 1);
    assert_int_equal(pthread_create(&thread, NULL, leave_soon, p), 0);
    pair_link_close(p, A, 0);
    assert_true(atomic_load(&left));
    pthread_join(thread, NULL);
    assert_int_equal(enter(p, 0, 0), 0);
    pair_link_down(p, B, 0);
}

/* --- one that dies inside ------------------------------------------------------------------------- */

static void who_was_killed_is_not_inside(void **state)
{
    struct pair *p = *state;
    assert_int_equal(enter(p, 0, 0), 1);
    recall(p, 0);
    assert_int_equal(recalled(p, 0), 0);
    test_peer_kill(&p->peer);
    TEST_UNTIL(recalled(p, 0), test_sleep_ms(1), "the end of who was killed");
}

static void a_link_is_closed_though_its_peer_was_killed_inside(void **state)
{
    struct pair *p = *state;
    assert_int_equal(enter(p, 0, 0), 1);
    test_peer_kill(&p->peer);
    uint64_t before = weft_now();
    pair_link_close(p, A, 0);
    assert_true(weft_now() - before < (uint64_t)TEST_DEADLINE_MS * 1000000u);
}

/* --- many at once --------------------------------------------------------------------------------- */

#define ENTERERS 3
#define ROUNDS 2000

struct crowd {
    struct pair *p;
    _Atomic(uint32_t) turn;
    _Atomic(int) inside[2]; /* by turn, odd and even */
    _Atomic(bool) over;
    _Atomic(int) entered;
};

static void *come_and_go(void *arg)
{
    struct crowd *c = arg;
    const struct side *side = &c->p->b;
    while (!atomic_load(&c->over)) {
        uint32_t turn = atomic_load(&c->turn);
        if (!side->ops->link_enter(side->links[0].link, turn))
            continue;
        atomic_fetch_add(&c->inside[turn & 1], 1);
        atomic_fetch_add(&c->entered, 1);
        atomic_fetch_sub(&c->inside[turn & 1], 1);
        side->ops->link_leave(side->links[0].link, turn);
    }
    return NULL;
}

/* Once a turn was recalled, nobody is inside who entered in it. */
static void recalled_means_nobody(void **state)
{
    struct crowd c = {.p = *state};
    pthread_t threads[ENTERERS];
    for (int i = 0; i < ENTERERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, come_and_go, &c), 0);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        uint32_t turn = recall(c.p, 0);
        uint64_t until = test_deadline();
        while (!recalled(c.p, 0))
            CHECK(weft_now() < until, "deadline: waited for those inside");
        CHECK(!atomic_load(&c.inside[(turn - 1) & 1]), "someone is inside since turn %u",
              turn - 1);
        atomic_store(&c.turn, turn);
        TEST_UNTIL(atomic_load(&c.entered) > (int)i, sched_yield(), "someone to enter");
    }
    atomic_store(&c.over, true);
    for (int i = 0; i < ENTERERS; i++)
        pthread_join(threads[i], NULL);
}

/* A byte in a pipe, whose other end it passes, with the byte for its number. */
static void pass_there(struct side *side, void *arg)
{
    const char *byte = arg;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], byte, 1), 1);
    WEFT_OK(side->ops->link_pass(side->links[0].link, (uint64_t)*byte, ends[0]));
    close(ends[0]);
    close(ends[1]);
}

static void poll_here(struct pair *p)
{
    struct weft_comp comp;
    assert_int_equal(p->a.ops->poll(p->a.nic, &comp, 1), 0);
}

static void take_here(struct pair *p, char byte)
{
    int fd = -1;
    char got = 0;
    TEST_UNTIL(p->a.ops->link_take(p->a.links[0].link, (uint64_t)byte, &fd) == 0, poll_here(p),
               "a descriptor");
    assert_int_equal(read(fd, &got, 1), 1);
    assert_int_equal(got, byte);
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    close(fd);
}

static void descriptors_are_passed(void **state)
{
    struct pair *p = *state;
    struct weft_link *link = p->a.links[0].link;
    int fd = -1, fds = test_count_fds();
    assert_int_equal(p->a.ops->link_take(link, 1, &fd), WEFT_EAGAIN);
    for (char byte = 1; byte <= PASSED; byte++)
        pair_call(p, B, pass_there, &byte, 1);
    for (char byte = PASSED; byte > 2; byte--) /* the last first */
        take_here(p, byte);
    assert_int_equal(test_count_fds(), fds + 2);
    /* the others stay for who wants them, */
    assert_int_equal(p->a.ops->link_take(link, PASSED, &fd), WEFT_EAGAIN);
    take_here(p, 1);
    /* unless too many come */
    for (char byte = 3; byte <= 2 + 64; byte++) {
        pair_call(p, B, pass_there, &byte, 1);
        poll_here(p);
    }
    take_here(p, 2 + 64);
    assert_int_equal(p->a.ops->link_take(link, 2, &fd), WEFT_EAGAIN);
    take_here(p, 3);
    assert_int_equal(fd, -1);
    pair_link_close(p, A, 0);
    CHECK(test_count_fds() <= fds, "descriptors are left over");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_BOTH(turns_begin_with_0_and_end),
        IN_BOTH(a_recall_waits_for_who_is_inside),
        IN_BOTH(after_the_last_turn_nobody_enters),
        IN_BOTH(link_close_does_not_wait_twice),
        IN_BOTH(other_memory_is_not_held_up),
        IN_ONE(link_close_waits_for_who_is_inside),
        KILLED(who_was_killed_is_not_inside),
        KILLED(a_link_is_closed_though_its_peer_was_killed_inside),
        IN_ONE(recalled_means_nobody),
        IN_BOTH(descriptors_are_passed),
    };
    return PAIR_MAIN("test_enter", tests);
}
