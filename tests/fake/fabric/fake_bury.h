/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is closed of shm stays open until the process has no fabric of it any more: an endpoint of the same process that knows it
 * would still write to it (transports/efa/efa_quirk.c, which does so for shm under its own name).
 */
#ifndef FAKE_BURY_H
#define FAKE_BURY_H

#include <rdma/fabric.h>
#include <stdbool.h>

/* A fabric of such a provider is open now. */
void fake_bury_begin(void);
/* Instead of fid->ops->close(fid), with the tables of its provider in place: at once, or when the last such fabric is closed. */
int fake_bury(struct fid *fid);
/* Of such a fabric itself. */
int fake_bury_end(struct fid *fid);

#endif
