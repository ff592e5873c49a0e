/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One process writes into the memory of another and notifies it.
 *
 * The target opens an endpoint, registers memory, and hands out two small pieces of plain data:
 * its metadata (where it is) and a remote (what may be written). Here they go through a pipe; any
 * way will do. The initiator needs nothing else.
 */
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "weft.h"

#define WAIT_MS 10000

struct invitation {
    uint8_t metadata[WEFT_METADATA_MAX];
    int len;
    struct weft_remote remote;
};

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, weft_last_error());
    return 1;
}

/* The process whose memory is written. */
static int target(int out)
{
    static char memory[64];
    struct invitation invitation = {0};
    weft_endpoint_t endpoint;
    weft_mem_t mem;
    struct weft_notif notif;

    if (weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .passive_accept = 1), &endpoint) < 0 ||
        weft_mem_reg(endpoint, memory, sizeof memory, NULL, &mem) < 0 ||
        weft_mem_advertise(mem, memory, sizeof memory, &invitation.remote) < 0)
        return failed("target");
    invitation.len =
        weft_endpoint_metadata(endpoint, invitation.metadata, sizeof invitation.metadata);
    if (write(out, &invitation, sizeof invitation) != sizeof invitation)
        return failed("pipe");
    if (weft_endpoint_notif(endpoint, WAIT_MS, &notif) < 0)
        return failed("waiting for the notification");
    printf("memory: \"%s\", notification: \"%.*s\"\n", memory, (int)notif.len, (char *)notif.data);
    int wrong = strcmp(memory, "hello, memory") || notif.len != 4;
    weft_notif_free(&notif);
    weft_endpoint_close(endpoint);
    return wrong;
}

/* The process that writes. */
static int initiator(int in)
{
    struct invitation to;
    weft_endpoint_t endpoint;
    weft_conn_t conn;

    if (read(in, &to, sizeof to) != sizeof to)
        return 1; /* the other process has said why */
    if (weft_endpoint_open(NULL, &endpoint) < 0 ||
        weft_endpoint_connect(endpoint, to.metadata, (size_t)to.len, NULL, &conn) < 0)
        return failed("connecting");
    char text[] = "hello, memory";
    struct weft_local local = {.addr = text, .len = sizeof text};
    if (weft_transfer(conn,
                      WEFT_OPTS(weft_xfer, .op = WEFT_XFER_WRITE, .local = &local, .nlocal = 1,
                                .remote = &to.remote, .nremote = 1, .notify = "done",
                                .notify_len = 4),
                      WAIT_MS, NULL) < 0)
        return failed("writing");
    weft_endpoint_close(endpoint);
    return 0;
}

int main(void)
{
    int ends[2], status = 1;
    if (pipe(ends))
        return 1;
    pid_t child = fork(); /* before either endpoint exists: handles do not cross a fork */
    if (child < 0)
        return 1;
    if (child == 0) {
        close(ends[1]); /* the read ends if the target does without an invitation */
        return initiator(ends[0]);
    }
    int rc = target(ends[1]);
    close(ends[1]);
    waitpid(child, &status, 0);
    return rc || status;
}
