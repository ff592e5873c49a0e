/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The manifest: every file's name, size and digests as one blob.
 *
 * All numbers little-endian, nothing aligned.
 *   head   u64 magic, u32 version, u32 piece length, u64 files, u64 bytes of all files
 *   file   u64 size, u32 name length, u32 pieces, 32 bytes SHA-256, name, a zero byte,
 *          16 bytes sum of each piece
 * Files are sorted by the bytes of their names, so none comes twice.
 */
#include "weights.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC UINT64_C(0x7374686769657777) /* "wweights" */
#define VERSION 2
#define HEAD_BYTES 32
#define FILE_BYTES (16 + DIGEST) /* without name and pieces */
/* Longest name and longest part between slashes: what Linux allows, with room for the suffix. */
#define NAME_BYTES 3072
#define PART_BYTES (255 - (sizeof PART_SUFFIX - 1))

/* --- names --------------------------------------------------------------------------------- */

static int part_ok(const char *part, size_t len)
{
    if (len == 0 || len > PART_BYTES)
        return 0;
    if (part[0] == '.' && (len == 1 || (len == 2 && part[1] == '.')))
        return 0;
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)part[i] < 0x20 || part[i] == 0x7f)
            return 0;
    return 1;
}

int name_ok(const char *name, size_t len)
{
    size_t suffix = sizeof PART_SUFFIX - 1;
    if (len > NAME_BYTES || (len >= suffix && !memcmp(name + len - suffix, PART_SUFFIX, suffix)))
        return 0;
    for (;;) {
        const char *slash = memchr(name, '/', len);
        size_t part = slash ? (size_t)(slash - name) : len;
        if (!part_ok(name, part))
            return 0;
        if (!slash)
            return 1;
        name += part + 1;
        len -= part + 1;
    }
}

/* --- reading ------------------------------------------------------------------------------- */

struct reader {
    const uint8_t *at;
    size_t left;
};

/* The next n bytes, or NULL if there are fewer. */
static const uint8_t *take(struct reader *r, size_t n)
{
    if (n > r->left)
        return NULL;
    const uint8_t *p = r->at;
    r->at += n;
    r->left -= n;
    return p;
}

static uint32_t get32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return le32toh(v);
}

static uint64_t get64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return le64toh(v);
}

static uint64_t pieces_of(uint64_t size)
{
    return size / PIECE + (size % PIECE != 0);
}

/* The next file. Everything it claims is covered by bytes that are really there. */
static int read_entry(struct reader *r, struct entry *e)
{
    const uint8_t *fixed = take(r, FILE_BYTES);
    if (!fixed)
        return -EPROTO;
    e->size = get64(fixed);
    size_t name_len = get32(fixed + 8);
    e->npieces = get32(fixed + 12);
    e->sha = fixed + 16;
    e->name = (const char *)take(r, name_len + 1);
    if (!e->name || e->name[name_len] || !name_ok(e->name, name_len))
        return -EPROTO;
    if (e->size > INT64_MAX || pieces_of(e->size) != e->npieces)
        return -EPROTO;
    e->sums = take(r, (size_t)e->npieces * SUM);
    return e->sums ? 0 : -EPROTO;
}

static int read_head(struct reader *r, struct manifest *m)
{
    const uint8_t *head = take(r, HEAD_BYTES);
    if (!head || get64(head) != MAGIC || get32(head + 8) != VERSION || get32(head + 12) != PIECE)
        return -EPROTO;
    uint64_t n = get64(head + 16);
    if (n > r->left / FILE_BYTES || n > UINT32_MAX / 2)
        return -EPROTO;
    m->nfiles = (uint32_t)n;
    m->bytes = get64(head + 24);
    return 0;
}

static int read_files(struct reader *r, struct manifest *m)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < m->nfiles; i++) {
        struct entry *e = &m->files[i];
        if (read_entry(r, e) || (i && strcmp(e[-1].name, e->name) >= 0))
            return -EPROTO;
        if (__builtin_add_overflow(sum, e->size, &sum))
            return -EPROTO;
    }
    return r->left || sum != m->bytes ? -EPROTO : 0;
}

int manifest_parse(struct manifest *m, uint8_t *blob, size_t len)
{
    struct reader r = {.at = blob, .left = len};
    memset(m, 0, sizeof *m);
    int rc = read_head(&r, m);
    if (rc)
        return rc;
    m->files = calloc(m->nfiles + (size_t)1, sizeof *m->files);
    rc = m->files ? read_files(&r, m) : -ENOMEM;
    if (!rc)
        rc = digest_memory(blob, len, m->id);
    if (rc) {
        manifest_free(m);
        return rc;
    }
    m->blob = blob;
    m->len = len;
    return 0;
}

void manifest_free(struct manifest *m)
{
    free(m->files);
    free(m->blob);
    memset(m, 0, sizeof *m);
}

/* --- writing ------------------------------------------------------------------------------- */

static uint8_t *put(uint8_t *p, const void *data, size_t len)
{
    memcpy(p, data, len);
    return p + len;
}

static uint8_t *put32(uint8_t *p, uint32_t v)
{
    v = htole32(v);
    return put(p, &v, sizeof v);
}

static uint8_t *put64(uint8_t *p, uint64_t v)
{
    v = htole64(v);
    return put(p, &v, sizeof v);
}

static size_t file_bytes(const struct source *s)
{
    return FILE_BYTES + strlen(s->name) + 1 + (size_t)pieces_of(s->size) * SUM;
}

static uint8_t *put_file(uint8_t *p, const struct source *s)
{
    uint64_t pieces = pieces_of(s->size);
    p = put64(p, s->size);
    p = put32(p, (uint32_t)strlen(s->name));
    p = put32(p, (uint32_t)pieces);
    p = put(p, s->sha, DIGEST);
    p = put(p, s->name, strlen(s->name) + 1);
    return pieces ? put(p, s->sums, (size_t)pieces * SUM) : p;
}

int manifest_build(struct manifest *m, const struct source *sources, size_t n)
{
    size_t len = HEAD_BYTES;
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++) {
        len += file_bytes(&sources[i]);
        bytes += sources[i].size;
    }
    if (len > MANIFEST_MAX)
        return -EFBIG;
    uint8_t *blob = malloc(len), *p = blob;
    if (!blob)
        return -ENOMEM;
    p = put64(p, MAGIC);
    p = put32(p, VERSION);
    p = put32(p, (uint32_t)PIECE);
    p = put64(p, n);
    p = put64(p, bytes);
    for (size_t i = 0; i < n; i++)
        p = put_file(p, &sources[i]);
    int rc = manifest_parse(m, blob, len);
    if (rc)
        free(blob);
    return rc;
}
