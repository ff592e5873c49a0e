#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What bench/lib/programs.py makes of what a peer says: a peer that failed gives no sample, and no traceback."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench"))
from lib import proc, programs  # noqa: E402


class Iperf3(unittest.TestCase):
    def test_what_was_received_counts(self):
        text = '{"end": {"sum_received": {"bits_per_second": 8e9, "bytes": 5}}}'
        self.assertEqual(programs.received_by_iperf3(text)["bytes"], 5)

    def test_it_fails_with_status_0(self):
        for text in ('{"end": {}, "error": "unable to connect"}', '{"error": "unable to connect"}'):
            with self.assertRaisesRegex(proc.Failed, "unable to connect"):
                programs.received_by_iperf3(text)


class Paired(unittest.TestCase):
    TEXT = ("plain sockets      6500.0 ns   x the first: 1.000  (1.000 to 1.000)\n"
            "/x/y 2.so          7500.0 ns   x the first: 1.093  (1.072 to 1.117)\n")

    def setUp(self):
        self.runs, self.output = 0, proc.output
        proc.output = self.run_it
        self.paired = programs.Paired(programs.Notes(), "paired", "/x/y 2.so")

    def tearDown(self):
        proc.output = self.output

    def run_it(self, command):
        self.assertEqual(command, ["paired", "pingpong", "tcp", "1", "300", "/x/y 2.so"])
        self.runs += 1
        return self.TEXT

    def latency(self, column):
        return self.paired.latency(column, "pingpong", "tcp", "1", "300").value

    def test_columns_of_a_turn_are_of_one_run(self):
        self.assertEqual([self.latency(0), self.latency(1)], [6.5, 7.5])
        self.assertEqual(self.runs, 1)
        self.latency(0)
        self.assertEqual(self.runs, 2)

    def test_a_column_that_is_asked_for_again_is_measured_again(self):
        self.latency(1)
        self.latency(1)
        self.assertEqual(self.runs, 2)
        self.latency(0)
        self.assertEqual(self.runs, 2)

    def test_a_column_that_it_has_not(self):
        with self.assertRaisesRegex(proc.Failed, "no column 2"):
            self.latency(2)

    def test_bytes_by_nanoseconds(self):
        self.assertEqual(self.paired.bandwidth(1, 75000, "pingpong", "tcp", "1", "300").value, 10)


class Installed(unittest.TestCase):
    def test_the_package_is_named(self):
        programs.PACKAGES["no-such-program"] = "its-package"
        with self.assertRaises(SystemExit) as end:
            programs.check_installed("sh", "no-such-program")
        self.assertIn("install its-package", str(end.exception))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
