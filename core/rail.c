/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rails: the devices of a transport that an endpoint uses at once. Their nics are put side by side,
 * the first one of each device, then the second: a conn whose peer has fewer of them still goes by as
 * many devices as it can.
 */
#include "rail.h"
#include "endpoint.h"
#include "lane.h"
#include "registry.h"
#include "topology.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEVICES 32 /* that are asked for at once: hosts have fewer of a kind */

/* What the transport lists; *list is malloc'd. */
static int probe(const struct weft_transport *transport, struct weft_device_info **list)
{
    int max = DEVICES, n = max + 1;
    *list = NULL;
    weft_fail(0, "%s", ""); /* a transport that finds nothing says why */
    while (n > max) {       /* one more may have come since */
        max = n > max ? n : max;
        free(*list);
        *list = calloc((size_t)max, sizeof **list);
        if (!*list)
            return weft_fail(-ENOMEM, "no memory for a list of devices");
        n = transport->ops->probe(*list, max);
    }
    if (n < 0)
        free(*list);
    return n;
}

/* --- which of them ------------------------------------------------------------------------------- */

static int rank(const struct weft_device_info *device)
{
    if (!device->usable)
        return WEFT_DISTANCE_FAR + 2;
    return device->distance < 0 ? WEFT_DISTANCE_FAR + 1 : device->distance;
}

static void sort(struct weft_device_info *list, int n)
{
    for (int i = 1; i < n; i++) {
        struct weft_device_info device = list[i];
        int at = i;
        for (; at > 0 && rank(&list[at - 1]) > rank(&device); at--)
            list[at] = list[at - 1];
        list[at] = device;
    }
}

/* The choice among devices that come nearest first. */
struct choice {
    int most, n; /* rails there may be, and are */
    bool far;
    struct weft_device_info first;
};

/* 0 if the next usable device is to be used, else a code with a sentence. */
static int wanted(const struct choice *choice, const struct weft_device_info *device)
{
    if (choice->n > 0 && !choice->far && rank(device) > rank(&choice->first))
        return weft_fail(WEFT_ELIMIT, "it is %s, and %s %s: see WEFT_RAILS_FAR",
                         weft__distance_text(device->distance), choice->first.name,
                         weft__distance_text(choice->first.distance));
    if (choice->n == choice->most)
        return weft_fail(WEFT_ELIMIT, "%d devices are in use before it: see WEFT_RAILS",
                         choice->most);
    return 0;
}

static void take(struct choice *choice, const struct weft_device_info *device)
{
    if (choice->n++ == 0)
        choice->first = *device;
}

static struct choice choice_new(void)
{
    return (struct choice){.most = (int)weft_config_int("WEFT_RAILS"),
                           .far = weft_config_int("WEFT_RAILS_FAR") != 0};
}

static void choose(struct weft_device_info *list, int n)
{
    struct choice choice = choice_new();
    for (int i = 0; i < n && list[i].usable; i++) {
        if (wanted(&choice, &list[i])) {
            snprintf(list[i].reason, sizeof list[i].reason, "%s", weft_last_error());
            continue;
        }
        take(&choice, &list[i]);
        list[i].rail = choice.n;
    }
}

int weft__devices(const struct weft_transport *transport, const char *near,
                  enum weft__measure measure, struct weft_device_info **list)
{
    int n = probe(transport, list), usable = 0, rc = 0;
    for (int i = 0; i < n; i++) {
        (*list)[i].distance = WEFT_DISTANCE_UNKNOWN;
        (*list)[i].rail = 0;
        usable += (*list)[i].usable != 0;
    }
    if (n <= 0)
        return n;
    if (usable > 1 || measure == WEFT__MEASURE_ALL)
        rc = weft__topology_measure(near, *list, n);
    if (rc && *near && measure == WEFT__MEASURE_CHOICE) /* who names a place expects it to count */
        weft_log(WEFT_LOG_WARN, "endpoint", "distances are unknown: %s", weft_last_error());
    sort(*list, n);
    choose(*list, n);
    return n;
}

/* --- opening ------------------------------------------------------------------------------------ */

struct opening {
    struct weft__endpoint *ep;
    const struct weft_transport *transport;
    const struct weft__rails_opts *opts;
    struct choice choice;
    int nlanes;                                                 /* of each device */
    int room;                                                   /* for all of them */
    struct weft__lane *lanes[WEFT__MAX_LANES][WEFT__MAX_LANES]; /* by number, then by rail */
};

/* A nic that makes its own keys takes a slot for them. */
static int take_slot(struct weft__lane *lane)
{
    struct weft__endpoint *ep = lane->endpoint;
    if (lane->nic->attr.chosen_keys)
        return 0;
    if (ep->nkeys == WEFT__KEYS)
        return weft_fail(WEFT_ELIMIT, "an endpoint has at most %d nics that make their own keys",
                         WEFT__KEYS);
    lane->key_slot = ep->nkeys++;
    return 0;
}

static void close_lane(struct weft__lane *lane)
{
    lane->endpoint->nkeys -= lane->key_slot >= 0;
    weft__lane_close(lane);
}

/* All nics of a device, or none. */
static int open_device(struct opening *o, const char *device)
{
    int rc = 0, i = 0;
    /* those that were counted on may have failed, and farther ones be more */
    if ((o->choice.n + 1) * o->nlanes > o->room)
        return weft_fail(WEFT_ELIMIT, "an endpoint has at most %d nics", WEFT__MAX_LANES);
    for (; rc == 0 && i < o->nlanes; i++) {
        struct weft__lane **lane = &o->lanes[i][o->choice.n];
        rc = weft__lane_open(o->ep, o->transport, device, i, o->opts->fault, o->opts->bind_host,
                             lane);
        if (rc)
            break;
        rc = take_slot(*lane);
    }
    while (rc && i > 0)
        close_lane(o->lanes[--i][o->choice.n]);
    return rc;
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

int weft__lanes_asked(const struct weft__endpoint *ep, bool by_processor, bool beyond)
{
    int lanes = (int)weft_config_int("WEFT_LANES");
    if (lanes)
        return lanes;
    if (!by_processor || ep->threads_asked < 1)
        return 1;
    int each = beyond && ep->gpu_apart ? 2 : 1;
    return least(each * ep->threads_asked, WEFT__MOST_LANES);
}

/* How many devices, and nics of each: rather more devices. */
static void share(struct opening *o, const struct weft_device_info *list, int n)
{
    int rails = 0, room = WEFT__MAX_LANES - o->ep->nlanes - o->opts->later;
    o->room = room;
    int lanes = weft__lanes_asked(o->ep, o->transport->by_processor, !o->transport->same_host);
    for (int i = 0; i < n; i++)
        rails += list[i].rail > 0;
    o->choice.most = least(o->choice.most, room);
    o->nlanes = least(lanes, room / least(o->choice.most, rails ? rails : 1));
    if (o->nlanes < lanes)
        weft_log(WEFT_LOG_INFO, "endpoint",
                 "%s: %d nics of each device, not %d: an endpoint has at most %d",
                 o->transport->name, o->nlanes, lanes, WEFT__MAX_LANES);
}

/* Open a device if it is wanted, else say why not. */
static int use_device(struct opening *o, const struct weft_device_info *device)
{
    int rc = WEFT_ENODEV;
    if (!device->usable)
        weft_fail(rc, "transport %s has no usable device: %s", o->transport->name, device->reason);
    else
        rc = wanted(&o->choice, device);
    if (rc == 0 && device->usable)
        rc = open_device(o, device->name);
    if (rc == 0)
        take(&o->choice, device);
    else
        weft_log(device->missing ? WEFT_LOG_WARN : WEFT_LOG_INFO, "endpoint", "%s: %s: not used: %s", o->transport->name,
                 device->name, device->usable ? weft_last_error() : device->reason);
    return rc;
}

static void place(struct opening *o)
{
    struct weft__endpoint *ep = o->ep;
    for (int nth = 0; nth < o->nlanes * o->choice.n; nth++) {
        struct weft__lane *lane = o->lanes[nth / o->choice.n][nth % o->choice.n];
        lane->nth = nth;
        lane->index = ep->nlanes;
        ep->lanes[ep->nlanes++] = lane;
        ep->offers |= lane->nic->attr.software;
    }
}

int weft__rails_open(struct weft__endpoint *ep, const struct weft_transport *transport,
                     const struct weft__rails_opts *opts)
{
    struct opening o = {.ep = ep, .transport = transport, .opts = opts, .choice = choice_new()};
    struct weft_device_info *list = NULL;
    char why[256] = ""; /* that of the best device, if none can be opened */
    int n = weft__devices(transport, opts->near, WEFT__MEASURE_CHOICE, &list);
    int rc = n < 0 ? n : WEFT_ENODEV;
    if (n <= 0)
        weft__text_add(why, sizeof why, 0, "transport %s has no device: %s", transport->name,
                       weft_last_error());
    if (n >= 0)
        share(&o, list, n);
    for (int i = 0; i < n; i++) {
        int failed = use_device(&o, &list[i]);
        if (!failed || *why)
            continue;
        rc = failed;
        weft__text_add(why, sizeof why, 0, "%s", weft_last_error());
    }
    if (n >= 0)
        free(list);
    if (!o.choice.n)
        return weft_fail(rc, "%s", why);
    place(&o);
    return 0;
}
