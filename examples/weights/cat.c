/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thing to compare with: what `cat FILES | nc` on one side and `nc > file` on the other do.
 * A child reads the files and writes them to one TCP socket of the loopback interface; this
 * process reads that socket and writes a file. Nothing is checked.
 */
#include "weights.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define SCRATCH ".weights-cat"
#define BUFFER ((size_t)128 << 10) /* what cat reads at a time */
#define WAIT_S 30                  /* longest time without a byte */

static int write_all(int fd, const uint8_t *data, size_t len)
{
    while (len) {
        ssize_t n = write(fd, data, len);
        if (n < 0 && errno != EINTR)
            return -errno;
        data += n < 0 ? 0 : n;
        len -= n < 0 ? 0 : (size_t)n;
    }
    return 0;
}

/* Copy at most limit bytes. Returns how many, or -errno. */
static int64_t copy(int from, int to, uint8_t *buffer, uint64_t limit)
{
    uint64_t done = 0;
    while (done < limit) {
        size_t want = limit - done < BUFFER ? (size_t)(limit - done) : BUFFER;
        ssize_t n = read(from, buffer, want);
        if (n == 0)
            break;
        if (n < 0 && errno == EINTR)
            continue;
        int rc = n < 0 ? -errno : write_all(to, buffer, (size_t)n);
        if (rc)
            return rc;
        done += (uint64_t)n;
    }
    return (int64_t)done;
}

/* The child: every file into the socket. Returns its exit status. */
static int send_files(int root, const struct manifest *m, uint64_t limit, int to, uint8_t *buffer)
{
    for (uint32_t i = 0; i < m->nfiles && limit; i++) {
        int fd = store_open(root, m->files[i].name, "", O_RDONLY);
        int64_t n = fd < 0 ? fd : copy(fd, to, buffer, limit);
        if (n < 0)
            return 1;
        close(fd);
        limit -= (uint64_t)n;
    }
    return 0;
}

/* Two ends of a TCP connection over loopback. */
static int tcp_pair(int ends[2])
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t len = sizeof address;
    struct sockaddr *any = (struct sockaddr *)&address;
    struct timeval wait = {.tv_sec = WAIT_S};
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ends[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ends[1] = -1;
    if (listener >= 0 && ends[0] >= 0 && !bind(listener, any, len) && !listen(listener, 1) &&
        !getsockname(listener, any, &len) && !connect(ends[0], any, len))
        ends[1] = accept(listener, NULL, NULL);
    int rc = ends[1] < 0 ? -errno : 0;
    if (!rc && setsockopt(ends[1], SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait))
        rc = -errno;
    close(listener);
    return rc;
}

static int run(int root, const struct manifest *m, uint64_t limit, int scratch, uint8_t *buffer,
               struct cat_result *out)
{
    int ends[2], status;
    int rc = tcp_pair(ends);
    double start = seconds();
    pid_t child = rc ? -1 : fork();
    if (child == 0) {
        close(ends[1]);
        _exit(send_files(root, m, limit, ends[0], buffer));
    }
    close(ends[0]);
    int64_t n = child < 0 ? rc : copy(ends[1], scratch, buffer, limit);
    out->seconds = seconds() - start;
    out->bytes = n < 0 ? 0 : (uint64_t)n;
    close(ends[1]);
    if (child > 0 && (waitpid(child, &status, 0) < 0 || status))
        n = n < 0 ? n : -EIO;
    return child < 0 && !rc ? -EAGAIN : n < 0 ? (int)n : 0;
}

int cat_through_socket(int root, const struct manifest *m, uint64_t limit, struct cat_result *out)
{
    limit = m->bytes < limit ? m->bytes : limit;
    uint8_t *buffer = malloc(BUFFER);
    int flags = O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC;
    int scratch = openat(root, SCRATCH, flags, 0600), rc = scratch < 0 ? -errno : 0;
    if (!buffer)
        rc = -ENOMEM;
    signal(SIGPIPE, SIG_IGN);
    if (!rc)
        rc = run(root, m, limit, scratch, buffer, out);
    if (scratch >= 0) {
        close(scratch);
        unlinkat(root, SCRATCH, 0);
    }
    free(buffer);
    return rc ? rc : out->bytes == limit ? 0 : -EIO;
}
