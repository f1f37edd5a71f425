"""Damage files at random, run the command line on them, and judge: `python -m experiments.fuzz 10000`.

    python -m experiments.fuzz 10000 7 30        so many runs, the seed, and minutes after which it ends

A run must end in one of two ways: one sentence and exit code 2, or the right answer. Right is, for a damaged model,
what the whole one says; for a damaged input, what follows from it as a second, simple reader reads it; for damaged
results and packs, what the whole ones say of the cells that are left. Nothing but the output may be touched. The runs
are those of another process, so that one that aborts or hangs is noticed, and the next begins with a fresh one.
"""

import hashlib
import json
import math
import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from unittest import mock

import torch

from experiments.calling import called
from experiments.damage import CANARY
from experiments.trial import Case, Trial
from experiments.trials import COMMANDS, cases
from experiments.trials_in_use import TOKEN, ask_all
from experiments.whole import WORDS, make_whole

__all__ = ["COMMANDS", "WORDS", "called", "fuzz"]
ENDS = ("refused", "right", "WRONG", "TRACEBACK", "ABORT", "HANG", "EXECUTED", "TOUCHED")
PATIENCE = 120  # seconds that a run may take
ALARM = {"monitor": 1}  # exit codes that are answers


def run(whole: Path, folder: Path, case: Case, rng: random.Random) -> tuple[str, str]:
    """`refused`, `right`, or what is wrong, and what was said."""
    given = folder / case.damaged
    source = whole / case.damaged
    shutil.copytree(source, given) if source.is_dir() else shutil.copy(source, given)
    (folder / "whole").symlink_to(whole)
    case.damage(given, rng)
    (given,) = (path for path in folder.iterdir() if path != folder / "whole")
    trial = Trial(folder, whole, given, case)
    arguments, judge = COMMANDS[case.command]
    if case.command == "data add":
        trial.out.mkdir()
    before, printed = content(folder, trial.outs), list[str]()
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)  # which are notes
        code, said = called(*arguments(trial), printed=printed)
    trial = replace(trial, code=code, said=said, printed="".join(printed))
    if CANARY.exists():
        return "EXECUTED", said
    if content(folder, trial.outs) != before:
        return "TOUCHED", said
    sentences = [one for one in said.splitlines() if not one.startswith("demur: note: ")]
    left = [path for path in trial.outs if path.exists() and case.command != "data add"]
    if code == 2 and len(sentences) == 1 and sentences[0].startswith("demur: ") and not left:
        return "refused", said
    if code not in (0, ALARM.get(case.command, 0)) or sentences:
        return "TRACEBACK", said or f"exit code {code}, {left} left"
    try:
        return ("right" if judge(trial) else "WRONG"), said
    except Exception:  # what a simple reader cannot read has no right answer
        return "WRONG", said + traceback.format_exc()


def content(folder: Path, outputs: set[Path]) -> dict[str, str]:
    """Every file and folder but those of the output, by what is in it."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in sorted(folder.rglob("*"))
        if not outputs & {path, *path.parents}
    }


def in_order(seed: int) -> list[Case]:
    """At random, after one case of each command."""
    every = list(cases())
    random.Random(seed).shuffle(every)
    first = {case.command: case for case in reversed(every)}
    return [*first.values(), *(case for case in every if first[case.command] is not case)]


def run_all(whole: Path, seed: int, start: int, stop: int) -> None:
    """In a process of its own: say what is begun, and how it ended, a line each."""
    torch.set_num_threads(1)
    every = in_order(seed)
    with ExitStack() as undrawn:  # figures take seconds, and are drawn from what is judged
        for name in (
            "demur.report.evaluation.draw",
            "demur.report.evaluation.save_drawings",
            "demur.report.comparison.save_drawings",
            "demur.report.page.save_drawings",
        ):
            undrawn.enter_context(mock.patch(name, return_value=[]))
        undrawn.enter_context(mock.patch("demur.serving.running.run_plain", ask_all))  # in place of a person
        undrawn.enter_context(mock.patch("secrets.token_urlsafe", return_value=TOKEN))
        undrawn.enter_context(mock.patch.dict(os.environ, {"XDG_CACHE_HOME": str(whole.parent / "cache")}))
        for number in range(start, stop):
            print(json.dumps({"number": number}), flush=True)
            with tempfile.TemporaryDirectory(dir=whole.parent) as place:
                end, said = run(whole, Path(place), every[number % len(every)], random.Random(f"{seed}/{number}"))
            print(json.dumps({"number": number, "end": end, "said": said[-1500:]}), flush=True)


def lines_of(process: subprocess.Popen) -> Iterator[dict]:
    """What the process says, until it ends, or says nothing for too long."""
    said: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in process.stdout:  # type: ignore[union-attr]
            said.put(line)
        said.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = said.get(timeout=PATIENCE)
        except queue.Empty:
            process.kill()
            yield {"end": "HANG"}
            return
        if line is None:
            return
        if line.startswith('{"number"'):  # libraries may print, too
            yield json.loads(line)


def told(said: str) -> str:
    """At once, since a fuzz takes long."""
    print(said, file=sys.stderr, flush=True)
    return said


def fuzz(
    count: int, seed: int = 0, minutes: float = math.inf
) -> tuple[dict[tuple[str, str, str], Counter[str]], list[str]]:
    """How many runs of each case ended how, and what the bad ones said; all cases come before any comes again."""
    ends: dict[tuple[str, str, str], Counter[str]] = {}
    bad, last_moment = list[str](), time.monotonic() + 60 * minutes
    every = in_order(seed)
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole"
        whole.mkdir()
        make_whole(whole)
        before, next_one = content(whole, set()), 0
        while next_one < count:
            command = [sys.executable, "-W", "ignore", "-m", "experiments.fuzz", str(whole), str(seed)]
            process = subprocess.Popen(
                [*command, str(next_one), str(count)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=Path(__file__).parents[1],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            began = end = None
            for line in lines_of(process):
                number, end = line.get("number", began), line.get("end")
                if end is None:
                    began = number
                    continue
                case, began, next_one = every[number % len(every)], None, number + 1
                ends.setdefault((case.command, case.what, case.how), Counter())[end] += 1
                if end not in ("refused", "right"):
                    bad.append(told(f"{number} {case.command} {case.what}, {case.how}: {end}: {line.get('said', '')}"))
                if time.monotonic() > last_moment:
                    process.kill()
                    count = next_one
                    break
            _, last = process.communicate()
            if began is not None:
                case, next_one = every[began % len(every)], began + 1
                ends.setdefault((case.command, case.what, case.how), Counter())["ABORT"] += 1
                how = f"ABORT {process.returncode}: {last[-1500:]}"
                bad.append(told(f"{began} {case.command} {case.what}, {case.how}: {how}"))
            elif process.returncode and next_one < count and end != "HANG":  # which was ended by us
                raise RuntimeError(last)
        if content(whole, set()) != before:
            bad.append("TOUCHED: the whole files")
    return ends, bad


def table(ends: dict[tuple[str, str, str], Counter[str]]) -> Iterator[str]:
    """By command and by what was damaged."""
    yield f"| command | damaged | ways | {' | '.join(ENDS)} |"
    yield f"|{'---|' * (3 + len(ENDS))}"
    groups: dict[tuple[str, str], list[Counter[str]]] = {}
    for (command, what, _), counts in sorted(ends.items()):
        groups.setdefault((command, what), []).append(counts)
    groups["all", ""] = list(ends.values())
    for (command, what), counters in groups.items():
        total = sum(counters, Counter())
        yield f"| {command} | {what} | {len(counters)} | {' | '.join(f'{total[end]:,}' for end in ENDS)} |"


if __name__ == "__main__":
    if len(sys.argv) == 5:
        run_all(Path(sys.argv[1]), *map(int, sys.argv[2:]))
        sys.exit()
    given = dict(enumerate(sys.argv))
    ends, bad = fuzz(int(given.get(1, 2000)), int(given.get(2, 0)), float(given.get(3, math.inf)))
    print(*table(ends), *bad, sep="\n")
    sys.exit(bool(bad))
