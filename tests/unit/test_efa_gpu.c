/* SPDX-License-Identifier: Apache-2.0 */
/*
 * efa with memory of GPUs, over the double of libfabric: the GPU's addresses are reserved and cannot be touched, so whoever
 * copies with the processor ends the program.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <rdma/fi_domain.h>

#include "efa_pair.h"

extern const struct weft_transport weft_transport_efa;

#define A PAIR_A
#define B PAIR_B
#define LEN EFA_PAIR_BYTES
#define DEVICE 3

struct gpu_memory {
    uint8_t *addr, *bytes; /* the GPU's address; where the bytes are */
    int fd;
};

struct rig {
    struct efa_pair efa;
    struct gpu_memory gpu[2];
};

static void gpu_open(struct gpu_memory *gpu)
{
    gpu->fd = memfd_create("gpu", MFD_CLOEXEC);
    assert_int_equal(ftruncate(gpu->fd, LEN + 8192), 0);
    uint8_t *map = mmap(NULL, LEN + 8192, PROT_READ | PROT_WRITE, MAP_SHARED, gpu->fd, 0);
    gpu->addr = mmap(NULL, LEN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(map != MAP_FAILED && gpu->addr != MAP_FAILED);
    gpu->bytes = map + 8192;
    fake_fabric_gpu(gpu->addr, LEN, gpu->bytes);
}

static void gpu_close(struct gpu_memory *gpu)
{
    fake_fabric_gpu(gpu->addr, LEN, NULL);
    munmap(gpu->addr, LEN);
    munmap(gpu->bytes - 8192, LEN + 8192);
    close(gpu->fd);
}

static void rig_open(struct rig *rig, const char *settings, const char *gpu)
{
    efa_pair_open(&rig->efa, settings, gpu);
    for (int i = 0; i < 2; i++)
        gpu_open(&rig->gpu[i]);
}

static void rig_close(struct rig *rig)
{
    efa_pair_close(&rig->efa);
    for (int i = 0; i < 2; i++)
        gpu_close(&rig->gpu[i]);
}

static struct weft_mem_range range_of(const struct rig *rig, int side, uint32_t kind)
{
    return (struct weft_mem_range){.addr = rig->gpu[side].addr,
                                   .len = LEN,
                                   .access = PAIR_ALL,
                                   .kind = kind,
                                   .dmabuf_fd = kind == WEFT_MEM_DMABUF ? rig->gpu[side].fd : -1,
                                   .dmabuf_offset = kind == WEFT_MEM_DMABUF ? 8192 : 0,
                                   .ordinal = DEVICE,
                                   .key = 7u + (unsigned)side};
}

/* Between the first bytes of this side's memory and of the peer's: near, far: a GPU's, or else the host's. */
static struct weft_cmd cmd_of(const struct rig *rig, enum weft_op op, const struct weft_mem_handle *near,
                              const struct weft_mem_handle *far, uint64_t len)
{
    struct weft_cmd cmd = efa_pair_cmd(&rig->efa, op, len);
    if (near)
        cmd.one = (struct weft_iov_local){rig->gpu[A].addr, len, near->mem};
    if (far) {
        cmd.remote_addr = (uintptr_t)rig->gpu[B].addr;
        cmd.remote_key = far->rkey;
    }
    return cmd;
}

static void moves(struct rig *rig, const struct weft_mem_handle gpu[2])
{
    static const uint64_t lens[] = {1, 8, 4096, LEN};
    for (size_t i = 0; i < ARRAY_LEN(lens); i++)
        for (unsigned way = 1; way < 4; way++) {
            bool near = way & 1, far = way & 2;
            uint8_t *here = near ? rig->gpu[A].bytes : rig->efa.buf[A];
            uint8_t *there = far ? rig->gpu[B].bytes : rig->efa.buf[B];
            struct weft_cmd cmd = cmd_of(rig, WEFT_OP_WRITE, near ? &gpu[A] : NULL,
                                         far ? &gpu[B] : NULL, lens[i]);
            uint32_t seed = (uint32_t)(10 * i) + way;
            pair_fill(here, lens[i], seed);
            assert_int_equal(pair_do(&rig->efa.pair, A, &cmd), 0);
            assert_true(pair_filled(there, lens[i], seed));
            cmd.op = WEFT_OP_READ;
            pair_fill(there, lens[i], seed + 1000);
            assert_int_equal(pair_do(&rig->efa.pair, A, &cmd), 0);
            assert_true(pair_filled(here, lens[i], seed + 1000));
        }
}

static void reaches(uint32_t kind, const char *backend, enum fi_hmem_iface iface)
{
    struct rig rig;
    struct weft_mem_handle gpu[2];
    struct fake_fabric_registration before, after;
    rig_open(&rig, "hmem=1,local=1", backend);
    fake_fabric_registered(&before);
    for (int i = 0; i < 2; i++) {
        struct weft_mem_range range = range_of(&rig, i, kind);
        assert_true(rig.efa.pair.side[i].nic->attr.mem_kinds & kind);
        PAIR_OK(rig.efa.pair.ops->mem_reg(rig.efa.pair.side[i].nic, &range, &gpu[i]));
    }
    fake_fabric_registered(&after);
    assert_int_equal(after.count - before.count, 2);
    assert_int_equal(after.iface, iface);
    assert_int_equal(after.device, DEVICE);
    assert_int_equal(after.dmabuf, kind == WEFT_MEM_DMABUF);
    moves(&rig, gpu);
    /* an immediate, from two pieces of which one is the host's */
    struct weft_iov_local two[] = {{rig.gpu[A].addr + 64, 8, gpu[A].mem}, {rig.efa.buf[A], 8, rig.efa.mem[A].mem}};
    struct weft_cmd cmd = cmd_of(&rig, WEFT_OP_WRITE_IMM, &gpu[A], &gpu[B], 16);
    cmd.niov = 2;
    cmd.iov = two;
    assert_int_equal(pair_do(&rig.efa.pair, A, &cmd), 0);
    assert_int_equal(pair_wait(&rig.efa.pair, B, WEFT_OP_WRITE_IMM, 0).comp.imm, 77);
    assert_memory_equal(rig.gpu[B].bytes, rig.gpu[A].bytes + 64, 8);
    assert_memory_equal(rig.gpu[B].bytes + 8, rig.efa.buf[A], 8);
    /* what a processor would have to do is refused, and the link goes on */
    cmd = cmd_of(&rig, WEFT_OP_ADD64, NULL, &gpu[B], 8);
    cmd.value = 1;
    assert_int_equal(pair_do(&rig.efa.pair, A, &cmd), WEFT_EUNSUPPORTED);
    cmd = cmd_of(&rig, WEFT_OP_SEND, &gpu[A], NULL, 64);
    WEFT_FAILS(WEFT_EUNSUPPORTED, rig.efa.pair.ops->post(rig.efa.pair.side[A].link, &cmd, 1));
    CHECK(strstr(weft_last_error(), "GPU"), "%s", weft_last_error());
    moves(&rig, gpu);
    for (int i = 0; i < 2; i++)
        efa_pair_dereg(&rig.efa, i, gpu[i]);
    rig_close(&rig);
}

static void memory_of_a_gpu_by_its_address(void **state)
{
    (void)state;
    reaches(WEFT_MEM_PEER, "cuda", FI_HMEM_CUDA);
    reaches(WEFT_MEM_PEER, "hip", FI_HMEM_ROCR);
}

static void memory_of_a_gpu_by_a_dmabuf(void **state)
{
    (void)state;
    if (fi_version() < FI_VERSION(1, 20)) {
        struct rig rig;
        rig_open(&rig, "hmem=1", "cuda");
        assert_int_equal(rig.efa.pair.side[A].nic->attr.mem_kinds, WEFT_MEM_HOST | WEFT_MEM_PEER);
        rig_close(&rig);
        return;
    }
    reaches(WEFT_MEM_DMABUF, "cuda", FI_HMEM_CUDA);
    reaches(WEFT_MEM_DMABUF, "hip", FI_HMEM_ROCR);
}

/* Then core copies: the nic has nothing of the kind, and works. */
static void who_cannot_reach_it_says_so(void **state)
{
    (void)state;
    static const struct {
        const char *settings, *gpu;
    } cases[] = {
        {"hmem=2", "cuda"},          /* it would copy through the host's memory */
        {"hmem=1,noread=1", "cuda"}, /* READ by messages: so would this side */
        {"hmem=1", "host"},          /* a backend whose memory is the host's */
        {"hmem=1", NULL},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct rig rig;
        struct weft_mem_handle mem;
        rig_open(&rig, cases[i].settings, cases[i].gpu);
        assert_int_equal(rig.efa.pair.side[A].nic->attr.mem_kinds, WEFT_MEM_HOST);
        struct weft_mem_range range = range_of(&rig, A, WEFT_MEM_PEER);
        WEFT_FAILS(WEFT_EUNSUPPORTED, rig.efa.pair.ops->mem_reg(rig.efa.pair.side[A].nic, &range, &mem));
        struct weft_cmd cmd = efa_pair_cmd(&rig.efa, WEFT_OP_WRITE, LEN);
        pair_fill(rig.efa.buf[A], LEN, 5);
        assert_int_equal(pair_do(&rig.efa.pair, A, &cmd), 0);
        assert_true(pair_filled(rig.efa.buf[B], LEN, 5));
        rig_close(&rig);
    }
}

/* Then the other side's processor would have to read the GPU's memory for it. */
static void a_peer_without_read_is_refused(void **state)
{
    (void)state;
    struct rig rig;
    struct weft_mem_handle gpu;
    struct weft_nic *nic[2];
    memset(&rig, 0, sizeof rig);
    for (int i = 0; i < 2; i++) {
        struct weft_nic_opts opts = {.device = "shm", .lane = i, .gpu = i == B ? "cuda" : NULL};
        fake_fabric_set(i == B ? "hmem=1" : "hmem=1,noread=1");
        PAIR_OK(weft_transport_efa.ops->open(&opts, &nic[i]));
    }
    pair_adopt(&rig.efa.pair, nic[A], nic[B]);
    pair_connect(&rig.efa.pair);
    for (int i = 0; i < 2; i++) {
        gpu_open(&rig.gpu[i]);
        rig.efa.buf[i] = calloc(1, LEN);
        rig.efa.mem[i] = pair_reg(&rig.efa.pair, i, rig.efa.buf[i], LEN, PAIR_ALL, 100u + (unsigned)i);
    }
    struct weft_mem_range range = range_of(&rig, B, WEFT_MEM_PEER);
    PAIR_OK(rig.efa.pair.ops->mem_reg(nic[B], &range, &gpu));
    struct weft_cmd cmd = cmd_of(&rig, WEFT_OP_READ, NULL, &gpu, 4096);
    assert_int_equal(pair_do(&rig.efa.pair, A, &cmd), WEFT_EUNSUPPORTED);
    cmd = efa_pair_cmd(&rig.efa, WEFT_OP_READ, 4096); /* the host's is read as before */
    pair_fill(rig.efa.buf[B], 4096, 6);
    assert_int_equal(pair_do(&rig.efa.pair, A, &cmd), 0);
    assert_true(pair_filled(rig.efa.buf[A], 4096, 6));
    efa_pair_dereg(&rig.efa, B, gpu);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_of_a_gpu_by_its_address),
        cmocka_unit_test(memory_of_a_gpu_by_a_dmabuf),
        cmocka_unit_test(who_cannot_reach_it_says_so),
        cmocka_unit_test(a_peer_without_read_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
