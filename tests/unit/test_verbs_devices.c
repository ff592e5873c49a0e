/* SPDX-License-Identifier: Apache-2.0 */
/* verbs: which devices, ports, addresses and limits it finds, and that it works on all of them. */
#include "verbs_pair.h"

#include <sys/mman.h>

#include "core/registry.h"
#include "transports/verbs/verbs.h"

#define A PAIR_A
#define B PAIR_B
#define MOST 16

static struct weft_device_info list[MOST];

static int probe(const char *config)
{
    assert_int_equal(fake_verbs_configure(config), 0);
    memset(list, 0, sizeof list);
    int n = weft_transport_verbs.ops->probe(list, MOST);
    CHECK(n >= 0 && n <= MOST, "%d devices", n);
    return n;
}

static void expect_names(const char *config, const char *wanted)
{
    char names[512] = "";
    for (int i = 0, n = probe(config); i < n; i++) {
        strcat(names, i ? "," : "");
        strcat(names, list[i].name);
    }
    CHECK(!strcmp(names, wanted), "'%s' gives '%s', not '%s'",
          weft_config_str("WEFT_VERBS_DEVICES"), names, wanted);
}

/* --- devices and ports ----------------------------------------------------------------------- */

static void ports_have_names_where_there_are_several(void **state)
{
    (void)state;
    expect_names("devices=0", "");
    CHECK(*weft_last_error(), "nothing, and no reason");
    expect_names("", "fake0");
    expect_names("devices=2,ports=2", "fake0:1,fake0:2,fake1:1,fake1:2");
}

static void the_list_includes_and_excludes(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"fake1", "fake1:1,fake1:2"},
        {"fake1:2", "fake1:2"},
        {"^fake0", "fake1:1,fake1:2,fake2:1,fake2:2"},
        {"fake0,fake2:1", "fake0:1,fake0:2,fake2:1"},
        {"fake0,^fake0:1", "fake0:2"},
        {"nothing", "nothing"}, /* listed, to say that it is not there */
        {"fake", "fake"},
        {"fake1,fake3:1,^fake9", "fake1:1,fake1:2,fake3:1,^fake9"},
        {",,fake2:2,", "fake2:2"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        weft_config_set("WEFT_VERBS_DEVICES", cases[i][0]);
        expect_names("devices=3,ports=2", cases[i][1]);
        for (int k = 0; k < probe("devices=3,ports=2"); k++) {
            bool there = strchr(list[k].name, ':') && list[k].name[4] < '3';
            assert_int_equal(list[k].usable, there);
            CHECK(there || strstr(list[k].reason, cases[i][0]), "%s: %s", list[k].name, list[k].reason);
        }
    }
    struct weft_nic *nic;
    struct weft_nic_opts opts = {.device = "fake0:1"};
    WEFT_FAILS(WEFT_ENODEV, weft_transport_verbs.ops->open(&opts, &nic));
    verbs_pair_check_fake();
}

/* Who uses another transport is told why it is not this one. */
static void a_conn_says_why_it_is_not_verbs(void **state)
{
    (void)state;
    weft_endpoint_t endpoints[2];
    weft_conn_t conn;
    char metadata[WEFT_METADATA_MAX];
    struct weft_conn_info info;
    assert_int_equal(fake_verbs_configure(""), 0);
    weft_config_set("WEFT_VERBS_DEVICES", "nosuch");
    for (int i = 0; i < 2; i++)
        WEFT_OK(weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .transport = "auto"),
                                   &endpoints[i]));
    int len = weft_endpoint_metadata(endpoints[1], metadata, sizeof metadata);
    WEFT_OK(weft_endpoint_connect(endpoints[0], metadata, (size_t)len,
                                  WEFT_OPTS(weft_connect_opts, .transport = "tcp"), &conn));
    WEFT_OK(weft_conn_info(conn, &info));
    CHECK(strstr(info.why, "WEFT_VERBS_DEVICES=nosuch"), "'%s'", info.why);
    for (int i = 0; i < 2; i++)
        WEFT_OK(weft_endpoint_close(endpoints[i]));
}

/* A reason that was cut keeps none of the others away. */
static void a_long_reason_hides_no_other(void **state)
{
    (void)state;
    weft_endpoint_t endpoints[2];
    weft_conn_t conn;
    char metadata[WEFT_METADATA_MAX], devices[200];
    struct weft_conn_info info;
    assert_int_equal(fake_verbs_configure(""), 0);
    memset(devices, 'x', sizeof devices - 1); /* longer than what is kept of a reason, in many words */
    for (size_t i = 8; i < sizeof devices - 1; i += 8)
        devices[i] = ' ';
    devices[sizeof devices - 1] = 0;
    weft_config_set("WEFT_VERBS_DEVICES", devices);
    weft_config_set("WEFT_EFA_LIBRARY", "/nosuch");
    for (int i = 0; i < 2; i++)
        WEFT_OK(weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .transport = "auto"), &endpoints[i]));
    int len = weft_endpoint_metadata(endpoints[1], metadata, sizeof metadata);
    WEFT_OK(weft_endpoint_connect(endpoints[0], metadata, (size_t)len,
                                  WEFT_OPTS(weft_connect_opts, .transport = "tcp"), &conn));
    WEFT_OK(weft_conn_info(conn, &info));
    CHECK(strstr(info.why, "WEFT_VERBS_DEVICES=xxx"), "'%s'", info.why);
    if (weft__transport_find("efa"))
        CHECK(strstr(info.why, "efa"), "'%s'", info.why);
    for (int i = 0; i < 2; i++)
        WEFT_OK(weft_endpoint_close(endpoints[i]));
    weft_config_set("WEFT_EFA_LIBRARY", NULL);
}

static void mtus_are_what_they_may_be(void **state)
{
    (void)state;
    struct weft_nic_opts opts = {.device = "fake0"};
    struct weft_nic *nic;
    assert_int_equal(fake_verbs_configure("mtu=2048"), 0);
    static const struct {
        const char *bytes;
        enum ibv_mtu is;
    } cases[] = {{"256", IBV_MTU_256}, {"1024", IBV_MTU_1024}, {"2048", IBV_MTU_2048}, {"4096", IBV_MTU_2048}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        WEFT_OK(weft_config_set("WEFT_VERBS_MTU", cases[i].bytes));
        WEFT_OK(weft_transport_verbs.ops->open(&opts, &nic));
        assert_int_equal(((struct verbs_nic *)nic)->mtu, cases[i].is);
        weft_transport_verbs.ops->close(nic);
    }
    assert_int_equal(fake_verbs_configure("mtu=4096"), 0);
    WEFT_OK(weft_config_set("WEFT_VERBS_MTU", "4096"));
    WEFT_OK(weft_transport_verbs.ops->open(&opts, &nic));
    assert_int_equal(((struct verbs_nic *)nic)->mtu, IBV_MTU_4096);
    weft_transport_verbs.ops->close(nic);
    WEFT_FAILS(-EINVAL, weft_config_set("WEFT_VERBS_MTU", "1000"));
}

static void a_port_that_is_down_is_named_and_not_usable(void **state)
{
    (void)state;
    assert_int_equal(fake_verbs_configure("devices=2"), 0);
    assert_int_equal(fake_verbs_port("fake1", 1, false), 0);
    assert_int_equal(weft_transport_verbs.ops->probe(list, MOST), 2);
    assert_true(list[0].usable);
    assert_false(list[1].usable);
    CHECK(strstr(list[1].reason, "down"), "%s", list[1].reason);
    struct weft_nic *nic;
    struct weft_nic_opts opts = {.device = "fake1"};
    WEFT_FAILS(WEFT_ENODEV, weft_transport_verbs.ops->open(&opts, &nic));
    verbs_pair_check_fake();
}

/* --- addresses ------------------------------------------------------------------------------- */

static void expect_gid(const char *table, const char *summary)
{
    char config[128];
    snprintf(config, sizeof config, "gid=%s", table);
    assert_int_equal(probe(config), 1);
    CHECK(strstr(list[0].summary, summary), "%s: '%s' does not say '%s'", table, list[0].summary,
          summary);
}

static void the_best_gid_is_chosen(void **state)
{
    (void)state;
    expect_gid("link1+link2+ipv4v1+ipv4v2", "GID 3 10.99.1.1");
    expect_gid("ipv4v2+link1", "GID 0 10.99.1.1");
    expect_gid("link2+ipv6v2+ipv4v1", "GID 1 2001:db8:");
    expect_gid("link1+zero+link2", "GID 2 fe80:");
    expect_gid("link1+ipv6v1+ipv4v1", "GID 2 10.99.1.1");
    expect_gid("zero+zero+link1", "GID 2 fe80:");
    assert_int_equal(probe("gid=zero"), 1);
    assert_false(list[0].usable);
    CHECK(strstr(list[0].reason, "GID"), "%s", list[0].reason);
}

/* The table of GIDs is the device's: those of another port are not this one's. */
static void each_port_has_gids_of_its_own(void **state)
{
    (void)state;
    assert_int_equal(probe("ports=2"), 2);
    CHECK(strstr(list[0].summary, "GID 3 10.99.1.1"), "%s", list[0].summary);
    CHECK(strstr(list[1].summary, "GID 3 10.99.1.2"), "%s", list[1].summary);
}

static void a_gid_can_be_asked_for(void **state)
{
    (void)state;
    weft_config_set("WEFT_VERBS_GID_INDEX", "1");
    expect_gid("link1+link2+ipv4v1+ipv4v2", "GID 1 fe80:");
    weft_config_set("WEFT_VERBS_GID_INDEX", "6");
    assert_int_equal(probe(""), 1);
    assert_false(list[0].usable);
    CHECK(strstr(list[0].reason, "WEFT_VERBS_GID_INDEX=6"), "%s", list[0].reason);
}

static void infiniband_is_addressed_by_lid(void **state)
{
    (void)state;
    assert_int_equal(probe("link=ib"), 1);
    CHECK(strstr(list[0].summary, "InfiniBand"), "%s", list[0].summary);
    CHECK(strstr(list[0].summary, "lid"), "%s", list[0].summary);
}

static void a_partition_is_found_by_its_key(void **state)
{
    (void)state;
    struct verbs_pair vp;
    struct weft_nic *nic;
    struct weft_nic_opts opts = {.device = "fake0"};
    weft_config_set("WEFT_VERBS_PKEY", "0x8002");
    verbs_pair_open(&vp, "pkeys=4");
    verbs_pair_works(&vp);
    verbs_pair_close(&vp);
    weft_config_set("WEFT_VERBS_PKEY", "0x1234");
    WEFT_FAILS(WEFT_ENODEV, weft_transport_verbs.ops->open(&opts, &nic));
    CHECK(strstr(weft_last_error(), "0x1234"), "%s", weft_last_error());
    verbs_pair_check_fake();
}

/* --- what queue pairs are told --------------------------------------------------------------- */

static struct ibv_qp_attr told(const struct pair *pair, int side, int data)
{
    struct verbs_link *link = (struct verbs_link *)pair->side[side].link;
    struct ibv_qp_attr attr;
    assert_int_equal(fake_verbs_qp(data < 0 ? link->control.qp : link->data[data].qp, &attr), 0);
    return attr;
}

/* Of messages and of data alike. */
static void settings_reach_the_queue_pairs(void **state)
{
    (void)state;
    static const char *const values[][2] = {{"TRAFFIC_CLASS", "104"}, {"SERVICE_LEVEL", "3"}, {"RETRY", "5"}, {"TIMEOUT", "13"}};
    for (size_t i = 0; i < ARRAY_LEN(values); i++) {
        char name[64];
        snprintf(name, sizeof name, "WEFT_VERBS_%s", values[i][0]);
        WEFT_OK(weft_config_set(name, values[i][1]));
    }
    struct verbs_pair vp;
    verbs_pair_open(&vp, "");
    for (int side = 0; side < 2; side++) {
        for (int data = -1; data < 1; data++) {
            struct ibv_qp_attr attr = told(&vp.pair, side, data);
            assert_int_equal(attr.ah_attr.grh.traffic_class, 104);
            assert_int_equal(attr.ah_attr.sl, 3);
            assert_int_equal(attr.retry_cnt, 5);
            assert_int_equal(attr.timeout, 13);
        }
    }
    verbs_pair_works(&vp);
    verbs_pair_close(&vp);
}

/* The shorter packets of both; and no more READs under way than the other end executes at once. */
static void both_ends_count(void **state)
{
    (void)state;
    struct pair pair;
    assert_int_equal(fake_verbs_configure("mtu=4096"), 0);
    WEFT_OK(weft_config_set("WEFT_VERBS_MTU", "4096"));
    pair_open(&pair, &weft_transport_verbs, "fake0");
    struct verbs_nic *b = (struct verbs_nic *)pair.side[B].nic;
    assert_true(b->reads_in > 3 && b->reads_out > 3);
    b->mtu = IBV_MTU_512;
    b->reads_in = 3;
    b->reads_out = 2;
    pair_connect(&pair);
    for (int side = 0; side < 2; side++)
        for (int data = -1; data < 1; data++)
            assert_int_equal(told(&pair, side, data).path_mtu, IBV_MTU_512);
    assert_int_equal(told(&pair, A, 0).max_rd_atomic, 3);
    assert_int_equal(told(&pair, B, 0).max_dest_rd_atomic, 3);
    assert_int_equal(told(&pair, B, 0).max_rd_atomic, 2);
    pair_close(&pair);
    verbs_pair_check_fake();
}

/* Ports of InfiniBand in different subnets reach each other through a router, which wants their GIDs. */
static void another_subnet_is_reached_by_gid(void **state)
{
    (void)state;
    for (int other = 0; other < 2; other++) {
        struct weft_nic *nics[2];
        struct pair pair;
        assert_int_equal(fake_verbs_configure("ports=2,link=ib"), 0);
        if (other)
            assert_int_equal(fake_verbs_set_gid("fake0", 2, 0, "fec0::1:0:0:2", IBV_GID_TYPE_IB), 0);
        for (int side = 0; side < 2; side++) {
            struct weft_nic_opts opts = {.device = side == A ? "fake0:1" : "fake0:2"};
            PAIR_OK(weft_transport_verbs.ops->open(&opts, &nics[side]));
        }
        pair_adopt(&pair, nics[A], nics[B]);
        pair_connect(&pair);
        for (int side = 0; side < 2; side++) {
            struct ibv_ah_attr path = told(&pair, side, 0).ah_attr;
            const struct verbs_nic *peer = (struct verbs_nic *)pair.side[!side].nic;
            assert_int_equal(path.is_global, other);
            assert_int_equal(path.dlid, peer->lid);
            assert_true(!other || !memcmp(&path.grh.dgid, &peer->gid, sizeof peer->gid));
            assert_true(!other || path.grh.hop_limit > 1);
        }
        pair_close(&pair);
        verbs_pair_check_fake();
        fake_verbs_reset();
    }
}

/* --- devices that lack something -------------------------------------------------------------- */

static bool has(const struct verbs_pair *vp, enum weft_op op)
{
    return vp->pair.side[A].nic->attr.ops & WEFT_OP_BIT(op);
}

/* Everything the nic says it can do, of lengths around all limits. */
static void exercise(struct verbs_pair *vp)
{
    static const size_t lens[] = {1, 8, 63, 256, 257, 4096, 65536, 65537, 1 << 20, 3 << 20};
    static const enum weft_op ops[] = {WEFT_OP_WRITE, WEFT_OP_WRITE_IMM, WEFT_OP_READ};
    for (size_t i = 0; i < ARRAY_LEN(lens); i++) {
        for (size_t k = 0; k < ARRAY_LEN(ops); k++) {
            if (!has(vp, ops[k]))
                continue;
            int to = ops[k] == WEFT_OP_READ ? A : B;
            test_zero(vp->buf[to], lens[i]);
            test_fill(vp->buf[!to], lens[i], i + 10, 0);
            struct weft_cmd cmd = verbs_pair_cmd(vp, A, ops[k], 0, 0, lens[i]);
            cmd.imm = (uint32_t)i;
            assert_int_equal(pair_do(&vp->pair, A, &cmd), 0);
            CHECK(test_differs(vp->buf[to], lens[i], i + 10, 0) < 0, "op %d of %zu bytes", ops[k],
                  lens[i]);
            if (ops[k] == WEFT_OP_WRITE_IMM)
                assert_int_equal(pair_wait(&vp->pair, B, WEFT_OP_WRITE_IMM, 0).comp.imm, i);
        }
    }
}

static void pieces(struct verbs_pair *vp)
{
    enum { N = 40 };
    struct weft_iov_local iov[N];
    struct weft_cmd cmd = verbs_pair_cmd(vp, A, WEFT_OP_WRITE, 0, 0, (size_t)N * 100);
    test_fill(vp->buf[A], N * 100, 5, 0);
    for (size_t i = 0; i < N; i++)
        iov[i] = (struct weft_iov_local){vp->buf[A] + 100 * i, 100, vp->mem[A].mem};
    cmd.niov = N;
    cmd.iov = iov;
    assert_int_equal(pair_do(&vp->pair, A, &cmd), 0);
    CHECK(test_differs(vp->buf[B], N * 100, 5, 0) < 0, "pieces");
}

static void messages(struct verbs_pair *vp)
{
    for (size_t i = 0; i < 100; i++) {
        struct weft_cmd cmd = verbs_pair_cmd(vp, A, WEFT_OP_SEND, i, 0, i * 40);
        cmd.ctx = 7;
        assert_int_equal(pair_do(&vp->pair, A, &cmd), 0);
        struct pair_comp got = pair_wait(&vp->pair, B, WEFT_OP_RECV, 0);
        assert_int_equal(got.comp.len, i * 40);
        assert_memory_equal(got.data, vp->buf[A] + i, i * 40);
        free(got.data);
    }
}

static void poor_devices_do_what_they_can(void **state)
{
    (void)state;
    static const char *const configs[] = {
        "",
        "inline=0",
        "inline_quiet=1,inline=16",
        "atomics=none",
        "max_rd_atom=0",
        "srq=0",
        "max_sge=1",
        "max_qp_wr=64",
        "max_qp_wr=16",
        "max_qp_wr=16,srq=0,max_cqe=256",
        "max_qp_wr=11,srq=0",
        "max_qp_wr=64,srq=0,max_sge=1,inline=0",
        "link=ib",
        "max_rd_atom=1",
        "max_srq_wr=16",
        "stale=1",
        "relaxed=0,gid_table=0",
        "mtu=4096",
        "max_msg=64K",
        "comm_est=0",
    };
    for (size_t i = 0; i < ARRAY_LEN(configs); i++) {
        struct verbs_pair vp;
        verbs_pair_open(&vp, configs[i]);
        assert_int_equal(has(&vp, WEFT_OP_ADD64),
                         !strstr(configs[i], "atomics=none") && !strstr(configs[i], "atom=0"));
        assert_int_equal(has(&vp, WEFT_OP_READ), !strstr(configs[i], "atom=0"));
        exercise(&vp);
        pieces(&vp);
        messages(&vp);
        verbs_pair_close(&vp);
    }
}

static void a_device_with_too_little_says_so(void **state)
{
    (void)state;
    static const char *const configs[] = {"max_qp_wr=10", "max_qp_wr=7", "max_msg=2K"};
    for (size_t i = 0; i < ARRAY_LEN(configs); i++) {
        struct weft_nic_opts opts = {.device = "fake0"};
        struct weft_nic *nic;
        assert_int_equal(fake_verbs_configure(configs[i]), 0);
        WEFT_FAILS(WEFT_ENODEV, weft_transport_verbs.ops->open(&opts, &nic));
        assert_non_null(strstr(weft_last_error(), "limits"));
    }
    verbs_pair_check_fake();
}

/* --- posts ----------------------------------------------------------------------------------- */

static void a_run_of_cmds_rings_once(void **state)
{
    (void)state;
    enum { N = 16 };
    struct verbs_pair vp;
    struct fake_verbs_stats before, after;
    struct weft_cmd cmds[N];
    verbs_pair_open(&vp, "");
    verbs_pair_works(&vp);
    for (size_t i = 0; i < N; i++)
        cmds[i] = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 64 * i, 64 * i, 64);
    fake_verbs_stats(&before);
    assert_int_equal(vp.pair.ops->post(vp.pair.side[A].link, cmds, N), N);
    fake_verbs_stats(&after);
    assert_int_equal(after.posts - before.posts, 1);
    assert_int_equal(after.sends - before.sends, N);
    assert_int_equal(after.signaled - before.signaled, 1);
    assert_int_equal(after.inlined - before.inlined, N);
    for (size_t i = 0; i < N; i++)
        assert_int_equal(pair_wait(&vp.pair, A, WEFT_OP_WRITE, cmds[i].ctx).comp.status, 0);
    verbs_pair_close(&vp);
}

/* --- memory ---------------------------------------------------------------------------------- */

static void relaxed_ordering_is_for_what_peers_do_not_write(void **state)
{
    (void)state;
    /* WEFT_VERBS_RELAXED; relaxed if peers may read; if they may write */
    static const struct {
        const char *setting;
        uint64_t reads, writes;
    } cases[] = {{"0", 0, 0}, {"1", 1, 0}, {"2", 1, 1}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct verbs_pair vp;
        struct fake_verbs_stats before, between, after;
        weft_config_set("WEFT_VERBS_RELAXED", cases[i].setting);
        verbs_pair_open(&vp, "");
        fake_verbs_stats(&before);
        struct weft_mem_handle mem = pair_reg(&vp.pair, A, vp.buf[A], 4096, WEFT_ACCESS_READ, 0);
        PAIR_OK(vp.pair.ops->mem_dereg(vp.pair.side[A].nic, mem.mem));
        fake_verbs_stats(&between);
        mem = pair_reg(&vp.pair, A, vp.buf[A], 4096, WEFT_ACCESS_WRITE, 0);
        PAIR_OK(vp.pair.ops->mem_dereg(vp.pair.side[A].nic, mem.mem));
        fake_verbs_stats(&after);
        assert_int_equal(between.relaxed - before.relaxed, cases[i].reads);
        assert_int_equal(after.relaxed - between.relaxed, cases[i].writes);
        verbs_pair_close(&vp);
    }
}

static void a_dmabuf_is_memory(void **state)
{
    (void)state;
    struct verbs_pair vp;
    verbs_pair_open(&vp, "");
    assert_true(vp.pair.side[B].nic->attr.mem_kinds & WEFT_MEM_DMABUF);
    int fd = memfd_create("dmabuf", MFD_CLOEXEC);
    assert_int_equal(ftruncate(fd, 65536), 0);
    uint8_t *map = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    /* the address is a GPU's: nothing is there in this process */
    uint8_t *gpu = (uint8_t *)(uintptr_t)0x7f0000000000;
    struct weft_mem_range range = {.addr = gpu,
                                   .len = 32768,
                                   .access = PAIR_ALL,
                                   .kind = WEFT_MEM_DMABUF,
                                   .dmabuf_fd = fd,
                                   .dmabuf_offset = 8192};
    struct weft_mem_handle mem;
    PAIR_OK(vp.pair.ops->mem_reg(vp.pair.side[B].nic, &range, &mem));
    struct weft_cmd cmd = verbs_pair_cmd(&vp, A, WEFT_OP_WRITE, 0, 0, 32768);
    cmd.remote_addr = (uintptr_t)gpu;
    cmd.remote_key = mem.rkey;
    assert_int_equal(pair_do(&vp.pair, A, &cmd), 0);
    assert_memory_equal(map + 8192, vp.buf[A], 32768);
    cmd.remote_addr += 1;
    assert_int_equal(pair_do(&vp.pair, A, &cmd), WEFT_EBOUNDS);
    /* and as the local end */
    cmd = verbs_pair_cmd(&vp, B, WEFT_OP_READ, 0, 100, 4096);
    cmd.one = (struct weft_iov_local){gpu + 4096, 4096, mem.mem};
    assert_int_equal(pair_do(&vp.pair, B, &cmd), 0);
    assert_memory_equal(map + 8192 + 4096, vp.buf[A] + 100, 4096);
    /* no processor reads it, however short: in one piece, with an immediate, in two pieces */
    for (int i = 0; i < 3; i++) {
        struct weft_iov_local two[] = {{gpu + 4096, 8, mem.mem}, {gpu + 4104, 8, mem.mem}};
        cmd = verbs_pair_cmd(&vp, B, i == 1 ? WEFT_OP_WRITE_IMM : WEFT_OP_WRITE, 0, 8192, 16);
        cmd.one = (struct weft_iov_local){gpu + 4096, 16, mem.mem};
        if (i == 2) {
            cmd.niov = 2;
            cmd.iov = two;
        }
        memset(vp.buf[A] + 8192, 0, 16);
        assert_int_equal(pair_do(&vp.pair, B, &cmd), 0);
        assert_memory_equal(vp.buf[A] + 8192, map + 8192 + 4096, 16);
    }
    PAIR_OK(vp.pair.ops->mem_dereg(vp.pair.side[B].nic, mem.mem));
    munmap(map, 65536);
    close(fd);
    verbs_pair_close(&vp);
    verbs_pair_open(&vp, "dmabuf=0");
    assert_false(vp.pair.side[B].nic->attr.mem_kinds & WEFT_MEM_DMABUF);
    verbs_pair_close(&vp);
}

static void a_registration_that_fails_says_why(void **state)
{
    (void)state;
    struct verbs_pair vp;
    struct weft_mem_handle mem;
    verbs_pair_open(&vp, "max_mr_size=8M");
    struct weft_nic *nic = vp.pair.side[A].nic;
    struct weft_mem_range range = {.addr = vp.buf[A],
                                   .len = 4096,
                                   .access = PAIR_ALL,
                                   .kind = WEFT_MEM_HOST,
                                   .dmabuf_fd = -1};
    fake_verbs_fail_call("ibv_reg_mr", 1, ENOMEM, false);
    WEFT_FAILS(-ENOMEM, vp.pair.ops->mem_reg(nic, &range, &mem));
    CHECK(strstr(weft_last_error(), "ulimit"), "%s", weft_last_error());
    range.addr = (void *)4096;
    WEFT_FAILS(-EFAULT, vp.pair.ops->mem_reg(nic, &range, &mem));
    range.addr = vp.buf[A];
    PAIR_OK(vp.pair.ops->mem_reg(nic, &range, &mem));
    PAIR_OK(vp.pair.ops->mem_dereg(nic, mem.mem));
    verbs_pair_works(&vp);
    verbs_pair_close(&vp);
}

/* --- a device in software ---------------------------------------------------------------------- */

static uint64_t offers;

int __wrap_sched_yield(void);
int __wrap_sched_yield(void)
{
    return offers++, 0;
}

/* In so many polls of an endpoint nothing happens: how often others got the processor, and the device was asked. */
struct vain {
    uint64_t offers, asked;
};

static struct vain poll_in_vain(const char *config, int polls)
{
    struct fake_verbs_stats stats;
    weft_endpoint_t endpoint;
    assert_int_equal(fake_verbs_configure(config), 0);
    WEFT_OK(weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .transport = "verbs",
                                         .progress_threads = WEFT_PROGRESS_CALLER),
                               &endpoint));
    while (WEFT_OK(weft_endpoint_progress(endpoint, 0)) > 0)
        ;
    fake_verbs_stats(&stats);
    struct vain vain = {.offers = -offers, .asked = -stats.polls};
    for (int i = 0; i < polls; i++)
        WEFT_OK(weft_endpoint_progress(endpoint, 0));
    fake_verbs_stats(&stats);
    vain.offers += offers;
    vain.asked += stats.polls;
    WEFT_OK(weft_endpoint_close(endpoint));
    return vain;
}

/* What Soft-RoCE sends and receives is done by threads of the kernel, which wait for a processor like any other. */
static void who_polls_a_device_in_software_offers_his_processor(void **state)
{
    (void)state;
    static const char *const software[] = {"vendor=0xffffff", "vendor=0x626d74", "vendor=0"};
    struct weft_nic_attr attr;
    for (size_t i = 0; i < ARRAY_LEN(software); i++) {
        assert_int_equal(fake_verbs_configure(software[i]), 0);
        WEFT_OK(weft_device_attr("verbs", NULL, &attr));
        assert_true(attr.software);
        assert_int_equal(poll_in_vain(software[i], 100).offers, 100);
    }
    assert_int_equal(fake_verbs_configure(""), 0);
    WEFT_OK(weft_device_attr("verbs", NULL, &attr));
    assert_false(attr.software);
    assert_int_equal(poll_in_vain("", 100).offers, 0);
}

/* One nic is asked again and again before the way back to the caller; with two there is the other to look at. */
static void the_only_device_is_asked_several_times(void **state)
{
    (void)state;
    struct weft_nic_attr attr;
    assert_int_equal(fake_verbs_configure("devices=1"), 0);
    WEFT_OK(weft_device_attr("verbs", NULL, &attr));
    assert_true(attr.quick_poll);
    assert_int_equal(poll_in_vain("devices=1", 100).asked, 400);
    assert_int_equal(poll_in_vain("devices=2", 100).asked, 200);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup(name, verbs_pair_reset)
    const struct CMUnitTest tests[] = {
        CASE(ports_have_names_where_there_are_several),
        CASE(the_list_includes_and_excludes),
        CASE(a_conn_says_why_it_is_not_verbs),
        CASE(a_long_reason_hides_no_other),
        CASE(mtus_are_what_they_may_be),
        CASE(a_port_that_is_down_is_named_and_not_usable),
        CASE(the_best_gid_is_chosen),
        CASE(each_port_has_gids_of_its_own),
        CASE(a_gid_can_be_asked_for),
        CASE(infiniband_is_addressed_by_lid),
        CASE(a_partition_is_found_by_its_key),
        CASE(settings_reach_the_queue_pairs),
        CASE(both_ends_count),
        CASE(another_subnet_is_reached_by_gid),
        CASE(poor_devices_do_what_they_can),
        CASE(a_device_with_too_little_says_so),
        CASE(a_run_of_cmds_rings_once),
        CASE(relaxed_ordering_is_for_what_peers_do_not_write),
        CASE(a_dmabuf_is_memory),
        CASE(a_registration_that_fails_says_why),
        CASE(who_polls_a_device_in_software_offers_his_processor),
        CASE(the_only_device_is_asked_several_times),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
