/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The target: executes the peer's cmds, after checking every word of them.
 *
 * What is short is executed where it is found. What is long becomes a job, and poll goes on with
 * each job by a step, so that short cmds behind it are executed in between. The peer's slot number
 * names the job; a slot is free again once the peer has been told how its cmd ended, so the queue
 * of what to tell never overflows, and a full ring never keeps this end from reading its own.
 */
#include "local.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Most slots in one ACKS entry: two cache lines. */
#define ACKS_MAX 60

static struct local_nic *nic_of(const struct local_link *link)
{
    return (struct local_nic *)link->base.nic;
}

/* --- how a cmd ends ------------------------------------------------------------------------- */

static void put_comp(struct local_link *link, struct local_sink *sink, struct weft_comp comp)
{
    comp.link = &link->base;
    sink->comps[sink->n++] = comp;
}

static void end_ack(struct local_link *link, uint16_t slot)
{
    link->serving[slot] = LOCAL_SERVE_ACK;
    local_queue_push(&link->ended, slot);
}

static void end_answer(struct local_link *link, uint16_t slot, int status, uint64_t value)
{
    link->jobs[slot].status = status;
    link->jobs[slot].value = value;
    link->serving[slot] = LOCAL_SERVE_ANSWER;
    local_queue_push(&link->ended, slot);
}

/* A WRITE or WRITE_IMM is in its place. */
static void end_write(struct local_link *link, uint16_t slot, uint8_t op, uint32_t imm,
                      struct local_sink *sink)
{
    if (op == WEFT_OP_WRITE_IMM)
        put_comp(link, sink, (struct weft_comp){.op = WEFT_OP_WRITE_IMM, .imm = imm});
    end_ack(link, slot);
}

/* The payload of a WRITE that comes in pieces is not wanted: answer, drop what still comes. */
static void fail_pieces(struct local_link *link, uint16_t slot, int status)
{
    link->jobs[slot].failed = true;
    end_answer(link, slot, status, 0);
}

/* --- cmds executed at once ------------------------------------------------------------------ */

/* Of an entry with a new cmd. */
static bool is_sound(const struct local_link *link, const struct local_entry *head)
{
    return head->slot < LOCAL_DEPTH && link->serving[head->slot] == LOCAL_SERVE_FREE;
}

int local_serve_send(struct local_link *link, const struct local_entry *head, const uint8_t *payload,
                     uint64_t len, struct local_sink *sink)
{
    struct local_nic *nic = nic_of(link);
    if (!is_sound(link, head) || head->op != WEFT_OP_SEND || len > LOCAL_MAX_SEND)
        return WEFT_EPROTO;
    if (len > LOCAL_ARENA - nic->arena_used)
        return LOCAL_LATER;
    uint8_t *data = nic->arena + nic->arena_used;
    local_ring_read(data, payload, len);
    nic->arena_used += ((uint32_t)len + 15) & ~15u; /* as malloc would align it */
    link->jobs[head->slot].last = true; /* no pieces follow */
    put_comp(link, sink, (struct weft_comp){.op = WEFT_OP_RECV, .len = len, .data = data});
    end_ack(link, head->slot);
    return 0;
}

/* Payload that is here, to its place. 0, or why not. */
static int place(const struct local_link *link, const struct local_write *write, const uint8_t *payload, uint64_t len)
{
    int status = local_mem_check(nic_of(link), write->key, write->addr, len, WEFT_ACCESS_WRITE);
    if (!status && len)
        memcpy((void *)(uintptr_t)write->addr, payload, len);
    return status;
}

int local_serve_write(struct local_link *link, const struct local_entry *head, const uint8_t *body,
                      uint64_t len)
{
    struct local_write write;
    if (!is_sound(link, head) || head->op != WEFT_OP_WRITE || len < sizeof write)
        return WEFT_EPROTO;
    local_ring_read(&write, body, sizeof write);
    link->jobs[head->slot].last = true; /* no pieces follow */
    int status = place(link, &write, body + sizeof write, len - sizeof write);
    if (status)
        end_answer(link, head->slot, status, 0);
    else
        end_ack(link, head->slot);
    return 0;
}

static void serve_write_imm(struct local_link *link, uint16_t slot, const struct local_cmd *cmd, const uint8_t *payload,
                            struct local_sink *sink)
{
    int status = place(link, &(struct local_write){cmd->addr, cmd->key}, payload, cmd->len);
    if (status)
        end_answer(link, slot, status, 0);
    else
        end_write(link, slot, WEFT_OP_WRITE_IMM, cmd->imm, sink);
}

static void serve_add(struct local_link *link, uint16_t slot, const struct local_cmd *cmd,
                      const uint8_t *payload)
{
    uint64_t value, before = 0;
    local_ring_read(&value, payload, sizeof value);
    int status = local_mem_check(nic_of(link), cmd->key, cmd->addr, sizeof value,
                                 WEFT_ACCESS_ATOMIC);
    if (!status && cmd->addr % sizeof value)
        status = -EINVAL;
    if (!status)
        before = __atomic_fetch_add((uint64_t *)(uintptr_t)cmd->addr, value, __ATOMIC_ACQ_REL);
    end_answer(link, slot, status, before);
}

static int serve_in_entry(struct local_link *link, const struct local_entry *head,
                          const struct local_cmd *cmd, const uint8_t *payload, uint64_t len,
                          struct local_sink *sink)
{
    if (len != cmd->len)
        return WEFT_EPROTO;
    link->jobs[head->slot].last = true; /* no pieces follow */
    switch (head->op) {
    case WEFT_OP_WRITE_IMM:
        serve_write_imm(link, head->slot, cmd, payload, sink);
        return 0;
    case WEFT_OP_ADD64:
        if (len != sizeof(uint64_t))
            return WEFT_EPROTO;
        serve_add(link, head->slot, cmd, payload);
        return 0;
    default:
        return WEFT_EPROTO;
    }
}

/* --- cmds that become jobs ------------------------------------------------------------------ */

/* Copy the initiator's addresses; their sum is the cmd's length. 0, WEFT_EPROTO, or -ENOMEM. */
static int take_ranges(struct local_job *job, const uint8_t *body, uint64_t len)
{
    struct local_range range;
    uint64_t left = job->len;
    if (job->niov < 1 || job->niov > LOCAL_MAX_IOV || len != job->niov * sizeof range)
        return WEFT_EPROTO;
    job->iov = job->niov == 1 ? &job->one : malloc(job->niov * sizeof *job->iov);
    if (!job->iov)
        return -ENOMEM;
    for (uint32_t i = 0; i < job->niov; i++, left -= range.len) {
        local_ring_read(&range, body + i * sizeof range, sizeof range);
        if (range.len > left)
            return WEFT_EPROTO;
        job->iov[i] = (struct iovec){(void *)(uintptr_t)range.addr, range.len};
    }
    return left ? WEFT_EPROTO : 0;
}

static void free_ranges(struct local_job *job)
{
    if (job->iov != &job->one)
        free(job->iov);
    job->iov = NULL;
}

static int start_direct(struct local_link *link, uint16_t slot, const uint8_t *body, uint64_t len)
{
    struct local_job *job = &link->jobs[slot];
    job->last = true; /* no pieces follow */
    int rc = link->direct_in && job->len ? take_ranges(job, body, len) : WEFT_EPROTO;
    if (!rc) {
        local_queue_push(&link->running, slot);
        link->copying++;
        return 0;
    }
    free_ranges(job);
    if (rc == WEFT_EPROTO)
        return rc;
    end_answer(link, slot, rc, 0);
    return 0;
}

static int serve_job(struct local_link *link, const struct local_entry *head,
                     const struct local_cmd *cmd, const uint8_t *body, uint64_t len)
{
    struct local_job *job = &link->jobs[head->slot];
    bool read = head->op == WEFT_OP_READ;
    if ((!read && head->op != WEFT_OP_WRITE && head->op != WEFT_OP_WRITE_IMM) ||
        cmd->len > LOCAL_MAX_MSG)
        return WEFT_EPROTO;
    *job = (struct local_job){.key = cmd->key,
                              .addr = cmd->addr,
                              .len = cmd->len,
                              .imm = cmd->imm,
                              .op = head->op,
                              .how = (uint8_t)cmd->how,
                              .last = read,
                              .niov = cmd->niov};
    link->serving[head->slot] = LOCAL_SERVE_JOB;
    int status = local_mem_check(nic_of(link), cmd->key, cmd->addr, cmd->len,
                                 read ? WEFT_ACCESS_READ : WEFT_ACCESS_WRITE);
    if (status && !read && cmd->how == LOCAL_IN_PIECES)
        fail_pieces(link, head->slot, status);
    else if (status) {
        job->last = true;
        end_answer(link, head->slot, status, 0);
    } else if (cmd->how == LOCAL_DIRECT)
        return start_direct(link, head->slot, body, len);
    else if (read)
        local_queue_push(&link->running, head->slot);
    return 0;
}

int local_serve_cmd(struct local_link *link, const struct local_entry *head, const uint8_t *body,
                    uint64_t len, struct local_sink *sink)
{
    struct local_cmd cmd;
    if (!is_sound(link, head) || len < sizeof cmd)
        return WEFT_EPROTO;
    local_ring_read(&cmd, body, sizeof cmd);
    body += sizeof cmd;
    len -= sizeof cmd;
    if (cmd.how == LOCAL_IN_ENTRY)
        return serve_in_entry(link, head, &cmd, body, len, sink);
    if (cmd.how == LOCAL_IN_PIECES || cmd.how == LOCAL_DIRECT)
        return serve_job(link, head, &cmd, body, len);
    return WEFT_EPROTO;
}

/* --- a WRITE's payload in pieces ------------------------------------------------------------ */

/* The last piece is here. */
static int last_piece(struct local_link *link, uint16_t slot, struct local_sink *sink)
{
    struct local_job *job = &link->jobs[slot];
    job->last = true;
    if (!job->failed && job->done != job->len)
        return WEFT_EPROTO;
    if (!job->failed)
        end_write(link, slot, job->op, job->imm, sink);
    else if (link->serving[slot] == LOCAL_SERVE_JOB) /* the peer was told before */
        link->serving[slot] = LOCAL_SERVE_FREE;
    return 0;
}

int local_serve_piece(struct local_link *link, const struct local_entry *head, const uint8_t *body,
                      uint64_t len, struct local_sink *sink)
{
    uint16_t slot = head->slot;
    if (slot >= LOCAL_DEPTH ||
        (link->serving[slot] != LOCAL_SERVE_JOB && link->serving[slot] != LOCAL_SERVE_ANSWER))
        return WEFT_EPROTO;
    struct local_job *job = &link->jobs[slot];
    if (job->last || len > job->len - job->done)
        return WEFT_EPROTO;
    if (!job->failed) {
        int status = local_mem_check(nic_of(link), job->key, job->addr + job->done, len,
                                     WEFT_ACCESS_WRITE);
        if (status)
            fail_pieces(link, slot, status);
        else if (len)
            memcpy((void *)(uintptr_t)(job->addr + job->done), body, len);
    }
    job->done += len;
    return head->op == LOCAL_PIECE_LAST ? last_piece(link, slot, sink) : 0;
}

/* --- jobs that poll goes on with ------------------------------------------------------------ */

/* What became of a job in a step. */
enum step { STEP_MORE, STEP_WAIT, STEP_ENDED };

static enum step end_job(struct local_link *link, uint16_t slot, int status,
                         struct local_sink *sink)
{
    struct local_job *job = &link->jobs[slot];
    if (status)
        end_answer(link, slot, status, 0);
    else if (job->op == WEFT_OP_READ)
        end_ack(link, slot);
    else
        end_write(link, slot, job->op, job->imm, sink);
    return STEP_ENDED;
}

/* The copy itself. WEFT_EPEER: the initiator does not want it any more, or is gone. */
static ssize_t copy_step(struct local_link *link, struct local_job *job, uint64_t len)
{
    /* its pid may be another's by now */
    if (!link->same_process && local_peer_gone(link->source.fd))
        return WEFT_EPEER;
    uint32_t turn;
    if (!local_gate_enter_now(link->gate_peer, &turn))
        return WEFT_EPEER;
    ssize_t moved = local_copy(link, job, (void *)(uintptr_t)(job->addr + job->done), len);
    local_gate_leave(link->gate_peer, turn);
    if (moved == -ESRCH)
        return WEFT_EPEER;
    return moved == 0 ? -EFAULT : moved;
}

static enum step end_direct(struct local_link *link, uint16_t slot, int status,
                            struct local_sink *sink)
{
    free_ranges(&link->jobs[slot]);
    link->copying--;
    if (link->share.slot == slot)
        local_share_end(link);
    /* no one is there to be told; LINK_DOWN comes by the socket */
    return status == WEFT_EPEER ? STEP_ENDED : end_job(link, slot, status, sink);
}

/* Is a part of this job ours to copy? Of one that is shared, the target takes a unit at a time. */
static enum local_share_turn take_turn(struct local_link *link, uint16_t slot)
{
    const struct local_job *job = &link->jobs[slot];
    if (link->share.slot == slot && job->done == (uint64_t)link->share.front * LOCAL_STEP)
        return local_share_take(link);
    return LOCAL_SHARE_MINE;
}

static enum step step_direct(struct local_link *link, uint16_t slot, struct local_sink *sink)
{
    struct local_job *job = &link->jobs[slot];
    bool read = job->op == WEFT_OP_READ;
    uint64_t left = job->len - job->done, most = LOCAL_STEP - job->done % LOCAL_STEP;
    uint64_t len = left < most ? left : most;
    ssize_t rc = local_mem_check(nic_of(link), job->key, job->addr + job->done, len,
                                 read ? WEFT_ACCESS_READ : WEFT_ACCESS_WRITE);
    if (rc)
        return end_direct(link, slot, (int)rc, sink);
    local_share_offer(link, slot);
    enum local_share_turn turn = left ? take_turn(link, slot) : LOCAL_SHARE_OVER;
    if (turn == LOCAL_SHARE_WAIT) {
        link->share.waiting = true;
        link->copying--;
        return STEP_WAIT;
    }
    if (turn == LOCAL_SHARE_OVER)
        return end_direct(link, slot, 0, sink);
    rc = copy_step(link, job, len);
    if (rc < 0)
        return end_direct(link, slot, (int)rc, sink);
    job->done += (uint64_t)rc;
    nic_of(link)->budget -= rc;
    return job->done < job->len ? STEP_MORE : end_direct(link, slot, 0, sink);
}

void local_serve_resume(struct local_link *link, uint16_t slot)
{
    link->share.waiting = false;
    link->copying++;
    local_queue_push(&link->running, slot);
}

/* Answer a READ through the ring. */
static enum step step_read(struct local_link *link, uint16_t slot, struct local_sink *sink)
{
    struct local_job *job = &link->jobs[slot];
    uint64_t left = job->len - job->done, most = local_piece_max(link->tx.size);
    uint64_t len = left < most ? left : most;
    int status = local_mem_check(nic_of(link), job->key, job->addr + job->done, len,
                                 WEFT_ACCESS_READ);
    if (status)
        return end_job(link, slot, status, sink);
    uint8_t *body = local_ring_reserve(&link->tx, len, LOCAL_TO_INITIATOR, len == left ? LOCAL_PIECE_LAST : LOCAL_PIECE_MORE,
                                       slot);
    if (!body) {
        link->starved = true;
        return STEP_MORE;
    }
    if (len)
        memcpy(body, (void *)(uintptr_t)(job->addr + job->done), len);
    job->done += len;
    nic_of(link)->budget -= (int64_t)len;
    if (len < left)
        return STEP_MORE;
    link->serving[slot] = LOCAL_SERVE_FREE; /* the last piece is the answer */
    return STEP_ENDED;
}

static void step_jobs(struct local_link *link, struct local_sink *sink)
{
    struct local_nic *nic = nic_of(link);
    for (uint32_t n = link->running.count; n && nic->budget > 0 && sink->n < sink->max; n--) {
        uint16_t slot = local_queue_pop(&link->running);
        bool direct = link->jobs[slot].how == LOCAL_DIRECT;
        enum step step = direct ? step_direct(link, slot, sink) : step_read(link, slot, sink);
        if (step == STEP_MORE)
            local_queue_push(&link->running, slot);
    }
}

/* --- telling the peer ----------------------------------------------------------------------- */

/* One entry for all the acks at the head of the queue. */
static bool tell_acks(struct local_link *link)
{
    struct local_queue *q = &link->ended;
    uint32_t n = 0;
    while (n < q->count && n < ACKS_MAX &&
           link->serving[q->slots[(q->first + n) % LOCAL_DEPTH]] == LOCAL_SERVE_ACK)
        n++;
    uint16_t *slots = local_ring_reserve(&link->tx, n * sizeof *slots, LOCAL_ACKS, 0, 0);
    if (!slots)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        uint16_t slot = local_queue_pop(q); /* not read from there again: the peer may write to it */
        slots[i] = slot;
        link->serving[slot] = LOCAL_SERVE_FREE;
    }
    return true;
}

static bool tell_answer(struct local_link *link)
{
    uint16_t slot = link->ended.slots[link->ended.first];
    const struct local_job *job = &link->jobs[slot];
    struct local_answer *answer = local_ring_reserve(&link->tx, sizeof *answer, LOCAL_ANSWER, 0, slot);
    if (!answer)
        return false;
    answer->status = job->status;
    answer->value = job->value;
    local_queue_pop(&link->ended);
    /* pieces that are still under way are dropped under this slot */
    link->serving[slot] = job->last ? LOCAL_SERVE_FREE : LOCAL_SERVE_JOB;
    return true;
}

void local_serve_progress(struct local_link *link, struct local_sink *sink)
{
    if (local_share_ready(link))
        local_serve_resume(link, link->share.slot);
    step_jobs(link, sink);
    while (link->ended.count) {
        uint16_t slot = link->ended.slots[link->ended.first];
        bool told = link->serving[slot] == LOCAL_SERVE_ACK ? tell_acks(link) : tell_answer(link);
        if (!told) {
            link->starved = true;
            return;
        }
    }
}

void local_serve_free(struct local_link *link)
{
    if (link->share.waiting) /* the only job that is in no queue */
        free_ranges(&link->jobs[link->share.slot]);
    local_share_close(link);
    while (link->running.count)
        free_ranges(&link->jobs[local_queue_pop(&link->running)]);
}
