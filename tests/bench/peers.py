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


class Installed(unittest.TestCase):
    def test_the_package_is_named(self):
        programs.PACKAGES["no-such-program"] = "its-package"
        with self.assertRaises(SystemExit) as end:
            programs.check_installed("sh", "no-such-program")
        self.assertIn("install its-package", str(end.exception))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
