/* SPDX-License-Identifier: Apache-2.0 */
/* Comps on their way up: held, delayed, reordered. */
#include "fault.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Comps asked of the inner nic at once. */
#define BATCH 32

/* --- the queue ------------------------------------------------------------------------------ */

bool fault_comps_full(const struct fault_nic *nic)
{
    return nic->ncomps == FAULT_HELD_MAX;
}

void fault_comps_push(struct fault_nic *nic, const struct weft_comp *comp)
{
    struct fault_plan *plan = &nic->plan;
    struct fault_comp *held = &nic->comps[nic->ncomps++];
    *held = (struct fault_comp){.comp = *comp};
    if (plan->delay_us)
        held->due = weft_now() + fault_plan_pick(plan, plan->delay_us + 1) * UINT64_C(1000);
}

static bool owns_data(const struct fault_nic *nic, const struct weft_comp *comp)
{
    return comp->op == WEFT_OP_RECV && !nic->base.attr.rx_scatter;
}

/* Give back what a comp holds that no one will see. */
static void discard(struct fault_nic *nic, struct weft_comp *comp)
{
    if (owns_data(nic, comp))
        free((void *)comp->data);
    else if (comp->op == WEFT_OP_RECV)
        fault_rx_release(&nic->base, comp);
}

static void remove_comp(struct fault_nic *nic, uint32_t at)
{
    nic->ncomps--;
    memmove(&nic->comps[at], &nic->comps[at + 1], (nic->ncomps - at) * sizeof *nic->comps);
}

void fault_comps_drop(struct fault_nic *nic, const struct fault_link *link)
{
    for (uint32_t i = nic->ncomps; i-- > 0;)
        if (nic->comps[i].comp.link == &link->base) {
            discard(nic, &nic->comps[i].comp);
            remove_comp(nic, i);
        }
}

static void free_given(struct fault_nic *nic)
{
    while (nic->ngiven)
        free(nic->given[--nic->ngiven]);
}

void fault_comps_free(struct fault_nic *nic)
{
    free_given(nic);
}

/* --- from the inner nic --------------------------------------------------------------------- */

/* Received data outlives the inner nic's next poll. */
static int keep_data(const struct fault_nic *nic, struct weft_comp *comp)
{
    if (!owns_data(nic, comp))
        return 0;
    void *copy = malloc(comp->len + !comp->len); /* never NULL for want of bytes */
    if (!copy)
        return weft_fail(-ENOMEM, "fault: no memory for a received message");
    if (comp->len)
        memcpy(copy, comp->data, comp->len);
    comp->data = copy;
    return 0;
}

/* Returns how many came, or a negative code. */
static int take_comps(struct fault_nic *nic)
{
    struct weft_comp comps[BATCH];
    uint32_t room = FAULT_HELD_MAX - nic->ncomps;
    int n = 0;
    if (room)
        n = nic->inner_ops->poll(nic->inner, comps, room < BATCH ? (int)room : BATCH);
    for (int i = 0; i < n; i++) {
        struct fault_link *link = comps[i].link->user;
        comps[i].link = &link->base;
        int rc = keep_data(nic, &comps[i]);
        if (rc)
            return rc;
        if (comps[i].op == WEFT_OP_LINK_DOWN)
            fault_link_down(link, comps[i].status);
        else
            fault_comps_push(nic, &comps[i]);
    }
    return n;
}

/* --- to the caller -------------------------------------------------------------------------- */

/* Index of a comp that may go now, or UINT32_MAX. */
static uint32_t next_comp(struct fault_nic *nic, uint64_t now)
{
    uint32_t due[FAULT_REORDER_MAX], n = 0, window = nic->plan.reorder ? nic->plan.reorder : 1;
    for (uint32_t i = 0; i < nic->ncomps && i < window; i++)
        if (nic->comps[i].due <= now)
            due[n++] = i;
    if (!n)
        return UINT32_MAX;
    return due[fault_plan_next(&nic->plan, n, nic->comps[due[0]].overtaken)];
}

static int give_comps(struct fault_nic *nic, struct weft_comp *comps, int max)
{
    uint64_t now = nic->plan.delay_us ? weft_now() : 0;
    int n = 0;
    for (uint32_t at; n < max && (at = next_comp(nic, now)) != UINT32_MAX; n++) {
        for (uint32_t i = 0; i < at; i++)
            nic->comps[i].overtaken++;
        comps[n] = nic->comps[at].comp;
        if (owns_data(nic, &comps[n]))
            nic->given[nic->ngiven++] = (void *)comps[n].data;
        ((struct fault_link *)comps[n].link)->flight -= fault_is_own(comps[n].op, comps[n].ctx);
        remove_comp(nic, at);
    }
    return n;
}

static bool has_comps(const struct fault_nic *nic, const struct fault_link *link)
{
    for (uint32_t i = 0; i < nic->ncomps; i++)
        if (nic->comps[i].comp.link == &link->base)
            return true;
    return false;
}

/* LINK_DOWN comes after all else of its link. */
static int give_downs(struct fault_nic *nic, struct weft_comp *comps, int max)
{
    int n = 0;
    for (struct fault_link *link = nic->links; link && n < max; link = link->next) {
        if (!link->down || link->told || has_comps(nic, link))
            continue;
        comps[n++] = (struct weft_comp){
            .link = &link->base, .op = WEFT_OP_LINK_DOWN, .status = link->down};
        link->told = true;
        nic->pending--;
    }
    return n;
}

/* How many comps this poll may hand out. */
static int choose_max(struct fault_plan *plan, int max, bool more_come, uint32_t held)
{
    if (max > 1 && fault_plan_chance(plan, plan->partial))
        max = 1 + (int)fault_plan_pick(plan, (uint32_t)max);
    /* while more come, some wait for them to overtake */
    if (plan->reorder && more_come && held) {
        int some = 1 + (int)fault_plan_pick(plan, held);
        max = some < max ? some : max;
    }
    return max;
}

int fault_poll(struct weft_nic *base, struct weft_comp *comps, int max)
{
    struct fault_nic *nic = (struct fault_nic *)base;
    free_given(nic);
    for (struct fault_link *link = nic->links; link && nic->pending; link = link->next)
        fault_link_progress(link);
    int came = take_comps(nic);
    base->bulk = nic->inner->bulk;
    if (came < 0)
        return came;
    max = choose_max(&nic->plan, max, came > 0, nic->ncomps);
    int n = give_comps(nic, comps, max);
    return n + give_downs(nic, comps + n, max - n);
}

int fault_wait_fd(struct weft_nic *base)
{
    struct fault_nic *nic = (struct fault_nic *)base;
    if (nic->plan.nofd || !nic->inner_ops->wait_fd)
        return WEFT_EUNSUPPORTED;
    if (nic->ncomps || nic->pending)
        return WEFT_EAGAIN;
    return nic->inner_ops->wait_fd(nic->inner);
}

void fault_rx_release(struct weft_nic *base, const struct weft_comp *comp)
{
    struct fault_nic *nic = (struct fault_nic *)base;
    struct weft_comp inner = *comp;
    inner.link = ((struct fault_link *)comp->link)->inner;
    if (nic->inner_ops->rx_release)
        nic->inner_ops->rx_release(nic->inner, &inner);
}
