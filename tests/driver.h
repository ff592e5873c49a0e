/* SPDX-License-Identifier: Apache-2.0 */
/* What tests ask of NVIDIA's driver (or its double) beside Weft. */
#ifndef TESTS_DRIVER_H
#define TESTS_DRIVER_H

#include <stddef.h>

/* A function of WEFT_CUDA_LIBRARY, started; NULL: there is none. */
void *test_driver(const char *symbol);
/* len bytes of device memory, rounded up, in segments of so many bytes that are mapped side by side, as torch's expandable segments are. */
void *test_segments_alloc(int device, size_t len, size_t segment);
void test_segments_free(void *addr);

#endif
