/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shared memory of a local link, as a peer writes it that keeps to no rule: entries that are
 * right but for a field, counts and flags, gates and shares of any value, entries that change after they
 * were published. Meanwhile the nic has cmds of its own under way.
 *
 * Whatever the library copies out of a ring with local_ring_read is overwritten at once: who
 * looked at shared memory twice would see something else the second time.
 *
 * Checked: a cmd ends once; nothing comes after LINK_DOWN; no memory outside of what is registered
 * or posted changes; nothing is left when the link is closed.
 */
#include "rig.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transports/local/local.h"

#define STEPS 96
#define RING LOCAL_RING_MIN
#define LEN (LOCAL_SHARE_MIN + 65536) /* the longest copy, and room for where it begins */
#define LARGE_MOST 3 /* copies that both ends may make, of one input: they take long */
/* The word of such a copy, as local_share.c has it. */
#define SHARE_BUSY ((uint64_t)1 << 63)
#define SHARE_TAG 48
#define SHARE_FRONT 24

extern const struct weft_transport weft_transport_local;
static struct rig rig;
static struct local_nic *nic;
static struct local_segment segment = {.ring_size = RING};
static uint8_t *theirs; /* guarded memory of the peer's, for direct copies */

struct run {
    struct fuzz_in in;
    struct local_link *link;
    struct local_ring_tx *tx; /* of the peer */
    struct local_link end;    /* the peer's */
    uint16_t heard[64];       /* slots of the nic's last cmds */
    uint32_t nheard;
    int nlarge;
    bool busy; /* a share word says that an initiator is in a unit: memory may not be let go of */
    bool wild; /* an address that the peer has said may be any other of this process, which is the peer, too */
};

static void set_up(void)
{
    FUZZ_OK(weft_config_set("WEFT_LOG", "error"));
    FUZZ_OK(weft_config_set("WEFT_LOCAL_RING", "16K"));
    rig_open(&rig, &weft_transport_local, LEN, LOCAL_MAX_SEND);
    nic = (struct local_nic *)rig.nic;
    /* a block of its own: what is read or written beyond the rings is seen */
    FUZZ_CHECK(posix_memalign((void **)&segment.base, 4096, LOCAL_SEGMENT_HEAD + 2 * RING) == 0);
    theirs = rig_memory(LEN);
}

/* --- what the library calls ----------------------------------------------------------------- */

void __real_local_ring_read(void *dst, const void *src, size_t len);
void __wrap_local_ring_read(void *dst, const void *src, size_t len);
void __wrap_local_ring_read(void *dst, const void *src, size_t len)
{
    __real_local_ring_read(dst, src, len);
    for (size_t i = 0; i < len; i++)
        ((uint8_t *)(uintptr_t)src)[i] ^= 0xff;
}

/* A length that there is not too much of. */
static uint64_t bounded(struct run *run, uint64_t len)
{
    return len < LOCAL_SHARE_MIN || run->nlarge++ < LARGE_MOST ? len : 8;
}

/* --- the nic -------------------------------------------------------------------------------- */

static void do_post(struct run *run)
{
    static const uint32_t sizes[] = {0, 1, 100, 2000, 4000, LOCAL_SHARE_MIN, 20000, 8};
    struct weft_cmd cmd;
    uint8_t how;
    if (!rig_choose(&rig, &run->in, &cmd, &how))
        return;
    cmd.len = bounded(run, sizes[how % 8]);
    if (cmd.op == WEFT_OP_ADD64 || (cmd.op == WEFT_OP_SEND && cmd.len > RING / 4))
        cmd.len = 8;
    FUZZ_CHECK(rig_post(&rig, &cmd, how & 32) >= 0 || run->link->state != LOCAL_UP);
}

/* --- what the peer does --------------------------------------------------------------------- */

/* Read what the nic has published, to know the slots of its cmds. */
static void hear(struct run *run)
{
    struct local_entry head;
    const uint8_t *body;
    while (local_ring_peek(&run->end.rx, &head, &body) > 0) {
        if (head.type == LOCAL_CMD || head.type == LOCAL_WRITE || head.type == LOCAL_SEND)
            run->heard[run->nheard++ % 64] = head.slot;
        local_ring_advance(&run->end.rx, &head);
    }
    local_ring_release(&run->end.rx);
}

static uint16_t pick_slot(struct run *run, bool answer)
{
    uint8_t nth = fuzz_u8(&run->in);
    uint16_t right = answer ? run->heard[nth % 64] : nth % 8;
    return (uint16_t)fuzz_near(&run->in, right);
}

/* Of the entry the first `open` bytes may be damaged. */
static void publish(struct run *run, struct local_entry head, const void *body, size_t len,
                    size_t open)
{
    uint8_t bytes[RING / 2];
    head.len = (uint32_t)(sizeof head + len);
    uint8_t *room = run->tx->broken ? NULL : local_ring_reserve(run->tx, len, head.type, head.op, head.slot);
    if (!room)
        return;
    memcpy(bytes, &head, sizeof head);
    if (len)
        memcpy(bytes + sizeof head, body, len);
    if (open)
        fuzz_damage(&run->in, bytes, open);
    memcpy(room - sizeof head, bytes, sizeof head + len);
    local_ring_publish(run->tx);
}

static void put(struct run *run, struct local_entry head, const void *body, size_t len)
{
    publish(run, head, body, len, sizeof head + len);
}

/* Addresses in the peer's memory, or in none. */
static size_t put_ranges(struct fuzz_in *in, const struct local_cmd *cmd, uint8_t *at)
{
    size_t n = cmd->niov <= LOCAL_MAX_IOV ? cmd->niov : LOCAL_MAX_IOV;
    for (size_t i = 0; i < n; i++) {
        uint64_t len = i + 1 < n ? cmd->len / n : cmd->len - cmd->len / n * (n - 1);
        uint8_t how = fuzz_u8(in);
        struct local_range range = {.addr = how >= 240 ? how : (uintptr_t)(theirs + RIG_GUARD),
                                    .len = fuzz_near(in, len)};
        if (range.len > LEN && range.addr > 255)
            range.addr = 4096; /* not ours: this process is the peer, too */
        memcpy(at + i * sizeof range, &range, sizeof range);
    }
    return n * sizeof(struct local_range);
}

/* A short WRITE or a SEND, in the entry of its kind. */
static void say_short(struct run *run, uint8_t op, const struct local_cmd *cmd)
{
    uint8_t body[RING / 2 - 64] = {0};
    struct local_write write = {cmd->addr, cmd->key};
    size_t head = op == WEFT_OP_WRITE ? sizeof write : 0;
    size_t len = head + (cmd->len < sizeof body - head ? cmd->len : 8);
    memcpy(body, &write, head);
    put(run, (struct local_entry){.type = head ? LOCAL_WRITE : LOCAL_SEND, .op = op, .slot = pick_slot(run, false)}, body, len);
}

static void say_cmd(struct run *run)
{
    static const uint32_t lens[] = {0, 1, 8, 100, 3000, 8000, LOCAL_SHARE_MIN, 20000};
    static const uint8_t kinds[] = {WEFT_OP_WRITE, WEFT_OP_READ, WEFT_OP_SEND, WEFT_OP_ADD64,
                                    WEFT_OP_WRITE_IMM};
    struct fuzz_in *in = &run->in;
    uint8_t body[RING / 2 - 64] = {0}, op = kinds[fuzz_pick(in, 5)];
    struct local_cmd cmd = {.how = (uint16_t)fuzz_pick(in, 4), .key = rig_pick_key(in)};
    cmd.len = fuzz_near(in, bounded(run, lens[fuzz_pick(in, 8)]));
    cmd.addr = rig_pick_addr(&rig, in, cmd.key);
    cmd.niov = (uint16_t)(cmd.how == LOCAL_DIRECT ? fuzz_near(in, 1 + fuzz_pick(in, 3)) : 1);
    if (cmd.how == LOCAL_IN_ENTRY && (op == WEFT_OP_WRITE || op == WEFT_OP_SEND)) {
        say_short(run, op, &cmd);
        return;
    }
    size_t len = sizeof cmd, ranges = 0;
    if (cmd.how == LOCAL_DIRECT)
        ranges = put_ranges(in, &cmd, body + sizeof cmd);
    else if (cmd.how == LOCAL_IN_ENTRY)
        len += cmd.len < sizeof body - sizeof cmd ? cmd.len : 8;
    memcpy(body, &cmd, sizeof cmd);
    /* a damaged address would be one of this process, which is the peer, too */
    publish(run, (struct local_entry){.type = LOCAL_CMD, .op = op, .slot = pick_slot(run, false)},
            body, len + ranges, sizeof(struct local_entry) + len);
}

static void say_piece(struct run *run, uint8_t type)
{
    static const uint8_t text[4096] = "text";
    static const uint32_t lens[] = {0, 1, 8, 100, 2000, 4000, 3000, 96};
    struct fuzz_in *in = &run->in;
    uint64_t len = fuzz_near(in, lens[fuzz_pick(in, 8)]);
    struct local_entry head = {.type = type,
                               .op = (uint8_t)fuzz_near(in, fuzz_pick(in, 2)),
                               .slot = pick_slot(run, type == LOCAL_TO_INITIATOR)};
    put(run, head, text, len < sizeof text ? len : sizeof text);
}

static void say_answer(struct run *run, bool acks)
{
    static const int codes[] = {0, WEFT_EKEY, WEFT_EBOUNDS, 1};
    struct fuzz_in *in = &run->in;
    uint16_t slots[8];
    size_t n = 1 + fuzz_pick(in, 8);
    struct local_answer answer = {.status = (int64_t)fuzz_near(in, (uint64_t)codes[n % 4]),
                                  .value = 5};
    for (size_t i = 0; i < n && acks; i++)
        slots[i] = pick_slot(run, true);
    if (acks)
        put(run, (struct local_entry){.type = LOCAL_ACKS}, slots, n * sizeof *slots);
    else
        put(run, (struct local_entry){.type = LOCAL_ANSWER, .slot = pick_slot(run, true)}, &answer,
            sizeof answer);
}

/* The nic may take units of a cmd of its own. The address is not damaged: it would be one of this
 * process, which is the peer, too, and the nic writes there. */
static void say_offer(struct run *run)
{
    struct fuzz_in *in = &run->in;
    uint8_t how = fuzz_u8(in);
    uint64_t tag = 1 + how % 4;
    struct local_offer offer = {.addr = how >= 240 ? how : (uintptr_t)(theirs + RIG_GUARD),
                                .tag = (uint32_t)fuzz_near(in, tag)};
    *run->link->help_word = fuzz_near(in, tag << SHARE_TAG | (uint64_t)(how % 8) << SHARE_FRONT);
    publish(run, (struct local_entry){.type = LOCAL_OFFER, .slot = pick_slot(run, true)}, &offer,
            how == 239 ? sizeof offer / 2 : sizeof offer, 0);
}

/* What the two ends of a copy that both make say, and the words that they share. */
static void say_share(struct run *run)
{
    struct fuzz_in *in = &run->in;
    _Atomic(uint64_t) *word = run->link->share.word;
    switch (fuzz_pick(in, 4)) {
    case 0:
        say_offer(run);
        break;
    case 1:
        put(run, (struct local_entry){.type = LOCAL_HELPED}, NULL, 0);
        break;
    case 2: /* as an initiator takes a unit, goes into one and comes out */
        *word += fuzz_pick(in, 2);
        run->busy = fuzz_u8(in) & 1;
        *word = run->busy ? *word | SHARE_BUSY : *word & ~SHARE_BUSY;
        break;
    default:
        *word = fuzz_near(in, *word);
        run->busy = *word & SHARE_BUSY;
    }
}

/* Words that no one but the library should write, and those that are the peer's. */
static void scribble(struct run *run)
{
    struct fuzz_in *in = &run->in;
    struct local_segment_head *head = (struct local_segment_head *)segment.base;
    int ring = (int)fuzz_pick(in, 2);
    switch (fuzz_pick(in, 6)) {
    case 0:
        head->ring[ring].tail = fuzz_near(in, head->ring[ring].tail);
        break;
    case 1:
        head->ring[ring].head = fuzz_near(in, head->ring[ring].head);
        break;
    case 2:
        head->ring[ring].asleep = fuzz_u8(in);
        break;
    case 3:
        head->ring[ring].starved = fuzz_u8(in);
        break;
    case 4: /* whether its gate is shut is the peer's business; ours would only cost time */
        run->link->gate_peer->word = fuzz_u8(in);
        break;
    default:
        run->wild = true; /* an entry says other addresses by now */
        segment.base[LOCAL_SEGMENT_HEAD + fuzz_u16(in) % (2 * RING)] ^= fuzz_u8(in);
    }
}

/* --- one input ------------------------------------------------------------------------------ */

/* As the handshake leaves a link whose peer is in another process. */
static void begin(struct run *run, int *far)
{
    uint8_t how = fuzz_u8(&run->in);
    int sv[2];
    struct weft_link_opts opts = {.role = how & 1 ? WEFT_ROLE_ACTIVE : WEFT_ROLE_PASSIVE};
    struct weft_link *base;
    FUZZ_OK(rig.ops->link_open(&nic->base, &opts, &base));
    FUZZ_OK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sv));
    memset(segment.base, 0, LOCAL_SEGMENT_HEAD);
    run->link = (struct local_link *)base;
    nic->waiting = NULL;
    run->link->source.fd = sv[0];
    FUZZ_OK(local_watch(nic, &run->link->source));
    run->link->pid = getpid();
    run->link->direct_in = how & 2;
    run->link->direct_out = how & 4;
    local_segment_attach(&segment, run->link);
    run->end.role = how & 1 ? WEFT_ROLE_PASSIVE : WEFT_ROLE_ACTIVE;
    local_segment_attach(&segment, &run->end);
    run->tx = &run->end.tx;
    run->link->state = LOCAL_UP;
    local_link_activate(run->link);
    rig_begin(&rig, base);
    *far = sv[1];
}

static void step(struct run *run, int far)
{
    uint8_t what = fuzz_u8(&run->in);
    if (what < 72)
        say_cmd(run);
    else if (what < 104)
        say_piece(run, LOCAL_TO_TARGET);
    else if (what < 128)
        say_piece(run, LOCAL_TO_INITIATOR);
    else if (what < 160)
        say_answer(run, what & 1);
    else if (what < 200)
        do_post(run);
    else if (what < 216)
        scribble(run);
    else if (what < 220)
        FUZZ_CHECK(rig_forget(&rig, what % RIG_MEMS) || run->busy);
    else if (what < 224)
        rig.ops->wait_fd(&nic->base);
    else if (what < 226)
        shutdown(far, SHUT_RDWR);
    else if (what < 240)
        send(far, "wake", 1 + what % 4, MSG_DONTWAIT | MSG_NOSIGNAL);
    else
        say_share(run);
    if (what & 1)
        rig_poll(&rig, 1 + what % 16);
    if (what & 2)
        hear(run);
}

static void end(struct run *run, int far)
{
    close(far);
    for (int i = 0; i < 8; i++)
        rig_poll(&rig, RIG_COMPS);
    run->link->segment = NULL; /* it is not one of local_segment.c's */
    rig.ops->link_close(&run->link->base);
    rig_end(&rig);
    FUZZ_CHECK(!nic->nlinks && !nic->nactive && !nic->mems.count && !nic->sharing);
    FUZZ_CHECK(run->wild || rig_untouched(theirs, LEN));
    if (run->wild)
        rig_fill(theirs, LEN);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct run run;
    int far;
    if (!nic)
        set_up();
    memset(&run, 0, sizeof run);
    run.in = (struct fuzz_in){data, data + size};
    begin(&run, &far);
    for (int i = 0; i < STEPS && fuzz_more(&run.in); i++)
        step(&run, far);
    end(&run, far);
    return 0;
}
