"""A study: cells that share networks, that are made once, and that survive being killed."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from demur.likelihoods import none_class
from demur.metrics import brier
from demur.study.conventions import none_class_averaged_together, resolve
from demur.study.engine import Place, networks_of, results_of, run_cell, run_cells
from demur.study.grid import PAPER_ROWS, STUDIES, Cell, select
from demur.study.results import PREDICTIONS, folder_name, pack, read_results, unpack
from demur.study.run import row_of
from demur.tasks import Store

NOWHERE = Store(Path("nowhere"))
pytestmark = pytest.mark.filterwarnings("ignore:the best prior precision")  # one epoch promises nothing


def nothing(number: int, total: int, cell: Cell) -> None:
    """Nobody watches."""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "runs", NOWHERE)


def quick(*methods: str) -> list[Cell]:
    return [Cell("digits", method, epochs=1, limit=200) for method in methods]


def test_the_papers_rows_share_networks():
    """Five members, four likelihoods beside plain, five of VB."""
    assert len(networks_of(select("digits"), NOWHERE)) == 5 + 4 + 5
    assert [cell.method for cell in select("digits")] == list(PAPER_ROWS)


def test_conventions_share_what_they_can():
    for method in ("map", "map+nc", "map+ml", "de", "vb+nc"):
        ours, theirs = (
            folder_name(resolve(Cell("fashion_mnist", method, convention=c, outliers="smooth"), NOWHERE))
            for c in ("corrected", "published")
        )
        assert (ours == theirs) == (method != "vb+nc"), method
    both = [Cell("fashion_mnist", "la", convention=c, outliers="smooth") for c in ("corrected", "published")]
    assert len(networks_of(both, NOWHERE)) == 1


def test_a_folder_is_named_by_all_that_determines_it():
    cell = Cell("digits", "la+nc")
    names = {folder_name(resolve(c, NOWHERE)) for c in (cell, replace(cell, seed=1), replace(cell, epochs=3))}
    assert len(names) == 3
    assert folder_name(resolve(Cell("digits", "la+nc"), NOWHERE)) in names


def test_the_published_none_class_of_flipout_counts_both_kinds_half():
    logits, y = torch.randn(6, 4), torch.arange(6) % 3
    whole = none_class(3).log_prob(logits, y, logits)
    torch.testing.assert_close(none_class_averaged_together(3).log_prob(logits, y, logits), 0.5 * whole)


def test_cells_are_made_once_and_read_back(place: Place):
    cells = quick("map", "la+nc")
    assert run_cells(cells, place, nothing) == []
    stamps = {path: path.stat().st_mtime_ns for path in place.runs.rglob("*.safetensors")}
    assert run_cells(cells, place, nothing) == []
    assert stamps == {path: path.stat().st_mtime_ns for path in place.runs.rglob("*.safetensors")}
    results = results_of(cells, place)
    assert [result.cell for result in results] == cells
    assert [row_of(result).method for result in results] == ["map", "la+nc"]
    assert brier(results[1].test, results[1].y) == row_of(results[1]).metrics["brier"]
    assert {result.cell for result in read_results(place.runs)} == set(cells)


def test_a_failed_cell_does_not_stop_the_others(place: Place):
    cells = [Cell("mnist", "map"), *quick("map")]
    (failure,) = run_cells(cells, place, nothing)
    assert "demur data get mnist" in failure.reason
    assert len(results_of(cells, place)) == 1


def test_several_processes_make_the_same(place: Place, tmp_path: Path):
    cells = quick("map", "map+nc", "la+nc")
    alone = Place(tmp_path / "alone", NOWHERE)
    assert run_cells(cells, place, nothing, jobs=2) == []
    assert run_cells(cells, alone, nothing) == []
    for ours, theirs in zip(results_of(cells, place), results_of(cells, alone), strict=True):
        torch.testing.assert_close(ours.test.probs, theirs.test.probs)


def test_packed_and_unpacked_predictions_are_the_same(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from demur.study import results

    monkeypatch.setattr(results, "SHARD", 2**18 + 2_000)  # so that a cell goes into several files
    cells = quick("map", "vb+nc")
    run_cells(cells, place, nothing)
    files = pack(place.runs, tmp_path / "packs")
    assert len(files) > 1
    assert len(unpack(files, tmp_path / "elsewhere")) == 2
    for cell in cells:
        name = place.folder(cell).name
        first, second = (folder / name / PREDICTIONS for folder in (place.runs, tmp_path / "elsewhere"))
        ours, theirs = (read_results(path.parent.parent) for path in (first, second))
        assert all(torch.equal(a.test.probs, b.test.probs) for a, b in zip(ours, theirs, strict=True))
    with pytest.raises(ValueError, match="lack"):
        unpack(files[:1], tmp_path / "partly")


STUDY = """
import sys, torch
torch.set_num_threads(1)
from pathlib import Path
from demur import checkpoint
from demur.study.engine import Place, run_cells
from demur.study.grid import Cell
from demur.tasks import Store
checkpoint.SECONDS_BETWEEN = 0.0
cells = [Cell("digits", method, epochs=40) for method in ("map", "la+nc", "csghmc+nc")]
sys.exit(len(run_cells(cells, Place(Path(sys.argv[1]), Store(Path("nowhere"))), lambda *_: None)))
"""


def test_killed_three_times_it_ends_with_the_same_bytes(tmp_path: Path):
    def start(runs: Path) -> subprocess.Popen:
        return subprocess.Popen([sys.executable, "-c", STUDY, str(runs)], stderr=subprocess.DEVNULL)

    for seconds in (3.0, 4.0, 5.0):
        process = start(tmp_path / "killed")
        time.sleep(seconds)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert start(tmp_path / "killed").wait() == 0
    assert start(tmp_path / "whole").wait() == 0
    ours, theirs = (sorted((tmp_path / name).glob(f"*/{PREDICTIONS}")) for name in ("killed", "whole"))
    assert [path.parent.name for path in ours] == [path.parent.name for path in theirs]
    assert len(ours) == 3
    for a, b in zip(ours, theirs, strict=True):
        assert a.read_bytes() == b.read_bytes()


def test_the_record_says_how_it_was_made(place: Place):
    folder = run_cell(quick("la+nc")[0], place)
    record = json.loads((folder / "cell.json").read_text())
    assert record["fit"]["inference"]["is"] == "Laplace"
    assert record["fit"]["likelihood"]["weight"] == 1.0  # a default that nobody wrote down
    assert record["fit"]["recipe"]["epochs"] == 1
    assert record["threads"] == torch.get_num_threads()
    assert {"torch", "python", "demur"} == set(record["versions"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"study": "tabel1"}, "unknown study 'tabel1'; did you mean 'table1'"),
        ({"study": "digits", "tasks": ["mnits"]}, "unknown task 'mnits'"),
        ({"study": "digits", "tasks": ["sst"]}, "no cell of these"),
        ({"study": "digits", "methods": ["la+x"]}, "unknown method"),
        ({"study": "digits", "convention": "mine"}, "unknown convention"),
    ],
)
def test_nonsense_is_refused(arguments: dict, says: str):
    with pytest.raises(ValueError, match=says):
        select(**arguments)


def test_every_cell_of_every_study_can_be_resolved():
    for cells in STUDIES.values():
        for cell in cells:
            resolve(replace(cell, outliers=cell.outliers or "smooth"), NOWHERE)
