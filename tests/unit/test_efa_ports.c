/* SPDX-License-Identifier: Apache-2.0 */
/* efa over ofi_rxd: no endpoint gets a port that this process had lately, or another one. Of 28000 that Linux gives out at random,
 * 300 nics with three endpoints each would get one twice without that but once in e to the 14th; those of 200 processes, once in
 * 600. */
#include "helpers.h"
#include "core/registry.h"
#include "transports/efa/efa.h"

#include <netinet/in.h>

#define NICS 300
#define PROCESSES 200

static uint16_t port_of(const struct efa_end *end)
{
    struct sockaddr_in name;
    size_t len = sizeof name;
    assert_int_equal(fi_getname(&end->ep->fid, &name, &len), 0);
    assert_int_equal(name.sin_family, AF_INET);
    return ntohs(name.sin_port);
}

static bool had[UINT16_MAX + 1];

static void check_new(int i, uint16_t port)
{
    CHECK(!had[port], "nic %d has port %u, which an earlier one had", i, port);
    had[port] = true;
}

struct ports {
    uint16_t of[3];
};

/* The ports of a nic that is opened and closed. */
static struct ports open_one(void)
{
    const struct weft_transport *efa = weft__transport_find("efa");
    struct weft_device_info info;
    struct weft_nic *base;
    struct ports ports;
    assert_non_null(efa);
    assert_true(efa->ops->probe(&info, 1) > 0);
    struct weft_nic_opts opts = {.device = info.name};
    WEFT_OK(efa->ops->open(&opts, &base));
    const struct efa_nic *nic = (struct efa_nic *)base;
    const struct efa_end *ends[] = {&nic->message, &nic->work, &nic->target};
    for (size_t k = 0; k < ARRAY_LEN(ends); k++)
        ports.of[k] = port_of(ends[k]);
    efa->ops->close(base);
    return ports;
}

static void no_port_is_had_twice(void **state)
{
    (void)state;
    memset(had, 0, sizeof had);
    for (int i = 0; i < NICS; i++) {
        struct ports ports = open_one();
        for (size_t k = 0; k < ARRAY_LEN(ports.of); k++)
            check_new(i, ports.of[k]);
    }
}

static void child(int fd, void *arg)
{
    (void)arg;
    struct ports ports = open_one();
    CHECK(write(fd, &ports, sizeof ports) == sizeof ports, "%m");
}

static void nor_by_another_process(void **state)
{
    (void)state;
    struct weft_device_info info;
    memset(had, 0, sizeof had);
    assert_true(weft__transport_find("efa")->ops->probe(&info, 1) > 0); /* libfabric's first look takes 0.2 s: once for all */
    for (int i = 0; i < PROCESSES; i++) {
        struct ports ports;
        int fd;
        pid_t pid = test_fork(child, NULL, &fd);
        CHECK(read(fd, &ports, sizeof ports) == sizeof ports, "%m");
        test_join(pid, 0);
        close(fd);
        for (size_t k = 0; k < ARRAY_LEN(ports.of); k++)
            check_new(i, ports.of[k]);
    }
}

union own {
    struct sockaddr any;
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
};

static uint16_t choose(char *provider, int family)
{
    union own own = {.any.sa_family = (sa_family_t)family};
    struct fi_fabric_attr fabric = {.prov_name = provider};
    struct fi_info info = {.fabric_attr = &fabric, .src_addr = &own, .src_addrlen = sizeof own.in6};
    if (family == AF_INET)
        info.src_addrlen = sizeof own.in;
    own.in.sin_port = htons(1); /* where in6 has it, too */
    efa_port_release(efa_port_hold(&info));
    return ntohs(own.in.sin_port);
}

/* However fast. */
static void no_port_is_asked_for_twice(void **state)
{
    (void)state;
    memset(had, 0, sizeof had);
    for (int i = 0; i < 10000; i++)
        check_new(i, choose("udp;ofi_rxd", i % 2 ? AF_INET : AF_INET6));
    assert_int_equal(choose("tcp;ofi_rxm", AF_INET), 1);
    assert_int_equal(choose("udp;ofi_rxd", AF_UNIX), 1);
}

/* Those of others are passed by: an endpoint that cannot be bound would leave a descriptor behind. If there are hundreds, it is
 * left to Linux. */
static void no_port_of_others_is_asked_for(void **state)
{
    (void)state;
    static int fds[800];
    unsigned low, high;
    memset(had, 0, sizeof had);
    FILE *f = fopen("/proc/sys/net/ipv4/ip_local_port_range", "r");
    assert_true(f && fscanf(f, "%u %u", &low, &high) == 2);
    fclose(f);
    unsigned port = choose("udp;ofi_rxd", AF_INET);
    for (size_t i = 0; i < ARRAY_LEN(fds); i++) {
        port = port == high ? low : port + 1;
        union own own = {.in = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)}};
        fds[i] = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        CHECK(fds[i] >= 0, "%m");
        if (bind(fds[i], &own.any, sizeof own.in) == 0)
            had[port] = true;
    }
    int before = test_count_fds(), none = 0;
    for (int i = 0; i < 20; i++) {
        port = choose("udp;ofi_rxd", AF_INET);
        CHECK(!had[port], "port %u is another's", port);
        none += port == 0;
    }
    assert_in_range(none, 1, 4);
    assert_int_equal(test_count_fds(), before);
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        close(fds[i]);
}

/* Who looks at a port at the same time as another one does not take it, too: the processes start together, and what fails to
 * open is seen by the descriptors that it leaves. */
static void together(int fd, void *arg)
{
    uint64_t *at = arg;
    open_one();
    int before = test_count_fds();
    while (weft_now() < *at)
        ;
    for (int i = 0; i < 20; i++)
        open_one();
    int now = test_count_fds();
    CHECK(now == before, "%d descriptors are open, %d were", now, before);
    CHECK(write(fd, "", 1) == 1, "%m");
}

static void no_port_is_asked_for_by_two_at_once(void **state)
{
    (void)state;
    pid_t pids[8];
    int fds[8];
    uint64_t at = weft_now() + 100000000u;
    for (int i = 0; i < 8; i++)
        pids[i] = test_fork(together, &at, &fds[i]);
    for (int i = 0; i < 8; i++) {
        test_join(pids[i], 0);
        close(fds[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nor_by_another_process),
        cmocka_unit_test(no_port_is_had_twice),
        cmocka_unit_test(no_port_is_asked_for_twice),
        cmocka_unit_test(no_port_of_others_is_asked_for),
        cmocka_unit_test(no_port_is_asked_for_by_two_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
