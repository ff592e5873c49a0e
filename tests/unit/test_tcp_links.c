/* SPDX-License-Identifier: Apache-2.0 */
/* What is tcp's own about links: how many sockets, where it listens, what an idle one costs. */
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <cmocka.h>

#include "pair.h"
#include "transports/tcp/tcp_wire.h"

extern const struct weft_transport weft_transport_tcp;

#define BIG (3u << 20)
#define KEY 0xabcdull
#define IDLE_MOST 65536 /* bytes of memory of an idle link, both ends each */

static struct weft_nic *open_nic(const char *host, const char *sockets, const char *chunk)
{
    struct weft_nic_opts opts = {.device = "tcp", .bind_host = host};
    struct weft_nic *nic;
    weft_config_set("WEFT_TCP_SOCKETS", sockets);
    weft_config_set("WEFT_TCP_CHUNK", chunk);
    PAIR_OK(weft_transport_tcp.ops->open(&opts, &nic));
    weft_config_set("WEFT_TCP_SOCKETS", NULL);
    weft_config_set("WEFT_TCP_CHUNK", NULL);
    return nic;
}

static struct weft_cmd cmd_for(enum weft_op op, uint8_t *local, uint64_t len, uint8_t *remote)
{
    return (struct weft_cmd){.op = (uint8_t)op,
                             .imm = 31,
                             .remote_addr = (uintptr_t)remote,
                             .remote_key = KEY,
                             .len = len,
                             .ctx = len + 1,
                             .one = {.addr = local, .len = len}};
}

/* Both ways, large and small, with immediates and pieces. */
static void exchange(struct pair *pair)
{
    uint8_t *here = malloc(BIG), *there = malloc(BIG);
    struct weft_mem_handle handle = pair_reg(pair, PAIR_B, there, BIG, PAIR_ALL, KEY);
    pair_fill(here, BIG, 1);
    struct weft_cmd cmd = cmd_for(WEFT_OP_WRITE, here, BIG, there);
    assert_int_equal(pair_do(pair, PAIR_A, &cmd), 0);
    assert_true(pair_filled(there, BIG, 1));

    pair_fill(here, BIG, 2);
    cmd = cmd_for(WEFT_OP_WRITE_IMM, here, BIG, there);
    assert_int_equal(pair_do(pair, PAIR_A, &cmd), 0);
    assert_int_equal(pair_wait(pair, PAIR_B, WEFT_OP_WRITE_IMM, 0).comp.imm, 31);
    assert_true(pair_filled(there, BIG, 2));

    pair_fill(there, BIG, 3);
    struct weft_iov_local iov[3] = {{.addr = here, .len = 5},
                                    {.addr = here + 5, .len = 1 << 20},
                                    {.addr = here + 5 + (1 << 20), .len = BIG - 5 - (1 << 20)}};
    cmd = cmd_for(WEFT_OP_READ, NULL, BIG, there);
    cmd.niov = 3;
    cmd.iov = iov;
    assert_int_equal(pair_do(pair, PAIR_A, &cmd), 0);
    assert_true(pair_filled(here, BIG, 3));

    cmd = cmd_for(WEFT_OP_SEND, here, 65536, NULL);
    assert_int_equal(pair_do(pair, PAIR_A, &cmd), 0);
    struct pair_comp got = pair_wait(pair, PAIR_B, WEFT_OP_RECV, 0);
    assert_true(got.comp.len == 65536 && pair_filled(got.data, 65536, 3));
    free(got.data);
    assert_int_equal(pair->ops->mem_dereg(pair->side[PAIR_B].nic, handle.mem), 0);
    free(here);
    free(there);
}

/* The two ends agree on the smaller number. */
static void any_number_of_sockets(void **state)
{
    (void)state;
    static const char *const counts[][2] = {{"1", "1"},  {"2", "1"},  {"1", "2"},  {"3", "3"},
                                            {"16", "2"}, {"5", "16"}, {"16", "16"}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        struct pair pair;
        pair_adopt(&pair, open_nic(NULL, counts[i][0], "256K"),
                   open_nic(NULL, counts[i][1], "4K"));
        pair_connect(&pair);
        exchange(&pair);
        pair_close(&pair);
    }
}

static void chunks_of_any_size(void **state)
{
    (void)state;
    static const char *const chunks[] = {"4096", "16385", "100000", "1G"};
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        struct pair pair;
        pair_adopt(&pair, open_nic(NULL, "2", chunks[i]), open_nic(NULL, "2", chunks[i]));
        pair_connect(&pair);
        exchange(&pair);
        pair_close(&pair);
    }
}

/* Heads and small payloads of what cannot be sent yet are moved to the front of their buffer when it is full, and the places of the
 * larger payloads between them move along. */
static void a_full_buffer_keeps_payloads_in_their_places(void **state)
{
    (void)state;
    enum { CMDS = 4000, SLOT = 16384 };
    static const uint64_t lens[] = {100, 2000, 3000, 1900, 2048, 8000, 2000, 1, 2047, 16384};
    struct pair pair;
    weft_config_set("WEFT_TCP_SNDBUF", "64K");
    weft_config_set("WEFT_TCP_RCVBUF", "64K");
    pair_adopt(&pair, open_nic(NULL, "1", "256K"), open_nic(NULL, "1", "256K"));
    weft_config_set("WEFT_TCP_SNDBUF", NULL);
    weft_config_set("WEFT_TCP_RCVBUF", NULL);
    pair_connect(&pair);
    uint8_t *here = malloc(SLOT), *there = calloc(CMDS, SLOT);
    struct weft_mem_handle handle = pair_reg(&pair, PAIR_B, there, (uint64_t)CMDS * SLOT, PAIR_ALL, KEY);
    pair_fill(here, SLOT, 3);
    uint64_t posted = 0, ended = 0, deadline = weft_now() + PAIR_WAIT_MS * 1000000ull;
    while (ended < CMDS) {
        while (posted < CMDS) {
            struct weft_cmd cmd = cmd_for(WEFT_OP_WRITE, here, lens[posted % 10], there + posted * SLOT);
            cmd.ctx = 7;
            if (PAIR_OK(pair.ops->post(pair.side[PAIR_A].link, &cmd, 1)) == 0)
                break;
            posted++;
        }
        for (int k = 0; k < 2; k++)
            pair_poll(&pair, k);
        for (struct pair_comp comp; pair_take(&pair, PAIR_A, WEFT_OP_WRITE, 7, &comp); ended++)
            assert_int_equal(comp.comp.status, 0);
        assert_true(weft_now() < deadline);
    }
    for (uint64_t i = 0; i < CMDS; i++)
        assert_true(pair_filled(there + i * SLOT, lens[i % 10], 3));
    assert_int_equal(pair.ops->mem_dereg(pair.side[PAIR_B].nic, handle.mem), 0);
    pair_close(&pair);
    free(here);
    free(there);
}

/* A small operation overtakes a large one that was posted before it. */
static void small_ones_do_not_wait_for_large_ones(void **state)
{
    (void)state;
    enum { LARGE = 64 << 20 };
    struct pair pair;
    uint8_t *here = calloc(1, LARGE), *there = malloc(LARGE), byte = 1;
    pair_open(&pair, &weft_transport_tcp, "tcp");
    pair_connect(&pair);
    struct weft_mem_handle handle = pair_reg(&pair, PAIR_B, there, LARGE, PAIR_ALL, KEY);
    struct weft_cmd large = cmd_for(WEFT_OP_WRITE, here, LARGE, there);
    struct weft_cmd small = cmd_for(WEFT_OP_SEND, &byte, 1, NULL);
    struct pair_comp none;
    pair_post(&pair, PAIR_A, &large);
    assert_int_equal(pair_do(&pair, PAIR_A, &small), 0);
    assert_false(pair_take(&pair, PAIR_A, WEFT_OP_WRITE, large.ctx, &none));
    assert_int_equal(pair_wait(&pair, PAIR_A, WEFT_OP_WRITE, large.ctx).comp.status, 0);
    free(pair_wait(&pair, PAIR_B, WEFT_OP_RECV, 0).data);
    assert_int_equal(pair.ops->mem_dereg(pair.side[PAIR_B].nic, handle.mem), 0);
    pair_close(&pair);
    free(here);
    free(there);
}

/* One is bound to a socket, the others take whichever has room: none is forgotten where they overtake each other. */
static void long_ones_of_both_kinds_share_the_sockets(void **state)
{
    (void)state;
    enum { OPS = 6, LEN = 1 << 20 };
    struct pair pair;
    pair_adopt(&pair, open_nic(NULL, "3", "64K"), open_nic(NULL, "3", "64K"));
    pair_connect(&pair);
    uint8_t *here = malloc(LEN), *there = calloc(OPS, LEN);
    struct weft_mem_handle handle = pair_reg(&pair, PAIR_B, there, (uint64_t)OPS * LEN, PAIR_ALL, KEY);
    pair_fill(here, LEN, 8);
    for (unsigned round = 0; round < 20; round++) {
        unsigned n = 2 + round % (OPS - 1), bound = round / 5 % n;
        memset(there, 0, (size_t)OPS * LEN);
        for (unsigned i = 0; i < n; i++) {
            struct weft_cmd cmd = cmd_for(i == bound ? WEFT_OP_WRITE_IMM : WEFT_OP_WRITE, here, LEN, there + (size_t)i * LEN);
            cmd.ctx = 100 + i;
            cmd.flags = i + 1 < n ? WEFT_CMD_MORE : 0;
            pair_post(&pair, PAIR_A, &cmd);
        }
        for (unsigned i = 0; i < n; i++) {
            enum weft_op op = i == bound ? WEFT_OP_WRITE_IMM : WEFT_OP_WRITE;
            assert_int_equal(pair_wait(&pair, PAIR_A, op, 100 + i).comp.status, 0);
            assert_true(pair_filled(there + (size_t)i * LEN, LEN, 8));
        }
        pair_wait(&pair, PAIR_B, WEFT_OP_WRITE_IMM, 0);
    }
    assert_int_equal(pair.ops->mem_dereg(pair.side[PAIR_B].nic, handle.mem), 0);
    pair_close(&pair);
    free(here);
    free(there);
}

/* --- where it listens ---------------------------------------------------------------------- */

static bool have_v6(void)
{
    struct weft_nic_opts opts = {.device = "tcp", .bind_host = "::1"};
    struct weft_nic *nic;
    if (weft_transport_tcp.ops->open(&opts, &nic) < 0)
        return false;
    weft_transport_tcp.ops->close(nic);
    return true;
}

static void listens_where_it_is_told(void **state)
{
    (void)state;
    static const char *const hosts[] = {NULL, "127.0.0.1", "127.0.0.2", "0.0.0.0", "::1", "::"};
    size_t n = have_v6() ? 6 : 4;
    for (size_t i = 0; i < n; i++) {
        struct pair pair;
        pair_adopt(&pair, open_nic(NULL, "2", "256K"), open_nic(hosts[i], "2", "256K"));
        pair_connect(&pair);
        exchange(&pair);
        pair_close(&pair);
    }
}

static void nonsense_is_no_host(void **state)
{
    (void)state;
    static const char *const hosts[] = {"localhost", "1.2.3", "300.1.1.1",
                                        "",          "::g",   "127.0.0.1:80"};
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        struct weft_nic_opts opts = {.device = "tcp", .bind_host = hosts[i]};
        struct weft_nic *nic;
        if (weft_transport_tcp.ops->open(&opts, &nic) == 0) {
            print_error("'%s' was taken for a host\n", hosts[i]);
            weft_transport_tcp.ops->close(nic);
            fail();
        }
        assert_true(*weft_last_error());
    }
}

/* The peer that core met at an address is dialled there, whatever way the address is written. */
static void dials_where_core_met_the_peer(void **state)
{
    (void)state;
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 mapped = {.sin6_family = AF_INET6};
    struct sockaddr_storage met[2];
    memset(met, 0, sizeof met);
    inet_pton(AF_INET, "127.0.0.3", &v4.sin_addr);
    inet_pton(AF_INET6, "::ffff:127.0.0.3", &mapped.sin6_addr);
    memcpy(&met[0], &v4, sizeof v4);
    memcpy(&met[1], &mapped, sizeof mapped);
    for (int i = 0; i < 2; i++) {
        struct pair pair;
        pair_adopt(&pair, open_nic(NULL, "2", "256K"), open_nic("0.0.0.0", "2", "256K"));
        struct weft_link_opts passive = {.role = WEFT_ROLE_PASSIVE};
        struct weft_link_opts active = {.role = WEFT_ROLE_ACTIVE,
                                        .peer = (struct sockaddr *)&met[i],
                                        .peer_len = sizeof met[i]};
        uint8_t address[2][WEFT_LINK_ADDRESS_MAX];
        size_t len[2];
        int rc[2] = {WEFT_EAGAIN, WEFT_EAGAIN};
        for (int k = 1; k >= 0; k--) {
            struct pair_side *side = &pair.side[k];
            PAIR_OK(pair.ops->link_open(side->nic, k ? &passive : &active, &side->link));
            len[k] = (size_t)PAIR_OK(
                pair.ops->link_address(side->link, address[k], WEFT_LINK_ADDRESS_MAX));
        }
        while (rc[0] == WEFT_EAGAIN || rc[1] == WEFT_EAGAIN)
            for (int k = 0; k < 2; k++) {
                rc[k] = pair.ops->link_connect(pair.side[k].link, address[!k], len[!k]);
                pair_poll(&pair, k);
            }
        assert_int_equal(rc[0], 0);
        assert_int_equal(rc[1], 0);
        exchange(&pair);
        pair_close(&pair);
    }
}

/* --- many links ---------------------------------------------------------------------------- */

enum { LINKS = 40 };

static void connect_many(struct pair *pair, struct weft_link *links[2][LINKS])
{
    for (int i = 0; i < LINKS; i++) {
        pair_connect(pair);
        links[0][i] = pair->side[0].link;
        links[1][i] = pair->side[1].link;
    }
}

static void close_many(struct pair *pair, struct weft_link *links[2][LINKS])
{
    for (int i = 0; i < LINKS - 1; i++)
        for (int k = 0; k < 2; k++)
            pair->ops->link_close(links[k][i]);
    pair_close(pair); /* the last ones */
}

static size_t heap(void)
{
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

static void an_idle_link_is_small(void **state)
{
    (void)state;
    struct pair pair;
    struct weft_link *links[2][LINKS];
    pair_open(&pair, &weft_transport_tcp, "tcp");
    size_t before = heap();
    connect_many(&pair, links);
    uint8_t byte = 1;
    for (int i = 0; i < LINKS; i++) { /* each has been used */
        pair.side[0].link = links[0][i];
        struct weft_cmd cmd = cmd_for(WEFT_OP_SEND, &byte, 1, NULL);
        assert_int_equal(pair_do(&pair, PAIR_A, &cmd), 0);
        free(pair_wait(&pair, PAIR_B, WEFT_OP_RECV, 0).data);
    }
    size_t each = (heap() - before) / (2 * LINKS);
    close_many(&pair, links);
    if (before == 0)
        skip(); /* a sanitizer's allocator does not count */
    print_message("%zu bytes for each end of an idle link\n", each);
    assert_in_range(each, 1, IDLE_MOST);
}

/* How often the kernel asks for a sign of life: how many sockets after so many seconds. */
enum { ASKED_MOST = 120, FDS = 1024 };

static bool is_connection(int fd)
{
    struct sockaddr_storage peer;
    socklen_t len = sizeof peer;
    return getpeername(fd, (struct sockaddr *)&peer, &len) == 0 && peer.ss_family == AF_INET;
}

static int option(int fd, int level, int name)
{
    int value = -1;
    socklen_t size = sizeof value;
    assert_int_equal(getsockopt(fd, level, name, &value, &size), 0);
    return value;
}

/* seconds: of WEFT_TCP_TIMEOUT. Who is asked first after half of them, at most, is given up when they are over. */
static void count_asked(int seconds, const bool before[FDS], int asked[ASKED_MOST + 1])
{
    for (int fd = 0; fd < FDS; fd++) {
        if (before[fd] || !is_connection(fd))
            continue;
        int idle = option(fd, IPPROTO_TCP, TCP_KEEPIDLE), every = option(fd, IPPROTO_TCP, TCP_KEEPINTVL);
        int times = option(fd, IPPROTO_TCP, TCP_KEEPCNT);
        assert_true(option(fd, SOL_SOCKET, SO_KEEPALIVE));
        assert_in_range(idle, 1, ASKED_MOST);
        assert_in_range(times, 6, 10);
        if (idle <= (seconds + 1) / 2)
            assert_in_range(idle + every * times, 1, seconds + 1);
        asked[idle]++;
    }
}

/* What falls silent together is not asked for a sign of life together: that would be more than a queue holds. */
static void idle_links_are_not_asked_all_at_once(void **state)
{
    (void)state;
    enum { SOCKETS = 2 * LINKS };
    static const char *const timeouts[] = {"20000", "22000"};
    static const int seconds[] = {20, 22};
    for (int k = 0; k < 2; k++) {
        struct pair pair;
        struct weft_link *links[2][LINKS];
        bool before[FDS];
        int asked[ASKED_MOST + 1] = {0}, first = 0, other = 0, most_first = 0, most_other = 0;
        for (int fd = 0; fd < FDS; fd++)
            before[fd] = is_connection(fd);
        weft_config_set("WEFT_TCP_TIMEOUT", timeouts[k]);
        pair_adopt(&pair, open_nic(NULL, "3", "1M"), open_nic(NULL, "3", "1M"));
        weft_config_set("WEFT_TCP_TIMEOUT", NULL);
        connect_many(&pair, links);
        count_asked(seconds[k], before, asked);
        for (int i = 1; i <= ASKED_MOST; i++) {
            bool is_first = i <= (seconds[k] + 1) / 2;
            int *sum = is_first ? &first : &other, *most = is_first ? &most_first : &most_other;
            *sum += asked[i];
            *most = asked[i] > *most ? asked[i] : *most;
        }
        assert_int_equal(first, SOCKETS);
        assert_int_equal(other, 2 * SOCKETS);
        assert_in_range(most_first, 1, SOCKETS / 4);
        assert_in_range(most_other, 1, 2 * SOCKETS / 20);
        close_many(&pair, links);
    }
}

/* Links beyond those that poll looks at by itself are served too, all of them. */
static void all_of_many_links_are_served(void **state)
{
    (void)state;
    enum { LEN = 200000, ROUNDS = 3 };
    struct pair pair;
    struct weft_link *links[2][LINKS];
    pair_open(&pair, &weft_transport_tcp, "tcp");
    connect_many(&pair, links);
    uint8_t *here = malloc(LEN), *there = malloc((size_t)LEN * LINKS);
    struct weft_mem_handle handle = pair_reg(&pair, PAIR_B, there, (uint64_t)LEN * LINKS, PAIR_ALL,
                                             KEY);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        pair_fill(here, LEN, round);
        for (uint64_t i = 0; i < LINKS; i++) {
            struct weft_cmd cmd = cmd_for(WEFT_OP_WRITE, here, LEN, there + i * LEN);
            cmd.ctx = i;
            pair.side[0].link = links[0][i];
            pair_post(&pair, PAIR_A, &cmd);
        }
        for (uint64_t i = 0; i < LINKS; i++) {
            struct weft_comp comp = pair_wait(&pair, PAIR_A, WEFT_OP_WRITE, i).comp;
            assert_ptr_equal(comp.link, links[0][i]);
            assert_int_equal(comp.status, 0);
            assert_true(pair_filled(there + i * LEN, LEN, round));
        }
    }
    assert_int_equal(pair.ops->mem_dereg(pair.side[PAIR_B].nic, handle.mem), 0);
    close_many(&pair, links);
    free(here);
    free(there);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_sockets),
        cmocka_unit_test(chunks_of_any_size),
        cmocka_unit_test(a_full_buffer_keeps_payloads_in_their_places),
        cmocka_unit_test(small_ones_do_not_wait_for_large_ones),
        cmocka_unit_test(long_ones_of_both_kinds_share_the_sockets),
        cmocka_unit_test(listens_where_it_is_told),
        cmocka_unit_test(nonsense_is_no_host),
        cmocka_unit_test(dials_where_core_met_the_peer),
        cmocka_unit_test(an_idle_link_is_small),
        cmocka_unit_test(idle_links_are_not_asked_all_at_once),
        cmocka_unit_test(all_of_many_links_are_served),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
