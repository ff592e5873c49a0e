/* SPDX-License-Identifier: Apache-2.0 */
/* What calls become where the compiler checks the sizes of buffers (_FORTIFY_SOURCE, which Ubuntu's does unasked). */
#include "wrap.h"

#define CHECKED(type, name, checked, arguments)                                                    \
    type __wrap___##name##_chk checked;                                                           \
    type __wrap___##name##_chk checked                                                            \
    {                                                                                             \
        (void)room;                                                                               \
        return __wrap_##name arguments;                                                           \
    }

CHECKED(ssize_t, read, (int fd, void *buf, size_t n, size_t room), (fd, buf, n))
CHECKED(ssize_t, recv, (int fd, void *buf, size_t n, size_t room, int flags),
        (fd, buf, n, flags))
CHECKED(int, gethostname, (char *buf, size_t n, size_t room), (buf, n))
CHECKED(int, poll, (struct pollfd *fds, nfds_t n, int timeout, size_t room),
        (fds, n, timeout))
CHECKED(int, ppoll,
        (struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask, size_t room),
        (fds, n, timeout, mask))
