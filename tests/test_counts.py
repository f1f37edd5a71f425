"""The paper's counts: all letters and digits are tested with in the published convention, and there alone."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from sklearn.metrics import auc, precision_recall_curve

from demur.data.formats import to_png
from demur.data.store import image_column
from demur.paper.conventions import resolve
from demur.paper.counts import COUNTS, INPUTS, WHOLE, counts, data_tested, lacking, whole_sets, with_counts
from demur.paper.further import FURTHER
from demur.paper.grid import STUDIES
from demur.paper.measuring import values_of
from demur.paper.studies import study_named
from demur.report.compare import tables
from demur.study.cells import Place
from demur.study.engine import results_of, run_cells
from demur.study.fits import Data
from demur.study.grid import Cell, Study
from demur.study.results import TEST, read_results
from demur.study.table import Measured, gather, measured_cell
from demur.tasks import Store

LETTERS = 30


@pytest.fixture
def grey_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Noise for pictures; demur tests with ten letters, the paper with thirty."""
    monkeypatch.setattr("demur.tasks.images.OOD_COUNT", 10)
    monkeypatch.setattr("demur.paper.counts.OOD_COUNT", 10)
    store = Store(tmp_path / "store")
    sizes = {("mnist", "train"): 70, ("mnist", "test"): 40, ("tiny_imagenet32", "train"): 50}
    for place, ((name, split), count) in enumerate((sizes | {("emnist_letters", "test"): LETTERS}).items()):
        shape = (count, 32, 32, 3) if name == "tiny_imagenet32" else (count, 28, 28, 1)
        pixels = torch.randint(256, shape, generator=torch.Generator().manual_seed(place)).byte().numpy()
        columns = {
            "image": image_column(map(to_png, pixels)),
            "label": [i % 10 + (name == "emnist_letters") for i in range(count)],
        }
        store.write(name, split, [pa.table(columns)], "a test")
    return store


def run(cells: list[Cell], place: Place) -> Study:
    study = Study("counts", tuple(cells), resolve, FURTHER)
    assert run_cells(study, place, lambda ended, total, step: None) == []
    return study


CELL = Cell("mnist", "map", convention="published", epochs=1)


def test_the_published_cells_of_images_that_test_with_letters_or_digits_are_asked():
    asked = {cell for cell in STUDIES["all"] if with_counts(cell) != cell}
    assert {cell.convention for cell in asked} == {"published"}
    assert {cell.task for cell in asked} == {"mnist", "fashion_mnist", "cifar10", "cifar100"}
    assert asked == {cell for cell in STUDIES["all"] if whole_sets(cell)}
    assert COUNTS in next(cell for cell in study_named("table1").cells if cell in map(with_counts, asked)).further
    shifted = Cell("cifar10", "la", convention="published", further=("shift",))
    assert with_counts(shifted).further == (COUNTS, "shift")
    assert with_counts(with_counts(shifted)) == with_counts(shifted)


def test_as_many_are_tested_with_as_in_the_paper_and_the_network_stays(grey_noise: Store, tmp_path: Path):
    place = Place(tmp_path / "runs", grey_noise)
    before = run([CELL, replace(CELL, convention="corrected")], place)
    folders = sorted(path.name for path in place.runs.iterdir())
    uncounted, corrected = (values_of(result) for result in results_of(before, place))
    assert len(folders) == 1  # one network for both conventions
    assert uncounted[TEST, INPUTS].value == 40
    assert uncounted["emnist_letters", INPUTS].value == 10

    study = run([with_counts(CELL)], place)
    assert sorted(path.name for path in place.runs.iterdir()) == folders
    (result,) = results_of(study, place)
    values = values_of(result)
    assert values[TEST, INPUTS].value == 32  # without a fifth, that the paper validates with
    assert values["emnist_letters", INPUTS].value == LETTERS
    y, inputs = counts(Data("mnist"), grey_noise)
    assert list(inputs) == list(result.record.further[COUNTS]) == ["counts/test/32", "counts/emnist_letters/30"]
    sure = [result.further[COUNTS].sets[name].probs.max(1).values.numpy() for name in inputs]
    assert (sure[0].size, sure[1].size) == (32, LETTERS)
    precision, recall, _ = precision_recall_curve(np.repeat([1, 0], [32, LETTERS]), np.concatenate(sure))
    assert values["emnist_letters", "aupr_published"].value == pytest.approx(auc(recall, precision), abs=1e-6)
    right = result.further[COUNTS].sets["counts/test/32"].probs.argmax(1) == y
    assert values[TEST, "accuracy"].value == pytest.approx(float(right.double().mean()), abs=1e-6)

    both = {result.cell.convention: values_of(result) for result in read_results(place.runs)}
    assert both == {"published": values, "corrected": corrected}


def test_a_store_may_have_the_whole_set_beside_the_one_that_is_tested_with(grey_noise: Store):
    sets = counts(Data("mnist", "uniform"), grey_noise)[1]
    pixels = torch.randint(256, (45, 28, 28, 1), generator=torch.Generator().manual_seed(9)).byte().numpy()
    columns = {"image": image_column(map(to_png, pixels)), "label": [1] * len(pixels)}
    grey_noise.write("emnist_letters_whole", "test", [pa.table(columns)], "a test")
    whole = counts(Data("mnist", "uniform"), grey_noise)[1]
    assert [*sets] == ["counts/test/32", f"counts/emnist_letters/{LETTERS}"]
    assert [*whole] == ["counts/test/32", "counts/emnist_letters/45"]
    assert torch.equal(whole["counts/emnist_letters/45"], torch.from_numpy(pixels).permute(0, 3, 1, 2))


def measured(place: Place) -> Measured:
    (only,) = [one for one in gather([place.runs], values_of) if one.cell.convention == "published"]
    return only


def test_a_set_that_is_not_whole_is_said_to_be_so(grey_noise: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    place = Place(tmp_path / "runs", grey_noise)
    run([CELL], place)
    old = measured(place)
    run([with_counts(CELL)], place)
    new = measured(place)
    said = "emnist_letters has {} of its 20,800 images, which AUPR depends on"
    assert list(lacking(old, ["emnist_letters"])) == [said.format(10)]
    assert list(lacking(new, ["emnist_letters"])) == [said.format(LETTERS)]
    assert list(lacking(new, ["kmnist", TEST])) == []
    notes = [note for sheet in tables([new]) for note in sheet.notes if "20,800" in str(note)]
    assert notes == [f"{said.format(LETTERS)} (all rows)"]  # below the table of AUPR alone
    assert data_tested(old, "emnist_letters") == old.data("emnist_letters")
    assert data_tested(new, "emnist_letters") == data_tested(new, TEST) == new.record.data[COUNTS]
    assert data_tested(new, "uniform") == new.data("uniform")

    monkeypatch.setitem(WHOLE_FOR_TESTS, "emnist_letters", LETTERS)
    assert list(lacking(new, ["emnist_letters"])) == []


WHOLE_FOR_TESTS = dict(WHOLE)


@pytest.fixture(autouse=True)
def own_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("demur.paper.counts.WHOLE", WHOLE_FOR_TESTS)


def test_values_of_a_network_that_was_not_counted_again_replace_those_that_were(grey_noise: Store, tmp_path: Path):
    """Joined with an older report, nothing says that all letters were tested with where they were not."""
    place, again = (Place(tmp_path / name, grey_noise) for name in ("runs", "again"))
    counted = results_of(run([with_counts(CELL)], place), place)
    bare = results_of(run([CELL], again), again)
    joined = dict(values_of(counted[0])) | dict(values_of(bare[0]))
    both = replace(measured_cell(counted[0], joined), cell=counted[0].cell)
    assert both.values["emnist_letters", INPUTS].value == 10
    assert data_tested(both, "emnist_letters") == both.data("emnist_letters")
