/* SPDX-License-Identifier: Apache-2.0 */
/*
 * core/auth.c: where a secret may come from, and the codes made of it. The expected ones were
 * computed from the description in auth.c with another program's HMAC (Python's hmac):
 *
 *     H = lambda key, data: hmac.new(key, data, hashlib.sha256).digest()
 *     key = H(b'weft shared secret 1'.ljust(32, b'\0'), secret)
 *     said = lambda label: label.ljust(16, b'\0') + struct.pack('<H', 5) + nonces + uuid
 *     H(key, said(b'weft active')), H(key, said(b'weft passive')),
 *     session = H(key, said(b'weft session'))
 *     H(H(H(session, said(b'weft to passive')), struct.pack('<Q', n)), frame)
 *     H(session, b'weft link'.ljust(16, b'\0') + b'tcp'.ljust(16, b'\0') + bytes([1, 0]))
 */
#include "helpers.h"

#include <sys/stat.h>

#include "auth.h"
#include "endpoint.h"

static uint8_t secret[32];
static struct weft__endpoint ep; /* only its key is used */
static struct weft__auth said;

static int set_up(void **state)
{
    (void)state;
    memset(&said, 0, sizeof said);
    memset(&ep, 0, sizeof ep);
    for (int i = 0; i < 32; i++) {
        secret[i] = (uint8_t)(i + 1);
        said.nonce[WEFT_ROLE_ACTIVE][i] = (uint8_t)(0xa0 + i % 16);
        said.nonce[WEFT_ROLE_PASSIVE][i] = (uint8_t)(0x50 + i % 16);
    }
    for (int i = 0; i < 16; i++)
        said.uuid[i] = (uint8_t)i;
    return weft__auth_open(&ep, secret, sizeof secret);
}

static void check_hex(const uint8_t mac[WEFT_MAC], const char *hex)
{
    char text[2 * WEFT_MAC + 1];
    for (int i = 0; i < WEFT_MAC; i++)
        snprintf(text + 2 * i, 3, "%02x", mac[i]);
    assert_string_equal(text, hex);
}

/* --- codes ----------------------------------------------------------------------------------- */

static void proofs(void **state)
{
    (void)state;
    uint8_t mac[WEFT_MAC];
    check_hex(ep.auth_key, "d02e0928a05c719dac073e947cd7fe50d755f429f4eac885d321cdae5dd5c197");
    WEFT_OK(weft__auth_proof(ep.auth_key, &said, WEFT_ROLE_ACTIVE, mac));
    check_hex(mac, "ac4f14607900b0bdcf2b2e72368b636c7f87a8c3d4a7b4018b1126a025164013");
    WEFT_OK(weft__auth_proof(ep.auth_key, &said, WEFT_ROLE_PASSIVE, mac));
    check_hex(mac, "e7f3d27dc9bc55bc004aa4652710c4dc8eb47a80fd8b7bd1490e5e21d009f649");
}

/* Whatever differs, the proof does. */
static void a_proof_is_of_all_that_was_said(void **state)
{
    (void)state;
    uint8_t *bytes[] = {said.nonce[0], said.nonce[1], said.uuid, ep.auth_key};
    const size_t len[] = {WEFT__NONCE, WEFT__NONCE, 16, WEFT_MAC};
    uint8_t right[WEFT_MAC], mac[WEFT_MAC];
    WEFT_OK(weft__auth_proof(ep.auth_key, &said, WEFT_ROLE_ACTIVE, right));
    for (size_t i = 0; i < ARRAY_LEN(bytes); i++)
        for (size_t k = 0; k < len[i]; k++) {
            bytes[i][k] ^= 1;
            WEFT_OK(weft__auth_proof(ep.auth_key, &said, WEFT_ROLE_ACTIVE, mac));
            assert_memory_not_equal(mac, right, sizeof mac);
            bytes[i][k] ^= 1;
        }
}

static void frames(void **state)
{
    (void)state;
    static const char *const hex[3][2] = {
        {"b2feaa69e282a837cddfdec17dbc88503cd4227432facc065d3d0ceb4f5981ee",
         "0301144c91a861732ce1aa01bb19712b718b766cbbe7e67ad02848cc2da4e45c"},
        {"50863e4d68c576a6b508b29c51315bebcdee2f7caf694f7a4d2d8e9723f50d54",
         "e0d6a4497d97a37f9818756a3aaee02a59e84f7ca7e67b497aeb9f1af24e6569"},
        {"5e4748bd9a33c3635233b834dc715c653a4904fd39be4735267eee996a4f5870",
         "e6d5f5188317ed1f10953dee4c6e4353c175b512f720474a800209415d5fc842"}};
    uint8_t mac[WEFT_MAC];
    WEFT_OK(weft__auth_seal(ep.auth_key, &said));
    check_hex(said.session, "a4cec8cc32c81444897e00c4d4ccf1d9be612c5ca2a395d84c390080104f20de");
    for (int n = 0; n < 3; n++)
        for (int from = 0; from < 2; from++) {
            WEFT_OK(weft__auth_sign(&said, (enum weft_role)from, "a frame", 7, mac));
            check_hex(mac, hex[n][from]);
        }
    WEFT_OK(weft__auth_link_key(&said, "tcp", 1, 0, mac));
    check_hex(mac, "95be8d17ecc4af56cee40f43ff1b6aacf1d21c10affa437fac50bcee7fb9cc2f");
}

/* A frame counts once, in its own direction, in its turn, and whole. */
static void a_frame_is_itself_only(void **state)
{
    (void)state;
    struct weft__auth there;
    uint8_t frame[] = "a frame", mac[2][WEFT_MAC];
    WEFT_OK(weft__auth_seal(ep.auth_key, &said));
    there = said;
    for (int i = 0; i < 2; i++)
        WEFT_OK(weft__auth_sign(&said, WEFT_ROLE_ACTIVE, frame, 7, mac[i]));
    struct weft__auth try = there;
    WEFT_FAILS(WEFT_EAUTH, weft__auth_check(&try, WEFT_ROLE_ACTIVE, frame, 7, mac[1]));
    try = there;
    WEFT_FAILS(WEFT_EAUTH, weft__auth_check(&try, WEFT_ROLE_PASSIVE, frame, 7, mac[0]));
    try = there;
    WEFT_FAILS(WEFT_EAUTH, weft__auth_check(&try, WEFT_ROLE_ACTIVE, frame, 6, mac[0]));
    for (int bit = 0; bit < 56; bit++) {
        try = there;
        frame[bit / 8] ^= (uint8_t)(1 << bit % 8);
        WEFT_FAILS(WEFT_EAUTH, weft__auth_check(&try, WEFT_ROLE_ACTIVE, frame, 7, mac[0]));
        frame[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    WEFT_OK(weft__auth_check(&there, WEFT_ROLE_ACTIVE, frame, 7, mac[0]));
    try = there;
    WEFT_FAILS(WEFT_EAUTH, weft__auth_check(&try, WEFT_ROLE_ACTIVE, frame, 7, mac[0]));
    WEFT_OK(weft__auth_check(&there, WEFT_ROLE_ACTIVE, frame, 7, mac[1]));
}

static void links_have_keys_of_their_own(void **state)
{
    (void)state;
    uint8_t key[5][WEFT_MAC];
    WEFT_OK(weft__auth_seal(ep.auth_key, &said));
    WEFT_OK(weft__auth_link_key(&said, "tcp", 1, 0, key[0]));
    WEFT_OK(weft__auth_link_key(&said, "tcp", 1, 1, key[1]));
    WEFT_OK(weft__auth_link_key(&said, "tcp", 2, 0, key[2]));
    WEFT_OK(weft__auth_link_key(&said, "local", 1, 0, key[3]));
    said.nonce[0][0] ^= 1;
    WEFT_OK(weft__auth_seal(ep.auth_key, &said));
    WEFT_OK(weft__auth_link_key(&said, "tcp", 1, 0, key[4]));
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < i; k++)
            assert_memory_not_equal(key[i], key[k], WEFT_MAC);
}

/* --- where a secret comes from ----------------------------------------------------------------- */

static char path[] = "/tmp/weft-test-secret-XXXXXX";

static void write_file(const void *data, size_t len, mode_t mode)
{
    unlink(path); /* it may be read-only */
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(path, mode), 0);
}

static int open_with_file(const char *name)
{
    assert_int_equal(weft_config_set("WEFT_SECRET_FILE", name), 0);
    memset(&ep, 0, sizeof ep);
    int rc = weft__auth_open(&ep, NULL, 0);
    assert_int_equal(weft_config_set("WEFT_SECRET_FILE", NULL), 0);
    assert_int_equal(ep.secured, rc == 0 && *name);
    return rc;
}

static void from_a_file(void **state)
{
    (void)state;
    uint8_t key[WEFT_MAC];
    memcpy(key, ep.auth_key, sizeof key);
    write_file(secret, sizeof secret, 0600);
    WEFT_OK(open_with_file(path));
    assert_memory_equal(ep.auth_key, key, sizeof key);
    uint8_t line[sizeof secret + 1];
    memcpy(line, secret, sizeof secret);
    line[sizeof secret] = '\n'; /* as an editor leaves it */
    write_file(line, sizeof line, 0440);
    WEFT_OK(open_with_file(path));
    assert_memory_equal(ep.auth_key, key, sizeof key);
    WEFT_OK(open_with_file(""));
}

static void of_a_sensible_length(void **state)
{
    (void)state;
    static uint8_t bytes[WEFT_SECRET_MAX + 2];
    memset(bytes, 'x', sizeof bytes);
    static const size_t wrong[] = {0, 1, WEFT_SECRET_MIN - 1, WEFT_SECRET_MAX + 1, sizeof bytes};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        WEFT_FAILS(-EINVAL, weft__auth_open(&ep, bytes, wrong[i]));
        write_file(bytes, wrong[i], 0600);
        WEFT_FAILS(WEFT_ECONFIG, open_with_file(path));
        assert_non_null(strstr(weft_last_error(), path));
    }
    static const size_t right[] = {WEFT_SECRET_MIN, WEFT_SECRET_MAX};
    for (size_t i = 0; i < ARRAY_LEN(right); i++) {
        WEFT_OK(weft__auth_open(&ep, bytes, right[i]));
        write_file(bytes, right[i], 0600);
        WEFT_OK(open_with_file(path));
    }
    WEFT_FAILS(-EINVAL, weft__auth_open(&ep, NULL, 32));
}

static void from_a_file_of_its_owner(void **state)
{
    (void)state;
    static const mode_t wrong[] = {0644, 0604, 0602, 0601, 0620, 0666};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        write_file(secret, sizeof secret, wrong[i]);
        WEFT_FAILS(WEFT_ECONFIG, open_with_file(path));
        assert_non_null(strstr(weft_last_error(), "chmod 600"));
    }
    write_file(secret, sizeof secret, 0640);
    WEFT_OK(open_with_file(path));
}

static void not_from_what_is_no_file(void **state)
{
    (void)state;
    WEFT_FAILS(WEFT_ECONFIG, open_with_file("/tmp"));
    WEFT_FAILS(WEFT_ECONFIG, open_with_file("/dev/zero"));
    WEFT_FAILS(WEFT_ECONFIG, open_with_file("/tmp/there is no such file"));
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0); /* has no writer: must not be waited for */
    WEFT_FAILS(WEFT_ECONFIG, open_with_file(path));
    unlink(path);
}

/* An endpoint says the same, and that without touching libcrypto when it has no secret. */
static void at_an_endpoint(void **state)
{
    (void)state;
    weft_endpoint_t endpoint;
    WEFT_FAILS(-EINVAL, weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .secret = "too short",
                                                     .secret_len = 9), &endpoint));
    weft_config_set("WEFT_SECRET_FILE", "/tmp/there is no such file");
    WEFT_FAILS(WEFT_ECONFIG, weft_endpoint_open(NULL, &endpoint));
    WEFT_OK(weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .secret = secret,
                                         .secret_len = sizeof secret), &endpoint));
    weft_config_set("WEFT_SECRET_FILE", NULL);
    WEFT_OK(weft_endpoint_close(endpoint));
}

static bool mapped(const char *library)
{
    char line[512];
    bool found = false;
    FILE *f = fopen("/proc/self/maps", "r");
    while (f && fgets(line, sizeof line, f))
        found |= strstr(line, library) != NULL;
    fclose(f);
    return found;
}

/* The first test: what is loaded stays so. */
static void without_one_nothing_is_loaded(void **state)
{
    (void)state;
    weft_endpoint_t a, b;
    weft_conn_t conn;
    uint8_t metadata[WEFT_METADATA_MAX];
    WEFT_OK(weft_endpoint_open(NULL, &a));
    WEFT_OK(weft_endpoint_open(NULL, &b));
    size_t len = (size_t)WEFT_OK(weft_endpoint_metadata(b, metadata, sizeof metadata));
    WEFT_OK(weft_endpoint_connect(a, metadata, len, NULL, &conn));
    assert_false(mapped("libcrypto"));
    WEFT_OK(weft_endpoint_close(a));
    WEFT_OK(weft_endpoint_close(b));
    WEFT_OK(weft__auth_open(&ep, secret, sizeof secret));
    assert_true(mapped("libcrypto"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_one_nothing_is_loaded),
        cmocka_unit_test_setup(proofs, set_up),
        cmocka_unit_test_setup(a_proof_is_of_all_that_was_said, set_up),
        cmocka_unit_test_setup(frames, set_up),
        cmocka_unit_test_setup(a_frame_is_itself_only, set_up),
        cmocka_unit_test_setup(links_have_keys_of_their_own, set_up),
        cmocka_unit_test_setup(from_a_file, set_up),
        cmocka_unit_test_setup(of_a_sensible_length, set_up),
        cmocka_unit_test_setup(from_a_file_of_its_owner, set_up),
        cmocka_unit_test_setup(not_from_what_is_no_file, set_up),
        cmocka_unit_test_setup(at_an_endpoint, set_up),
    };
    int fd = mkstemp(path);
    if (fd < 0)
        return 1;
    close(fd);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return rc;
}
