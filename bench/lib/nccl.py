# SPDX-License-Identifier: Apache-2.0
"""NCCL's send and recv between two GPUs by two processes, as weft_perf measures Weft.

    nccl.py SIZE DEPTH SECONDS [--group]

Runs in a Python that has torch with NCCL, whose functions are called directly; prints a line of JSON. DEPTH operations of SIZE
bytes go from a ring of slots of GPU 0 to the same slots of GPU 1: by a call each, or with --group all of the ring by one group of
calls. An operation counts when its recv has ended; cpu_s_per_GB is what both processes used meanwhile, NCCL's threads and those that
wait. At DEPTH 1 p50_us is what one takes, from the call of its send to the end of it at the sender. Then every byte is compared.
"""
import argparse
import ctypes
import json
import multiprocessing
import os
import resource
import signal
import statistics
import sys
import time

try:
    import torch
except ImportError:  # --help works without
    torch = None

UNIQUE_ID = 128
INT8 = 0
LIMIT_S = 60
PROBE = 4
PR_SET_PDEATHSIG = 1


class UniqueId(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * UNIQUE_ID)]


class Nccl:
    """Its few functions; what fails raises."""

    def __init__(self):
        torch.cuda.nccl.version()  # loads what torch is linked with
        self.lib = ctypes.CDLL("libnccl.so.2")
        self.lib.ncclGetErrorString.restype = ctypes.c_char_p

    def __call__(self, name, *args):
        rc = getattr(self.lib, name)(*args)
        if rc:
            raise RuntimeError(f"{name}: {self.lib.ncclGetErrorString(rc).decode()}")


def pattern(words, rank):
    first = torch.arange(1, words + 1, dtype=torch.int64, device=f"cuda:{rank}")
    return first * -0x61C8864680B583EB


class Side:
    def __init__(self, rank, pipe, args):
        self.rank, self.args, self.nccl = rank, args, Nccl()
        torch.cuda.set_device(rank)
        unique = UniqueId()
        if rank == 0:
            self.nccl("ncclGetUniqueId", ctypes.byref(unique))
            pipe.send(bytes(unique))
        else:
            unique = UniqueId.from_buffer_copy(pipe.recv())
        self.comm = ctypes.c_void_p()
        self.nccl("ncclCommInitRank", ctypes.byref(self.comm), 2, unique, rank)
        self.words = args.size * args.depth // 8
        self.memory = pattern(self.words, rank)
        if rank == 1:
            self.memory.bitwise_not_()
        self.stream = torch.cuda.Stream()
        torch.cuda.synchronize()

    def one(self, i):
        at = self.memory.data_ptr() + i % self.args.depth * self.args.size
        name = "ncclRecv" if self.rank else "ncclSend"
        self.nccl(name, ctypes.c_void_p(at), ctypes.c_size_t(self.args.size), INT8, 1 - self.rank, self.comm,
                  ctypes.c_void_p(self.stream.cuda_stream))

    def ring(self):
        """All slots once."""
        if self.args.group:
            self.nccl("ncclGroupStart")
        for i in range(self.args.depth):
            self.one(i)
        if self.args.group:
            self.nccl("ncclGroupEnd")

    def rings(self, n):
        """n times all slots, two of them under way; returns what a ring took, where there is but one slot."""
        before, took = [], []
        for _ in range(n):
            start = time.perf_counter()
            self.ring()
            event = torch.cuda.Event()
            event.record(self.stream)
            before.append(event)
            while len(before) > (self.args.depth > 1):
                event = before.pop(0)
                while not event.query():
                    if time.perf_counter() - start > LIMIT_S:
                        raise RuntimeError("an operation does not end")
                took.append(time.perf_counter() - start)
        self.stream.synchronize()
        return took

    def is_right(self):
        return bool(torch.equal(self.memory, pattern(self.words, self.rank)))


def cpu_s():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def receive(pipe, args):
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # not left behind with a GPU
    side = Side(1, pipe, args)
    side.rings(2)
    while rings := pipe.recv():
        before = cpu_s()
        side.rings(rings)
        used = cpu_s() - before
        if rings == PROBE:  # what came so far does not count
            side.memory.zero_()
            torch.cuda.synchronize()
        pipe.send(used)
    pipe.send(side.is_right())
    pipe.recv()


def timed(side, pipe, n):
    pipe.send(n)
    start, before = time.perf_counter(), cpu_s()
    took = side.rings(n)
    if not pipe.poll(LIMIT_S):
        raise RuntimeError("the receiver does not end")
    used = pipe.recv() + cpu_s() - before
    return time.perf_counter() - start, used, took


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", type=int)
    parser.add_argument("depth", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--group", action="store_true")
    args = parser.parse_args()
    if torch is None:
        sys.exit("nccl.py: there is no torch in this Python")
    args.size = (args.size + 7) // 8 * 8
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    other = context.Process(target=receive, args=(theirs, args), daemon=True)
    other.start()
    theirs.close()
    side = Side(0, ours, args)
    side.rings(2)
    probe = timed(side, ours, PROBE)[0] / PROBE
    rings = max(PROBE + 1, int(args.seconds / probe))
    seconds, used, took = timed(side, ours, rings)
    moved = rings * args.depth * args.size / 1e9
    ours.send(0)
    right = ours.recv()
    ours.send("end")
    print(json.dumps({"GBps": moved / seconds, "cpu_s_per_GB": used / moved, "p50_us": statistics.median(took) * 1e6,
                      "version": ".".join(map(str, torch.cuda.nccl.version())), "verified": right}), flush=True)
    os._exit(0 if right else 1)  # its threads do not end by themselves


if __name__ == "__main__":
    main()
