/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The frames of tcp: a link of a nic whose peer is the input, which joins properly and then says
 * what it likes, in pieces of any size, or nothing, or does not read. Meanwhile the nic has cmds of
 * its own under way.
 *
 * Checked: what the nic says is well-formed; a cmd ends once; nothing comes after LINK_DOWN; no
 * memory outside of what is registered or posted changes; who hangs up takes the link down; nothing
 * is left when the link is closed.
 */
#include "rig.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transports/tcp/tcp.h"

#define STEPS 96
#define CALLS 64       /* of the nic, that are remembered */
#define SOCKETS 2      /* of the link */
#define LEN 65536      /* of the registered memory */
#define LAST_POLLS 100000 /* for what is still unread when the peer hangs up */

extern const struct weft_transport weft_transport_tcp;
static struct rig rig;
static struct tcp_nic *nic;

/* One socket, as its peer sees it. */
struct sock {
    int fd;
    uint8_t rx[TCP_FRAME_MAX]; /* a head that is not complete */
    uint32_t rx_len;
    uint64_t payload;  /* that is still to come */
    bool counts;       /* the frame it belongs to is counted */
    uint32_t executed; /* counted frames that have come */
};

struct call {
    uint8_t type;
    uint32_t id;
    uint64_t len;
};

struct run {
    struct fuzz_in in;
    struct tcp_link *link;
    uint8_t nsocks;
    struct sock socks[SOCKETS];
    bool deaf; /* does not read */
    struct call calls[CALLS];
    uint32_t ncalls;
};

/* --- the nic -------------------------------------------------------------------------------- */

static void set_up(void)
{
    FUZZ_OK(weft_config_set("WEFT_LOG", "error"));
    FUZZ_OK(weft_config_set("WEFT_TCP_SOCKETS", "2"));
    FUZZ_OK(weft_config_set("WEFT_TCP_CHUNK", "4096"));
    rig_open(&rig, &weft_transport_tcp, LEN, TCP_MAX_SEND);
    nic = (struct tcp_nic *)rig.nic;
}

static void do_post(struct run *run)
{
    static const uint32_t sizes[] = {0, 1, 100, 3000, 5000, 20000, 60000, 200};
    struct weft_cmd cmd;
    uint8_t how;
    if (!rig_choose(&rig, &run->in, &cmd, &how))
        return;
    cmd.len = cmd.op == WEFT_OP_ADD64 ? 8 : sizes[how % 8];
    cmd.flags = how & 64 && cmd.len <= TCP_MAX_INLINE ? WEFT_CMD_INLINE
                : how & 128                           ? WEFT_CMD_MORE
                                                      : 0;
    cmd.flags |= how & 16 ? WEFT_CMD_PATIENT : 0;
    FUZZ_CHECK(rig_post(&rig, &cmd, how & 32) >= 0 || run->link->state == TCP_LINK_DOWN);
}

/* --- what the nic says ---------------------------------------------------------------------- */

static void hear_frame(struct run *run, struct sock *sock, const struct tcp_frame *frame)
{
    uint8_t type = frame->type;
    sock->payload = frame->len;
    sock->counts = (type >= TCP_SEND && type <= TCP_PART_IMM) || frame->lent;
    sock->executed += sock->counts && !frame->len;
    if (type == TCP_READ || type == TCP_ADD)
        run->calls[run->ncalls++ % CALLS] = (struct call){
            .type = type, .id = frame->id, .len = frame->word[2]};
}

static void hear_bytes(struct run *run, struct sock *sock, const uint8_t *bytes, size_t n)
{
    struct tcp_frame frame;
    while (n > 0) {
        size_t part = n < sock->payload ? n : sock->payload;
        if (part) {
            sock->payload -= part;
            sock->executed += sock->counts && !sock->payload;
        } else {
            part = 1;
            sock->rx[sock->rx_len++] = *bytes;
            int size = tcp_frame_decode(sock->rx, sock->rx_len, &frame);
            FUZZ_CHECK(size >= 0);
            if (size > 0) {
                sock->rx_len = 0;
                hear_frame(run, sock, &frame);
            }
        }
        bytes += part;
        n -= part;
    }
}

static void hear(struct run *run)
{
    static uint8_t bytes[65536];
    for (uint8_t i = 0; i < run->nsocks && !run->deaf; i++) {
        ssize_t n;
        while ((n = recv(run->socks[i].fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0)
            hear_bytes(run, &run->socks[i], bytes, (size_t)n);
    }
}

/* --- what the peer says --------------------------------------------------------------------- */

static void say(struct run *run, uint8_t sock, const void *bytes, size_t len)
{
    send(run->socks[sock].fd, bytes, len, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* A frame head, and as much payload as it says, or not quite. */
static void say_frame(struct run *run, uint8_t sock, struct tcp_frame frame, size_t payload)
{
    static uint8_t bytes[TCP_FRAME_MAX + LEN + 4096];
    uint8_t ack = fuzz_u8(&run->in);
    frame.ack_sock = ack >= 250 ? ack : ack % run->nsocks;
    if (frame.ack_sock < run->nsocks && frame.ack_sock < sizeof run->socks / sizeof *run->socks)
        frame.ack = run->socks[frame.ack_sock].executed;
    if (ack >= 224)
        frame.ack = (uint32_t)fuzz_near(&run->in, frame.ack);
    size_t head = tcp_frame_encode(bytes, &frame);
    head = fuzz_damage(&run->in, bytes, head);
    memset(bytes + head, 0x66, payload);
    size_t len = head + payload, first = fuzz_u16(&run->in);
    if (first >= len)
        first = len;
    say(run, sock, bytes, first);
    if (first == len)
        return;
    rig_poll(&rig, RIG_COMPS);
    say(run, sock, bytes + first, len - first);
}

static uint32_t pick_len(struct fuzz_in *in)
{
    static const uint32_t lens[] = {0, 1, 16, 300, 5000, 9000, 60000, 70000};
    return (uint32_t)fuzz_near(in, lens[fuzz_pick(in, 8)]);
}

/* Words of a frame that does something at the nic. */
static void fill_target(struct fuzz_in *in, struct tcp_frame *f)
{
    uint64_t key = rig_pick_key(in);
    f->word[0] = key;
    f->word[1] = rig_pick_addr(&rig, in, key);
    f->word[2] = f->type == TCP_ADD ? 1 : f->type == TCP_READ ? pick_len(in) : f->len;
    if (f->type == TCP_PART || f->type == TCP_PART_IMM) {
        f->word[3] = fuzz_near(in, fuzz_u8(in));
        f->word[2] = fuzz_near(in, f->word[3] + f->len);
    }
}

/* Words of a frame that answers. */
static void fill_answer(struct run *run, struct tcp_frame *f)
{
    struct fuzz_in *in = &run->in;
    const struct call
        *call = &run->calls[fuzz_u8(in) % (run->ncalls < CALLS ? run->ncalls + 1 : CALLS)];
    f->id = (uint32_t)fuzz_near(in, call->id);
    f->word[0] = f->type == TCP_DATA ? fuzz_near(in, call->len / 2) : fuzz_near(in, 0);
    f->word[1] = fuzz_near(in, fuzz_pick(in, TCP_CODES));
    if (f->type == TCP_DATA)
        f->len = (uint32_t)fuzz_near(in, call->len - call->len / 2);
    if (f->type == TCP_NACK) {
        f->word[0] = fuzz_near(in, fuzz_pick(in, run->nsocks));
        f->id = (uint32_t)fuzz_near(in, run->socks[f->word[0] % run->nsocks].executed);
    }
}

static void say_any(struct run *run)
{
    struct tcp_frame f = {.type = (uint8_t)(1 + fuzz_pick(&run->in, TCP_TYPES - 1))};
    uint8_t sock = (uint8_t)fuzz_pick(&run->in, run->nsocks);
    bool answer = f.type == TCP_DATA || f.type == TCP_END || f.type == TCP_ADDED ||
                  f.type == TCP_NACK;
    if (f.type <= TCP_PART_IMM)
        f.len = pick_len(&run->in);
    if (f.type == TCP_SEND)
        f.id = f.len & 1;
    if (f.type != TCP_SEND && !answer)
        fill_target(&run->in, &f);
    if (answer)
        fill_answer(run, &f);
    uint64_t payload = f.type == TCP_READ || f.len > LEN ? 0 : fuzz_near(&run->in, f.len);
    say_frame(run, sock, f, payload <= LEN ? (size_t)payload : f.len);
}

/* As an honest peer would: all of it, in two chunks if it is long. */
static void answer_call(struct run *run)
{
    if (!run->ncalls)
        return;
    const struct call
        *call = &run->calls[fuzz_u8(&run->in) % (run->ncalls < CALLS ? run->ncalls : CALLS)];
    struct tcp_frame f = {.type = call->type == TCP_ADD ? TCP_ADDED : TCP_DATA, .id = call->id};
    uint64_t half = call->len > 1000 ? call->len / 2 : call->len;
    if (f.type == TCP_ADDED || call->len > LEN) {
        say_frame(run, 0, f, 0);
        return;
    }
    f.len = (uint32_t)half;
    say_frame(run, run->nsocks - 1, f, f.len);
    f.word[0] = half;
    f.len = (uint32_t)(call->len - half);
    if (f.len)
        say_frame(run, 0, f, f.len);
}

static void say_raw(struct run *run)
{
    const uint8_t *span;
    uint8_t sock = (uint8_t)fuzz_pick(&run->in, run->nsocks);
    size_t len = fuzz_span(&run->in, fuzz_u8(&run->in), &span);
    say(run, sock, span, len);
}

/* --- joining -------------------------------------------------------------------------------- */

static void encode_hello(struct run *run, uint8_t *bytes, uint8_t index, const uint8_t *token)
{
    static const uint16_t depths[] = {64, TCP_DEPTH, 2, 9};
    struct tcp_hello hello = {.version = TCP_VERSION,
                              .index = index,
                              .sockets = run->nsocks,
                              .depth = depths[fuzz_pick(&run->in, 4)]};
    memcpy(hello.token, token, TCP_TOKEN);
    tcp_hello_encode(bytes, &hello);
}

static void make_address(uint8_t *blob, const struct run *run, bool passive)
{
    memset(blob, 0, TCP_ADDRESS_SIZE);
    tcp_put32(blob, TCP_MAGIC);
    blob[4] = TCP_VERSION;
    if (!passive)
        return;
    blob[5] = 1;
    blob[6] = run->nsocks;
    blob[7] = 4;
    tcp_put16(blob + 8, 9);
    blob[16] = 127;
}

/* The nic's end is passive: we connect. */
static void join_passive(struct run *run, uint8_t *mine)
{
    uint8_t address[WEFT_LINK_ADDRESS_MAX], hello[TCP_HELLO_SIZE];
    FUZZ_OK(rig.ops->link_address(&run->link->base, address, sizeof address));
    for (uint8_t i = 0; i < run->nsocks; i++) {
        run->socks[i].fd = fuzz_net_dial(0);
        encode_hello(run, hello, i, address + 32);
        say(run, i, hello, sizeof hello);
        rig_poll(&rig, RIG_COMPS);
        rig_poll(&rig, RIG_COMPS);
    }
    make_address(mine, run, false);
}

static void join_active(struct run *run, uint8_t *mine)
{
    uint8_t hello[TCP_HELLO_SIZE];
    make_address(mine, run, true);
    FUZZ_CHECK(rig.ops->link_connect(&run->link->base, mine, TCP_ADDRESS_SIZE) == WEFT_EAGAIN);
    for (uint8_t i = 0; i < run->nsocks; i++) {
        run->socks[i].fd = fuzz_net_take();
        FUZZ_CHECK(run->socks[i].fd >= 0);
    }
    rig_poll(&rig, RIG_COMPS);
    for (uint8_t i = 0; i < run->nsocks; i++) {
        encode_hello(run, hello, i, mine + 32);
        say(run, i, hello, sizeof hello);
    }
    rig_poll(&rig, RIG_COMPS);
}

static void begin(struct run *run)
{
    uint8_t mine[TCP_ADDRESS_SIZE], how = fuzz_u8(&run->in), greeting[TCP_HELLO_SIZE];
    struct weft_link_opts opts = {.role = how & 1 ? WEFT_ROLE_ACTIVE : WEFT_ROLE_PASSIVE};
    struct weft_link *link;
    FUZZ_OK(rig.ops->link_open(&nic->base, &opts, &link));
    run->link = (struct tcp_link *)link;
    rig_begin(&rig, link);
    run->nsocks = how & 2 ? 1 : SOCKETS;
    if (how & 1)
        join_active(run, mine);
    else
        join_passive(run, mine);
    FUZZ_CHECK(rig.ops->link_connect(link, mine, sizeof mine) == 0);
    for (uint8_t i = 0; i < run->nsocks; i++)
        FUZZ_CHECK(recv(run->socks[i].fd, greeting, sizeof greeting, MSG_DONTWAIT) ==
                   sizeof greeting);
}

/* --- one input ------------------------------------------------------------------------------ */

static void step(struct run *run)
{
    uint8_t what = fuzz_u8(&run->in);
    if (what < 112)
        say_any(run);
    else if (what < 152)
        do_post(run);
    else if (what < 184)
        answer_call(run);
    else if (what < 200)
        say_raw(run);
    else if (what < 208)
        run->deaf = what & 1;
    else if (what < 212)
        shutdown(run->socks[what % run->nsocks].fd, what & 2 ? SHUT_WR : SHUT_RDWR);
    else if (what < 216)
        rig_forget(&rig, what % RIG_MEMS);
    else if (what < 220)
        FUZZ_CHECK(rig.ops->wait_fd(&nic->base) >= 0 ||
                   rig.ops->wait_fd(&nic->base) == WEFT_EAGAIN);
    rig_poll(&rig, what & 1 ? RIG_COMPS : 1 + what % 3);
    hear(run);
}

/* What is left is taken, if the peer hung up first; then there is nothing left. */
static void end(struct run *run)
{
    bool first = fuzz_u8(&run->in) & 1;
    for (uint8_t i = 0; i < run->nsocks && first; i++)
        close(run->socks[i].fd);
    for (int i = 0; i < LAST_POLLS && first && !rig.down; i++)
        rig_poll(&rig, RIG_COMPS);
    FUZZ_CHECK(!first || rig.down);
    rig.ops->link_close(&run->link->base);
    for (uint8_t i = 0; i < run->nsocks && !first; i++)
        close(run->socks[i].fd);
    struct weft_comp comps[RIG_COMPS];
    FUZZ_CHECK(rig.ops->poll(&nic->base, comps, RIG_COMPS) == 0);
    rig_end(&rig);
    FUZZ_CHECK(!nic->links && !nic->nunproven && !nic->nparked && !nic->parked && !nic->nhot &&
               !nic->nblocked && !nic->nhalf && !nic->ready && !nic->done.head && !nic->ndown);
    fuzz_net_reset();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct run run;
    if (!nic)
        set_up();
    memset(&run, 0, sizeof run);
    run.in = (struct fuzz_in){data, data + size};
    begin(&run);
    for (int i = 0; i < STEPS && fuzz_more(&run.in); i++)
        step(&run);
    end(&run);
    return 0;
}
