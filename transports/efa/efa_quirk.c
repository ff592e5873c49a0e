/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is wrong with single providers.
 *
 * shm (libfabric 1.17): an endpoint that is closed is still written to by endpoints of the same process that know it:
 * they have its address, not a mapping of their own. So what a nic has of it is buried, and freed when the process has
 * no nic of that provider any more. And where it may copy with process_vm_writev, a peer that was stopped goes on with
 * that later, in memory that this side has been promised back.
 *
 * It waits for a lock in the peer's shared memory, for ever if the peer has died with it: who is dead gets nothing. The kernel is
 * asked, but for what is posted by the very poll that saw an operation end, and for one post after a message. What is left, and
 * cannot be mended from here, is a peer that dies while this side waits, or after that.
 *
 * ofi_rxm (1.17) reads what has come over a connection after it has closed it, and posts the buffers to it again, unless
 * all connections share theirs (SRX), which over verbs they do when asked. Then, however, data that comes with a WRITE is
 * lost now and then, so immediates are messages there.
 *
 * ofi_rxd (1.17): from 128 short operations on, which is how many packets it sends ahead, and under long ones both ways
 * that lose packets, it stands still. And so it does under many short READs on busy processors, in Debian's build (5 in
 * 100 runs of lists_of_thousands, six at once; none in 480 of a build of the same sources): a packet that the peer has
 * acknowledged stays marked as being sent, and the end that answers waits for it. So short READs go by messages.
 *
 * tcp (1.17 to 2.6): a connection that is closed, or found broken by who sends, while half of the answer to a READ is here,
 * frees that READ twice, and reports it the second time with a context of NULL, with which ofi_rxm ends the process.
 * (tcpx_ep_flush_all_queues: cur_rx.entry is the head of rma_read_queue, too.) So nothing is read there.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "efa.h"

#define RXD_FLYING 64
#define RXD_CHUNK 65536u
#define RXD_FETCH 8192u

static void forget_buried(void);
static struct weft_static_lock lock = WEFT_STATIC_LOCK(.foreign = 1, .in_child = forget_buried);
static struct fid **buried;
static size_t nburied, room;
static int users;

/* They are the parent's, who may have been in the middle of closing them. */
static void forget_buried(void)
{
    buried = NULL;
    nburied = room = 0;
    users = 0;
}

/* Whatever the provider: a part of its name, or another spelling, is enough for libfabric to take it. */
void efa_quirk_prepare(void)
{
    efa_env_default("FI_SHM_DISABLE_CMA", "1"); /* who says otherwise is believed */
    efa_env_default("FI_OFI_RXM_USE_SRX", "1");
}

bool efa_quirk_begin(const struct fi_info *info)
{
    if (strcmp(info->fabric_attr->prov_name, "shm") != 0)
        return false;
    weft_static_lock(&lock);
    users++;
    weft_static_unlock(&lock);
    return true;
}

void efa_quirk_limit(struct efa_nic *nic)
{
    const char *provider = nic->info->fabric_attr->prov_name;
    if (strstr(provider, "tcp"))
        nic->fetch_below = UINT64_MAX;
    if (!strstr(provider, "ofi_rxd"))
        return;
    if (nic->fetch_below == 0)
        nic->fetch_below = RXD_FETCH;
    nic->flying_most = RXD_FLYING;
    if (nic->chunk > RXD_CHUNK)
        nic->chunk = RXD_CHUNK;
}

bool efa_quirk_data(const struct fi_info *info)
{
    const char *provider = info->fabric_attr->prov_name;
    return !strstr(provider, "verbs") || !strstr(provider, "ofi_rxm");
}

bool efa_quirk_polls(const struct fi_info *info)
{
    const char *provider = info->fabric_attr->prov_name;
    return !strstr(provider, "tcp") && !strstr(provider, "udp");
}

bool efa_quirk_reachable(const struct efa_nic *nic, struct efa_process *process)
{
    if (!nic->buries || !process)
        return true;
    bool heard = process->heard || (nic->fresh && process->ended == nic->polls);
    process->heard = false;
    return !process->dead && (heard || efa_process_alive(process));
}

void efa_quirk_bury(struct fid *fid)
{
    weft_static_lock(&lock);
    if (nburied == room) {
        struct fid **more = realloc(buried, (room + 64) * sizeof(struct fid *));
        if (more) {
            buried = more;
            room += 64;
        }
    }
    if (nburied < room)
        buried[nburied++] = fid; /* else it stays open for good */
    weft_static_unlock(&lock);
}

void efa_quirk_end(void)
{
    weft_static_lock(&lock);
    if (--users == 0) {
        for (size_t i = 0; i < nburied; i++)
            fi_close(buried[i]);
        free(buried);
        buried = NULL;
        nburied = room = 0;
    }
    weft_static_unlock(&lock);
}
