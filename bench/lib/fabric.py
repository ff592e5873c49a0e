# SPDX-License-Identifier: Apache-2.0
"""libfabric's own programs and weft_perf over one provider of libfabric, and what is asked of Weft."""
import json
import os
import shutil
import time

from . import proc
from .programs import Sample, Weft, beside
from .table import Goal, Row, first_line

PROVIDERS = ("shm", "tcp;ofi_rxm", "udp;ofi_rxd")
SETTINGS = {"FI_TCP_IFACE": "lo", "FI_UDP_IFACE": "lo", "FI_OFI_RXM_MSG_RX_SIZE": "256"}
NO_CMA = {"FI_SHM_DISABLE_CMA": "1"}  # as Weft sets it, transports/efa/efa_quirk.c, unless it is set
CMA = {"FI_SHM_DISABLE_CMA": "0"}
MIB = 1 << 20
SMALL = 64
START_S = 0.7  # for a server to listen: its port says nothing, since some have none
PORTS = ("9300", "9301")
# what takes about a second over the provider
WRITES = {"shm": 4000, "tcp;ofi_rxm": 3000, "udp;ofi_rxd": 400}
TRIPS = {"shm": 1000000, "tcp;ofi_rxm": 60000, "udp;ofi_rxd": 60000}
TRIP, TRIP_POLLED = "Weft", "Weft, WEFT_EFA_WAIT=0"
TRIP_INJECTED = "Weft, WEFT_EFA_WAIT=0, injected"
LINK, LINK_POLLED = "Weft, a link of efa without an endpoint", "Weft, such a link, WEFT_EFA_WAIT=0"
WEFT, WEFT_4, WEFT_64 = "Weft", "Weft, 4 under way, each its own memory", "Weft, 64 under way, each its own memory"
WEFT_POLLED = "Weft, WEFT_EFA_WAIT=0"
WEFT_CMA, WEFT_CMA_POLLED = "Weft with CMA", "Weft with CMA, WEFT_EFA_WAIT=0"
POLLED = {"WEFT_EFA_WAIT": "0"}  # as libfabric's programs do, which ask for no descriptor to sleep on
RMA, RMA_NO_CMA = "fi_rma_bw", "fi_rma_bw without CMA"
PINGPONG, RDM = "fi_pingpong", "fi_rdm_pingpong"


def version():
    return first_line(["fi_info", "--version"])


class Tools:
    """The programs that are measured."""

    def __init__(self, notes, perf, folder):
        self.notes, self.weft = notes, Weft(notes, perf, "efa")
        self.link = beside(perf, "link_pingpong", "bench")
        self.pingpong = shutil.which("fi_pingpong")
        self.rma, self.rdm = (os.path.join(folder, p) for p in ("fi_rma_bw", "fi_rdm_pingpong"))
        for program in (self.pingpong, self.rma, self.rdm):
            if not program or not os.access(program, os.X_OK):
                proc.fail(f"{program or 'fi_pingpong'} not found (bench/efa --help)")

    def both(self, command, env, apart):
        """The client's last line, in words. apart: both sides would take one name."""
        env = {**SETTINGS, **(env or {})}
        commands = [command + (["-E", "-B", port] if apart else []) for port in PORTS]
        self.notes.add(commands[0], env)
        self.notes.add(commands[1] + ["127.0.0.1"], env)
        server = proc.Child(commands[0], env)
        try:
            time.sleep(START_S)
            lines = proc.output(commands[1] + ["127.0.0.1"], env).strip().splitlines()
            server.wait(proc.END_S)
        finally:
            server.kill()
        if not lines:
            raise proc.Failed(f"'{' '.join(commands[1])}' says nothing")
        return lines[-1].split()

    def bandwidth(self, provider, env=None):
        words = self.both([self.rma, "-e", "rdm", "-p", provider, "-o", "writedata", "-U", "-S", str(MIB),
                           "-I", str(WRITES[provider])], env, not provider.startswith("udp"))
        return Sample(float(words[4]) / 1000, None)  # its MB are 10^6 bytes

    def rdm_latency(self, provider):
        words = self.both([self.rdm, "-p", provider, "-S", str(SMALL), "-I", str(TRIPS[provider])], None,
                          not provider.startswith("udp"))
        return Sample(float(words[5]), None)

    def pingpong_latency(self, provider):
        words = self.both([self.pingpong, "-e", "rdm", "-p", provider, "-S", str(SMALL),
                           "-I", str(TRIPS[provider])], None, False)
        return Sample(float(words[6]), None)

    def weft_write(self, provider, depth, *options, env=None):
        return self.weft.bandwidth("write", MIB, "--depth", str(depth), "--iters", str(WRITES[provider]), *options,
                                   env={**SETTINGS, "WEFT_EFA_PROVIDER": provider, **(env or {})})

    def weft_latency(self, provider, wait, *options):
        result = self.weft.run("send", "--sizes", str(SMALL), "--depth", "1", "--iters", str(TRIPS[provider]), *options,
                               env={**SETTINGS, "WEFT_EFA_PROVIDER": provider, "WEFT_EFA_WAIT": wait})
        return Sample(1 / result["Mops"], None)  # the mean, as theirs

    def link_latency(self, provider, wait):
        command = [self.link, "efa", str(SMALL), str(TRIPS[provider])]
        env = {**SETTINGS, "WEFT_EFA_PROVIDER": provider, "WEFT_EFA_WAIT": wait}
        self.notes.add(command, env)
        return Sample(json.loads(proc.output(command, env))["half_us"], None)


def write_row(provider):
    return f"{provider}, write 1 MiB"


def trip_row(provider):
    return f"{provider}, 64 B, half a round trip"


def bandwidth_row(t, provider):
    programs = {WEFT: lambda: t.weft_write(provider, 64, "--same-memory"),
                WEFT_POLLED: lambda: t.weft_write(provider, 64, "--same-memory", env=POLLED),
                WEFT_4: lambda: t.weft_write(provider, 4),
                WEFT_64: lambda: t.weft_write(provider, 64),
                RMA: lambda: t.bandwidth(provider)}
    if provider == "shm":
        programs[RMA_NO_CMA] = lambda: t.bandwidth(provider, NO_CMA)
        programs[WEFT_CMA] = lambda: t.weft_write(provider, 64, "--same-memory", env=CMA)
        programs[WEFT_CMA_POLLED] = lambda: t.weft_write(provider, 64, "--same-memory", env={**CMA, **POLLED})
    return Row(write_row(provider), "GB/s", programs)


def latency_row(t, provider):
    return Row(trip_row(provider), "us", {
        TRIP: lambda: t.weft_latency(provider, "1"),
        TRIP_POLLED: lambda: t.weft_latency(provider, "0"),
        TRIP_INJECTED: lambda: t.weft_latency(provider, "0", "--inject"),
        LINK: lambda: t.link_latency(provider, "1"),
        LINK_POLLED: lambda: t.link_latency(provider, "0"),
        PINGPONG: lambda: t.pingpong_latency(provider),
        RDM: lambda: t.rdm_latency(provider)})


def bandwidth_goals(provider):
    row = write_row(provider)
    # like with like; and, over shm, Weft as it is beside libfabric as it is
    pairs = [(WEFT, RMA), (WEFT_POLLED, RMA)]
    if provider == "shm":
        pairs = [(WEFT_CMA, RMA), (WEFT_CMA_POLLED, RMA), (WEFT, RMA_NO_CMA), (WEFT_POLLED, RMA_NO_CMA), (WEFT, RMA)]
    for own, peer in pairs:
        yield Goal(f"{row}, {own} >= 0.97 x {peer}", (row, own), ">=", 0.97, [(row, peer)])


def latency_goals(provider):
    row = trip_row(provider)
    for own in (TRIP, TRIP_POLLED, TRIP_INJECTED, LINK, LINK_POLLED):
        for peer in (PINGPONG, RDM):
            yield Goal(f"{row}, {own} <= 1.1 x {peer}", (row, own), "<=", 1.1, [(row, peer)])


# what is measured over each provider, and what is asked of it
PARTS = {"bandwidth": (bandwidth_row, bandwidth_goals), "latency": (latency_row, latency_goals)}
