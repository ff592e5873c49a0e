/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A transport that says "done" and has moved something else: writes bring zeros, reads leave the
 * memory as it was, additions add one too much. weft_perf has to notice. LIAR_ONLY=write or read: nothing else is
 * wrong; dropped: writes bring nothing, and nothing else is wrong.
 */
#include "weft/transport.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LIE (1u << 20) /* longer ones are left alone */
#define MAX_CMDS 64

extern const struct weft_transport weft_transport_local;

static struct weft_transport_ops liar_ops;
static struct weft_transport liar;
static char zeros[MAX_LIE], nowhere[MAX_LIE];

static int liar_open(const struct weft_nic_opts *opts, struct weft_nic **nic)
{
    int rc = weft_transport_local.ops->open(opts, nic);
    if (rc == 0)
        (*nic)->transport = &liar;
    return rc;
}

static bool lies_of(const char *what)
{
    const char *only = getenv("LIAR_ONLY");
    return !only || strcmp(only, what) == 0;
}

static void twist(struct weft_cmd *cmd)
{
    if (cmd->op == WEFT_OP_ADD64 && lies_of("add"))
        cmd->value++;
    if (cmd->niov || cmd->len > MAX_LIE)
        return;
    if (cmd->op == WEFT_OP_WRITE && lies_of("write"))
        cmd->one.addr = zeros;
    else if (cmd->op == WEFT_OP_WRITE && lies_of("dropped")) {
        cmd->op = WEFT_OP_READ;
        cmd->one.addr = nowhere;
        return;
    }
    if (cmd->op == WEFT_OP_READ && lies_of("read"))
        cmd->one.addr = nowhere;
}

static int liar_post(struct weft_link *link, const struct weft_cmd *cmds, int n)
{
    struct weft_cmd twisted[MAX_CMDS];
    n = n < MAX_CMDS ? n : MAX_CMDS;
    for (int i = 0; i < n; i++) {
        twisted[i] = cmds[i];
        twist(&twisted[i]);
    }
    return weft_transport_local.ops->post(link, twisted, n);
}

WEFT_API weft_module_transport_fn weft_module_transport;
const struct weft_transport *weft_module_transport(void)
{
    liar_ops = *weft_transport_local.ops;
    liar_ops.open = liar_open;
    liar_ops.post = liar_post;
    liar = weft_transport_local;
    liar.name = "liar";
    liar.summary = "local, but what it moves is wrong";
    liar.priority = 1;
    liar.ops = &liar_ops;
    return &liar;
}
