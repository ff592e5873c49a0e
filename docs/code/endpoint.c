/* SPDX-License-Identifier: Apache-2.0 */
/* The code of docs/endpoint.md: two endpoints of one process stand in for two machines. */
#include <stdio.h>
#include <string.h>

#include "weft.h"

#define WAIT_MS 10000
#define TRY(call)                                                                                 \
    do {                                                                                          \
        if ((call) < 0) {                                                                         \
            fprintf(stderr, "%s: %s\n", #call, weft_last_error());                                \
            return 1;                                                                             \
        }                                                                                         \
    } while (0)

static weft_endpoint_t server, client;
static weft_conn_t conn, back;
static weft_mem_t mem;
static struct weft_remote remote;
static char memory[1 << 20], mine[1 << 20], more[4096];

static int start(void)
{
    /* quote start */
    /* Here: an endpoint, memory that peers may use, and two pieces of data that tell them so. */
    uint8_t metadata[WEFT_METADATA_MAX];
    TRY(weft_endpoint_open(NULL, &server));
    TRY(weft_mem_reg(server, memory, sizeof memory, NULL, &mem));
    TRY(weft_mem_advertise(mem, memory, sizeof memory, &remote)); /* 64 bytes */
    int len = weft_endpoint_metadata(server, metadata, sizeof metadata);
    TRY(len);

    /* There: connect, and write 1 MiB to it. */
    TRY(weft_endpoint_open(NULL, &client));
    TRY(weft_endpoint_connect(client, metadata, (size_t)len, NULL, &conn));
    TRY(weft_write(conn, mine, sizeof mine, &remote, 0, WAIT_MS)); /* now it is in memory[] */

    /* Here: the conn that the peer opened. */
    TRY(weft_endpoint_accept(server, WAIT_MS, &back));
    /* end */
    return memcmp(memory, mine, sizeof mine) != 0;
}

static int many(void)
{
    /* quote many */
    /* Many at once: post them all, then wait for each. This is two pieces in one operation, with
     * a notification that the peer gets once both are in place. */
    weft_op_t op;
    struct weft_op_status status;
    struct weft_local local[] = {{.addr = mine, .len = 4096}, {.addr = more, .len = sizeof more}};
    struct weft_remote to[] = {remote, remote};
    uint64_t offset[] = {0, 65536};
    TRY(weft_post(conn,
                  WEFT_OPTS(weft_xfer, .op = WEFT_XFER_WRITE, .local = local, .nlocal = 2,
                            .remote = to, .nremote = 2, .remote_offset = offset,
                            .notify = "layer 7", .notify_len = 7),
                  &op));
    int rc = weft_op_wait(op, WAIT_MS, &status);
    if (rc == WEFT_ETIMEOUT && status.status == WEFT_EAGAIN) {
        weft_op_cancel(op); /* still under way: ask for its end */
        rc = weft_op_wait(op, WAIT_MS, &status);
        if (rc == WEFT_ETIMEOUT && status.status == WEFT_EAGAIN) {
            weft_conn_close(conn); /* the peer does not go on: this ends all of the conn */
            rc = weft_op_wait(op, WEFT_FOREVER, &status);
        }
    }
    if (rc < 0)
        fprintf(stderr, "%s after %llu bytes\n", status.text, (unsigned long long)status.bytes);
    /* end */
    return rc < 0 || memcmp(memory + 65536, more, sizeof more);
}

static int notified(void)
{
    /* quote notif */
    struct weft_notif notif;
    TRY(weft_endpoint_notif(server, WAIT_MS, &notif));
    printf("%.*s has arrived\n", (int)notif.len, (char *)notif.data);
    weft_notif_free(&notif);
    /* end */
    return 0;
}

static int messages(void)
{
    /* quote message */
    char text[64];
    weft_op_t op;
    struct weft_local into = {.addr = text, .len = sizeof text};
    struct weft_op_status status;
    TRY(weft_post(back, WEFT_OPTS(weft_xfer, .op = WEFT_XFER_RECV, .local = &into, .nlocal = 1),
                  &op));
    TRY(weft_send(conn, "hello", 5, WAIT_MS));
    TRY(weft_op_wait(op, WAIT_MS, &status)); /* status.bytes: 5 */
    /* end */
    return status.bytes != 5 || memcmp(text, "hello", 5);
}

static int how(void)
{
    /* quote info */
    struct weft_conn_info info;
    TRY(weft_conn_info(conn, &info));
    printf("%s: %s\n", info.path, info.why);
    /* end */
    return info.state != WEFT_CONN_UP;
}

static int stop(void)
{
    /* quote stop */
    TRY(weft_conn_close(conn));
    TRY(weft_mem_dereg(mem)); /* from now on no peer touches memory[] */
    TRY(weft_endpoint_close(client));
    TRY(weft_endpoint_close(server));
    /* end */
    return 0;
}

int main(void)
{
    memset(mine, 'w', sizeof mine);
    memset(more, 'm', sizeof more);
    return start() || many() || notified() || messages() || how() || stop();
}
