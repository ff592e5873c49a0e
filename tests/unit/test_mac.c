/* SPDX-License-Identifier: Apache-2.0 */
/* core/mac.c: codes against those of RFC 4231, and what it says where there is no libcrypto. */
#include "helpers.h"

#include <dlfcn.h>

#include "util.h"

/* The linker turns the library's dlopen into ours. */
static bool hidden;
static int opened;
void *__real_dlopen(const char *name, int flags);
void *__wrap_dlopen(const char *name, int flags);
void *__wrap_dlopen(const char *name, int flags)
{
    opened += strstr(name, "libcrypto") != NULL;
    return __real_dlopen(hidden ? "there-is-no-such-library.so" : name, flags);
}

/* The first test: what is open stays so. */
static void without_a_library_there_are_no_codes(void **state)
{
    (void)state;
    uint8_t key[WEFT_MAC] = {0}, mac[WEFT_MAC];
    hidden = true;
    WEFT_FAILS(WEFT_EUNSUPPORTED, weft__mac_load());
    assert_non_null(strstr(weft_last_error(), "libcrypto"));
    WEFT_FAILS(WEFT_EUNSUPPORTED, weft_mac(key, "", 0, mac));
    WEFT_FAILS(WEFT_EUNSUPPORTED, weft_mac_check(key, "", 0, mac));
    hidden = false; /* installed meanwhile: no need to start anew */
    assert_int_equal(opened, 3);
    for (int i = 0; i < 3; i++)
        WEFT_OK(weft_mac(key, "", 0, mac));
    assert_int_equal(opened, 4);
}

static void codes_are_those_of_the_standard(void **state)
{
    (void)state;
    static const struct {
        const char *key, *data;
        uint8_t mac[WEFT_MAC];
    } all[] = {
        {"\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b",
         "Hi There",
         {0xb0, 0x34, 0x4c, 0x61, 0xd8, 0xdb, 0x38, 0x53, 0x5c, 0xa8, 0xaf,
          0xce, 0xaf, 0x0b, 0xf1, 0x2b, 0x88, 0x1d, 0xc2, 0x00, 0xc9, 0x83,
          0x3d, 0xa7, 0x26, 0xe9, 0x37, 0x6c, 0x2e, 0x32, 0xcf, 0xf7}},
        {"Jefe", "what do ya want for nothing?",
         {0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75, 0x4e, 0x6a, 0x04, 0x24,
          0x26, 0x08, 0x95, 0x75, 0xc7, 0x5a, 0x00, 0x3f, 0x08, 0x9d, 0x27,
          0x39, 0x83, 0x9d, 0xec, 0x58, 0xb9, 0x64, 0xec, 0x38, 0x43}},
    };
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        uint8_t key[WEFT_MAC] = {0}, mac[WEFT_MAC]; /* a short key is one with zeros behind it */
        memcpy(key, all[i].key, strlen(all[i].key));
        WEFT_OK(weft_mac(key, all[i].data, strlen(all[i].data), mac));
        assert_memory_equal(mac, all[i].mac, sizeof mac);
        WEFT_OK(weft_mac_check(key, all[i].data, strlen(all[i].data), mac));
        for (int bit = 0; bit < 8 * WEFT_MAC; bit++) {
            mac[bit / 8] ^= (uint8_t)(1 << bit % 8);
            WEFT_FAILS(WEFT_EAUTH,
                       weft_mac_check(key, all[i].data, strlen(all[i].data), mac));
            mac[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_library_there_are_no_codes),
        cmocka_unit_test(codes_are_those_of_the_standard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
