/* SPDX-License-Identifier: Apache-2.0 */
/* What the linker puts in the place of system calls, and what they stand for. */
#ifndef WEFT_SIM_WRAP_H
#define WEFT_SIM_WRAP_H

#include "sim.h"
#include "core/util.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <time.h>

/* heap.c */
void *__real_malloc(size_t len);
void *__real_calloc(size_t n, size_t size);
void __real_free(void *at);
void *__wrap_malloc(size_t len);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *old, size_t len);
int __wrap_posix_memalign(void **out, size_t align, size_t len);
char *__wrap_strdup(const char *text);
void __wrap_free(void *at);

/* lock.c */
int __wrap_pthread_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attr);
int __wrap_pthread_mutex_destroy(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_trylock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __wrap_pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attr);
int __wrap_pthread_cond_destroy(pthread_cond_t *cond);
int __wrap_pthread_cond_broadcast(pthread_cond_t *cond);
int __wrap_pthread_cond_signal(pthread_cond_t *cond);
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex,
                                  const struct timespec *when);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *),
                          void *arg);
int __wrap_pthread_join(pthread_t thread, void **result);
int __wrap_clock_gettime(clockid_t clock, struct timespec *ts);
int __wrap_nanosleep(const struct timespec *want, struct timespec *left);
int __wrap_usleep(useconds_t us);
int __wrap_sched_yield(void);

/* proc.c */
pid_t __wrap_getpid(void);
void __wrap_weft__env_read(weft__env_slot *slot, const char *name);
const char *__wrap_weft__env(const weft__env_slot *slot, const char *name);
ssize_t __wrap_getrandom(void *buf, size_t len, unsigned flags);
int __wrap_gethostname(char *name, size_t len);
int __wrap_stat(const char *path, struct stat *st);

/* file.c */
int __wrap_open(const char *path, int flags, ...);
ssize_t __wrap_read(int fd, void *buf, size_t len);
ssize_t __wrap_write(int fd, const void *buf, size_t len);
int __wrap_close(int fd);
int __wrap_eventfd(unsigned start, int flags);
int __wrap_timerfd_create(int clock, int flags);
int __wrap_timerfd_settime(int fd, int flags, const struct itimerspec *when,
                           struct itimerspec *old);
int __wrap_epoll_create1(int flags);
int __wrap_epoll_ctl(int fd, int op, int target, struct epoll_event *event);
int __wrap_epoll_wait(int fd, struct epoll_event *events, int max, int timeout);
int __wrap_poll(struct pollfd *fds, nfds_t n, int timeout);
int __wrap_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout,
                 const sigset_t *mask);

/* net.c: sockets of both families go through these */
int __wrap_socket(int domain, int type, int protocol);
int __wrap_bind(int fd, const struct sockaddr *addr, socklen_t len);
int __wrap_listen(int fd, int backlog);
int __wrap_accept4(int fd, struct sockaddr *addr, socklen_t *len, int flags);
int __wrap_connect(int fd, const struct sockaddr *addr, socklen_t len);
int __wrap_shutdown(int fd, int how);
ssize_t __wrap_send(int fd, const void *buf, size_t len, int flags);
ssize_t __wrap_recv(int fd, void *buf, size_t len, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *msg, int flags);
ssize_t __wrap_recvmsg(int fd, struct msghdr *msg, int flags);
int __wrap_getsockname(int fd, struct sockaddr *addr, socklen_t *len);
int __wrap_getpeername(int fd, struct sockaddr *addr, socklen_t *len);
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *len);
int __wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t len);

/* lend.c */
int __wrap_pipe2(int fd[2], int flags);
ssize_t __wrap_vmsplice(int fd, const struct iovec *iov, size_t niov, unsigned flags);
ssize_t __wrap_splice(int fd, off64_t *from, int to, off64_t *at, size_t len, unsigned flags);

/* unix.c */
struct sim_packet *sim_packet_new(void);
int sim_packet_bind(struct sim_file *file, const struct sockaddr *addr, socklen_t len);
int sim_packet_connect(struct sim_file *file, const struct sockaddr *addr, socklen_t len);
int sim_packet_accept(void *listener);
ssize_t sim_packet_send(struct sim_packet *p, const struct iovec *iov, size_t niov, int pass);
ssize_t sim_packet_recv(struct sim_packet *p, struct msghdr *msg);
int sim_packet_pid(const struct sim_packet *p);
void sim_packet_shutdown(struct sim_packet *p);
int __wrap_memfd_create(const char *name, unsigned flags);
int __wrap_ftruncate(int fd, off_t len);
int __wrap_fcntl(int fd, int cmd, ...);
int __wrap_fstat(int fd, struct stat *st);
int __wrap_fstatfs(int fd, struct statfs *fs);
void *__wrap_mmap(void *addr, size_t len, int prot, int flags, int fd, off_t offset);
int __wrap_munmap(void *addr, size_t len);
int __wrap_madvise(void *addr, size_t len, int advice);
ssize_t __wrap_process_vm_readv(pid_t pid, const struct iovec *ours, unsigned long nours,
                                const struct iovec *theirs, unsigned long ntheirs,
                                unsigned long flags);
ssize_t __wrap_process_vm_writev(pid_t pid, const struct iovec *ours, unsigned long nours,
                                 const struct iovec *theirs, unsigned long ntheirs,
                                 unsigned long flags);

#endif
