# SPDX-License-Identifier: Apache-2.0
"""Rows of measurements, taken in turns, and the Markdown made of them."""
import datetime
import itertools
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
# Machines have states: where a virtual machine's processors are moved to other cores, all that goes from one to another
# takes up to three times as long. A probe, run before and after each sample, tells the state by a number; two
# that differ by more than this are of different states, and their samples are not compared.
ALIKE = 1.15
# A state has at least this share of all samples.
LEAST_SHARE = 0.05


class Row:
    """One thing that is measured of several programs. once: in the first round only. turns: that all have in each round, for
    what a sample says little of. together: measures all programs at once, and gives their samples in their order."""

    def __init__(self, name, unit, programs, once=False, digits=2, turns=1, together=None):
        self.name, self.unit, self.programs, self.once = name, unit, programs, once
        self.digits, self.turns, self.together = digits, turns, together

    def steps(self):
        """[(programs, what gives a sample of each), ...], of a turn."""
        if self.together:
            return [(list(self.programs), self.together)]
        return [([who], lambda run=run: [run()]) for who, run in self.programs.items()]


def alike(a, b):
    """Are these two states the same? None: it changed under way, which is like no other."""
    return None not in (a, b) and max(a, b) <= ALIKE * min(a, b)


def nearest(number, values):
    """Of (value, round): that of the round next to this one; of two, what is between them."""
    least = min(abs(r - number) for _, r in values)
    return statistics.median(v for v, r in values if abs(r - number) == least)


class Goal:
    """weft / other >= factor, other the best of some rows' programs; or weft against a number."""

    def __init__(self, text, weft, sense, factor, others=None, best=max):
        self.text, self.weft, self.sense, self.factor = text, weft, sense, factor
        self.others, self.best = others or [], best

    def judge(self, samples):
        """[(state, what was measured, is it met), ...], one for each state in which it was. What is compared with a
        number and was in none counts all the same, its state None."""
        each = [(state, self.values(samples, state)) for state in samples.states()]
        if not self.others and not any(values for _, values in each):
            each = [(None, samples.every(self.weft))]
        return [(state, *self.verdict(statistics.median(values))) for state, values in each if values]

    def verdict(self, value):
        met = value >= self.factor if self.sense == ">=" else value <= self.factor
        return f"{value:.2f} {'x' if self.others else ''}".strip(), met

    def values(self, samples, state):
        """What was measured in this state: ratios of samples of one round, or of two near each other. Where one of
        the others was not measured in this state there is none: it may be the best."""
        weft = samples.values(self.weft, state)
        others = [o for o in self.others if samples.has(o)]
        if not self.others:
            return [value for value, _ in weft]
        if any(o in samples.unmeasured() for o in self.others):
            return []  # it may be the best, and failed
        beside = [samples.values(o, state) for o in others]
        if not beside or not all(beside):
            return []
        return [value / self.best(nearest(number, o) for o in beside) for value, number in weft]


class Samples:
    """{row: {program: [[value, cpu, others, state, round], ...]}}, kept in a file between runs if there is one."""

    def __init__(self, path):
        self.path, self.rows, self.wanted = path, {}, []
        if path and os.path.exists(path):
            with open(path, encoding="utf-8") as f:
                self.rows = json.load(f)

    def add(self, row, who, sample, others, state, number):
        self.rows.setdefault(row, {}).setdefault(who, []).append([*sample, others, state, number])
        if self.path:
            with open(self.path, "w", encoding="utf-8") as f:
                json.dump(self.rows, f)

    def want(self, row, who):
        """It is to be measured in this run."""
        if (row, who) not in self.wanted:
            self.wanted.append((row, who))

    def unmeasured(self):
        """What was to be measured and has no sample."""
        return [what for what in self.wanted if not self.has(what)]

    def has(self, what):
        row, who = what
        return bool(self.rows.get(row, {}).get(who))

    def values(self, what, state):
        """[(value, round), ...] of (row, program), those of one state."""
        row, who = what
        return [(s[0], s[4]) for s in self.rows.get(row, {}).get(who, []) if alike(s[3], state)]

    def every(self, what):
        """Values of (row, program), of whatever state."""
        row, who = what
        return [s[0] for s in self.rows.get(row, {}).get(who, [])]

    def all(self):
        return [s for p in self.rows.values() for got in p.values() for s in got]

    def others(self):
        return max((s[2] for s in self.all()), default=0)

    def states(self):
        """Of the machine: the one or two in which most samples were taken, the fast one first. What is like neither of
        them counts nowhere."""
        left = [s[3] for s in self.all() if s[3] is not None]
        least, out = LEAST_SHARE * len(left), []
        while left and len(out) < 2:
            mode = max(left, key=lambda c: sum(alike(c, s) for s in left))
            state = statistics.median(s for s in left if alike(mode, s))
            if sum(alike(state, s) for s in left) < least:
                break
            out.append(state)
            left = [s for s in left if not alike(state, s)]
        return sorted(out)

    def names(self):
        states = self.states()
        return dict(zip(states, ("fast", "slow") if len(states) == 2 else ("",)))

    def told(self):
        """The states, in words."""
        states = self.states()
        if len(states) < 2:
            return "the machine was in one state"
        return ("the machine was in two states, told by half a round trip of 64 B over plain sockets: "
                + " and ".join(f"{state:.2f} us ({sum(alike(s[3], state) for s in self.all())} samples)"
                               for state in states))


def take(run, probe):
    """A sample, as undisturbed as it gets, the share of others meanwhile, and the state of the machine."""
    best = None
    for _ in range(TRIES):
        before = probe()
        meter = proc.Meter()
        sample = run()
        others = meter.others()
        after = probe()
        state = (before + after) / 2 if alike(before, after) else None
        got = (state is None, others), sample, others, state
        if best is None or got[0] < best[0]:
            best = got
        if state is not None and others <= MOST_OTHERS:
            break
    return best[1:]


def measure(rows, rounds, samples, probe=lambda: 0):
    """A turn is numbered as a part of its round: 0, 0.25, 0.5, ..."""
    for r in range(rounds):
        for row in rows:
            turns = 0 if row.once and r > 0 else row.turns
            for number, (names, run) in itertools.product([r + t / row.turns for t in range(turns)], row.steps()):
                print(f"\r\033[Kround {r + 1} of {rounds}: {row.name}, {', '.join(names)}", end="",
                      file=sys.stderr, flush=True)
                for who in names:
                    samples.want(row.name, who)
                try:
                    got, others, state = take(run, probe)
                except proc.Failed as why:
                    print(f"\r\033[K{row.name}, {', '.join(names)}: {why}", file=sys.stderr)
                    continue
                for who, sample in zip(names, got):
                    samples.add(row.name, who, sample, others, state, number)
    print("\r\033[K", end="", file=sys.stderr)


def check(samples):
    """Ends the program with status 1 if something that was to be measured was not."""
    missing = samples.unmeasured()
    if missing:
        proc.fail("no sample of " + "; ".join(f"{row}, {who}" for row, who in missing))


def medians(samples, what, digits, unit):
    """Of the fast state and of the slow one; of all samples if none is of a state."""
    each = [[v for v, _ in samples.values(what, state)] for state in samples.states()]
    if not any(each):
        each = [samples.every(what)]
    return " / ".join(f"{statistics.median(v):.{digits}f}" if v else "-" for v in each) + f" {unit}"


def row_lines(row, samples):
    got = samples.rows[row.name]
    for who in row.programs:
        if who not in got:
            yield f"| {row.name} | {who} | no sample | | | |"
            continue
        values = samples.every((row.name, who))
        cpus = [s[1] for s in got[who] if s[1] is not None]
        cpu = f"{statistics.median(cpus):.3f}" if cpus else ""
        d = row.digits
        median = medians(samples, (row.name, who), d, row.unit)
        yield (f"| {row.name} | {who} | {median} | {min(values):.{d}f} | "
               f"{max(values):.{d}f} | {cpu} |")


def goal_line(goal, verdicts, names):
    words = ["met" if met else "**missed**" for _, _, met in verdicts]
    if len(set(words)) == 1:
        words = words[:1]
    measured = " / ".join(f"{value} {names.get(state, '')}".strip() for state, value, _ in verdicts)
    return f"| {goal.text} | {measured} | {' / '.join(words)} |"


def markdown(rows, goals, samples):
    what = "median, fast / slow state" if len(samples.states()) == 2 else "median"
    lines = [f"| what | who | {what} | lowest | highest | CPU s/GB |", "|---|---|---|---|---|---|"]
    for row in rows:
        if row.name in samples.rows:
            lines += row_lines(row, samples)
    lines += ["", "| goal | measured | |", "|---|---|---|"]
    for goal in goals:
        verdicts = goal.judge(samples)
        if verdicts:
            lines.append(goal_line(goal, verdicts, samples.names()))
        elif goal.weft in samples.unmeasured():
            lines.append(f"| {goal.text} | not measured | **missed** |")
        elif samples.has(goal.weft):
            chosen = any(row in samples.rows for row, _ in goal.others) or any(o in samples.unmeasured() for o in goal.others)
            words = "nothing of the same state to compare with | **missed**" if chosen else "the others were not to be measured | "
            lines.append(f"| {goal.text} | {words} |")
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


def unused(stem):
    """Of stem.md, stem-2.md, stem-3.md and so on the first that is not there: what was measured before stays."""
    path, n = f"{stem}.md", 1
    while os.path.exists(path):
        n += 1
        path = f"{stem}-{n}.md"
    return path


def write(name, title, notes, body, commands, out=None):
    """The report; it also goes to standard output."""
    today = datetime.date.today().isoformat()
    path = out or unused(os.path.join(proc.TOP, "bench", "results", f"{today}-{name}"))
    text = "\n".join([f"# {title}, {today}", "", f"- Machine: {machine()}"]
                     + [f"- {note}" for note in notes] + [""] + body
                     + ["", "Commands:", "", "```"] + commands + ["```", ""])
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    print(text)
    print(f"written to {path}", file=sys.stderr)
