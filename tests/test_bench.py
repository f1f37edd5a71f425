"""The benchmark's own arithmetic, on contestants whose times are known; and that its rows compute the same things."""

import json
import subprocess
import sys
from itertools import count

import pytest
import torch
from typer.testing import CliRunner

from benchmarks import cpu, gpu
from benchmarks.fisher_worker import residual_root, residual_signs
from benchmarks.frame import Conditions, Outcome, Reading, Row, Skipped, Target, run_row, run_rows
from benchmarks.growth import FACTORS, Line
from benchmarks.render import lines
from demur.cli import app
from demur.inference.fisher import diagonal_fisher
from demur.networks import mlp

ROWS = {row.name: row for row in (*cpu.ROWS, *gpu.ROWS)}
SMALL = Conditions(small=True)


def contest(ours, rival, *targets):
    """A row whose contestants take the times given, the first being the one that warms up."""
    turns = {"ours": iter(ours), "rival": iter(rival)}

    def prepare(conditions, stack):
        return {name: lambda name=name: Reading(next(turns[name]), peak=8.0) for name in turns}

    return Row("made", "nothing", prepare, targets, rounds=3)


def test_medians_without_the_first_turn_and_ratios():
    row = contest([99, 2, 1, 30], [99, 8, 10, 9], Target(4.0, "rival"), Target(5.0, "rival"), Target(2.0), Target(1.9))
    outcome = run_row(row, Conditions())
    assert outcome.seconds == {"ours": 2, "rival": 9}
    assert [verdict.value for verdict in outcome.verdicts()] == [4.5, 4.5, 2, 2]
    assert [verdict.met for verdict in outcome.verdicts()] == [True, False, True, False]


def test_contestants_take_turns():
    order, clock = [], count()

    def turn(name):
        order.append(name)
        return Reading(next(clock))

    row = Row("made", "nothing", lambda *_: {n: lambda n=n: turn(n) for n in ("ours", "rival")}, (), rounds=2)
    run_row(row, Conditions())
    assert order == ["ours", "rival"] * 3


def test_agreement_is_relative_to_the_largest_value():
    results = {"ours": torch.tensor([1.0, 10.0]), "rival": torch.tensor([1.5, 10.0])}
    row = Row("made", "nothing", lambda *_: {n: lambda n=n: Reading(1.0, result=results[n]) for n in results}, ())
    assert run_row(row, Conditions()).agreement == {"rival": pytest.approx(0.05)}


def test_what_cannot_be_measured_is_said():
    def cannot(conditions, stack):
        raise Skipped("needs a rival")

    rows = (Row("a", "one", cannot, ()), Row("b", "two", cannot, (), device="cuda"))
    assert [outcome.skipped for outcome in run_rows(rows, Conditions())] == ["needs a rival", "needs a GPU"]
    assert list(lines(Outcome(rows[1], skipped="needs a GPU"))) == ["b: two: skipped (needs a GPU)"]


def test_names_are_unique():
    assert len(ROWS) == len(cpu.ROWS) + len(gpu.ROWS)


def test_a_residual_is_the_gradient_of_the_loss():
    torch.manual_seed(0)
    model, x, y = mlp(5, inputs=4, hidden=(6,)).eval(), torch.randn(7, 4), torch.arange(7) % 5
    found = diagonal_fisher(model, residual_root, x, signs=residual_signs(y, 5))
    expected = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for one, label in zip(x, y, strict=True):
        loss = torch.nn.functional.cross_entropy(model(one[None]), label[None])
        for name, gradient in zip(expected, torch.autograd.grad(loss, list(model.parameters())), strict=True):
            expected[name] += gradient**2
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", ["prediction-lenet", "metrics", "metrics-ties", "gpu-prediction", "gpu-fisher"])
def test_rivals_compute_the_same(name):
    outcome = run_row(ROWS[name], SMALL)
    assert outcome.agreement
    assert all(difference < 1e-5 for difference in outcome.agreement.values())
    rivals = {target.rival for target in ROWS[name].targets} - {None}
    assert rivals <= set(outcome.seconds)


@pytest.mark.parametrize(
    "name", ["lenet-training", "head-lenet", "kronecker-lenet", "kronecker-wrn", "gpu-lenet-step", "gpu-smooth-noise"]
)
def test_rows_run(name):
    outcome = run_row(ROWS[name], SMALL)
    assert len(outcome.verdicts()) == len(ROWS[name].targets)
    assert all(seconds > 0 for seconds in outcome.seconds.values())


def test_the_slope_of_a_line():
    line = Line("points", tuple(3.0 * f for f in FACTORS), tuple(5.0 for _ in FACTORS))
    assert line.slopes == (pytest.approx(1.0), pytest.approx(0.0, abs=1e-12))


def test_the_command_writes_what_it_prints(tmp_path):
    file = tmp_path / "bench.json"
    done = CliRunner().invoke(app, ["bench", "metrics", "--small", "--device", "cpu", "--json", str(file)])
    assert done.exit_code == 0
    assert "scikit-learn" in done.output
    (row,) = json.loads(file.read_text())["rows"]
    assert row["targets"][0]["rival"] == "scikit-learn"
    assert row["agreement"]["scikit-learn"] < 1e-12


def test_rows_for_a_gpu_are_skipped_without_one(tmp_path):
    file = tmp_path / "bench.json"
    done = CliRunner().invoke(app, ["bench", "gpu-fisher", "--device", "cpu", "--json", str(file)])
    assert "skipped (needs a GPU)" in done.output
    assert json.loads(file.read_text())["rows"][0]["skipped"] == "needs a GPU"


def test_peak_memory_is_the_process_s_own():
    held = bytearray(2**28)
    held[::4096] = b"x" * len(held[::4096])  # touched, so that it is there
    code = "from benchmarks.frame import peak_memory; before = peak_memory(); import os; x = os.urandom(2**26); "
    done = subprocess.run(
        [sys.executable, "-c", code + "print(peak_memory() - before)"], capture_output=True, text=True
    )
    assert 0.9 * 2**26 < int(done.stdout) < 1.5 * 2**26


def test_an_unknown_row_is_a_clear_error():
    with pytest.raises(ValueError, match="metrics"):
        CliRunner().invoke(app, ["bench", "metric"], catch_exceptions=False)
