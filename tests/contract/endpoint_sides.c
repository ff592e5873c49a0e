/* SPDX-License-Identifier: Apache-2.0 */
/* Two endpoints that are not set up alike, or not on one host: who may connect to whom, over which
 * transport and how many links. The run says what differs (docs/testing.md, two hosts). */
#include "duo.h"

#include "internal.h"

#define T TEST_DEADLINE_MS

static void conn_info(struct host *host, void *arg)
{
    WEFT_OK(weft_conn_info(host->conns[0], arg));
}

static void lanes(struct host *host, void *arg)
{
    (void)host;
    *(int64_t *)arg = weft_config_int("WEFT_LANES");
}

/* One link for each lane that both have, of the first transport of A's list that B has. */
static void both_ends_take_the_same_path(void **state)
{
    struct duo *d = *state;
    struct weft_conn_info info[2];
    int64_t n[2];
    for (enum who who = A; who <= B; who++) {
        duo_call(d, who, conn_info, &info[who], sizeof info[who]);
        duo_call(d, who, lanes, &n[who], sizeof n[who]);
    }
    for (enum who who = A; who <= B; who++) {
        assert_string_equal(info[who].transport, test_common_transport());
        assert_int_equal(info[who].links, n[A] < n[B] ? n[A] : n[B]);
        assert_int_equal(info[who].same_host, test_same_host());
        assert_int_equal(info[who].initiator, who == A);
    }
    print_message("conn: %s, because: %s\n", info[A].path, info[A].why);
}

struct connect_arg {
    char bytes[WEFT_METADATA_MAX];
    int len;
};

static void connect_back(struct host *host, void *arg)
{
    struct connect_arg *a = arg;
    CHECK(host->nconns < MAX_CONNS, "too many conns");
    WEFT_OK(weft_endpoint_connect(host->endpoint, a->bytes, (size_t)a->len, NULL,
                                  &host->conns[host->nconns++]));
}

/* B finds A by A's metadata, too; both conns work side by side. */
static void either_may_connect(void **state)
{
    struct duo *d = *state;
    struct connect_arg a;
    struct area near = duo_area(d, A, 100000, 0, 0), far = duo_area(d, B, 100000, 0, 0);
    a.len = WEFT_OK(weft_endpoint_metadata(d->a.endpoint, a.bytes, sizeof a.bytes));
    duo_call(d, B, connect_back, &a, sizeof a);
    WEFT_OK(weft_endpoint_accept(d->a.endpoint, T, &d->a.conns[d->a.nconns++]));
    for (int conn = 0; conn < 2; conn++) {
        duo_fill(d, near, (uint64_t)conn);
        weft_op_t recv = duo_recv(d, B, conn, far, 0, far.len);
        weft_op_t send = duo_send(d, A, conn, near, 0, near.len);
        duo_wait(d, A, send, 0);
        duo_wait(d, B, recv, 0);
        duo_check(d, far, 0, far.len, (uint64_t)conn);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_BOTH(both_ends_take_the_same_path),
        IN_BOTH(either_may_connect),
    };
    return DUO_MAIN("endpoint_sides", tests);
}
