# SPDX-License-Identifier: Apache-2.0
"""What is measured on one host, of whom, and what is asked of Weft."""
import os

from . import programs as p
from .table import Goal, Row

MIB = 1 << 20
BULK = (1, 64)  # MiB
SMALL = 64
BEHIND = "1G"
CONNS, CONNS_DEPTH = 256, 256
IDLE_FEW = 1000  # for memory
IDLE_MANY = 9500
# tcp takes WEFT_TCP_SOCKETS descriptors for each; a machine's hard limit may be 20 000.
IDLE_ENV = {"tcp": {"WEFT_TCP_SOCKETS": "2"}, "local": {}}
IDLE_S = 10
# "No measurable CPU": a thousandth of one processor, both processes together.
IDLE_CPU_MS = IDLE_S * 1000 * 0.001

WEFT = "Weft"
# More than two threads a side only where each has a processor.
TEAMS = [n for n in (2, 4, 8) if n == 2 or 2 * n <= len(os.sched_getaffinity(0))]
DEPTH = 64  # under way, of Weft's and of plain sockets', unless a shape says otherwise
FEW = 16  # of 1 MiB: these stay in caches, as the one block does that iperf3 sends over and over


def team(n):
    return f"{n} sockets, a thread each"


# Shapes of plain sockets: how many, threads a side. Send buffers are those that Weft fits on such a path where it copies.
ONE, TWO = "1 socket, 1 thread", "2 sockets, 1 thread"
TWO_FEW, TWO_SMALL = f"{TWO}, {FEW} under way", f"{TWO}, small pages"
BARE = {
    TWO: ("-k", "2", "-b", "256K"),
    TWO_SMALL: ("-k", "2", "-b", "256K", "-P"),
    TWO_FEW: ("-k", "2", "-b", "256K", "-d", str(FEW)),
    ONE: ("-k", "1", "-b", "256K"),
    **{team(n): ("-k", str(n), "-t", "-b", "256K") for n in TEAMS},
}
# Shapes of Weft: what it is told for it, beside what it does by default, and the plain sockets of that shape. Its first socket
# carries what is short; a thread has sockets of its own.
DEFAULT, ONE_LONG = TWO, {"WEFT_TCP_SOCKETS": "2"}
SHAPES = {
    TWO: ((), {}, TWO),
    TWO_SMALL: (("--small-pages",), {}, TWO_SMALL),
    TWO_FEW: (("--depth", str(FEW)), {}, TWO_FEW),
    ONE: ((), ONE_LONG, ONE),
    **{team(n): (("--progress-threads", str(n)), ONE_LONG, team(n)) for n in TEAMS},
    **{f"{n} threads, an endpoint each": (("--threads", str(n), "--depth", str(DEPTH // n)), ONE_LONG, team(n))
       for n in TEAMS},
}
IPERF3, UCX, UCX_TUNED, UCX_TAG = "iperf3 -l 1M", "UCX put", "UCX put, segments of 64K", "UCX tag"
NIXL, MOONCAKE, MEMCPY = "NIXL", "Mooncake", "memcpy"
TUNED = {"UCX_TCP_TX_SEG_SIZE": "64k"}


def write_row(m):
    return f"tcp write {m} MiB"


def read_row(m):
    return f"tcp read {m} MiB"


def weft(shape):
    return WEFT if shape == DEFAULT else f"{WEFT}, {shape}"


def bare(shape):
    return f"bare sockets, {shape}"


def shapes(m):
    """Of m MiB: fewer under way are another shape only of what is small enough to have many."""
    return {shape: how for shape, how in SHAPES.items() if m == 1 or shape != TWO_FEW}


def peer(name, shape):
    """The row that a shape of Weft stands beside: of as many under way."""
    return f"{name}, {FEW} under way" if shape == TWO_FEW else name


def python_peers(t, m):
    """NIXL and Mooncake, with as many under way as each shape of Weft has."""
    return {peer(name, shape): lambda n=name, d=depth: t.python.bandwidth(n.lower(), "write", m * MIB, *d)
            for name in (NIXL, MOONCAKE)
            for shape, depth in ((DEFAULT, ()), (TWO_FEW, (str(FEW),))) if shape in shapes(m)}


def shapes_of(t, m):
    """Each shape of Weft, and next to it plain sockets of that shape."""
    rows = {}
    for shape, (options, env, like) in shapes(m).items():
        rows[weft(shape)] = lambda o=options, e=env: t.tcp.bandwidth("write", m * MIB, *o, env=e)
        rows[bare(like)] = lambda o=BARE[like]: t.bare.bandwidth(m * MIB, *o)
    return rows


def bulk_rows(t):
    for m in BULK:
        size = m * MIB
        yield Row(write_row(m), "GB/s", {
            **shapes_of(t, m),
            IPERF3: t.iperf3.bandwidth,
            UCX: lambda s=size: t.ucx.bandwidth("ucp_put_bw", s),
            UCX_TUNED: lambda s=size: t.ucx.bandwidth("ucp_put_bw", s, TUNED),
            UCX_TAG: lambda s=size: t.ucx.bandwidth("tag_bw", s),
            **python_peers(t, m),
        })
        yield Row(read_row(m), "GB/s", {
            WEFT: lambda s=size: t.tcp.bandwidth("read", s),
            "UCX get": lambda s=size: t.ucx.bandwidth("ucp_get", s),
            NIXL: lambda s=size: t.python.bandwidth("nixl", "read", s),
            MOONCAKE: lambda s=size: t.python.bandwidth("mooncake", "read", s),
        })


LATENCY = "tcp 64 B, half round trip"
IOVS = "128 pieces of 8 B in one call"
BEHIND_ROW = "64 B write behind one of 1 GiB"
RATE = "64 B writes, 64 under way"
# samples of the same program vary by a fifth from one to the next, and what is compared differs by less
LATENCY_TURNS, SMALL_TURNS = 10, 3
# So what is compared by a tenth takes turns by blocks of some milliseconds, in one pair of processes.
BLOCKS = "in turns by blocks"
LATENCY_BLOCKS = f"{LATENCY}, {BLOCKS}"
INJECTED = f"{WEFT}, injected"  # no handle, as the peers' programs send what is short
PLAIN, PLAIN_RENO = "bare sockets that spin", "bare sockets that spin, with reno as Weft's"
PINGPONG = ("pingpong", "tcp", "1", "300")


def small_rows(t):
    yield Row(LATENCY, "us", {
        WEFT: lambda: t.tcp.latency("send", SMALL, "--depth", "1"),
        INJECTED: lambda: t.tcp.latency("send", SMALL, "--depth", "1", "--inject"),
        PLAIN: lambda: t.bare.latency(SMALL),
        UCX_TAG: lambda: t.ucx.latency(SMALL)}, turns=LATENCY_TURNS)
    yield Row(LATENCY_BLOCKS, "us", dict.fromkeys((PLAIN, PLAIN_RENO, WEFT)), turns=SMALL_TURNS,
              together=lambda: t.paired.latencies(*PINGPONG))
    yield Row(IOVS, "us", {
        "Weft tcp": lambda: t.tcp.latency("write", 8, "--iovs", "128", "--depth", "1"),
        "Weft local": lambda: t.local.latency("write", 8, "--iovs", "128", "--depth", "1")},
              turns=SMALL_TURNS)
    behind = ("--depth", "1", "--behind", BEHIND)
    yield Row(BEHIND_ROW, "us", {
        "Weft tcp, p50": lambda: t.tcp.latency("write", SMALL, *behind),
        "Weft tcp, p99": lambda: t.tcp.latency("write", SMALL, *behind, key="p99_us"),
        "Weft local, p50": lambda: t.local.latency("write", SMALL, *behind)})
    yield Row(RATE, "M/s", {
        "Weft tcp": lambda: t.tcp.rate("write", SMALL),
        "bare sockets": lambda: t.bare.rate(SMALL),
        "Weft local": lambda: t.local.rate("write", SMALL)}, turns=SMALL_TURNS)


LOCAL_BULK = "local write 64 MiB"
LOCAL_LATENCY = "local 64 B, one way"


def local_rows(t):
    yield Row(LOCAL_BULK, "GB/s", {
        WEFT: lambda: t.local.bandwidth("write", 64 * MIB),
        MEMCPY: lambda: t.copy.bandwidth(64 * MIB)})
    yield Row("local read 64 MiB", "GB/s", {WEFT: lambda: t.local.bandwidth("read", 64 * MIB)})
    yield Row(LOCAL_LATENCY, "us", {
        WEFT: lambda: t.local.latency("send", SMALL, "--depth", "1"),
        INJECTED: lambda: t.local.latency("send", SMALL, "--depth", "1", "--inject")})


CONNS_TURNS = 5  # samples of the same vary by a third
CONNS_WRITES = 100  # by each of CONNS: the first ones are those in which its windows grow
CONNS_ROW = f"tcp write 1 MiB, {CONNS_DEPTH} under way"
CONNS_BLOCKS = f"{CONNS_ROW}, {BLOCKS}"
SPREAD = ("conns", "tcp", str(CONNS_DEPTH), "20")  # the first blocks are those in which windows grow
BY_CONNS = ("Weft, 1 conn", f"Weft, {CONNS} conns")
TURNS = (1, 8, 64)
TURNS_ALONE = f"tcp {SMALL} B writes by conns in turn, one at a time"
TURNS_RATE = f"tcp {SMALL} B writes by conns in turn, {DEPTH} under way"


def by_turns(n):
    return f"Weft, {n} conn{'s' if n > 1 else ''}"


MEMORY = "memory of an idle conn"
IDLE = f"CPU of idle conns in {IDLE_S} s"
MANY = f"{IDLE_MANY} conns"


def conns_rows(t):
    shape = ("--depth", str(CONNS_DEPTH), "--iters", str(CONNS * CONNS_WRITES))
    yield Row(CONNS_ROW, "GB/s", {
        BY_CONNS[0]: lambda: t.tcp.bandwidth("write", MIB, *shape),
        BY_CONNS[1]: lambda: t.tcp.bandwidth("write", MIB, *shape, "--conns", str(CONNS))},
              turns=CONNS_TURNS)
    yield Row(CONNS_BLOCKS, "GB/s", dict.fromkeys(BY_CONNS), turns=2,
              together=lambda: t.paired.bandwidths(MIB, *SPREAD))
    yield Row(TURNS_ALONE, "us", {by_turns(n): lambda n=n: t.tcp.latency(
        "write", SMALL, "--depth", "1", "--conns", str(n)) for n in TURNS})
    yield Row(TURNS_RATE, "M/s", {by_turns(n): lambda n=n: t.tcp.rate(
        "write", SMALL, "--conns", str(n)) for n in TURNS})


def idle_rows(t):
    yield Row(MEMORY, "KiB", {
        f"Weft {w.transport}": lambda w=w: w.idle_memory(IDLE_FEW) for w in (t.tcp, t.local)},
        once=True)
    yield Row(IDLE, "ms more than without", {
        f"Weft {w.transport}, {MANY}": lambda w=w: w.idle_cpu(IDLE_MANY, IDLE_S, IDLE_ENV[w.transport])
        for w in (t.tcp, t.local)}, once=True)


COLD_DEPTH = 64  # as many of them are 256 MiB on each side: far more than caches hold
READ_COLD = "weft_perf read, 256 MiB under way"
THREADS = p.weights_threads()
READ_THREADS = f"weft_perf read, {THREADS} threads"
READ_THREADS_COLD = f"{READ_THREADS}, 256 MiB under way"
READ, FILES, FLOOR = "weft_perf read", "the files written by themselves", "floor: read and write"
PULL, PULL_MEMORY = "weights pull", "weights pull --memory"
PULL_BARE = f"{PULL_MEMORY} --no-check"


def pull_row(transport):
    return f"weights, 2 GiB, {transport}"


def weights_rows(t):
    for w in (t.tcp, t.local):
        yield Row(pull_row(w.transport), "GB/s", {
            READ: lambda w=w: t.weights.read(w, p.WEIGHTS_PIECE),
            READ_COLD: lambda w=w: w.bandwidth("read", p.WEIGHTS_PIECE, "--depth", str(COLD_DEPTH)),
            READ_THREADS: lambda w=w: t.weights.read(w, p.WEIGHTS_PIECE, "--progress-threads", str(THREADS)),
            READ_THREADS_COLD: lambda w=w: w.bandwidth("read", p.WEIGHTS_PIECE, "--depth", str(COLD_DEPTH),
                                                       "--progress-threads", str(THREADS)),
            PULL_BARE: lambda w=w: t.weights.pull(w.transport, "--memory", "--no-check"),
            PULL_MEMORY: lambda w=w: t.weights.pull(w.transport, "--memory"),
            FILES: t.weights.write,
            FLOOR: lambda w=w: t.weights.floor(w.transport),
            f"{PULL} --no-check": lambda w=w: t.weights.pull(w.transport, "--no-check"),
            PULL: lambda w=w: t.weights.pull(w.transport)})


GROUPS = {"bulk": bulk_rows, "small": small_rows, "local": local_rows, "conns": conns_rows,
          "idle": idle_rows, "weights": weights_rows}


def goals():
    for m in BULK:
        row = write_row(m)
        for shape, (_, _, like) in shapes(m).items():
            yield Goal(f"{row}, {shape}: >= 0.95 x the faster of bare sockets and iperf3",
                       (row, weft(shape)), ">=", 0.95, [(row, bare(like)), (row, IPERF3)])
        for name in (UCX, NIXL, MOONCAKE):
            for shape in shapes(m):
                than = UCX if name == UCX else peer(name, shape)
                yield Goal(f"{row}, {shape}: >= 4 x {than}", (row, weft(shape)), ">=", 4,
                           [(row, than)])
        yield Goal(f"{read_row(m)} >= 0.9 x write", (read_row(m), WEFT), ">=", 0.9, [(row, WEFT)])
    yield Goal(f"{LATENCY} <= UCX tag", (LATENCY, WEFT), "<=", 1, [(LATENCY, UCX_TAG)])
    for row, plain in ((LATENCY, PLAIN), (LATENCY_BLOCKS, PLAIN), (LATENCY_BLOCKS, PLAIN_RENO)):
        yield Goal(f"{row} <= 1.1 x {plain}", (row, WEFT), "<=", 1.1, [(row, plain)])
    for plain in (UCX_TAG, PLAIN):
        most = 1 if plain == UCX_TAG else 1.1
        yield Goal(f"{LATENCY}, injected <= {most} x {plain}", (LATENCY, INJECTED), "<=", most, [(LATENCY, plain)])
    yield Goal(f"{IOVS}, tcp <= 30 us", (IOVS, "Weft tcp"), "<=", 30)
    yield Goal(f"{BEHIND_ROW}, tcp p50 <= 200 us", (BEHIND_ROW, "Weft tcp, p50"), "<=", 200)
    yield Goal(f"{BEHIND_ROW}, tcp p99 <= 200 us", (BEHIND_ROW, "Weft tcp, p99"), "<=", 200)
    yield Goal(f"{RATE}, tcp >= 2 M/s", (RATE, "Weft tcp"), ">=", 2)
    yield Goal(f"{RATE}, local >= 5 M/s", (RATE, "Weft local"), ">=", 5)
    for row in (CONNS_ROW, CONNS_BLOCKS):
        yield Goal(f"{row}: {CONNS} conns >= 0.9 x one", (row, BY_CONNS[1]), ">=", 0.9, [(row, BY_CONNS[0])])
    for n in TURNS[1:]:
        yield Goal(f"{TURNS_ALONE}: {n} <= 2 x one", (TURNS_ALONE, by_turns(n)), "<=", 2,
                   [(TURNS_ALONE, by_turns(1))], min)
    for transport in ("tcp", "local"):
        yield Goal(f"{MEMORY}, {transport} <= 64 KiB", (MEMORY, f"Weft {transport}"), "<=", 64)
        yield Goal(f"{MANY} idle, {transport}: <= {IDLE_CPU_MS:.0f} ms of {IDLE_S} s",
                   (IDLE, f"Weft {transport}, {MANY}"), "<=", IDLE_CPU_MS)
    yield Goal(f"{LOCAL_BULK} >= 0.9 x memcpy", (LOCAL_BULK, WEFT), ">=", 0.9,
               [(LOCAL_BULK, MEMCPY)])
    yield Goal(f"{LOCAL_LATENCY} <= 1.5 us", (LOCAL_LATENCY, WEFT), "<=", 1.5)
    for transport in ("tcp", "local"):
        row = pull_row(transport)
        for what, than in ((PULL_BARE, READ), (PULL_BARE, READ_COLD), (PULL_MEMORY, READ),
                           (PULL, READ), (PULL, FLOOR), (PULL_BARE, READ_THREADS),
                           (PULL_BARE, READ_THREADS_COLD), (PULL, READ_THREADS_COLD)):
            yield Goal(f"{what} >= 0.9 x {than}, {transport}", (row, what), ">=", 0.9,
                       [(row, than)])
