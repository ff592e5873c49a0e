/* SPDX-License-Identifier: Apache-2.0 */
/* Two nics and a link between them; see pair.h. */
#include "pair.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

int pair_ok(int rc, const char *call, const char *file, int line)
{
    if (rc < 0) {
        print_error("%s:%d: %s: %d, %s\n", file, line, call, rc, weft_last_error());
        fail();
    }
    return rc;
}

void pair_adopt(struct pair *pair, struct weft_nic *a, struct weft_nic *b)
{
    memset(pair, 0, sizeof *pair);
    pair->ops = a->transport->ops;
    pair->side[PAIR_A].nic = a;
    pair->side[PAIR_B].nic = b;
}

void pair_open(struct pair *pair, const struct weft_transport *transport, const char *device)
{
    struct weft_nic *nic[2];
    for (int i = 0; i < 2; i++) {
        struct weft_nic_opts opts = {.device = device, .lane = i};
        PAIR_OK(transport->ops->open(&opts, &nic[i]));
    }
    pair_adopt(pair, nic[PAIR_A], nic[PAIR_B]);
}

static struct weft_link *open_link(struct pair *pair, int side, uint8_t *address, size_t *len)
{
    struct weft_link_opts opts = {.role = side == PAIR_A ? WEFT_ROLE_ACTIVE : WEFT_ROLE_PASSIVE};
    struct weft_link *link;
    PAIR_OK(pair->ops->link_open(pair->side[side].nic, &opts, &link));
    *len = (size_t)PAIR_OK(pair->ops->link_address(link, address, WEFT_LINK_ADDRESS_MAX));
    return link;
}

void pair_connect(struct pair *pair)
{
    uint8_t address[2][WEFT_LINK_ADDRESS_MAX];
    size_t len[2];
    int up[2] = {WEFT_EAGAIN, WEFT_EAGAIN};
    for (int i = 1; i >= 0; i--)
        pair->side[i].link = open_link(pair, i, address[i], &len[i]);
    uint64_t deadline = weft_now() + PAIR_WAIT_MS * 1000000ull;
    while (up[0] || up[1]) {
        for (int i = 0; i < 2; i++) {
            if (up[i])
                up[i] = pair->ops->link_connect(pair->side[i].link, address[!i], len[!i]);
            if (up[i] != WEFT_EAGAIN)
                PAIR_OK(up[i]);
            pair_poll(pair, i);
        }
        assert_true(weft_now() < deadline);
    }
}

void pair_close(struct pair *pair)
{
    for (int i = 0; i < 2; i++) {
        struct pair_side *side = &pair->side[i];
        /* a wrapped nic owns its table */
        const struct weft_transport_ops *ops = side->nic->transport->ops;
        if (side->link)
            ops->link_close(side->link);
        while (side->ncomps)
            free(side->comps[--side->ncomps].data);
        ops->close(side->nic);
    }
}

int pair_poll(struct pair *pair, int i)
{
    struct weft_comp comps[16];
    struct pair_side *side = &pair->side[i];
    int n = PAIR_OK(pair->ops->poll(side->nic, comps, 16));
    for (int k = 0; k < n; k++) {
        assert_true(side->ncomps < PAIR_COMPS);
        struct pair_comp *kept = &side->comps[side->ncomps++];
        *kept = (struct pair_comp){.comp = comps[k]};
        assert_true(comps[k].status >= 0 || comps[k].len == 0); /* what has failed has moved nothing that counts */
        if (comps[k].op == WEFT_OP_RECV) {
            kept->data = malloc(comps[k].len + 1);
            memcpy(kept->data, comps[k].data, comps[k].len);
        }
    }
    return n;
}

bool pair_take(struct pair *pair, int i, enum weft_op op, uint64_t ctx, struct pair_comp *out)
{
    struct pair_side *side = &pair->side[i];
    for (int k = 0; k < side->ncomps; k++) {
        if (side->comps[k].comp.op != op || side->comps[k].comp.ctx != ctx)
            continue;
        *out = side->comps[k];
        memmove(&side->comps[k], &side->comps[k + 1],
                (size_t)(--side->ncomps - k) * sizeof *side->comps);
        return true;
    }
    return false;
}

struct pair_comp pair_wait(struct pair *pair, int side, enum weft_op op, uint64_t ctx)
{
    struct pair_comp found;
    uint64_t deadline = weft_now() + PAIR_WAIT_MS * 1000000ull;
    while (!pair_take(pair, side, op, ctx, &found)) {
        pair_poll(pair, 0);
        pair_poll(pair, 1);
        if (weft_now() > deadline) {
            print_error("no comp with op %d and ctx %d at side %d\n", op, (int)ctx, side);
            fail();
        }
    }
    return found;
}

void pair_post(struct pair *pair, int side, const struct weft_cmd *cmd)
{
    uint64_t deadline = weft_now() + PAIR_WAIT_MS * 1000000ull;
    while (PAIR_OK(pair->ops->post(pair->side[side].link, cmd, 1)) == 0) {
        pair_poll(pair, 0);
        pair_poll(pair, 1);
        assert_true(weft_now() < deadline);
    }
}

int pair_do(struct pair *pair, int side, const struct weft_cmd *cmd)
{
    pair_post(pair, side, cmd);
    return pair_wait(pair, side, cmd->op, cmd->ctx).comp.status;
}

struct weft_mem_handle pair_reg(struct pair *pair, int side, void *addr, uint64_t len,
                                uint32_t access, uint64_t key)
{
    struct weft_mem_range range = {.addr = addr,
                                   .len = len,
                                   .access = access,
                                   .kind = WEFT_MEM_HOST,
                                   .dmabuf_fd = -1,
                                   .key = key};
    struct weft_mem_handle handle;
    PAIR_OK(pair->ops->mem_reg(pair->side[side].nic, &range, &handle));
    return handle;
}

void pair_fill(void *buf, uint64_t len, uint32_t seed)
{
    for (uint64_t i = 0; i < len; i++)
        ((uint8_t *)buf)[i] = (uint8_t)(i * 131 + (i >> 8) * 7 + seed);
}

bool pair_filled(const void *buf, uint64_t len, uint32_t seed)
{
    for (uint64_t i = 0; i < len; i++)
        if (((const uint8_t *)buf)[i] != (uint8_t)(i * 131 + (i >> 8) * 7 + seed))
            return false;
    return true;
}
