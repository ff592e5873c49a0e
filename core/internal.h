/* SPDX-License-Identifier: Apache-2.0 */
/* Everything that core's files share, grouped by file. Not installed. */
#ifndef WEFT_INTERNAL_H
#define WEFT_INTERNAL_H

#include "weft.h"
#include "weft/gpu.h"
#include "weft/transport.h"

/* config.c: 0, or WEFT_ECONFIG with a sentence naming the first setting that does not parse. */
int weft__config_check(void);

#endif
