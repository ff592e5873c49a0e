/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weft: move bytes between the memories of GPUs and hosts.
 *
 * This is the one header an application includes. The two headers that backends implement,
 * weft/transport.h and weft/gpu.h, are not part of it.
 */
#ifndef WEFT_H
#define WEFT_H

#include "weft/base.h"
#include "weft/endpoint.h"
#include "weft/fabric.h"

#endif
