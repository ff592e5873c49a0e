/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many descriptors in one: a socket in whose queue they are. Who has the bag takes them out, once. Those in it
 * count for nobody's table of descriptors, but all of a user's together may not be more than RLIMIT_NOFILE (unix(7)).
 */
#ifndef WEFT_VENDOR_BAG_H
#define WEFT_VENDOR_BAG_H

#include <stdint.h>

#define BAG_ID_BYTES 16
#define BAG_MOST 64 /* that are put in at once */

/* Descriptors, each with a number; id: whose they are. */
struct bag_handful {
    uint8_t id[BAG_ID_BYTES];
    uint32_t n;
    uint64_t number[BAG_MOST];
    int fd[BAG_MOST];
};

/* *bag to take from, *mouth to put into. Both are the caller's to close. 0, or a code with a sentence. */
int bag_open(int *bag, int *mouth);
/* The descriptors stay the caller's. 0, or a code with a sentence. */
int bag_put(int mouth, const struct bag_handful *handful);
/* The next ones, which are the caller's; does not wait. 0; or a code with a sentence: it is no bag, or an empty one. */
int bag_take(int bag, struct bag_handful *handful);
/* Close what is still in a handful from `first` on. */
void bag_drop(struct bag_handful *handful, uint32_t first);

#endif
