#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What bench/lib/programs.py makes of what a peer says: a peer that failed gives no sample, and no traceback."""
import os
import sys
import tempfile
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
            "/x/y 2.so          7500.0 ns   x the first: 1.154  (1.072 to 1.217)\n")

    def setUp(self):
        self.output = proc.output
        proc.output = lambda command: self.TEXT
        self.top = tempfile.TemporaryDirectory()
        self.paired = programs.Paired(programs.Notes(), "paired", os.path.join(self.top.name, "bin", "weft_perf"))

    def tearDown(self):
        proc.output = self.output
        self.top.cleanup()

    def test_the_library_of_a_build_or_installed(self):
        with self.assertRaisesRegex(proc.Failed, "no libweft.so"):
            self.paired.latencies("pingpong")
        for place in ("lib", ""):
            os.makedirs(os.path.join(self.top.name, place), exist_ok=True)
            path = os.path.join(self.top.name, place, "libweft.so")
            with open(path, "w", encoding="ascii"):
                pass
            self.assertEqual(self.paired.library(), path)

    def test_a_sample_of_each_line(self):
        self.paired.library = lambda: "libweft.so"
        self.assertEqual([s.value for s in self.paired.latencies("pingpong")], [6.5, 7.5])
        self.assertEqual([s.value for s in self.paired.bandwidths(97500, "conns")], [15, 13])


class Installed(unittest.TestCase):
    def test_the_package_is_named(self):
        programs.PACKAGES["no-such-program"] = "its-package"
        with self.assertRaises(SystemExit) as end:
            programs.check_installed("sh", "no-such-program")
        self.assertIn("install its-package", str(end.exception))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
