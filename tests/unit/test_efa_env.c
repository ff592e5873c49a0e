/* SPDX-License-Identifier: Apache-2.0 */
/* What the environment says stays readable while words are added to it, and stays what the user said. */
#include "helpers.h"
#include "transports/efa/efa.h"

#include <pthread.h>
#include <stdatomic.h>

#define READERS 2
#define WORDS 2000

static _Atomic(bool) added_all;

static void *read_on(void *arg)
{
    (void)arg;
    while (!atomic_load(&added_all)) {
        const char *first = getenv("WEFT_TEST_FIRST");
        CHECK(first && strcmp(first, "kept") == 0, "WEFT_TEST_FIRST is %s",
              first ? first : "gone");
        CHECK(!getenv("WEFT_TEST_NEVER"), "WEFT_TEST_NEVER is there");
    }
    return NULL;
}

static void words_are_added_beside_who_reads(void **state)
{
    (void)state;
    pthread_t readers[READERS];
    char name[64];
    setenv("WEFT_TEST_FIRST", "kept", 1);
    for (int i = 0; i < READERS; i++)
        CHECK(!pthread_create(&readers[i], NULL, read_on, NULL), "pthread_create");
    for (int i = 0; i < WORDS; i++) {
        snprintf(name, sizeof name, "WEFT_TEST_WORD_%d", i);
        efa_env_default(name, name);
        const char *value = getenv(name);
        CHECK(value && strcmp(value, name) == 0, "%s is %s", name, value ? value : "not there");
    }
    atomic_store(&added_all, true);
    for (int i = 0; i < READERS; i++)
        pthread_join(readers[i], NULL);
    for (int i = 0; i < WORDS; i++) {
        snprintf(name, sizeof name, "WEFT_TEST_WORD_%d", i);
        assert_string_equal(getenv(name), name);
    }
}

static void what_the_user_says_stays(void **state)
{
    (void)state;
    setenv("WEFT_TEST_MINE", "mine", 1);
    efa_env_default("WEFT_TEST_MINE", "theirs");
    assert_string_equal(getenv("WEFT_TEST_MINE"), "mine");
    setenv("WEFT_TEST_MINE", "", 1);
    efa_env_default("WEFT_TEST_MINE", "theirs");
    assert_string_equal(getenv("WEFT_TEST_MINE"), "");
    efa_env_default("WEFT_TEST_THEIRS", "theirs");
    assert_int_equal(setenv("WEFT_TEST_THEIRS", "mine", 1), 0); /* as the C library's own */
    assert_string_equal(getenv("WEFT_TEST_THEIRS"), "mine");
    assert_int_equal(unsetenv("WEFT_TEST_THEIRS"), 0);
    assert_null(getenv("WEFT_TEST_THEIRS"));
}

/* The n-th of efa's devices where the user wants this provider. */
static int device_of(const char *provider, int n, struct weft_device_info *d)
{
    WEFT_OK(weft_config_set("WEFT_EFA_PROVIDER", provider));
    return weft_device_info("efa", n, d);
}

static void names_that_libfabric_reads_its_own_way(void **state)
{
    (void)state;
    struct weft_device_info d;
    unsetenv("FI_SHM_DISABLE_CMA");
    WEFT_OK(device_of("SHM", 0, &d));
    CHECK(d.usable && strstr(d.summary, "shm"), "%s: %s", d.summary, d.reason);
    assert_non_null(getenv("FI_SHM_DISABLE_CMA"));
    assert_string_equal(getenv("FI_SHM_DISABLE_CMA"), "1");
    WEFT_OK(device_of("", 0, &d));
    CHECK(d.usable ? !!strstr(d.summary, "efa") : !!strstr(d.reason, "'efa'"), "%s: %s", d.summary, d.reason);
    WEFT_OK(device_of("^shm", 0, &d));
    CHECK(!d.usable && strstr(d.reason, "'^shm'"), "%s: %s", d.summary, d.reason);
    WEFT_OK(device_of("ofi_rxm", 0, &d));
    CHECK(d.usable && strstr(d.summary, "ofi_rxm"), "%s: %s", d.summary, d.reason);
    char used[sizeof d.summary];
    snprintf(used, sizeof used, "%.*s", (int)strcspn(d.summary, ","), d.summary);
    for (int i = 1; device_of("ofi_rxm", i, &d) == 0; i++)
        CHECK(strcmp(d.name, used) != 0, "%s is used, and is not: %s", used, d.reason);
    WEFT_OK(weft_config_set("WEFT_EFA_PROVIDER", NULL));
}

/* Whoever reads the list learns which of its providers the tests of this transport are run over. */
static void what_is_not_tested_is_said_to_be(void **state)
{
    (void)state;
    struct weft_device_info d;
    int offered = 0;
    for (int i = 1; device_of("shm", i, &d) == 0; i++) {
        if (!strstr(d.reason, "uses it"))
            continue;
        bool tested = !strcmp(d.name, "efa") || !strcmp(d.name, "tcp;ofi_rxm") || !strcmp(d.name, "udp;ofi_rxd") ||
                      !strcmp(d.name, "verbs;ofi_rxm");
        CHECK(tested == !strstr(d.reason, "not tested"), "%s: %s", d.name, d.reason);
        offered++;
    }
    assert_true(offered > 0);
    WEFT_OK(weft_config_set("WEFT_EFA_PROVIDER", NULL));
}

static void there_may_be_no_environment(void **state)
{
    (void)state;
    clearenv();
    efa_env_default("WEFT_TEST_FIRST", "first");
    assert_string_equal(getenv("WEFT_TEST_FIRST"), "first");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_are_added_beside_who_reads),
        cmocka_unit_test(what_the_user_says_stays),
        cmocka_unit_test(names_that_libfabric_reads_its_own_way),
        cmocka_unit_test(what_is_not_tested_is_said_to_be),
        cmocka_unit_test(there_may_be_no_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
