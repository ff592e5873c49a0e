/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers on the command line of programs that run tests. */
#ifndef WEFT_TESTS_NUMBER_H
#define WEFT_TESTS_NUMBER_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

/* Decimal digits and nothing else; false also for NULL, and for more than 64 bits hold. */
static inline bool test_number(const char *text, uint64_t *number)
{
    char *end;
    if (!text || *text < '0' || *text > '9')
        return false;
    errno = 0;
    *number = strtoull(text, &end, 10);
    return !*end && !errno;
}

#endif
