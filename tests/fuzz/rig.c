/* SPDX-License-Identifier: Apache-2.0 */
/* The nic of rig.h. */
#include "rig.h"

#include <stdlib.h>
#include <string.h>

void rig_fill(uint8_t *guarded, uint32_t len)
{
    memset(guarded, RIG_FILL, RIG_GUARD + len + RIG_GUARD);
}

uint8_t *rig_memory(uint32_t len)
{
    void *guarded;
    FUZZ_CHECK(posix_memalign(&guarded, 64, RIG_GUARD + len + RIG_GUARD) == 0);
    rig_fill(guarded, len);
    return guarded;
}

bool rig_untouched(const uint8_t *guarded, uint32_t len)
{
    for (int i = 0; i < RIG_GUARD; i++)
        if (guarded[i] != RIG_FILL || guarded[RIG_GUARD + len + i] != RIG_FILL)
            return false;
    return true;
}

void rig_open(struct rig *rig, const struct weft_transport *transport, uint32_t len,
              uint32_t max_recv)
{
    struct weft_device_info device;
    FUZZ_CHECK(transport->ops->probe(&device, 1) == 1);
    struct weft_nic_opts opts = {.device = device.name};
    rig->ops = transport->ops;
    FUZZ_OK(rig->ops->open(&opts, &rig->nic));
    rig->max_recv = max_recv;
    rig->received = malloc(max_recv);
    FUZZ_CHECK(rig->received);
    rig->len = len;
    rig->guarded = rig_memory(len);
    rig->memory = rig->guarded + RIG_GUARD;
}

static void *reg(struct rig *rig, uint64_t key, void *addr, uint64_t len, uint32_t access)
{
    struct weft_mem_range range = {
        .addr = addr, .len = len, .access = access, .kind = WEFT_MEM_HOST, .key = key};
    struct weft_mem_handle handle;
    FUZZ_OK(rig->ops->mem_reg(rig->nic, &range, &handle));
    return handle.mem;
}

void rig_begin(struct rig *rig, struct weft_link *link)
{
    const uint32_t words = 8 * RIG_WORDS;
    rig->link = link;
    rig->down = false;
    rig->ncmds = 0;
    memset(rig->cmds, 0, sizeof rig->cmds);
    rig->mems[0] = reg(rig, RIG_KEY, rig->memory, rig->len, WEFT_ACCESS_READ | WEFT_ACCESS_WRITE);
    rig->mems[1] = reg(rig, RIG_READ_KEY, rig->memory, rig->len, WEFT_ACCESS_READ);
    rig->mems[2] = reg(rig, RIG_WORD_KEY, rig->memory + rig->len - words, words,
                       WEFT_ACCESS_ATOMIC);
}

bool rig_forget(struct rig *rig, int i)
{
    if (rig->mems[i] && rig->ops->mem_dereg(rig->nic, rig->mems[i]) == 0)
        rig->mems[i] = NULL;
    return !rig->mems[i];
}

void rig_end(struct rig *rig)
{
    for (int i = 0; i < rig->ncmds; i++)
        free(rig->cmds[i].memory);
    for (int i = 0; i < RIG_MEMS; i++)
        FUZZ_CHECK(rig_forget(rig, i));
    FUZZ_CHECK(rig_untouched(rig->guarded, rig->len));
}

static void on_comp(struct rig *rig, const struct weft_comp *comp)
{
    FUZZ_CHECK(comp->link == rig->link && !rig->down);
    if (comp->op == WEFT_OP_LINK_DOWN) {
        FUZZ_CHECK(comp->status < 0);
        rig->down = true;
    } else if (comp->op == WEFT_OP_RECV) {
        FUZZ_CHECK(comp->len <= rig->max_recv);
        memcpy(rig->received, comp->data, comp->len);
    } else if (comp->ctx) {
        FUZZ_CHECK(comp->ctx <= (uint64_t)rig->ncmds);
        struct rig_cmd *cmd = &rig->cmds[comp->ctx - 1];
        FUZZ_CHECK(cmd->memory && cmd->op == comp->op && comp->status <= 0);
        free(cmd->memory);
        cmd->memory = NULL;
    } else {
        FUZZ_CHECK(comp->op == WEFT_OP_WRITE_IMM);
    }
}

void rig_poll(struct rig *rig, int max)
{
    struct weft_comp comps[RIG_COMPS];
    int n = rig->ops->poll(rig->nic, comps, max);
    FUZZ_CHECK(n >= 0 && n <= max);
    for (int i = 0; i < n; i++)
        on_comp(rig, &comps[i]);
}

bool rig_choose(const struct rig *rig, struct fuzz_in *in, struct weft_cmd *cmd, uint8_t *how)
{
    static const uint8_t kinds[] = {WEFT_OP_WRITE,     WEFT_OP_READ,  WEFT_OP_SEND, WEFT_OP_ADD64,
                                    WEFT_OP_WRITE_IMM, WEFT_OP_FENCE, WEFT_OP_READ, WEFT_OP_WRITE};
    if (rig->ncmds == RIG_CMDS)
        return false;
    *cmd = (struct weft_cmd){.op = kinds[fuzz_pick(in, 8)], .remote_addr = 64, .value = 3};
    *how = fuzz_u8(in);
    return true;
}

int rig_post(struct rig *rig, struct weft_cmd *cmd, bool pieces)
{
    struct rig_cmd *mine = &rig->cmds[rig->ncmds];
    uint32_t len = (uint32_t)cmd->len, third = len / 3;
    mine->memory = malloc(len ? len : 1);
    FUZZ_CHECK(mine->memory);
    memset(mine->memory, 0x44, len);
    mine->op = cmd->op;
    cmd->ctx = (uint64_t)rig->ncmds + 1;
    cmd->one = (struct weft_iov_local){.addr = mine->memory, .len = len};
    if (pieces) {
        for (uint32_t i = 0; i < 3; i++)
            mine->iov[i] = (struct weft_iov_local){.addr = mine->memory + i * third,
                                                   .len = i < 2 ? third : len - 2 * third};
        cmd->niov = 3;
        cmd->iov = mine->iov;
    }
    int rc = rig->ops->post(rig->link, cmd, 1);
    FUZZ_CHECK(rc <= 1);
    if (rc == 1)
        rig->ncmds++;
    else
        free(mine->memory);
    return rc;
}

uint64_t rig_pick_key(struct fuzz_in *in)
{
    static const uint64_t keys[] = {RIG_KEY,      RIG_KEY,      RIG_KEY,
                                    RIG_READ_KEY, RIG_WORD_KEY, 99 /* none */};
    return keys[fuzz_pick(in, 6)];
}

uint64_t rig_pick_addr(const struct rig *rig, struct fuzz_in *in, uint64_t key)
{
    uint64_t base = (uintptr_t)rig->memory;
    if (key == RIG_WORD_KEY)
        return fuzz_near(in, base + rig->len - 8u * (1 + fuzz_pick(in, RIG_WORDS)));
    return fuzz_near(in, base + fuzz_u16(in) % rig->len);
}
