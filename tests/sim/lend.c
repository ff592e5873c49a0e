/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages that a program lends to a connection: vmsplice into a pipe, splice into a socket. Bytes are noted as they were
 * lent, and have to be the same when they are received: until then the memory is not the program's. It is again
 * where the program resets the connection first; on the same host, the peer then receives what became of them.
 */
#include "net.h"

#include <netinet/in.h>
#include <string.h>

#define PIPE_PIECES 64
#define PIPE_PAGE 4096

struct lender {
    struct iovec iov[PIPE_PIECES];
    int first, n;
};

/* Of what is on its way to one end: bytes of its stream. */
struct loan {
    struct loan *next;
    uint64_t at, end;
    const uint8_t *from;
    const struct sim_proc *by;
};

int __wrap_pipe2(int fd[2], int flags)
{
    (void)flags;
    struct lender *l = sim_alloc(sizeof *l);
    sim_step();
    fd[0] = sim_fd_new(sim_file_new(SIM_PIPE, l));
    fd[1] = fd[0] < 0 ? -1 : sim_fd_new(sim_file_new(SIM_PIPE, l));
    if (fd[0] >= 0 && fd[1] < 0)
        __wrap_close(fd[0]);
    return fd[1] < 0 ? -1 : 0;
}

ssize_t __wrap_vmsplice(int fd, const struct iovec *iov, size_t niov, unsigned flags)
{
    (void)flags;
    struct lender *l = sim_fd(fd, SIM_PIPE)->object;
    size_t sum = 0;
    sim_step();
    SIM_CHECK(l->first == l->n, "vmsplice into a pipe that is not empty");
    if (sim_once_in(sim.plan.no_memory_every)) {
        errno = ENOMEM;
        return -1;
    }
    l->first = l->n = 0;
    size_t most = sim_once_in(sim.plan.short_every) ? PIPE_PAGE * (1 + sim_pick(8)) : SIZE_MAX;
    for (size_t i = 0; i < niov && l->n < PIPE_PIECES && sum < most; i++) {
        size_t len = iov[i].iov_len < most - sum ? iov[i].iov_len : most - sum;
        l->iov[l->n++] = (struct iovec){iov[i].iov_base, len};
        sum += len;
    }
    return (ssize_t)sum;
}

/* Just sent. */
static void lent(struct pipe *in, const struct iovec *iov, size_t n)
{
    struct loan *loan = sim_alloc(sizeof *loan), **at = &in->loans;
    *loan = (struct loan){
        .at = in->put - n, .end = in->put, .from = iov->iov_base, .by = sim_self()};
    while (*at)
        at = &(*at)->next;
    *at = loan;
}

ssize_t __wrap_splice(int fd, off64_t *from, int to, off64_t *at, size_t len, unsigned flags)
{
    (void)from;
    (void)at;
    (void)flags;
    struct lender *l = sim_fd(fd, SIM_PIPE)->object;
    struct stream *s = sim_fd(to, SIM_STREAM)->object;
    ssize_t sum = 0;
    sim_step();
    while (l->first < l->n && (size_t)sum < len) {
        struct iovec *iov = &l->iov[l->first], part = *iov;
        part.iov_len = part.iov_len < len - (size_t)sum ? part.iov_len : len - (size_t)sum;
        ssize_t n = sim_stream_send(s, &part, 1);
        if (n < 0 && !sum)
            sum = -1;
        if (n <= 0)
            break;
        lent(&s->peer->in, &part, (size_t)n);
        iov->iov_base = (uint8_t *)iov->iov_base + n;
        iov->iov_len -= (size_t)n;
        l->first += iov->iov_len == 0;
        sum += n;
        if (sim_once_in(sim.plan.short_every)) /* a signal is pending */
            break;
    }
    sim_trace("splice", to, sum, sum < 0 ? errno : 0);
    return sum;
}

/* n bytes are about to be received, which are at `data` of the ring. */
void sim_loans_check(const struct pipe *in, const uint8_t *data, size_t n)
{
    for (const struct loan *loan = in->loans; loan; loan = loan->next) {
        uint64_t start = loan->at > in->got ? loan->at : in->got;
        uint64_t end = loan->end < in->got + n ? loan->end : in->got + n;
        if (start >= end || loan->by->dead)
            continue;
        SIM_CHECK(!memcmp(data + (start - in->got), loan->from + (start - loan->at), end - start),
                  "lent bytes were changed before they were received");
    }
}

void sim_loans_received(struct pipe *in)
{
    while (in->loans && in->loans->end <= in->got)
        in->loans = in->loans->next;
}

/* The memory is the program's again: what has not been received is no more what it was. */
void sim_loans_end(struct pipe *in, bool same_host)
{
    for (const struct loan *loan = in->loans; same_host && loan; loan = loan->next)
        for (uint64_t i = loan->at > in->got ? loan->at : in->got;
             i < loan->end && i < in->got + in->len; i++)
            in->data[(in->head + (i - in->got)) % in->cap] ^= SIM_LATER;
    in->loans = NULL;
}
