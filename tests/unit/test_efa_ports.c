/* SPDX-License-Identifier: Apache-2.0 */
/* efa over ofi_rxd: no endpoint gets a port that this process had lately. Of 28000 that Linux gives out at random, 600 nics with
 * three endpoints each would get one twice without that but once in e to the 57th. */
#include "helpers.h"
#include "core/registry.h"
#include "transports/efa/efa.h"

#include <netinet/in.h>

#define NICS 600

static uint16_t port_of(const struct efa_end *end)
{
    struct sockaddr_in name;
    size_t len = sizeof name;
    assert_int_equal(fi_getname(&end->ep->fid, &name, &len), 0);
    assert_int_equal(name.sin_family, AF_INET);
    return ntohs(name.sin_port);
}

static void no_port_is_had_twice(void **state)
{
    (void)state;
    static bool had[UINT16_MAX + 1];
    const struct weft_transport *efa = weft__transport_find("efa");
    struct weft_device_info info;
    assert_non_null(efa);
    assert_true(efa->ops->probe(&info, 1) > 0);
    for (int i = 0; i < NICS; i++) {
        struct weft_nic_opts opts = {.device = info.name};
        struct weft_nic *base;
        WEFT_OK(efa->ops->open(&opts, &base));
        const struct efa_nic *nic = (struct efa_nic *)base;
        const struct efa_end *ends[] = {&nic->message, &nic->work, &nic->target};
        for (size_t k = 0; k < ARRAY_LEN(ends); k++) {
            uint16_t port = port_of(ends[k]);
            CHECK(!had[port], "nic %d has port %u, which an earlier one had", i, port);
            had[port] = true;
        }
        efa->ops->close(base);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_port_is_had_twice)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
