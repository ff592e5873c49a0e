/* SPDX-License-Identifier: Apache-2.0 */
#include "efa_pair.h"

#include <stdlib.h>

extern const struct weft_transport weft_transport_efa;

void efa_pair_open(struct efa_pair *ep, const char *settings, const char *gpu)
{
    struct weft_nic *nic[2];
    fake_fabric_set(settings);
    for (int i = 0; i < 2; i++) {
        struct weft_nic_opts opts = {.device = "shm", .lane = i, .gpu = gpu};
        PAIR_OK(weft_transport_efa.ops->open(&opts, &nic[i]));
    }
    pair_adopt(&ep->pair, nic[PAIR_A], nic[PAIR_B]);
    pair_connect(&ep->pair);
    for (int i = 0; i < 2; i++) {
        ep->buf[i] = calloc(1, EFA_PAIR_BYTES);
        assert_non_null(ep->buf[i]);
        ep->mem[i] = pair_reg(&ep->pair, i, ep->buf[i], EFA_PAIR_BYTES, PAIR_ALL, 100u + (unsigned)i);
    }
}

void efa_pair_dereg(struct efa_pair *ep, int side, struct weft_mem_handle mem)
{
    int rc;
    TEST_UNTIL((rc = ep->pair.ops->mem_dereg(ep->pair.side[side].nic, mem.mem)) != WEFT_EAGAIN,
               (pair_poll(&ep->pair, PAIR_A), pair_poll(&ep->pair, PAIR_B)), "mem_dereg");
    PAIR_OK(rc);
}

void efa_pair_close(struct efa_pair *ep)
{
    for (int i = 0; i < 2; i++) {
        efa_pair_dereg(ep, i, ep->mem[i]);
        free(ep->buf[i]);
    }
    pair_close(&ep->pair);
}

struct weft_cmd efa_pair_cmd(const struct efa_pair *ep, enum weft_op op, uint64_t len)
{
    return (struct weft_cmd){.op = (uint8_t)op,
                             .len = len,
                             .ctx = 1,
                             .imm = 77,
                             .remote_addr = (uintptr_t)ep->buf[PAIR_B],
                             .remote_key = ep->mem[PAIR_B].rkey,
                             .one = {ep->buf[PAIR_A], len, ep->mem[PAIR_A].mem}};
}

struct weft_mem_handle efa_pair_more(struct efa_pair *ep, uint8_t *more, struct weft_cmd *cmd)
{
    struct weft_mem_handle other = pair_reg(&ep->pair, PAIR_B, more, 4096, PAIR_ALL, 200);
    *cmd = efa_pair_cmd(ep, WEFT_OP_WRITE, 64);
    cmd->remote_addr = (uintptr_t)more;
    cmd->remote_key = other.rkey;
    assert_int_equal(pair_do(&ep->pair, PAIR_A, cmd), 0);
    return other;
}
