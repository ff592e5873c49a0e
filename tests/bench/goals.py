#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What is asked of Weft in bench/ is asked of something that is measured: a goal that names no row would never be missed."""
import os
import sys
import unittest
import unittest.mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench"))
from lib import fabric, gpus, loopback  # noqa: E402


class Goals(unittest.TestCase):
    def check(self, rows, goals):
        measured = {(row.name, who) for row in rows for who in row.programs}
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

    def test_fabric(self):
        tools = unittest.mock.MagicMock()
        self.check([row for p in fabric.PROVIDERS for row in fabric.rows(tools, p)], fabric.goals(fabric.PROVIDERS))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
