/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A peer that speaks core's protocol correctly up to a point, and then lies: counts beyond what was
 * sent, answers to nothing and answers twice, numbers that were used, floods. What a fuzzer would
 * have to be lucky, or patient, to find. Each costs the liar its conn, and no one else anything.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "boot.h"
#include "fuzz.h"
#include "peer.h"

#define ARRAY_LEN WEFT__ARRAY_LEN
#define WINDOW_BYTES 65536   /* WEFT_EAGER_WINDOW */
#define QUEUE_BYTES 131072   /* WEFT_NOTIFY_QUEUE */
#define ANSWERED 128 /* offers that a handshake answers, at least, before it has had enough */
#define PLENTY (1024 * 1024) /* more of anything than one peer may cost */

static weft_endpoint_t endpoint;
static struct weft__endpoint *ep;
static struct weft__conn *liar, *honest;
static uint64_t liar_seq, honest_seq;

/* --- the two peers -------------------------------------------------------------------------- */

static int open_conns(void **state)
{
    static const int lanes[] = {1, 0}; /* the first link has no ADD64 */
    (void)state;
    liar = peer_conn_open(ep, lanes, 1, WINDOW_BYTES);
    honest = peer_conn_open(ep, lanes + 1, 1, WINDOW_BYTES);
    liar_seq = honest_seq = 0;
    return 0;
}

static struct weft__link *link_of(struct weft__conn *conn)
{
    return conn->links[0];
}

/* A message of a peer, with a body of zeros unless there is one. */
static void say(struct weft__conn *conn, struct weft__msg_head head, const void *body, size_t len)
{
    uint8_t bytes[STUB_MAX_SEND] = {0};
    struct weft__writer w = {bytes, bytes + sizeof bytes, false};
    peer_put_head(&w, &head);
    if (body)
        weft__put(&w, body, len);
    assert_non_null(link_of(conn)->tl);
    stub_receive(link_of(conn)->tl, bytes, WEFT__MSG_HEAD + len);
    peer_drive(ep);
}

/* The liar's next one. */
static void lie(struct weft__msg_head head, const void *body, size_t len)
{
    head.seq = liar_seq++;
    say(liar, head, body, len);
}

/* End what this side has posted, as the transport would; the last message's head and id. */
static int end_cmds(struct weft__msg_head *head, uint64_t *id)
{
    int n = 0;
    for (struct stub_cmd *cmd; (cmd = stub_cmd_at(0)); n++) {
        if (cmd->cmd.op == WEFT_OP_SEND)
            peer_get_head(cmd, head, id);
        stub_end(cmd, 0, 0);
        peer_drive(ep);
    }
    return n;
}

static bool is_down(int status)
{
    peer_drive(ep);
    return liar->state == WEFT_CONN_DOWN && liar->status == status;
}

static weft_op_t post(enum weft_xfer_op op, void *memory, size_t len)
{
    struct weft_local local = {.addr = memory, .len = len};
    struct weft_remote remote = peer_remote(64);
    bool add = op == WEFT_XFER_ADD;
    weft_op_t handle;
    FUZZ_OK(weft_post(liar->handle,
                      WEFT_OPTS(weft_xfer, .op = op, .local = add ? NULL : &local,
                                .nlocal = add ? 0 : 1, .remote = add ? &remote : NULL,
                                .nremote = add ? 1 : 0, .value = 1, .result = add ? memory : NULL),
                      &handle));
    peer_drive(ep);
    return handle;
}

static void check_ended(weft_op_t op, int status)
{
    struct weft_op_status got;
    int rc = weft_op_poll(op, &got);
    assert_int_equal(rc, status ? status : 1);
    assert_int_equal(got.status, status);
}

/* The other conn receives as ever. */
static void check_honest(void)
{
    char text[8] = "";
    struct weft_local local = {.addr = text, .len = sizeof text};
    struct weft_op_status status;
    weft_op_t op;
    FUZZ_OK(weft_post(honest->handle,
                      WEFT_OPTS(weft_xfer, .op = WEFT_XFER_RECV, .local = &local, .nlocal = 1),
                      &op));
    say(honest,
        (struct weft__msg_head){
            .type = WEFT__MSG_EAGER, .seq = honest_seq, .len = 5, .index = (uint32_t)honest_seq},
        "hello", 5);
    honest_seq++;
    assert_int_equal(weft_op_poll(op, &status), 1);
    assert_int_equal(status.bytes, 5);
    assert_string_equal(text, "hello");
}

static int close_conns(void **state)
{
    struct weft_notif notif;
    (void)state;
    check_honest();
    for (struct weft__conn *conn = ep->conns; conn; conn = conn->next) {
        pthread_mutex_lock(&ep->lock);
        weft__conn_down(conn, WEFT_EPEER, "the test is over");
        pthread_mutex_unlock(&ep->lock);
    }
    FUZZ_OK(weft_conn_close(liar->handle));
    FUZZ_OK(weft_conn_close(honest->handle));
    while (weft_endpoint_notif(endpoint, 0, &notif) == 0)
        weft_notif_free(&notif);
    assert_true(ep->notif_bytes == 0 && !ep->notifs && !stub_link_at(0));
    return 0;
}

/* --- acknowledgements ----------------------------------------------------------------------- */

static void takes_more_than_was_sent(void **state)
{
    char text[] = "text";
    (void)state;
    weft_op_t op = post(WEFT_XFER_SEND, text, sizeof text);
    lie((struct weft__msg_head){.type = WEFT__MSG_TAKEN, .taken = {2, 0}}, NULL, 0);
    assert_true(is_down(WEFT_EPROTO));
    (void)op; /* its message was taken before the lie: how it ended is the peer's word */
    struct weft_op_status status;
    assert_int_not_equal(weft_op_poll(op, &status), 0);
}

static void takes_back_what_it_took(void **state)
{
    char text[] = "text";
    (void)state;
    weft_op_t op = post(WEFT_XFER_SEND, text, sizeof text);
    lie((struct weft__msg_head){.type = WEFT__MSG_TAKEN, .taken = {1, 0}}, NULL, 0);
    peer_drive(ep);
    assert_int_equal(liar->state, WEFT_CONN_UP);
    lie((struct weft__msg_head){.type = WEFT__MSG_TAKEN}, NULL, 0);
    assert_true(is_down(WEFT_EPROTO));
    struct weft_op_status status;
    assert_int_not_equal(weft_op_poll(op, &status), 0);
}

static void takes_what_is_to_be_fetched(void **state)
{
    static char text[20000];
    (void)state;
    weft_op_t op = post(WEFT_XFER_SEND, text, sizeof text);
    lie((struct weft__msg_head){.type = WEFT__MSG_TAKEN, .taken = {1, 0}}, NULL, 0);
    assert_true(is_down(WEFT_EPROTO));
    check_ended(op, WEFT_EPROTO);
}

/* --- answers -------------------------------------------------------------------------------- */

static void answers_what_was_not_asked(void **state)
{
    static const uint8_t status[20] = {0};
    (void)state;
    static const struct {
        struct weft__msg_head head;
        size_t len;
    } answers[] = {{{.type = WEFT__MSG_RESULT, .index = 0}, 4},
                   {{.type = WEFT__MSG_RESULT, .index = 7, .stream = 1}, 4},
                   {{.type = WEFT__MSG_ADDED}, 20},
                   {{.type = WEFT__MSG_LINK_GONE, .index = 0}, 0},
                   {{.type = WEFT__MSG_LINK_GONE, .index = 16}, 0},
                   {{.type = WEFT__MSG_LINK_LOST, .index = UINT32_MAX}, 0}};
    for (size_t i = 0; i < ARRAY_LEN(answers); i++) {
        lie(answers[i].head, status, answers[i].len);
        assert_true(is_down(WEFT_EPROTO));
        FUZZ_OK(weft_conn_close(liar->handle));
        liar = peer_conn_open(ep, (int[]){0}, 1, WINDOW_BYTES);
        liar_seq = 0;
        check_honest();
    }
}

static void answers_a_message_twice(void **state)
{
    static char text[20000];
    static const uint8_t good[4] = {0};
    (void)state;
    weft_op_t op = post(WEFT_XFER_SEND, text, sizeof text);
    lie((struct weft__msg_head){.type = WEFT__MSG_RESULT}, good, sizeof good);
    peer_drive(ep);
    assert_int_equal(liar->state, WEFT_CONN_UP);
    lie((struct weft__msg_head){.type = WEFT__MSG_RESULT}, good, sizeof good);
    assert_true(is_down(WEFT_EPROTO));
    struct weft_op_status status;
    assert_int_not_equal(weft_op_poll(op, &status), 0);
}

static void answers_an_addition_twice(void **state)
{
    uint64_t result = 0, id;
    uint8_t answer[20] = {0};
    struct weft__msg_head head;
    (void)state;
    weft_op_t op = post(WEFT_XFER_ADD, &result, sizeof result);
    assert_int_equal(end_cmds(&head, &id), 1);
    assert_int_equal(head.type, WEFT__MSG_ADD);
    struct weft__writer w = {answer, answer + sizeof answer, false};
    weft__put_u64(&w, id);
    weft__put_u32(&w, 0);
    weft__put_u64(&w, 41);
    lie((struct weft__msg_head){.type = WEFT__MSG_ADDED}, answer, sizeof answer);
    check_ended(op, 0);
    assert_int_equal(result, 41);
    answer[12] = 99;
    lie((struct weft__msg_head){.type = WEFT__MSG_ADDED}, answer, sizeof answer);
    assert_true(is_down(WEFT_EPROTO));
    assert_int_equal(result, 41);
}

/* --- numbers -------------------------------------------------------------------------------- */

static struct weft__msg_head notif_head(uint32_t index, uint64_t len)
{
    return (struct weft__msg_head){
        .type = WEFT__MSG_EAGER, .stream = WEFT__STREAM_NOTIFY, .index = index, .len = len};
}

static void says_a_message_twice(void **state)
{
    struct weft_notif notif;
    (void)state;
    lie(notif_head(0, 4), "once", 4);
    liar_seq = 0;
    lie(notif_head(1, 5), "twice", 5);
    FUZZ_OK(weft_endpoint_notif(endpoint, 0, &notif));
    assert_memory_equal(notif.data, "once", 4);
    weft_notif_free(&notif);
    assert_int_equal(weft_endpoint_notif(endpoint, 0, &notif), WEFT_ETIMEOUT);
    assert_int_equal(liar->state, WEFT_CONN_UP);
}

static void skips_and_repeats_an_index(void **state)
{
    (void)state;
    lie(notif_head(0, 0), NULL, 0);
    lie(notif_head(0, 0), NULL, 0);
    assert_true(is_down(WEFT_EPROTO));
}

static void speaks_far_ahead_of_its_turn(void **state)
{
    (void)state;
    liar_seq = 2 * WEFT__WINDOW;
    lie(notif_head(0, 0), NULL, 0);
    assert_true(is_down(WEFT_EPROTO));
}

/* Messages ahead of their turn are kept, but no more than the peer's window of them. */
static void fills_memory_ahead_of_its_turn(void **state)
{
    enum { EACH = 8000 };
    int said = 0;
    (void)state;
    for (liar_seq = 1; liar->state == WEFT_CONN_UP && said < 2 * WEFT__WINDOW - 1; said++)
        lie(notif_head(0, EACH), NULL, EACH);
    assert_true(is_down(WEFT_EPROTO));
    assert_true(said <= WINDOW_BYTES / EACH + 1);
}

static void speaks_long_where_it_should_be_brief(void **state)
{
    (void)state;
    liar_seq = 1;
    lie((struct weft__msg_head){.type = WEFT__MSG_TAKEN}, NULL, WEFT__MSG_MAX);
    assert_true(is_down(WEFT_EPROTO));
}

/* --- floods: the peer takes nothing that this side sends ------------------------------------ */

static void flood_with(struct weft__msg_head head, const void *body, size_t len)
{
    int said = 0;
    for (; said < PLENTY && liar->state == WEFT_CONN_UP; said++) {
        head.index = head.type == WEFT__MSG_LARGE ? (uint32_t)said : head.index;
        lie(head, body, len);
    }
    assert_true(said < PLENTY);
    assert_true(is_down(WEFT_EPROTO));
}

static void asks_for_additions_without_end(void **state)
{
    static const uint8_t add[32] = {1}; /* an unknown key: the answer says so */
    (void)state;
    flood_with((struct weft__msg_head){.type = WEFT__MSG_ADD}, add, sizeof add);
}

/* Longer than the queue: refused, each with an answer. */
static void announces_what_is_too_long_without_end(void **state)
{
    struct weft_remote remote = peer_remote(QUEUE_BYTES + 1);
    (void)state;
    flood_with((struct weft__msg_head){.type = WEFT__MSG_LARGE,
                                       .stream = WEFT__STREAM_NOTIFY,
                                       .len = QUEUE_BYTES + 1},
               &remote, sizeof remote);
}

/* Empty ones take memory, too. The liar ignores that they are not taken any more. */
static void notifies_with_nothing_without_end(void **state)
{
    uint32_t said = 0;
    (void)state;
    for (; said < PLENTY && liar->state == WEFT_CONN_UP; said++)
        lie(notif_head(said, 0), NULL, 0);
    assert_true(is_down(WEFT_EPROTO));
    assert_true(said < QUEUE_BYTES / sizeof(struct weft__arrival) + 2 * WEFT__WINDOW);
}

/* --- messages that are well formed, and make no sense ----------------------------------------- */

static void another_liar(const int *lanes, int n)
{
    FUZZ_OK(weft_conn_close(liar->handle));
    liar = peer_conn_open(ep, lanes, n, WINDOW_BYTES);
    liar_seq = 0;
}

static void announces(const struct weft_remote *remotes, size_t n, uint64_t len)
{
    lie((struct weft__msg_head){.type = WEFT__MSG_LARGE, .len = len}, remotes, n * sizeof *remotes);
}

/* Its memory is another's, of another length, of none, or of more than there is. */
static void announces_memory_that_makes_no_sense(void **state)
{
    (void)state;
    static const int lane[] = {1};
    struct weft_remote one = peer_remote(9000), none = peer_remote(0), two[] = {peer_remote(UINT64_MAX), peer_remote(101)};
    struct weft_remote others = one;
    others.bytes[4] ^= 1;               /* the owner */
    memset(two[0].bytes + 8, 0, 8);     /* the address: the range itself is sound */
    const struct {
        const struct weft_remote *remotes;
        size_t n;
        uint64_t len;
    } wrongs[] = {{&others, 1, 9000}, {&one, 1, 100}, {&none, 1, 0}, {two, 2, 100}};
    for (size_t i = 0; i < ARRAY_LEN(wrongs); i++) {
        announces(wrongs[i].remotes, wrongs[i].n, wrongs[i].len);
        assert_true(is_down(WEFT_EPROTO));
        another_liar(lane, 1);
    }
}

/* A length that its bytes do not have, flags that there are not, a body where none belongs. */
static void says_other_than_it_sends(void **state)
{
    (void)state;
    static const int lane[] = {1};
    const struct weft__msg_head heads[] = {notif_head(0, 60000),
                                           {.type = WEFT__MSG_TAKEN},
                                           {.type = WEFT__MSG_TAKEN, .flags = 0x80}};
    for (size_t i = 0; i < ARRAY_LEN(heads); i++) {
        lie(heads[i], "x", i < 2);
        assert_true(is_down(WEFT_EPROTO));
        another_liar(lane, 1);
    }
}

/* More bytes than the window that it was given, none of which is taken. */
static void sends_more_than_its_window(void **state)
{
    (void)state;
    uint32_t n = 0;
    for (; n < 20 && liar->state == WEFT_CONN_UP; n++)
        lie((struct weft__msg_head){.type = WEFT__MSG_EAGER, .index = n, .len = 8000}, NULL, 8000);
    assert_true(is_down(WEFT_EPROTO));
    assert_true(n <= WINDOW_BYTES / 8000 + 1);
}

/* How an operation ended is 0 or a code below it. */
static void says_that_it_ended_better_than_well(void **state)
{
    (void)state;
    static char text[20000];
    static const uint8_t five[4] = {5};
    static const int lane[] = {1};
    uint64_t result = 0, id;
    uint8_t answer[20];
    struct weft__msg_head head;
    struct weft__writer w = {answer, answer + sizeof answer, false};
    weft_op_t op = post(WEFT_XFER_SEND, text, sizeof text);
    lie((struct weft__msg_head){.type = WEFT__MSG_RESULT}, five, sizeof five);
    assert_true(is_down(WEFT_EPROTO));
    check_ended(op, WEFT_EPROTO);
    another_liar(lane, 1);
    op = post(WEFT_XFER_ADD, &result, sizeof result);
    end_cmds(&head, &id);
    weft__put_u64(&w, id);
    weft__put_u32(&w, 5);
    weft__put_u64(&w, 41);
    lie((struct weft__msg_head){.type = WEFT__MSG_ADDED}, answer, sizeof answer);
    assert_true(is_down(WEFT_EPROTO));
    check_ended(op, WEFT_EPROTO);
}

/* The only link is said to be lost by a message that came early; when its turn comes the conn goes, and what is behind it waits for nothing. */
static void loses_its_link_ahead_of_its_turn(void **state)
{
    (void)state;
    liar_seq = 1;
    lie((struct weft__msg_head){.type = WEFT__MSG_LINK_LOST}, NULL, 0);
    lie(notif_head(1, 4), "more", 4);
    liar_seq = 0;
    lie(notif_head(0, 4), "once", 4);
    peer_drive(ep);
    assert_int_equal(liar->state, WEFT_CONN_DOWN);
}

/* A link that goes down for what the peer has said takes that along as the reason. */
static void says_nonsense_to_the_transport(void **state)
{
    (void)state;
    stub_down(link_of(liar)->tl, WEFT_EPROTO);
    assert_true(is_down(WEFT_EPROTO));
}

/* --- honest ones, in moments that are rare ----------------------------------------------------- */

static void answer_addition(uint64_t id)
{
    uint8_t answer[20];
    struct weft__writer w = {answer, answer + sizeof answer, false};
    weft__put_u64(&w, id);
    weft__put_u32(&w, 0);
    weft__put_u64(&w, 41);
    lie((struct weft__msg_head){.type = WEFT__MSG_ADDED}, answer, sizeof answer);
}

/* Additions by message: no more than a window of them, and each answer makes room for another. */
static void additions_keep_to_the_window(void **state)
{
    (void)state;
    enum { ALL = WEFT__WINDOW + 10 };
    static weft_op_t ops[ALL];
    static uint64_t ids[ALL];
    struct weft__msg_head head;
    uint64_t result = 0;
    int n = 0;
    for (int i = 0; i < ALL; i++) {
        ops[i] = post(WEFT_XFER_ADD, &result, sizeof result);
        while (end_cmds(&head, &ids[n]) == 1)
            n++;
    }
    assert_int_equal(n, WEFT__WINDOW);
    for (int i = 0; i < ALL; i++) {
        answer_addition(ids[i]);
        check_ended(ops[i], 0);
        while (n < ALL && end_cmds(&head, &ids[n]) == 1)
            n++;
    }
    assert_int_equal(n, ALL);
}

static weft_op_t write_to_liar(void *memory, size_t len)
{
    struct weft_local local = {.addr = memory, .len = len};
    struct weft_remote remote = peer_remote(len);
    weft_op_t handle;
    FUZZ_OK(weft_post(liar->handle,
                      WEFT_OPTS(weft_xfer, .op = WEFT_XFER_WRITE, .local = &local, .nlocal = 1, .remote = &remote, .nremote = 1),
                      &handle));
    peer_drive(ep);
    return handle;
}

/* A write by a link that dies, canceled before that or after: it does not wait for the peer's word on the link. */
static void what_is_canceled_ends_with_its_link(void **state)
{
    (void)state;
    static const int lanes[] = {0, 1};
    static char text[100];
    struct weft_op_status status;
    for (int before = 0; before < 2; before++) {
        another_liar(lanes, 2);
        weft_op_t op = write_to_liar(text, sizeof text);
        struct stub_cmd *cmd = stub_cmd_at(0);
        assert_true(cmd && cmd->cmd.op == WEFT_OP_WRITE);
        struct weft_link *link = cmd->link;
        if (before)
            FUZZ_OK(weft_op_cancel(op));
        assert_int_equal(weft_op_poll(op, &status), 0);
        stub_down(link, WEFT_EPEER);
        peer_drive(ep);
        assert_int_equal(liar->state, WEFT_CONN_UP);
        if (!before)
            FUZZ_OK(weft_op_cancel(op));
        check_ended(op, WEFT_ECANCELED);
    }
}

static struct stub_cmd *first_read(void)
{
    struct stub_cmd *cmd = NULL;
    for (int i = 0; (cmd = stub_cmd_at(i)) && cmd->cmd.op != WEFT_OP_READ; i++)
        ;
    assert_non_null(cmd);
    return cmd;
}

/* Its message is being fetched: it is too late to cancel, and what was fetched has arrived. */
static void a_receive_that_is_canceled_too_late(void **state)
{
    (void)state;
    static char into[9000];
    struct weft_remote remote = peer_remote(sizeof into);
    weft_op_t op = post(WEFT_XFER_RECV, into, sizeof into);
    announces(&remote, 1, sizeof into);
    struct stub_cmd *read = first_read();
    FUZZ_OK(weft_op_cancel(op));
    stub_end(read, 0, 0);
    peer_drive(ep);
    check_ended(op, 0);
}

/* The memory of a long message is gone, since its sender has canceled it: he is answered all the same, or it would keep its place for ever. */
static void what_cannot_be_fetched_is_answered(void **state)
{
    (void)state;
    static char into[9000];
    struct weft_remote remote = peer_remote(sizeof into);
    struct weft__msg_head head = {0};
    uint64_t id;
    weft_op_t op = post(WEFT_XFER_RECV, into, sizeof into);
    announces(&remote, 1, sizeof into);
    stub_end(first_read(), WEFT_EKEY, 0);
    peer_drive(ep);
    check_ended(op, WEFT_ECANCELED);
    end_cmds(&head, &id);
    assert_int_equal(head.type, WEFT__MSG_RESULT);
    head = (struct weft__msg_head){.type = WEFT__MSG_LARGE, .stream = WEFT__STREAM_NOTIFY, .len = sizeof into};
    lie(head, &remote, sizeof remote);
    stub_end(first_read(), WEFT_EKEY, 0);
    peer_drive(ep);
    head = (struct weft__msg_head){0};
    end_cmds(&head, &id);
    assert_int_equal(head.type, WEFT__MSG_RESULT);
}

/* A blocking receive whose message does not come to an end cuts the conn for its memory, and says that its time was over. */
static void a_receive_that_takes_its_memory_back(void **state)
{
    (void)state;
    static char into[9000];
    struct weft_remote remote = peer_remote(sizeof into);
    announces(&remote, 1, sizeof into);
    assert_int_equal(weft_recv(liar->handle, into, sizeof into, 50), WEFT_ETIMEOUT);
    assert_int_equal(liar->state, WEFT_CONN_DOWN);
}

/* A list of two pieces fails as a whole: the memory of both is free. */
static void a_list_that_fails_leaves_its_memory(void **state)
{
    (void)state;
    static char text[200];
    weft_mem_t mem;
    weft_op_t op;
    FUZZ_OK(weft_mem_reg(endpoint, text, sizeof text, NULL, &mem));
    struct weft_local local[] = {{.addr = text, .len = 100, .mem = mem}, {.addr = text + 100, .len = 100, .mem = mem}};
    struct weft_remote remote[] = {peer_remote(100), peer_remote(100)};
    FUZZ_OK(weft_post(liar->handle,
                      WEFT_OPTS(weft_xfer, .op = WEFT_XFER_WRITE, .local = local, .nlocal = 2, .remote = remote, .nremote = 2),
                      &op));
    peer_drive(ep);
    for (struct stub_cmd *cmd; (cmd = stub_cmd_at(0));) {
        stub_end(cmd, WEFT_EBOUNDS, 0);
        peer_drive(ep);
    }
    check_ended(op, WEFT_EBOUNDS);
    FUZZ_OK(weft_mem_dereg(mem));
}

/* --- handshakes ------------------------------------------------------------------------------- */

static void asks_for_transports_without_end(void **state)
{
    uint8_t hello[256] = {0}, offer[64];
    struct weft__writer w = {hello, hello + sizeof hello, false};
    (void)state;
    int fd = fuzz_net_dial(0), sent = 0;
    weft__put_u32(&w, 0x54464557u);
    weft__put_u16(&w, WEFT__BOOT_VERSION);
    weft__put_u16(&w, 1);
    weft__put_u32(&w, 53); /* ids, namespace, pid, window, no transports */
    hello[12 + 40] = 1;    /* the pid */
    hello[12 + 46] = 1;    /* 64 KiB of window */
    assert_int_equal(send(fd, hello, 12 + 53, MSG_NOSIGNAL), 12 + 53);
    w = (struct weft__writer){offer, offer + sizeof offer, false};
    weft__put_u32(&w, 0x54464557u);
    weft__put_u16(&w, WEFT__BOOT_VERSION);
    weft__put_u16(&w, 2);
    weft__put_u32(&w, 10);
    weft__put(&w, "\1\1", 2);
    weft__put_text(&w, "pigeon");
    for (; sent < PLENTY && send(fd, offer, 22, MSG_NOSIGNAL | MSG_DONTWAIT) == 22; sent++)
        if (sent % 64 == 0)
            weft__boot_progress(ep);
    for (int i = 0; i < 4 && ep->nboots; i++)
        weft__boot_progress(ep);
    assert_true(sent > ANSWERED && sent < PLENTY); /* or the first frame was hung up on */
    assert_int_equal(ep->nboots, 0);
    close(fd);
}

#define LIE(test) cmocka_unit_test_setup_teardown(test, open_conns, close_conns)

int main(void)
{
    weft_config_set("WEFT_EAGER_WINDOW", "64K");
    weft_config_set("WEFT_NOTIFY_QUEUE", "128K");
    ep = peer_endpoint_open(&endpoint);
    const struct CMUnitTest tests[] = {
        LIE(takes_more_than_was_sent),
        LIE(takes_back_what_it_took),
        LIE(takes_what_is_to_be_fetched),
        LIE(answers_what_was_not_asked),
        LIE(answers_a_message_twice),
        LIE(answers_an_addition_twice),
        LIE(says_a_message_twice),
        LIE(skips_and_repeats_an_index),
        LIE(speaks_far_ahead_of_its_turn),
        LIE(fills_memory_ahead_of_its_turn),
        LIE(speaks_long_where_it_should_be_brief),
        LIE(asks_for_additions_without_end),
        LIE(announces_what_is_too_long_without_end),
        LIE(notifies_with_nothing_without_end),
        LIE(announces_memory_that_makes_no_sense),
        LIE(says_other_than_it_sends),
        LIE(sends_more_than_its_window),
        LIE(says_that_it_ended_better_than_well),
        LIE(loses_its_link_ahead_of_its_turn),
        LIE(says_nonsense_to_the_transport),
        LIE(additions_keep_to_the_window),
        LIE(what_is_canceled_ends_with_its_link),
        LIE(a_receive_that_is_canceled_too_late),
        LIE(what_cannot_be_fetched_is_answered),
        LIE(a_receive_that_takes_its_memory_back),
        LIE(a_list_that_fails_leaves_its_memory),
        LIE(asks_for_transports_without_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
