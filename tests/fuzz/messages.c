/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Core's messages over a conn whose peer is the input: what arrives, in any order and number; how
 * the cmds that core posts end, and when; links that die; how copies of a GPU end, which no nic
 * reaches. Meanwhile this side sends, receives, notifies, writes, reads, adds and cancels, with memory
 * of the host and of the GPU.
 *
 * Checked: every operation ends once, no memory outside of buffers and registered memory changes,
 * nothing is left when the conn is closed.
 */
#include "fuzz.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc.h"
#include "mem.h"
#include "peer.h"
#include "progress.h"

#define STEPS 96
#define OPS 32      /* of one input */
#define SEEN 64     /* messages of this side that are remembered */
#define GUARD 64    /* bytes around the memory that the peer may add to */
#define WORDS 16    /* of that memory */
#define MOST 20000  /* bytes of an operation */
#define GPU_AT                                                                                    \
    (OPS * MOST) /* of the GPU's memory, that the peer may name; before it is that of operations */
#define GPU_LEN 4096
#define SLOT 1024    /* a quarter of WEFT_STAGE_CHUNK */
#define PEER_PAGES 8 /* places in the peer's memory, which a handle names */
#define QUEUE 65536 /* WEFT_NOTIFY_QUEUE: a few large ones fill it */

struct op {
    weft_op_t handle; /* 0: none, or its end was read */
    uint8_t *memory;  /* NULL: the GPU's */
};

/* What the peer knows of a message it got. */
struct seen {
    struct weft__msg_head head;
    uint64_t id; /* first word of the body */
};

struct run {
    struct fuzz_in in;
    struct weft__conn *conn;
    struct op ops[OPS];
    int nops;
    uint64_t seq;                  /* the peer's next message */
    uint32_t index[WEFT__STREAMS]; /* its next user's message */
    uint32_t taken[WEFT__STREAMS]; /* what it says it has taken */
    uint32_t eager[WEFT__STREAMS]; /* what it could have taken */
    struct seen seen[SEEN];
    uint32_t nseen;
    unsigned
        staged; /* bits: what the peer's nics do not reach, 1 and 2; our memory, 4; words to add to, 8; the
                   peer's can be mapped, 16 */
};

static weft_endpoint_t endpoint;
static struct weft__endpoint *ep;
static uint64_t memory[GUARD + WORDS + GUARD];
static uint64_t key, gpu_key;

static uint64_t register_memory(void *addr, size_t len)
{
    struct weft__remote r;
    weft_mem_t mem;
    struct weft_remote remote;
    FUZZ_OK(weft_mem_reg(endpoint, addr, len, NULL, &mem));
    FUZZ_OK(weft_mem_advertise(mem, addr, len, &remote));
    FUZZ_OK(weft__remote_decode(&remote, &r));
    return r.key;
}

static void set_up(void)
{
    FUZZ_OK(weft_config_set("WEFT_GPU", "stub"));
    FUZZ_OK(weft_config_set("WEFT_STAGE_CHUNK", "4K"));
    FUZZ_OK(weft_config_set("WEFT_STAGE_SLOTS", "3"));
    FUZZ_OK(weft_config_set("WEFT_EAGER_WINDOW", "64K"));
    FUZZ_OK(weft_config_set("WEFT_NOTIFY_QUEUE", "64K"));
    FUZZ_OK(weft_config_set("WEFT_CHUNK", "4K"));
    ep = peer_endpoint_open(&endpoint);
    memset(memory, 0x77, sizeof memory);
    memset(stub_gpu_bytes(), 0x77, STUB_GPU_BYTES);
    key = register_memory(memory + GUARD, WORDS * 8);
    gpu_key = register_memory(stub_gpu_memory() + GPU_AT, GPU_LEN);
}

static struct weft__conn *open_conn(struct fuzz_in *in)
{
    static const uint64_t windows[] = {65536, 65536, 1000, 0};
    uint8_t how = fuzz_u8(in);
    int lanes[] = {how & 1, how >> 2 & 1};
    return peer_conn_open(ep, lanes, how & 2 ? 2 : 1, windows[how >> 3 & 3]);
}

/* --- what this side does -------------------------------------------------------------------- */

static size_t pick_size(struct fuzz_in *in)
{
    static const size_t sizes[] = {0, 1, 8, 100, 3000, 8000, 9000, 20000};
    return sizes[fuzz_pick(in, 8)];
}

/* SEND and RECV in up to three pieces, the others in one. */
static int post(struct run *run, enum weft_xfer_op kind, uint8_t *at, size_t len, weft_op_t *op)
{
    struct weft_local local[3];
    struct weft_remote to = peer_remote(len < 8 ? 8 : len);
    to.bytes[1] |= (uint8_t)((run->staged & 3)
                             << 4); /* WEFT__STAGED_*: the peer's nics do not reach it */
    if (run->staged & 16)
        to.bytes[1] |= WEFT__MAPPABLE;
    bool one_sided = kind == WEFT_XFER_WRITE || kind == WEFT_XFER_READ;
    bool add = kind == WEFT_XFER_ADD, alone = kind == WEFT_XFER_NOTIFY;
    size_t n = one_sided || add ? 1 : 1 + fuzz_pick(&run->in, 3), third = len / n;
    for (size_t i = 0; i < n; i++)
        local[i] = (struct weft_local){.addr = at + i * third,
                                       .len = i + 1 < n ? third : len - i * third};
    bool tell = alone || (one_sided && fuzz_u8(&run->in) & 1 && !(run->staged & 4));
    return weft_post(
        run->conn->handle,
        WEFT_OPTS(weft_xfer, .op = kind, .local = add || alone ? NULL : local,
                  .nlocal = add || alone ? 0 : n, .remote = one_sided || add ? &to : NULL,
                  .nremote = one_sided || add ? 1 : 0, .notify = tell ? at : NULL,
                  .notify_len = tell ? len : 0, .value = 1, .result = add ? (uint64_t *)at : NULL),
        op);
}

static void do_post(struct run *run)
{
    static const enum weft_xfer_op kinds[] = {WEFT_XFER_RECV, WEFT_XFER_SEND, WEFT_XFER_NOTIFY,
                                              WEFT_XFER_ADD,  WEFT_XFER_RECV, WEFT_XFER_WRITE,
                                              WEFT_XFER_READ, WEFT_XFER_SEND};
    if (run->nops == OPS)
        return;
    struct op *op = &run->ops[run->nops];
    enum weft_xfer_op kind = kinds[fuzz_pick(&run->in, 8)];
    size_t len = pick_size(&run->in);
    bool gpu = kind != WEFT_XFER_NOTIFY && kind != WEFT_XFER_ADD && run->staged & 4;
    op->memory = gpu ? NULL : calloc(1, len < 8 ? 8 : len);
    FUZZ_CHECK(gpu || op->memory);
    uint8_t *at = gpu ? stub_gpu_memory() + run->nops * MOST : op->memory;
    stub_script.dereg_later = 0; /* nothing is under way in what is registered and not posted */
    if (post(run, kind, at, len, &op->handle))
        free(op->memory);
    else
        run->nops++;
}

/* Has it ended? Then its memory is ours again. */
static bool reap(struct op *op)
{
    struct weft_op_status status;
    if (!op->handle)
        return true;
    int rc = weft_op_poll(op->handle, &status);
    if (rc == 0)
        return false;
    FUZZ_CHECK(rc == 1 || rc == status.status);
    FUZZ_CHECK(weft_op_poll(op->handle, &status) == WEFT_EHANDLE);
    op->handle = 0;
    free(op->memory);
    return true;
}

static void take_notifs(int most)
{
    struct weft_notif notif;
    for (int i = 0; i < most && weft_endpoint_notif(endpoint, 0, &notif) == 0; i++)
        weft_notif_free(&notif);
}

/* --- what the transport does ---------------------------------------------------------------- */

/* The peer gets a message of this side. */
static void look_at_message(struct run *run, const struct stub_cmd *cmd)
{
    struct seen *s = &run->seen[run->nseen++ % SEEN];
    peer_get_head(cmd, &s->head, &s->id);
    run->eager[s->head.stream] += s->head.type == WEFT__MSG_EAGER;
}

static void end_cmds(struct run *run)
{
    static const int results[] = {WEFT_EKEY, WEFT_EBOUNDS, WEFT_EACCESS, -EIO};
    uint8_t how = fuzz_u8(&run->in), n = how < 192 ? 8 : 1;
    for (int i = 0; i < n; i++) {
        struct stub_cmd *cmd = stub_cmd_at(how < 192 ? 0 : fuzz_u8(&run->in));
        if (!cmd)
            return;
        if (cmd->cmd.op == WEFT_OP_SEND)
            look_at_message(run, cmd);
        stub_end(cmd, how < 240 ? 0 : results[how % 4], 42);
    }
}

/* --- what the peer says --------------------------------------------------------------------- */

static void put_remotes(struct run *run, struct weft__writer *w, uint64_t len)
{
    struct fuzz_in *in = &run->in;
    uint8_t n = fuzz_u8(in) % 70, few = n < 60 ? 1 + n % 3 : n;
    for (int i = 0; i < few; i++) {
        uint64_t part = i + 1 < few ? len / few : len - len / few * (few - 1u);
        struct weft_remote r = peer_remote(fuzz_near(in, part));
        fuzz_damage(in, r.bytes, sizeof r.bytes);
        weft__put(w, r.bytes, sizeof r.bytes);
    }
}

static void put_add(struct run *run, struct weft__writer *w)
{
    struct fuzz_in *in = &run->in;
    weft__put_u64(w, fuzz_u64(in));
    bool gpu = run->staged & 8;
    uint8_t *words = gpu ? stub_gpu_memory() + GPU_AT : (uint8_t *)(memory + GUARD);
    weft__put_u64(w, fuzz_near(in, (uintptr_t)(words + 8u * fuzz_pick(in, WORDS + 2))));
    weft__put_u64(w, fuzz_near(in, gpu ? gpu_key : key));
    weft__put_u64(w, 1);
}

/* An area of the peer. */
static void put_area(struct run *run, struct weft__writer *w)
{
    static const uint8_t counts[] = {WEFT__STAGE_LEAST, 18, WEFT__MAX_SLOTS, 3};
    unsigned slots = counts[fuzz_pick(&run->in, 4)];
    struct weft_remote r = peer_remote(fuzz_near(&run->in, slots * SLOT));
    r.bytes[1] = WEFT_READ | WEFT_WRITE;
    weft__put_u32(w, (uint32_t)fuzz_near(&run->in, 0));
    weft__put_u32(w, (uint32_t)fuzz_near(&run->in, SLOT));
    weft__put_u32(w, (uint32_t)fuzz_near(&run->in, slots));
    weft__put(w, r.bytes, sizeof r.bytes);
}

/* Up to four pieces between a slot and the GPU. */
static void put_copy(struct run *run, struct weft__writer *w)
{
    struct fuzz_in *in = &run->in;
    uint8_t how = fuzz_u8(in), n = how >> 6;
    weft__put_u32(w, fuzz_u8(in));
    weft__put_u8(w, (how & 1) | (how >> 2 & WEFT__COPY_PATIENT));
    weft__put_u8(w, (uint8_t)fuzz_near(in, how >> 1 & 3));
    weft__put_u16(w, (uint16_t)fuzz_near(in, n + 1u));
    for (int i = 0; i <= n; i++) {
        uint8_t *at = stub_gpu_memory() + GPU_AT + 64 * fuzz_pick(in, 64);
        weft__put_u64(w, fuzz_near(in, (uintptr_t)at));
        weft__put_u64(w, fuzz_near(in, gpu_key));
        weft__put_u64(w, fuzz_near(in, how & 32 ? 1000 : 64));
    }
}

static void put_status(struct fuzz_in *in, struct weft__writer *w)
{
    static const int results[] = {0, WEFT_ETRUNC, WEFT_ECANCELED, 1};
    weft__put_u32(w, (uint32_t)fuzz_near(in, (uint64_t)results[fuzz_pick(in, 4)]));
}

/* Memory of the peer's GPU, as long as its remotes say, or not. */
static void put_map(struct run *run, const struct seen *s, struct weft__writer *w)
{
    struct fuzz_in *in = &run->in;
    uint8_t how = fuzz_u8(in);
    static const uint8_t pci[WEFT__IPC_PCI] = "0000:01:00.0";
    uint8_t handle[WEFT_GPU_IPC_BYTES] = {0};
    handle[1] = (uint8_t)(how % PEER_PAGES * (STUB_PEER_BYTES / PEER_PAGES >> 8));
    weft__put_u64(w, fuzz_near(in, s->id));
    weft__put_u32(w, how & 64 ? (uint32_t)WEFT_EKEY : 0);
    weft__put_u8(w, how >> 4 & 1);
    weft__put_u32(w, how & 32 ? WEFT_READ : WEFT_READ | WEFT_WRITE);
    weft__put_u64(w, fuzz_near(in, 0x10000));
    weft__put_u64(w, fuzz_near(in, how & 128 ? STUB_PEER_BYTES : MOST));
    weft__put(w, pci, sizeof pci);
    weft__put(w, handle, sizeof handle);
}

static void put_body(struct run *run, const struct weft__msg_head *h, const struct seen *s,
                     struct weft__writer *w)
{
    static const uint8_t text[STUB_MAX_SEND] = "text";
    switch (h->type) {
    case WEFT__MSG_EAGER:
        weft__put(w, text, h->len < 8000 ? h->len : 8000);
        break;
    case WEFT__MSG_LARGE:
        put_remotes(run, w, h->len);
        break;
    case WEFT__MSG_RESULT:
        put_status(&run->in, w);
        break;
    case WEFT__MSG_ADD:
        put_add(run, w);
        break;
    case WEFT__MSG_ADDED:
        weft__put_u64(w, fuzz_near(&run->in, s->id));
        put_status(&run->in, w);
        weft__put_u64(w, 7);
        break;
    case WEFT__MSG_STAGE_AREA:
        put_area(run, w);
        break;
    case WEFT__MSG_STAGE_COPY:
        put_copy(run, w);
        break;
    case WEFT__MSG_STAGE_COPIED:
        weft__put_u32(w, (uint32_t)fuzz_near(&run->in, (uint32_t)s->id));
        put_status(&run->in, w);
        break;
    case WEFT__MSG_IPC_ASK:
        weft__put_u64(w, fuzz_near(&run->in, gpu_key));
        break;
    case WEFT__MSG_IPC_MAP:
        put_map(run, s, w);
        break;
    case WEFT__MSG_IPC_END:
        weft__put_u64(w, fuzz_near(&run->in, s->id));
        weft__put_u32(w, fuzz_u8(&run->in));
        break;
    default:
        break;
    }
}

/* An honest head, but for what the input changes. */
static struct weft__msg_head make_head(struct run *run, uint8_t type, const struct seen *s)
{
    struct fuzz_in *in = &run->in;
    uint8_t odd = fuzz_u8(in);
    bool users = type == WEFT__MSG_EAGER || type == WEFT__MSG_LARGE;
    uint8_t stream = users ? odd & 1 : s->head.stream;
    struct weft__msg_head h = {.type = type,
                               .flags = odd >> 1 & 1,
                               .stream = stream,
                               .seq = run->seq++,
                               .index = users ? run->index[stream]++ : s->head.index};
    if (users)
        h.len = pick_size(in);
    if (odd & 4)
        for (int i = 0; i < WEFT__STREAMS; i++)
            run->taken[i] = (uint32_t)fuzz_near(in, run->eager[i]);
    if (odd & 8)
        h.seq = fuzz_near(in, h.seq);
    if (odd & 16)
        h.index = (uint32_t)fuzz_near(in, h.index);
    if ((odd & 0xe0) == 0xe0)
        h.len = fuzz_near(in, h.len);
    if ((odd & 0xe0) == 0xc0)
        h.flags = fuzz_u8(in);
    if ((odd & 0xe0) == 0xa0)
        h.stream = fuzz_u8(in);
    if ((odd & 0xe0) == 0x80) /* again, or ahead */
        h.seq = run->seq += (uint64_t)(int8_t)fuzz_u8(in);
    memcpy(h.taken, run->taken, sizeof h.taken);
    return h;
}

static void say(struct run *run, uint8_t type)
{
    uint8_t bytes[STUB_MAX_SEND];
    struct weft__writer w = {bytes, bytes + sizeof bytes, false};
    const struct seen *s = &run->seen[fuzz_u8(&run->in) % SEEN];
    struct weft__msg_head h = make_head(run, type, s);
    peer_put_head(&w, &h);
    put_body(run, &h, s, &w);
    struct weft_link *link = stub_link_at(fuzz_pick(&run->in, 2));
    if (!link)
        link = stub_link_at(0);
    size_t len = fuzz_damage(&run->in, bytes, (size_t)(w.at - bytes));
    if (link)
        stub_receive(link, bytes, len);
}

/* --- one input ------------------------------------------------------------------------------ */

static void set_gpu(uint8_t how)
{
    stub_gpu_script = (struct stub_gpu_script){.pin_fails = (how & 0xc0) == 0xc0,
                                               .start_fails = (how & 0x30) == 0x30,
                                               .done_fails = (how & 0x0c) == 0x0c,
                                               .ipc_fails = (how & 0xc0) == 0x80,
                                               .ipc_passes = (how & 0xc0) == 0x40,
                                               .later = how & 3};
}

static void set_gates(uint8_t how)
{
    stub_script.shut = how & 1;
    stub_script.recall_later = how >> 4 & 3;
    stub_script.take_later = how >> 6;
}

/* Areas that wait to be used. */
static int free_areas(void)
{
    int n = 0;
    for (const struct weft__area *area = ep->copier.areas; area; area = area->next)
        n++;
    return n;
}

/* Behind what is registered nothing is written. */
static void check_gpu(void)
{
    const uint8_t *bytes = stub_gpu_bytes() + GPU_AT + GPU_LEN;
    for (size_t i = 0; i < GPU_LEN; i++)
        FUZZ_CHECK(bytes[i] == 0x77);
}

static void step(struct run *run)
{
    uint8_t what = fuzz_u8(&run->in);
    struct weft_link *link;
    if (what < 112)
        say(run, what % (WEFT__MSG_STAGE_OPEN + 1));
    else if (what < 160)
        do_post(run);
    else if (what < 208)
        end_cmds(run);
    else if (what < 216)
        take_notifs(1 + what % 8);
    else if (what < 224 && run->nops)
        weft_op_cancel(run->ops[what % run->nops].handle);
    else if (what < 228 && (link = stub_link_at(what % 2)))
        stub_down(link, what & 2 ? WEFT_EPROTO : WEFT_EPEER);
    else if (what < 240)
        stub_script.accept_at_most = what % 4;
    else if (what < 244)
        stub_script.dereg_later = what % 4;
    else if (what < 252)
        say(run, (uint8_t)(WEFT__MSG_STAGE_OPEN + what % 4));
    else if (what == 252)
        run->staged = fuzz_u8(&run->in);
    else if (what == 253)
        say(run, (uint8_t)(WEFT__MSG_IPC_ASK + fuzz_pick(&run->in, 3)));
    else if (what == 254)
        set_gpu(fuzz_u8(&run->in));
    else
        set_gates(fuzz_u8(&run->in));
    if (what % 4)
        peer_drive(ep);
    for (int i = 0; i < run->nops && what % 4 == 3; i++)
        reap(&run->ops[i]);
}

static void end(struct run *run)
{
    stub_script = (struct stub_script){0};
    stub_gpu_script = (struct stub_gpu_script){0};
    pthread_mutex_lock(&ep->lock);
    weft__conn_down(run->conn, WEFT_EPEER, "the input is over");
    pthread_mutex_unlock(&ep->lock);
    weft__kick_all(ep);
    peer_drive(ep);
    while (!weft__copier_idle(&ep->copier))
        peer_drive(ep);
    for (int i = 0; i < run->nops; i++)
        FUZZ_CHECK(reap(&run->ops[i]));
    FUZZ_OK(weft_conn_close(run->conn->handle));
    take_notifs(INT32_MAX);
    FUZZ_CHECK(!ep->notifs && !ep->notif_bytes && !ep->nconns && !ep->tells);
    FUZZ_CHECK(!stub_link_at(0) && stub_nregs() == ep->nlanes * (1 + free_areas()));
    FUZZ_CHECK(stub_gpu_mapped() == 0);
    FUZZ_CHECK(!ep->served_adds && !ep->copier.retired == (stub_gpu_pinned() == free_areas()));
    check_gpu();
    for (int i = 0; i < GUARD; i++)
        FUZZ_CHECK(memory[i] == 0x7777777777777777u &&
                   memory[GUARD + WORDS + i] == 0x7777777777777777u);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct run run;
    if (!endpoint)
        set_up();
    memset(&run, 0, sizeof run);
    run.in = (struct fuzz_in){data, data + size};
    run.conn = open_conn(&run.in);
    for (int i = 0; i < STEPS && fuzz_more(&run.in); i++) {
        step(&run);
        FUZZ_CHECK(ep->notif_bytes <= QUEUE + ep->window * 2);
    }
    end(&run);
    return 0;
}
