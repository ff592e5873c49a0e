/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Message authentication codes: HMAC-SHA-256 of OpenSSL's libcrypto, which is opened when the first
 * one is asked for. An endpoint without a shared secret never asks.
 */
#include "util.h"

#ifdef WEFT_WITH_OPENSSL

#include <dlfcn.h>
#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <pthread.h>
#include <stdatomic.h>

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
/* The library that belongs to the headers this was built with. */
#define LIBRARY "libcrypto.so." TEXT(OPENSSL_SHLIB_VERSION)

static struct {
    __typeof__(HMAC) *hmac;
    __typeof__(EVP_sha256) *sha256;
    __typeof__(CRYPTO_memcmp) *compare;
} crypto;

static struct weft_static_lock lock = WEFT_STATIC_LOCK(.foreign = 1);
static _Atomic(bool) loaded;

static int load(void)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return weft_fail(WEFT_EUNSUPPORTED,
                         "a shared secret needs " LIBRARY " (package libssl3): %s", dlerror());
    *(void **)&crypto.hmac = dlsym(library, "HMAC");
    *(void **)&crypto.sha256 = dlsym(library, "EVP_sha256");
    *(void **)&crypto.compare = dlsym(library, "CRYPTO_memcmp");
    if (crypto.hmac && crypto.sha256 && crypto.compare)
        return 0;
    int rc = weft_fail(WEFT_EUNSUPPORTED,
                       "a shared secret needs HMAC-SHA-256, which " LIBRARY " does not have: %s",
                       dlerror());
    dlclose(library);
    return rc;
}

int weft__mac_load(void)
{
    if (atomic_load_explicit(&loaded, memory_order_acquire)) /* pairs with the release below */
        return 0;
    weft_static_lock(&lock);
    int rc = atomic_load(&loaded) ? 0 : load();
    if (rc == 0)
        atomic_store_explicit(&loaded, true, memory_order_release);
    weft_static_unlock(&lock);
    return rc;
}

int weft_mac(const uint8_t key[WEFT_MAC], const void *data, size_t len, uint8_t mac[WEFT_MAC])
{
    unsigned int size = 0;
    int rc = weft__mac_load();
    if (rc)
        return rc;
    if (!crypto.hmac(crypto.sha256(), key, WEFT_MAC, data, len, mac, &size) || size != WEFT_MAC)
        return weft_fail(-EIO, "libcrypto could not compute a code of %zu bytes", len);
    return 0;
}

int weft_mac_check(const uint8_t key[WEFT_MAC], const void *data, size_t len,
                   const uint8_t mac[WEFT_MAC])
{
    uint8_t right[WEFT_MAC];
    int rc = weft_mac(key, data, len, right);
    if (rc)
        return rc;
    if (crypto.compare(right, mac, WEFT_MAC))
        return weft_fail(WEFT_EAUTH, "a code of the peer is wrong");
    return 0;
}

#else

int weft__mac_load(void)
{
    return weft_fail(WEFT_EUNSUPPORTED, "this libweft was built without OpenSSL's headers "
                                        "(package libssl-dev): it has no shared secrets");
}

int weft_mac(const uint8_t key[WEFT_MAC], const void *data, size_t len, uint8_t mac[WEFT_MAC])
{
    (void)key, (void)data, (void)len, (void)mac;
    return weft__mac_load();
}

int weft_mac_check(const uint8_t key[WEFT_MAC], const void *data, size_t len,
                   const uint8_t mac[WEFT_MAC])
{
    (void)key, (void)data, (void)len, (void)mac;
    return weft__mac_load();
}

#endif
