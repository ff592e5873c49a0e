/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this end of a conn copies for its peer: between slots of an area that the peer fills and empties, and memory
 * that peers may name by a key. And what it adds for the peer there.
 *
 * A peer has one area, asks for one copy at a time of each slot of it, and for WEFT__WINDOW additions at most: what it costs is
 * bounded. Keys, bounds and access are checked here, as a nic would.
 *
 * The endpoint lock is held in every function here.
 */
#include "conn.h"
#include "copier.h"
#include "endpoint.h"
#include "lot.h"
#include "mem.h"
#include "msg.h"
#include "progress.h"
#include "stage.h"
#include "stripe.h"
#include "util.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void weft__stage_hold(struct weft__conn *conn)
{
    conn->stage.serving++;
}

void weft__stage_release(struct weft__conn *conn)
{
    conn->stage.serving--;
    weft__stage_fill(conn);
    if (conn->state == WEFT_CONN_DOWN)
        weft__serve_down(conn);
    weft__changed(conn->ep); /* who closes the conn waits for this */
}

/* --- the area ---------------------------------------------------------------------------------- */

void weft__serve_area(struct weft__conn *conn, struct weft__area *area, int status)
{
    struct weft__stage *s = &conn->stage;
    const struct weft__copier *copier = &conn->ep->copier;
    struct weft_remote remote = {{0}};
    uint8_t body[12 + sizeof remote.bytes];
    struct weft__writer w = {body, body + sizeof body, false};
    struct weft__msg_head head = {.type = WEFT__MSG_STAGE_AREA};
    s->landing_wanted = !area && !status;
    s->landing = area;
    if (s->landing_wanted)
        return;
    if (area)
        weft__reg_describe(area->reg, area->addr, area->reg->len, &remote);
    weft__put_u32(&w, (uint32_t)status);
    weft__put_u32(&w, (uint32_t)copier->slot_bytes);
    weft__put_u32(&w, (uint32_t)copier->nslots);
    weft__put(&w, remote.bytes, sizeof remote.bytes);
    weft__msg_post(conn, &head, body, sizeof body);
}

int weft__stage_open_arrived(struct weft__conn *conn, size_t len)
{
    struct weft__endpoint *ep = conn->ep;
    if (len || conn->stage.landing || conn->stage.landing_wanted)
        return WEFT_EPROTO;
    if (weft_list_empty(&ep->aparts)) /* nothing here is staged, or no more */
        weft__serve_area(conn, NULL, WEFT_EKEY);
    else
        weft__serve_area(conn, weft__area_get(ep), 0);
    return 0;
}

void weft__serve_down(struct weft__conn *conn)
{
    struct weft__stage *s = &conn->stage;
    s->landing_wanted = false;
    if (!s->landing || s->serving)
        return;
    weft__area_retire(conn->ep, s->landing);
    s->landing = NULL;
}

/* --- copies ------------------------------------------------------------------------------------- */

struct serve {
    struct weft__copy copy;
    struct weft__conn *conn;
    uint32_t id;
    struct weft__slots slots;
    size_t n;
    struct weft_gpu_copy list[WEFT__LOT_PIECES];
    struct weft__reg *regs[WEFT__LOT_PIECES];
};

static void answer(struct weft__conn *conn, uint32_t id, int status, bool patient)
{
    uint8_t body[8];
    struct weft__writer w = {body, body + sizeof body, false};
    struct weft__msg_head head = {.type = WEFT__MSG_STAGE_COPIED, .patient = patient};
    weft__put_u32(&w, id);
    weft__put_u32(&w, (uint32_t)status);
    if (conn->state != WEFT_CONN_DOWN)
        weft__msg_post(conn, &head, body, sizeof body);
}

static void serve_done(struct weft__copy *copy, int status, const char *why)
{
    struct serve *serve = (struct serve *)copy; /* the first member */
    struct weft__conn *conn = serve->conn;
    if (status && !conn->stage.told)
        weft_log(WEFT_LOG_WARN, "conn", "%s: cannot copy for the peer: %s", conn->peer_text, why);
    conn->stage.told |= status != 0;
    for (size_t i = 0; i < serve->n; i++)
        weft__reg_served(serve->regs[i]);
    weft__slots_give(&conn->stage.landing_used, &serve->slots, 0);
    answer(conn, serve->id, status, copy->patient);
    free(serve);
    weft__stage_release(conn);
}

/* What a peer names: 0, or why it may not. */
static int look_up(struct weft__conn *conn, uint64_t addr, uint64_t key, uint64_t len,
                   uint32_t access, struct weft__reg **out)
{
    struct weft__reg *reg = weft__apart_find(conn->ep, key);
    if (!reg)
        return WEFT_EKEY;
    if (!weft__contains((uintptr_t)reg->addr, reg->len, addr, len))
        return WEFT_EBOUNDS;
    *out = reg;
    return reg->access & access ? 0 : WEFT_EACCESS;
}

/* The rest of a COPY: its pieces. *status is what the peer is told; WEFT_EPROTO: it may not say this. */
static int read_pieces(struct serve *serve, struct weft__reader *r, bool write, int *status)
{
    struct weft__conn *conn = serve->conn;
    const struct weft__copier *copier = &conn->ep->copier;
    int first = serve->slots.first;
    uint64_t bytes = copier->slot_bytes * (uint64_t)(copier->nslots - first), most = bytes;
    uint8_t *slot = conn->stage.landing->addr + copier->slot_bytes * (uint64_t)first;
    *status = 0;
    for (size_t i = 0, n = serve->n; i < n; i++) {
        uint64_t addr = weft__get_u64(r), key = weft__get_u64(r), len = weft__get_u64(r);
        if (r->bad || !len || len > bytes)
            return WEFT_EPROTO;
        if (*status == 0)
            *status = look_up(conn, addr, key, len, write ? WEFT_WRITE : WEFT_READ,
                              &serve->regs[i]);
        void *there = (void *)(uintptr_t)addr;
        serve->list[i] = write ? (struct weft_gpu_copy){there, slot, len}
                               : (struct weft_gpu_copy){slot, there, len};
        slot += len;
        bytes -= len;
    }
    serve->slots.n = (int)((most - bytes + copier->slot_bytes - 1) / copier->slot_bytes);
    bool taken = conn->stage.landing_used & weft__slots_bits(first, serve->slots.n);
    return r->at == r->end && !taken ? 0 : WEFT_EPROTO;
}

static bool is_reached(const struct serve *serve)
{
    for (size_t i = 0; i < serve->n; i++)
        if (!serve->regs[i]->reached || serve->regs[i]->ordinal != serve->regs[0]->ordinal)
            return false; /* kernels reach their own GPU */
    return serve->conn->stage.landing->reached;
}

/* u32 id, u8 WEFT__COPY_*, u8 slot, u16 n, then n pieces: u64 addr, u64 key, u64 len. They lie one behind the other from this
 * slot on. */
int weft__stage_copy_arrived(struct weft__conn *conn, const uint8_t *body, size_t len)
{
    struct weft__stage *s = &conn->stage;
    struct weft__reader r = {body, body + len, false};
    uint32_t id = weft__get_u32(&r);
    uint8_t how = weft__get_u8(&r), slot = weft__get_u8(&r);
    uint16_t n = weft__get_u16(&r);
    if (r.bad || how & ~(WEFT__COPY_WRITE | WEFT__COPY_PATIENT) || !n || n > WEFT__LOT_PIECES ||
        !s->landing || slot >= conn->ep->copier.nslots)
        return WEFT_EPROTO;
    struct serve *serve = malloc(sizeof *serve);
    if (!serve) {
        answer(conn, id, -ENOMEM, false);
        return 0;
    }
    serve->conn = conn;
    serve->id = id;
    serve->slots.first = slot;
    serve->n = n;
    int status, rc = read_pieces(serve, &r, how & WEFT__COPY_WRITE, &status);
    if (rc || status) {
        free(serve);
        if (rc == 0)
            answer(conn, id, status, false);
        return rc;
    }
    for (size_t i = 0; i < n; i++)
        weft__reg_serve(serve->regs[i]);
    s->landing_used |= weft__slots_bits(slot, serve->slots.n);
    weft__stage_hold(conn);
    serve->copy = (struct weft__copy){.ordinal = serve->regs[0]->ordinal,
                                      .list = serve->list,
                                      .n = n,
                                      .reached = is_reached(serve),
                                      .patient = how & WEFT__COPY_PATIENT,
                                      .host = weft__copy_host(how & WEFT__COPY_WRITE),
                                      .done = serve_done};
    weft__copy_push(conn->ep, &serve->copy);
    return 0;
}

/* --- additions: one at a time, so that none comes between another's read and write ----------------- */

struct weft__served_add {
    struct weft__copy copy;
    struct weft__served_add *next;
    struct weft__conn *conn;
    struct weft__reg *reg;
    uint64_t id, addr, value, word, old;
    bool added;
};

static void add_step(struct weft__served_add *add)
{
    void *there = (void *)(uintptr_t)add->addr;
    add->copy.one = add->added ? (struct weft_gpu_copy){there, &add->word, sizeof add->word}
                               : (struct weft_gpu_copy){&add->word, there, sizeof add->word};
    weft__copy_push(add->conn->ep, &add->copy);
}

static void add_copied(struct weft__copy *copy, int status, const char *why)
{
    struct weft__served_add *add = (struct weft__served_add *)copy; /* the first member */
    struct weft__conn *conn = add->conn;
    struct weft__endpoint *ep = conn->ep;
    (void)why;
    if (status == 0 && !add->added) {
        add->added = true;
        add->old = add->word;
        add->word += add->value;
        add_step(add);
        return;
    }
    ep->served_adds = add->next;
    if (!add->next)
        ep->served_adds_tail = &ep->served_adds;
    else
        add_step(add->next);
    weft__reg_served(add->reg);
    conn->stage.adding--;
    if (conn->state != WEFT_CONN_DOWN)
        weft__add_answer(conn, add->id, status, add->old);
    free(add);
    weft__stage_release(conn);
}

int weft__serve_add(struct weft__conn *conn, uint64_t id, struct weft__reg *reg, uint64_t addr,
                    uint64_t value)
{
    struct weft__endpoint *ep = conn->ep;
    if (conn->stage.adding >= WEFT__WINDOW)
        return WEFT_EPROTO; /* more than any peer has under way */
    struct weft__served_add *add = calloc(1, sizeof *add);
    if (!add)
        return weft__add_answer(conn, id, -ENOMEM, 0);
    *add = (struct weft__served_add){
        .conn = conn, .reg = reg, .id = id, .addr = addr, .value = value};
    add->copy = (struct weft__copy){
        .ordinal = reg->ordinal, .list = &add->copy.one, .n = 1, .done = add_copied};
    weft__reg_serve(reg);
    weft__stage_hold(conn);
    conn->stage.adding++;
    *ep->served_adds_tail = add;
    ep->served_adds_tail = &add->next;
    if (ep->served_adds == add)
        add_step(add);
    return 0;
}
