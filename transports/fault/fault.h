/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The map of the fault transport: a decorator that makes the nic of any transport behave as badly
 * as its interface allows. README.md has the language of its spec.
 *
 * Cmds pass a short queue of their link on the way down, comps a short queue of the nic on the way
 * up; the plan decides which of a queue goes next, and when.
 */
#ifndef WEFT_TRANSPORTS_FAULT_H
#define WEFT_TRANSPORTS_FAULT_H

#include <stdbool.h>
#include <stdint.h>

#include "weft/transport.h"

/* Bounds the queues of cmds. */
#define FAULT_REORDER_MAX 256
/* Comps of the inner nic that are kept: more than a window, less than a flood. */
#define FAULT_HELD_MAX 512

/* What the spec says, and the state of its random numbers. */
struct fault_plan {
    uint64_t random;
    uint32_t reorder; /* window; 0: in order */
    uint32_t delay_us;
    uint32_t partial; /* percent */
    uint64_t fail;    /* number of the cmd that fails, from 1; 0: none */
    int fail_code;
    uint64_t refuse; /* number of the cmd that post refuses, from 1; 0: none */
    int refuse_code;
    uint64_t cut;      /* cmds after which a link is cut; 0: never */
    uint32_t cut_link; /* number of the only link that is cut, from 1; 0: each */
    uint32_t cut_nic;  /* number of the only lane whose nic cuts, from 1; 0: each */
    uint32_t hide;     /* op mask */
    uint32_t depth;    /* of the nic; 0: as it is */
    uint64_t max_msg;  /* the same */
    uint32_t connectfail;
    uint32_t late; /* takes of a descriptor that find none */
    bool nofd;
};

/* An accepted cmd that the inner link does not have yet. */
struct fault_cmd {
    struct weft_cmd cmd;
    uint8_t *copy;      /* payload of an inline cmd: malloc; else NULL */
    uint32_t overtaken; /* by so many later ones */
};

/* A comp of the inner nic that the caller does not have yet. */
struct fault_comp {
    struct weft_comp comp; /* of the wrapped link; data of a RECV is malloc */
    uint64_t due;
    uint32_t overtaken;
};

struct fault_link {
    struct weft_link base;
    struct weft_link *inner; /* NULL once cut */
    struct fault_link *next; /* of the nic */
    uint32_t number;         /* in the order of link_open, from 1 */
    uint64_t accepted;       /* cmds, ever */
    uint32_t takes;          /* that have found none */
    uint32_t flight;         /* of these, those whose comps the caller does not have */
    struct fault_cmd *cmds;  /* oldest first */
    uint32_t ncmds, cmds_cap;
    int down;            /* why it is dead; 0: it is not */
    bool told;           /* LINK_DOWN was handed out */
    bool asked, refused; /* link_connect was called; and fails */
};

struct fault_nic {
    struct weft_nic base;
    struct weft_transport transport; /* the inner one's, with our operations */
    struct weft_transport_ops ops;
    const struct weft_transport_ops *inner_ops;
    struct weft_nic *inner;
    struct fault_plan plan;
    struct fault_link *links;
    uint32_t opened;                         /* links, ever */
    uint32_t connected;                      /* links for which link_connect was called, ever */
    uint64_t accepted;                       /* cmds, ever */
    uint32_t pending;                        /* cmds in queues, and LINK_DOWNs to tell */
    struct fault_comp comps[FAULT_HELD_MAX]; /* oldest first */
    uint32_t ncomps;
    void *given[FAULT_HELD_MAX]; /* data of RECVs handed out by the last poll */
    uint32_t ngiven;
};

/* fault_plan.c */
int fault_plan_parse(struct fault_plan *plan, const char *spec, const char *device);
/* A number below n, which is not 0. */
uint32_t fault_plan_pick(struct fault_plan *plan, uint32_t n);
/* True in so many of a hundred cases. */
bool fault_plan_chance(struct fault_plan *plan, uint32_t percent);
/* Which of n queued things goes next, if the oldest was overtaken so often. */
uint32_t fault_plan_next(struct fault_plan *plan, uint32_t n, uint32_t overtaken);

/* fault_link.c: links, and cmds on the way down */
weft_link_open_fn fault_link_open;
weft_link_address_fn fault_link_address;
weft_link_connect_fn fault_link_connect;
weft_link_close_fn fault_link_close;
weft_link_enter_fn fault_link_enter;
weft_link_leave_fn fault_link_leave;
weft_link_recall_fn fault_link_recall;
weft_link_recalled_fn fault_link_recalled;
weft_link_pass_fn fault_link_pass;
weft_link_take_fn fault_link_take;
weft_post_fn fault_post;
/* Hand some queued cmds to the inner link. */
void fault_link_progress(struct fault_link *link);
/* The link is dead: LINK_DOWN follows. */
void fault_link_down(struct fault_link *link, int status);

/* fault_poll.c: comps on the way up */
weft_poll_fn fault_poll;
weft_wait_fd_fn fault_wait_fd;
weft_rx_release_fn fault_rx_release;
/* Queue a comp; there is room (fault_comps_full). */
void fault_comps_push(struct fault_nic *nic, const struct weft_comp *comp);
bool fault_comps_full(const struct fault_nic *nic);
/* Is this the comp of a cmd with this ctx, or else an arrival? A WRITE_IMM without ctx cannot be
 * told from an arrival. */
static inline bool fault_is_own(uint8_t op, uint64_t ctx)
{
    return op != WEFT_OP_RECV && (op != WEFT_OP_WRITE_IMM || ctx);
}
/* Forget a link's comps. */
void fault_comps_drop(struct fault_nic *nic, const struct fault_link *link);
void fault_comps_free(struct fault_nic *nic);

#endif
