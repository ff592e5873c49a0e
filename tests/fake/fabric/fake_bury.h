/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is closed of shm stays open until the process has no fabric of it any more: an endpoint of the same process that knows it
 * would still write to it (transports/efa/efa_quirk.c, which does so for shm under its own name).
 */
#ifndef FAKE_BURY_H
#define FAKE_BURY_H

#include <rdma/fabric.h>
#include <stdbool.h>

/* A fabric that is open now: of such a provider, or not. */
void fake_bury_fabric(bool buries);
/* Instead of fid->ops->close(fid), with the tables of its provider in place. The last fabric takes all along. */
int fake_bury(struct fid *fid);

#endif
