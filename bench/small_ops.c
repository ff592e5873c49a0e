/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations of 8 bytes between two endpoints of this process, driven by this one thread: the same
 * steps each time, for a profiler that counts instructions (bench/profile). All memory is registered: whose
 * other memory is has to be asked, which takes some 220 instructions.
 *
 *     small_ops write|send TRANSPORT COUNT DEPTH
 *
 * write: DEPTH at a time, to the other's memory. send: DEPTH messages there, then as many back: a
 * ping-pong if DEPTH is 1. Each side has its receives posted before.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weft.h"

#define MOST_DEPTH 256

static void need(int64_t rc, const char *what)
{
    if (rc >= 0)
        return;
    fprintf(stderr, "small_ops: %s: %s\n", what, weft_last_error());
    exit(1);
}

static weft_endpoint_t open_endpoint(const char *transport)
{
    weft_endpoint_t endpoint;
    need(weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .transport = transport,
                                      .progress_threads = WEFT_PROGRESS_CALLER),
                            &endpoint),
         "open");
    return endpoint;
}

static weft_conn_t join(weft_endpoint_t from, weft_endpoint_t to)
{
    char metadata[WEFT_METADATA_MAX];
    weft_conn_t conn;
    int len = weft_endpoint_metadata(to, metadata, sizeof metadata);
    need(len, "metadata");
    need(weft_endpoint_connect(from, metadata, (size_t)len,
                               WEFT_OPTS(weft_connect_opts, .nonblocking = 1), &conn),
         "connect");
    int rc;
    while ((rc = weft_conn_wait(conn, 0)) == WEFT_ETIMEOUT)
        need(weft_endpoint_progress(to, 0), "progress");
    need(rc, "connect");
    return conn;
}

/* What the operations are made of: both endpoints, and their ends of a conn. */
struct bench {
    weft_endpoint_t endpoints[2];
    weft_conn_t conns[2];
    int depth;
};

static weft_mem_t memory_of(const struct bench *b, int side, void *addr, size_t len)
{
    weft_mem_t mem;
    need(weft_mem_reg(b->endpoints[side], addr, len, NULL, &mem), "register");
    return mem;
}

static void end(weft_op_t op, weft_endpoint_t other)
{
    int rc;
    while ((rc = weft_op_poll(op, NULL)) == 0)
        need(weft_endpoint_progress(other, 0), "progress");
    need(rc, "operation");
}

/* One burst: as many writes as may be under way, then all of their ends. */
static void write_burst(const struct bench *b, const struct weft_xfer *xfer)
{
    weft_op_t ops[MOST_DEPTH];
    for (int i = 0; i < b->depth; i++)
        need(weft_post(b->conns[0], xfer, &ops[i]), "post");
    for (int i = 0; i < b->depth; i++)
        end(ops[i], b->endpoints[1]);
}

static bool write_all(const struct bench *b, long count)
{
    uint64_t from = 0x77656674, to = 0;
    weft_mem_t mem = memory_of(b, 1, &to, sizeof to);
    struct weft_remote remote;
    need(weft_mem_advertise(mem, &to, sizeof to, &remote), "advertise");
    struct weft_local local = {
        .addr = &from, .len = sizeof from, .mem = memory_of(b, 0, &from, sizeof from)};
    for (long done = 0; done < count; done += b->depth, from++)
        write_burst(b, WEFT_OPTS(weft_xfer, .op = WEFT_XFER_WRITE, .local = &local, .nlocal = 1,
                                 .remote = &remote, .nremote = 1));
    return to + 1 == from;
}

/* One side of a ping-pong: its receives, and the sends that have not ended. */
struct side {
    weft_op_t recvs[MOST_DEPTH], sends[MOST_DEPTH];
    uint64_t words[MOST_DEPTH], out[MOST_DEPTH]; /* received, sent */
    weft_mem_t mem;                              /* all of the side */
    int nsends;
};

static weft_op_t post_word(weft_conn_t conn, enum weft_xfer_op op, uint64_t *word, weft_mem_t mem)
{
    weft_op_t handle;
    struct weft_local local = {.addr = word, .len = sizeof *word, .mem = mem};
    need(weft_post(conn, WEFT_OPTS(weft_xfer, .op = op, .local = &local, .nlocal = 1), &handle),
         "post");
    return handle;
}

/* From one side to the other. Returns whether the right words came. */
static bool send_burst(const struct bench *b, struct side *sides, int from, uint64_t first)
{
    struct side *near = &sides[from], *far = &sides[!from];
    bool right = true;
    for (int i = 0; i < b->depth; i++) {
        near->out[i] = first + (uint64_t)i;
        near->sends[i] = post_word(b->conns[from], WEFT_XFER_SEND, &near->out[i], near->mem);
    }
    near->nsends = b->depth;
    for (int i = 0; i < b->depth; i++) {
        end(far->recvs[i], b->endpoints[from]);
        right = right && far->words[i] == near->out[i];
        far->recvs[i] = post_word(b->conns[!from], WEFT_XFER_RECV, &far->words[i], far->mem);
    }
    for (; far->nsends > 0; far->nsends--) /* which the other's messages have acknowledged */
        end(far->sends[far->nsends - 1], b->endpoints[from]);
    return right;
}

static bool send_all(const struct bench *b, long count)
{
    struct side sides[2] = {0};
    bool right = true;
    for (int s = 0; s < 2; s++)
        sides[s].mem = memory_of(b, s, &sides[s], sizeof sides[s]);
    for (int i = 0; i < b->depth; i++)
        for (int s = 0; s < 2; s++)
            sides[s].recvs[i] = post_word(b->conns[s], WEFT_XFER_RECV, &sides[s].words[i],
                                          sides[s].mem);
    for (long done = 0; done < count; done += 2L * b->depth) {
        right = send_burst(b, sides, 0, (uint64_t)done) && right;
        right = send_burst(b, sides, 1, (uint64_t)done + MOST_DEPTH) && right;
    }
    return right;
}

int main(int argc, char **argv)
{
    long count = argc == 5 ? strtol(argv[3], NULL, 0) : 0;
    struct bench b = {.depth = argc == 5 ? (int)strtol(argv[4], NULL, 0) : 0};
    bool write = argc == 5 && strcmp(argv[1], "write") == 0;
    if (count < 1 || b.depth < 1 || b.depth > MOST_DEPTH || (!write && strcmp(argv[1], "send"))) {
        fprintf(stderr, "usage: small_ops write|send TRANSPORT COUNT DEPTH\n");
        return 2;
    }
    for (int s = 0; s < 2; s++)
        b.endpoints[s] = open_endpoint(argv[2]);
    b.conns[0] = join(b.endpoints[0], b.endpoints[1]);
    need(weft_endpoint_accept(b.endpoints[1], 10000, &b.conns[1]), "accept");
    if (!(write ? write_all(&b, count) : send_all(&b, count))) {
        fprintf(stderr, "small_ops: the bytes are not there\n");
        return 1;
    }
    for (int s = 0; s < 2; s++)
        need(weft_endpoint_close(b.endpoints[s]), "close");
    return 0;
}
