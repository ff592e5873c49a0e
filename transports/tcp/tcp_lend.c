/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Payload that leaves out of the caller's pages: no copy at this end. vmsplice puts references to the pages into a
 * pipe, splice moves them on into the socket. They are lent until the peer has executed their frame: until then the
 * op does not end, nor does the memory of a READ's answer leave its key. A peer on the same host reads these very
 * pages, so where a link ends before that, the connection is reset first, and a peer that receives the rest
 * nevertheless sees the reset before it counts the frame (tcp_rx.c).
 */
#include "tcp.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PIPE_BYTES                                                                                \
    (1 << 20)            /* what one without privileges may ask for (/proc/sys/fs/pipe-max-size) */
#define PIPE_LEAST 65536 /* less is not worth the system calls */
#define PIPES                                                                                     \
    16 /* of a nic: a quarter of what /proc/sys/fs/pipe-user-pages-soft lets a user have */
#define SCARCE_BYTES                                                                              \
    (256 * 1024) /* put into a pipe where each socket needs one: about what it sends in a turn */
#define PIPE_AGAIN 256    /* polls until another pipe is asked for, after one was not to be had */
#define PIECES 16         /* given to one vmsplice */
#define PIECE_LEAST 16384 /* on average: each one takes a place in the pipe */

/* --- pipes ------------------------------------------------------------------------------------- */

/* NULL: there is none to be had. */
static struct tcp_pipe *pipe_new(void)
{
    struct tcp_pipe *made = calloc(1, sizeof(*made));
    int fd[2];
    if (!made)
        return NULL;
    if (pipe2(fd, O_CLOEXEC | O_NONBLOCK) < 0)
        goto err_free;
    int size = fcntl(fd[1], F_SETPIPE_SZ, PIPE_BYTES);
    if ((size < 0 ? fcntl(fd[1], F_GETPIPE_SZ) : size) < PIPE_LEAST)
        goto err_close;
    made->out = fd[0];
    made->in = fd[1];
    return made;
err_close:
    close(fd[0]);
    close(fd[1]);
err_free:
    free(made);
    return NULL;
}

static void pipe_free(struct tcp_nic *nic, struct tcp_pipe *pipe)
{
    nic->npipes--;
    close(pipe->in);
    close(pipe->out);
    free(pipe);
}

static struct tcp_pipe *pipe_get(struct tcp_nic *nic)
{
    struct tcp_pipe *pipe = nic->free_pipe;
    nic->free_pipe = NULL;
    if (pipe)
        return pipe;
    if (nic->npipes == PIPES || nic->polls < nic->pipe_again)
        return NULL;
    pipe = pipe_new();
    nic->npipes += pipe != NULL;
    if (!pipe) {
        nic->pipe_again = nic->polls + PIPE_AGAIN;
        weft_log(WEFT_LOG_DEBUG, "tcp", "payload is copied: no pipe of %d bytes is to be had", PIPE_LEAST);
    }
    return pipe;
}

/* One is kept, and is there from the beginning: a nic at rest has as many descriptors as a fresh one. */
static void pipe_put(struct tcp_nic *nic, struct tcp_pipe *pipe)
{
    if (nic->free_pipe)
        pipe_free(nic, pipe);
    else
        nic->free_pipe = pipe;
}

/* More sockets are full than there are pipes. */
static bool scarce(const struct tcp_nic *nic)
{
    return !nic->free_pipe && nic->npipes == PIPES;
}

void tcp_lend_open(struct tcp_nic *nic)
{
    struct tcp_pipe *pipe = nic->zerocopy ? pipe_get(nic) : NULL;
    if (pipe)
        pipe_put(nic, pipe);
}

void tcp_lend_close(struct tcp_nic *nic)
{
    if (nic->free_pipe)
        pipe_free(nic, nic->free_pipe);
}

/* --- lending ----------------------------------------------------------------------------------- */

bool tcp_lends(const struct tcp_link *link, uint64_t len)
{
    uint64_t least = tcp_nic_of(link)->zerocopy; /* becomes 0 perhaps, but no other number */
    return least && len >= least;
}

bool tcp_lend_fits(const struct tcp_sock *sock, const struct tcp_splice *splice)
{
    return tcp_lends(sock->link, splice->left) && splice->op->op != WEFT_OP_SEND;
}

/* References to the next bytes of the payload. False: they are to be copied. */
static bool fill(struct tcp_sock *sock, const struct tcp_splice *first, uint64_t limit)
{
    struct tcp_nic *nic = tcp_nic_of(sock->link);
    struct iovec iov[PIECES];
    int niov = 0;
    struct tcp_pipe *pipe = pipe_get(nic);
    if (!pipe)
        return false;
    if (scarce(nic) && limit > SCARCE_BYTES)
        limit = SCARCE_BYTES;
    uint64_t len = tcp_pieces(first->op, first->at, first->left < limit ? first->left : limit, iov,
                              PIECES, &niov);
    if (len < (uint64_t)niov * PIECE_LEAST) {
        pipe_put(nic, pipe);
        return false;
    }
    ssize_t n;
    do
        n = vmsplice(pipe->in, iov, (size_t)niov, 0);
    while (n < 0 && errno == EINTR);
    if (n <= 0) {
        pipe_put(nic, pipe);
        return false;
    }
    pipe->held = (uint64_t)n;
    sock->pipe = pipe;
    return true;
}

/* Splice knows no MSG_NOSIGNAL: what a connection that is gone would send to this thread is caught here. */
static ssize_t move(int pipe, int sock, uint64_t n, bool more)
{
    sigset_t broken, before, waiting;
    sigemptyset(&broken);
    sigaddset(&broken, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &broken, &before);
    bool waited = sigismember(&before, SIGPIPE) == 1 && sigpending(&waiting) == 0 &&
                  sigismember(&waiting, SIGPIPE) == 1;
    ssize_t moved;
    do
        moved = splice(pipe, NULL, sock, NULL, n, SPLICE_F_NONBLOCK | (more ? SPLICE_F_MORE : 0));
    while (moved < 0 && errno == EINTR);
    int err = errno;
    bool ended = moved < 0 ? err == EPIPE : moved < (ssize_t)n; /* it may tell of bytes, and not of the end behind them */
    if (ended && !waited)
        sigtimedwait(&broken, NULL, &(struct timespec){0});
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = err;
    return moved;
}

bool tcp_lend(struct tcp_sock *sock, uint64_t limit, uint64_t *want, ssize_t *sent)
{
    struct tcp_nic *nic = tcp_nic_of(sock->link);
    const struct tcp_splice *first = &sock->splices[sock->splice_first];
    if (!sock->pipe && !fill(sock, first, limit))
        return false;
    struct tcp_pipe *pipe = sock->pipe;
    bool more = sock->staged - sock->sent > pipe->held && limit > pipe->held;
    *want = pipe->held;
    *sent = move(pipe->out, sock->fd, pipe->held, more);
    int err = errno;
    if (*sent > 0) { /* a signal ends it early, too: only EAGAIN says that the socket is full */
        *want = (uint64_t)*sent;
        pipe->held -= (uint64_t)*sent;
        sock->lent = sock->sent + (uint64_t)*sent;
    }
    if (*sent < 0 && (err == EINVAL || err == ENOSYS || err == EPERM)) {
        nic->zerocopy = 0; /* there is no splice here */
        weft_log(WEFT_LOG_INFO, "tcp", "payload is copied: splice: %s", weft_strerror(-err));
        pipe_free(nic, pipe);
        sock->pipe = NULL;
        return false;
    }
    if (pipe->held == 0) {
        pipe_put(nic, pipe);
        sock->pipe = NULL;
    } else if (*sent < 0 && err == EAGAIN && scarce(nic)) {
        pipe_free(
            nic,
            pipe); /* another socket may send meanwhile; these pages will be put into one again */
        sock->pipe = NULL;
    }
    errno = err;
    return true;
}

/* The kernel forgets what it has not sent, and the peer hears of it. Closing would not do: a child of this process may
 * hold the socket, too. */
static void reset(int fd)
{
    struct sockaddr nobody = {.sa_family = AF_UNSPEC};
    struct linger at_close = {.l_onoff = 1, .l_linger = 0};
    if (connect(fd, &nobody, sizeof(nobody)) < 0)
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_close, sizeof(at_close));
}

void tcp_lend_end(struct tcp_sock *sock)
{
    if (sock->pipe)
        pipe_free(tcp_nic_of(sock->link), sock->pipe);
    sock->pipe = NULL;
    if (sock->lent > sock->executed_to)
        reset(sock->fd);
    sock->lent = 0;
}
