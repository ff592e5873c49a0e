/* SPDX-License-Identifier: Apache-2.0 */
/* A progress thread of several that cannot be started: opening fails, and what those before it have let in is closed. */
#include "../helpers.h"

#include <errno.h>
#include <pthread.h>

#define T TEST_DEADLINE_MS
#define THREADS 3

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*main)(void *), void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*main)(void *), void *arg);

static int fails_at = -1, started; /* the how manieth; -1: none */
static weft_endpoint_t client;
static weft_conn_t conn;
static char address[32];

/* Where it fails, a peer is connected before. */
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*main)(void *), void *arg)
{
    if (started++ != fails_at)
        return __real_pthread_create(thread, attr, main, arg);
    if (fails_at > 0)
        WEFT_OK(weft_endpoint_connect_to(client, address, NULL, &conn));
    return EAGAIN;
}

static int open_server(weft_endpoint_t *server)
{
    return weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .listen = address, .progress_threads = THREADS), server);
}

static void a_thread_that_cannot_be_started(void **state)
{
    (void)state;
    weft_endpoint_t server;
    char word[32];
    WEFT_OK(weft_endpoint_open(NULL, &client));
    snprintf(address, sizeof address, "127.0.0.1:0");
    WEFT_OK(open_server(&server)); /* for a port */
    snprintf(address, sizeof address, "127.0.0.1:%d", weft_endpoint_port(server));
    WEFT_OK(weft_endpoint_close(server));
    int fds = test_count_fds();
    for (fails_at = 0; fails_at < THREADS; fails_at++) {
        started = 0;
        WEFT_FAILS(-EAGAIN, open_server(&server));
        snprintf(word, sizeof word, "progress thread %d", fails_at);
        CHECK(strstr(weft_last_error(), word), "'%s'", weft_last_error());
        if (fails_at > 0) {
            struct weft_conn_info info = {0};
            TEST_UNTIL(info.state == WEFT_CONN_DOWN, WEFT_OK(weft_conn_info(conn, &info)), "the end of the conn");
            WEFT_OK(weft_conn_close(conn));
        }
        TEST_UNTIL(test_count_fds() == fds, test_sleep_ms(1), "descriptors to be closed");
    }
    fails_at = -1;
    WEFT_OK(open_server(&server));
    WEFT_OK(weft_endpoint_connect_to(client, address, NULL, &conn));
    WEFT_OK(weft_endpoint_close(server));
    WEFT_OK(weft_endpoint_close(client));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_thread_that_cannot_be_started)};
    weft_config_set("WEFT_TRANSPORT", "tcp");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
