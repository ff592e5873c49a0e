# SPDX-License-Identifier: Apache-2.0
"""NIXL (UCX over tcp) or Mooncake (tcp) between two processes, as weft_perf measures Weft.

    peer.py nixl|mooncake write|read SIZE SECONDS [DEPTH]

Runs in a Python that has these packages (bench/p2p makes one); prints a line of JSON. Operations of
SIZE bytes go from a ring of slots to the same slots of the other process, up to DEPTH operations (64) or
256 MiB in flight. A write counts when its bytes are at the target: the last words of the last
operation of each slot are new, and the target says when it sees all of them in its memory. Then
every byte is compared, outside the time.
"""
import json
import mmap
import os
import resource
import socket
import sys
import time

import numpy

WINDOW = 256 << 20
DEPTH = 64
WORD = 8
LOOK_S = 50e-6  # how often the target looks whether the last words have come
LIMIT_S = 60
FINAL = 0x5157464C414E4946  # no word of the pattern is this


class Memory:
    """A window of slots; its address stays."""

    def __init__(self, size, slots):
        self.size, self.slots = size, slots
        self.map = mmap.mmap(-1, size * slots, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.map.madvise(mmap.MADV_HUGEPAGE)  # as weft_perf has
        self.words = numpy.frombuffer(self.map, dtype=numpy.uint64)
        self.address = self.words.ctypes.data
        self.ends = self.words[size // WORD - 1::size // WORD]

    def slot(self, i):
        return self.address + i % self.slots * self.size

    def pattern(self):
        n = numpy.arange(1, len(self.words) + 1, dtype=numpy.uint64)
        return n * numpy.uint64(0x9E3779B97F4A7C15)

    def fill(self, right):
        self.words[:] = self.pattern() if right else ~self.pattern()

    def finish(self):
        self.ends[:] = FINAL

    def finished(self):
        return bool((self.ends == FINAL).all())

    def is_right(self):
        want = self.pattern()
        want[self.size // WORD - 1::self.size // WORD] = FINAL
        return bool((self.words == want).all())


class Pipe:
    """Lines of JSON to and from the other process."""

    def __init__(self, sock):
        self.file = sock.makefile("rw")

    def say(self, value):
        self.file.write(json.dumps(value) + "\n")
        self.file.flush()

    def hear(self):
        return json.loads(self.file.readline())


class Nixl:
    # where there is a GPU of NVIDIA, NIXL refuses a UCX that cannot reach its memory
    env = {"UCX_TLS": "tcp,cuda_copy" if os.path.exists("/dev/nvidiactl") else "tcp",
           "UCX_NET_DEVICES": "lo"}

    def __init__(self, name, memory):
        from nixl._api import nixl_agent, nixl_agent_config
        self.memory, self.name = memory, name
        self.agent = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
        length = memory.size * memory.slots
        self.registered = self.agent.register_memory([(memory.address, length, 0, "")], "DRAM")

    def describe(self):
        return [self.name, self.agent.get_agent_metadata().hex(), self.memory.address]

    def aim(self, other, op):
        remote = self.agent.add_remote_agent(bytes.fromhex(other[1]))
        name = remote.decode() if isinstance(remote, bytes) else remote
        size = self.memory.size
        self.handles = []
        for i in range(self.memory.slots):
            mine = self.agent.get_xfer_descs([(self.memory.slot(i), size, 0)], "DRAM")
            theirs = self.agent.get_xfer_descs([(other[2] + i * size, size, 0)], "DRAM")
            self.handles.append(self.agent.initialize_xfer(op.upper(), mine, theirs, name))

    def post(self, slot):
        if self.agent.transfer(self.handles[slot]) == "ERR":
            sys.exit("nixl: a transfer failed")

    def is_done(self, slot):
        state = self.agent.check_xfer_state(self.handles[slot])
        if state == "ERR":
            sys.exit("nixl: a transfer failed")
        return state == "DONE"

    def run(self, n):
        """n operations; each slot is used again when its last one is done."""
        slots = self.memory.slots
        for i in range(n):
            while i >= slots and not self.is_done(i % slots):
                pass
            self.post(i % slots)
        for i in range(min(n, slots)):
            while not self.is_done(i):
                pass


class Mooncake:
    env = {}

    def __init__(self, _, memory):
        from mooncake.engine import TransferEngine
        self.memory = memory
        self.engine = TransferEngine()
        self.check(self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""))
        self.check(self.engine.register_memory(memory.address, memory.size * memory.slots))

    @staticmethod
    def check(rc):
        if rc < 0:
            sys.exit(f"mooncake: failed with {rc}")

    def describe(self):
        return [f"127.0.0.1:{self.engine.get_rpc_port()}", "", self.memory.address]

    def aim(self, other, op):
        self.target, self.base = other[0], other[2]
        self.transfer = (self.engine.batch_transfer_sync_write if op == "write"
                         else self.engine.batch_transfer_sync_read)

    def run(self, n):
        """n operations, in lists of one for each slot."""
        slots, size = self.memory.slots, self.memory.size
        for first in range(0, n, slots):
            some = range(min(slots, n - first))
            self.check(self.transfer(self.target, [self.memory.slot(i) for i in some],
                                     [self.base + i * size for i in some], [size] * len(some)))


PEERS = {"nixl": Nixl, "mooncake": Mooncake}


def cpu_s():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def target(kind, op, size, slots, pipe):
    memory = Memory(size, slots)
    memory.fill(op == "read")
    if op == "read":
        memory.finish()
    peer = PEERS[kind]("target", memory)
    pipe.say(peer.describe())
    pipe.hear()  # warm
    cpu = cpu_s()
    pipe.say("ready")
    pipe.hear()  # the last operations are posted and called done
    deadline = time.monotonic() + LIMIT_S
    while not memory.finished() and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    pipe.say("there")
    pipe.say([cpu_s() - cpu, memory.is_right()])
    pipe.hear()


def initiator(kind, op, size, slots, seconds, pipe):
    memory = Memory(size, slots)
    memory.fill(op == "write")
    peer = PEERS[kind]("initiator", memory)
    peer.aim(pipe.hear(), op)
    start = time.monotonic()
    peer.run(slots)
    peer.run(slots)
    took = (time.monotonic() - start) / 2
    rounds = max(2, int(seconds / took))
    if op == "read":
        memory.fill(False)
    pipe.say("warm")
    pipe.hear()
    start, cpu = time.monotonic(), cpu_s()
    peer.run((rounds - 1) * slots)
    if op == "write":
        memory.finish()
    peer.run(slots)
    pipe.say("done")
    pipe.hear()
    took, cpu = time.monotonic() - start, cpu_s() - cpu
    their_cpu, right = pipe.hear()
    pipe.say("end")
    if op == "read":
        right = memory.is_right()
    moved = rounds * slots * size
    print(json.dumps({"GBps": moved / took / 1e9, "cpu_s_per_GB": (cpu + their_cpu) / (moved / 1e9),
                      "verified": right}))
    return 0 if right else 1


def main():
    kind, op, size, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    os.environ.update(PEERS[kind].env)
    depth = int(sys.argv[5]) if len(sys.argv) > 5 else DEPTH
    slots = max(1, min(depth, WINDOW // size))
    ours, theirs = socket.socketpair()
    child = os.fork()
    status = 0
    if child == 0:
        target(kind, op, size, slots, Pipe(theirs))
    else:
        status = initiator(kind, op, size, slots, seconds, Pipe(ours))
        os.waitpid(child, 0)
    sys.stdout.flush()
    os._exit(status)  # threads of the engines do not end by themselves


if __name__ == "__main__":
    main()
