/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The destination directory. Names come from a stranger: they are walked part by part, and a
 * symbolic link anywhere on the way, or at its end, is an error.
 */
#include "weights.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DIR_MODE 0777 /* less what umask takes away */
#define FILE_MODE 0666

/* Directory `part` of dir, made if it may be. */
static int step(int dir, const char *part, int create)
{
    int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    int fd = openat(dir, part, flags);
    if (fd < 0 && errno == ENOENT && create) {
        if (mkdirat(dir, part, DIR_MODE) && errno != EEXIST)
            return -errno;
        fd = openat(dir, part, flags);
    }
    return fd < 0 ? -errno : fd;
}

/* Descriptor of the directory that holds name; *base is its last part. */
static int walk(int root, const char *name, int create, const char **base)
{
    char part[NAME_MAX + 1];
    int dir = dup(root);
    if (dir < 0)
        return -errno;
    for (const char *slash; (slash = strchr(name, '/')) != NULL; name = slash + 1) {
        size_t len = (size_t)(slash - name);
        int next = -ENAMETOOLONG;
        if (len < sizeof part) {
            memcpy(part, name, len);
            part[len] = 0;
            next = step(dir, part, create);
        }
        close(dir);
        if (next < 0)
            return next;
        dir = next;
    }
    *base = name;
    return dir;
}

int store_open(int root, const char *name, const char *suffix, int flags)
{
    const char *base;
    char full[NAME_MAX + 1];
    int dir = walk(root, name, flags & O_CREAT, &base), fd = -ENAMETOOLONG;
    if (dir < 0)
        return dir;
    /* O_NONBLOCK: a FIFO that lies there must not hang us. */
    if (snprintf(full, sizeof full, "%s%s", base, suffix) < (int)sizeof full) {
        fd = openat(dir, full, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, FILE_MODE);
        fd = fd < 0 ? -errno : fd;
    }
    close(dir);
    struct stat st;
    if (fd >= 0 && (fstat(fd, &st) || !S_ISREG(st.st_mode))) {
        close(fd);
        return -EEXIST;
    }
    return fd;
}

int store_finish(int root, const char *name, const char *suffix)
{
    const char *base;
    char full[NAME_MAX + 1];
    int dir = walk(root, name, 0, &base), rc = -ENAMETOOLONG;
    if (dir < 0)
        return dir;
    if (snprintf(full, sizeof full, "%s%s", base, suffix) < (int)sizeof full)
        rc = renameat(dir, full, dir, base) ? -errno : 0;
    close(dir);
    return rc;
}
