/* SPDX-License-Identifier: Apache-2.0 */
/* efa over ofi_rxd, which says that its completion queues have something to sleep on, and does not say what: a nic then has the
 * same as one that is asked for nothing to sleep on, since each packet would wake what nobody sleeps on. */
#include "helpers.h"
#include "core/registry.h"

/* The descriptors of an open nic. */
static int descriptors_of_one(const char *wait)
{
    const struct weft_transport *efa = weft__transport_find("efa");
    struct weft_device_info info;
    struct weft_nic *nic;
    WEFT_OK(weft_config_set("WEFT_EFA_WAIT", wait));
    assert_non_null(efa);
    assert_true(efa->ops->probe(&info, 1) > 0);
    assert_true(info.usable);
    struct weft_nic_opts opts = {.device = info.name};
    int before = test_count_fds();
    WEFT_OK(efa->ops->open(&opts, &nic));
    int n = test_count_fds() - before;
    efa->ops->close(nic);
    return n;
}

static void what_cannot_wake_is_not_there(void **state)
{
    (void)state;
    descriptors_of_one("0"); /* what libfabric keeps from the first one on */
    int polled = descriptors_of_one("0");
    assert_true(polled >= 3); /* a socket for each endpoint */
    assert_int_equal(descriptors_of_one("1"), polled);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_cannot_wake_is_not_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
