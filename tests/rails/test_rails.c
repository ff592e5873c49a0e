/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several devices of one transport in one endpoint: which of them it uses, conns that go by all of
 * them, and those that come up although some do not join the two sides.
 */
#include "contract/duo.h"

#include "conn.h"
#include "endpoint.h"
#include "rails.h"

#define T TEST_DEADLINE_MS
#define MIB ((size_t)1 << 20)
#define LEN (8 * MIB)

static char log_lines[8192];

static void keep_line(enum weft_log_level level, const char *subsystem, const char *line,
                      void *user)
{
    (void)level, (void)subsystem, (void)user;
    strncat(log_lines, line, sizeof log_lines - strlen(log_lines) - 1);
    strncat(log_lines, "\n", sizeof log_lines - strlen(log_lines) - 1);
}

static int setup(void **state)
{
    (void)state;
    rails_reset(3);
    log_lines[0] = 0;
    weft_config_set("WEFT_LOG", "info");
    weft_log_set(keep_line, NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    static const char *const names[] = {"WEFT_RAILS", "WEFT_LANES", "WEFT_CHUNK",
                                        "WEFT_PROGRESS_THREADS", "WEFT_LOG"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        weft_config_set(names[i], NULL);
    weft_log_set(NULL, NULL);
    for (int i = 0; i < RAILS_MAX; i++)
        CHECK(test_failed() || rails.device[i].nics == 0, "r%d is still open", i);
    return 0;
}

static const char *secret; /* of all endpoints, or NULL */

static weft_endpoint_t open_with(const char *transport, const char *fault)
{
    weft_endpoint_t endpoint;
    struct weft_endpoint_opts opts = duo_opts();
    opts.transport = transport;
    opts.fault = fault;
    opts.secret = secret;
    opts.secret_len = secret ? strlen(secret) : 0;
    WEFT_OK(weft_endpoint_open(&opts, &endpoint));
    return endpoint;
}

/* --- which devices an endpoint uses ----------------------------------------------------------- */

/* The devices of its nics, in order. */
static void has_nics(weft_endpoint_t endpoint, const char *want)
{
    char got[256] = "";
    struct weft__endpoint *ep = weft__handle_get(endpoint, WEFT__ENDPOINT);
    for (int i = 0; i < ep->nlanes; i++) {
        size_t used = strlen(got);
        snprintf(got + used, sizeof got - used, "%s%s", used ? " " : "", ep->lanes[i]->device);
    }
    weft__handle_put(endpoint);
    assert_string_equal(got, want);
}

static void opens(const char *transport, const char *want)
{
    weft_endpoint_t endpoint = open_with(transport, "");
    has_nics(endpoint, want);
    WEFT_OK(weft_endpoint_close(endpoint));
}

static void the_best_are_used_side_by_side(void **state)
{
    (void)state;
    rails_reset(6);
    opens("rails", "r0 r1 r2 r3"); /* the default */
    assert_non_null(strstr(log_lines, "r4: not used"));
    weft_config_set("WEFT_RAILS", "1");
    opens("rails", "r0");
    weft_config_set("WEFT_RAILS", "3");
    weft_config_set("WEFT_LANES", "2");
    opens("rails", "r0 r1 r2 r0 r1 r2");
    opens("local,rails", "local local r0 r1 r2 r0 r1 r2");
}

static void opens_with_threads(int threads, const char *transport, const char *want)
{
    weft_endpoint_t endpoint;
    struct weft_endpoint_opts opts = duo_opts();
    opts.transport = transport;
    opts.progress_threads = threads;
    WEFT_OK(weft_endpoint_open(&opts, &endpoint));
    has_nics(endpoint, want);
    WEFT_OK(weft_endpoint_close(endpoint));
}

/* Devices that move the bytes by themselves do not. */
static void threads_that_move_the_bytes_have_a_nic_each(void **state)
{
    (void)state;
    rails_reset(2);
    opens_with_threads(3, "local,rails", "local local local r0 r1");
    opens_with_threads(WEFT_PROGRESS_CALLER, "local,rails", "local r0 r1");
    opens_with_threads(20, "local", "local local local local local local local local");
    weft_config_set("WEFT_PROGRESS_THREADS", "2");
    opens_with_threads(0, "local,rails", "local local r0 r1");
    weft_config_set("WEFT_LANES", "1");
    opens_with_threads(3, "local,rails", "local r0 r1");
}

static void those_that_do_not_open_are_left_out(void **state)
{
    (void)state;
    rails_reset(5);
    rails.device[0].unusable = true;
    rails.device[2].open = -ENODEV;
    opens("rails", "r1 r3 r4");
    assert_non_null(strstr(log_lines, "r0: not used: r0 is unusable"));
    assert_non_null(strstr(log_lines, "r2: not used: rails: r2 does not open"));
}

static void one_that_opens_is_enough(void **state)
{
    (void)state;
    weft_endpoint_t endpoint;
    rails.device[0].open = -EIO;
    rails.device[1].unusable = true;
    opens("rails", "r2");
    rails.device[2].open = -EBUSY;
    WEFT_FAILS(-EIO,
               weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .transport = "rails"), &endpoint));
    assert_non_null(strstr(weft_last_error(), "r0 does not open"));
    rails.device[0].unusable = true;
    rails.device[2].unusable = true;
    WEFT_FAILS(WEFT_ENODEV,
               weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .transport = "rails"), &endpoint));
    assert_non_null(strstr(weft_last_error(), "r0 is unusable"));
    rails_reset(0);
    WEFT_FAILS(WEFT_ENODEV,
               weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .transport = "rails"), &endpoint));
}

/* A remote has room for eight keys of nics that make their own. */
static void eight_nics_have_keys_of_their_own(void **state)
{
    (void)state;
    rails_reset(10);
    weft_config_set("WEFT_RAILS", "16");
    opens("local,rails", "local r0 r1 r2 r3 r4 r5 r6 r7");
    assert_non_null(strstr(log_lines, "r8: not used: an endpoint has at most 8 nics"));
    rails.chosen_keys = true;
    opens("local,rails", "local r0 r1 r2 r3 r4 r5 r6 r7 r8 r9");
}

/* There is room for 32 nics, and one is left for each transport that is to come. */
static void devices_before_nics_of_one(void **state)
{
    (void)state;
    rails_reset(4);
    rails.chosen_keys = true;
    weft_config_set("WEFT_LANES", "8");
    opens("rails,local", "r0 r1 r2 r3 r0 r1 r2 r3 r0 r1 r2 r3 r0 r1 r2 r3 r0 r1 r2 r3 r0 r1 r2 r3 "
                         "r0 r1 r2 r3 local local local local");
    assert_non_null(strstr(log_lines, "rails: 7 nics of each device, not 8"));
}

/* --- conns ------------------------------------------------------------------------------------- */

struct joined {
    weft_endpoint_t a, b;
    weft_conn_t conn, other;
    char *from, *to;
    weft_mem_t mem;
    struct weft_remote remote;
};

static void join_up(struct joined *j, const char *transport, const char *fault_a,
                    const char *fault_b)
{
    j->a = open_with(transport, fault_a);
    j->b = open_with(transport, fault_b);
    duo_join(j->a, j->b, &j->conn, &j->other);
    j->from = malloc(LEN);
    j->to = calloc(1, LEN);
    WEFT_OK(weft_mem_reg(j->b, j->to, LEN, NULL, &j->mem));
    WEFT_OK(weft_mem_advertise(j->mem, j->to, LEN, &j->remote));
}

static void part(struct joined *j)
{
    WEFT_OK(weft_endpoint_close(j->a));
    WEFT_OK(weft_endpoint_close(j->b));
    free(j->from);
    free(j->to);
}

/* Every operation, and its bytes. */
static void use(struct joined *j)
{
    struct weft_notif notif;
    test_fill(j->from, LEN, 1, 0);
    assert_int_equal(weft_write(j->conn, j->from, LEN, &j->remote, 0, T), LEN);
    CHECK(test_differs(j->to, LEN, 1, 0) < 0, "bytes that were written are wrong");
    test_zero(j->from, LEN);
    assert_int_equal(weft_read(j->conn, j->from, LEN, &j->remote, 0, T), LEN);
    CHECK(test_differs(j->from, LEN, 1, 0) < 0, "bytes that were read are wrong");
    WEFT_OK(weft_notify(j->conn, j->from, MIB, T)); /* fetched, with keys of the sender's nics */
    WEFT_OK(weft_endpoint_notif(j->b, T, &notif));
    CHECK(test_differs(notif.data, MIB, 1, 0) < 0, "a long notification is wrong");
    weft_notif_free(&notif);
    memset(j->to, 0, 8);
    for (uint64_t i = 0; i < 20; i++) {
        uint64_t old = 77;
        WEFT_OK(weft_add(j->conn, &j->remote, 0, 1, &old, T));
        assert_int_equal(old, i);
        WEFT_OK(weft_notify(j->conn, &i, sizeof i, T));
        WEFT_OK(weft_endpoint_notif(j->b, T, &notif));
        assert_memory_equal(notif.data, &i, sizeof i);
        weft_notif_free(&notif);
    }
}

/* Both sides say so. */
static void has_links(const struct joined *j, int links, int of)
{
    weft_conn_t conns[] = {j->conn, j->other};
    char text[64];
    for (int i = 0; i < 2; i++) {
        struct weft_conn_info info;
        struct weft_conn_stats stats;
        WEFT_OK(weft_conn_info(conns[i], &info));
        WEFT_OK(weft_conn_stats(conns[i], &stats));
        assert_int_equal(info.state, WEFT_CONN_UP);
        assert_int_equal(info.links, links);
        assert_int_equal(info.links_of, of);
        snprintf(text, sizeof text, links < of ? "rails, %d of %d links" : "rails, %d link", links,
                 of);
        CHECK(strstr(info.path, text), "the path is '%s', not '%s'", info.path, text);
        assert_int_equal(stats.links_lost, 0);
    }
}

static void every_one_of(int n, const char *setting, const char *transport)
{
    struct joined j;
    weft_config_set("WEFT_RAILS", setting);
    weft_config_set("WEFT_CHUNK", "16K");
    join_up(&j, transport, "", "");
    has_links(&j, n, n);
    use(&j);
    for (int i = 0; i < n; i++)
        CHECK(rails.device[i].cmds > 0, "r%d carried nothing", i);
    part(&j);
}

static void every_rail_carries(void **state)
{
    (void)state;
    rails_reset(8);
    every_one_of(8, "8", "rails,local");
    rails_reset(34); /* room is for 32, one of which is left to local */
    rails.chosen_keys = true;
    every_one_of(31, "32", "rails,local");
    every_one_of(32, "32", "rails");
}

static void sides_with_different_numbers_share_the_first(void **state)
{
    (void)state;
    for (int b_has_more = 0; b_has_more < 2; b_has_more++) {
        struct joined j;
        rails_reset(4);
        weft_config_set("WEFT_RAILS", b_has_more ? "2" : "4");
        j.a = open_with("rails", "");
        weft_config_set("WEFT_RAILS", b_has_more ? "4" : "2");
        j.b = open_with("rails", "");
        duo_join(j.a, j.b, &j.conn, &j.other);
        has_links(&j, 2, 2);
        WEFT_OK(weft_endpoint_close(j.a));
        WEFT_OK(weft_endpoint_close(j.b));
    }
}

/* --- conns without some of their links ----------------------------------------------------------- */

static void a_link_that_one_side_cannot_join(void **state)
{
    (void)state;
    for (int n = 0; n < 3; n++)
        for (int side = 0; side < 2; side++) {
            struct joined j;
            struct weft_conn_info info;
            char fault[64];
            snprintf(fault, sizeof fault, "on=r%d,connectfail=1", n);
            join_up(&j, "rails", side ? "" : fault, side ? fault : "");
            has_links(&j, 2, 3);
            WEFT_OK(weft_conn_info(side ? j.other : j.conn, &info));
            CHECK(strstr(info.why, "2 of 3 links: fault: link 1 does not connect"), "'%s'",
                  info.why);
            use(&j);
            part(&j);
        }
}

static void a_link_that_cannot_be_opened(void **state)
{
    (void)state;
    for (int n = 0; n < 3; n++) {
        struct joined j;
        rails.device[n].link_open = -ENETDOWN; /* at both ends, and the first one to know is B */
        join_up(&j, "rails", "", "");
        has_links(&j, 2, 3);
        use(&j);
        part(&j);
        rails.device[n].link_open = 0;
    }
}

/* Time is left for the others to come up. */
static void a_link_that_is_never_joined(void **state)
{
    (void)state;
    struct joined j;
    rails.device[1].stuck = true;
    weft_config_set("WEFT_CONNECT_TIMEOUT", "1000");
    join_up(&j, "rails", "", "");
    weft_config_set("WEFT_CONNECT_TIMEOUT", NULL);
    has_links(&j, 2, 3);
    use(&j);
    part(&j);
}

static void each_side_lacks_another_one(void **state)
{
    (void)state;
    struct joined j;
    join_up(&j, "rails", "on=r0,connectfail=1", "on=r2,connectfail=1");
    has_links(&j, 1, 3);
    use(&j);
    part(&j);
}

static void the_same_with_a_secret(void **state)
{
    if (weft__mac_load()) {
        print_message("skipped: %s\n", weft_last_error());
        skip();
    }
    secret = "known to both of them";
    each_side_lacks_another_one(state);
    secret = NULL;
}

static void goes_another_way(const char *fault_a, const char *fault_b)
{
    struct joined j;
    struct weft_conn_info info;
    join_up(&j, "rails,local", fault_a, fault_b);
    WEFT_OK(weft_conn_info(j.conn, &info));
    assert_string_equal(info.transport, "local");
    CHECK(strstr(info.why, "rails: "), "'%s'", info.why);
    use(&j);
    part(&j);
}

static void none_in_common_is_the_next_transport(void **state)
{
    (void)state;
    goes_another_way("on=r0,connectfail=1,on=r1,connectfail=1", "on=r2,connectfail=1");
    goes_another_way("on=r2,connectfail=1", "on=r0,connectfail=1,on=r1,connectfail=1");
    goes_another_way("connectfail=1,on=local,connectfail=0", "");
    goes_another_way("", "connectfail=1,on=local,connectfail=0");
    for (int i = 0; i < 3; i++)
        rails.device[i].link_open = -ENETDOWN;
    goes_another_way("", "");
}

/* The next conn finds the link again. */
static void a_link_comes_back_with_the_next_conn(void **state)
{
    (void)state;
    struct joined j;
    weft_conn_t conn, other;
    rails.device[1].link_open = -ENETDOWN;
    join_up(&j, "rails", "", "");
    has_links(&j, 2, 3);
    rails.device[1].link_open = 0;
    WEFT_OK(weft_conn_close(j.conn));
    duo_join(j.a, j.b, &conn, &other);
    j.conn = conn;
    j.other = other;
    has_links(&j, 3, 3);
    use(&j);
    part(&j);
}

/* --- rails that differ, and die ------------------------------------------------------------------ */

/* One is slow, one takes little at a time, one dies, whichever it is. */
static void unlike_rails_bring_all(void **state)
{
    (void)state;
    weft_config_set("WEFT_CHUNK", "256K");
    for (int n = 0; n < 3; n++)
        for (int after = 1; after < 12; after += 5) {
            struct joined j;
            struct weft_conn_info info;
            char fault[128];
            for (int i = 0; i < 3; i++)
                rails.device[i].max_msg = i == (n + 2) % 3 ? 100000 : 0;
            snprintf(fault, sizeof fault, "seed=5,reorder=4,on=r%d,cut=%d,on=r%d,delay=3000", n,
                     after, (n + 1) % 3);
            join_up(&j, "rails", fault, "");
            for (int i = 0; i < 2; i++)
                use(&j);
            WEFT_OK(weft_conn_info(j.conn, &info));
            assert_int_equal(info.links, 2);
            assert_int_equal(info.links_of, 3);
            part(&j);
        }
}

/* What a dead link leaves goes by any other, though that takes less at a time. */
static void no_piece_is_too_long_for_another_rail(void **state)
{
    (void)state;
    struct joined j;
    rails.device[1].max_msg = rails.device[2].max_msg = 100000;
    join_up(&j, "rails", "on=r0,cut=1", "");
    use(&j);
    part(&j);
}

static void the_last_rail_ends_the_conn(void **state)
{
    (void)state;
    struct joined j;
    struct weft_conn_info info;
    join_up(&j, "rails", "cut=5", "");
    int64_t rc = 0;
    for (int i = 0; i < 50 && rc >= 0; i++)
        rc = weft_write(j.conn, j.from, LEN, &j.remote, 0, T);
    assert_int_equal(rc, WEFT_EPEER);
    WEFT_OK(weft_conn_info(j.conn, &info));
    assert_int_equal(info.state, WEFT_CONN_DOWN);
    assert_int_equal(info.links, 0);
    WEFT_OK(weft_conn_close(j.conn));
    part(&j);
}

#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(the_best_are_used_side_by_side),
        CASE(threads_that_move_the_bytes_have_a_nic_each),
        CASE(those_that_do_not_open_are_left_out),
        CASE(one_that_opens_is_enough),
        CASE(eight_nics_have_keys_of_their_own),
        CASE(devices_before_nics_of_one),
        CASE(every_rail_carries),
        CASE(sides_with_different_numbers_share_the_first),
        CASE(a_link_that_one_side_cannot_join),
        CASE(a_link_that_cannot_be_opened),
        CASE(a_link_that_is_never_joined),
        CASE(each_side_lacks_another_one),
        CASE(the_same_with_a_secret),
        CASE(none_in_common_is_the_next_transport),
        CASE(a_link_comes_back_with_the_next_conn),
        CASE(unlike_rails_bring_all),
        CASE(no_piece_is_too_long_for_another_rail),
        CASE(the_last_rail_ends_the_conn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
