#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What is asked of Weft in bench/ is asked of something that is measured: a goal that names no row would never be missed. It is asked
as its sentence says, and bench/gpu measures what the names of its rows say."""
import os
import re
import sys
import unittest
import unittest.mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench"))
from lib import fabric, gpus, loopback  # noqa: E402
from lib.programs import Sample  # noqa: E402


class Goals(unittest.TestCase):
    def check(self, rows, goals):
        measured = {(row.name, who) for row in rows for who in row.programs}
        goals = list(goals)
        for goal in goals:
            sense, number = re.findall(r"([<>]=|:) ([0-9.]+)", goal.text)[-1] if re.search(r"[<>]= [0-9]", goal.text) \
                else (goal.sense, goal.factor)
            self.assertEqual((sense, float(number)), (goal.sense, goal.factor), goal.text)
            self.assertNotIn(goal.weft, goal.others)
        named = [what for goal in goals for what in (goal.weft, *goal.others)]
        self.assertTrue(named)
        for what in named:
            self.assertIn(what, measured)

    def test_loopback(self):
        tools = unittest.mock.MagicMock()
        tools.tcp.transport, tools.local.transport = "tcp", "local"
        self.check([row for group in loopback.GROUPS.values() for row in group(tools)], loopback.goals())

    def test_gpus(self):
        tools = unittest.mock.MagicMock()
        self.check([row for group in gpus.GROUPS.values() for row in group(tools)], gpus.goals())

    def test_what_gpus_measure(self):
        tools = unittest.mock.MagicMock()
        tools.local.latency.return_value = tools.driver.latency.return_value = Sample(10.0, None)
        for group in gpus.GROUPS.values():
            for row in group(tools):
                for who, run in row.programs.items():
                    tools.reset_mock()
                    sample = run()
                    (name, args, options), = tools.mock_calls
                    self.check_call(row.name, who, name.split(".")[0], args, options)
                    if "regions" in row.name and "1 under" in row.name and "16 under" not in row.name:
                        self.assertAlmostEqual(sample.value, 4 * gpus.MIB / 10e-6 / 1e9)

    def check_call(self, row, who, tool, args, options):
        both_ways = "write and read" in row or "both ways" in row
        op = "rw" if both_ways else "read" if " read" in row or row.startswith("GPU to") else "write"
        if who.startswith("NCCL"):
            self.assertEqual(tool, "nccl")
            sockets = row.startswith("NCCL over")
            self.assertEqual(options.get("env", {}).get("NCCL_NET"), "Socket" if sockets else None, row)
            self.assertEqual("--group" in args, "groups" in who)
        elif who == gpus.DRIVER:
            places = {"host to": ("host", "gpu1"), "GPU to ": ("gpu1", "host"), "host an": ("host", "gpu1")}
            gpus_only = ("gpu1", "gpu0") if op == "read" else ("gpu0", "gpu1")
            self.assertEqual((tool, args[2:]), ("driver", places.get(row[:7], gpus_only) + ("-b",) * both_ways), row)
        else:
            self.assertEqual((tool, args[0]), ("tcp" if row.startswith("tcp") else "local", op), row)
            self.assertEqual("gpu" in " ".join(args[2:]), who != gpus.HOST_MEMORY, row)
            self.assertEqual("--away" in args, who == gpus.AWAY, row)

    def test_fabric(self):
        tools = unittest.mock.MagicMock()
        parts = list(fabric.PARTS.values())
        self.check([row(tools, p) for p in fabric.PROVIDERS for row, _ in parts],
                   [goal for p in fabric.PROVIDERS for _, goals in parts for goal in goals(p)])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
