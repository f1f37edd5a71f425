"""Change the code in small ways, one at a time, and see whether a test notices: `python -m experiments.mutants`.

    python -m experiments.mutants --module metrics --count 60 --seed 1

Each mutant is one changed operator, constant, condition, argument or statement of a core module. The tests that execute
the changed statement are run, fastest first, until one fails; a mutant that no test notices has survived. Survivors say
what is not tested. Those that cannot be noticed are listed in experiments/equivalent_mutants.txt, each with its reason.

Results are kept in build/mutants: a killed mutant stays so until its module changes, a survivor is tried again when the
tests change. Torch is imported once and every mutant is a fork, so that most cost a second or two.
"""

import argparse
import hashlib
import json
import os
import resource
import shutil
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from mutations import Mutant, drawn

ROOT = Path(__file__).parents[1]
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.txt")
SLACK, SHORTEST = 3, 20.0  # a mutant may take so many times as long as the tests did, and so many seconds more,
WAIT = 10  # of a processor; by the clock, so many times as long, since others may use the machine, too

# what is mutated, and the tests of its subject
MODULES = {
    "likelihoods": ("likelihoods",),
    "metrics": ("metrics",),
    "feature_scores": ("scores",),
    "scores": ("scores", "metrics", "decision"),
    "measures": ("metrics", "scores"),
    "predictive": ("posterior", "scores"),
    "posterior": ("posterior", "kronecker"),
    "posterior_file": ("posterior", "model_file"),
    "training": ("training", "checkpoint", "progress", "endings"),
    "graphs": ("training", "inference"),
    "checkpoint": ("checkpoint", "training", "mistakes"),
    "watching": ("endings",),
    "distributed": ("distributed",),
    "inference/base": ("inference", "threads"),
    "inference/map": ("training", "endings"),
    "inference/ensemble": ("inference",),
    "inference/together": ("inference",),
    "inference/rules": ("fisher",),
    "inference/fisher": ("fisher", "kronecker"),
    "inference/prior": ("inference", "mistakes"),
    "inference/around": ("inference", "kronecker", "threads"),
    "inference/laplace": ("fisher", "inference", "kronecker"),
    "inference/kronecker": ("kronecker",),
    "inference/identity": ("kronecker",),
    "inference/variational": ("variational", "inference"),
    "inference/flipout": ("flipout",),
    "inference/sgmcmc": ("sgmcmc", "checkpoint", "threads"),
    "classifier/decision": ("decision",),
    "classifier/conformal": ("conformal", "decision"),
    "classifier/tables": ("tables",),
    "classifier/model_file": ("model_file",),
    "study/grid": ("grid",),
    "study/cells": ("study", "damage"),
    "study/fits": ("grid", "study"),
    "study/engine": ("study",),
    "study/processes": ("study",),
    "study/records": ("damage", "study"),
    "study/results": ("damage", "files", "study"),
    "serving/monitor": ("monitor",),
    "serving/recalibration": ("monitor",),
}


def equivalents() -> dict[tuple[str, str, str], str]:
    """Reasons by module, line before and line after; the latter is `...` where all changes of the line are meant."""
    found = {}
    module = before = after = ""
    for line in EQUIVALENT.read_text("utf-8").splitlines():
        match line[:2]:
            case "##":
                module = line[2:].strip()
            case "- ":
                before = line[2:]
            case "+ ":
                after = line[2:]
            case "= ":
                found[module, before, after] = line[2:]
    return found


def outdated(reasons: dict[tuple[str, str, str], str]) -> list[str]:
    """Entries of lines that are no more."""
    sources = {module: " ".join((ROOT / "demur" / f"{module}.py").read_text("utf-8").split()) for module in MODULES}
    return [f"{module}: {before}" for module, before, _ in reasons if before not in sources.get(module, "")]


def reason_for(result: dict, reasons: dict[tuple[str, str, str], str]) -> str | None:
    module, before = result["module"], result["before"]
    return reasons.get((module, before, result["after"])) or reasons.get((module, before, "..."))


# running tests -----------------------------------------------------------------------------------------------------


def warm_up() -> None:
    """Import what is slow and not mutated, so that forks have it."""
    for name in ("hypothesis", "matplotlib.figure", "pandas", "PIL.Image", "pyarrow.csv", "pyarrow.parquet"):
        __import__(name)
    for name in ("rich.progress", "safetensors.torch", "scipy.stats", "sklearn.datasets", "sklearn.metrics"):
        __import__(name)
    import torch
    from hypothesis import settings

    __import__("torch.func")
    torch.set_num_threads(1)  # a fork would wait for ever for threads that it does not have
    settings.register_profile("mutants", database=None, derandomize=True)
    settings.load_profile("mutants")


class Watch:
    """A pytest plugin: which lines of the modules each test executes, how long it takes, and what fails first."""

    def __init__(self, copy: Path, out: Path, trace: bool) -> None:
        self.files = {str(copy / "demur" / f"{module}.py"): module for module in MODULES}
        self.out, self.trace = out, trace
        self.tests: dict[str, dict] = {}
        self.lines: dict[str, set[int]] = {}
        self.fixtures: dict[object, dict[str, set[int]]] = {}

    def pytest_runtest_protocol(self, item, nextitem):
        if not self.trace:
            return
        self.item, self.lines = item, {module: set() for module in MODULES}

        def local(frame, event, arg):
            self.lines[self.files[frame.f_code.co_filename]].add(frame.f_lineno)
            return local

        def calls(frame, event, arg):
            return local if frame.f_code.co_filename in self.files else None

        self.tests[item.nodeid] = {"seconds": time.perf_counter(), "lines": self.lines}
        sys.settrace(calls)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef, request):
        """What is made once for many tests counts as executed by all of them."""
        if not self.trace or fixturedef.scope == "function":
            return (yield)
        outer = self.lines
        self.lines = self.fixtures.setdefault(fixturedef, {module: set() for module in MODULES})
        try:
            return (yield)
        finally:
            for module, lines in self.lines.items():
                outer.setdefault(module, set()).update(lines)
            self.lines = outer

    def pytest_runtest_logfinish(self, nodeid, location):
        if self.trace:
            sys.settrace(None)
            test = self.tests[nodeid]
            test["seconds"] = time.perf_counter() - test["seconds"]
            for definitions in self.item._fixtureinfo.name2fixturedefs.values():
                for definition in definitions:
                    for module, lines in self.fixtures.get(definition, {}).items():
                        test["lines"][module] |= lines

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.out.write_text(json.dumps({"failed": report.nodeid}))

    def pytest_sessionfinish(self) -> None:
        if self.trace:
            executed = {
                name: test | {"lines": {module: sorted(its) for module, its in test["lines"].items() if its}}
                for name, test in self.tests.items()
            }
            self.out.write_text(json.dumps(executed))


def in_fork(copy: Path, tests: list[str], out: Path, limit: float, trace: bool = False) -> int | None:
    """pytest's exit code, or None where it took too long."""
    out.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit) + 5))
        os.chdir(copy)
        said = os.open(out.with_suffix(".txt"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(said, 1)
        os.dup2(said, 2)
        sys.dont_write_bytecode = not trace
        os.environ |= {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
        sys.path[:] = [str(copy), *(path for path in sys.path if path not in (str(ROOT), str(ROOT / "tests")))]
        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--rootdir={copy}"]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # hypothesis is there before pytest
        code = 3
        try:
            code = int(pytest.main([*options, *tests], plugins=[Watch(copy, out, trace)]))
        finally:
            os._exit(code)
    ends = time.monotonic() + WAIT * limit
    while time.monotonic() < ends:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)  # whom it started
            code = os.waitstatus_to_exitcode(status)
            return None if code == -signal.SIGXCPU else code
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def digest(*files: Path) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(files))).hexdigest()[:16]


class Bench:
    """A copy of the package and its tests, in which mutants are put; and what is known of the tests."""

    def __init__(self, copy: Path, kept: Path) -> None:
        self.copy, self.kept, self.out = copy, kept, copy / "out.json"
        for name in ("demur", "tests", "examples", "experiments"):
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy2(ROOT / "pyproject.toml", copy)
        self.package = digest(*(copy / "demur").rglob("*.py"))

    def executed(self, stem: str) -> dict[str, dict]:
        """Tests of a file, with the lines that each executes; recorded once for each state of the sources."""
        file = self.copy / "tests" / f"test_{stem}.py"
        sources = digest(file, file.with_name("conftest.py"), Path(__file__))  # which says of what lines are recorded
        record = self.kept / f"lines-{stem}-{self.package}-{sources}.json"
        if not record.exists():
            started = time.monotonic()
            code = in_fork(self.copy, [f"tests/{file.name}"], self.out, 3600, trace=True)
            if code != 0:
                print(self.out.with_suffix(".txt").read_text("utf-8", errors="replace")[-3000:])
                raise SystemExit(f"tests/{file.name} fails without any mutant (exit code {code}); mend it first")
            for old in self.kept.glob(f"lines-{stem}-*.json"):
                old.unlink()
            shutil.copy(self.out, record)
            print(f"recorded tests/{file.name} in {time.monotonic() - started:.0f} s", flush=True)
        return json.loads(record.read_text())

    def tests_for(self, mutant: Mutant) -> list[tuple[float, str]]:
        found = []
        for stem in MODULES[mutant.module]:
            for name, test in self.executed(stem).items():
                lines = test["lines"].get(mutant.module, [])
                first, last = mutant.lines or (0, 10**9)
                if any(first <= line <= last for line in lines):
                    found.append((test["seconds"], name))
        return sorted(found)

    def outcome(self, mutant: Mutant) -> dict:
        """Killed or survived, and by which test."""
        tests = self.tests_for(mutant)
        if not tests:
            return {"outcome": "survived", "by": "no test executes it"}
        file = self.copy / "demur" / f"{mutant.module}.py"
        whole, times = file.read_bytes(), file.stat()
        limit = SHORTEST + SLACK * sum(seconds for seconds, _ in tests)
        try:
            file.write_text(mutant.source, "utf-8")
            os.utime(file, (times.st_mtime + 1000, times.st_mtime + 1000))  # never taken for what is in __pycache__
            code = in_fork(self.copy, [name for _, name in tests], self.out, limit)
        finally:
            file.write_bytes(whole)
            os.utime(file, (times.st_atime, times.st_mtime))
        if code == 0:
            return {"outcome": "survived", "by": f"{len(tests)} tests pass"}
        failed = json.loads(self.out.read_text())["failed"] if self.out.exists() else f"exit code {code}"
        return {"outcome": "killed", "by": "time" if code is None else failed}


# the command -------------------------------------------------------------------------------------------------------


def report(results: list[dict]) -> tuple[str, float]:
    """A table by module and every survivor; and the score of all."""
    reasons = equivalents()
    counts: dict[str, Counter[str]] = {}
    left = []
    for result in results:
        reason, outcome = reason_for(result, reasons), result["outcome"]
        if outcome == "survived" and reason:
            outcome = "gpu" if reason.startswith("GPU") else "equivalent"
        elif outcome == "survived":
            left.append(result)
        counts.setdefault(result["module"], Counter())[outcome] += 1
    lines = ["| module | mutants | killed | survived | equivalent | on a GPU only | score, % |", "|---|" + 6 * "---:|"]
    score = 0.0
    for name, its in [*counts.items(), ("all", sum(counts.values(), Counter()))]:
        score = 100 * its["killed"] / max(1, its["killed"] + its["survived"])
        cells = (its.total(), its["killed"], its["survived"], its["equivalent"], its["gpu"], f"{score:.1f}")
        lines.append(f"| {name} | {' | '.join(map(str, cells))} |")
    lines += ["", "The score is killed / (killed + survived). Survivors:", ""]
    for one in left:
        lines += [f"demur/{one['module']}.py:{one['line']} ({one['kind']}; {one['by']})"]
        lines += [f"    - {one['before']}", f"    + {one['after']}"]
    if gone := outdated(reasons):
        lines += ["", f"Lines of {EQUIVALENT.name} that are no more:", "", *gone]
    return "\n".join(lines) + "\n", score


def work(mutants: list[Mutant], kept: Path, share: int, jobs: int) -> None:
    """Every jobs-th mutant; results are appended as they come."""
    with TemporaryDirectory() as scratch:
        bench = Bench(Path(scratch).resolve(), kept)
        for number, mutant in enumerate(mutants[share::jobs]):
            started = time.monotonic()
            state, tests = states(mutant, bench.copy)
            found = bench.outcome(mutant)
            told = {name: value for name, value in asdict(mutant).items() if name not in ("source", "lines")}
            with open(kept / "results.jsonl", "a") as file:
                file.write(json.dumps({**told, **found, "state": state, "tests": tests}) + "\n")
            seconds = time.monotonic() - started
            place = f"{number * jobs + share + 1}/{len(mutants)} {mutant.module}:{mutant.line}"
            print(f"{place} {found['outcome']} in {seconds:.1f} s ({found['by']}): {mutant.after}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--module", action="append", choices=MODULES, help="this one; may be given several times")
    parser.add_argument("--count", type=int, default=30, help="of mutants a module")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "mutants", help="where results are kept")
    parser.add_argument("--least", type=float, default=0.0, help="exit with 1 if the score is below so many per cent")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("DEMUR_DATA", str(ROOT.parent / "shared" / "data"))
    os.environ["OMP_NUM_THREADS"] = "1"

    mutants = [mutant for module in given.module or MODULES for mutant in drawn(module, given.count, given.seed)]
    known = stored(given.out)
    waiting = [mutant for mutant in mutants if not is_known(mutant, known.get(mutant.key))]
    print(f"{len(mutants)} mutants, {len(waiting)} to try", flush=True)
    if waiting:
        warm_up()
        children = [os.fork() for _ in range(given.jobs - 1)]
        share = children.index(0) + 1 if 0 in children else 0
        work(waiting, given.out, share, given.jobs)
        if share:
            os._exit(0)
        for child in children:
            os.waitpid(child, 0)
    known = stored(given.out)
    text, score = report([known[mutant.key] for mutant in mutants])
    (given.out / "report.md").write_text(text, "utf-8")
    print(text)
    raise SystemExit(f"{score:.1f} % are killed, and {given.least} should be" if score < given.least else 0)


def stored(kept: Path) -> dict[str, dict]:
    """The latest result of each mutant."""
    file = kept / "results.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return {f"{row['module']}:{row['line']} {row['before']} -> {row['after']}": row for row in rows}


def states(mutant: Mutant, root: Path) -> tuple[str, str]:
    """What tells one state of the module, and of its tests, from another."""
    tests = [root / "tests" / f"test_{stem}.py" for stem in MODULES[mutant.module]]
    return digest(root / "demur" / f"{mutant.module}.py"), digest(*tests)


def is_known(mutant: Mutant, row: dict | None) -> bool:
    if row is None:
        return False
    state, tests = states(mutant, ROOT)
    return row["state"] == state and (row["outcome"] == "killed" or row["tests"] == tests)


if __name__ == "__main__":
    main()
