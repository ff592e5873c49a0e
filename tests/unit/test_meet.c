/* SPDX-License-Identifier: Apache-2.0 */
/* How the two sides of a run on two hosts find each other: past callers that hang up at any point. */
#include "helpers.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "meet.h"

#define CALLER 3u
#define T TEST_DEADLINE_MS

/* A wire between the sides, which is cut some times: after so many bytes of side B (0: it is not cut), or at the first of
 * side A's, which does not pass. */
#define AT_THE_ANSWER (-1)

struct wire {
    int listener, cuts, after;
    uint16_t to; /* port of side A */
};

static int at_port(uint16_t port, bool listens)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(listens ? bind(fd, (struct sockaddr *)&at, sizeof at)
                             : connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    if (listens)
        assert_int_equal(listen(fd, 16), 0);
    return fd;
}

static uint16_t port_of(int fd)
{
    struct sockaddr_in at;
    socklen_t len = sizeof at;
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    return ntohs(at.sin_port);
}

static void carry(int b, int a, int after)
{
    struct pollfd fds[] = {{.fd = b, .events = POLLIN}, {.fd = a, .events = POLLIN}};
    int passed = 0;
    while (poll(fds, 2, T) > 0)
        for (int i = 0; i < 2; i++) {
            char bytes[256];
            size_t room = after > 0 ? (size_t)(after - passed) : sizeof bytes;
            if (!fds[i].revents)
                continue;
            if (i == 1 && after == AT_THE_ANSWER)
                return;
            ssize_t n = recv(fds[i].fd, bytes, room, 0);
            if (n <= 0 || send(fds[!i].fd, bytes, (size_t)n, MSG_NOSIGNAL) != n)
                return;
            if (i == 0 && (passed += (int)n) == after)
                return;
        }
}

static void *pass(void *arg)
{
    struct wire *wire = arg;
    for (int cuts = wire->cuts, fd; (fd = accept(wire->listener, NULL, NULL)) >= 0; cuts--) {
        int a = at_port(wire->to, false);
        carry(fd, a, cuts > 0 ? wire->after : 0);
        close(a);
        close(fd);
    }
    return NULL;
}

/* Side B: meets, and answers one byte with the next one. */
static void be_side_b(void)
{
    char byte;
    int fd = meet_dial(CALLER, T);
    bool well = recv(fd, &byte, 1, MSG_WAITALL) == 1;
    byte++;
    _exit(well && send(fd, &byte, 1, MSG_NOSIGNAL) == 1 ? 0 : 1);
}

/* Reads what side A published: its token, and the port of its address. */
static uint16_t read_line(const char *dir, char token[static 256])
{
    char path[300], line[1024], *rest;
    snprintf(path, sizeof path, "%s/meet", dir);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    fclose(f);
    unlink(path);
    const char *word = strtok_r(strchr(line, '=') + 1, " \n", &rest);
    snprintf(token, 256, "%s", word);
    return (uint16_t)atoi(strrchr(strtok_r(NULL, " \n", &rest), ':') + 1);
}

static void meets_past_cuts(int after)
{
    char dir[] = "/tmp/weft-meet.XXXXXX", token[256], line[300], byte = 'a';
    assert_non_null(mkdtemp(dir));
    setenv("WEFT_TEST_DIR", dir, 1);
    setenv("WEFT_TEST_ADDRESS", "127.0.0.1", 1);
    meet_listen();
    struct wire wire = {.listener = at_port(0, true), .cuts = 2, .after = after,
                        .to = read_line(dir, token)};
    rmdir(dir);
    snprintf(line, sizeof line, "%s 127.0.0.1:%d", token, port_of(wire.listener));
    setenv("WEFT_TEST_MEET", line, 1);
    fflush(NULL);
    pid_t b = fork();
    assert_true(b >= 0);
    if (b == 0)
        be_side_b();
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, pass, &wire), 0);
    int fd = meet_accept(CALLER, T), status;
    assert_int_equal(send(fd, &byte, 1, MSG_NOSIGNAL), 1);
    assert_int_equal(recv(fd, &byte, 1, MSG_WAITALL), 1);
    assert_int_equal(byte, 'b');
    assert_int_equal(waitpid(b, &status, 0), b);
    assert_int_equal(status, 0);
    close(fd);
    shutdown(wire.listener, SHUT_RDWR);
    pthread_join(thread, NULL);
    close(wire.listener);
}

/* Side A has answered whom it knows, who never hears it. */
static void a_caller_that_hangs_up_on_the_answer(void **state)
{
    (void)state;
    meets_past_cuts(AT_THE_ANSWER);
}

static void a_caller_that_hangs_up_amid_its_greeting(void **state)
{
    (void)state;
    meets_past_cuts(20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_caller_that_hangs_up_on_the_answer),
        cmocka_unit_test(a_caller_that_hangs_up_amid_its_greeting),
    };
    return cmocka_run_group_tests_name("meet", tests, NULL, NULL);
}
