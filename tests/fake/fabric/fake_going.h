/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations that have not ended, and where they go. What a provider has of a peer is freed when its address is removed (shm: the
 * mapping), so an endpoint from which one is on its way there is not to be used any more. Safe from any thread.
 */
#ifndef FAKE_GOING_H
#define FAKE_GOING_H

#include <rdma/fi_domain.h>
#include <stdbool.h>
#include <stddef.h>

/* Contexts are unique among those of the endpoint. Aborts if there is no memory. */
void fake_going_begin(const struct fid *ep, const struct fid *av, fi_addr_t addr, const void *context);
/* One that is not known, such as that of a receive, is none's. */
void fake_going_end(const struct fid *ep, const void *context);
/* The endpoint is closed. */
void fake_going_drop(const struct fid *ep);
/* The address is removed. */
void fake_going_nowhere(const struct fid *av, fi_addr_t addr);
/* How many of this endpoint have not ended. */
size_t fake_going_count(const struct fid *ep);
/* Has this endpoint an operation on its way to an address that was removed? */
bool fake_going_lost(const struct fid *ep);

#endif
