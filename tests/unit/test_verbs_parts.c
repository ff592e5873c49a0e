/* SPDX-License-Identifier: Apache-2.0 */
/* verbs: memory that the device does not register at once, at either end or both. Operations anywhere in it do
 * what they do in other memory; and what a peer says of its keys is not believed. */
#include "verbs_pair.h"

#include <sys/mman.h>

#include "transports/verbs/verbs.h"

#define A PAIR_A
#define B PAIR_B
#define K ((size_t)1024)
#define WHOLE UINT64_MAX /* not in parts */

/* The buffer of a side, registered anew as if the device took so much at once. */
static void reg_again(struct verbs_pair *vp, int side, uint64_t at_once, uint32_t access)
{
    PAIR_OK(vp->pair.ops->mem_dereg(vp->pair.side[side].nic, vp->mem[side].mem));
    nic_of(vp, side)->mr_max = at_once;
    vp->mem[side] = pair_reg(&vp->pair, side, vp->buf[side], VERBS_PAIR_BYTES, access, 0);
}

static uint32_t parts_of(const struct verbs_pair *vp, int side)
{
    return ((const struct verbs_mem *)vp->mem[side].mem)->nparts;
}

static void open_parted(struct verbs_pair *vp, const char *config, uint64_t a, uint64_t b)
{
    verbs_pair_open(vp, config);
    reg_again(vp, A, a, PAIR_ALL);
    reg_again(vp, B, b, PAIR_ALL);
}

/* A place in the buffer, from the first border of parts of this length that is 1 MiB in it. */
static size_t from_border(const struct verbs_pair *vp, int side, size_t part, int64_t by)
{
    uintptr_t at = (uintptr_t)vp->buf[side] + 1024 * K;
    return (at / part + 1) * part - (uintptr_t)vp->buf[side] + (size_t)by;
}

/* --- registration ---------------------------------------------------------------------------- */

static struct weft_mem_range range_of(void *addr, uint64_t len)
{
    return (struct weft_mem_range){
        .addr = addr, .len = len, .access = PAIR_ALL, .kind = WEFT_MEM_HOST, .dmabuf_fd = -1};
}

static void *reserve(size_t len)
{
    void *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                    -1, 0);
    CHECK(at != MAP_FAILED, "cannot map %zu bytes", len);
    return at;
}

static void a_device_that_says_its_limit_gets_no_more(void **state)
{
    (void)state;
    static const struct {
        const char *config;
        uint64_t most, part;
    } cases[] = {
        {"max_mr_size=64K", 64 * K, 64 * K},
        {"max_mr_size=100000", 100000, 64 * K}, /* as a whole, although it crosses borders */
        {"max_mr_size=90000", 90000, 64 * K},
        {"max_mr_size=16K", 16 * K, 16 * K},
        {"max_mr_size=2M", 2048 * K, 2048 * K}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct verbs_pair vp;
        struct fake_verbs_stats before, after;
        struct weft_mem_handle mem;
        verbs_pair_open(&vp, cases[i].config);
        verbs_pair_works(&vp);
        uint64_t from = (uintptr_t)vp.buf[A] + 512, len = 3 * cases[i].part / 2;
        struct weft_mem_range range = range_of(vp.buf[A] + 512, len);
        uint64_t n = len <= cases[i].most
                         ? 1
                         : (from + len - 1) / cases[i].part - from / cases[i].part + 1;
        int objects = fake_verbs_objects();
        fake_verbs_stats(&before);
        PAIR_OK(vp.pair.ops->mem_reg(vp.pair.side[A].nic, &range, &mem));
        fake_verbs_stats(&after);
        assert_int_equal(after.registrations - before.registrations, n);
        assert_int_equal(fake_verbs_objects(), objects + (int)n);
        PAIR_OK(vp.pair.ops->mem_dereg(vp.pair.side[A].nic, mem.mem));
        assert_int_equal(fake_verbs_objects(), objects);
        verbs_pair_close(&vp);
    }
}

/* What it does take is found out once. */
static void a_device_that_lies_is_found_out(void **state)
{
    (void)state;
    struct verbs_pair vp;
    struct weft_mem_handle mem[2];
    const size_t len = 700 * K * K;
    uint8_t *at = reserve(len);
    verbs_pair_open(&vp, "mr_limit=150M");
    for (int i = 0; i < 2; i++) {
        struct weft_mem_range range = range_of(at + i, len - 1);
        int before = fake_verbs_objects();
        if (i == 1) /* were it to begin with a search, it would end with this */
            fake_verbs_fail_call("ibv_reg_mr", 10, EPERM, true);
        PAIR_OK(vp.pair.ops->mem_reg(vp.pair.side[A].nic, &range, &mem[i]));
        fake_verbs_fail_call("ibv_reg_mr", 1, 0, false);
        int n = fake_verbs_objects() - before;
        CHECK(n >= 6 && n <= 7, "%d registrations of 700 MiB", n);
        assert_int_equal(nic_of(&vp, A)->mr_max, 128 * K * K);
    }
    for (int i = 0; i < 2; i++)
        PAIR_OK(vp.pair.ops->mem_dereg(vp.pair.side[A].nic, mem[i].mem));
    verbs_pair_works(&vp);
    verbs_pair_close(&vp);
    munmap(at, len);
}

static void a_registration_is_all_or_nothing(void **state)
{
    (void)state;
    static const int errors[] = {ENOMEM, EPERM, EINVAL};
    struct verbs_pair vp;
    struct weft_mem_handle mem;
    verbs_pair_open(&vp, "");
    struct weft_nic *nic = vp.pair.side[A].nic;
    nic_of(&vp, A)->mr_max = 64 * K;
    struct weft_mem_range range = range_of(vp.buf[A], 640 * K);
    int objects = fake_verbs_objects();
    for (size_t i = 0; i < ARRAY_LEN(errors); i++) {
        for (int nth = 1; nth <= 10; nth++) {
            fake_verbs_fail_call("ibv_reg_mr", nth, errors[i], false);
            WEFT_FAILS(-errors[i], vp.pair.ops->mem_reg(nic, &range, &mem));
            assert_int_equal(fake_verbs_objects(), objects);
        }
    }
    PAIR_OK(vp.pair.ops->mem_reg(nic, &range, &mem));
    for (int nth = 1; nth <= 3; nth++) { /* in use, it seems */
        fake_verbs_fail_call("ibv_dereg_mr", 1, EBUSY, false);
        WEFT_FAILS(WEFT_EAGAIN, (weft_fail(0, "-"), vp.pair.ops->mem_dereg(nic, mem.mem)));
    }
    for (size_t i = 0; i < ARRAY_LEN(errors); i++) { /* and peers may reach it as before */
        fake_verbs_fail_call("ibv_dereg_mr", 1, errors[i], true);
        WEFT_FAILS(WEFT_EAGAIN, (weft_fail(0, "-"), vp.pair.ops->mem_dereg(nic, mem.mem)));
        fake_verbs_fail_call("ibv_dereg_mr", 1, 0, true);
        assert_true(fake_verbs_objects() > objects);
    }
    PAIR_OK(vp.pair.ops->mem_dereg(nic, mem.mem));
    assert_int_equal(fake_verbs_objects(), objects);
    assert_int_equal(nic_of(&vp, A)->nparted, 0);
    verbs_pair_close(&vp);
}

static void too_many_parts_are_an_error(void **state)
{
    (void)state;
    struct verbs_pair vp;
    struct weft_mem_handle mem;
    const size_t len = 256 * K * K;
    uint8_t *at = reserve(len);
    verbs_pair_open(&vp, "max_mr=1000");
    struct weft_nic *nic = vp.pair.side[A].nic;
    struct weft_mem_range range = range_of(at, len);
    int objects = fake_verbs_objects();
    nic_of(&vp, A)->mr_max = 64 * K; /* more registrations than the device has */
    WEFT_FAILS(-ENOMEM, vp.pair.ops->mem_reg(nic, &range, &mem));
    nic_of(&vp, A)->mr_max = 4 * K; /* more than a peer may be told */
    WEFT_FAILS(-EMSGSIZE, vp.pair.ops->mem_reg(nic, &range, &mem));
    nic_of(&vp, A)->mr_max = K;
    range.len = 4 * K;
    WEFT_FAILS(-EMSGSIZE, vp.pair.ops->mem_reg(nic, &range, &mem));
    assert_int_equal(fake_verbs_objects(), objects);
    verbs_pair_close(&vp);
    /* no length works: it is not the length, or not worth a search */
    verbs_pair_open(&vp, "mr_limit=32M");
    objects = fake_verbs_objects();
    range.len = len;
    WEFT_FAILS(-ENOMEM, vp.pair.ops->mem_reg(vp.pair.side[A].nic, &range, &mem));
    CHECK(strstr(weft_last_error(), "ulimit"), "%s", weft_last_error());
    assert_int_equal(fake_verbs_objects(), objects);
    verbs_pair_works(&vp);
    verbs_pair_close(&vp);
    munmap(at, len);
}

/* --- operations ------------------------------------------------------------------------------ */

static const uint64_t lengths[] = {WHOLE, 1024 * K, 64 * K, 16 * K};

/* One operation of side A. How its local end is given: */
enum how { PLAIN, PIECES, UNREGISTERED, INLINE, HOWS };

static void one(struct verbs_pair *vp, enum weft_op op, size_t local, size_t remote, size_t len,
                enum how how)
{
    static uint64_t seed = 100;
    struct weft_cmd cmd = verbs_pair_cmd(vp, A, op, local, remote, len);
    struct weft_iov_local iov[3];
    int to = op == WEFT_OP_READ ? A : B;
    uint8_t *target = vp->buf[to] + (to == A ? local : remote);
    uint8_t *source = vp->buf[!to] + (to == A ? remote : local), before = target[-1],
            after = target[len];
    if (how == INLINE && (len > VERBS_MAX_INLINE || op == WEFT_OP_READ))
        return;
    if (how == UNREGISTERED)
        cmd.one.mem = NULL;
    if (how == INLINE)
        cmd.flags = WEFT_CMD_INLINE;
    if (how == PIECES) {
        size_t a = len / 3, b = len / 2;
        for (int i = 0; i < 3; i++)
            iov[i] = cmd.one;
        iov[0].len = a;
        iov[1].len = b - a;
        iov[1].addr = vp->buf[A] + local + a;
        iov[2].len = len - b;
        iov[2].addr = vp->buf[A] + local + b;
        cmd.niov = 3;
        cmd.iov = iov;
    }
    test_fill(source, len, ++seed, 0);
    test_zero(target, len);
    if (how == INLINE)
        fake_verbs_hold();
    verbs_pair_post(vp, A, &cmd, 1);
    if (how == INLINE) {
        test_zero(source, len);
        fake_verbs_release(-1);
    }
    int status = pair_wait(&vp->pair, A, op, cmd.ctx).comp.status;
    CHECK(status == 0 && test_differs(target, len, seed, 0) < 0 && target[-1] == before &&
              target[len] == after,
          "op %d of %zu bytes from %zu to %zu, in %u and %u parts, as %d: %s", op, len, local,
          remote, parts_of(vp, A), parts_of(vp, B), how, weft_err_name(status));
    if (op == WEFT_OP_WRITE_IMM)
        assert_int_equal(pair_wait(&vp->pair, B, WEFT_OP_WRITE_IMM, 0).comp.imm, (uint32_t)remote);
}

static void anywhere(struct verbs_pair *vp, size_t len, bool forget)
{
    static const enum weft_op ops[] = {WEFT_OP_WRITE, WEFT_OP_WRITE_IMM, WEFT_OP_READ};
    const size_t half = len / 2, part = 64 * K;
    const size_t remotes[] = {1,
                              from_border(vp, B, part, 0),
                              from_border(vp, B, part, -(int64_t)half),
                              from_border(vp, B, 1024 * K, -(int64_t)half - 1),
                              from_border(vp, B, part, 0) + 5 * part,
                              VERBS_PAIR_BYTES - len - 1};
    for (size_t i = 0; i < ARRAY_LEN(remotes); i++) {
        size_t local = i % 2 ? from_border(vp, A, part, -(int64_t)half) : 1 + 100 * i;
        if (local + len >= VERBS_PAIR_BYTES || remotes[i] + len >= VERBS_PAIR_BYTES)
            continue;
        for (size_t k = 0; k < ARRAY_LEN(ops); k++) {
            for (enum how how = PLAIN; how < HOWS; how++) {
                if (forget)
                    verbs_keys_drop_all(link_of(vp, A));
                one(vp, ops[k], local, remotes[i], len, how);
            }
        }
    }
}

/* How often queue pairs of side A failed, modulo 256. */
static uint32_t faults_of(struct verbs_pair *vp)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < link_of(vp, A)->ndata; i++)
        n += link_of(vp, A)->data[i].epoch;
    return n % 256;
}

/* forget: each one is the first that goes there. After that no device refuses anything. */
static void operations_reach_every_part(void **state)
{
    (void)state;
    static const size_t lens[] = {1, 64, 257, 5000, 40000, 100000, 1100000};
    for (size_t a = 0; a < ARRAY_LEN(lengths); a++) {
        for (size_t b = 0; b < ARRAY_LEN(lengths); b++) {
            struct verbs_pair vp;
            open_parted(&vp, a % 2 ? "max_sge=2" : "", lengths[a], lengths[b]);
            for (size_t i = 0; i < ARRAY_LEN(lens); i++) {
                anywhere(&vp, lens[i], true);
                one(&vp, WEFT_OP_READ, 1, VERBS_PAIR_BYTES - 100, 50, PLAIN);
                uint32_t before = faults_of(&vp);
                anywhere(&vp, lens[i], false);
                assert_int_equal(faults_of(&vp), before);
            }
            assert_int_equal(link_of(&vp, A)->ntables, lengths[b] != WHOLE);
            assert_int_equal(link_of(&vp, A)->nposted, 0);
            assert_int_equal(nic_of(&vp, A)->nlong, 0);
            verbs_pair_works(&vp);
            verbs_pair_close(&vp);
        }
    }
}

static void additions_reach_every_part(void **state)
{
    (void)state;
    struct verbs_pair vp;
    open_parted(&vp, "", 16 * K, 64 * K);
    for (size_t border = from_border(&vp, B, 64 * K, 0); border < VERBS_PAIR_BYTES;
         border += 64 * K) {
        for (size_t at = border - 8; at <= border; at += 8) {
            uint64_t *word = (uint64_t *)(void *)(vp.buf[B] + at), old = *word;
            struct weft_cmd cmd = verbs_pair_cmd(&vp, A, WEFT_OP_ADD64, 0, at, 8);
            verbs_pair_post(&vp, A, &cmd, 1);
            struct weft_comp comp = pair_wait(&vp.pair, A, WEFT_OP_ADD64, cmd.ctx).comp;
            assert_int_equal(comp.status, 0);
            assert_true(comp.value == old && *word == old + 1);
        }
    }
    verbs_pair_close(&vp);
}

static void a_dmabuf_may_be_in_parts(void **state)
{
    (void)state;
    struct verbs_pair vp;
    struct weft_mem_handle mem;
    open_parted(&vp, "", WHOLE, WHOLE);
    int fd = memfd_create("dmabuf", MFD_CLOEXEC);
    assert_int_equal(ftruncate(fd, 1 << 20), 0);
    uint8_t *map = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    uint8_t *gpu = (uint8_t *)(uintptr_t)0x7f0000001000;
    struct weft_mem_range range = range_of(gpu, 512 * K);
    range.kind = WEFT_MEM_DMABUF;
    range.dmabuf_fd = fd;
    range.dmabuf_offset = 8192;
    nic_of(&vp, B)->mr_max = 16 * K;
    PAIR_OK(vp.pair.ops->mem_reg(vp.pair.side[B].nic, &range, &mem));
    assert_int_equal(((struct verbs_mem *)mem.mem)->nparts, 33);
    struct weft_cmd cmd = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 0, 0, 500 * K);
    cmd.remote_addr = (uintptr_t)gpu + 100;
    cmd.remote_key = mem.rkey;
    assert_int_equal(pair_do(&vp.pair, A, &cmd), 0);
    assert_memory_equal(map + 8192 + 100, vp.buf[A], 500 * K);
    cmd = verbs_pair_cmd(&vp, B, WEFT_OP_READ, 0, 77, 300 * K); /* and as the local end */
    cmd.one = (struct weft_iov_local){gpu + 5000, 300 * K, mem.mem};
    assert_int_equal(pair_do(&vp.pair, B, &cmd), 0);
    assert_memory_equal(map + 8192 + 5000, vp.buf[A] + 77, 300 * K);
    PAIR_OK(vp.pair.ops->mem_dereg(vp.pair.side[B].nic, mem.mem));
    munmap(map, 1 << 20);
    close(fd);
    verbs_pair_close(&vp);
}

/* --- what is refused ------------------------------------------------------------------------- */

static int try_at(struct verbs_pair *vp, enum weft_op op, int64_t remote, size_t len, uint64_t key)
{
    struct weft_cmd cmd = verbs_pair_cmd(vp, A, op, 8, 8, len);
    cmd.remote_addr = (uintptr_t)vp->buf[B] + (uint64_t)remote;
    cmd.remote_key = key;
    return pair_do(&vp->pair, A, &cmd);
}

static void errors_are_those_of_other_memory(void **state)
{
    (void)state;
    static const enum weft_op ops[] = {WEFT_OP_WRITE, WEFT_OP_WRITE_IMM, WEFT_OP_READ};
    static const size_t lens[] = {0, 1, 64, 300, 40000, 200000};
    const int64_t end = VERBS_PAIR_BYTES;
    struct verbs_pair vp;
    open_parted(&vp, "", 16 * K, 64 * K);
    for (int known = 0; known < 2; known++) { /* are the keys of its parts? */
        for (size_t i = 0; i < ARRAY_LEN(lens); i++) {
            for (size_t k = 0; k < ARRAY_LEN(ops); k++) {
                int64_t len = (int64_t)lens[i];
                uint64_t key = vp.mem[B].rkey;
                if (len == 0 && ops[k] == WEFT_OP_WRITE_IMM)
                    continue;
                assert_int_equal(try_at(&vp, ops[k], end - len + 1, lens[i], key), WEFT_EBOUNDS);
                assert_int_equal(try_at(&vp, ops[k], -1, lens[i], key), WEFT_EBOUNDS);
                assert_int_equal(try_at(&vp, ops[k], 1 << 30, lens[i], key), WEFT_EBOUNDS);
                assert_int_equal(try_at(&vp, ops[k], 300000, lens[i], key ^ 0x5000), WEFT_EKEY);
                if (known)
                    assert_int_equal(try_at(&vp, ops[k], end - len, lens[i], key), 0);
                else
                    verbs_keys_drop_all(link_of(&vp, A));
            }
        }
    }
    struct pair_comp imm;
    while (pair_take(&vp.pair, B, WEFT_OP_WRITE_IMM, 0, &imm))
        ;
    reg_again(&vp, B, 64 * K, WEFT_ACCESS_READ);
    assert_int_equal(try_at(&vp, WEFT_OP_READ, 300000, 64, vp.mem[B].rkey), 0);
    for (int known = 1; known >= 0; known--) {
        for (size_t i = 0; i < ARRAY_LEN(lens); i++) {
            assert_int_equal(try_at(&vp, WEFT_OP_WRITE, 300000, lens[i], vp.mem[B].rkey),
                             WEFT_EACCESS);
            verbs_keys_drop_all(link_of(&vp, A));
        }
        assert_int_equal(try_at(&vp, WEFT_OP_ADD64, 300000, 8, vp.mem[B].rkey), WEFT_EACCESS);
    }
    assert_int_equal(link_of(&vp, A)->state, VERBS_LINK_UP);
    reg_again(&vp, B, WHOLE, PAIR_ALL);
    verbs_pair_works(&vp);
    verbs_pair_close(&vp);
}

/* A device that refuses all the same, whatever the peer's program says, has the last word. */
static void a_device_that_insists_is_believed(void **state)
{
    (void)state;
    struct verbs_pair vp;
    for (size_t len = 64; len <= 200 * K; len += 200 * K - 64) {
        open_parted(&vp, "", WHOLE, 64 * K);
        for (int i = 0; i < 8; i++)
            fake_verbs_fail_send(IBV_WR_RDMA_WRITE, 1, IBV_WC_REM_ACCESS_ERR, false);
        if (len == 64)
            assert_int_equal(try_at(&vp, WEFT_OP_WRITE, 300000, len, vp.mem[B].rkey),
                             WEFT_EACCESS);
        else /* as patient as a device may be unlucky in each queue pair */
            assert_int_equal(try_at(&vp, WEFT_OP_WRITE, 300000, len, vp.mem[B].rkey), 0);
        assert_int_equal(fake_verbs_reset(), EBUSY); /* no more of them */
        uint32_t before = faults_of(&vp);
        fake_verbs_fail_send(IBV_WR_RDMA_WRITE, 1, IBV_WC_REM_ACCESS_ERR, false);
        assert_int_equal(try_at(&vp, WEFT_OP_WRITE, 64, 64, vp.mem[B].rkey), WEFT_EACCESS);
        /* for the first part there is no other key */
        assert_int_equal(faults_of(&vp), (before + 1) % 256);
        verbs_pair_works(&vp);
        verbs_pair_close(&vp);
    }
}

/* Of a refusal that other keys cannot help nothing is tried again. */
static void what_other_keys_cannot_help_ends_at_once(void **state)
{
    (void)state;
    struct verbs_pair vp;
    open_parted(&vp, "", WHOLE, 64 * K);
    assert_int_equal(try_at(&vp, WEFT_OP_WRITE, 300000, 64, vp.mem[B].rkey), 0);
    uint32_t before = faults_of(&vp);
    assert_int_equal(try_at(&vp, WEFT_OP_WRITE, VERBS_PAIR_BYTES - 10, 64, vp.mem[B].rkey), WEFT_EBOUNDS);
    assert_int_equal(faults_of(&vp), before + 1);
    verbs_keys_drop_all(link_of(&vp, A));
    fake_verbs_fail_send(IBV_WR_RDMA_WRITE, 1, IBV_WC_LOC_PROT_ERR, false);
    assert_int_equal(try_at(&vp, WEFT_OP_WRITE, 300000, 64, vp.mem[B].rkey), -EFAULT);
    assert_int_equal(faults_of(&vp), before + 2);
    verbs_pair_works(&vp);
    verbs_pair_close(&vp);
}

/* The first request there is to the last byte: short ones, and chunks. */
static void the_last_byte_is_in_the_last_part(void **state)
{
    (void)state;
    static const size_t lens[] = {17 * 1024, 40000, 100000};
    struct verbs_pair vp;
    open_parted(&vp, "", WHOLE, 16 * K);
    for (size_t i = 0; i < ARRAY_LEN(lens); i++) {
        uint32_t before = faults_of(&vp);
        assert_int_equal(try_at(&vp, WEFT_OP_WRITE, (int64_t)(VERBS_PAIR_BYTES - lens[i]), lens[i], vp.mem[B].rkey), 0);
        assert_int_equal(faults_of(&vp), before + 1);
        verbs_keys_drop_all(link_of(&vp, A));
    }
    verbs_pair_works(&vp);
    verbs_pair_close(&vp);
}

/* A long operation may be unlucky more often than a short one, wherever its chunks are. */
static void a_long_operation_has_more_patience(void **state)
{
    (void)state;
    struct verbs_pair vp;
    open_parted(&vp, "", WHOLE, 64 * K);
    for (int i = 0; i < 6; i++)
        fake_verbs_fail_send(IBV_WR_RDMA_WRITE, 2 + 3 * i, IBV_WC_REM_ACCESS_ERR, false);
    assert_int_equal(try_at(&vp, WEFT_OP_WRITE, 300000, 2 << 20, vp.mem[B].rkey), 0);
    verbs_pair_works(&vp);
    verbs_pair_close(&vp);
}

/* --- keys that are old ----------------------------------------------------------------------- */

/* What the device's key stands for has changed: the link still has keys of what was there before. */
static void forget_old_keys(const char *config)
{
    static const uint64_t now[] = {WHOLE, 16 * K, 1024 * K};
    static const size_t lens[] = {64, 5000, 300 * K};
    static const size_t places[] = {100, 200000, 3 << 20};
    for (size_t i = 0; i < ARRAY_LEN(now); i++) {
        for (size_t k = 0; k < ARRAY_LEN(lens); k++) {
            for (size_t at = 0; at < ARRAY_LEN(places); at++) {
                struct verbs_pair vp;
                open_parted(&vp, config, WHOLE, 64 * K);
                assert_int_equal(try_at(&vp, WEFT_OP_WRITE, 300000, 64, vp.mem[B].rkey), 0);
                struct verbs_table *table = link_of(&vp, A)->tables;
                assert_non_null(table);
                uint64_t old = vp.mem[B].rkey;
                reg_again(&vp, B, now[i], PAIR_ALL);
                assert_int_equal(try_at(&vp, WEFT_OP_WRITE, 3 << 20, 64, old), WEFT_EKEY);
                assert_int_equal(link_of(&vp, A)->ntables, 0);
                /* and as if the key had come back */
                reg_again(&vp, B, 64 * K, PAIR_ALL);
                assert_int_equal(try_at(&vp, WEFT_OP_WRITE, 300000, 64, vp.mem[B].rkey), 0);
                reg_again(&vp, B, now[i], PAIR_ALL);
                link_of(&vp, A)->tables->key = (uint32_t)vp.mem[B].rkey;
                one(&vp, WEFT_OP_WRITE_IMM, 40, places[at], lens[k], PLAIN);
                one(&vp, WEFT_OP_READ, 40, places[at], lens[k], PLAIN);
                verbs_pair_works(&vp);
                verbs_pair_close(&vp);
            }
        }
    }
}

static void old_keys_are_forgotten(void **state)
{
    (void)state;
    forget_old_keys("");
    forget_old_keys("mute=1");
    forget_old_keys("mute=2");
}

/* Keys are told for one queue pair's guess and forgotten for another's refusal before the first is over: then they are
 * told once more. An old table, whose key has come back, is at hand; the short write is in the new first part and not
 * in the old one. */
static void tell_and_forget(enum ibv_wc_status how)
{
    struct verbs_pair vp;
    assert_int_equal(weft_config_set("WEFT_VERBS_QPS", "2"), 0);
    open_parted(&vp, "", WHOLE, 64 * K);
    assert_int_equal(try_at(&vp, WEFT_OP_WRITE, 300000, 64, vp.mem[B].rkey), 0);
    uintptr_t base = (uintptr_t)vp.buf[B];
    size_t part = 64 * K, border, old = (base / part + 1) * part - base;
    do { /* none in one of 32 places of the buffer: then it is all in the first part */
        part *= 2;
        border = (base / part + 1) * part - base;
    } while (border == old && part < 2048 * K);
    reg_again(&vp, B, part, PAIR_ALL);
    link_of(&vp, A)->tables->key = (uint32_t)vp.mem[B].rkey;
    fake_verbs_hold();
    struct weft_cmd cmds[] = {verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 2 << 20, 2 << 20, 100000),
                              verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 64, border - 1000, 64),
                              verbs_pair_cmd(&vp, B, WEFT_OP_READ, 3 << 20, 3 << 20, 100000)};
    fake_verbs_fail_send(IBV_WR_RDMA_WRITE, 1, how, false);
    verbs_pair_post(&vp, A, &cmds[0], 1);
    verbs_pair_post(&vp, A, &cmds[1], 1);
    verbs_pair_post(&vp, B, &cmds[2], 1);
    fake_verbs_release(2);
    pair_poll(&vp.pair, A);
    fake_verbs_release(-1);
    for (int i = 0; i < 3; i++) {
        struct pair_comp comp = pair_wait(&vp.pair, i == 2, (enum weft_op)cmds[i].op, cmds[i].ctx);
        assert_int_equal(comp.comp.status, 0);
    }
    verbs_pair_works(&vp);
    verbs_pair_close(&vp);
}

static void keys_that_are_told_and_forgotten_are_told_again(void **state)
{
    (void)state;
    tell_and_forget(IBV_WC_WR_FLUSH_ERR);
    tell_and_forget(IBV_WC_RETRY_EXC_ERR);
}

/* More memory in parts than a link keeps keys of. */
static void keys_make_room_for_others(void **state)
{
    (void)state;
    enum { N = VERBS_TABLES + 8 };
    struct verbs_pair vp;
    struct weft_mem_handle mem[N];
    open_parted(&vp, "", WHOLE, 4 * K);
    for (int i = 0; i < N; i++)
        mem[i] = pair_reg(&vp.pair, B, vp.buf[B] + 7 * K * (size_t)i, 8 * K, PAIR_ALL, 0);
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < N; i++)
            assert_int_equal(try_at(&vp, WEFT_OP_WRITE, 7 * 1024 * i + 1000, 7000, mem[i].rkey),
                             0);
    assert_int_equal(link_of(&vp, A)->ntables, VERBS_TABLES);
    /* what is used stays */
    for (int i = 0; i < N; i++) {
        assert_int_equal(try_at(&vp, WEFT_OP_WRITE, 7 * 1024 * i + 1000, 7000, mem[i].rkey), 0);
        uint32_t before = faults_of(&vp);
        assert_int_equal(try_at(&vp, WEFT_OP_WRITE, 1000, 7000, mem[0].rkey), 0);
        assert_int_equal(faults_of(&vp), before);
    }
    for (int i = 0; i < N; i++)
        PAIR_OK(vp.pair.ops->mem_dereg(vp.pair.side[B].nic, mem[i].mem));
    reg_again(&vp, B, WHOLE, PAIR_ALL);
    verbs_pair_works(&vp);
    assert_int_equal(nic_of(&vp, A)->nparted, VERBS_TABLES);
    verbs_pair_end(&vp, A);
    assert_int_equal(nic_of(&vp, A)->nparted, 0);
    assert_true(nic_of(&vp, A)->plain_max > 0);
    verbs_pair_close(&vp);
}

/* --- among others ---------------------------------------------------------------------------- */

#define MANY 48

/* Both ends have work under way in all parts, and neither knows the keys. */
static void the_first_fault_costs_nobody_else(void **state)
{
    (void)state;
    static const enum weft_op ops[] = {WEFT_OP_WRITE_IMM, WEFT_OP_WRITE, WEFT_OP_READ,
                                       WEFT_OP_WRITE_IMM};
    static const size_t lens[] = {64, 9000, 64, 20000, 300, 70000, 64};
    for (int held = 0; held < MANY; held += 7) {
        struct verbs_pair vp;
        struct weft_cmd cmds[2][MANY];
        uint8_t seen[2][MANY] = {{0}};
        int imms[2] = {0, 0};
        struct pair_comp comp;
        open_parted(&vp, "", 64 * K, 16 * K);
        fake_verbs_hold();
        for (int side = 0; side < 2; side++) {
            for (size_t i = 0; i < MANY; i++) {
                enum weft_op op = ops[i % ARRAY_LEN(ops)];
                size_t place = 80 * K * (i / 2);
                cmds[side][i] = verbs_pair_cmd(&vp, side, op,
                                               i % 2 ? place : VERBS_PAIR_BYTES / 2 + place, place,
                                               lens[i % ARRAY_LEN(lens)] / 2);
                if (op == WEFT_OP_READ)
                    cmds[side][i].remote_addr = (uintptr_t)vp.buf[!side] + place + 40 * K;
                else if (i % 2)
                    cmds[side][i].remote_addr += 40 * K;
                cmds[side][i].one.addr = vp.buf[side] + VERBS_PAIR_BYTES / 2 + 40 * K * i;
                cmds[side][i].imm = (uint32_t)i;
                cmds[side][i].ctx = 1 + i;
                imms[!side] += op == WEFT_OP_WRITE_IMM;
            }
            verbs_pair_post(&vp, side, cmds[side], MANY / 2);
        }
        fake_verbs_release(held);
        fake_verbs_release(-1);
        for (int side = 0; side < 2; side++)
            verbs_pair_post(&vp, side, cmds[side] + MANY / 2, MANY - MANY / 2);
        for (int side = 0; side < 2; side++) {
            for (size_t i = 0; i < MANY; i++) {
                const struct weft_cmd *cmd = &cmds[side][i];
                comp = pair_wait(&vp.pair, side, cmd->op, cmd->ctx);
                CHECK(comp.comp.status == 0, "cmd %zu of side %d: %s", i, side,
                      weft_err_name(comp.comp.status));
                if (cmd->op != WEFT_OP_READ)
                    assert_memory_equal(cmd->one.addr, (void *)(uintptr_t)cmd->remote_addr,
                                        cmd->len);
                assert_false(pair_take(&vp.pair, side, cmd->op, cmd->ctx, &comp));
            }
        }
        for (int side = 0; side < 2; side++) {
            for (int i = 0; i < imms[side]; i++) {
                uint32_t imm = pair_wait(&vp.pair, side, WEFT_OP_WRITE_IMM, 0).comp.imm;
                CHECK(imm < MANY && !seen[side][imm]++, "immediate %u", imm);
            }
        }
        verbs_pair_works(&vp);
        for (int side = 0; side < 2; side++)
            assert_false(pair_take(&vp.pair, side, WEFT_OP_WRITE_IMM, 0, &comp));
        verbs_pair_close(&vp);
    }
}

/* The answer is lost that refused a request for its key, or the device does not say which one it was for: it is
 * asked about, and goes again. */
static void a_request_without_an_answer_learns_the_keys(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct verbs_pair vp;
        bool delivered = i % 2;
        enum ibv_wc_status status = i < 2 ? IBV_WC_RETRY_EXC_ERR : IBV_WC_WR_FLUSH_ERR;
        open_parted(&vp, "", WHOLE, 64 * K);
        if (delivered) /* with the keys known, it happens */
            assert_int_equal(try_at(&vp, WEFT_OP_WRITE, 300000, 64, vp.mem[B].rkey), 0);
        fake_verbs_fail_send(IBV_WR_RDMA_WRITE_WITH_IMM, 1, status, delivered);
        one(&vp, WEFT_OP_WRITE_IMM, 40, 500000, 64, PLAIN);
        struct pair_comp more;
        verbs_pair_works(&vp);
        assert_false(pair_take(&vp.pair, B, WEFT_OP_WRITE_IMM, 0, &more));
        verbs_pair_close(&vp);
    }
}

static void a_link_may_be_closed_at_any_time(void **state)
{
    (void)state;
    for (int polls = 0; polls < 24; polls++) {
        struct verbs_pair vp;
        open_parted(&vp, "", 16 * K, 64 * K);
        struct weft_cmd cmds[] = {verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 0, 70000, 2 << 20),
                                  verbs_pair_cmd(&vp, A, WEFT_OP_WRITE_IMM, 0, 65000, 5000),
                                  verbs_pair_cmd(&vp, A, WEFT_OP_READ, 0, 130000, 5000)};
        cmds[2].one.mem = NULL;
        vp.pair.ops->post(vp.pair.side[A].link, cmds, ARRAY_LEN(cmds));
        for (int i = 0; i < polls; i++)
            pair_poll(&vp.pair, i % 2);
        verbs_pair_end(&vp, polls / 2 % 2);
        verbs_pair_close(&vp);
    }
}

/* --- peers that lie --------------------------------------------------------------------------- */

static struct verbs_keys_msg keys_msg(uint64_t addr, uint64_t len, uint8_t shift, uint16_t index)
{
    struct verbs_keys_msg msg = {.addr = htole64(addr),
                                 .len = htole64(len),
                                 .key = htole32(7),
                                 .index = htole16(index),
                                 .shift = shift};
    for (uint32_t i = 0; i < VERBS_KEYS_AT_ONCE; i++)
        msg.keys[i] = htole32(7 + index + i);
    return msg;
}

static void hear(struct verbs_pair *vp, struct verbs_keys_msg msg)
{
    verbs_keys_heard(link_of(vp, A), &msg);
}

/* The last one that side A hears is the one that makes no sense. */
static void keys_that_make_no_sense_end_the_link(void **state)
{
    (void)state;
    const uint64_t at = 1 << 20, len = 1 << 20;
    const struct {
        uint64_t addr, len;
        uint8_t shift;
        uint16_t index;
        uint32_t key, first;
        bool second; /* after one that does */
    } cases[] = {
        {at, len, 11, 0, 7, 7, false},
        {at, len, 64, 0, 7, 7, false},
        {at, len, 255, 0, 7, 7, false},
        {at, 0, 16, 0, 7, 7, false},
        {0, 0, 16, 0, 7, 7, false},
        {at, 65536, 16, 0, 7, 7, false}, /* one part */
        {UINT64_MAX - 4096, len, 16, 0, 7, 7, false},
        {UINT64_MAX - 4096, UINT64_MAX, 63, 0, 7, 7, false},
        {at, UINT64_MAX, 16, 0, 7, 7, false},
        {at, (uint64_t)VERBS_MAX_PARTS << 16 | 1, 16, 0, 7, 7, false},
        {at, len, 16, 10, 7, 7, false},
        {at, len, 16, 0, 7, 8, false},
        {at, len, 16, 0, 7, 7, true},
        {at, len, 16, 11, 7, 7, true},
        {at, len, 16, 10, 8, 8, true},
        {at, len - 1, 16, 10, 7, 7, true},
        {at + 1, len, 16, 10, 7, 7, true},
        {at, len, 17, 10, 7, 7, true},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct verbs_pair vp;
        verbs_pair_open(&vp, "");
        struct verbs_keys_msg msg = keys_msg(cases[i].addr, cases[i].len, cases[i].shift,
                                             cases[i].index);
        msg.key = htole32(cases[i].key);
        msg.keys[0] = htole32(cases[i].first);
        if (cases[i].second)
            hear(&vp, keys_msg(at, len, 16, 0));
        assert_int_equal(link_of(&vp, A)->state, VERBS_LINK_UP);
        hear(&vp, msg);
        CHECK(link_of(&vp, A)->state == VERBS_LINK_DOWN, "case %zu is believed", i);
        assert_int_equal(verbs_pair_down(&vp, A), WEFT_EPROTO);
        verbs_pair_end(&vp, A);
        verbs_pair_close(&vp);
    }
}

static void keys_that_make_sense_are_bounded(void **state)
{
    (void)state;
    struct verbs_pair vp;
    verbs_pair_open(&vp, "");
    for (uint32_t i = 0; i < 10; i++) {
        uint64_t len = (uint64_t)VERBS_MAX_PARTS << 12;
        for (uint16_t at = 0; at < VERBS_MAX_PARTS; at += VERBS_KEYS_AT_ONCE) {
            struct verbs_keys_msg msg = keys_msg(0, len, 12, at);
            msg.key = htole32(i);
            if (at == 0)
                msg.keys[0] = htole32(i);
            hear(&vp, msg);
        }
        assert_int_equal(link_of(&vp, A)->ntables, i < 4 ? i + 1 : 4);
        assert_null(link_of(&vp, A)->telling);
    }
    for (int i = 0; i < 3; i++) { /* of one key there is one table */
        hear(&vp, keys_msg(1 << 20, 3 << 16, 16, 0));
        assert_int_equal(link_of(&vp, A)->ntables, 4);
    }
    verbs_pair_works(&vp);
    verbs_pair_close(&vp);
}

/* Keys that are forgotten before the request goes again, so often: it is refused, and they are told once more. A peer
 * that always says "again" and tells nothing is like one whose keys are always forgotten. */
static void forget_too_soon(const char *config)
{
    for (int times = 0; times <= 5; times++) {
        struct verbs_pair vp;
        open_parted(&vp, config, 16 * K, 16 * K);
        struct verbs_link *link = link_of(&vp, A);
        struct weft_cmd cmd = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 0, 70000, 64);
        struct pair_comp end;
        int forgotten = 0;
        verbs_pair_post(&vp, A, &cmd, 1);
        fake_verbs_hold();
        TEST_UNTIL(
            pair_take(&vp.pair, A, WEFT_OP_WRITE, cmd.ctx, &end),
            {
                pair_poll(&vp.pair, A);
                if (link->data[0].state == VERBS_QP_RESET && link->ntables > 0 && forgotten < times) {
                    verbs_keys_drop_all(link);
                    forgotten++;
                }
                pair_poll(&vp.pair, B);
                fake_verbs_release(1);
            },
            "the write");
        fake_verbs_release(-1);
        assert_int_equal(forgotten, times < 4 ? times : 4);
        assert_int_equal(end.comp.status, times < 3 ? 0 : WEFT_EACCESS);
        verbs_pair_works(&vp);
        verbs_pair_close(&vp);
    }
}

/* Also where the device does not say what it refused, or does not answer. */
static void keys_that_are_forgotten_too_soon_are_told_again(void **state)
{
    (void)state;
    forget_too_soon("");
    forget_too_soon("mute=1");
    forget_too_soon("mute=2,retry_polls=100");
}

/* No verdict is positive, also where one was asked for. */
static void a_positive_verdict_ends_the_link(void **state)
{
    (void)state;
    struct verbs_pair vp;
    verbs_pair_open(&vp, "");
    struct verbs_link *link = link_of(&vp, A);
    struct weft_cmd cmd = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 0, 0, 64);
    cmd.remote_key = 7;
    verbs_pair_post(&vp, A, &cmd, 1);
    fake_verbs_hold();
    TEST_UNTIL(
        link->data[0].state == VERBS_QP_RESET,
        {
            pair_poll(&vp.pair, A);
            pair_poll(&vp.pair, B);
            if (link->data[0].state != VERBS_QP_RESET)
                fake_verbs_release(1);
        },
        "the fault");
    struct verbs_ready_msg msg = {.qp = 0, .epoch = link->data[0].epoch, .verdict = (int32_t)htole32(1)};
    verbs_fault_ready(link, &msg);
    assert_int_equal(link->state, VERBS_LINK_DOWN);
    fake_verbs_release(-1);
    verbs_pair_down(&vp, A);
    verbs_pair_close(&vp);
}

/* A verdict where nothing was asked: side B's last word is held back, and another one said. */
static void a_verdict_on_nothing_ends_the_link(void **state)
{
    (void)state;
    static const int verdicts[] = {WEFT_EAGAIN, WEFT_EKEY, -EIO, 1};
    for (size_t i = 0; i < ARRAY_LEN(verdicts); i++) {
        struct verbs_pair vp;
        verbs_pair_open(&vp, "");
        struct verbs_link *link = link_of(&vp, A);
        struct verbs_qp *qp = &link->data[0];
        struct weft_cmd cmd = verbs_pair_cmd(&vp, B, WEFT_OP_WRITE, 0, 0, 64);
        cmd.remote_key = 7;
        verbs_pair_post(&vp, B, &cmd, 1);
        fake_verbs_hold();
        TEST_UNTIL(
            qp->state == VERBS_QP_RESET,
            {
                pair_poll(&vp.pair, A);
                pair_poll(&vp.pair, B);
                if (qp->state != VERBS_QP_RESET)
                    fake_verbs_release(1);
            },
            "the fault");
        struct verbs_ready_msg msg = {.qp = 0, .epoch = qp->epoch};
        msg.verdict = (int32_t)htole32((uint32_t)verdicts[i]);
        verbs_fault_ready(link, &msg);
        assert_int_equal(link->state, VERBS_LINK_DOWN);
        fake_verbs_release(-1);
        assert_int_equal(verbs_pair_down(&vp, A), WEFT_EPROTO);
        verbs_pair_end(&vp, A);
        verbs_pair_close(&vp);
    }
}

/* Answers for one who takes none pile up so far, and no further. */
static void who_asks_and_takes_no_answer_is_left(void **state)
{
    (void)state;
    struct verbs_pair vp;
    struct verbs_credit {
        int none;
    } body = {0};
    verbs_pair_open(&vp, "");
    struct verbs_link *link = link_of(&vp, A);
    fake_verbs_hold();
    for (int i = 0; i < 40000 && link->state == VERBS_LINK_UP; i++)
        verbs_control_note(link, VERBS_CHECKED, &body, sizeof(struct verbs_checked_msg) / 2);
    assert_int_equal(link->state, VERBS_LINK_DOWN);
    fake_verbs_release(-1);
    assert_int_equal(verbs_pair_down(&vp, A), WEFT_EPROTO);
    verbs_pair_end(&vp, A);
    verbs_pair_close(&vp);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup(name, verbs_pair_reset)
    const struct CMUnitTest tests[] = {
        CASE(a_device_that_says_its_limit_gets_no_more),
        CASE(a_device_that_lies_is_found_out),
        CASE(a_registration_is_all_or_nothing),
        CASE(too_many_parts_are_an_error),
        CASE(operations_reach_every_part),
        CASE(additions_reach_every_part),
        CASE(a_dmabuf_may_be_in_parts),
        CASE(errors_are_those_of_other_memory),
        CASE(a_device_that_insists_is_believed),
        CASE(old_keys_are_forgotten),
        CASE(keys_that_are_told_and_forgotten_are_told_again),
        CASE(keys_make_room_for_others),
        CASE(the_first_fault_costs_nobody_else),
        CASE(a_request_without_an_answer_learns_the_keys),
        CASE(a_link_may_be_closed_at_any_time),
        CASE(keys_that_make_no_sense_end_the_link),
        CASE(keys_that_make_sense_are_bounded),
        CASE(keys_that_are_forgotten_too_soon_are_told_again),
        CASE(what_other_keys_cannot_help_ends_at_once),
        CASE(the_last_byte_is_in_the_last_part),
        CASE(a_long_operation_has_more_patience),
        CASE(a_positive_verdict_ends_the_link),
        CASE(a_verdict_on_nothing_ends_the_link),
        CASE(who_asks_and_takes_no_answer_is_left),
    };
    cmocka_set_test_filter(test_env("WEFT_TEST_CASE", "*"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
