/* SPDX-License-Identifier: Apache-2.0 */
/* Links, and the cmds on their way down: held, reordered, refused, failed, cut. */
#include "fault.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct fault_nic *nic_of(const struct fault_link *link)
{
    return (struct fault_nic *)link->base.nic;
}

/* --- life ----------------------------------------------------------------------------------- */

int fault_link_open(struct weft_nic *base, const struct weft_link_opts *opts,
                    struct weft_link **out)
{
    struct fault_nic *nic = (struct fault_nic *)base;
    struct fault_link *link = calloc(1, sizeof *link);
    uint32_t cap = nic->plan.reorder ? nic->plan.reorder : 1;
    struct fault_cmd *cmds = malloc(cap * sizeof *cmds);
    int rc = link && cmds ? nic->inner_ops->link_open(nic->inner, opts, &link->inner)
                          : weft_fail(-ENOMEM, "fault: no memory for a link");
    if (rc) {
        free(cmds);
        free(link);
        return rc;
    }
    link->base.nic = base;
    link->inner->user = link;
    link->cmds = cmds;
    link->cmds_cap = cap;
    link->number = ++nic->opened;
    link->next = nic->links;
    nic->links = link;
    *out = &link->base;
    return 0;
}

int fault_link_address(struct weft_link *base, void *buf, size_t cap)
{
    struct fault_link *link = (struct fault_link *)base;
    return nic_of(link)->inner_ops->link_address(link->inner, buf, cap);
}

int fault_link_connect(struct weft_link *base, const void *addr, size_t len)
{
    struct fault_link *link = (struct fault_link *)base;
    struct fault_nic *nic = nic_of(link);
    if (!link->asked)
        link->refused = nic->connected++ < nic->plan.connectfail;
    link->asked = true;
    if (link->refused)
        return weft_fail(WEFT_ENOPATH, "fault: link %u does not connect", link->number);
    int rc = nic->inner_ops->link_connect(link->inner, addr, len);
    link->base.own = link->inner->own;
    return rc;
}

static void remove_cmd(struct fault_link *link, uint32_t at)
{
    free(link->cmds[at].copy);
    link->ncmds--;
    memmove(&link->cmds[at], &link->cmds[at + 1], (link->ncmds - at) * sizeof *link->cmds);
    nic_of(link)->pending--;
}

static void drop_cmds(struct fault_link *link)
{
    while (link->ncmds)
        remove_cmd(link, link->ncmds - 1);
}

void fault_link_close(struct weft_link *base)
{
    struct fault_link *link = (struct fault_link *)base;
    struct fault_nic *nic = nic_of(link);
    struct fault_link **at = &nic->links;
    if (link->inner)
        nic->inner_ops->link_close(link->inner);
    drop_cmds(link);
    nic->pending -= link->down && !link->told;
    fault_comps_drop(nic, link);
    while (*at != link)
        at = &(*at)->next;
    *at = link->next;
    free(link->cmds);
    free(link);
}

void fault_link_down(struct fault_link *link, int status)
{
    if (link->down)
        return;
    drop_cmds(link);
    link->down = status;
    nic_of(link)->pending++;
}

static void cut(struct fault_link *link)
{
    nic_of(link)->inner_ops->link_close(link->inner);
    link->inner = NULL;
    fault_link_down(link, WEFT_ELINK);
}

/* --- memory that core copies by itself ------------------------------------------------------ */

int fault_link_enter(struct weft_link *base, uint32_t turn)
{
    struct fault_link *link = (struct fault_link *)base;
    return nic_of(link)->inner_ops->link_enter(link->inner, turn);
}

void fault_link_leave(struct weft_link *base, uint32_t turn)
{
    struct fault_link *link = (struct fault_link *)base;
    nic_of(link)->inner_ops->link_leave(link->inner, turn);
}

uint32_t fault_link_recall(struct weft_link *base, int last)
{
    struct fault_link *link = (struct fault_link *)base;
    return nic_of(link)->inner_ops->link_recall(link->inner, last);
}

int fault_link_recalled(struct weft_link *base)
{
    struct fault_link *link = (struct fault_link *)base;
    return nic_of(link)->inner_ops->link_recalled(link->inner);
}

int fault_link_pass(struct weft_link *base, uint64_t number, int fd)
{
    struct fault_link *link = (struct fault_link *)base;
    return link->inner ? nic_of(link)->inner_ops->link_pass(link->inner, number, fd)
                       : weft_fail(WEFT_ELINK, "fault: the link was cut");
}

int fault_link_take(struct weft_link *base, uint64_t number, int *fd)
{
    struct fault_link *link = (struct fault_link *)base;
    if (link->takes < nic_of(link)->plan.late) {
        link->takes++;
        return WEFT_EAGAIN;
    }
    return link->inner ? nic_of(link)->inner_ops->link_take(link->inner, number, fd)
                       : weft_fail(WEFT_ELINK, "fault: the link was cut");
}

/* --- handing cmds down ---------------------------------------------------------------------- */

/* Which goes next. None overtakes a fence, and a fence overtakes none. */
static uint32_t next_cmd(struct fault_link *link)
{
    uint32_t n = 0;
    while (n < link->ncmds && link->cmds[n].cmd.op != WEFT_OP_FENCE)
        n++;
    return fault_plan_next(&nic_of(link)->plan, n, link->cmds[0].overtaken);
}

/* Hand one cmd to the inner link. False: not now. */
static bool hand_down(struct fault_link *link)
{
    struct fault_nic *nic = nic_of(link);
    uint32_t at = next_cmd(link);
    const struct weft_cmd *cmd = &link->cmds[at].cmd;
    if (fault_comps_full(nic))
        return false;
    int rc = nic->inner_ops->post(link->inner, cmd, 1);
    if (rc == 0 || rc == WEFT_ELINK) /* dead: its LINK_DOWN drops the rest */
        return false;
    if (rc < 0) /* it was accepted here already, so it has to end */
        fault_comps_push(nic,
                         &(struct weft_comp){
                             .ctx = cmd->ctx, .link = &link->base, .op = cmd->op, .status = rc});
    for (uint32_t i = 0; i < at; i++)
        link->cmds[i].overtaken++;
    remove_cmd(link, at);
    return true;
}

void fault_link_progress(struct fault_link *link)
{
    struct fault_plan *plan = &nic_of(link)->plan;
    uint32_t n = link->ncmds;
    if (n && plan->reorder)
        n = 1 + fault_plan_pick(plan, n);
    while (n-- && link->ncmds && hand_down(link))
        ;
}

/* --- post ----------------------------------------------------------------------------------- */

static int hold(struct fault_link *link, const struct weft_cmd *cmd)
{
    struct fault_cmd *held = &link->cmds[link->ncmds];
    *held = (struct fault_cmd){.cmd = *cmd};
    held->cmd.flags &= (uint8_t)~WEFT_CMD_MORE; /* which will follow is not known */
    if (cmd->flags & WEFT_CMD_INLINE && cmd->len && cmd->op != WEFT_OP_ADD64) {
        uint64_t at = 0;
        held->copy = malloc(cmd->len);
        if (!held->copy)
            return WEFT_EAGAIN;
        const struct weft_iov_local *iov = cmd->niov ? cmd->iov : &cmd->one;
        for (int i = 0; at < cmd->len; at += iov[i++].len)
            memcpy(held->copy + at, iov[i].addr, iov[i].len);
        held->cmd.niov = 0;
        held->cmd.one = (struct weft_iov_local){held->copy, cmd->len, iov[0].mem};
    }
    link->ncmds++;
    nic_of(link)->pending++;
    return 0;
}

/* The cmd whose number the plan names: it ends without having begun. */
static int fail_it(struct fault_link *link, const struct weft_cmd *cmd)
{
    struct fault_nic *nic = nic_of(link);
    if (fault_comps_full(nic))
        return WEFT_EAGAIN;
    fault_comps_push(nic, &(struct weft_comp){.ctx = cmd->ctx,
                                              .link = &link->base,
                                              .op = cmd->op,
                                              .status = nic->plan.fail_code});
    return 0;
}

static int accept_one(struct fault_link *link, const struct weft_cmd *cmd)
{
    struct fault_nic *nic = nic_of(link);
    int rc = weft_cmd_check(&nic->base.attr, cmd);
    if (rc)
        return rc;
    if (nic->accepted + 1 == nic->plan.refuse)
        rc = weft_fail(nic->plan.refuse_code, "fault: this cmd is refused");
    else if (link->flight == nic->base.attr.tx_depth)
        rc = WEFT_EAGAIN;
    else if (nic->accepted + 1 == nic->plan.fail)
        rc = fail_it(link, cmd);
    else if (link->ncmds == link->cmds_cap && !hand_down(link))
        rc = WEFT_EAGAIN;
    else
        rc = hold(link, cmd);
    if (rc)
        return rc;
    nic->accepted++;
    link->accepted++;
    link->flight += fault_is_own(cmd->op, cmd->ctx);
    if (!nic->plan.reorder)
        fault_link_progress(link);
    return 0;
}

static bool cut_is_due(const struct fault_link *link)
{
    const struct fault_plan *plan = &nic_of(link)->plan;
    return plan->cut && link->accepted >= plan->cut &&
           (!plan->cut_link || plan->cut_link == link->number);
}

int fault_post(struct weft_link *base, const struct weft_cmd *cmds, int n)
{
    struct fault_link *link = (struct fault_link *)base;
    struct fault_plan *plan = &nic_of(link)->plan;
    int done = 0, rc = 0;
    if (n > 0 && fault_plan_chance(plan, plan->partial))
        n = (int)fault_plan_pick(plan, (uint32_t)n);
    while (done < n && !link->down && !(rc = accept_one(link, &cmds[done]))) {
        done++;
        if (cut_is_due(link))
            cut(link);
    }
    if (link->down && !done)
        return weft_fail(WEFT_ELINK, "fault: link %u is dead", link->number);
    if (done || rc == 0 || rc == WEFT_EAGAIN)
        return done;
    if (nic_of(link)->accepted + 1 == plan->refuse)
        plan->refuse = 0; /* it was said: the next one has the same number */
    return rc;
}
