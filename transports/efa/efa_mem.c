/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This side's memory: registered with libfabric under a key of libfabric's, found by peers under core's, and told to
 * them only as a lease that is taken back before the memory goes.
 *
 * A provider in software goes on with what it has begun to receive, whatever becomes of the registration. So who does
 * not give a lease back within REVOKE_NS loses more than the key: the target endpoint is opened anew.
 */
#include <errno.h>
#include <stdlib.h>

#include "efa.h"

#define REVOKE_NS 100000000u
#define KEY_TRIES 8 /* random keys that may be in use already */

/* --- keys ------------------------------------------------------------------------------------------------ */

static struct efa_mem **bucket(struct efa_nic *nic, uint64_t key)
{
    return &nic->mems[key % EFA_BUCKETS];
}

struct efa_mem *efa_mem_find(struct efa_nic *nic, uint64_t key)
{
    struct efa_mem *mem = *bucket(nic, key);
    while (mem && mem->range.key != key)
        mem = mem->next;
    return mem;
}

static void hide(struct efa_nic *nic, struct efa_mem *mem)
{
    struct efa_mem **at = bucket(nic, mem->range.key);
    while (*at != mem)
        at = &(*at)->next;
    *at = mem->next;
}

/* --- registration ---------------------------------------------------------------------------------------- */

uint32_t efa_mem_kinds(const struct efa_nic *nic)
{
    return WEFT_MEM_HOST | efa_gpu_kinds(nic);
}

static int mr_reg(struct efa_nic *nic, const struct weft_mem_range *range, uint64_t access,
                  struct fid_mr **mr)
{
    uint64_t key = 0;
    int rc = -FI_ENOKEY;
    for (int i = 0; i < KEY_TRIES && rc == -FI_ENOKEY; i++) {
        rc = nic->pick_keys ? weft_random(&key, sizeof key) : 0;
        if (rc)
            return rc;
        key &= nic->key_mask;
        rc = range->kind == WEFT_MEM_HOST
                 ? fi_mr_reg(nic->domain, range->addr, range->len, access, 0, key, 0, mr, NULL)
                 : efa_gpu_reg(nic, range, access, key, mr);
    }
    return rc ? efa_fail(nic, rc, range->kind == WEFT_MEM_HOST ? "cannot register memory"
                                                               : "cannot register memory of a GPU")
              : 0;
}

int efa_mr_reg(struct efa_nic *nic, void *addr, uint64_t len, uint64_t access, struct fid_mr **mr)
{
    const struct weft_mem_range range = {.addr = addr, .len = len, .kind = WEFT_MEM_HOST};
    return mr_reg(nic, &range, access, mr);
}

static int reg(struct efa_nic *nic, struct efa_mem *mem)
{
    const struct weft_mem_range *range = &mem->range;
    uint64_t access = FI_SEND | FI_RECV | FI_READ | FI_WRITE;
    if (range->access & WEFT_ACCESS_READ)
        access |= FI_REMOTE_READ;
    if (range->access & WEFT_ACCESS_WRITE)
        access |= FI_REMOTE_WRITE;
    return mr_reg(nic, range, access, &mem->mr);
}

int efa_mem_reg(struct weft_nic *base, const struct weft_mem_range *range,
                struct weft_mem_handle *handle)
{
    struct efa_nic *nic = (struct efa_nic *)base;
    if (range->kind & ~efa_mem_kinds(nic))
        return weft_fail(WEFT_EUNSUPPORTED, "efa %s: cannot register this kind of memory (%u)",
                         nic->name, range->kind);
    struct efa_mem *mem = calloc(1, sizeof *mem);
    if (!mem)
        return weft_fail(-ENOMEM, "efa %s: no memory for a registration", nic->name);
    mem->range = *range;
    weft_list_init(&mem->leases);
    weft_list_init(&mem->fetches);
    int rc = reg(nic, mem);
    if (rc) {
        free(mem);
        return rc;
    }
    mem->desc = fi_mr_desc(mem->mr);
    mem->rkey = fi_mr_key(mem->mr);
    mem->base = nic->virt ? 0 : (uintptr_t)range->addr;
    struct efa_mem **at = bucket(nic, range->key);
    mem->next = *at;
    *at = mem;
    *handle = (struct weft_mem_handle){.mem = mem, .rkey = range->key};
    return 0;
}

/* --- leases ---------------------------------------------------------------------------------------------- */

static void lease_free(struct efa_lease *lease)
{
    weft_list_remove(&lease->of_mem);
    weft_list_remove(&lease->of_link);
    efa_nic_of(lease->link)->nleases--;
    free(lease);
}

static struct efa_lease *lease_get(struct efa_mem *mem, struct efa_link *link)
{
    for (struct weft_list *at = mem->leases.next; at != &mem->leases; at = at->next) {
        struct efa_lease *lease = WEFT_LIST_OF(at, struct efa_lease, of_mem);
        if (lease->link == link)
            return lease;
    }
    struct efa_lease *lease = calloc(1, sizeof *lease);
    if (!lease)
        return NULL;
    lease->mem = mem;
    lease->link = link;
    weft_list_init(&lease->of_mem);
    weft_list_init(&lease->of_link);
    weft_list_push(&mem->leases, &lease->of_mem);
    weft_list_push(&link->leases, &lease->of_link);
    efa_nic_of(link)->nleases++;
    efa_nic_of(link)->leased = true;
    return lease;
}

void efa_mem_lookup(struct efa_link *link, const struct efa_lookup_msg *msg)
{
    struct efa_nic *nic = efa_nic_of(link);
    struct efa_mem *mem = efa_mem_find(nic, le64toh(msg->key));
    struct efa_lease *lease = mem ? lease_get(mem, link) : NULL;
    struct efa_answer_msg answer = {.id = msg->id};
    if (!lease) {
        answer.status = (int32_t)htole32((uint32_t)(mem ? -ENOMEM : WEFT_EKEY));
    } else {
        lease->id = le32toh(msg->id);
        answer.addr = htole64((uintptr_t)mem->range.addr);
        answer.len = htole64(mem->range.len);
        answer.rkey = htole64(mem->rkey);
        answer.base = htole64(mem->base);
        answer.access = htole32(mem->range.access);
        answer.epoch = htole32(nic->where.epoch);
    }
    efa_msg_note(link, EFA_ANSWER, &answer, sizeof answer);
}

void efa_mem_returned(struct efa_link *link, uint32_t id)
{
    for (struct weft_list *at = link->leases.next; at != &link->leases; at = at->next) {
        struct efa_lease *lease = WEFT_LIST_OF(at, struct efa_lease, of_link);
        if (lease->id != id || !lease->mem->deadline) /* an old answer, or one that was not asked for */
            continue;
        lease_free(lease);
        return;
    }
}

bool efa_mem_leased(const struct efa_link *link)
{
    return !weft_list_empty(&link->leases);
}

void efa_mem_forget(struct efa_link *link)
{
    while (!weft_list_empty(&link->leases))
        lease_free(WEFT_LIST_OF(link->leases.next, struct efa_lease, of_link));
}

void efa_mem_clean(struct efa_nic *nic)
{
    for (struct weft_list *at = nic->links.next; at != &nic->links; at = at->next) {
        struct efa_link *link = WEFT_LIST_OF(at, struct efa_link, in);
        if (link->state >= EFA_LINK_DOWN)
            efa_mem_forget(link);
    }
}

/* --- the end --------------------------------------------------------------------------------------------- */

static void ask_back(struct efa_mem *mem)
{
    for (struct weft_list *at = mem->leases.next, *next; at != &mem->leases; at = next) {
        struct efa_lease *lease = WEFT_LIST_OF(at, struct efa_lease, of_mem);
        struct efa_revoke_msg msg = {.key = htole64(mem->range.key), .id = htole32(lease->id)};
        next = at->next;
        if (lease->link->state == EFA_LINK_UP)
            efa_msg_note(lease->link, EFA_REVOKE, &msg, sizeof msg);
    }
}

/* Somebody who holds it can be expected to give it back. */
static bool is_hopeful(const struct efa_mem *mem)
{
    for (struct weft_list *at = mem->leases.next; at != &mem->leases; at = at->next)
        if (WEFT_LIST_OF(at, struct efa_lease, of_mem)->link->state == EFA_LINK_UP)
            return true;
    return false;
}

/* Once, whatever comes of it: ofi_rxm frees a registration whose close fails, too. */
static void close_mr(struct efa_nic *nic, struct efa_mem *mem)
{
    if (!mem->mr)
        return;
    int rc = fi_close(&mem->mr->fid);
    mem->mr = NULL;
    nic->nwaiting--;
    mem->stuck = rc != 0;
    if (rc)
        weft_log(WEFT_LOG_WARN, "efa", "cannot deregister memory at %p: %s", mem->range.addr,
                 nic->lib->strerror(-rc));
}

int efa_mem_dereg(struct weft_nic *base, void *handle)
{
    struct efa_nic *nic = (struct efa_nic *)base;
    struct efa_mem *mem = handle;
    if (!mem->deadline) {
        hide(nic, mem);
        efa_fetch_drop_mem(mem);
        mem->deadline = weft_now() + REVOKE_NS;
        nic->nwaiting++;
        ask_back(mem);
    }
    if (is_hopeful(mem) && !nic->lost && weft_now() < mem->deadline)
        return WEFT_EAGAIN;
    if (!weft_list_empty(&mem->leases) && !nic->lost)
        efa_ep_reset_target(nic);
    while (!weft_list_empty(&mem->leases))
        lease_free(WEFT_LIST_OF(mem->leases.next, struct efa_lease, of_mem));
    close_mr(nic, mem);
    if (mem->stuck && !nic->lost)
        return WEFT_EAGAIN; /* for good: peers may reach it */
    free(mem);
    return 0;
}

/* --- what peers want ------------------------------------------------------------------------------------- */

int efa_judge(uint64_t addr, uint64_t len, uint32_t access, uint8_t op, uint64_t at, uint64_t bytes)
{
    uint32_t need = op == WEFT_OP_READ    ? WEFT_ACCESS_READ
                    : op == WEFT_OP_ADD64 ? WEFT_ACCESS_ATOMIC
                                          : WEFT_ACCESS_WRITE;
    if (at < addr || at - addr > len || bytes > len - (at - addr))
        return WEFT_EBOUNDS;
    return access & need ? 0 : WEFT_EACCESS;
}

/* Atomic among all that add through this process, and with the additions of this host's processors. */
void efa_mem_add(struct efa_link *link, const struct efa_add_msg *msg)
{
    struct efa_mem *mem = efa_mem_find(efa_nic_of(link), le64toh(msg->key));
    uint64_t addr = le64toh(msg->addr);
    struct efa_added_msg added = {.id = msg->id};
    int status = WEFT_EKEY;
    if (mem)
        status = efa_judge((uintptr_t)mem->range.addr, mem->range.len, mem->range.access,
                           WEFT_OP_ADD64, addr, 8);
    if (status == 0 && (addr % 8 || mem->range.kind != WEFT_MEM_HOST))
        status = addr % 8 ? -EINVAL : WEFT_EUNSUPPORTED;
    if (status == 0)
        added.value = htole64(__atomic_fetch_add((uint64_t *)(uintptr_t)addr, le64toh(msg->value),
                                                 __ATOMIC_SEQ_CST));
    added.status = (int32_t)htole32((uint32_t)status);
    efa_msg_note(link, EFA_ADDED, &added, sizeof added);
}
