/* SPDX-License-Identifier: Apache-2.0 */
/* The code of docs/transport.md: the smallest transport, which finds no device. A module. */
#include "weft/transport.h"

static weft_probe_fn nothing_probe;
static weft_open_fn nothing_open;
static weft_close_fn nothing_close;
static weft_mem_reg_fn nothing_mem_reg;
static weft_mem_dereg_fn nothing_mem_dereg;
static weft_link_open_fn nothing_link_open;
static weft_link_address_fn nothing_link_address;
static weft_link_connect_fn nothing_link_connect;
static weft_link_close_fn nothing_link_close;
static weft_post_fn nothing_post;
static weft_poll_fn nothing_poll;
WEFT_API weft_module_transport_fn weft_module_transport;

/* quote probe */
static int nothing_probe(struct weft_device_info *list, int max)
{
    (void)list;
    (void)max;
    weft_fail(WEFT_ENODEV, "nothing: this machine has none"); /* for weft_info to show */
    return 0;
}

static int nothing_open(const struct weft_nic_opts *opts, struct weft_nic **nic)
{
    (void)nic;
    return weft_fail(WEFT_ENODEV, "nothing %s: there is no such device", opts->device);
}
/* end */

static void nothing_close(struct weft_nic *nic)
{
    (void)nic;
}

static int nothing_mem_reg(struct weft_nic *nic, const struct weft_mem_range *range,
                           struct weft_mem_handle *handle)
{
    (void)nic;
    (void)range;
    (void)handle;
    return weft_fail(WEFT_EUNSUPPORTED, "nothing: cannot register memory");
}

static int nothing_mem_dereg(struct weft_nic *nic, void *mem)
{
    (void)nic;
    (void)mem;
    return 0;
}

static int nothing_link_open(struct weft_nic *nic, const struct weft_link_opts *opts,
                             struct weft_link **link)
{
    (void)nic;
    (void)opts;
    (void)link;
    return weft_fail(WEFT_EUNSUPPORTED, "nothing: cannot open a link");
}

static int nothing_link_address(struct weft_link *link, void *buf, size_t cap)
{
    (void)link;
    (void)buf;
    (void)cap;
    return 0;
}

static int nothing_link_connect(struct weft_link *link, const void *addr, size_t len)
{
    (void)link;
    (void)addr;
    (void)len;
    return weft_fail(WEFT_ENOPATH, "nothing: reaches no peer");
}

static void nothing_link_close(struct weft_link *link)
{
    (void)link;
}

static int nothing_post(struct weft_link *link, const struct weft_cmd *cmds, int n)
{
    (void)link;
    (void)cmds;
    (void)n;
    return weft_fail(WEFT_ELINK, "nothing: the link is not connected");
}

static int nothing_poll(struct weft_nic *nic, struct weft_comp *comps, int max)
{
    (void)nic;
    (void)comps;
    (void)max;
    return 0;
}

/* quote start */
static const struct weft_transport_ops nothing_ops = {
    .probe = nothing_probe,
    .open = nothing_open,
    .close = nothing_close,
    .mem_reg = nothing_mem_reg,
    .mem_dereg = nothing_mem_dereg,
    .link_open = nothing_link_open,
    .link_address = nothing_link_address,
    .link_connect = nothing_link_connect,
    .link_close = nothing_link_close,
    .post = nothing_post,
    .poll = nothing_poll,
};

static const struct weft_transport nothing = {
    .abi = WEFT_ABI,
    .name = "nothing",
    .summary = "an example without a device",
    .priority = 1,
    .ops = &nothing_ops,
};

/* In a module, weft_nothing.so. A transport of the tree defines `weft_transport_nothing`. */
const struct weft_transport *weft_module_transport(void)
{
    return &nothing;
}
/* end */
