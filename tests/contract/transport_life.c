/* SPDX-License-Identifier: Apache-2.0 */
/* Devices, nics, links: how they begin and end, and addresses that are not addresses. */
#include "pair.h"

#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>

#include "registry.h"

#define PROBERS 4

/* --- probe --------------------------------------------------------------------------------- */

static bool text_ok(const char *text, size_t cap)
{
    return memchr(text, 0, cap) != NULL;
}

static void probe_describes_its_devices(void **state)
{
    (void)state;
    struct weft_device_info list[32];
    memset(list, 0x5a, sizeof list);
    int n = WEFT_OK(side_transport()->ops->probe(list, ARRAY_LEN(list)));
    assert_true(n >= 1);
    for (int i = 0; i < n && i < (int)ARRAY_LEN(list); i++) {
        assert_true(text_ok(list[i].name, sizeof list[i].name) && *list[i].name);
        assert_true(text_ok(list[i].summary, sizeof list[i].summary) && *list[i].summary);
        assert_true(text_ok(list[i].reason, sizeof list[i].reason));
        assert_true(text_ok(list[i].pci, sizeof list[i].pci));
        assert_true(list[i].usable || *list[i].reason);
        assert_true(list[i].numa >= -1);
        for (int j = 0; j < i; j++)
            assert_string_not_equal(list[i].name, list[j].name);
    }
}

static void probe_fills_no_more_than_asked(void **state)
{
    (void)state;
    struct weft_device_info list[32], one[2];
    int n = WEFT_OK(side_transport()->ops->probe(list, ARRAY_LEN(list)));
    assert_int_equal(side_transport()->ops->probe(NULL, 0), n);
    memset(one, 0x5a, sizeof one);
    struct weft_device_info before = one[1];
    assert_int_equal(side_transport()->ops->probe(one, 1), n);
    assert_memory_equal(&one[1], &before, sizeof before);
    assert_string_equal(one[0].name, list[0].name);
}

static void *probe_again(void *arg)
{
    (void)arg;
    for (int i = 0; i < 50; i++) {
        struct weft_device_info list[4];
        CHECK(side_transport()->ops->probe(list, 4) >= 1, "probe: %s", weft_last_error());
    }
    return NULL;
}

static void probe_from_any_thread(void **state)
{
    (void)state;
    pthread_t threads[PROBERS];
    for (int i = 0; i < PROBERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, probe_again, NULL), 0);
    for (int i = 0; i < PROBERS; i++)
        pthread_join(threads[i], NULL);
}

/* --- nic ----------------------------------------------------------------------------------- */

static void open_refuses_an_unknown_device(void **state)
{
    (void)state;
    struct weft_nic *nic = (struct weft_nic *)state;
    const char *const names[] = {"", "no such device", "../../x"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        struct weft_nic_opts opts = {.device = names[i]};
        WEFT_FAILS(WEFT_ENODEV, side_transport()->ops->open(&opts, &nic));
        assert_ptr_equal(nic, state); /* out parameters are set on success only */
    }
}

static void open_fills_in_the_nic(void **state)
{
    (void)state;
    struct side side;
    side_open(&side, 0);
    assert_non_null(side.nic->transport);
    assert_non_null(side.nic->transport->ops);
    assert_int_equal(side.nic->transport->abi, WEFT_ABI);
    side_close(&side);
}

static void opts_are_borrowed_for_the_call_only(void **state)
{
    (void)state;
    char device[64], host[16] = "127.0.0.1";
    struct weft_device_info info = side_device();
    snprintf(device, sizeof device, "%s", info.name);
    struct weft_nic_opts opts = {.device = device, .bind_host = host};
    struct weft_nic *nic;
    WEFT_OK(weft__nic_open(side_transport(), test_fault(), &opts, &nic));
    memset(device, 'x', sizeof device - 1);
    memset(host, 'x', sizeof host - 1);
    struct weft_comp comps[4];
    for (int i = 0; i < 10; i++)
        assert_int_equal(nic->transport->ops->poll(nic, comps, 4), 0);
    nic->transport->ops->close(nic);
}

/* Also by libraries that a transport loads. */
static void signals_are_the_applications(void **state)
{
    (void)state;
    static const int of_applications[] = {SIGHUP,  SIGINT,  SIGQUIT, SIGPIPE, SIGALRM,
                                          SIGTERM, SIGUSR1, SIGUSR2, SIGCHLD};
    struct side side;
    side_open(&side, 0);
    for (size_t i = 0; i < ARRAY_LEN(of_applications); i++) {
        struct sigaction now;
        assert_int_equal(sigaction(of_applications[i], NULL, &now), 0);
        CHECK(now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN, "somebody handles signal %d",
              of_applications[i]);
    }
    side_close(&side);
}

static void many_nics_at_once(void **state)
{
    (void)state;
    struct side sides[8];
    for (int i = 0; i < 8; i++)
        side_open(&sides[i], i);
    for (int i = 0; i < 8; i += 2)
        side_close(&sides[i]);
    for (int i = 1; i < 8; i += 2) {
        assert_int_equal(side_poll(&sides[i]), 0);
        side_close(&sides[i]);
    }
}

static void close_gives_everything_back(void **state)
{
    (void)state;
    int before = 0;
    for (int round = 0; round < 20; round++) {
        struct pair p;
        pair_open(&p, false);
        pair_link(&p, A);
        pair_link(&p, B);
        pair_close(&p);
        if (round == 1) /* what stays open after the first use stays open once */
            before = test_count_fds();
    }
    assert_int_equal(test_count_fds(), before);
}

/* --- link ---------------------------------------------------------------------------------- */

/* One message each way. */
static void use_link(struct pair *p, int link)
{
    struct buf a = pair_buf(p, A, 100, 0, ACCESS_ALL), b = pair_buf(p, B, 100, 0, ACCESS_ALL);
    size_t at_a = pair_arrivals(p, A), at_b = pair_arrivals(p, B);
    pair_fill(p, a, 1);
    pair_do(p, A, link, cmd_write(a, 0, b, 0, 100), 0);
    pair_check(p, b, 0, 100, 1);
    pair_do(p, A, link, cmd_send(a, 0, 100), 0);
    pair_do(p, B, link, cmd_send(b, 0, 100), 0);
    assert_int_equal(pair_arrival(p, B, at_b).link, link);
    assert_int_equal(pair_arrival(p, A, at_a).link, link);
    pair_check_arrival(p, A, at_a, 1, 0);
    pair_check_arrival(p, B, at_b, 1, 0);
}

static void either_end_may_be_active(void **state)
{
    struct pair *p = *state;
    use_link(p, 0);
    for (int i = 1; i <= 4; i++) {
        assert_int_equal(pair_link(p, i & 1 ? B : A), i);
        use_link(p, i);
    }
}

static void user_is_left_alone(void **state)
{
    struct pair *p = *state;
    struct weft_link *link = p->a.links[0].link;
    link->user = p;
    use_link(p, 0);
    pair_link_close(p, B, 0);
    pair_link_down(p, A, 0);
    assert_ptr_equal(link->user, p);
    assert_ptr_equal(link->nic, p->a.nic);
}

static void many_links_of_one_nic(void **state)
{
    struct pair *p = *state;
    for (int i = 1; i < 40; i++)
        pair_link(p, i & 1 ? A : B);
    for (int i = 0; i < 40; i++)
        use_link(p, i);
    for (int i = 0; i < 40; i += 2) {
        pair_link_close(p, i & 4 ? A : B, i);
        pair_link_down(p, i & 4 ? B : A, i);
    }
    for (int i = 1; i < 40; i += 2)
        use_link(p, i);
}

/* Both ends of a link on one nic: how an endpoint talks to itself. */
static void a_nic_may_be_its_own_peer(void **state)
{
    (void)state;
    struct side s;
    side_open(&s, 0);
    side_join(&s, &s, NULL, 0);
    int from = side_buf(&s, 1000, 0, 0), to = side_buf(&s, 1000, 0, ACCESS_ALL);
    test_fill(s.bufs[from].mem.at, 1000, 1, 0);
    struct weft_cmd write = side_write(&s.bufs[from], &s.bufs[to]), send = write;
    send.op = WEFT_OP_SEND;
    assert_true(side_post(&s, 1, &write) >= 0);
    assert_true(side_post(&s, 0, &send) >= 0);
    TEST_UNTIL(!s.pending && s.narrivals == 1, side_pump(&s), "a nic to hear itself");
    assert_true(test_differs(s.bufs[to].mem.at, 1000, 1, 0) < 0);
    assert_true(test_differs(s.arrivals[0].data, 1000, 1, 0) < 0);
    assert_ptr_equal(s.arrivals[0].link, s.links[1].link);
    side_close(&s);
}

/* The ends may know at which address the endpoints met; it is borrowed for the call. */
static void where_the_endpoints_met_is_told(void **state)
{
    struct pair *p = *state;
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(9),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    side_join(&p->a, &p->b, (struct sockaddr *)&v4, sizeof v4);
    use_link(p, 1);
}

/* --- keys ---------------------------------------------------------------------------------- */

/* Two ends with these keys. What link_connect says at the active one; *passive: at the other. */
static int join_with(struct pair *p, const uint8_t *active_key, const uint8_t *passive_key,
                     int *passive)
{
    uint8_t copy[2][WEFT_MAC], address[2][WEFT_LINK_ADDRESS_MAX];
    const uint8_t *key[2] = {active_key, passive_key};
    struct side *side[2] = {&p->a, &p->b};
    struct weft_link *link[2];
    int len[2], rc[2] = {WEFT_EAGAIN, WEFT_EAGAIN};
    for (int i = 1; i >= 0; i--) {
        struct weft_link_opts opts = {.role = i ? WEFT_ROLE_PASSIVE : WEFT_ROLE_ACTIVE};
        if (key[i])
            opts.key = memcpy(copy[i], key[i], WEFT_MAC);
        WEFT_OK(side[i]->ops->link_open(side[i]->nic, &opts, &link[i]));
        memset(copy[i], 0, WEFT_MAC); /* for the call only */
        len[i] = WEFT_OK(side[i]->ops->link_address(link[i], address[i], sizeof address[i]));
    }
    /* an active end that is refused learns it; a passive one may wait for the right one */
    for (uint64_t end = test_deadline(); rc[0] == WEFT_EAGAIN || rc[0] + rc[1] == WEFT_EAGAIN;) {
        for (int i = 0; i < 2; i++)
            if (rc[i] == WEFT_EAGAIN)
                rc[i] = side[i]->ops->link_connect(link[i], address[!i], (size_t)len[!i]);
        pair_pump(p);
        CHECK(weft_now() < end, "deadline: waited for two ends to join, or not");
    }
    *passive = rc[1];
    side[0]->ops->link_close(link[0]);
    side[1]->ops->link_close(link[1]);
    return rc[0];
}

static void a_key_joins_its_like(void **state)
{
    struct pair *p = *state;
    uint8_t one[WEFT_MAC] = "one", two[WEFT_MAC] = "two", mac[WEFT_MAC];
    const uint8_t *const wrong[][2] = {{one, two}, {one, NULL}, {NULL, one}};
    int passive;
    test_need(weft_mac(one, "", 0, mac) == 0, "libcrypto");
    for (int round = 0; round < 3; round++) {
        assert_int_equal(join_with(p, one, one, &passive), 0);
        assert_int_equal(passive, 0);
        for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
            int rc = join_with(p, wrong[i][0], wrong[i][1], &passive);
            CHECK(rc < 0 && passive < 0, "keys %zu joined: %d, %d", i, rc, passive);
        }
    }
    use_link(p, 0);
}

/* --- addresses ----------------------------------------------------------------------------- */

struct end {
    struct weft_link *link;
    unsigned char addr[WEFT_LINK_ADDRESS_MAX + 8];
    int len;
};

static void ask_address(struct side *side, struct end *end)
{
    memset(end->addr, 0x5a, sizeof end->addr);
    end->len = WEFT_OK(side->ops->link_address(end->link, end->addr, WEFT_LINK_ADDRESS_MAX));
    CHECK(end->len <= WEFT_LINK_ADDRESS_MAX, "link_address returned %d", end->len);
    for (size_t i = WEFT_LINK_ADDRESS_MAX; i < sizeof end->addr; i++)
        CHECK(end->addr[i] == 0x5a, "link_address wrote past its buffer");
}

/* The active end is asked for its address later, when it has the other's. */
static struct end open_end(struct side *side, enum weft_role role)
{
    struct end end;
    struct weft_link_opts opts = {.role = role};
    WEFT_OK(side->ops->link_open(side->nic, &opts, &end.link));
    if (role == WEFT_ROLE_PASSIVE)
        ask_address(side, &end);
    return end;
}

/* A fresh link of side A is connected to this address; what link_connect says in the end. */
static int connect_to(struct pair *p, enum weft_role role, const void *addr, size_t len,
                      int patience)
{
    struct end end = open_end(&p->a, role);
    void *copy = malloc(len + 1); /* of exactly this size: a sanitizer sees reads beyond */
    memcpy(copy, addr, len);
    int rc = WEFT_EAGAIN;
    for (int i = 0; i < patience && rc == WEFT_EAGAIN; i++) {
        rc = p->a.ops->link_connect(end.link, copy, len);
        pair_pump(p);
    }
    free(copy);
    p->a.ops->link_close(end.link);
    return rc;
}

static void expect_malformed(struct pair *p, const void *addr, size_t len)
{
    for (int role = WEFT_ROLE_ACTIVE; role <= WEFT_ROLE_PASSIVE; role++) {
        int rc = connect_to(p, role, addr, len, 3);
        CHECK(rc == WEFT_EPROTO || rc == WEFT_EVERSION,
              "link_connect to %zu wrong bytes gave %s", len, weft_err_name(rc));
    }
}

static void garbage_addresses_are_malformed(void **state)
{
    struct pair *p = *state;
    unsigned char junk[WEFT_LINK_ADDRESS_MAX * 2];
    memset(junk, 0, sizeof junk);
    for (size_t len = 0; len < 64; len++)
        expect_malformed(p, junk, len);
    expect_malformed(p, junk, sizeof junk);
    memset(junk, 0xff, sizeof junk);
    for (size_t len = 1; len < 64; len++)
        expect_malformed(p, junk, len);
    for (uint64_t seed = 0; seed < 64; seed++) {
        test_fill(junk, sizeof junk, seed, 0);
        expect_malformed(p, junk, 8 * seed);
    }
    use_link(p, 0);
}

static void truncated_addresses_are_malformed(void **state)
{
    struct pair *p = *state;
    struct end end = open_end(&p->b, WEFT_ROLE_PASSIVE);
    for (int len = 0; len < end.len; len++)
        expect_malformed(p, end.addr, (size_t)len);
    p->b.ops->link_close(end.link);
    use_link(p, 0);
}

/* Each bit of a valid address, turned: whatever comes of it, nothing else is disturbed. */
static void damaged_addresses_do_no_harm(void **state)
{
    struct pair *p = *state;
    struct end end = open_end(&p->b, WEFT_ROLE_PASSIVE);
    for (int bit = 0; bit < 8 * end.len; bit++) {
        end.addr[bit / 8] ^= (unsigned char)(1 << bit % 8);
        connect_to(p, bit & 1 ? WEFT_ROLE_ACTIVE : WEFT_ROLE_PASSIVE, end.addr, (size_t)end.len,
                   2);
        end.addr[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    p->b.ops->link_close(end.link);
    use_link(p, 0);
}

static void give_address(int fd, void *arg)
{
    (void)arg;
    struct side side;
    side_open(&side, 0);
    struct end end = open_end(&side, WEFT_ROLE_PASSIVE);
    test_send(fd, &end.len, sizeof end.len);
    test_send(fd, end.addr, sizeof end.addr);
    _exit(0); /* without closing anything: the address now leads to nobody */
}

static void an_address_of_the_dead_fails_in_time(void **state)
{
    (void)state;
    struct pair p;
    struct end end;
    int fd;
    pid_t pid = test_fork(give_address, NULL, &fd);
    assert_true(test_recv(fd, &end.len, sizeof end.len));
    assert_true(test_recv(fd, end.addr, sizeof end.addr));
    test_join(pid, 0);
    close(fd);
    pair_open(&p, false);
    pair_link(&p, A);
    struct end mine = open_end(&p.a, WEFT_ROLE_ACTIVE);
    int rc = WEFT_EAGAIN;
    TEST_UNTIL(rc != WEFT_EAGAIN, pair_pump(&p);
               rc = p.a.ops->link_connect(mine.link, end.addr, (size_t)end.len),
               "link_connect to a dead peer to fail");
    assert_true(rc < 0);
    assert_true(*weft_last_error());
    p.a.ops->link_close(mine.link);
    use_link(&p, 0);
    pair_close(&p);
}

/* --- close in any state -------------------------------------------------------------------- */

static void close_before_connect(void **state)
{
    struct pair *p = *state;
    for (int role = WEFT_ROLE_ACTIVE; role <= WEFT_ROLE_PASSIVE; role++) {
        struct weft_link_opts opts = {.role = role};
        struct weft_link *link;
        WEFT_OK(p->a.ops->link_open(p->a.nic, &opts, &link));
        p->a.ops->link_close(link);
        p->a.ops->link_close(open_end(&p->a, role).link);
    }
    use_link(p, 0);
}

/* Each end is closed after 0, 1, 2, ... steps of connecting. */
static void close_while_connecting(void **state)
{
    struct pair *p = *state;
    for (int steps = 0; steps < 24; steps++) {
        struct end passive = open_end(&p->b, WEFT_ROLE_PASSIVE);
        struct end active = open_end(&p->a, WEFT_ROLE_ACTIVE);
        for (int i = 0; i < steps / 2; i++) {
            p->a.ops->link_connect(active.link, passive.addr, (size_t)passive.len);
            if (i == 0)
                ask_address(&p->a, &active);
            if (i & 1)
                p->b.ops->link_connect(passive.link, active.addr, (size_t)active.len);
            if (i & 2) {
                struct weft_comp comps[4];
                p->a.ops->poll(p->a.nic, comps, 4);
                p->b.ops->poll(p->b.nic, comps, 4);
            }
        }
        (steps & 1 ? p->a : p->b).ops->link_close(steps & 1 ? active.link : passive.link);
        struct weft_comp comps[4];
        p->a.ops->poll(p->a.nic, comps, 4); /* LINK_DOWN of the other end may come: not ours */
        p->b.ops->poll(p->b.nic, comps, 4);
        (steps & 1 ? p->b : p->a).ops->link_close(steps & 1 ? passive.link : active.link);
    }
    use_link(p, 0);
}

static void close_under_traffic(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, 1 << 20, 0, ACCESS_ALL);
    struct buf far = pair_buf(p, B, 1 << 20, 0, ACCESS_ALL);
    for (int round = 1; round <= 10; round++) {
        assert_int_equal(pair_link(p, round & 1 ? A : B), round);
        for (uint64_t i = 0; i < 6; i++) {
            struct weft_cmd write = cmd_write(near, 0, far, 0, 200000 * (i % 3));
            struct weft_cmd read = cmd_read(far, 0, near, 0, 100000 * (i % 3));
            pair_post(p, A, round, &write);
            pair_post(p, B, round, &read);
        }
        for (int i = 0; i < round; i++)
            pair_pump(p);
        pair_link_close(p, round & 2 ? A : B, round);
        pair_link_down(p, round & 2 ? B : A, round);
        pair_link_close(p, round & 2 ? B : A, round);
    }
    use_link(p, 0);
}

/* Who waits would believe that something long is under way. */
static void nothing_long_is_left_of_a_closed_link(void **state)
{
    struct pair *p = *state;
    struct buf near = pair_buf(p, A, 1 << 20, 0, ACCESS_ALL);
    struct buf far = pair_buf(p, B, 1 << 20, 0, ACCESS_ALL);
    const struct weft_cmd write = cmd_write(near, 0, far, 0, 1 << 20), fence = cmd_fence();
    for (int round = 1; round <= 4; round++) {
        assert_int_equal(pair_link(p, A), round);
        pair_post(p, A, round, &write);
        if (pair_has(p, WEFT_OP_FENCE))
            pair_post(p, A, round, &fence);
        pair_post(p, A, round, &write); /* behind the fence: begun or not */
        for (int i = 1; i < round; i++)
            pair_pump(p);
        pair_link_close(p, A, round);
        pair_link_down(p, B, round);
        pair_link_close(p, B, round);
    }
    use_link(p, 0);
    pair_linger(p);
    assert_int_equal(p->a.nic->bulk, 0);
}

#define ALONE(test) cmocka_unit_test(test)

int main(void)
{
    const struct CMUnitTest tests[] = {
        ALONE(probe_describes_its_devices),
        ALONE(probe_fills_no_more_than_asked),
        ALONE(probe_from_any_thread),
        ALONE(open_refuses_an_unknown_device),
        ALONE(open_fills_in_the_nic),
        ALONE(opts_are_borrowed_for_the_call_only),
        ALONE(signals_are_the_applications),
        ALONE(many_nics_at_once),
        ALONE(close_gives_everything_back),
        IN_BOTH(either_end_may_be_active),
        IN_ONE(a_key_joins_its_like),
        IN_ONE(user_is_left_alone),
        IN_BOTH(many_links_of_one_nic),
        ALONE(a_nic_may_be_its_own_peer),
        IN_ONE(where_the_endpoints_met_is_told),
        IN_ONE(garbage_addresses_are_malformed),
        IN_ONE(truncated_addresses_are_malformed),
        IN_ONE(damaged_addresses_do_no_harm),
        ALONE(an_address_of_the_dead_fails_in_time),
        IN_ONE(close_before_connect),
        IN_ONE(close_while_connecting),
        IN_BOTH(close_under_traffic),
        IN_ONE(nothing_long_is_left_of_a_closed_link),
    };
    return PAIR_MAIN("transport_life", tests);
}
