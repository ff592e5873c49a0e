/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes of 8 bytes between two endpoints of this process, driven by this one thread: the same
 * steps each time, for a profiler that counts instructions (bench/profile).
 *
 *     small_write TRANSPORT WRITES DEPTH
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weft.h"

#define MOST_DEPTH 256

static void need(int64_t rc, const char *what)
{
    if (rc >= 0)
        return;
    fprintf(stderr, "small_write: %s: %s\n", what, weft_last_error());
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

/* One burst: as many writes as may be under way, then all of their ends. */
static void burst(weft_conn_t conn, weft_endpoint_t target, const struct weft_xfer *xfer,
                  int depth)
{
    weft_op_t ops[MOST_DEPTH];
    for (int i = 0; i < depth; i++)
        need(weft_post(conn, xfer, &ops[i]), "post");
    for (int i = 0; i < depth; i++) {
        int rc;
        while ((rc = weft_op_poll(ops[i], NULL)) == 0)
            need(weft_endpoint_progress(target, 0), "progress");
        need(rc, "write");
    }
}

int main(int argc, char **argv)
{
    long writes = argc == 4 ? strtol(argv[2], NULL, 0) : 0;
    int depth = argc == 4 ? (int)strtol(argv[3], NULL, 0) : 0;
    if (writes < 1 || depth < 1 || depth > MOST_DEPTH) {
        fprintf(stderr, "usage: small_write TRANSPORT WRITES DEPTH\n");
        return 2;
    }
    weft_endpoint_t near = open_endpoint(argv[1]), far = open_endpoint(argv[1]);
    weft_conn_t conn = join(near, far);
    uint64_t from = 0x77656674, to = 0;
    weft_mem_t mem;
    struct weft_remote remote;
    need(weft_mem_reg(far, &to, sizeof to, NULL, &mem), "register");
    need(weft_mem_advertise(mem, &to, sizeof to, &remote), "advertise");
    struct weft_local local = {.addr = &from, .len = sizeof from};
    for (long done = 0; done < writes; done += depth, from++)
        burst(conn, far,
              WEFT_OPTS(weft_xfer, .op = WEFT_XFER_WRITE, .local = &local, .nlocal = 1,
                        .remote = &remote, .nremote = 1),
              depth);
    if (to + 1 != from) {
        fprintf(stderr, "small_write: the bytes are not there\n");
        return 1;
    }
    need(weft_endpoint_close(near), "close");
    need(weft_endpoint_close(far), "close");
    return 0;
}
