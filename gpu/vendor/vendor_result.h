/* SPDX-License-Identifier: Apache-2.0 */
/* What NVIDIA's driver and AMD's runtime say went wrong: the same numbers. tests/headers compares them with cuda.h and with
 * hip_runtime_api.h where those are. */
#ifndef WEFT_VENDOR_RESULT_H
#define WEFT_VENDOR_RESULT_H

/* CUresult, hipError_t */
enum {
    VENDOR_OK = 0,
    VENDOR_EINVAL = 1,
    VENDOR_ENOMEM = 2,
    VENDOR_ESTARTED = 3, /* not started: in the child of who has started the library */
    VENDOR_EENDED = 4,   /* the process is ending */
    VENDOR_ESTUB = 34,
    VENDOR_EUNAVAILABLE = 46,
    VENDOR_ENODEVICE = 100,
    VENDOR_EDEVICE = 101,
    VENDOR_ENOCONTEXT = 201,
    VENDOR_EBUSY = 600,       /* what an event stands behind is not done */
    VENDOR_EREGISTERED = 712, /* this host memory is registered already */
    VENDOR_EUNSUPPORTED = 801
};

/* Stream capture mode of a thread, the same with both: it may call everything, whoever captures streams into a graph meanwhile. */
enum { VENDOR_CAPTURE_RELAXED = 2 };

#endif
