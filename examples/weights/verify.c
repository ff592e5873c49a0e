/* SPDX-License-Identifier: Apache-2.0 */
/* What was here before, and what has become whole, is compared with the manifest. */
#include "weights.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static uint64_t size_of(int fd)
{
    struct stat st;
    return fstat(fd, &st) ? 0 : (uint64_t)st.st_size;
}

/* Mark the pieces at fd that are right as HERE, the others as TODO. */
static void check_pieces(struct target *t, int fd)
{
    const struct entry *e = t->entry;
    uint64_t size = size_of(fd);
    t->todo = e->npieces;
    for (uint32_t i = 0; i < e->npieces; i++) {
        uint64_t offset = i * PIECE, len = piece_len(e, i);
        uint8_t sum[SUM];
        int here = offset + len <= size && sum_range(fd, offset, len, sum) == 0 &&
                   !memcmp(sum, piece_sum(e, i), SUM);
        t->pieces[i] = here ? PIECE_HERE : PIECE_TODO;
        t->todo -= (uint32_t)here;
    }
}

/* Check the pieces of name+suffix, if there is such a file. Returns its size. */
static uint64_t check_file(int root, struct target *t, const char *suffix)
{
    int fd = store_open(root, t->entry->name, suffix, O_RDONLY);
    if (fd < 0)
        return UINT64_MAX;
    uint64_t size = size_of(fd);
    check_pieces(t, fd);
    close(fd);
    return size;
}

int verify_found(int root, struct target *t)
{
    uint32_t n = t->entry->npieces;
    t->todo = n;
    t->pieces = calloc(n + (size_t)1, 1);
    if (!t->pieces)
        return -ENOMEM;
    if (root < 0)
        return 0;
    t->found = check_file(root, t, "") == t->entry->size && t->todo == 0;
    if (t->found)
        return 0;
    memset(t->pieces, PIECE_TODO, n);
    t->todo = n;
    check_file(root, t, PART_SUFFIX);
    return 0;
}

int verify_whole(int root, struct target *t)
{
    uint8_t sha[DIGEST];
    int fd = store_open(root, t->entry->name, t->found ? "" : PART_SUFFIX, O_RDONLY);
    int rc = fd < 0 ? fd : digest_file(fd, t->entry->size, sha);
    if (fd >= 0)
        close(fd);
    if (!rc && memcmp(sha, t->entry->sha, DIGEST))
        rc = -EBADMSG;
    if (!rc && !t->found)
        rc = store_finish(root, t->entry->name, PART_SUFFIX);
    if (rc)
        say("%s: %s", t->entry->name, rc == -EBADMSG ? "SHA-256 is wrong" : strerror(-rc));
    t->state = rc ? FILE_FAILED : FILE_DONE;
    return 0;
}
