/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Congestion control of tcp's sockets (transports/tcp/tcp_link.c): reno to peers on this host, the kernel's own to others,
 * or what is asked for.
 */
#include "contract/pair.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define NAME 16
#define MOST_FDS 256
#define SOCKETS 4 /* of a link at both its ends */

/* As if who sends to any address had another one. */
static bool elsewhere;
/* What the kernel would choose: it may be reno here. */
static const char *const own = "cubic";

int __real_getsockname(int fd, struct sockaddr *addr, socklen_t *len);
int __wrap_getsockname(int fd, struct sockaddr *addr, socklen_t *len);
int __wrap_getsockname(int fd, struct sockaddr *addr, socklen_t *len)
{
    int type = 0;
    socklen_t size = sizeof(type);
    getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size);
    int rc = __real_getsockname(fd, addr, len);
    if (elsewhere && type == SOCK_DGRAM)
        ((struct sockaddr_in *)addr)->sin_addr.s_addr ^= htonl(1);
    return rc;
}

int __real_socket(int domain, int type, int protocol);
int __wrap_socket(int domain, int type, int protocol);
int __wrap_socket(int domain, int type, int protocol)
{
    int fd = __real_socket(domain, type, protocol);
    if (fd >= 0 && type & SOCK_STREAM && domain != AF_UNIX)
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, own, (socklen_t)strlen(own));
    return fd;
}

/* All connected TCP sockets of this process have it. */
static void check_all(const char *name)
{
    int found = 0;
    for (int fd = 0; fd < MOST_FDS; fd++) {
        char has[NAME] = "";
        struct sockaddr_storage peer;
        socklen_t len = sizeof(has), peer_len = sizeof(peer);
        if (getpeername(fd, (struct sockaddr *)&peer, &peer_len) < 0 ||
            (peer.ss_family != AF_INET && peer.ss_family != AF_INET6) ||
            getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, has, &len) < 0)
            continue;
        assert_string_equal(has, name);
        found++;
    }
    assert_int_equal(found, SOCKETS);
}

static bool has_own(void)
{
    char has[NAME] = "";
    socklen_t len = sizeof(has);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, has, &len);
    close(fd);
    return strcmp(has, own) == 0;
}

static void check_pair(const char *name)
{
    void *state = NULL;
    assert_int_equal(pair_setup(&state), 0);
    check_all(name);
    assert_int_equal(pair_teardown(&state), 0);
}

static void on_this_host_it_is_reno(void **state)
{
    (void)state;
    check_pair("reno");
}

static void elsewhere_it_is_the_kernels_own(void **state)
{
    (void)state;
    if (!has_own())
        skip();
    elsewhere = true;
    check_pair(own);
    elsewhere = false;
}

static void what_is_asked_for_is_everywhere(void **state)
{
    (void)state;
    weft_config_set("WEFT_TCP_CONGESTION", "reno");
    elsewhere = true;
    check_pair("reno");
    elsewhere = false;
    if (has_own()) {
        weft_config_set("WEFT_TCP_CONGESTION", own);
        check_pair(own);
    }
    weft_config_set("WEFT_TCP_CONGESTION", NULL);
}

static void one_that_does_not_exist_is_named(void **state)
{
    (void)state;
    struct weft_nic *nic = NULL;
    const struct weft_transport *tcp = side_transport();
    struct weft_nic_opts opts = {.device = "tcp"};
    weft_config_set("WEFT_TCP_CONGESTION", "hurry");
    assert_int_equal(tcp->ops->open(&opts, &nic), -ENOENT);
    assert_non_null(strstr(weft_last_error(), "WEFT_TCP_CONGESTION=hurry"));
    weft_config_set("WEFT_TCP_CONGESTION", NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(on_this_host_it_is_reno),
        cmocka_unit_test(elsewhere_it_is_the_kernels_own),
        cmocka_unit_test(what_is_asked_for_is_everywhere),
        cmocka_unit_test(one_that_does_not_exist_is_named),
    };
    return PAIR_MAIN("tcp_congestion", tests);
}
