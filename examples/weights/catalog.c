/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The served directory: every regular file below it, hashed once.
 *
 * Symbolic links are not followed and, like unfinished .part files, not served: each is named on
 * standard error.
 */
#include "weights.h"

#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int add(struct catalog *c, const char *name, const struct stat *st)
{
    if (c->n == c->cap) {
        size_t cap = c->cap ? 2 * c->cap : 64;
        struct source *more = realloc(c->sources, cap * sizeof *more);
        if (!more)
            return -ENOMEM;
        c->sources = more;
        c->cap = cap;
    }
    struct source *s = &c->sources[c->n];
    *s = (struct source){.name = strdup(name),
                         .size = (uint64_t)st->st_size,
                         .dev = st->st_dev,
                         .ino = st->st_ino,
                         .mtime = st->st_mtim};
    c->n += s->name != NULL;
    return s->name ? 0 : -ENOMEM;
}

/* One thing that the walk met. `skip` is the length of the root's path and its slash. */
static int visit(struct catalog *c, const FTSENT *f, size_t skip)
{
    switch (f->fts_info) {
    case FTS_F:
        if (name_ok(f->fts_path + skip, f->fts_pathlen - skip))
            return add(c, f->fts_path + skip, f->fts_statp);
        say("not served: %s (unfinished, or a name that is too long or cannot be printed)", f->fts_path);
        return 0;
    case FTS_D:
    case FTS_DP:
        return 0;
    case FTS_DNR:
    case FTS_ERR:
    case FTS_NS:
        say("%s: %s", f->fts_path, strerror(f->fts_errno));
        return -f->fts_errno;
    default:
        say("not served: %s (not a regular file)", f->fts_path);
        return 0;
    }
}

static int walk(struct catalog *c, const char *dir)
{
    char *root = strdup(dir);
    if (!root)
        return -ENOMEM;
    size_t len = strlen(root);
    while (len > 1 && root[len - 1] == '/')
        root[--len] = 0;
    char *const roots[] = {root, NULL};
    FTS *fts = fts_open(roots, FTS_PHYSICAL | FTS_COMFOLLOW | FTS_NOCHDIR, NULL);
    int rc = fts ? 0 : -errno;
    for (FTSENT *f; !rc && (errno = 0, f = fts_read(fts)) != NULL;)
        if (f->fts_level > 0)
            rc = visit(c, f, root[len - 1] == '/' ? len : len + 1);
    if (!rc)
        rc = -errno;
    if (fts)
        fts_close(fts);
    free(root);
    return rc;
}

int catalog_file(const struct catalog *c, size_t i)
{
    const struct source *s = &c->sources[i];
    int fd = openat(c->root, s->name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    struct stat st;
    int rc = fstat(fd, &st) ? -errno : 0;
    if (!rc && (st.st_dev != s->dev || st.st_ino != s->ino || (uint64_t)st.st_size != s->size ||
                st.st_mtim.tv_sec != s->mtime.tv_sec || st.st_mtim.tv_nsec != s->mtime.tv_nsec))
        rc = -ESTALE;
    if (!rc)
        return fd;
    close(fd);
    return rc;
}

/* Two jobs for each file, next to each other so that they read it from disk once: its digest, and
 * the sums of its pieces. */
static int hash_job(void *arg, size_t i)
{
    struct catalog *c = arg;
    struct source *s = &c->sources[i / 2];
    int fd = catalog_file(c, i / 2), rc = fd < 0 ? fd : 0;
    if (!rc)
        rc = i % 2 ? sum_pieces(fd, s->size, s->sums) : digest_file(fd, s->size, s->sha);
    if (fd >= 0)
        close(fd);
    if (rc)
        say("%s: %s", s->name, rc == -ESTALE ? "changes while it is read" : strerror(-rc));
    return rc;
}

static int hash_all(struct catalog *c)
{
    for (size_t i = 0; i < c->n; i++) {
        struct source *s = &c->sources[i];
        s->sums = malloc((s->size / PIECE + 1) * SUM);
        if (!s->sums)
            return -ENOMEM;
    }
    return for_all(2 * c->n, hash_job, c);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct source *)a)->name, ((const struct source *)b)->name);
}

int catalog_open(struct catalog *c, const char *dir)
{
    memset(c, 0, sizeof *c);
    c->root = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (c->root < 0) {
        say("%s: %s", dir, strerror(errno));
        return -errno;
    }
    int rc = walk(c, dir);
    if (!rc && c->n) {
        qsort(c->sources, c->n, sizeof *c->sources, by_name);
        rc = hash_all(c);
    }
    if (!rc)
        rc = manifest_build(&c->manifest, c->sources, c->n);
    if (rc) {
        say("%s: cannot be served: %s", dir, strerror(-rc));
        catalog_close(c);
    }
    return rc;
}

void catalog_close(struct catalog *c)
{
    for (size_t i = 0; i < c->n; i++) {
        free(c->sources[i].name);
        free(c->sources[i].sums);
    }
    free(c->sources);
    manifest_free(&c->manifest);
    if (c->root >= 0)
        close(c->root);
    memset(c, 0, sizeof *c);
    c->root = -1;
}
