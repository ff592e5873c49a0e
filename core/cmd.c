/* SPDX-License-Identifier: Apache-2.0 */
/* The check of a cmd that every transport makes before it accepts it. */
#include <errno.h>
#include <inttypes.h>

#include "weft/transport.h"

static int refuse(const struct weft_cmd *cmd, const char *why)
{
    return weft_fail(-EINVAL, "%s of %" PRIu64 " bytes: %s", weft_op_name(cmd->op), cmd->len, why);
}

/* The local pieces add up to the length. */
static int check_pieces(const struct weft_cmd *cmd)
{
    uint64_t left = cmd->len;
    if (WEFT_LIKELY(cmd->niov == 0 && cmd->one.len == left))
        return 0;
    const struct weft_iov_local *iov = cmd->niov ? cmd->iov : &cmd->one;
    for (uint32_t i = 0, n = cmd->niov ? cmd->niov : 1; i < n; left -= iov[i++].len)
        if (iov[i].len > left)
            return refuse(cmd, "its local pieces are longer");
    return left ? refuse(cmd, "its local pieces are shorter") : 0;
}

int weft_cmd_check(const struct weft_nic_attr *attr, const struct weft_cmd *cmd)
{
    if (WEFT_UNLIKELY(cmd->op >= WEFT_OP_COUNT || !(attr->ops & WEFT_OP_BIT(cmd->op))))
        return weft_fail(WEFT_EUNSUPPORTED, "operation %d (%s) is not one of this nic", cmd->op,
                         weft_op_name(cmd->op));
    if (cmd->op == WEFT_OP_FENCE)
        return 0;
    if (cmd->op == WEFT_OP_ADD64)
        return cmd->len == 8 && cmd->remote_addr % 8 == 0 ? 0 : refuse(cmd, "no aligned word");
    if (cmd->niov > attr->max_iov)
        return refuse(cmd, "too many local pieces");
    if (cmd->len > (cmd->op == WEFT_OP_SEND ? attr->max_send : attr->max_msg))
        return refuse(cmd, "too long");
    if (cmd->flags & WEFT_CMD_INLINE && cmd->len > attr->max_inline)
        return refuse(cmd, "too long to be inline");
    return check_pieces(cmd);
}
