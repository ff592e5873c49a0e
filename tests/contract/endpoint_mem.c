/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory of endpoints: the cache, remotes and their pieces, regions, and every way to
 * ask for what one may not have. */
#include "duo.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#define T TEST_DEADLINE_MS
#define MIB ((size_t)1 << 20)
#define LEN 10000

static weft_mem_t reg(weft_endpoint_t e, void *addr, size_t len, uint32_t access)
{
    weft_mem_t mem;
    WEFT_OK(weft_mem_reg(e, addr, len, WEFT_OPTS(weft_mem_opts, .access = access), &mem));
    return mem;
}

static struct weft_remote advertise(weft_mem_t mem, const void *addr, size_t len)
{
    struct weft_remote remote;
    WEFT_OK(weft_mem_advertise(mem, addr, len, &remote));
    return remote;
}

static int64_t put(struct duo *d, const struct weft_remote *remote, uint64_t offset)
{
    uint64_t word = 0x5555;
    return weft_write(d->conn, &word, 8, remote, offset, T);
}

static int64_t get(struct duo *d, const struct weft_remote *remote, uint64_t offset)
{
    uint64_t word;
    return weft_read(d->conn, &word, 8, remote, offset, T);
}

/* --- registering --------------------------------------------------------------------------- */

static void what_cannot_be_registered(void **state)
{
    struct duo *d = *state;
    char memory[64];
    weft_mem_t mem = 99;
    WEFT_FAILS(-EINVAL, weft_mem_reg(d->a.endpoint, NULL, 64, NULL, &mem));
    WEFT_FAILS(-EINVAL, weft_mem_reg(d->a.endpoint, memory, 0, NULL, &mem));
    WEFT_FAILS(-EINVAL, weft_mem_reg(d->a.endpoint, memory, SIZE_MAX, NULL, &mem));
    WEFT_FAILS(-EINVAL, weft_mem_reg(d->a.endpoint, memory, 64, NULL, NULL));
    WEFT_FAILS(-EINVAL, weft_mem_reg(d->a.endpoint, memory, 64,
                                     WEFT_OPTS(weft_mem_opts, .access = 0x80), &mem));
    assert_int_equal(mem, 99);
}

/* What the library asks the kernel with: nothing may be written to a file for it. */
static _Atomic int msync_flags = -1;
int msync(void *addr, size_t len, int flags)
{
    msync_flags = flags;
    return (int)syscall(SYS_msync, addr, len, flags);
}

/* A hole anywhere in the range, and a message from there that is too long to be copied at once. */
static void memory_has_to_be_mapped(void **state)
{
    struct duo *d = *state;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), third = 64 * page;
    char *memory = mmap(NULL, 3 * third, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED && !munmap(memory + third, third), "memory with a hole");
    static const int refused[][2] = {{0, 3}, {1, 2}, {0, 2}, {1, 3}}; /* in thirds */
    weft_mem_t mem = 99;
    for (size_t i = 0; i < ARRAY_LEN(refused); i++)
        WEFT_FAILS(-EFAULT, weft_mem_reg(d->a.endpoint, memory + (size_t)refused[i][0] * third,
                                         (size_t)(refused[i][1] - refused[i][0]) * third, NULL, &mem));
    WEFT_FAILS(-EFAULT, weft_mem_reg(d->a.endpoint, memory + third - 1, 2, NULL, &mem));
    WEFT_FAILS(-EFAULT, weft_mem_reg(d->a.endpoint, memory + 2 * third - 1, 2, NULL, &mem));
    WEFT_FAILS(-EFAULT, weft_send(d->conn, memory, 3 * third, T));
    assert_int_equal(mem, 99);
    assert_true(msync_flags == MS_ASYNC || msync_flags == -1);
    WEFT_FAILS(-EFAULT, weft_mem_reg(d->a.endpoint, (void *)1, SIZE_MAX - 1, NULL, &mem));
    WEFT_OK(weft_mem_dereg(reg(d->a.endpoint, memory, third, WEFT_READ)));
    WEFT_OK(weft_mem_dereg(reg(d->a.endpoint, memory + 2 * third + 5, third - 5, WEFT_READ)));
    CHECK(!munmap(memory, 3 * third), "unmap");
}

/* Linux 6.11 and newer tell; a nic that pins the pages is told anyway. */
static bool read_only_is_told(void)
{
    struct utsname name;
    int major = 0, minor = 0;
    CHECK(!uname(&name) && sscanf(name.release, "%d.%d", &major, &minor) == 2, "the kernel's release");
    return major > 6 || (major == 6 && minor >= 11) || !strcmp(test_transport(), "verbs");
}

static void what_is_mapped_read_only_is_not_written(void **state)
{
    struct duo *d = *state;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *memory = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED && !mprotect(memory + 2 * page, page, PROT_READ), "a page that may only be read");
    if (read_only_is_told()) {
        static const uint32_t access[] = {WEFT_WRITE, WEFT_ATOMIC, WEFT_READ | WEFT_WRITE};
        char where[64];
        snprintf(where, sizeof where, "read-only from %p on", (void *)(memory + 2 * page));
        weft_mem_t mem = 99;
        for (size_t i = 0; i < ARRAY_LEN(access); i++) {
            WEFT_FAILS(-EFAULT, weft_mem_reg(d->b.endpoint, memory + 5, 4 * page - 5,
                                             WEFT_OPTS(weft_mem_opts, .access = access[i]), &mem));
            WEFT_FAILS(-EFAULT, weft_mem_reg(d->b.endpoint, memory + 3 * page - 1, 1,
                                             WEFT_OPTS(weft_mem_opts, .access = access[i]), &mem));
        }
        WEFT_FAILS(-EFAULT, weft_mem_reg(d->b.endpoint, memory, 4 * page, NULL, &mem));
        if (strcmp(test_transport(), "verbs")) /* whose device may be what tells */
            CHECK(strstr(weft_last_error(), where), "'%s' does not say '%s'", weft_last_error(), where);
        assert_int_equal(mem, 99);
    }
    WEFT_OK(weft_mem_dereg(reg(d->b.endpoint, memory, 4 * page, WEFT_READ)));
    WEFT_OK(weft_mem_dereg(reg(d->b.endpoint, memory, 2 * page, WEFT_WRITE)));
    WEFT_OK(weft_mem_dereg(reg(d->b.endpoint, memory + 3 * page, page, WEFT_WRITE)));
    CHECK(!mprotect(memory + 2 * page, page, PROT_NONE), "a page that nobody may touch");
    if (read_only_is_told()) {
        weft_mem_t mem = 99;
        WEFT_FAILS(-EFAULT, weft_mem_reg(d->b.endpoint, memory, 4 * page, WEFT_OPTS(weft_mem_opts, .access = WEFT_READ), &mem));
        WEFT_FAILS(-EFAULT, weft_mem_reg(d->b.endpoint, memory, 4 * page, NULL, &mem));
        if (strcmp(test_transport(), "verbs"))
            CHECK(strstr(weft_last_error(), "cannot be read from"), "'%s'", weft_last_error());
        assert_int_equal(mem, 99);
    }
    CHECK(!mprotect(memory, 4 * page, PROT_READ | PROT_WRITE), "all may be written");
    WEFT_OK(weft_mem_dereg(reg(d->b.endpoint, memory, 4 * page, WEFT_READ | WEFT_WRITE)));
    CHECK(!munmap(memory, 4 * page), "unmap");
}

static void access_is_what_was_registered(void **state)
{
    struct duo *d = *state;
    static uint64_t memory[8];
    for (uint32_t access = 1; access < 8; access++) {
        weft_mem_t mem = reg(d->b.endpoint, memory, sizeof memory, access);
        struct weft_remote remote = advertise(mem, memory, sizeof memory);
        struct weft_remote_info info;
        WEFT_OK(weft_remote_parse(&remote, &info));
        assert_int_equal(info.access, access);
        assert_int_equal(put(d, &remote, 0), access & WEFT_WRITE ? 8 : WEFT_EACCESS);
        assert_int_equal(get(d, &remote, 0), access & WEFT_READ ? 8 : WEFT_EACCESS);
        assert_int_equal(weft_add(d->conn, &remote, 0, 1, NULL, T),
                         access & WEFT_ATOMIC ? 0 : WEFT_EACCESS);
        WEFT_OK(weft_mem_dereg(mem));
    }
}

/* Ranges inside a registered one: each ends when its own mem does, and takes nothing with it. */
static void contained_ranges_end_alone(void **state)
{
    struct duo *d = *state;
    static char memory[LEN];
    weft_mem_t whole = reg(d->b.endpoint, memory, LEN, 0), part[50];
    struct weft_remote of_whole = advertise(whole, memory, LEN), of_part[50];
    for (size_t i = 0; i < 50; i++) {
        part[i] = reg(d->b.endpoint, memory + i * 200, 200, 0);
        of_part[i] = advertise(part[i], memory + i * 200, 200);
        assert_true(part[i] != whole);
    }
    for (size_t i = 0; i < 50; i += 2)
        WEFT_OK(weft_mem_dereg(part[i]));
    assert_int_equal(put(d, &of_whole, 100), 8); /* still there */
    WEFT_OK(weft_mem_dereg(whole));
    assert_int_equal(put(d, &of_whole, 0), WEFT_EKEY); /* although parts of it live on */
    for (size_t i = 1; i < 50; i += 2) {
        assert_int_equal(put(d, &of_part[i], 192), 8);
        WEFT_OK(weft_mem_dereg(part[i]));
    }
    assert_int_equal(put(d, &of_part[1], 0), WEFT_EKEY);
    assert_int_equal(put(d, &of_whole, 0), WEFT_EKEY);
}

/* Registered twice is registered until both have ended. */
static void equal_ranges_share(void **state)
{
    struct duo *d = *state;
    static char memory[LEN];
    for (int i = 0; i < 20; i++) {
        weft_mem_t first = reg(d->b.endpoint, memory, LEN, 0);
        weft_mem_t second = reg(d->b.endpoint, memory, LEN, 0);
        assert_true(first != second);
        struct weft_remote remote = advertise(second, memory, LEN);
        WEFT_OK(weft_mem_dereg(first));
        assert_int_equal(put(d, &remote, LEN - 8), 8);
        WEFT_OK(weft_mem_dereg(second));
        assert_int_equal(put(d, &remote, 0), WEFT_EKEY);
    }
}

static void the_cache_does_not_widen_access(void **state)
{
    struct duo *d = *state;
    static char memory[LEN];
    weft_mem_t all = reg(d->b.endpoint, memory, LEN, 0);
    weft_mem_t readable = reg(d->b.endpoint, memory + 100, 100, WEFT_READ);
    struct weft_remote remote = advertise(readable, memory + 100, 100);
    assert_int_equal(put(d, &remote, 0), WEFT_EACCESS);
    assert_int_equal(get(d, &remote, 0), 8);
    WEFT_OK(weft_mem_dereg(all));
    assert_int_equal(get(d, &remote, 0), 8);
    WEFT_OK(weft_mem_dereg(readable));
}

static void many_overlapping_registrations(void **state)
{
    struct duo *d = *state;
    static char memory[LEN];
    weft_mem_t mem[200];
    uint64_t random = 1;
    for (size_t i = 0; i < 200; i++) {
        size_t at = test_random(&random) % (LEN - 8);
        size_t len = 8 + test_random(&random) % (LEN - at - 7);
        mem[i] = reg(d->b.endpoint, memory + at, len, (uint32_t)(test_random(&random) % 8));
        struct weft_remote remote = advertise(mem[i], memory + at, len);
        struct weft_remote_info info;
        WEFT_OK(weft_remote_parse(&remote, &info));
        assert_int_equal(info.len, len);
        assert_int_equal(put(d, &remote, len - 8), info.access & WEFT_WRITE ? 8 : WEFT_EACCESS);
        if (i % 3 == 2) {
            WEFT_OK(weft_mem_dereg(mem[i - 1]));
            mem[i - 1] = 0;
        }
    }
    for (size_t i = 0; i < 200; i++)
        if (mem[i])
            WEFT_OK(weft_mem_dereg(mem[i]));
}

/* --- the end of a registration ------------------------------------------------------------- */

static void dereg_host(struct host *host, void *arg)
{
    WEFT_OK(weft_mem_dereg(*(weft_mem_t *)arg));
    (void)host;
}

static void a_stale_remote_is_refused(void **state)
{
    struct duo *d = *state;
    struct area far = duo_area(d, B, 64, 0, 0);
    assert_int_equal(put(d, &far.remote, 0), 8);
    duo_set_word(d, far, 0, 7);
    duo_call(d, B, dereg_host, &far.mem, sizeof far.mem);
    assert_int_equal(put(d, &far.remote, 0), WEFT_EKEY);
    assert_int_equal(get(d, &far.remote, 0), WEFT_EKEY);
    assert_int_equal(weft_add(d->conn, &far.remote, 0, 1, NULL, T), WEFT_EKEY);
    assert_int_equal(duo_word(d, far, 0), 7);
    WEFT_OK(weft_notify(d->conn, "", 0, T)); /* the conn is as good as before */
    duo_notif(d, B, 0, 0, 0);
}

/* However long: longer payload goes other ways, and is refused on them. */
static void a_stale_remote_takes_nothing_long(void **state)
{
    struct duo *d = *state;
    static const size_t lens[] = {2000, 9000, 20000, 40000, 200000, MIB + 5, 5 * MIB};
    struct area near = duo_area(d, A, 5 * MIB, 0, 0);
    duo_fill(d, near, 1);
    for (size_t i = 0; i < ARRAY_LEN(lens); i++) {
        struct area far = duo_area(d, B, lens[i], 0, 0);
        duo_call(d, B, dereg_host, &far.mem, sizeof far.mem);
        assert_int_equal(weft_write(d->conn, near.addr, lens[i], &far.remote, 0, T), WEFT_EKEY);
        assert_int_equal(weft_read(d->conn, near.addr, lens[i], &far.remote, 0, T), WEFT_EKEY);
        duo_check_zero(d, far, 0, lens[i]);
        duo_check(d, near, 0, lens[i], 1);
    }
}

static void dereg_twice(void **state)
{
    struct duo *d = *state;
    char memory[64];
    weft_mem_t mem = reg(d->a.endpoint, memory, sizeof memory, 0);
    WEFT_OK(weft_mem_dereg(mem));
    WEFT_FAILS(WEFT_EHANDLE, weft_mem_dereg(mem));
    struct weft_remote remote;
    WEFT_FAILS(WEFT_EHANDLE, weft_mem_advertise(mem, memory, 8, &remote));
    struct weft_local local = {memory, 8, mem};
    WEFT_FAILS(WEFT_EHANDLE, weft_post(d->conn, WEFT_OPTS(weft_xfer, .op = WEFT_XFER_SEND,
                                                          .local = &local, .nlocal = 1), NULL));
}

/* Also right after an operation that took from it, or put into it, whether its registration has gone with it or is another mem's, too. */
static void a_stale_mem_is_refused(void **state)
{
    struct duo *d = *state;
    static char memory[64];
    struct area far = duo_area(d, B, sizeof memory, 0, 0);
    for (int i = 0; i < 4; i++) {
        bool shared = i & 1;
        weft_mem_t other = shared ? reg(d->a.endpoint, memory, sizeof memory, 0) : 0;
        weft_mem_t mem = reg(d->a.endpoint, memory, sizeof memory, 0);
        struct weft_local local = {memory, 8, mem};
        struct weft_xfer x = {.struct_size = sizeof x, .op = i & 2 ? WEFT_XFER_READ : WEFT_XFER_WRITE, .local = &local,
                              .nlocal = 1, .remote = &far.remote, .nremote = 1};
        assert_int_equal(weft_transfer(d->conn, &x, T, NULL), 8);
        WEFT_OK(weft_mem_dereg(mem));
        WEFT_FAILS(WEFT_EHANDLE, weft_post(d->conn, &x, NULL));
        if (shared)
            WEFT_OK(weft_mem_dereg(other));
    }
}

static void a_mem_in_use_is_busy(void **state)
{
    struct duo *d = *state;
    char memory[64];
    weft_mem_t mem = reg(d->a.endpoint, memory, sizeof memory, 0);
    struct weft_local local = {memory, sizeof memory, mem};
    weft_op_t op;
    WEFT_OK(weft_post(d->conn, WEFT_OPTS(weft_xfer, .op = WEFT_XFER_RECV, .local = &local,
                                         .nlocal = 1), &op));
    WEFT_FAILS(-EBUSY, weft_mem_dereg(mem));
    WEFT_OK(weft_op_cancel(op));
    assert_int_equal(weft_op_wait(op, T, NULL), WEFT_ECANCELED);
    WEFT_OK(weft_mem_dereg(mem));
}

struct storm {
    weft_conn_t conn;
    struct weft_remote remote;
    _Atomic(bool) stop;
};

static void *write_on(void *arg)
{
    struct storm *s = arg;
    static char from[LEN];
    memset(from, 0xff, sizeof from);
    while (!atomic_load(&s->stop)) {
        int64_t rc = weft_write(s->conn, from, LEN, &s->remote, 0, T);
        CHECK(rc == LEN || rc == WEFT_EKEY, "a write ended with %s", weft_err_name((int)rc));
    }
    return NULL;
}

/* When dereg returns, nobody touches the memory any more, whatever was under way. */
static void dereg_under_traffic(void **state)
{
    struct duo *d = *state;
    struct test_mem memory;
    test_mem_open_on(&memory, LEN, 0, test_memory(B));
    for (int i = 0; i < 20; i++) {
        weft_mem_t mem = reg(d->b.endpoint, memory.at, LEN, 0);
        struct storm s = {.conn = d->conn, .remote = advertise(mem, memory.at, LEN)};
        pthread_t thread;
        pthread_create(&thread, NULL, write_on, &s);
        test_sleep_ms(i % 4);
        WEFT_OK(weft_mem_dereg(mem));
        test_fill(memory.at, LEN, 5, 0);
        test_sleep_ms(1);
        assert_true(test_differs(memory.at, LEN, 5, 0) < 0);
        atomic_store(&s.stop, true);
        pthread_join(thread, NULL);
    }
    test_mem_close(&memory);
}

/* --- remotes ------------------------------------------------------------------------------- */

static void a_remote_says_what_it_is(void **state)
{
    struct duo *d = *state;
    char around[102], *memory = around + 1;
    weft_mem_t mem = reg(d->a.endpoint, memory, 100, WEFT_READ);
    struct weft_remote remote = advertise(mem, memory + 10, 50);
    struct weft_remote_info info;
    WEFT_OK(weft_remote_parse(&remote, &info));
    assert_int_equal(info.addr, (uintptr_t)memory + 10);
    assert_int_equal(info.len, 50);
    assert_int_equal(info.access, WEFT_READ);
    WEFT_OK(weft_mem_advertise(mem, memory, 100, &remote));
    WEFT_FAILS(WEFT_EBOUNDS, weft_mem_advertise(mem, memory, 101, &remote));
    WEFT_FAILS(WEFT_EBOUNDS, weft_mem_advertise(mem, memory - 1, 2, &remote));
    WEFT_FAILS(WEFT_EBOUNDS, weft_mem_advertise(mem, memory + 100, 1, &remote));
    WEFT_FAILS(WEFT_EBOUNDS, weft_mem_advertise(mem, memory + 8, SIZE_MAX, &remote));
    WEFT_OK(weft_mem_dereg(mem));
}

static void pieces_of_a_remote(void **state)
{
    struct duo *d = *state;
    struct area far = duo_area(d, B, 1000, 0, 0);
    struct weft_remote piece, again, kept;
    struct weft_remote_info info;
    WEFT_OK(weft_remote_slice(&far.remote, 200, 300, &piece));
    WEFT_OK(weft_remote_slice(&piece, 100, 50, &again));
    WEFT_OK(weft_remote_parse(&again, &info));
    assert_int_equal(info.addr, (uintptr_t)far.addr + 300);
    assert_int_equal(info.len, 50);
    assert_int_equal(put(d, &again, 42), 8);
    assert_int_equal(put(d, &again, 43), WEFT_EBOUNDS);
    assert_int_equal(duo_word(d, far, 342), 0x5555);
    duo_check_zero(d, far, 0, 342);
    WEFT_OK(weft_remote_slice(&far.remote, 1000, 0, &piece));
    kept = piece;
    const uint64_t bad[][2] = {{0, 1001}, {1000, 1}, {1001, 0}, {UINT64_MAX, 2}, {2, UINT64_MAX},
                               {1ull << 63, 1ull << 63}};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        WEFT_FAILS(WEFT_EBOUNDS, weft_remote_slice(&far.remote, bad[i][0], bad[i][1], &piece));
    assert_memory_equal(&piece, &kept, sizeof piece);
}

static void garbage_is_no_remote(void **state)
{
    struct duo *d = *state;
    struct weft_remote garbage = {{0}}, out;
    struct weft_remote_info info;
    for (uint64_t seed = 0; seed < 100; seed++) {
        WEFT_FAILS(WEFT_EPROTO, weft_remote_parse(&garbage, &info));
        WEFT_FAILS(WEFT_EPROTO, weft_remote_slice(&garbage, 0, 0, &out));
        assert_int_equal(put(d, &garbage, 0), -EINVAL); /* an argument is wrong, not the peer */
        assert_int_equal(get(d, &garbage, 0), -EINVAL);
        test_fill(&garbage, sizeof garbage, seed, 0);
    }
}

/* Every bit of a remote turned: it is refused, or means a place inside the registration. */
static void a_damaged_remote_reaches_nothing_else(void **state)
{
    struct duo *d = *state;
    struct area far = duo_area(d, B, 4096, 0, WEFT_READ | WEFT_WRITE);
    for (size_t bit = 0; bit < 8 * sizeof far.remote; bit++) {
        struct weft_remote damaged = far.remote;
        damaged.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        int64_t rc = put(d, &damaged, 0);
        CHECK(rc == 8 || rc == WEFT_EKEY || rc == WEFT_EBOUNDS || rc == WEFT_EACCESS ||
                  rc == WEFT_EPROTO || rc == -EINVAL || rc == WEFT_EVERSION,
              "a remote with bit %zu turned gave %s", bit, weft_err_name((int)rc));
        duo_check_zero(d, far, 4096, 0); /* the guards */
    }
    assert_int_equal(put(d, &far.remote, 0), 8);
}

static void a_remote_of_another_endpoint_is_refused(void **state)
{
    struct duo *d = *state;
    weft_endpoint_t third = duo_endpoint();
    uint64_t memory[8] = {0};
    weft_mem_t mem = reg(third, memory, sizeof memory, 0);
    struct weft_remote remote = advertise(mem, memory, sizeof memory);
    assert_int_equal(put(d, &remote, 0), WEFT_EKEY);
    assert_int_equal(get(d, &remote, 0), WEFT_EKEY);
    assert_int_equal(memory[0], 0);
    WEFT_OK(weft_endpoint_close(third));
}

static void local_memory_is_checked_too(void **state)
{
    struct duo *d = *state;
    struct area near = duo_area(d, A, 64, 0, 0), far = duo_area(d, B, 64, 0, 0);
    struct weft_local bad[] = {{near.addr + 60, 8, near.mem}, {near.addr - 8, 8, near.mem},
                               {near.addr + 64, 1, near.mem}, {near.addr, 65, near.mem}};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct weft_xfer x = {.struct_size = sizeof x, .op = WEFT_XFER_READ, .local = &bad[i],
                              .nlocal = 1, .remote = &far.remote, .nremote = 1};
        int rc = weft_post(d->conn, &x, NULL);
        CHECK(rc == WEFT_EBOUNDS, "local memory outside of its mem gave %s", weft_err_name(rc));
    }
    weft_endpoint_t third = duo_endpoint();
    char memory[64];
    weft_mem_t foreign = reg(third, memory, sizeof memory, 0);
    struct weft_local local = {memory, 8, foreign};
    assert_true(weft_post(d->conn, WEFT_OPTS(weft_xfer, .op = WEFT_XFER_SEND, .local = &local,
                                             .nlocal = 1), NULL) < 0);
    WEFT_OK(weft_endpoint_close(third));
}

/* --- regions ------------------------------------------------------------------------------- */

static void regions_travel_as_one_blob(void **state)
{
    struct duo *d = *state;
    enum { N = 300 };
    static char memory[N * 40];
    weft_mem_t mem = reg(d->b.endpoint, memory, sizeof memory, 0);
    struct weft_region regions[N];
    struct weft_remote remotes[N + 1];
    for (size_t i = 0; i < N; i++)
        regions[i] = (struct weft_region){mem, memory + i * 40, 8 + i % 32};
    int64_t len = weft_regions_pack(regions, N, NULL, 0);
    assert_true(len > 0);
    unsigned char *blob = malloc((size_t)len + 1);
    memset(blob, 0x5a, (size_t)len + 1);
    assert_int_equal(weft_regions_pack(regions, N, blob, (size_t)len - 1), len);
    assert_int_equal(blob[0], 0x5a);
    assert_int_equal(weft_regions_pack(regions, N, blob, (size_t)len), len);
    assert_int_equal(blob[len], 0x5a);
    memset(remotes, 0x5a, sizeof remotes);
    assert_int_equal(weft_regions_unpack(blob, (size_t)len, NULL, 0), N);
    assert_int_equal(weft_regions_unpack(blob, (size_t)len, remotes, 2), N);
    assert_int_equal(remotes[2].bytes[0], 0x5a);
    assert_int_equal(weft_regions_unpack(blob, (size_t)len, remotes, N + 1), N);
    for (size_t i = 0; i < N; i++) {
        struct weft_remote_info info;
        WEFT_OK(weft_remote_parse(&remotes[i], &info));
        assert_int_equal(info.addr, (uintptr_t)memory + i * 40);
        assert_int_equal(info.len, 8 + i % 32);
        if (i % 50 == 0)
            assert_int_equal(put(d, &remotes[i], 0), 8);
    }
    assert_int_equal(weft_regions_pack(regions, 0, blob, (size_t)len) >= 0, 1);
    regions[3].len = sizeof memory;
    WEFT_FAILS(WEFT_EBOUNDS, weft_regions_pack(regions, N, blob, (size_t)len));
    free(blob);
}

static void garbage_is_no_blob(void **state)
{
    struct duo *d = *state;
    static char memory[64];
    weft_mem_t mem = reg(d->a.endpoint, memory, sizeof memory, 0);
    struct weft_region regions[3] = {{mem, memory, 8}, {mem, memory + 8, 8}, {mem, memory, 64}};
    struct weft_remote remotes[8];
    unsigned char blob[1024];
    int64_t len = WEFT_OK(weft_regions_pack(regions, 3, blob, sizeof blob));
    for (int64_t n = 0; n < len; n++) {
        unsigned char *exact = malloc(n ? (size_t)n : 1);
        memcpy(exact, blob, (size_t)n);
        WEFT_FAILS(WEFT_EPROTO, weft_regions_unpack(exact, (size_t)n, remotes, 8));
        free(exact);
    }
    WEFT_FAILS(-EINVAL, weft_regions_unpack(blob, (size_t)len, NULL, 8));
    for (int64_t i = 0; i < len; i++)
        for (int bit = 0; bit < 8; bit++) {
            blob[i] ^= (unsigned char)(1 << bit);
            int64_t rc = weft_regions_unpack(blob, (size_t)len, remotes, 8);
            CHECK(rc == 3 || rc == WEFT_EPROTO || rc == WEFT_EVERSION,
                  "a damaged blob gave %" PRId64, rc);
            blob[i] ^= (unsigned char)(1 << bit);
        }
    for (uint64_t seed = 0; seed < 100; seed++) {
        test_fill(blob, sizeof blob, seed, 0);
        assert_true(weft_regions_unpack(blob, sizeof blob, remotes, 8) < 0);
    }
    WEFT_OK(weft_mem_dereg(mem));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_ONE(what_cannot_be_registered),
        IN_ONE(memory_has_to_be_mapped),
        IN_ONE(what_is_mapped_read_only_is_not_written),
        IN_ONE(access_is_what_was_registered),
        IN_ONE(contained_ranges_end_alone),
        IN_ONE(equal_ranges_share),
        IN_ONE(the_cache_does_not_widen_access),
        IN_ONE(many_overlapping_registrations),
        IN_BOTH(a_stale_remote_is_refused),
        IN_BOTH(a_stale_remote_takes_nothing_long),
        IN_ONE(dereg_twice),
        IN_ONE(a_stale_mem_is_refused),
        IN_ONE(a_mem_in_use_is_busy),
        IN_ONE(dereg_under_traffic),
        IN_ONE(a_remote_says_what_it_is),
        IN_BOTH(pieces_of_a_remote),
        IN_BOTH(garbage_is_no_remote),
        IN_BOTH(a_damaged_remote_reaches_nothing_else),
        IN_ONE(a_remote_of_another_endpoint_is_refused),
        IN_BOTH(local_memory_is_checked_too),
        IN_ONE(regions_travel_as_one_blob),
        IN_ONE(garbage_is_no_blob),
    };
    return DUO_MAIN("endpoint_mem", tests);
}
