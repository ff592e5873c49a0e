/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 of memory, files and pieces of files, and a way to use all cores for it. */
#include "weights.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/sysinfo.h>
#include <unistd.h>

/* Read at a time: stays in the second-level cache between read and hash. */
#define BUFFER ((size_t)256 << 10)
#define MOST_THREADS 16

struct digest {
    EVP_MD_CTX *ctx;
    uint8_t *buffer;
};

static void digest_free(struct digest *d)
{
    EVP_MD_CTX_free(d->ctx);
    free(d->buffer);
    free(d);
}

struct digest *digest_start(void)
{
    struct digest *d = calloc(1, sizeof *d);
    if (!d)
        return NULL;
    d->ctx = EVP_MD_CTX_new();
    d->buffer = malloc(BUFFER);
    if (d->ctx && d->buffer && EVP_DigestInit_ex(d->ctx, EVP_sha256(), NULL))
        return d;
    digest_free(d);
    return NULL;
}

/* One read into d's buffer: bytes read, never 0, or -errno. */
static ssize_t read_some(struct digest *d, int fd, uint64_t offset, uint64_t len)
{
    size_t want = len < BUFFER ? (size_t)len : BUFFER;
    ssize_t got;
    do
        got = pread(fd, d->buffer, want, (off_t)offset);
    while (got < 0 && errno == EINTR);
    return got > 0 ? got : got == 0 ? -EIO : -errno;
}

int digest_add(struct digest *d, int fd, uint64_t offset, uint64_t len)
{
    while (len) {
        ssize_t got = read_some(d, fd, offset, len);
        if (got < 0)
            return (int)got;
        if (!EVP_DigestUpdate(d->ctx, d->buffer, (size_t)got))
            return -EIO;
        offset += (uint64_t)got;
        len -= (uint64_t)got;
    }
    return 0;
}

int digest_end(struct digest *d, uint8_t out[DIGEST])
{
    int ok = !out || EVP_DigestFinal_ex(d->ctx, out, NULL);
    digest_free(d);
    return ok ? 0 : -EIO;
}

int digest_memory(const void *data, size_t len, uint8_t out[DIGEST])
{
    return EVP_Digest(data, len, out, NULL, EVP_sha256(), NULL) ? 0 : -EIO;
}

int digest_range(int fd, uint64_t offset, uint64_t len, uint8_t out[DIGEST])
{
    struct digest *d = digest_start();
    if (!d)
        return -ENOMEM;
    int rc = digest_add(d, fd, offset, len);
    int end = digest_end(d, rc ? NULL : out);
    return rc ? rc : end;
}

int digest_pieces(int fd, uint64_t size, uint8_t *out)
{
    int rc = 0;
    for (uint64_t at = 0; !rc && at < size; at += PIECE, out += DIGEST)
        rc = digest_range(fd, at, size - at < PIECE ? size - at : PIECE, out);
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
