# SPDX-License-Identifier: Apache-2.0
"""Rows of measurements, taken in turns, and the Markdown made of them."""
import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import sys

from . import proc

# A sample with more than this share of all processors taken by other programs is taken again.
MOST_OTHERS = 0.1
TRIES = 4


class Row:
    """One thing that is measured of several programs. best: max or min of the rounds' medians."""

    def __init__(self, name, unit, programs, once=False, digits=2):
        self.name, self.unit, self.programs, self.once = name, unit, programs, once
        self.digits = digits


class Goal:
    """weft / other >= factor, other the best of some rows' programs; or weft against a number."""

    def __init__(self, text, weft, sense, factor, others=None, best=max):
        self.text, self.weft, self.sense, self.factor = text, weft, sense, factor
        self.others, self.best = others or [], best

    def judge(self, samples):
        """(what was measured, is it met), or None if that was not measured."""
        weft = samples.values(self.weft)
        others = [samples.values(o) for o in self.others]
        others = [o for o in others if o]
        if not weft or (self.others and not others):
            return None
        value = self.ratio(weft, others) if others else statistics.median(weft)
        met = value >= self.factor if self.sense == ">=" else value <= self.factor
        return f"{value:.2f} {'x' if self.others else ''}".strip(), met


    def ratio(self, weft, others):
        """Of what was measured in one round, one after the other: machines change from minute to minute."""
        if all(len(o) == len(weft) for o in others):
            return statistics.median(w / self.best(o) for w, *o in zip(weft, *others))
        return statistics.median(weft) / self.best(statistics.median(o) for o in others)


class Samples:
    """{row: {program: [[value, cpu, others], ...]}}, kept in a file between runs if there is one."""

    def __init__(self, path):
        self.path, self.rows = path, {}
        if path and os.path.exists(path):
            with open(path, encoding="utf-8") as f:
                self.rows = json.load(f)

    def add(self, row, who, sample, others):
        self.rows.setdefault(row, {}).setdefault(who, []).append([*sample, others])
        if self.path:
            with open(self.path, "w", encoding="utf-8") as f:
                json.dump(self.rows, f)

    def values(self, what):
        """In order of the rounds, of (row, program)."""
        row, who = what
        return [s[0] for s in self.rows.get(row, {}).get(who, [])]

    def others(self):
        return max((s[2] for p in self.rows.values() for got in p.values() for s in got), default=0)


def take(run):
    """A sample, as undisturbed as it gets, and the share of others meanwhile."""
    best = None
    for _ in range(TRIES):
        meter = proc.Meter()
        sample = run()
        others = meter.others()
        if best is None or others < best[1]:
            best = sample, others
        if others <= MOST_OTHERS:
            break
    return best


def measure(rows, rounds, samples):
    for r in range(rounds):
        for row in rows:
            if row.once and r > 0:
                continue
            for who, run in row.programs.items():
                print(f"\r\033[Kround {r + 1} of {rounds}: {row.name}, {who}", end="",
                      file=sys.stderr, flush=True)
                try:
                    sample, others = take(run)
                except proc.Failed as why:
                    print(f"\r\033[K{row.name}, {who}: {why}", file=sys.stderr)
                    continue
                samples.add(row.name, who, sample, others)
    print("\r\033[K", end="", file=sys.stderr)


def row_lines(row, got):
    for who in row.programs:
        if who not in got:
            yield f"| {row.name} | {who} | no sample | | | |"
            continue
        values = [s[0] for s in got[who]]
        cpus = [s[1] for s in got[who] if s[1] is not None]
        cpu = f"{statistics.median(cpus):.3f}" if cpus else ""
        d = row.digits
        yield (f"| {row.name} | {who} | {statistics.median(values):.{d}f} {row.unit} | "
               f"{min(values):.{d}f} | {max(values):.{d}f} | {cpu} |")


def markdown(rows, goals, samples):
    lines = ["| what | who | median | lowest | highest | CPU s/GB |", "|---|---|---|---|---|---|"]
    for row in rows:
        if row.name in samples.rows:
            lines += row_lines(row, samples.rows[row.name])
    lines += ["", "| goal | measured | |", "|---|---|---|"]
    for goal in goals:
        verdict = goal.judge(samples)
        if verdict:
            lines.append(f"| {goal.text} | {verdict[0]} | {'met' if verdict[1] else '**missed**'} |")
    return lines


def first_line(command):
    text = proc.output(command).strip().splitlines()
    return text[0].lstrip("# ") if text else "unknown"


def machine():
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as f:
        names = re.findall(r"model name\s*:\s*(.*)", f.read())
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 30
    return (f"{names[0] if names else platform.machine()}, {os.cpu_count()} CPUs, {memory} GiB; "
            f"kernel {platform.release()}")


def revision():
    done = subprocess.run(["git", "-C", proc.TOP, "describe", "--always", "--dirty"],
                          capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def write(name, title, notes, body, commands, out=None):
    """The report; it also goes to standard output."""
    today = datetime.date.today().isoformat()
    path = out or os.path.join(proc.TOP, "bench", "results", f"{today}-{name}.md")
    text = "\n".join([f"# {title}, {today}", "", f"- Machine: {machine()}"]
                     + [f"- {note}" for note in notes] + [""] + body
                     + ["", "Commands:", "", "```"] + commands + ["```", ""])
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    print(text)
    print(f"written to {path}", file=sys.stderr)
