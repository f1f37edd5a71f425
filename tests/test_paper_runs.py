"""What the paper's tables still want: each network once, in time, and published cells beside."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from demur.paper.studies import study_named
from demur.study.cells import Place, parts_of
from demur.study.engine import plan, run_steps
from demur.study.grid import Cell
from demur.study.results import read_results
from demur.tasks import Store
from experiments import paper_runs
from experiments.paper_runs import (
    Beside,
    expected,
    items,
    make,
    merged,
    networks_are_there,
    networks_for,
    not_stored,
    scored,
    steps_of,
    twins,
)

NOWHERE = Store(Path("nowhere"))
pytestmark = pytest.mark.filterwarnings("ignore:the best prior precision")  # one epoch promises nothing


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "runs", NOWHERE, jobs=1)


def quick(*methods: str, convention: str = "corrected") -> list[Cell]:
    return [Cell("digits", method, convention=convention, epochs=1, limit=200) for method in methods]


def made(place: Place) -> set[tuple[str, str]]:
    return {(each.cell.method, each.cell.convention) for each in read_results(place.runs)}


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


def test_networks_of_cells_that_somebody_else_makes_are_trained_alone(place: Place):
    steps = networks_for(quick("la+nc", "vb", convention="published"), place).values()
    assert sorted(step.fit.method.name for step in steps) == ["map+nc", "vb"]
    assert not any(step.cells for step in steps)


def test_what_candidates_have_to_beat_is_asked_for_the_suite_and_scored(place: Place):
    cells = [Cell("cifar10", "map"), Cell("cifar10", "map", convention="published"), Cell("cifar10", "vb")]
    assert scored(cells) == [Cell("cifar10", "map", further=("suite",))]
    by_method = {step.fit.method.name: step for step in steps_of(cells, place).values()}
    assert {cell.further for cell in by_method["map"].cells} == {("suite",), ()}
    assert "energy" in by_method["map"].scores
    assert not by_method["vb"].scores


def test_what_is_stored_is_not_made_again():
    """Of the first item, some rows are there; a row that is there without its scores is not."""
    (first, *_) = items()
    left = not_stored(first.cells, NOWHERE)
    assert 0 < len(left) < len(first.cells)
    never = replace(left[0], seed=77)
    assert not_stored([never], NOWHERE) == (never,)


def test_nothing_begins_that_would_not_end_in_time(place: Place):
    steps = steps_of([Cell("mnist", "la"), Cell("mnist", "vb")], place)
    assert [round(expected(step, 1), 1) for step in steps.values() if not parts_of(step.fit)] == pytest.approx(
        [0.2, 0.5], abs=0.05
    )
    asked: list[str] = []
    assert run_steps(steps, place, lambda *told: None, may_start=lambda step: bool(asked.append(step.name))) == []
    assert not place.runs.exists()
    assert set(asked) == {step.name for step in steps.values() if not step.needs}


@pytest.mark.parametrize("deadline", [math.inf, 0.0])
def test_published_cells_are_made_beside_once_their_networks_are_there(
    deadline: float, place: Place, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Beside, "end", lambda self: None)
    monkeypatch.setattr(paper_runs, "STEP", {"mlp": 0.1})
    monkeypatch.setattr(paper_runs, "INPUTS", {"digits": 200})
    place.runs.mkdir()
    following = quick("la+nc", convention="published")
    steps = merged(steps_of(quick("map"), place), networks_for(following, place))
    assert not networks_are_there(following[0], place)
    make(steps, place, following, NOWHERE, deadline)
    assert made(place) == ({("map", "corrected"), ("la+nc", "published")} if deadline else set())
