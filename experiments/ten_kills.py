"""Kill a study ten times at random, let it end, and compare its results with those of one never killed.

    python -m experiments.ten_kills [--seed 0] [options of demur study, such as --epochs 20]

Each kill is SIGKILL, and the ten are spread over the time that the whole study takes: about five minutes on two cores.
Ends with exit code 0 if both results.csv are the same bytes, and a network that was killed in training went on where
it was.
"""

import argparse
import json
import random
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from demur.posterior_file import read_about
from demur.study.results import POSTERIOR

KILLS = 10
DEMUR = [sys.executable, "-c", "from demur.cli import main; main()"]


def results_of(runs: Path) -> bytes:
    out = runs.with_name(f"{runs.name}-report")
    subprocess.run([*DEMUR, "report", str(runs), "--out", str(out)], check=True, stdout=subprocess.DEVNULL)
    return (out / "results.csv").read_bytes()


def main(scratch: Path, seed: int, options: list[str]) -> int:
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    command = [*DEMUR, "study", "digits", *options, "--runs"]

    started = time.monotonic()
    subprocess.run([*command, str(scratch / "whole")], check=True, **quiet)
    seconds = time.monotonic() - started
    print(f"unbroken: {seconds:.0f} s", flush=True)

    started = time.monotonic()
    subprocess.run([*command, str(scratch / "whole")], check=True, **quiet)
    start_up = time.monotonic() - started  # nothing is left to do
    draw = random.Random(seed)
    shares = [draw.expovariate(1) for _ in range(KILLS + 1)]
    for kill, share in enumerate(shares[:KILLS], start=1):
        process = subprocess.Popen([*command, str(scratch / "killed")], **quiet)
        try:
            process.wait(start_up + seconds * share / sum(shares))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        else:
            print(f"the study ended before kill {kill}; try another seed, or more epochs")
            return 2
        done = len(list((scratch / "killed").glob("*/cell.json")))
        print(f"kill {kill}: after {start_up + seconds * share / sum(shares):.1f} s, {done} cells done", flush=True)
    subprocess.run([*command, str(scratch / "killed")], check=True, **quiet)

    whole, killed = results_of(scratch / "whole"), results_of(scratch / "killed")
    print(f"results.csv, {len(whole):,} bytes: {'the same' if whole == killed else 'DIFFERENT'}")
    resumed = [epoch for path in (scratch / "killed").glob(f"*/{POSTERIOR}") for epoch in epochs_before(path)]
    print(f"networks that went on where they were: {len(resumed)}, after epochs {resumed}")
    return int(whole != killed or not resumed)


def epochs_before(posterior: Path) -> list[int]:
    """How far its network was when it was trained on, if it was."""
    return json.loads(read_about(posterior)["resumed"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    known, others = parser.parse_known_args()
    with TemporaryDirectory() as folder:
        sys.exit(main(Path(folder), known.seed, others))
