"""What the paper's tables still want: each network once, scored at once, and only what ends in time."""

import math
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from demur.measures import value_name
from demur.paper.conventions import resolve
from demur.paper.studies import study_named
from demur.study.cells import Place, parts_of
from demur.study.engine import plan
from demur.study.fits import folder_name
from demur.study.grid import Cell
from demur.study.results import read_results
from demur.tasks import Store
from experiments import paper_runs
from experiments.paper_runs import (
    PREDICTION,
    SLOWED,
    Beside,
    expected,
    make,
    merged,
    minutes,
    not_stored,
    steps_of,
    twins,
    with_suite,
)

NOWHERE = Store(Path("nowhere"))
pytestmark = pytest.mark.filterwarnings("ignore:the best prior precision")  # one epoch promises nothing


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "runs", NOWHERE)


def quick(*methods: str, convention: str = "corrected") -> list[Cell]:
    return [Cell("digits", method, convention=convention, epochs=1, limit=200) for method in methods]


def test_published_cells_go_with_the_networks_that_are_trained_anyway():
    trained = [Cell("cifar100", method) for method in ("map", "la", "la+nc", "la+sl", "vb")]
    published = {cell.method for cell in twins(trained, NOWHERE)}
    assert published == {"map", "la", "la+nc"}  # soft labels have another smoothing, VB another KL


def test_every_network_is_trained_once_for_all_that_want_it(place: Place):
    one, other = (plan(study_named("digits").of(quick(*methods)), place) for methods in (("la", "map"), ("map", "de")))
    both = merged(one, other)
    assert set(both) == {*one, *other}
    (first,) = [step for step in both.values() if not parts_of(step.fit) and step.fit.recipe.seed == 0]
    assert [cell.method for cell in first.cells] == ["map"]
    names = list(both)
    assert all(names.index(need) < names.index(step.name) for step in both.values() for need in step.needs)


def test_what_candidates_have_to_beat_is_asked_for_the_suite_and_scored(place: Place):
    published = Cell("cifar10", "map", convention="published")
    cells = [with_suite(cell) for cell in (Cell("cifar10", "map"), published, Cell("cifar10", "vb"))]
    assert [cell.further for cell in cells] == [("suite",), (), ()]
    by_method = {step.fit.method.name: step for step in steps_of(cells, place).values()}
    assert by_method["map"].cells == (cells[0], published)  # of one network
    assert "energy" in by_method["map"].scores
    assert not by_method["vb"].scores


def test_what_is_stored_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A cell without its commit, its further inputs or, where it has the suite, its scores is made anew."""
    la, vb, old = Cell("cifar10", "la"), Cell("cifar10", "vb"), Cell("cifar10", "de")
    scored, unscored = (Cell("cifar10", "map", seed, further=("suite",)) for seed in (0, 1))
    commits = {la: "abc", vb: "abc", scored: "abc", unscored: "abc", old: None}
    rows = [
        {"folder": folder_name(resolve(cell, NOWHERE)), "further": "+".join(cell.further) or None, "commit": commit}
        for cell, commit in commits.items()
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "cells.csv", index=False)
    of = {
        "task": "cifar10",
        "method": "map",
        "outliers": None,
        "convention": "corrected",
        "epochs": None,
        "limit": None,
    }
    values = [of | {"seed": 0, "set": "suite/letters"}, of | {"seed": 1, "set": "svhn"}]
    pd.DataFrame(values).assign(metric=value_name("fpr95", "energy")).to_csv(tmp_path / "results.csv", index=False)
    monkeypatch.setattr(paper_runs, "STORED", tmp_path)
    shifted = replace(vb, further=("shift",))
    assert not_stored([la, vb, shifted, scored, unscored, old], NOWHERE) == (shifted, unscored, old)


def test_two_at_once_take_a_little_less_than_twice_as_long(place: Place):
    (step,) = steps_of([Cell("mnist", "vb+nc")], place).values()
    assert minutes(step.fit) == pytest.approx(100 * 58_000 / 128 * 0.48 * 1.1 / 60_000)
    assert expected(step, 1) == pytest.approx(minutes(step.fit) + PREDICTION)
    assert expected(step, 2) == pytest.approx(2 * SLOWED * minutes(step.fit) + PREDICTION)


@pytest.mark.parametrize("limit", [math.inf, 60 * (1 + PREDICTION), 0.0])
def test_nothing_begins_that_would_not_end_in_time(
    limit: float, place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    """With little more than a minute there is time for the short one."""
    monkeypatch.setattr(Beside, "end", lambda self: None)
    monkeypatch.setattr(paper_runs, "minutes", lambda fit: 2.0 if fit.method.uses_outliers else 0.5)
    monkeypatch.setattr(paper_runs.time, "monotonic", lambda: 0.0)
    make(steps_of(quick("map", "vb+nc"), place), place, limit)
    done = {result.cell.method for result in read_results(place.runs)} if place.runs.exists() else set()
    assert done == {0.0: set(), math.inf: {"map", "vb+nc"}}.get(limit, {"map"})
    said = [line for line in capsys.readouterr().out.splitlines() if "want of time" in line]
    assert len(said) == 2 - len(done)


def test_a_report_of_what_is_stored_and_what_is_new_is_made_beside(place: Place, monkeypatch: pytest.MonkeyPatch):
    place.runs.mkdir()
    beside = Beside(place.runs)
    beside.commands = beside.commands.replace("nice", "echo nice", 1).replace("; nice", "; echo nice", 1)
    beside.now_and_then(1, 2, "a step")
    assert beside.running is None  # too early
    monkeypatch.setattr(paper_runs, "BESIDE", -1)
    beside.now_and_then(2, 2, "a step")
    beside.end()
    packed, reported, *again = beside.log.read_text().splitlines()
    assert again == [packed, reported]
    assert packed.endswith(f"demur pack {place.runs.parent / 'packs'} --runs {place.runs} --overwrite")
    sources = f"{paper_runs.STORED} {place.runs} --out {place.runs.parent / 'report'}"
    assert reported.endswith(f"demur report {sources} --overwrite")
