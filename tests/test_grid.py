"""A grid that has nothing to do with the paper: made in Python, run by the command, and found again."""

import csv
import json
import shutil
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from demur.inference import Laplace
from demur.likelihoods import none_class
from demur.methods import Method
from demur.networks import mlp
from demur.paper.conventions import resolve
from demur.study import Setting, study
from demur.study.cells import Place
from demur.study.engine import plan, results_of, run_cells
from demur.study.fits import Data, OwnData, describe, folder_name
from demur.study.grid import Cell, Study, select
from demur.study.opening import open_study
from demur.tasks import Store, Task
from demur.training_data import Recipe
from tests.conftest import make_task
from tests.test_cli import demur_command

ROOT = Path(__file__).parents[1]
NOWHERE = Store(Path("nowhere"))
NETWORK = partial(mlp, inputs=4, hidden=(8,))
TUNED = Method("la5", "nc", Laplace(prior_precision=5.0), none_class)
QUICKLY = Recipe(epochs=1, batch_size=32)
pytestmark = pytest.mark.filterwarnings("ignore:the best prior precision", "ignore:every prior precision")


def clouds() -> Task:
    return make_task()


def nothing(number: int, total: int, step: str) -> None:
    """Nobody watches."""


def test_every_method_on_every_task_with_every_seed(tmp_path: Path):
    grid = study({"clouds": clouds, "more": clouds}, NETWORK, ["map", TUNED], recipe=QUICKLY, seeds=2)
    assert {(cell.task, cell.method, cell.seed) for cell in grid.cells} == {
        (task, method, seed) for task in ("clouds", "more") for method in ("map", "la5+nc") for seed in (0, 1)
    }
    place = Place(tmp_path, NOWHERE)
    assert run_cells(grid, place, nothing) == []
    assert plan(grid, place) == {}
    assert [result.cell for result in results_of(grid, place)] == list(grid.cells)
    assert {step.rpartition("-")[0] for step in (path.name for path in tmp_path.iterdir())} == {
        f"{task}-{method}-{seed}"
        for task in ("clouds", "more")
        for method in ("map", "map+nc", "la5+nc")
        for seed in (0, 1)
    }


def test_a_network_a_recipe_or_an_inference_may_be_a_tasks_or_a_methods_own():
    small, large = NETWORK, partial(mlp, inputs=4, hidden=(16,))
    own = {(): Setting(large, QUICKLY), ("la",): Setting(large, QUICKLY, Laplace(prior_precision=3.0))}
    grid = study({"a": clouds, "b": clouds}, {"a": small, "b": own}, ["map", "la+nc"])
    fits = {(cell.task, cell.method): grid.resolve(cell, NOWHERE) for cell in grid.cells}
    assert fits["a", "map"].network is small
    assert fits["b", "map"].network is large
    assert (fits["a", "map"].recipe, fits["b", "map"].recipe) == (Recipe(), QUICKLY)
    assert fits["a", "la+nc"].inference == Laplace()
    assert fits["b", "la+nc"].inference == Laplace(prior_precision=3.0)


def test_demurs_own_tasks_may_be_named():
    grid = study(["digits"], partial(mlp, inputs=64, hidden=(8,)), ["map+nc"])
    assert grid.resolve(grid.cells[0], NOWHERE).data.load(NOWHERE).name == "digits"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"tasks": {}}, "has no cells"),
        ({"methods": []}, "has no cells"),
        ({"seeds": 0}, "seeds 0 is not positive"),
        ({"methods": ["la+x"]}, "unknown method 'la\\+x'"),
        ({"methods": ["map", "map"]}, "have one name"),
        ({"tasks": {"two moons": clouds}}, "task 'two moons' cannot name a folder"),
        ({"tasks": ["mnits"]}, "unknown task 'mnits'; did you mean 'mnist'"),
        ({"networks": {"other": NETWORK}}, "unknown task with a network 'clouds'"),
        ({"networks": lambda outputs: mlp(outputs, inputs=4, hidden=(8,))}, "has no name to import it by"),
        ({"tasks": {"clouds": lambda: make_task()}}, "has no name to import it by"),
    ],
)
def test_a_grid_that_cannot_be_is_refused_when_it_is_made(arguments: dict, says: str):
    with pytest.raises(ValueError, match=says):
        study(**{"tasks": {"clouds": clouds}, "networks": NETWORK, "methods": ["map"]} | arguments)


def test_a_task_is_loaded_with_all_its_options(monkeypatch: pytest.MonkeyPatch):
    asked = {"outliers": "smooth", "limit": 3, "validation": "test", "inside": "a", "outside": "b", "tested": "c"}
    loaded: list[dict] = []

    def load_task(name: str, **options: object) -> Task:
        loaded.append({"name": name, **options})
        return make_task()

    monkeypatch.setattr("demur.study.fits.load_task", load_task)
    data = Data("sst", **asked, min_count=5)
    assert data.load(NOWHERE).training.augment == make_task().training.augment
    assert loaded == [{"name": "sst", "store": NOWHERE, **asked, "min_count": 5}]
    augmented = replace(make_task(), training=replace(make_task().training, augment=nothing))
    monkeypatch.setattr("demur.study.fits.load_task", lambda name, **options: augmented)
    assert Data("cifar10").load(NOWHERE).training.augment is nothing
    assert Data("cifar10", augment=False).load(NOWHERE).training.augment is None


def test_training_takes_the_sets_of_its_task_and_of_its_outliers():
    """Of what is matched to a spectrum, those that it is made of."""
    assert Data("mnist").set_names == ("mnist",)
    assert Data("mnist", "tiny_imagenet32").set_names == ("mnist", "tiny_imagenet32")
    assert Data("mnist", "tiny_imagenet32_spectrum_matched").set_names == ("mnist", "tiny_imagenet32")


def test_a_task_of_ones_own_is_made_shorter_where_asked():
    whole = OwnData("clouds", clouds)
    assert (whole.set_names, whole.for_parts()) == ((), whole)
    assert len(whole.load(NOWHERE).training.train.y) == len(make_task().training.train.y) > 24
    short = OwnData("clouds", clouds, 24).load(NOWHERE)
    assert len(short.training.train.x) == len(short.training.train.y) == 24
    assert len(short.testing.test.y) == 4
    with pytest.raises(ValueError, match=r"task 'clouds' is made by .*, which returns no Task but 3"):
        OwnData("clouds", lambda: 3).load(NOWHERE)


def test_a_task_of_a_module_may_be_named():
    grid = study(["tests.test_grid:clouds"], NETWORK, ["map"], recipe=QUICKLY)
    assert [cell.task for cell in grid.cells] == ["clouds"]
    assert grid.resolve(grid.cells[0], NOWHERE).data == OwnData("clouds", clouds)


def test_further_inputs_may_not_take_the_place_of_a_cells_files():
    for kind in ("posterior", "Predictions", "../x", ""):
        with pytest.raises(ValueError, match="cannot name a file"):
            Study("x", (), resolve, {kind: lambda data, store: None})


def test_some_cells_of_a_grid():
    cells = [Cell("a", method, seed) for method in ("map", "la") for seed in range(3)]
    assert select(cells, "x", methods=["la"]) == cells[3:]
    assert [cell.seed for cell in select(cells, "x", methods=["la"], seeds=2)] == [0, 1]
    assert {cell.epochs for cell in select(cells, "x", epochs=4)} == {4}
    with pytest.raises(ValueError, match="unknown method of study 'x' 'l'; did you mean 'la'"):
        select(cells, "x", methods=["l"])
    assert select(cells, "x") == select(cells, "x", tasks=["a"]) == cells
    others = [Cell("b", "map", outliers="smooth"), Cell("b", "map")]
    assert select([*cells, *others], "x", tasks=["b"]) == others
    assert select([*cells, *others], "x", outliers=["smooth"]) == others[:1]
    assert select([*cells, *others], "x", outliers=["usual"]) == [*cells, others[1]]
    with pytest.raises(ValueError, match="study 'x' has no cell of these"):
        select([*cells, *others], "x", tasks=["a"], outliers=["smooth"])


# names of folders ---------------------------------------------------------------------------------------------------


FOLDERS = {
    Cell("digits", "map", epochs=5): "digits-map-0-136ead0f5e392cc3",
    Cell("digits", "la+nc", epochs=5): "digits-la+nc-0-19c7cc04f9bd7ab1",
    Cell("digits", "de+sl", epochs=5): "digits-de+sl-0-5def265cd914d51a",
    Cell("digits", "csghmc+oe", epochs=5): "digits-csghmc+oe-0-10a5d8e4504f11df",
    Cell("digits", "flipout", epochs=5): "digits-flipout-0-6316388960700bc5",
    Cell("blobs", "la+sl", epochs=5): "blobs-la+sl-0-54fa8a3ccaa3f5c4",
    Cell("fashion_mnist", "map", convention="published"): "fashion_mnist-map-0-9e4c9c3935d5ada3",
    Cell("fashion_mnist", "vb+sl", 0, "published", "tiny_imagenet32"): "fashion_mnist-vb+sl-0-5d1f16b99495a6f5",
    Cell("cifar10", "map+oe", 0, "published", "tiny_imagenet32_spectrum_matched"): "cifar10-map+oe-0-1a28b22dc3088aa5",
}


@pytest.mark.parametrize("cell", FOLDERS, ids=FOLDERS.get)
def test_cells_that_were_made_before_are_found_again(cell: Cell):
    assert folder_name(resolve(cell, NOWHERE)) == FOLDERS[cell]


@dataclass(frozen=True)
class Own:
    width: int


def test_what_is_not_demurs_is_described_with_its_module():
    assert describe(clouds) == {"is": "tests.test_grid:clouds"}
    assert describe(Own(3)) == {"is": "tests.test_grid:Own", "width": 3}
    assert describe(partial(make_task, (4,))) != describe(partial(make_task, (5,)))
    assert describe(NETWORK)["is"] == "mlp"
    with pytest.raises(ValueError, match="cannot tell object values apart"):
        describe(object())


def test_a_method_of_a_users_module_names_a_folder_on_every_system():
    grid = study({"clouds": clouds}, NETWORK, [replace(TUNED, likelihood_name="mine:hedged")])
    assert folder_name(grid.resolve(grid.cells[0], NOWHERE)).startswith("clouds-la5+mine.hedged-0-")


# files --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.mark.usefixtures("_path")
@pytest.mark.parametrize(
    ("name", "content", "asked", "says"),
    [
        ("none.py", None, "none.py", "none.py does not exist"),
        ("without.py", "x = 1", "without.py", "has no study in it"),
        ("broken.py", "import nothing_like_it", "broken.py", "cannot be imported .ModuleNotFoundError.* line 1"),
        ("two-words.py", "", "two-words.py", "rename it, as two_words.py"),
        ("json.py", "", "json.py", "has the name of a module that is installed"),
        ("several.py", "from tests.test_grid import SOME as a, OTHER as b", "several.py", "several studies; name one"),
        ("named.py", "from tests.test_grid import SOME as a", "named.py:b", "no study called 'b'"),
    ],
)
def test_files_without_a_study_are_refused(name: str, content: str | None, asked: str, says: str, tmp_path: Path):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=says):
        open_study(str(tmp_path / asked))


SOME = study({"clouds": clouds}, NETWORK, ["map"])
OTHER = study({"clouds": clouds}, NETWORK, ["vb"])


@pytest.mark.usefixtures("_path")
def test_a_study_is_found_in_a_file_or_a_module(tmp_path: Path):
    (tmp_path / "both.py").write_text("from tests.test_grid import SOME as a, OTHER as b")
    assert open_study(f"{tmp_path / 'both.py'}:b") is OTHER
    assert open_study("tests.test_grid:SOME") is SOME
    with pytest.raises(ValueError, match="is not a study"):
        open_study("tests.test_grid:clouds")


def test_the_example_is_run_continued_and_reported(tmp_path: Path):
    """In two processes, which import the file; what is there is not made again."""
    shutil.copy(ROOT / "examples" / "moons.py", tmp_path)
    asked = ("study", "moons.py", "--task", "moons-small", "--epochs", "1", "--runs", "runs")
    planned = demur_command(*asked, "--dry-run", cwd=tmp_path)
    assert planned.returncode == 0, planned.stderr
    assert planned.stdout.startswith("9 cells, 0 done, 6 networks in all")
    first = demur_command(*asked, "--seeds", "1", "--jobs", "1", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/predictions.safetensors")}
    assert len(stamps) == 3
    second = demur_command(*asked, "--seeds", "2", "--jobs", "2", cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    assert "6 cells, 3 done" in second.stdout
    after = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/predictions.safetensors")}
    assert len(after) == 6
    assert stamps.items() < after.items()
    done = demur_command("report", "runs", "--out", "out", "--jobs", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "out" / "results.csv").open(encoding="utf-8") as file:
        assert {(row["task"], row["method"], row["seed"]) for row in csv.DictReader(file)} == {
            ("moons-small", method, seed) for method in ("map", "map+nc", "la+nc") for seed in "01"
        }
    record = json.loads(next(tmp_path.glob("runs/*/cell.json")).read_text("utf-8"))
    assert record["fit"]["data"]["make"] == {"is": "moons:moons"}
