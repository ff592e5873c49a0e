/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every other header stands on: version, errors, settings, logs.
 *
 * All functions here may be called from any thread at any time, also before an endpoint exists.
 */
#ifndef WEFT_BASE_H
#define WEFT_BASE_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_VERSION_MAJOR 0
#define WEFT_VERSION_MINOR 1
#define WEFT_VERSION_PATCH 0
#define WEFT_VERSION_STRING "0.1.0"

#define WEFT_API __attribute__((visibility("default")))

#if defined(__GNUC__)
#define WEFT_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
/* Not called when all goes well: neither it nor the way to it takes room in the path of small operations. */
#define WEFT_COLD __attribute__((cold))
/* What mostly holds, and what mostly does not, in that path: it is laid out in a row. Between two messages the kernel has
 * used the caches, and each line that is skipped costs as much as one that is run. */
#define WEFT_LIKELY(x) __builtin_expect(!!(x), 1)
#define WEFT_UNLIKELY(x) __builtin_expect(!!(x), 0)
#else
#define WEFT_PRINTF(fmt, args)
#define WEFT_COLD
#define WEFT_LIKELY(x) (x)
#define WEFT_UNLIKELY(x) (x)
#endif

/* Version of the library that is loaded, as "major.minor.patch". Static storage. */
WEFT_API const char *weft_version(void);

/*
 * Options structs.
 *
 * Every struct that a caller fills begins with struct_size, and zero in any other field means the
 * documented default. WEFT_OPTS builds one in place in C:
 *
 *     weft_endpoint_open(WEFT_OPTS(weft_endpoint_opts, .listen = "[::]:7000"), &endpoint);
 *
 * C++ callers value-initialise the struct and set struct_size = sizeof(it) by hand. A library
 * that is newer than the caller takes the fields that the caller did not know as zero; one that
 * is older refuses a struct larger than its own when the part it does not know is not zero.
 */
#define WEFT_OPTS(type, ...) (&(struct type){.struct_size = sizeof(struct type), __VA_ARGS__})

/*
 * Errors.
 *
 * Every call returns 0 or more on success and a negative code on failure. Causes that the
 * operating system names are -errno (-EINVAL: an argument is wrong; -ENOMEM; ...); the codes
 * below are Weft's own. The second column is the scope: how far the damage reaches.
 */
#define WEFT_ERR_MAP(XX)                                                                          \
    XX(WEFT_EAGAIN, -1000, OP, "not now: make progress, then try again")                          \
    XX(WEFT_EHANDLE, -1001, OP, "handle is stale, closed, or not of this kind")                   \
    XX(WEFT_ETIMEOUT, -1002, OP, "deadline passed")                                               \
    XX(WEFT_ECANCELED, -1003, OP, "operation was canceled")                                       \
    XX(WEFT_ETRUNC, -1004, OP, "message is longer than the buffer that was to receive it")        \
    XX(WEFT_EKEY, -1005, OP, "no memory is registered under this key at the target")              \
    XX(WEFT_EBOUNDS, -1006, OP, "range lies outside the registered memory")                       \
    XX(WEFT_EACCESS, -1007, OP, "memory was not registered for this kind of access")              \
    XX(WEFT_EUNSUPPORTED, -1008, OP, "not supported by this transport, backend or build")         \
    XX(WEFT_ELIMIT, -1009, OP, "a limit was reached")                                             \
    XX(WEFT_ELINK, -1010, LINK, "link was lost")                                                  \
    XX(WEFT_EPEER, -1011, CONN, "peer is gone")                                                   \
    XX(WEFT_EPROTO, -1012, CONN, "peer sent bytes that the protocol does not allow")              \
    XX(WEFT_EVERSION, -1013, CONN, "the peer, or who made this data, speaks another version")     \
    XX(WEFT_EREFUSED, -1014, CONN, "peer refused the connection")                                 \
    XX(WEFT_ENOPATH, -1015, CONN, "no transport reaches the peer")                                \
    XX(WEFT_ECLOSED, -1016, CONN, "closed on this side")                                          \
    XX(WEFT_ECONFIG, -1017, ENDPOINT, "a setting has an invalid value")                           \
    XX(WEFT_EABI, -1018, DEVICE, "backend was built for another version of the interface")        \
    XX(WEFT_ENODEV, -1019, DEVICE, "no such transport, backend or device")                        \
    XX(WEFT_EAUTH, -1020, CONN, "the two endpoints do not share a secret")

enum weft_err {
#define WEFT_ERR_ENUM(name, value, scope, text) name = value,
    WEFT_ERR_MAP(WEFT_ERR_ENUM)
#undef WEFT_ERR_ENUM
};

/* How far an error reaches: what has to be done before the next operation can succeed. */
enum weft_scope {
    WEFT_SCOPE_NONE,     /* not an error */
    WEFT_SCOPE_OP,       /* this operation: correct it, or retry */
    WEFT_SCOPE_LINK,     /* one link of a conn: the conn goes on over the others */
    WEFT_SCOPE_CONN,     /* the conn: close it, connect again */
    WEFT_SCOPE_ENDPOINT, /* the endpoint: close it, open again */
    WEFT_SCOPE_DEVICE,   /* a device or backend: use another one */
};

/* One line of text for a code. Static storage for Weft's codes; per thread for -errno. */
WEFT_API const char *weft_strerror(int code);
/* Name of a code as written in this header ("WEFT_EPEER"), or "errno", or "ok". */
WEFT_API const char *weft_err_name(int code);
WEFT_API enum weft_scope weft_err_scope(int code);

/*
 * The sentence that says what went wrong in the last call of this thread that failed, for people:
 * it names the object and what to look at. Every call that returns a negative code sets it, but for -ENOENT at the end of a
 * list; read it before the next call of this thread, which may change it though it succeeds. Never NULL.
 * Operations that fail in the background carry their sentence in struct weft_op_status instead.
 */
WEFT_API const char *weft_last_error(void);

/*
 * Settings.
 *
 * Each has a WEFT_* name, a default and a help line (weft_info -c prints all of them with value
 * and source). A value comes from weft_config_set, else from the environment, else the default.
 * Settings are read when the object that uses them is opened; the environment when an endpoint is, or a setting is asked for
 * or set (before that: when the first setting is needed).
 */
enum weft_config_source { WEFT_FROM_DEFAULT, WEFT_FROM_ENVIRONMENT, WEFT_FROM_CALLER };

struct weft_config_item {
    const char *name;   /* "WEFT_LOG" */
    const char *type;   /* "string", "int", "power of 2", "size", "bool" */
    const char *value;  /* as text */
    const char *preset; /* the default, as text */
    const char *help;
    enum weft_config_source source;
};

/* Override a setting for this process; NULL takes the override back. -EINVAL if it does not parse
 * or is out of range, WEFT_ECONFIG if there is no such setting. */
WEFT_API int weft_config_set(const char *name, const char *value);
/* i-th setting, in table order. Returns 0, or -ENOENT past the end. The strings stay valid. */
WEFT_API int weft_config_get(int i, struct weft_config_item *item);

/*
 * Logs go to standard error, or to the function given here. Level per subsystem: WEFT_LOG, e.g.
 * "warn,tcp:debug". The function may be called from any thread, must not call into Weft, and gets
 * one line without a newline.
 */
enum weft_log_level { WEFT_LOG_ERROR, WEFT_LOG_WARN, WEFT_LOG_INFO, WEFT_LOG_DEBUG };
typedef void weft_log_fn(enum weft_log_level level, const char *subsystem, const char *line,
                         void *user);
/* NULL restores standard error. */
WEFT_API void weft_log_set(weft_log_fn *fn, void *user);

#ifdef __cplusplus
}
#endif
#endif
