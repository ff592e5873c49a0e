/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strangers at the local transport's socket and in its shared memory. The test plays the peer by
 * hand: it has the transport's own structs, and none of its manners.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "pair.h"
#include "transports/local/local.h"

extern const struct weft_transport weft_transport_local;

#define RING (256 * 1024)
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* The victim's nic with a passive link, and our end of a connection to it. */
struct stranger {
    const struct weft_transport_ops *ops;
    struct weft_nic *nic;
    struct weft_link *link;
    struct local_address address, ours;
    struct local_packet hello;
    int fd;
    struct local_link end; /* our rings */
    uint16_t slot;
    bool indirect; /* says that it cannot copy */
};

static int setup_with(void **state, const uint8_t *key)
{
    struct stranger *s = calloc(1, sizeof *s);
    struct weft_nic_opts opts = {.device = "local"};
    struct weft_link_opts link_opts = {.role = WEFT_ROLE_PASSIVE, .key = key};
    s->ops = weft_transport_local.ops;
    PAIR_OK(s->ops->open(&opts, &s->nic));
    PAIR_OK(s->ops->link_open(s->nic, &link_opts, &s->link));
    assert_int_equal(s->ops->link_address(s->link, &s->address, WEFT_LINK_ADDRESS_MAX),
                     sizeof s->address);
    s->ours = s->address;
    memset(&s->ours.token, 0x55, sizeof s->ours.token);
    s->hello = (struct local_packet){.version = LOCAL_VERSION,
                                     .type = LOCAL_PACKET_HELLO,
                                     .to = s->address.token,
                                     .from = s->ours.token,
                                     .ring_size = RING};
    PAIR_OK(local_dial(&s->address.socket, &s->fd));
    *state = s;
    return 0;
}

static int setup(void **state)
{
    return setup_with(state, NULL);
}

static uint8_t key[WEFT_MAC] = "who has this may join the link";

static int setup_keyed(void **state)
{
    return setup_with(state, key);
}

static int teardown(void **state)
{
    struct stranger *s = *state;
    s->ops->link_close(s->link);
    s->ops->close(s->nic);
    if (s->end.segment)
        local_segment_put(s->end.segment);
    close(s->fd);
    free(s);
    return 0;
}

/* Poll and connect until link_connect says something. */
static int connect_result(struct stranger *s)
{
    struct weft_comp comps[4];
    uint64_t deadline = weft_now() + 200000000;
    int rc = WEFT_EAGAIN;
    while (rc == WEFT_EAGAIN && weft_now() < deadline) {
        assert_int_equal(s->ops->poll(s->nic, comps, 4), 0);
        rc = s->ops->link_connect(s->link, &s->ours, sizeof s->ours);
    }
    return rc;
}

/* Is our connection closed by the other side? */
static bool thrown_out(struct stranger *s)
{
    char bytes[256];
    return recv(s->fd, bytes, sizeof bytes, MSG_DONTWAIT) == 0;
}

/* Say hello with a descriptor, which is closed then. */
static void say_hello(struct stranger *s, int fd)
{
    PAIR_OK(local_packet_send(s->fd, &s->hello, fd));
    if (fd >= 0)
        close(fd);
}

static int memory(uint64_t bytes, int seals)
{
    int fd = memfd_create("test", MFD_ALLOW_SEALING | MFD_CLOEXEC);
    assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static const uint64_t right_size = LOCAL_SEGMENT_HEAD + 2 * RING;

/* --- hellos --------------------------------------------------------------------------------- */

static void wrong_token(void **state)
{
    struct stranger *s = *state;
    s->hello.to.bytes[3] ^= 1;
    say_hello(s, memory(right_size, SEALS));
    assert_int_equal(connect_result(s), WEFT_EAGAIN);
    assert_true(thrown_out(s));
}

static void wrong_version(void **state)
{
    struct stranger *s = *state;
    s->hello.version++;
    say_hello(s, memory(right_size, SEALS));
    assert_int_equal(connect_result(s), WEFT_EAGAIN);
    assert_true(thrown_out(s));
}

static void short_packet(void **state)
{
    struct stranger *s = *state;
    assert_int_equal(send(s->fd, &s->hello, sizeof s->hello - 1, 0), sizeof s->hello - 1);
    assert_int_equal(connect_result(s), WEFT_EAGAIN);
    assert_true(thrown_out(s));
}

static void long_packet(void **state)
{
    struct stranger *s = *state;
    char bytes[sizeof s->hello + 1] = "";
    memcpy(bytes, &s->hello, sizeof s->hello);
    assert_int_equal(send(s->fd, bytes, sizeof bytes, 0), sizeof bytes);
    assert_int_equal(connect_result(s), WEFT_EAGAIN);
    assert_true(thrown_out(s));
}

static void no_memory(void **state)
{
    say_hello(*state, -1);
    assert_int_equal(connect_result(*state), WEFT_EPROTO);
}

static void memory_not_sealed(void **state)
{
    say_hello(*state, memory(right_size, F_SEAL_GROW));
    assert_int_equal(connect_result(*state), WEFT_EPROTO);
}

/* Each of the seals is wanted. */
static void memory_half_sealed(void **state)
{
    (void)state;
    static const int seals[] = {F_SEAL_SHRINK | F_SEAL_GROW, F_SEAL_SHRINK | F_SEAL_SEAL, F_SEAL_GROW | F_SEAL_SEAL};
    for (size_t i = 0; i < sizeof seals / sizeof *seals; i++) {
        void *fresh;
        setup(&fresh);
        say_hello(fresh, memory(right_size, seals[i]));
        assert_int_equal(connect_result(fresh), WEFT_EPROTO);
        teardown(&fresh);
    }
}

/* Smaller than the victim wants it, though it is one and all of it is there. */
static void a_small_ring(void **state)
{
    struct stranger *s = *state;
    s->hello.ring_size = LOCAL_RING_MIN;
    say_hello(s, memory(LOCAL_SEGMENT_HEAD + 2 * LOCAL_RING_MIN, SEALS));
    assert_int_equal(connect_result(s), WEFT_EPROTO);
}

static void memory_too_short(void **state)
{
    say_hello(*state, memory(right_size - 4096, SEALS));
    assert_int_equal(connect_result(*state), WEFT_EPROTO);
}

static void not_memory(void **state)
{
    say_hello(*state, open("/dev/zero", O_RDWR | O_CLOEXEC));
    assert_int_equal(connect_result(*state), WEFT_EPROTO);
}

static void odd_ring_size(void **state)
{
    struct stranger *s = *state;
    s->hello.ring_size = RING + 4096;
    say_hello(s, memory(LOCAL_SEGMENT_HEAD + 2 * (RING + 4096), SEALS));
    assert_int_equal(connect_result(s), WEFT_EPROTO);
}

static void huge_ring_size(void **state)
{
    struct stranger *s = *state;
    s->hello.ring_size = 1ull << 63;
    say_hello(s, memory(LOCAL_SEGMENT_HEAD, SEALS));
    assert_int_equal(connect_result(s), WEFT_EPROTO);
}

static void wrong_confirm(void **state)
{
    struct stranger *s = *state;
    say_hello(s, memory(right_size, SEALS));
    say_hello(s, -1);
    assert_int_equal(connect_result(s), WEFT_EPROTO);
}

/* The second packet is of another link at either end, or of another version. */
static void a_confirm_of_another_link(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        void *fresh;
        setup(&fresh);
        struct stranger *s = fresh;
        say_hello(s, memory(right_size, SEALS));
        s->hello.type = LOCAL_PACKET_CONFIRM;
        s->hello.from.bytes[0] ^= i == 0;
        s->hello.to.bytes[0] ^= i == 1;
        s->hello.version += i == 2;
        say_hello(s, -1);
        assert_int_equal(connect_result(s), WEFT_EPROTO);
        teardown(&fresh);
    }
}

static void another_token_than_the_address(void **state)
{
    struct stranger *s = *state;
    say_hello(s, memory(right_size, SEALS));
    s->hello.type = LOCAL_PACKET_CONFIRM;
    say_hello(s, -1);
    s->ours.token.bytes[0] ^= 1;
    assert_int_equal(connect_result(s), WEFT_EPROTO);
}

/* Its link_connect goes on to say what a target lacks, also when the peer is gone. */
static void gone_from_who_has_no_descriptor(void **state)
{
    struct stranger *s = *state;
    struct rlimit limit, none;
    assert_int_equal(connect_result(s), WEFT_EAGAIN); /* we are accepted */
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = limit;
    none.rlim_cur = 0;
    say_hello(s, memory(right_size, SEALS));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    int rc = connect_result(s);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_int_equal(rc, -EMFILE);
    close(s->fd);
    s->fd = -1;
    struct weft_comp comps[4];
    uint64_t until = weft_now() + 5000000; /* sockets are looked at every 20 us */
    while (weft_now() < until)
        assert_int_equal(s->ops->poll(s->nic, comps, 4), 0);
    assert_int_equal(connect_result(s), -EMFILE);
}

/* --- keys ------------------------------------------------------------------------------------ */

static void prove(struct local_packet *packet, const uint8_t *with)
{
    PAIR_OK(weft_mac(with, packet, offsetof(struct local_packet, proof), packet->proof));
}

static void a_proof_for_a_link_without_a_key(void **state)
{
    struct stranger *s = *state;
    prove(&s->hello, key);
    say_hello(s, memory(right_size, SEALS));
    assert_int_equal(connect_result(s), WEFT_EAGAIN);
    assert_true(thrown_out(s));
}

static void hellos_without_the_key(void **state)
{
    struct stranger *s = *state;
    uint8_t other[WEFT_MAC] = "another one";
    for (int wrong = 0; wrong < 4; wrong++) {
        struct local_packet hello = s->hello;
        if (wrong)
            prove(&s->hello, wrong == 1 ? other : key);
        s->hello.from.bytes[0] ^= wrong == 2;
        s->hello.proof[WEFT_MAC - 1] ^= wrong == 3;
        say_hello(s, memory(right_size, SEALS));
        assert_int_equal(connect_result(s), WEFT_EAGAIN);
        assert_true(thrown_out(s));
        close(s->fd);
        PAIR_OK(local_dial(&s->address.socket, &s->fd));
        s->hello = hello;
    }
    prove(&s->hello, key); /* the link has not noticed */
    say_hello(s, memory(right_size, SEALS));
    struct local_packet answer;
    int passed, rc = WEFT_EAGAIN;
    while (rc == WEFT_EAGAIN) {
        assert_int_equal(connect_result(s), WEFT_EAGAIN);
        rc = local_packet_recv(s->fd, &answer, &passed);
    }
    assert_int_equal(rc, 0);
    PAIR_OK(weft_mac_check(key, &answer, offsetof(struct local_packet, proof), answer.proof));
    int again;
    PAIR_OK(local_dial(&s->address.socket, &again)); /* the same bytes once more */
    PAIR_OK(local_packet_send(again, &s->hello, -1));
    assert_int_equal(connect_result(s), WEFT_EAGAIN);
    char byte;
    assert_int_equal(recv(again, &byte, 1, MSG_DONTWAIT), 0);
    close(again);
    s->hello.type = LOCAL_PACKET_CONFIRM;
    prove(&s->hello, key);
    say_hello(s, -1);
    assert_int_equal(connect_result(s), 0);
}

static void a_confirm_without_the_key(void **state)
{
    struct stranger *s = *state;
    prove(&s->hello, key);
    say_hello(s, memory(right_size, SEALS));
    s->hello.type = LOCAL_PACKET_CONFIRM; /* with the hello's proof */
    say_hello(s, -1);
    assert_int_equal(connect_result(s), WEFT_EAUTH);
}

/* Who has taken the passive end's place answers: nothing, or the hello turned round. */
static void an_answer_without_the_key(void **state)
{
    struct stranger *s = *state;
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "\0weft-local-"
                                                                  "77777777777777777777777777777777"};
    socklen_t len = offsetof(struct sockaddr_un, sun_path) + 1 + 11 + 32;
    for (int turned = 0; turned < 2; turned++) {
        struct weft_link_opts opts = {.role = WEFT_ROLE_ACTIVE, .key = key};
        struct local_packet packet;
        struct weft_comp comps[4];
        struct weft_link *link;
        int passed, rc, at = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        assert_int_equal(bind(at, (struct sockaddr *)&name, len), 0);
        assert_int_equal(listen(at, 1), 0);
        memset(&s->ours.socket, 0x77, sizeof s->ours.socket);
        PAIR_OK(s->ops->link_open(s->nic, &opts, &link));
        assert_int_equal(s->ops->link_connect(link, &s->ours, sizeof s->ours), WEFT_EAGAIN);
        int fd = accept(at, NULL, NULL);
        PAIR_OK(local_packet_recv(fd, &packet, &passed));
        close(passed);
        struct local_id from = packet.from;
        packet.type = LOCAL_PACKET_ANSWER;
        packet.from = packet.to;
        packet.to = from;
        if (!turned)
            memset(packet.proof, 0, sizeof packet.proof);
        PAIR_OK(local_packet_send(fd, &packet, -1));
        while ((rc = s->ops->link_connect(link, &s->ours, sizeof s->ours)) == WEFT_EAGAIN) {
            PAIR_OK(s->ops->wait_fd(s->nic));
            s->ops->poll(s->nic, comps, 4);
        }
        assert_int_equal(rc, WEFT_EAUTH);
        s->ops->link_close(link);
        close(fd);
        close(at);
    }
}

/* A crowd that says nothing does not keep the right one out. */
static void silent_crowd(void **state)
{
    enum { CROWD = 3 * LOCAL_GUESTS };
    struct stranger *s = *state;
    struct weft_comp comps[4];
    int fds[CROWD];
    for (int i = 0; i < CROWD; i++) {
        PAIR_OK(local_dial(&s->address.socket, &fds[i]));
        PAIR_OK(s->ops->wait_fd(s->nic));
        s->ops->poll(s->nic, comps, 4);
    }
    close(s->fd);
    PAIR_OK(local_dial(&s->address.socket, &s->fd));
    say_hello(s, memory(right_size, SEALS));
    s->hello.type = LOCAL_PACKET_CONFIRM;
    say_hello(s, -1);
    assert_int_equal(connect_result(s), 0);
    for (int i = 0; i < CROWD; i++)
        close(fds[i]);
}

/* --- addresses ------------------------------------------------------------------------------ */

static void wrong_addresses(void **state)
{
    struct stranger *s = *state;
    struct local_address wrong = s->ours;
    assert_int_equal(s->ops->link_connect(s->link, &wrong, 0), WEFT_EPROTO);
    assert_int_equal(s->ops->link_connect(s->link, &wrong, sizeof wrong - 1), WEFT_EPROTO);
    wrong.version++;
    assert_int_equal(s->ops->link_connect(s->link, &wrong, 4), WEFT_EVERSION);
    wrong = s->ours;
    wrong.boot.bytes[0] ^= 1;
    assert_int_equal(s->ops->link_connect(s->link, &wrong, sizeof wrong), WEFT_ENOPATH);
    wrong = s->ours;
    wrong.ring_size = 12345;
    assert_int_equal(s->ops->link_connect(s->link, &wrong, sizeof wrong), WEFT_EPROTO);
}

static void nobody_listens(void **state)
{
    struct stranger *s = *state;
    struct local_address address = s->ours;
    struct weft_link_opts opts = {.role = WEFT_ROLE_ACTIVE};
    struct weft_link *link;
    address.socket.bytes[0] ^= 1;
    PAIR_OK(s->ops->link_open(s->nic, &opts, &link));
    assert_int_equal(s->ops->link_connect(link, &address, sizeof address), WEFT_ENOPATH);
    s->ops->link_close(link);
}

/* --- entries -------------------------------------------------------------------------------- */

/* A descriptor that comes with the last packet is closed then. */
static void shake_hands_with(struct stranger *s, int passed)
{
    int fd;
    struct local_segment *segment;
    PAIR_OK(local_segment_create(RING, &segment, &fd));
    s->end.role = WEFT_ROLE_ACTIVE;
    local_segment_attach(segment, &s->end);
    say_hello(s, fd);
    s->hello.type = LOCAL_PACKET_CONFIRM;
    s->hello.direct = !s->indirect;
    say_hello(s, passed);
    assert_int_equal(connect_result(s), 0);
}

static void shake_hands(struct stranger *s)
{
    shake_hands_with(s, -1);
}

static void put(struct stranger *s, struct local_entry head, const void *body, uint32_t len)
{
    void *at = local_ring_reserve(&s->end.tx, len, head.type, head.op, head.slot);
    assert_non_null(at);
    if (len)
        memcpy(at, body, len);
    if (local_ring_publish(&s->end.tx)) /* it sleeps if this process did not run for a moment */
        assert_int_equal(send(s->fd, "", 1, MSG_NOSIGNAL), 1);
}

/* Poll for a while: sockets are looked at every 20 us. Returns the status of LINK_DOWN, 0 if there was none. */
static int verdict(struct stranger *s)
{
    struct weft_comp comps[4];
    int status = 0;
    uint64_t until = weft_now() + 200000;
    for (int i = 0; i < 20 || weft_now() < until; i++) {
        int n = PAIR_OK(s->ops->poll(s->nic, comps, 4));
        for (int k = 0; k < n; k++) {
            assert_int_equal(status, 0); /* it is the last */
            if (comps[k].op == WEFT_OP_LINK_DOWN)
                status = comps[k].status;
        }
    }
    return status;
}

static const struct {
    const char *what;
    struct local_entry head;
    uint8_t body[64];
    uint32_t len;
} garbage[] = {
    {"unknown type", {.type = LOCAL_ENTRY_TYPES}, "", 0},
    {"type 255", {.type = 255}, "", 40},
    {"cmd without a body", {.type = LOCAL_CMD, .op = WEFT_OP_WRITE}, "", 0},
    {"cmd cut short", {.type = LOCAL_CMD, .op = WEFT_OP_WRITE}, "", 31},
    {"cmd of slot 256", {.type = LOCAL_CMD, .op = WEFT_OP_READ, .slot = 256},
     {[28] = LOCAL_IN_PIECES}, 32},
    {"send of slot 256", {.type = LOCAL_SEND, .op = WEFT_OP_SEND, .slot = 256}, "", 8},
    {"send that is none", {.type = LOCAL_SEND, .op = WEFT_OP_WRITE}, "", 8},
    {"write of slot 256", {.type = LOCAL_WRITE, .op = WEFT_OP_WRITE, .slot = 256}, "", 24},
    {"write that is none", {.type = LOCAL_WRITE, .op = WEFT_OP_WRITE_IMM}, "", 24},
    {"write cut short", {.type = LOCAL_WRITE, .op = WEFT_OP_WRITE}, "", 15},
    {"cmd with op 200", {.type = LOCAL_CMD, .op = 200}, "", 32},
    {"fence", {.type = LOCAL_CMD, .op = WEFT_OP_FENCE}, "", 32},
    {"recv", {.type = LOCAL_CMD, .op = WEFT_OP_RECV}, "", 32},
    {"read in its entry", {.type = LOCAL_CMD, .op = WEFT_OP_READ}, "", 32},
    {"send in a cmd", {.type = LOCAL_CMD, .op = WEFT_OP_SEND}, "", 32},
    {"write in a cmd's entry", {.type = LOCAL_CMD, .op = WEFT_OP_WRITE}, "", 32},
    {"write with immediate with more than it says", {.type = LOCAL_CMD, .op = WEFT_OP_WRITE_IMM}, "", 40},
    {"add without a word", {.type = LOCAL_CMD, .op = WEFT_OP_ADD64}, "", 32},
    {"way 9", {.type = LOCAL_CMD, .op = WEFT_OP_WRITE}, {[28] = 9}, 32},
    {"direct send", {.type = LOCAL_CMD, .op = WEFT_OP_SEND}, {[28] = LOCAL_DIRECT}, 32},
    {"piece for no write", {.type = LOCAL_TO_TARGET}, "", 8},
    {"piece of slot 65535", {.type = LOCAL_TO_TARGET, .slot = 65535}, "", 8},
    {"piece for no read", {.type = LOCAL_TO_INITIATOR}, "", 8},
    {"ack for nothing", {.type = LOCAL_ACKS}, "", 2},
    {"ack of slot 65535", {.type = LOCAL_ACKS}, {0xff, 0xff}, 2},
    {"answer to nothing", {.type = LOCAL_ANSWER}, {0xff, 0xff, 0xff, 0xff}, 16},
    {"answer cut short", {.type = LOCAL_ANSWER}, "", 15},
    {"answer of slot 300", {.type = LOCAL_ANSWER, .slot = 300}, "", 16},
};

static void garbage_cuts_the_link(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof garbage / sizeof *garbage; i++) {
        void *fresh;
        setup(&fresh);
        struct stranger *s = fresh;
        shake_hands(s);
        put(s, garbage[i].head, garbage[i].body, garbage[i].len);
        int status = verdict(s);
        if (status != WEFT_EPROTO)
            print_error("%s\n", garbage[i].what);
        assert_int_equal(status, WEFT_EPROTO);
        teardown(&fresh);
    }
}

static void wrong_tail_cuts_the_link(void **state)
{
    struct stranger *s = *state;
    shake_hands(s);
    atomic_store(&s->end.tx.shared->tail, 1ull << 40);
    assert_int_equal(verdict(s), WEFT_EPROTO);
}

static void wrong_head_cuts_the_link(void **state)
{
    struct stranger *s = *state;
    shake_hands(s);
    atomic_store(&s->end.rx.shared->head, 1ull << 40);
    uint64_t word = 0;
    struct weft_cmd cmd = {
        .op = WEFT_OP_SEND, .len = 8, .ctx = 1, .one = {.addr = &word, .len = 8}};
    char big[16384] = "";
    cmd.len = cmd.one.len = sizeof big;
    cmd.one.addr = big;
    while (s->ops->post(s->link, &cmd, 1) == 1)
        ;
    assert_int_equal(verdict(s), WEFT_EPROTO);
}

/* What the stranger may write to, under key 5. */
static void open_target(struct stranger *s, void *addr, uint64_t len)
{
    struct weft_mem_range range = {.addr = addr,
                                   .len = len,
                                   .access = WEFT_ACCESS_WRITE,
                                   .kind = WEFT_MEM_HOST,
                                   .key = 5};
    struct weft_mem_handle handle;
    PAIR_OK(s->ops->mem_reg(s->nic, &range, &handle));
}

/* A slot that is under way may not be used again. */
static void slot_used_twice(void **state)
{
    struct stranger *s = *state;
    uint8_t memory_[LOCAL_PAYLOAD];
    open_target(s, memory_, sizeof memory_);
    shake_hands(s);
    struct local_cmd cmd = {
        .addr = (uintptr_t)memory_, .key = 5, .len = 100, .how = LOCAL_IN_PIECES, .niov = 1};
    struct local_entry head = {.type = LOCAL_CMD, .op = WEFT_OP_WRITE, .slot = 3};
    put(s, head, &cmd, sizeof cmd);
    assert_int_equal(verdict(s), 0);
    put(s, head, &cmd, sizeof cmd);
    assert_int_equal(verdict(s), WEFT_EPROTO);
}

/* Nor may one of which the other side has not been told how it ended, though nothing more of it comes. */
static void slot_used_before_its_answer(void **state)
{
    struct stranger *s = *state;
    shake_hands(s);
    struct local_cmd cmd = {.key = 5, .len = 8, .how = LOCAL_IN_PIECES, .niov = 1}; /* there is no such key */
    struct local_entry head = {.type = LOCAL_CMD, .op = WEFT_OP_WRITE, .slot = 3};
    uint64_t bytes = 0;
    put(s, head, &cmd, sizeof cmd);
    put(s, (struct local_entry){.type = LOCAL_TO_TARGET, .op = LOCAL_PIECE_LAST, .slot = 3}, &bytes, sizeof bytes);
    put(s, head, &cmd, sizeof cmd);
    assert_int_equal(verdict(s), WEFT_EPROTO);
}

/* Longer than any message or cmd may be. */
static void too_long(void **state)
{
    (void)state;
    static uint8_t bytes[LOCAL_MAX_SEND + 1];
    for (int i = 0; i < 2; i++) {
        void *fresh;
        setup(&fresh);
        struct stranger *s = fresh;
        shake_hands(s);
        struct local_cmd cmd = {.key = 5, .len = LOCAL_MAX_MSG + 1, .how = LOCAL_IN_PIECES, .niov = 1};
        if (i == 0)
            put(s, (struct local_entry){.type = LOCAL_SEND, .op = WEFT_OP_SEND}, bytes, sizeof bytes);
        else
            put(s, (struct local_entry){.type = LOCAL_CMD, .op = WEFT_OP_READ}, &cmd, sizeof cmd);
        assert_int_equal(verdict(s), WEFT_EPROTO);
        teardown(&fresh);
    }
}

/* The victim waits for an answer in its slot 0, and gets another one than there can be. */
static void answers_of_another_kind(void **state)
{
    (void)state;
    static const struct {
        uint8_t op, type, piece;
        uint32_t cmd, len; /* of the cmd, and of what is sent */
        int64_t status;
    } wrong[] = {
        {WEFT_OP_READ, LOCAL_ACKS, 0, 100, 2, 0}, /* brings no bytes */
        {WEFT_OP_ADD64, LOCAL_ACKS, 0, 8, 2, 0},  /* no old value */
        {WEFT_OP_FENCE, LOCAL_ACKS, 0, 0, 2, 0},
        {WEFT_OP_FENCE, LOCAL_ANSWER, 0, 0, 16, WEFT_EKEY},
        {WEFT_OP_WRITE, LOCAL_ANSWER, 0, 100, 16, 0}, /* that would have been an ack */
        {WEFT_OP_WRITE, LOCAL_ANSWER, 0, 100, 16, 1},
        {WEFT_OP_ADD64, LOCAL_ANSWER, 0, 8, 16, INT64_MIN},
        {WEFT_OP_ADD64, LOCAL_ANSWER, 0, 8, 16, (int64_t)INT32_MIN - 1},
        {WEFT_OP_WRITE, LOCAL_TO_INITIATOR, LOCAL_PIECE_LAST, 100, 8, 0},
        {WEFT_OP_WRITE, LOCAL_TO_INITIATOR, LOCAL_PIECE_MORE, LOCAL_PAYLOAD + 1, 8, 0}, /* which goes in pieces */
        {WEFT_OP_READ, LOCAL_TO_INITIATOR, LOCAL_PIECE_LAST, 8, 7, 0},
        {WEFT_OP_READ, LOCAL_TO_INITIATOR, LOCAL_PIECE_MORE, 8, 8, 0},
        {WEFT_OP_READ, LOCAL_TO_INITIATOR, LOCAL_PIECE_MORE, 8, 9, 0},
        {0xff, LOCAL_ANSWER, 0, 0, 16, WEFT_EKEY}, /* nothing is waited for */
    };
    static uint8_t bytes[LOCAL_PAYLOAD + 1], other[16], before[sizeof bytes];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        void *fresh;
        setup(&fresh);
        struct stranger *s = fresh;
        s->indirect = true;
        shake_hands(s);
        pair_fill(bytes, sizeof bytes, (uint32_t)i);
        memcpy(before, bytes, sizeof bytes);
        struct weft_cmd add = {.op = WEFT_OP_ADD64, .len = 8, .value = 1, .remote_addr = 8, .ctx = 1},
                        cmd = {.op = wrong[i].op, .len = wrong[i].cmd, .ctx = 1, .one = {.addr = bytes, .len = wrong[i].cmd}};
        uint16_t slot = wrong[i].op == WEFT_OP_FENCE; /* there is something that it waits for */
        if (slot > 0)
            assert_int_equal(PAIR_OK(s->ops->post(s->link, &add, 1)), 1);
        if (wrong[i].op != 0xff)
            assert_int_equal(PAIR_OK(s->ops->post(s->link, &cmd, 1)), 1);
        assert_int_equal(verdict(s), 0);
        memset(other, 0, sizeof other);
        if (wrong[i].type == LOCAL_ACKS)
            memcpy(other, &slot, sizeof slot);
        else
            memcpy(other, &wrong[i].status, sizeof wrong[i].status);
        put(s, (struct local_entry){.type = wrong[i].type, .op = wrong[i].piece, .slot = slot}, other, wrong[i].len);
        int status = verdict(s);
        if (status != WEFT_EPROTO)
            print_error("answer %zu: %d\n", i, status);
        assert_int_equal(status, WEFT_EPROTO);
        if (wrong[i].op == WEFT_OP_WRITE)
            assert_memory_equal(bytes, before, sizeof bytes);
        teardown(&fresh);
    }
}

/* What the victim hands out next. */
static int next(struct stranger *s, struct weft_comp *comps, int max)
{
    uint64_t until = weft_now() + PAIR_WAIT_MS * 1000000ull;
    int n = 0;
    while (n == 0) {
        assert_true(weft_now() < until);
        n = PAIR_OK(s->ops->poll(s->nic, comps, max));
    }
    return n;
}

/* A READ has ended with its last piece: there is no other one, also of no bytes. */
static void a_read_that_ends_twice(void **state)
{
    struct stranger *s = *state;
    uint64_t word = 0, read = 5;
    struct weft_comp comps[4];
    shake_hands(s);
    struct weft_cmd cmd = {.op = WEFT_OP_READ, .len = 8, .ctx = 1, .one = {.addr = &word, .len = 8}};
    assert_int_equal(PAIR_OK(s->ops->post(s->link, &cmd, 1)), 1);
    struct local_entry last = {.type = LOCAL_TO_INITIATOR, .op = LOCAL_PIECE_LAST};
    put(s, last, &read, sizeof read);
    assert_int_equal(next(s, comps, 4), 1);
    assert_int_equal(comps[0].op, WEFT_OP_READ);
    assert_int_equal(word, 5);
    put(s, last, NULL, 0);
    assert_int_equal(verdict(s), WEFT_EPROTO);
}

/* More messages than the victim has room for in one poll wait for the next one. */
static void more_messages_than_there_is_room_for(void **state)
{
    struct stranger *s = *state;
    static uint8_t bytes[LOCAL_MAX_SEND];
    struct weft_comp comps[16];
    const uint32_t most = LOCAL_ARENA / LOCAL_MAX_SEND;
    shake_hands(s);
    for (uint16_t i = 0; i < most + 2; i++) {
        pair_fill(bytes, sizeof bytes, i);
        put(s, (struct local_entry){.type = LOCAL_SEND, .op = WEFT_OP_SEND, .slot = i}, bytes, sizeof bytes);
    }
    for (uint32_t got = 0, turn = 0; turn < 2; turn++) {
        int n = next(s, comps, 16);
        assert_int_equal(n, turn == 0 ? most : 2);
        for (int k = 0; k < n; k++, got++) {
            assert_int_equal(comps[k].op, WEFT_OP_RECV);
            assert_true(pair_filled(comps[k].data, comps[k].len, got));
        }
    }
}

/* --- descriptors ---------------------------------------------------------------------------- */

static int count_fds(void)
{
    int n = 0;
    for (int fd = 0; fd < 1024; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* Bytes with two descriptors, which are closed then. */
static void send_two(struct stranger *s, const void *bytes, size_t len)
{
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(2 * sizeof(int))];
    } control = {.head = {.cmsg_len = CMSG_LEN(2 * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    int fds[2] = {memory(right_size, SEALS), memory(right_size, SEALS)};
    struct iovec iov = {(void *)(uintptr_t)bytes, len};
    struct msghdr msg = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    memcpy(CMSG_DATA(&control.head), fds, sizeof fds);
    assert_int_equal(sendmsg(s->fd, &msg, 0), len);
    close(fds[0]);
    close(fds[1]);
}

/* Whatever a peer passes, and with what: who does not want it closes it. */
static void descriptors_that_nobody_wants(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++) {
        void *fresh;
        int before = count_fds();
        setup(&fresh);
        struct stranger *s = fresh;
        if (i == 0) /* with a packet that is too short */
            send_two(s, &s->hello, sizeof s->hello - 1);
        else if (i == 1) /* one more than the memory */
            send_two(s, &s->hello, sizeof s->hello);
        else /* with the confirm */
            shake_hands_with(s, memory(right_size, SEALS));
        assert_int_equal(connect_result(s), i < 2 ? WEFT_EAGAIN : 0);
        if (i == 2) /* with a wake-up, and with one that is long */
            for (size_t len = 1; len <= sizeof s->hello; len += sizeof s->hello - 1)
                send_two(s, &s->hello, len);
        s->end.state = LOCAL_UP;
        s->end.source.fd = s->fd;
        for (uint64_t number = 0; i >= 3 && number < (i == 3 ? 4 : 2 * LOCAL_PASSED); number++) {
            int fd = memory(right_size, SEALS);
            PAIR_OK(local_link_pass(&s->end.base, number, fd));
            close(fd);
            verdict(s);
        }
        const struct local_link *link = (const struct local_link *)s->link;
        const int kept = i < 3 ? 0 : i == 3 ? 4 : LOCAL_PASSED;
        uint64_t until = weft_now() + PAIR_WAIT_MS * 1000000ull;
        while (link->npassed < kept || (i > 3 && link->passed[kept - 1].number != 2 * LOCAL_PASSED - 1)) {
            assert_true(weft_now() < until);
            verdict(s);
        }
        verdict(s);
        assert_int_equal(link->npassed, kept);
        teardown(&fresh);
        assert_int_equal(count_fds(), before);
    }
}

/* More bytes in pieces than the cmd said; the last piece too early. */
static void wrong_pieces(void **state)
{
    (void)state;
    static const struct {
        uint32_t len;
        uint8_t op;
    } wrong[] = {{101, LOCAL_PIECE_MORE}, {101, LOCAL_PIECE_LAST}, {99, LOCAL_PIECE_LAST}};
    static uint8_t target[200], bytes[200];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        void *fresh;
        setup(&fresh);
        struct stranger *s = fresh;
        open_target(s, target, sizeof target);
        shake_hands(s);
        struct local_cmd cmd = {
            .addr = (uintptr_t)target, .key = 5, .len = 100, .how = LOCAL_IN_PIECES, .niov = 1};
        put(s, (struct local_entry){.type = LOCAL_CMD, .op = WEFT_OP_WRITE}, &cmd, sizeof cmd);
        put(s, (struct local_entry){.type = LOCAL_TO_TARGET, .op = wrong[i].op}, bytes,
            wrong[i].len);
        assert_int_equal(verdict(s), WEFT_EPROTO);
        teardown(&fresh);
    }
}

/* Addresses that do not add up. */
static void wrong_ranges(void **state)
{
    (void)state;
    static uint8_t target[65536];
    static const struct {
        uint16_t niov;
        uint32_t sent;
        struct local_range ranges[2];
    } wrong[] = {
        {0, 0, {{0, 0}}},     {2, 1, {{0, 65536}}}, {65, 2, {{0, 65536}}},
        {1, 1, {{0, 65535}}}, {1, 1, {{0, 65537}}}, {2, 2, {{0, UINT64_MAX}, {0, 65537}}},
        {2, 2, {{0, 65536}, {0, 5}}},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        void *fresh;
        setup(&fresh);
        struct stranger *s = fresh;
        open_target(s, target, sizeof target);
        shake_hands(s);
        uint8_t body[sizeof(struct local_cmd) + sizeof wrong->ranges];
        struct local_cmd cmd = {.addr = (uintptr_t)target,
                                .key = 5,
                                .len = sizeof target,
                                .how = LOCAL_DIRECT,
                                .niov = wrong[i].niov};
        memcpy(body, &cmd, sizeof cmd);
        memcpy(body + sizeof cmd, wrong[i].ranges, sizeof wrong->ranges);
        put(s, (struct local_entry){.type = LOCAL_CMD, .op = WEFT_OP_WRITE}, body,
            (uint32_t)(sizeof cmd + wrong[i].sent * sizeof(struct local_range)));
        assert_int_equal(verdict(s), WEFT_EPROTO);
        teardown(&fresh);
    }
}

#define FRESH(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
#define KEYED(test) cmocka_unit_test_setup_teardown(test, setup_keyed, teardown)

int main(void)
{
    weft_config_set("WEFT_LOG", "error");
    const struct CMUnitTest tests[] = {
        FRESH(wrong_token),
        FRESH(wrong_version),
        FRESH(short_packet),
        FRESH(long_packet),
        FRESH(no_memory),
        FRESH(memory_not_sealed),
        cmocka_unit_test(memory_half_sealed),
        FRESH(a_small_ring),
        FRESH(memory_too_short),
        FRESH(not_memory),
        FRESH(odd_ring_size),
        FRESH(huge_ring_size),
        FRESH(wrong_confirm),
        cmocka_unit_test(a_confirm_of_another_link),
        FRESH(another_token_than_the_address),
        FRESH(gone_from_who_has_no_descriptor),
        FRESH(a_proof_for_a_link_without_a_key),
        KEYED(hellos_without_the_key),
        KEYED(a_confirm_without_the_key),
        KEYED(an_answer_without_the_key),
        FRESH(silent_crowd),
        FRESH(wrong_addresses),
        FRESH(nobody_listens),
        cmocka_unit_test(garbage_cuts_the_link),
        FRESH(wrong_tail_cuts_the_link),
        FRESH(wrong_head_cuts_the_link),
        FRESH(slot_used_twice),
        FRESH(slot_used_before_its_answer),
        cmocka_unit_test(too_long),
        cmocka_unit_test(answers_of_another_kind),
        FRESH(a_read_that_ends_twice),
        FRESH(more_messages_than_there_is_room_for),
        cmocka_unit_test(descriptors_that_nobody_wants),
        cmocka_unit_test(wrong_pieces),
        cmocka_unit_test(wrong_ranges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
