# SPDX-License-Identifier: Apache-2.0
"""Weft and iperf3 between two network namespaces."""
import json
import os
import subprocess

from . import proc
from .programs import (IPERF3_BLOCK, WEIGHTS_DEPTH, WEIGHTS_PIECE, Sample, Weights,
                       received_by_iperf3)
from .table import Goal, Row

TARGET = "10.77.0.2"
SIZE = 1 << 20
PORT = 11177


def inside(host, command):
    return ["ip", "netns", "exec", host] + command


class Hosts:
    """The namespaces. By default those of tests/vm/run, which joins them; make() makes others, of this process."""

    def __init__(self):
        self.near, self.far = "h0", "h1"

    def make(self, shape):
        """With a wire, each end of which sends as tc's words say."""
        self.near, self.far = (f"weft-{os.getpid()}-{host}" for host in ("h0", "h1"))
        for host in (self.near, self.far):
            subprocess.run(["ip", "netns", "add", host], check=True)
        subprocess.run(["ip", "link", "add", "w0", "netns", self.near, "type", "veth", "peer", "name", "w1",
                        "netns", self.far], check=True)
        for i, host in enumerate((self.near, self.far)):
            for words in (["link", "set", "lo", "up"],
                          ["addr", "add", f"10.77.0.{i + 1}/24", "dev", f"w{i}"],
                          ["link", "set", f"w{i}", "up"]):
                subprocess.run(["ip", "-n", host] + words, check=True)
            subprocess.run(inside(host, ["tc", "qdisc", "add", "dev", f"w{i}", "root"] + shape),
                           check=True)

    def remove(self):
        for host in (self.near, self.far):
            subprocess.run(["ip", "netns", "del", host], check=False, stderr=subprocess.DEVNULL)


def listening(host):
    """True once something listens at the port in a namespace."""
    def ready(port):
        done = subprocess.run(inside(host, ["cat", "/proc/net/tcp", "/proc/net/tcp6"]),
                              capture_output=True, text=True, check=False)
        return f":{port:04X} 00000000" in done.stdout
    return ready


class Pair:
    """weft_perf and iperf3 on both hosts. options: of weft_perf."""

    def __init__(self, hosts, notes, program, seconds, *options):
        self.hosts, self.notes, self.program, self.seconds = hosts, notes, program, seconds
        self.options = options
        self.expected = 0  # GB/s, of the last iperf3

    def iperf3(self, sockets):
        near, far = self.hosts.near, self.hosts.far
        listener = inside(far, ["iperf3", "-s", "-1", "-p", str(PORT)])
        client = inside(near, ["iperf3", "-c", TARGET, "-p", str(PORT), "-l", str(IPERF3_BLOCK), "-t",
                               str(self.seconds), "-P", str(sockets), "-J"])
        self.notes.add(listener)
        self.notes.add(client)
        with proc.server(listener, PORT, ready=listening(far)) as target:
            initiator = proc.Child(client)
            received = received_by_iperf3(initiator.end())
        self.expected = received["bits_per_second"] / 8e9
        cpu = initiator.cpu_s + target.cpu_s
        return Sample(self.expected, cpu / (received["bytes"] / 1e9))

    def weft(self, test, size=SIZE, *more):
        """As many operations as iperf3 would move in its time."""
        iters = max(64, int((self.expected or 1) * 1e9 * self.seconds / size))
        options = [test, "--transport", "tcp", *self.options]
        near, far = self.hosts.near, self.hosts.far
        listener = inside(far, [self.program, *options, "--listen", f"{TARGET}:{PORT}"])
        client = inside(near, [self.program, *options, "--connect", f"{TARGET}:{PORT}", "--sizes",
                               str(size), "--iters", str(iters), *more, "--json", "-"])
        self.notes.add(listener)
        self.notes.add(client)
        with proc.server(listener, PORT, ready=listening(far)):
            result = json.loads(proc.output(client))["results"][0]
        if result["verified"] is not True:
            raise proc.Failed("bytes arrived wrong")
        return Sample(result["GBps"], result["cpu_s_per_GB"])


def rows(pair, name, sockets):
    yield Row(name, "GB/s", {
        "iperf3 -P 1": lambda: pair.iperf3(1),
        f"iperf3 -P {sockets}": lambda: pair.iperf3(sockets),
        "Weft write": lambda: pair.weft("write"),
        "Weft read": lambda: pair.weft("read")}, digits=4)


WEIGHTS = "weights, 2 GiB, over the wire"
READ, PULL = "weft_perf read", "weights pull"


def weights_rows(pair, place):
    """A pull of files, beside reads of as many bytes under way as it has."""
    near, far = pair.hosts.near, pair.hosts.far
    weights = Weights(pair.notes, pair.program, place, inside(far, []), inside(near, []), f"{TARGET}:0")
    depth = ("--depth", str(WEIGHTS_DEPTH))
    yield Row(WEIGHTS, "GB/s", {
        READ: lambda: pair.weft("read", WEIGHTS_PIECE, *depth),
        f"{PULL} --memory": lambda: weights.pull("tcp", "--memory"),
        PULL: lambda: weights.pull("tcp")}, digits=4)


def weights_goals():
    for what in (f"{PULL} --memory", PULL):
        yield Goal(f"{WEIGHTS}: {what} >= 0.9 x {READ}", (WEIGHTS, what), ">=", 0.9,
                   [(WEIGHTS, READ)])


def goals(name, sockets, factor):
    yield Goal(f"{name}: write >= {factor} x iperf3 with as many sockets", (name, "Weft write"),
               ">=", factor, [(name, f"iperf3 -P {sockets}")])
    yield Goal(f"{name}: write >= {factor} x iperf3 with one socket", (name, "Weft write"), ">=",
               factor, [(name, "iperf3 -P 1")])
