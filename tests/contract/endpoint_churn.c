/* SPDX-License-Identifier: Apache-2.0 */
/* Conns come and go while others carry every kind of operation: none is held up, nothing is lost. */
#include "duo.h"

#include <pthread.h>
#include <stdatomic.h>

#define T TEST_DEADLINE_MS
#define CLIENTS 3
#define CONNS 12 /* that each client opens, one after the other */
#define OPS 12   /* on each of them */
#define LEN (128 * 1024)
#define BURST 8

struct server {
    weft_endpoint_t endpoint;
    char *memory; /* LEN for each client, then a word for each */
    weft_mem_t mem;
    struct weft_remote remote;
    uint8_t metadata[WEFT_METADATA_MAX];
    int metadata_len;
    _Atomic(bool) stop;
    _Atomic(int) notifs;
};

struct client {
    struct server *server;
    int i;
    uint64_t random, adds;
    int notifs;
    char *buf;
};

static void server_open(struct server *s)
{
    struct weft_endpoint_opts opts = duo_opts();
    opts.passive_accept = 1;
    size_t len = CLIENTS * (LEN + sizeof(uint64_t));
    s->memory = calloc(1, len);
    WEFT_OK(weft_endpoint_open(&opts, &s->endpoint));
    WEFT_OK(weft_mem_reg(s->endpoint, s->memory, len, NULL, &s->mem));
    WEFT_OK(weft_mem_advertise(s->mem, s->memory, len, &s->remote));
    s->metadata_len = WEFT_OK(
        weft_endpoint_metadata(s->endpoint, s->metadata, sizeof s->metadata));
}

/* Every notification is the pattern of its own length. */
static void *take_notifs(void *arg)
{
    struct server *s = arg;
    struct weft_notif notif;
    while (!atomic_load(&s->stop)) {
        if (weft_endpoint_notif(s->endpoint, 50, &notif))
            continue;
        CHECK(test_differs(notif.data, notif.len, notif.len, 0) < 0,
              "a notification has wrong bytes");
        weft_notif_free(&notif);
        atomic_fetch_add(&s->notifs, 1);
    }
    return NULL;
}

static void write_and_read(struct client *c, weft_conn_t conn, size_t len)
{
    uint64_t at = (uint64_t)c->i * LEN, seed = c->random;
    test_fill(c->buf, len, seed, 0);
    CHECK(weft_write(conn, c->buf, len, &c->server->remote, at, T) == (int64_t)len,
          "write of %zu: %s", len, weft_last_error());
    memset(c->buf, 0, len);
    CHECK(weft_read(conn, c->buf, len, &c->server->remote, at, T) == (int64_t)len,
          "read of %zu: %s", len, weft_last_error());
    CHECK(test_differs(c->buf, len, seed, 0) < 0, "read back wrong bytes");
}

static void notify(struct client *c, weft_conn_t conn, size_t len)
{
    test_fill(c->buf, len, len, 0);
    WEFT_OK(weft_notify(conn, c->buf, len, T));
    c->notifs++;
}

static void add(struct client *c, weft_conn_t conn)
{
    uint64_t before, at = CLIENTS * LEN + (uint64_t)c->i * sizeof before;
    WEFT_OK(weft_add(conn, &c->server->remote, at, 3, &before, T));
    CHECK(before == 3 * c->adds++, "the word was %" PRIu64, before);
}

/* Many at once, half of them canceled: each ends, one way or the other. */
static void burst(struct client *c, weft_conn_t conn)
{
    weft_op_t ops[BURST];
    struct weft_local local = {.addr = c->buf, .len = 1000};
    uint64_t offset = (uint64_t)c->i * LEN;
    for (int i = 0; i < BURST; i++)
        WEFT_OK(weft_post(conn,
                          WEFT_OPTS(weft_xfer, .op = WEFT_XFER_WRITE, .local = &local, .nlocal = 1,
                                    .remote = &c->server->remote, .nremote = 1,
                                    .remote_offset = &offset),
                          &ops[i]));
    for (int i = 0; i < BURST; i += 2)
        WEFT_OK(weft_op_cancel(ops[i]));
    for (int i = 0; i < BURST; i++) {
        int rc = weft_op_wait(ops[i], T, NULL);
        CHECK(rc == 0 || (rc == WEFT_ECANCELED && i % 2 == 0), "write %d: %s", i,
              weft_last_error());
    }
}

static void *churn(void *arg)
{
    struct client *c = arg;
    struct weft_endpoint_opts opts = duo_opts();
    opts.progress_threads = c->i % 2 ? 1 : WEFT_PROGRESS_CALLER;
    weft_endpoint_t endpoint;
    WEFT_OK(weft_endpoint_open(&opts, &endpoint));
    for (int round = 0; round < CONNS; round++) {
        weft_conn_t conn;
        WEFT_OK(weft_endpoint_connect(endpoint, c->server->metadata,
                                      (size_t)c->server->metadata_len, NULL, &conn));
        for (int i = 0; i < OPS; i++) {
            size_t len = test_random(&c->random) % LEN;
            switch (test_random(&c->random) % 4) {
            case 0:
                write_and_read(c, conn, len);
                break;
            case 1:
                notify(c, conn, len);
                break;
            case 2:
                add(c, conn);
                break;
            default:
                burst(c, conn);
            }
        }
        WEFT_OK(weft_conn_close(conn));
    }
    WEFT_OK(weft_endpoint_close(endpoint));
    return NULL;
}

static void conns_come_and_go(void **state)
{
    (void)state;
    struct server server = {0};
    struct client clients[CLIENTS];
    pthread_t threads[CLIENTS], taker;
    int notifs = 0;
    server_open(&server);
    pthread_create(&taker, NULL, take_notifs, &server);
    for (int i = 0; i < CLIENTS; i++) {
        clients[i] = (struct client){
            .server = &server, .i = i, .random = (uint64_t)i + 1, .buf = malloc(LEN)};
        pthread_create(&threads[i], NULL, churn, &clients[i]);
    }
    for (int i = 0; i < CLIENTS; i++) {
        pthread_join(threads[i], NULL);
        notifs += clients[i].notifs;
        free(clients[i].buf);
    }
    TEST_UNTIL(atomic_load(&server.notifs) == notifs, test_sleep_ms(1), "notifications");
    TEST_UNTIL(weft_endpoint_conns(server.endpoint, NULL, 0) == 0, test_sleep_ms(1),
               "the server's conns to go");
    atomic_store(&server.stop, true);
    pthread_join(taker, NULL);
    WEFT_OK(weft_endpoint_close(server.endpoint));
    free(server.memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(conns_come_and_go)};
    return DUO_MAIN("endpoint_churn", tests);
}
