/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of pieces, SHA-256 of files, and a way to use all cores for them. */
#include "weights.h"

#include <errno.h>
#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/sysinfo.h>
#include <unistd.h>

/* Read at a time: stays in the second-level cache between reading and adding. */
#define BUFFER ((size_t)256 << 10)
#define MOST_THREADS 16

typedef int add_fn(void *ctx, const uint8_t *data, size_t len); /* 1: added */

static int add_sha(void *ctx, const uint8_t *data, size_t len)
{
    return EVP_DigestUpdate(ctx, data, len);
}

static int add_sum(void *ctx, const uint8_t *data, size_t len)
{
    return EVP_MAC_update(ctx, data, len);
}

/* One read into the buffer: bytes read, never 0, or -errno. */
static ssize_t read_some(int fd, uint64_t offset, uint64_t len, uint8_t *buffer)
{
    size_t want = len < BUFFER ? (size_t)len : BUFFER;
    ssize_t got;
    do
        got = pread(fd, buffer, want, (off_t)offset);
    while (got < 0 && errno == EINTR);
    return got > 0 ? got : got == 0 ? -EIO : -errno;
}

/* Add a range of a file to ctx. */
static int add_range(int fd, uint64_t offset, uint64_t len, add_fn *add, void *ctx)
{
    uint8_t *buffer = malloc(BUFFER);
    int rc = buffer && ctx ? 0 : -ENOMEM;
    while (!rc && len) {
        ssize_t got = read_some(fd, offset, len, buffer);
        if (got < 0 || !add(ctx, buffer, (size_t)got)) {
            rc = got < 0 ? (int)got : -EIO;
            break;
        }
        offset += (uint64_t)got;
        len -= (uint64_t)got;
    }
    free(buffer);
    return rc;
}

static EVP_MAC_CTX *sum_start(void)
{
    static const unsigned char key[16]; /* known to all, as it is no secret that is kept here */
    static unsigned char iv[12];
    static char cipher[] = "AES-128-GCM";
    const OSSL_PARAM params[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_CIPHER, cipher, 0),
        OSSL_PARAM_construct_octet_string(OSSL_MAC_PARAM_IV, iv, sizeof iv),
        OSSL_PARAM_construct_end()};
    EVP_MAC *mac = EVP_MAC_fetch(NULL, "GMAC", NULL);
    EVP_MAC_CTX *ctx = mac ? EVP_MAC_CTX_new(mac) : NULL;
    EVP_MAC_free(mac);
    if (ctx && EVP_MAC_init(ctx, key, sizeof key, params))
        return ctx;
    EVP_MAC_CTX_free(ctx);
    return NULL;
}

static int sum_end(EVP_MAC_CTX *ctx, int rc, uint8_t out[SUM])
{
    size_t len;
    if (!rc && !EVP_MAC_final(ctx, out, &len, SUM))
        rc = -EIO;
    EVP_MAC_CTX_free(ctx);
    return rc;
}

int sum_memory(const void *data, size_t len, uint8_t out[SUM])
{
    EVP_MAC_CTX *ctx = sum_start();
    return sum_end(ctx, !ctx ? -ENOMEM : add_sum(ctx, data, len) ? 0 : -EIO, out);
}

int sum_range(int fd, uint64_t offset, uint64_t len, uint8_t out[SUM])
{
    EVP_MAC_CTX *ctx = sum_start();
    return sum_end(ctx, add_range(fd, offset, len, add_sum, ctx), out);
}

int sum_pieces(int fd, uint64_t size, uint8_t *out)
{
    int rc = 0;
    for (uint64_t at = 0; !rc && at < size; at += PIECE, out += SUM)
        rc = sum_range(fd, at, size - at < PIECE ? size - at : PIECE, out);
    return rc;
}

int digest_memory(const void *data, size_t len, uint8_t out[DIGEST])
{
    return EVP_Digest(data, len, out, NULL, EVP_sha256(), NULL) ? 0 : -EIO;
}

int digest_file(int fd, uint64_t size, uint8_t out[DIGEST])
{
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    int rc = ctx && EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) ? 0 : -ENOMEM;
    if (!rc)
        rc = add_range(fd, 0, size, add_sha, ctx);
    if (!rc && !EVP_DigestFinal_ex(ctx, out, NULL))
        rc = -EIO;
    EVP_MD_CTX_free(ctx);
    return rc;
}

int cores(void)
{
    int n = get_nprocs();
    return n > MOST_THREADS ? MOST_THREADS : n;
}

struct job {
    int (*fn)(void *arg, size_t i);
    void *arg;
    size_t n;
    atomic_size_t next;
    atomic_int rc;
};

static void *job_thread(void *arg)
{
    struct job *job = arg;
    size_t i;
    while (!job->rc && (i = job->next++) < job->n) {
        int rc = job->fn(job->arg, i), none = 0;
        if (rc)
            atomic_compare_exchange_strong(&job->rc, &none, rc);
    }
    return NULL;
}

int for_all(size_t n, int (*fn)(void *arg, size_t i), void *arg)
{
    struct job job = {.fn = fn, .arg = arg, .n = n};
    pthread_t threads[MOST_THREADS];
    int started = 0;
    while (started < cores() - 1 && (size_t)started + 1 < n &&
           pthread_create(&threads[started], NULL, job_thread, &job) == 0)
        started++;
    job_thread(&job);
    while (started)
        pthread_join(threads[--started], NULL);
    return job.rc;
}
