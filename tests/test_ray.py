"""A study on a Ray cluster of two nodes: the same bytes, though one of them dies. About 25 seconds."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from demur.paper import grid
from demur.study import cluster as on_ray
from demur.study.cluster import attempt_apart, cluster, read_folder, with_resources, write_folder
from demur.study.engine import Place, Workers, plan, results_of, run_cells
from demur.study.grid import Cell
from demur.study.opening import open_study
from demur.tasks import Store
from tests.ray_nodes import ray_nodes
from tests.test_study import bytes_of_predictions, lethal, nothing, of

NOWHERE = Store(Path("nowhere"))
CELLS = [Cell("digits", method, epochs=20, limit=600) for method in ("de", "la+nc")]  # six networks

pytestmark = pytest.mark.filterwarnings("ignore:the best prior precision")  # few epochs promise nothing


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a study in this process makes."""
    runs = tmp_path_factory.mktemp("whole")
    assert run_cells(of(CELLS), Place(runs, NOWHERE), nothing) == []
    return bytes_of_predictions(runs)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    with ray_nodes(head_cpus=1, others=1) as nodes:
        yield nodes


def test_a_node_that_does_not_see_the_results_sends_them_and_what_kills_its_process_is_given_up(
    nodes: Any, whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    @contextmanager
    def blind(place: Place) -> Iterator[Workers]:
        with cluster(place, nodes.address) as tasks:
            tasks.mark = tmp_path / "elsewhere"
            yield tasks

    monkeypatch.setattr(on_ray, "RETRIES", 0)
    monkeypatch.setattr(grid, "SETTINGS", {"digits": lethal(grid.DIGITS)})
    cells = [CELLS[1], replace(CELLS[1], method="la+ml")]
    (failure,) = run_cells(of(cells), Place(tmp_path / "runs", NOWHERE), nothing, blind)
    assert failure.cell == cells[1]
    assert "WorkerCrashedError" in failure.reason
    made = bytes_of_predictions(tmp_path / "runs")
    assert len(made) == 1
    assert made.items() <= whole.items()


def test_a_node_that_is_killed_halfway_takes_nothing_with_it(nodes: Any, whole: dict[str, bytes], tmp_path: Path):
    def kill(number: int, total: int, step: str) -> None:
        if number == total // 2:
            nodes.remove_node(nodes.worker_nodes.copy().pop(), allow_graceful=False)

    assert run_cells(of(CELLS), Place(tmp_path / "runs", NOWHERE), kill, partial(cluster, address=nodes.address)) == []
    assert bytes_of_predictions(tmp_path / "runs") == whole
    assert not list((tmp_path / "runs").glob(".seen*"))


OWN = """
from functools import partial
import demur
from demur.study import study
from tests.conftest import make_task

def clouds():
    return make_task()

grid = study({"clouds": clouds}, partial(demur.mlp, inputs=4, hidden=(8,)), ["map"], recipe=demur.Recipe(epochs=1))
"""


def test_what_is_in_a_users_module_is_found_by_the_nodes(nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "on_a_cluster.py").write_text(OWN)
    monkeypatch.setattr(sys, "path", [*sys.path])
    grid = open_study(str(tmp_path / "on_a_cluster.py"))
    place = Place(tmp_path / "runs", NOWHERE)
    assert run_cells(grid, place, nothing, partial(cluster, address=nodes.address)) == []
    assert [result.cell for result in results_of(grid, place)] == list(grid.cells)


def test_a_step_apart_has_what_it_needs_and_trains_nothing_again(tmp_path: Path):
    place = Place(tmp_path / "runs", NOWHERE)
    steps = plan(of([Cell("digits", "la+nc", epochs=1, limit=200)]), place)
    for step in steps.values():
        folders = {name: read_folder(place.runs / name) for name in (*step.needs, step.name)}
        outcome, files = attempt_apart(step, replace(place, runs=tmp_path / "nowhere"), folders)
        assert outcome.failed is None
        write_folder(place.runs / step.name, files)
    assert set(files) == {"cell.json", "predictions.safetensors", "posterior.safetensors", "seconds"}
    assert {folder.name for folder in place.runs.iterdir()} == set(steps)
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("device", "threads", "says"),
    [
        ("cuda", 1, "the Ray cluster has none"),
        ("cuda:1", 1, "'cuda:1' is not for a cluster"),
        ("cpu", 4, "threads 4 are more"),
    ],
)
def test_what_the_cluster_does_not_have_is_refused(device: str, threads: int, says: str):
    place = Place(Path("runs"), NOWHERE, device, threads=threads)
    with pytest.raises(ValueError, match=says):
        with_resources(place, {"CPU": 2.0})
    assert with_resources(replace(place, device="auto", threads=1), {"CPU": 2.0}).device == "cpu"
    assert with_resources(replace(place, device="auto", threads=1), {"CPU": 2.0, "GPU": 1.0}).device == "cuda"


@pytest.mark.parametrize("address", ["127.0.0.1:1", "here"])
def test_an_address_where_nobody_answers_is_refused_at_once(address: str, tmp_path: Path):
    with pytest.raises(ValueError, match=f"no Ray cluster answers at address '{address}'"):
        run_cells(of(CELLS), Place(tmp_path, NOWHERE), nothing, partial(cluster, address=address))


def test_without_ray_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install 'demur\[ray\]'"):
        run_cells(of(CELLS), Place(tmp_path, NOWHERE), nothing, cluster)
