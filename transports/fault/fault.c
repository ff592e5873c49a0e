/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the fault transport, and wrapping a nic. */
#include "fault.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static weft_probe_fn fault_probe;
static weft_open_fn fault_open;
static weft_close_fn fault_close;
static weft_mem_reg_fn fault_mem_reg;
static weft_mem_dereg_fn fault_mem_dereg;
static weft_extension_fn fault_extension;
static weft_wrap_fn fault_wrap;

static const struct weft_transport_ops fault_ops = {
    .probe = fault_probe,
    .open = fault_open,
    .close = fault_close,
    .mem_reg = fault_mem_reg,
    .mem_dereg = fault_mem_dereg,
    .link_open = fault_link_open,
    .link_address = fault_link_address,
    .link_connect = fault_link_connect,
    .link_close = fault_link_close,
    .link_enter = fault_link_enter,
    .link_leave = fault_link_leave,
    .link_recall = fault_link_recall,
    .link_recalled = fault_link_recalled,
    .link_pass = fault_link_pass,
    .link_take = fault_link_take,
    .post = fault_post,
    .poll = fault_poll,
    .wait_fd = fault_wait_fd,
    .rx_release = fault_rx_release,
    .extension = fault_extension,
};

const struct weft_transport weft_transport_fault = {
    .abi = WEFT_ABI,
    .name = "fault",
    .summary = "for tests: makes another transport misbehave",
    .priority = 0,
    .ops = &fault_ops,
};

static int fault_probe(struct weft_device_info *list, int max)
{
    (void)list;
    (void)max;
    weft_fail(WEFT_ENODEV, "wraps other transports: set WEFT_FAULT");
    return 0;
}

static int fault_open(const struct weft_nic_opts *opts, struct weft_nic **nic)
{
    (void)nic;
    return weft_fail(WEFT_ENODEV, "fault: there is no device %s: it wraps other transports",
                     opts->device);
}

static void *fault_extension(const char *name)
{
    weft_wrap_fn *wrap = fault_wrap;
    void *extension;
    _Static_assert(sizeof wrap == sizeof extension, "POSIX: functions fit into void *");
    memcpy(&extension, &wrap, sizeof wrap);
    return strcmp(name, WEFT_EXTENSION_WRAP) ? NULL : extension;
}

/* --- a wrapped nic -------------------------------------------------------------------------- */

static void *no_extension(const char *name)
{
    (void)name;
    return NULL;
}

/* What the inner nic promises, less what the plan takes away. */
static void adapt_attr(struct weft_nic_attr *attr, const struct fault_plan *plan)
{
    attr->ops &= ~plan->hide;
    if (!(attr->ops & WEFT_OP_BIT(WEFT_OP_WRITE_IMM)))
        attr->imm_bits = 0;
    if (plan->cut) /* cuts a link whoever is inside */
        attr->enters = 0;
    if (plan->reorder)
        attr->order = WEFT_ORDER_NONE;
    if (plan->depth && plan->depth < attr->tx_depth)
        attr->tx_depth = plan->depth;
    if (plan->max_msg && plan->max_msg < attr->max_msg)
        attr->max_msg = plan->max_msg;
}

static int fault_wrap(const struct weft_transport *inner, const char *spec,
                      const struct weft_nic_opts *opts, struct weft_nic **out)
{
    struct fault_nic *nic = calloc(1, sizeof *nic);
    if (!nic)
        return weft_fail(-ENOMEM, "fault: no memory for a nic");
    int rc = fault_plan_parse(&nic->plan, spec, opts->device);
    if (nic->plan.cut_nic && nic->plan.cut_nic != (uint32_t)opts->lane + 1)
        nic->plan.cut = 0;
    if (!rc)
        rc = inner->ops->open(opts, &nic->inner);
    if (rc) {
        free(nic);
        return rc;
    }
    /* lanes of one endpoint do not misbehave in step */
    nic->plan.random += (uint64_t)opts->lane;
    nic->inner_ops = inner->ops;
    nic->ops = fault_ops;
    nic->ops.extension = inner->ops->extension ? inner->ops->extension : no_extension;
    nic->transport = *inner;
    nic->transport.ops = &nic->ops;
    nic->base = (struct weft_nic){.transport = &nic->transport, .attr = nic->inner->attr};
    adapt_attr(&nic->base.attr, &nic->plan);
    if (!inner->ops->link_enter)
        nic->base.attr.enters = 0;
    *out = &nic->base;
    return 0;
}

static void fault_close(struct weft_nic *base)
{
    struct fault_nic *nic = (struct fault_nic *)base;
    nic->inner_ops->close(nic->inner);
    fault_comps_free(nic);
    free(nic);
}

static int fault_mem_reg(struct weft_nic *base, const struct weft_mem_range *range,
                         struct weft_mem_handle *handle)
{
    struct fault_nic *nic = (struct fault_nic *)base;
    return nic->inner_ops->mem_reg(nic->inner, range, handle);
}

static int fault_mem_dereg(struct weft_nic *base, void *mem)
{
    struct fault_nic *nic = (struct fault_nic *)base;
    return nic->inner_ops->mem_dereg(nic->inner, mem);
}
