/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Long copies that both ends of a local link make. Both are in this process, and the test decides
 * which one is polled: so it decides who copies what.
 */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "pair.h"
#include "transports/local/local.h"

extern const struct weft_transport weft_transport_local;

#define UNITS 33 /* the last one is short */
#define LEN ((uint64_t)UNITS * LOCAL_STEP - 1000)
#define KEY 0x1234567890abcdefull
#define CTX 5
#define MANY 100 /* polls: more than a copy by one side takes */
#define BUSY ((uint64_t)1 << 63)

struct test {
    struct pair pair;
    struct local_link *initiator, *target;
    struct weft_mem_handle mem;
    uint8_t *here, *there;
};

static int setup(void **state)
{
    struct test *t = calloc(1, sizeof *t);
    pair_open(&t->pair, &weft_transport_local, "local");
    pair_connect(&t->pair);
    t->initiator = (struct local_link *)t->pair.side[PAIR_A].link;
    t->target = (struct local_link *)t->pair.side[PAIR_B].link;
    t->here = malloc(LEN);
    t->there = malloc(LEN);
    pair_fill(t->here, LEN, 1);
    pair_fill(t->there, LEN, 2);
    t->mem = pair_reg(&t->pair, PAIR_B, t->there, LEN, PAIR_ALL, KEY);
    *state = t;
    return 0;
}

static int setup_alone(void **state)
{
    weft_config_set("WEFT_LOCAL_SHARE", "0");
    return setup(state);
}

static int teardown(void **state)
{
    struct test *t = *state;
    pair_close(&t->pair);
    free(t->here);
    free(t->there);
    free(t);
    weft_config_set("WEFT_LOCAL_SHARE", NULL);
    return 0;
}

static void post_key(struct test *t, enum weft_op op, uint64_t len, uint64_t key)
{
    struct weft_cmd cmd = {.op = (uint8_t)op,
                           .remote_addr = (uintptr_t)t->there,
                           .remote_key = key,
                           .len = len,
                           .ctx = CTX,
                           .one = {.addr = t->here, .len = len}};
    pair_post(&t->pair, PAIR_A, &cmd);
}

static void post(struct test *t, enum weft_op op, uint64_t len)
{
    post_key(t, op, len, KEY);
}

static void polls(struct test *t, int side, int n)
{
    while (n--)
        pair_poll(&t->pair, side);
}

/* The target has made its offer and has copied a unit, the initiator three. */
static void begin(struct test *t, enum weft_op op)
{
    post(t, op, LEN);
    polls(t, PAIR_B, 1);
    polls(t, PAIR_A, 3);
    assert_int_equal(t->initiator->help.units, UNITS);
    assert_int_equal(t->initiator->help.left, UNITS - 3);
}

static void finish(struct test *t, enum weft_op op, const uint8_t *bytes, uint32_t seed)
{
    assert_int_equal(pair_wait(&t->pair, PAIR_A, op, CTX).comp.status, 0);
    assert_true(pair_filled(bytes, LEN, seed));
    assert_int_equal(t->target->share.slot, LOCAL_NO_SLOT);
}

static void both_write(void **state)
{
    begin(*state, WEFT_OP_WRITE);
    finish(*state, WEFT_OP_WRITE, ((struct test *)*state)->there, 1);
}

static void both_read(void **state)
{
    begin(*state, WEFT_OP_READ);
    finish(*state, WEFT_OP_READ, ((struct test *)*state)->here, 2);
}

static void an_initiator_that_goes_away_leaves_the_rest_to_the_target(void **state)
{
    struct test *t = *state;
    begin(t, WEFT_OP_WRITE);
    polls(t, PAIR_B, MANY);
    assert_true(pair_filled(t->there, LEN, 1));
    finish(t, WEFT_OP_WRITE, t->there, 1);
}

static void the_initiator_copies_all_but_the_first_unit(void **state)
{
    struct test *t = *state;
    begin(t, WEFT_OP_WRITE);
    polls(t, PAIR_A, MANY);
    assert_true(pair_filled(t->there, LEN, 1));
    assert_int_equal(t->initiator->help.left, 1);
    finish(t, WEFT_OP_WRITE, t->there, 1);
}

/* What it took and could not copy, the target copies. */
static void an_initiator_whose_copy_fails(void **state)
{
    struct test *t = *state;
    begin(t, WEFT_OP_WRITE);
    uint64_t word = *t->target->share.word;
    t->initiator->same_process = false;
    t->initiator->pid = INT_MAX; /* of no process */
    polls(t, PAIR_A, 1);
    assert_int_equal(*t->target->share.word, word);
    assert_int_equal(t->initiator->help.slot, LOCAL_NO_SLOT);
    polls(t, PAIR_B, MANY);
    assert_true(pair_filled(t->there, LEN, 1));
    finish(t, WEFT_OP_WRITE, t->there, 1);
}

static void no_help_while_small_operations_are_under_way(void **state)
{
    struct test *t = *state;
    begin(t, WEFT_OP_WRITE);
    post(t, WEFT_OP_READ, 8);
    polls(t, PAIR_A, MANY);
    assert_int_equal(t->initiator->help.left, UNITS - 3);
    assert_int_equal(pair_wait(&t->pair, PAIR_A, WEFT_OP_READ, CTX).comp.status, 0);
    finish(t, WEFT_OP_WRITE, t->there, 1);
}

static void no_help_if_it_is_switched_off(void **state)
{
    struct test *t = *state;
    post(t, WEFT_OP_WRITE, LEN);
    polls(t, PAIR_B, 1);
    polls(t, PAIR_A, MANY);
    assert_int_equal(t->initiator->help.units, 0);
    finish(t, WEFT_OP_WRITE, t->there, 1);
}

/* After this, the initiator copies nothing to where the memory was. */
static void nothing_lands_later(struct test *t)
{
    pair_fill(t->there, LEN, 3);
    polls(t, PAIR_A, MANY);
    assert_true(pair_filled(t->there, LEN, 3));
}

static void memory_that_is_taken_back(void **state)
{
    struct test *t = *state;
    begin(t, WEFT_OP_WRITE);
    PAIR_OK(t->pair.ops->mem_dereg(t->pair.side[PAIR_B].nic, t->mem.mem));
    nothing_lands_later(t);
    assert_int_equal(pair_wait(&t->pair, PAIR_A, WEFT_OP_WRITE, CTX).comp.status, WEFT_EKEY);
    assert_true(pair_filled(t->there, LEN, 3));
}

static void memory_that_is_taken_back_while_the_target_waits(void **state)
{
    struct test *t = *state;
    begin(t, WEFT_OP_WRITE);
    *t->target->share.word |= BUSY; /* as if the initiator were in a unit */
    polls(t, PAIR_B, MANY);
    assert_true(t->target->share.waiting);
    *t->target->share.word &= ~BUSY;
    PAIR_OK(t->pair.ops->mem_dereg(t->pair.side[PAIR_B].nic, t->mem.mem));
    nothing_lands_later(t);
    assert_int_equal(pair_wait(&t->pair, PAIR_A, WEFT_OP_WRITE, CTX).comp.status, WEFT_EKEY);
}

/* The target copies all of it alone. */
static void no_help_with(struct test *t, uint64_t key)
{
    t->initiator->help.units = 0;
    post_key(t, WEFT_OP_WRITE, LEN, key);
    polls(t, PAIR_B, 1);
    assert_int_equal(t->target->share.slot, LOCAL_NO_SLOT);
    polls(t, PAIR_A, MANY);
    assert_int_equal(t->initiator->help.units, 0);
    finish(t, WEFT_OP_WRITE, t->there, 1);
}

/* One that is stopped in the middle of a unit holds up neither the link nor another memory, of which it is offered nothing. */
static void memory_that_is_taken_back_from_an_initiator_in_a_unit(void **state)
{
    struct test *t = *state;
    const struct weft_transport_ops *ops = t->pair.ops;
    struct weft_nic *nic = t->pair.side[PAIR_B].nic;
    begin(t, WEFT_OP_WRITE);
    *t->target->share.word |= BUSY;
    assert_int_equal(ops->mem_dereg(nic, t->mem.mem), WEFT_EAGAIN);
    assert_int_equal(pair_wait(&t->pair, PAIR_A, WEFT_OP_WRITE, CTX).comp.status, WEFT_EKEY);
    struct weft_mem_handle other = pair_reg(&t->pair, PAIR_B, t->there, LEN, PAIR_ALL, KEY + 1);
    no_help_with(t, KEY + 1);
    assert_true(*t->target->share.word & BUSY);
    PAIR_OK(ops->mem_dereg(nic, other.mem));
    assert_int_equal(ops->mem_dereg(nic, t->mem.mem), WEFT_EAGAIN);
    *t->target->share.word &= ~BUSY;
    PAIR_OK(ops->mem_dereg(nic, t->mem.mem));
    t->mem = pair_reg(&t->pair, PAIR_B, t->there, LEN, PAIR_ALL, KEY);
    begin(t, WEFT_OP_WRITE);
    finish(t, WEFT_OP_WRITE, t->there, 1);
    PAIR_OK(ops->mem_dereg(nic, t->mem.mem));
}

static void a_link_that_lets_nobody_in_any_more(void **state)
{
    struct test *t = *state;
    begin(t, WEFT_OP_WRITE);
    local_link_recall(t->pair.side[PAIR_B].link, true);
    assert_true(local_link_recalled(t->pair.side[PAIR_B].link));
    polls(t, PAIR_A, MANY);
    polls(t, PAIR_B, 1);
    assert_int_equal(t->target->share.slot, LOCAL_NO_SLOT);
    assert_int_equal(t->initiator->help.left, UNITS - 3);
    finish(t, WEFT_OP_WRITE, t->there, 1);
    no_help_with(t, KEY);
}

static void a_link_that_is_closed(void **state)
{
    struct test *t = *state;
    struct weft_link_opts opts = {.role = WEFT_ROLE_PASSIVE};
    begin(t, WEFT_OP_WRITE);
    t->pair.ops->link_close(t->pair.side[PAIR_B].link);
    nothing_lands_later(t);
    /* teardown closes a link */
    PAIR_OK(t->pair.ops->link_open(t->pair.side[PAIR_B].nic, &opts, &t->pair.side[PAIR_B].link));
}

static void *leave_soon(void *word)
{
    nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    atomic_fetch_and((_Atomic(uint64_t) *)word, ~BUSY);
    return NULL;
}

static void a_link_that_is_closed_while_the_initiator_is_in_a_unit(void **state)
{
    struct test *t = *state;
    struct weft_link_opts opts = {.role = WEFT_ROLE_PASSIVE};
    _Atomic(uint64_t) *word = t->target->share.word; /* the segment is the initiator's, too */
    pthread_t thread;
    begin(t, WEFT_OP_WRITE);
    *word |= BUSY;
    assert_int_equal(pthread_create(&thread, NULL, leave_soon, word), 0);
    t->pair.ops->link_close(t->pair.side[PAIR_B].link);
    assert_false(*word & BUSY);
    assert_int_equal(pthread_join(thread, NULL), 0);
    PAIR_OK(t->pair.ops->link_open(t->pair.side[PAIR_B].nic, &opts, &t->pair.side[PAIR_B].link));
}

/* The initiator is in the last unit: the target does not say that all is there, and sleeps. */
static void the_target_sleeps_until_the_initiator_is_through(void **state)
{
    struct test *t = *state;
    struct weft_nic *nic = t->pair.side[PAIR_B].nic;
    begin(t, WEFT_OP_WRITE);
    *t->target->share.word |= BUSY;
    polls(t, PAIR_A, 1); /* which gives up */
    polls(t, PAIR_B, MANY);
    struct pollfd look = {.fd = t->pair.ops->wait_fd(nic), .events = POLLIN};
    assert_true(look.fd >= 0);
    assert_int_equal(poll(&look, 1, 0), 0);
    struct pair_comp comp;
    assert_false(pair_take(&t->pair, PAIR_A, WEFT_OP_WRITE, CTX, &comp));
    *t->target->share.word &= ~BUSY;
    t->initiator->help.tell = true;
    polls(t, PAIR_A, 1);
    assert_int_equal(poll(&look, 1, 0), 1);
    finish(t, WEFT_OP_WRITE, t->there, 1);
}

/* A fence waits for the copy, and keeps the initiator neither from it nor from waking the target. */
static void a_fence_behind_a_copy(void **state)
{
    struct test *t = *state;
    struct weft_cmd fence = {.op = WEFT_OP_FENCE, .ctx = CTX + 1};
    begin(t, WEFT_OP_WRITE);
    *t->target->share.word |= BUSY;
    polls(t, PAIR_B, MANY);
    struct pollfd look = {.fd = t->pair.ops->wait_fd(t->pair.side[PAIR_B].nic), .events = POLLIN};
    *t->target->share.word &= ~BUSY;
    pair_post(&t->pair, PAIR_A, &fence);
    polls(t, PAIR_A, 1);
    assert_int_equal(poll(&look, 1, 0), 1);
    finish(t, WEFT_OP_WRITE, t->there, 1);
    assert_int_equal(pair_wait(&t->pair, PAIR_A, WEFT_OP_FENCE, CTX + 1).comp.status, 0);
}

/* An initiator that takes no units since a small operation is under way waits for its answer. */
static void the_initiator_sleeps_while_the_target_does_nothing(void **state)
{
    struct test *t = *state;
    begin(t, WEFT_OP_WRITE);
    post(t, WEFT_OP_READ, 8);
    polls(t, PAIR_A, MANY);
    struct pollfd look = {.fd = t->pair.ops->wait_fd(t->pair.side[PAIR_A].nic), .events = POLLIN};
    assert_true(look.fd >= 0);
    assert_int_equal(poll(&look, 1, 0), 0);
    polls(t, PAIR_B, 1);
    assert_int_equal(poll(&look, 1, 0), 1);
    polls(t, PAIR_A, 3);
    assert_true(t->initiator->help.left < UNITS - 3);
    assert_int_equal(pair_wait(&t->pair, PAIR_A, WEFT_OP_READ, CTX).comp.status, 0);
    finish(t, WEFT_OP_WRITE, t->there, 1);
}

static void nonsense_in_the_word_cuts_the_link(void **state)
{
    struct test *t = *state;
    begin(t, WEFT_OP_WRITE);
    *t->target->share.word += 100; /* more units than there are */
    polls(t, PAIR_B, MANY);
    assert_int_equal(pair_wait(&t->pair, PAIR_B, WEFT_OP_LINK_DOWN, 0).comp.status, WEFT_EPROTO);
}

/* A target that never runs out of units gets no more than there are, and none elsewhere. */
static void a_word_that_never_ends(void **state)
{
    struct test *t = *state;
    begin(t, WEFT_OP_WRITE);
    for (int i = 0; i < MANY; i++) {
        *t->target->share.word &= ~(uint64_t)0xffffffffffffu;
        polls(t, PAIR_A, 1);
    }
    assert_int_equal(t->initiator->help.left, 0);
    assert_int_equal(t->initiator->help.slot, LOCAL_NO_SLOT);
}

/* Memory of an operation that has ended is not touched, though the word still offers units. */
static void units_of_an_operation_that_has_ended(void **state)
{
    struct test *t = *state;
    struct pair_comp comp;
    uint16_t slot = 0;
    begin(t, WEFT_OP_READ);
    memcpy(local_ring_reserve(&t->target->tx, sizeof slot, LOCAL_ACKS, 0, 0), &slot, sizeof slot);
    local_ring_publish(&t->target->tx);
    polls(t, PAIR_A, 1);
    assert_true(pair_take(&t->pair, PAIR_A, WEFT_OP_READ, CTX, &comp));
    pair_fill(t->here, LEN, 3);
    polls(t, PAIR_A, MANY);
    assert_true(pair_filled(t->here, LEN, 3));
}

static void offer(struct test *t, uint16_t slot, uint32_t size)
{
    struct local_offer offer = {.addr = (uintptr_t)t->there};
    memcpy(local_ring_reserve(&t->target->tx, size, LOCAL_OFFER, 0, slot), &offer, size);
    local_ring_publish(&t->target->tx);
    assert_int_equal(pair_wait(&t->pair, PAIR_A, WEFT_OP_LINK_DOWN, 0).comp.status, WEFT_EPROTO);
}

static void an_offer_for_a_slot_that_is_free(void **state)
{
    offer(*state, 3, sizeof(struct local_offer));
}

static void an_offer_for_no_slot(void **state)
{
    offer(*state, LOCAL_DEPTH, sizeof(struct local_offer));
}

static void an_offer_that_is_short(void **state)
{
    post(*state, WEFT_OP_WRITE, LEN);
    offer(*state, 0, sizeof(struct local_offer) - 1);
}

static void an_offer_for_a_small_write(void **state)
{
    post(*state, WEFT_OP_WRITE, 8192);
    offer(*state, 0, sizeof(struct local_offer));
}

/* Its memory is not in one piece: the initiator would not know where. */
static void an_offer_for_a_write_of_pieces(void **state)
{
    struct test *t = *state;
    struct weft_iov_local iov[2] = {{.addr = t->here, .len = LEN / 2}, {.addr = t->here + LEN / 2, .len = LEN - LEN / 2}};
    struct weft_cmd cmd = {.op = WEFT_OP_WRITE,
                           .niov = 2,
                           .remote_addr = (uintptr_t)t->there,
                           .remote_key = KEY,
                           .len = LEN,
                           .ctx = CTX,
                           .iov = iov};
    pair_post(&t->pair, PAIR_A, &cmd);
    offer(t, 0, sizeof(struct local_offer));
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    weft_config_set("WEFT_LOG", "error");
    const struct CMUnitTest tests[] = {
        CASE(both_write),
        CASE(both_read),
        CASE(an_initiator_that_goes_away_leaves_the_rest_to_the_target),
        CASE(the_initiator_copies_all_but_the_first_unit),
        CASE(an_initiator_whose_copy_fails),
        CASE(no_help_while_small_operations_are_under_way),
        cmocka_unit_test_setup_teardown(no_help_if_it_is_switched_off, setup_alone, teardown),
        CASE(memory_that_is_taken_back),
        CASE(memory_that_is_taken_back_while_the_target_waits),
        CASE(memory_that_is_taken_back_from_an_initiator_in_a_unit),
        CASE(a_link_that_lets_nobody_in_any_more),
        CASE(a_link_that_is_closed),
        CASE(a_link_that_is_closed_while_the_initiator_is_in_a_unit),
        CASE(the_target_sleeps_until_the_initiator_is_through),
        CASE(a_fence_behind_a_copy),
        CASE(the_initiator_sleeps_while_the_target_does_nothing),
        CASE(nonsense_in_the_word_cuts_the_link),
        CASE(a_word_that_never_ends),
        CASE(units_of_an_operation_that_has_ended),
        CASE(an_offer_for_a_slot_that_is_free),
        CASE(an_offer_for_no_slot),
        CASE(an_offer_that_is_short),
        CASE(an_offer_for_a_small_write),
        CASE(an_offer_for_a_write_of_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
