/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `rails`: a transport with several devices, r0, r1 and so on, whose nics are those of `local`. They make
 * their own keys, as hardware does. A test says what the devices are like.
 */
#ifndef WEFT_TESTS_RAILS_H
#define WEFT_TESTS_RAILS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "weft/transport.h"

#define RAILS_MAX 34

/* What it is from the next call on. */
struct rails_device {
    bool unusable;     /* so probe says */
    int open;          /* what opening it gives, if not 0 */
    int link_open;     /* the same of its links */
    bool stuck;        /* its links are never connected */
    uint64_t max_msg;  /* if not 0 */
    const char *pci;   /* "": not known */
    int numa;          /* the same, -1 */
    _Atomic(int) nics; /* that are open */
    _Atomic(int) cmds; /* that it took */
};

struct rails_script {
    int ndevices;
    bool chosen_keys;
    struct rails_device device[RAILS_MAX];
};
extern struct rails_script rails;

/* So many devices, all well. No nic is open. */
void rails_reset(int ndevices);

#endif
