/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who can come to an endpoint's doors (its bootstrap port and those of its tcp nics), and what a crowd
 * there that says nothing, or says it slowly, takes from those who come in earnest.
 */
#include "helpers.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

#define T TEST_DEADLINE_MS

/* --- who makes room ------------------------------------------------------------------------------ */

static void a_crowd_makes_room_itself(void **state)
{
    (void)state;
    struct weft_stranger list[] = {{.since = 1, .place = 7}, {.since = 5, .place = 9},
                                   {.since = 4, .place = 9}, {.since = 6, .place = 9}};
    assert_int_equal(weft_stranger_choose(list, 0), -1);
    assert_int_equal(weft_stranger_choose(list, 1), 0);
    assert_int_equal(weft_stranger_choose(list, 2), 0); /* as many from each: who came first */
    assert_int_equal(weft_stranger_choose(list, 4), 2); /* of the many, who came first */
    list[2].known = 1;
    assert_int_equal(weft_stranger_choose(list, 4), 1); /* of these, one who is silent */
    list[1].known = list[3].known = 2;
    assert_int_equal(weft_stranger_choose(list, 4), 2);
}

static struct sockaddr_storage address(const char *text)
{
    struct sockaddr_storage a = {.ss_family = strchr(text, ':') ? AF_INET6 : AF_INET};
    void *at = a.ss_family == AF_INET ? (void *)&((struct sockaddr_in *)&a)->sin_addr
                                      : (void *)&((struct sockaddr_in6 *)&a)->sin6_addr;
    assert_int_equal(inet_pton(a.ss_family, text, at), 1);
    return a;
}

static void places_are_hosts(void **state)
{
    (void)state;
    const char *const same[][2] = {{"10.1.2.3", "::ffff:10.1.2.3"},
                                   {"2001:db8::1", "2001:db8::2:3"}};
    for (size_t i = 0; i < ARRAY_LEN(same); i++) {
        struct sockaddr_storage a = address(same[i][0]), b = address(same[i][1]);
        assert_int_equal(weft_stranger_from(&a), weft_stranger_from(&b));
    }
    int differ = 0;
    for (int i = 0; i < 100; i++) {
        char text[2][32];
        snprintf(text[0], sizeof text[0], "10.0.0.%d", i);
        snprintf(text[1], sizeof text[1], "2001:db8:0:%x::1", i);
        for (int k = 0; k < 2; k++) {
            struct sockaddr_storage a = address(text[k]), b = address(k ? "2001:db9::1" : "10.9.9.9");
            differ += weft_stranger_from(&a) != weft_stranger_from(&b);
        }
    }
    assert_in_range(differ, 180, 200); /* 256 places: few of 200 share one */
}

/* --- doors ------------------------------------------------------------------------------------- */

#define DOORS 16

struct doors {
    int n;
    char host[DOORS][INET6_ADDRSTRLEN];
    int port[DOORS];
};

static void add_door(struct doors *doors, int fd)
{
    struct sockaddr_storage at;
    socklen_t len = sizeof at, size = sizeof(int);
    int listens = 0;
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) || !listens ||
        getsockname(fd, (struct sockaddr *)&at, &len))
        return;
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)&at;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&at;
    if (at.ss_family != AF_INET && at.ss_family != AF_INET6)
        return;
    assert_in_range(doors->n, 0, DOORS - 1);
    inet_ntop(at.ss_family,
              at.ss_family == AF_INET ? (const void *)&v4->sin_addr : (const void *)&v6->sin6_addr,
              doors->host[doors->n], INET6_ADDRSTRLEN);
    doors->port[doors->n++] = ntohs(at.ss_family == AF_INET ? v4->sin_port : v6->sin6_port);
}

/* Where this process listens, as the kernel has it. */
static struct doors all_doors(void)
{
    struct doors doors = {0};
    DIR *dir = opendir("/proc/self/fd");
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (*e->d_name != '.')
            add_door(&doors, atoi(e->d_name));
    closedir(dir);
    return doors;
}

/* An endpoint's bootstrap port, and one for each tcp nic: all at this address. */
static void check_doors(const char *listen, const char *setting, const char *host)
{
    weft_endpoint_t endpoint;
    assert_int_equal(all_doors().n, 0);
    weft_config_set("WEFT_LANES", "3");
    weft_config_set("WEFT_LISTEN", setting);
    WEFT_OK(weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .listen = listen), &endpoint));
    weft_config_set("WEFT_LISTEN", NULL);
    weft_config_set("WEFT_LANES", NULL);
    struct doors doors = all_doors();
    assert_int_equal(doors.n, 4);
    for (int i = 0; i < doors.n; i++)
        CHECK(!strcmp(doors.host[i], host), "it listens on %s:%d", doors.host[i], doors.port[i]);
    WEFT_OK(weft_endpoint_close(endpoint));
}

static void it_listens_where_it_is_told(void **state)
{
    (void)state;
    check_doors(NULL, NULL, "127.0.0.1"); /* nowhere else without being told */
    check_doors("127.0.0.2", NULL, "127.0.0.2");
    check_doors(NULL, "127.0.0.3", "127.0.0.3");
    check_doors("127.0.0.4:0", "127.0.0.3", "127.0.0.4");
    check_doors("0.0.0.0", NULL, "0.0.0.0");
    check_doors("[::1]", NULL, "::1");
    check_doors("[::]:0", NULL, "::");
}

/* --- crowds ------------------------------------------------------------------------------------- */

static weft_endpoint_t server;

static int open_server(void **state)
{
    (void)state;
    WEFT_OK(weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .transport = "tcp"), &server));
    return 0;
}

static int close_server(void **state)
{
    (void)state;
    return weft_endpoint_close(server);
}

/* The port of the endpoint's nic. */
static int nic_port(void)
{
    struct doors doors = all_doors();
    assert_int_equal(doors.n, 2);
    return doors.port[doors.port[0] == weft_endpoint_port(server)];
}

static int dial(int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                             .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && !connect(fd, (struct sockaddr *)&at, sizeof at), "connect: %m");
    return fd;
}

/* Who the machine does not let speak in time may make room for others, and comes again. */
enum { TRIES = 10 };

static void come_in(void)
{
    weft_endpoint_t client;
    weft_conn_t conn, other;
    uint8_t metadata[WEFT_METADATA_MAX];
    size_t len = (size_t)WEFT_OK(weft_endpoint_metadata(server, metadata, sizeof metadata));
    WEFT_OK(weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .transport = "tcp"), &client));
    int rc = WEFT_EPEER;
    for (int i = 0; i < TRIES && (rc == WEFT_EPEER || rc == WEFT_ENOPATH); i++)
        rc = weft_endpoint_connect(client, metadata, len, NULL, &conn);
    WEFT_OK(rc);
    WEFT_OK(weft_endpoint_accept(server, T, &other));
    WEFT_OK(weft_notify(conn, "hi", 2, T));
    struct weft_notif notif;
    WEFT_OK(weft_endpoint_notif(server, T, &notif));
    weft_notif_free(&notif);
    WEFT_OK(weft_conn_close(other));
    WEFT_OK(weft_endpoint_close(client));
}

enum { CROWD = 200 };

struct crowd {
    int port;
    const char *says;
    _Atomic(bool) stop;
    int fds[CROWD];
};

/* The crowd stays as it is: whoever was thrown out comes again. */
static void *press(void *arg)
{
    struct crowd *crowd = arg;
    for (int i = 0; !crowd->stop; i = (i + 1) % CROWD) {
        close(crowd->fds[i]);
        crowd->fds[i] = dial(crowd->port);
        (void)!send(crowd->fds[i], crowd->says, strlen(crowd->says), MSG_NOSIGNAL);
    }
    return NULL;
}

static void crowd_at(int port, const char *says)
{
    struct crowd crowd = {.port = port, .says = says};
    pthread_t thread;
    for (int i = 0; i < CROWD; i++) {
        crowd.fds[i] = dial(port);
        (void)!send(crowd.fds[i], says, strlen(says), MSG_NOSIGNAL);
    }
    come_in(); /* while they stand there */
    assert_int_equal(pthread_create(&thread, NULL, press, &crowd), 0);
    for (int i = 0; i < 10; i++) /* and while more and more press in */
        come_in();
    crowd.stop = true;
    pthread_join(thread, NULL);
    for (int i = 0; i < CROWD; i++)
        close(crowd.fds[i]);
    come_in();
}

static void a_silent_crowd_at_the_port(void **state)
{
    (void)state;
    crowd_at(weft_endpoint_port(server), "");
}

static void a_stammering_crowd_at_the_port(void **state)
{
    (void)state;
    crowd_at(weft_endpoint_port(server), "WEFT");
}

static void a_silent_crowd_at_the_nic(void **state)
{
    (void)state;
    crowd_at(nic_port(), "");
}

static void a_stammering_crowd_at_the_nic(void **state)
{
    (void)state;
    crowd_at(nic_port(), "wef");
}

/* --- slow ones ------------------------------------------------------------------------------------ */

/* A byte now and then is no sign of life. Milliseconds until it is hung up on. */
static uint64_t dribble(int port)
{
    int fd = dial(port);
    uint64_t begin = weft_now();
    char byte = 0;
    ssize_t n = -1;
    const char *text = port == weft_endpoint_port(server) ? "WEFT" : "";
    (void)!send(fd, text, strlen(text), MSG_NOSIGNAL);
    TEST_UNTIL(n == 0 || (n < 0 && errno == ECONNRESET),
               { test_sleep_ms(n == -1 ? 100 : 1); n = recv(fd, &byte, 1, MSG_DONTWAIT); },
               "a slow stranger to be hung up on");
    close(fd);
    return (weft_now() - begin) / 1000000;
}

static void slow_ones_end_by_the_deadline(void **state)
{
    (void)state;
    weft_config_set("WEFT_CONNECT_TIMEOUT", "600");
    weft_config_set("WEFT_TCP_TIMEOUT", "1000");
    open_server(state);
    assert_in_range(dribble(weft_endpoint_port(server)), 500, 5000);
    assert_in_range(dribble(nic_port()), 900, 5000);
    weft_config_set("WEFT_CONNECT_TIMEOUT", NULL);
    weft_config_set("WEFT_TCP_TIMEOUT", NULL);
    come_in();
    close_server(state);
}

#define SERVED(test) cmocka_unit_test_setup_teardown(test, open_server, close_server)

int main(void)
{
    weft_config_set("WEFT_LOG", "error");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_crowd_makes_room_itself),
        cmocka_unit_test(places_are_hosts),
        cmocka_unit_test(it_listens_where_it_is_told),
        SERVED(a_silent_crowd_at_the_port),
        SERVED(a_stammering_crowd_at_the_port),
        SERVED(a_silent_crowd_at_the_nic),
        SERVED(a_stammering_crowd_at_the_nic),
        cmocka_unit_test(slow_ones_end_by_the_deadline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
