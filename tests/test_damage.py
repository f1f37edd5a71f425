"""Broken cells: one sentence each, which names what to delete, and the other cells unharmed."""

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from demur.paper.measuring import values_of
from demur.report.page import write_report
from demur.study import cells as making
from demur.study import results
from demur.study.cells import CHECKPOINT, SECONDS, Place
from demur.study.engine import results_of, run_cells, seconds_left
from demur.study.grid import Cell
from demur.study.records import RECORD, DamagedCell, Record, json_types, read_record
from demur.study.results import POSTERIOR, PREDICTIONS, find_cells, pack, read_results, unpack
from demur.study.table import gather
from tests.test_cli import demur_command
from tests.test_report import make_result, write_runs
from tests.test_study import NOWHERE, folder_of, nothing, of, quick, run_cell

WHOLE, BROKEN = Cell("mnist", "map"), Cell("mnist", "la+nc")


def changed_record(change: Callable[[dict], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        record = json.loads((folder / RECORD).read_text())
        change(record)
        (folder / RECORD).write_text(json.dumps(record))

    return apply


def written_record(text: str | bytes) -> Callable[[Path], None]:
    content = text.encode() if isinstance(text, str) else text
    return lambda folder: (folder / RECORD).write_bytes(content) and None


def changed_tensors(change: Callable[[dict], object], *, signed: bool = False) -> Callable[[Path], None]:
    """`signed`: with no digest in the record, as cells had before."""

    def apply(folder: Path) -> None:
        tensors = {name: value.clone() for name, value in load_file(folder / PREDICTIONS).items()}
        change(tensors)
        save_file(tensors, folder / PREDICTIONS)
        if not signed:
            changed_record(lambda record: record.pop("digests"))(folder)

    return apply


def flip_byte(folder: Path) -> None:
    content = bytearray((folder / PREDICTIONS).read_bytes())
    content[-100] ^= 1
    (folder / PREDICTIONS).write_bytes(content)


def cut(folder: Path) -> None:
    os.truncate(folder / PREDICTIONS, (folder / PREDICTIONS).stat().st_size // 2)


def into_folder(name: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return apply


DAMAGE: dict[str, tuple[str, Callable[[Path], None]]] = {
    "a list": (RECORD, written_record("[]")),
    "a number": (RECORD, written_record("3")),
    "nothing in it": (RECORD, written_record("{}")),
    "an empty file": (RECORD, written_record("")),
    "no JSON": (RECORD, written_record('{"cells": [')),
    "no text": (RECORD, written_record(b"\xff\xfe\x00")),
    "very deep": (RECORD, written_record("[" * 100_000)),
    "a folder for a record": (RECORD, into_folder(RECORD)),
    "an unknown field": (RECORD, changed_record(lambda record: record["cells"][0].update(colour="red"))),
    "no cells": (RECORD, changed_record(lambda record: record.pop("cells"))),
    "a cell that is none": (RECORD, changed_record(lambda record: record.update(cells=[3]))),
    "no method": (RECORD, changed_record(lambda record: record["cells"][0].update(method="la nc"))),
    "a seed that is none": (RECORD, changed_record(lambda record: record["cells"][0].update(seed="0"))),
    "sets that are none": (RECORD, changed_record(lambda record: record.update(sets={"test": 1}))),
    "sets without names": (RECORD, changed_record(lambda record: record["missing"].append(1))),
    "scores elsewhere": (RECORD, changed_record(lambda record: record.update(scores={"../a": []}))),
    "no epochs": (RECORD, changed_record(lambda record: record["fit"]["recipe"].pop("epochs"))),
    "no test set": (RECORD, changed_record(lambda record: record["sets"].remove("test"))),
    "no seconds": (RECORD, changed_record(lambda record: record.update(seconds={}))),
    "seconds that are none": (RECORD, changed_record(lambda record: record["seconds"].update(predict="long"))),
    "a file elsewhere": (RECORD, changed_record(lambda record: record.update(further={"../a": []}))),
    "cut off": (PREDICTIONS, cut),
    "flipped bytes": (PREDICTIONS, flip_byte),
    "no predictions": (PREDICTIONS, lambda folder: (folder / PREDICTIONS).unlink()),
    "a folder for predictions": (PREDICTIONS, into_folder(PREDICTIONS)),
    "other predictions": (PREDICTIONS, changed_tensors(lambda tensors: tensors["test/probs"].mul_(0.5), signed=True)),
    "other labels": (PREDICTIONS, changed_tensors(lambda tensors: tensors["y"].add_(1), signed=True)),
    "a set without tensors": (PREDICTIONS, changed_tensors(lambda tensors: tensors.pop("test/probs"))),
    "no labels": (PREDICTIONS, changed_tensors(lambda tensors: tensors.pop("y"))),
    "too few labels": (PREDICTIONS, changed_tensors(lambda tensors: tensors.update(y=tensors["y"][1:].clone()))),
    "labels of no class": (PREDICTIONS, changed_tensors(lambda tensors: tensors["y"].add_(1))),
    "no inputs": (
        PREDICTIONS,
        changed_tensors(
            lambda tensors: tensors.update({k: v[:0].clone() for k, v in tensors.items() if k[:4] in ("y", "test")})
        ),
    ),
    "NaN": (PREDICTIONS, changed_tensors(lambda tensors: tensors["ood/smooth/probs"][5].fill_(torch.nan))),
    "other shapes": (PREDICTIONS, changed_tensors(lambda tensors: tensors.update({"test/none": torch.zeros(3)}))),
}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return write_runs([make_result(WHOLE), make_result(BROKEN)], tmp_path / "runs")


@pytest.fixture
def broken(runs: Path) -> Path:
    return next(folder for folder, cell in find_cells(runs) if cell == BROKEN)


@pytest.mark.parametrize("name", DAMAGE)
def test_a_report_goes_on_without_a_broken_cell_and_says_what_to_delete(name: str, runs: Path, broken: Path):
    file, damage = DAMAGE[name]
    damage(broken)
    with pytest.warns(UserWarning, match="left out") as caught:
        (left,) = gather([runs], values_of)
    assert left.cell == WHOLE
    (said,) = {str(warning.message) for warning in caught}
    assert said.startswith(f"left out: {broken / file} is damaged (")
    assert said.endswith(f"); delete {broken}, and the study makes it anew")
    assert "\n" not in said


def test_several_processes_say_the_same(runs: Path, broken: Path):
    flip_byte(broken)
    with pytest.warns(UserWarning, match=re.escape(f"left out: {broken / PREDICTIONS} is damaged")):
        assert [one.cell for one in gather([runs], values_of, jobs=2)] == [WHOLE]


def test_where_nothing_is_left_nothing_is_reported(runs: Path, broken: Path):
    for folder in runs.iterdir():
        written_record("[]")(folder)
    with pytest.warns(UserWarning, match="left out"), pytest.raises(ValueError, match="there are no results in"):
        gather([runs], values_of)


def test_what_is_no_record_is_told_in_words(broken: Path):
    for content, said in (("3", "it is no JSON object"), ("[]", "it is no JSON object")):
        (broken / RECORD).write_text(content)
        with pytest.raises(DamagedCell, match=said):
            read_record(broken)


def test_damage_is_told_by_another_process_as_by_this(broken: Path):
    told = DamagedCell(broken / RECORD, ValueError("nonsense"))
    again = pickle.loads(pickle.dumps(told))
    assert (type(again), str(again), again.path) == (DamagedCell, str(told), told.path)


def test_what_a_record_holds_is_a_list_an_object_or_a_value_as_it_is_in_json():
    kinds = json_types(Record)
    assert (kinds["cells"], kinds["sets"], kinds["notes"], kinds["further"]) == (list, list, dict, dict)
    assert (kinds["threads"], kinds["device"], kinds["trained_with"]) == (int, str, str | None)
    assert "tuning" not in kinds  # it may be anything


def test_a_record_says_for_which_cells_it_was_made_and_which_scores_it_lacks(broken: Path):
    record = read_record(broken)
    assert record.asked(BROKEN)
    assert record.asked(replace(BROKEN, further=("shift",)))
    assert not record.asked(WHOLE)
    every = {"energy": record.sets, "knn": record.sets[1:]}
    assert replace(record, scores=every).lacks_scores(["energy", "knn", "odin"]) == ["knn", "odin"]


def test_one_input_is_enough(runs: Path, broken: Path):
    every = changed_tensors(lambda tensors: tensors.update({k: v[:1].clone() for k, v in tensors.items()}))
    every(broken)
    assert [len(result.y) for result in read_results(runs) if result.cell == BROKEN] == [1]


def test_of_the_same_cell_the_newest_comes_last(runs: Path, broken: Path):
    for again, older in (("a", True), ("z", False)):
        shutil.copytree(broken, runs / again)
        then = (broken / RECORD).stat().st_mtime_ns + (-(10**9) if older else 10**9)
        os.utime(runs / again / RECORD, ns=(then, then))
    assert [folder.name for folder, cell in find_cells(runs) if cell == BROKEN] == ["a", broken.name, "z"]
    os.utime(runs / "a" / RECORD)
    os.utime(runs / "z" / RECORD, ns=(0, 0))
    assert [folder.name for folder, cell in find_cells(runs) if cell == BROKEN] == ["z", broken.name, "a"]


def test_cells_without_a_digest_are_read_as_ever(runs: Path, broken: Path):
    before = gather([runs], values_of)
    changed_record(lambda record: record.pop("digests"))(broken)
    assert gather([runs], values_of) == before


# tables -------------------------------------------------------------------------------------------------------------


def rows_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize("file", ["results.csv", "cells.csv"])
@pytest.mark.parametrize("bytes_off", [1, 3, 9, 20])
def test_tables_that_were_cut_in_a_row_are_refused(file: str, bytes_off: int, runs: Path, tmp_path: Path):
    write_report(gather([runs], values_of), tmp_path / "out")
    os.truncate(tmp_path / "out" / file, (tmp_path / "out" / file).stat().st_size - bytes_off)
    with pytest.raises(ValueError, match=rf"{file} is cut off at its end; get it again, or make both"):
        gather([tmp_path / "out"], values_of)


@pytest.mark.parametrize(
    ("file", "change", "says"),
    [
        ("results.csv", lambda rows: [*rows[:5], rows[5].rpartition(b",")[0] + b"\n"], "damaged in row 5 .*columns"),
        ("results.csv", lambda rows: [*rows[:3], rows[3].replace(b",0.", b",x")], "damaged in row 3"),
        ("results.csv", lambda rows: [row for row in rows if b",smooth," not in row], "lacks values on smooth"),
        ("results.csv", lambda rows: [b"\xff", *rows], "cannot be read"),
        ("cells.csv", lambda rows: [rows[0].replace(b"seconds", b"hours"), *rows[1:]], "damaged in row 1 .*seconds"),
        ("cells.csv", lambda rows: [rows[0], *(row.replace(b"[", b"{") for row in rows[1:])], "damaged in row 1"),
    ],
)
def test_tables_with_damaged_rows_are_refused(file: str, change: Callable, says: str, runs: Path, tmp_path: Path):
    write_report(gather([runs], values_of), tmp_path / "out")
    (tmp_path / "out" / file).write_bytes(b"".join(change(rows_of(tmp_path / "out" / file))))
    with pytest.raises(ValueError, match=says):
        gather([tmp_path / "out"], values_of)


# packs --------------------------------------------------------------------------------------------------------------


def test_a_broken_cell_is_not_packed(runs: Path, broken: Path, tmp_path: Path):
    flip_byte(broken)
    with pytest.warns(UserWarning, match=re.escape(f"left out: {broken / PREDICTIONS} is damaged")):
        files = pack(runs, tmp_path / "packs")
    assert len(unpack(files, tmp_path / "elsewhere")) == 1
    assert [one.cell for one in read_results(tmp_path / "elsewhere")] == [WHOLE]


def test_no_file_of_a_pack_is_larger_than_it_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(results, "SHARD", 2**20)
    monkeypatch.setattr("tests.test_report.POINTS", 8_000)  # 320 kB of probabilities a set
    files = pack(write_runs([make_result(WHOLE)], tmp_path / "runs"), tmp_path / "packs")
    assert len(files) > 1
    assert max(file.stat().st_size for file in files) <= 2**20


def test_what_is_unpacked_into_a_folder_adds_to_it_and_changes_nothing_of_it(tmp_path: Path):
    """Of other predictions under the same name those that are there stay; further ones come beside them."""
    here = write_runs([make_result(WHOLE)], tmp_path / "here")
    there = write_runs([make_result(replace(WHOLE, further=("validation",)), seed=1)], tmp_path / "there")
    (folder,), (other,) = here.iterdir(), there.iterdir()
    before = (folder / PREDICTIONS).read_bytes()
    assert before != (other / PREDICTIONS).read_bytes()
    files = pack(there, tmp_path / "packs")
    assert unpack(files, here) == [folder]
    assert (folder / PREDICTIONS).read_bytes() == before
    (ours,), (theirs,) = read_results(here), read_results(there)
    assert {*ours.further} == {"validation"}
    for name, made in theirs.further["validation"].sets.items():
        assert torch.equal(ours.further["validation"].sets[name].probs, made.probs)
    assert unpack(files, here) == []


def test_nothing_to_pack_is_an_error(tmp_path: Path):
    with pytest.raises(ValueError, match=r"no whole cells in .*nothere to pack"):
        pack(tmp_path / "nothere", tmp_path / "packs")
    done = demur_command("pack", "packs", "--runs", "nothere", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert not (tmp_path / "packs").exists()


def hostile_pack(runs: Path, out: Path, name: str, record: Callable[[dict], object] = lambda record: None) -> Path:
    """A pack with a folder of that name beside a good one."""
    (good, file), tensors = next((path.parent, path) for path in runs.glob(f"*/{PREDICTIONS}")), {}
    said = json.loads((good / RECORD).read_text())
    record(said)
    for folder in (name, "good"):
        tensors |= {f"{folder}/{PREDICTIONS}/{key}": value.clone() for key, value in load_file(file).items()}
    save_file(tensors, out, {name: json.dumps(said), "good": (good / RECORD).read_text()})
    return out


@pytest.mark.parametrize("name", ["..", ".", "", "...", "C:\\a", "..\\a", "a\\b", " ", "-a", "a b", "a\0b", "~"])
def test_a_pack_writes_nowhere_else(name: str, runs: Path, tmp_path: Path):
    packed = hostile_pack(runs, tmp_path / "p", name)
    before = {*tmp_path.rglob("*")}
    with pytest.raises(ValueError, match="which cannot be a cell's; nothing is unpacked"):
        unpack([packed], tmp_path / "into" / "runs")
    assert {*tmp_path.rglob("*")} == before


@pytest.mark.parametrize("name", ["../x", "/x", "x/y", "..", "a\\b", "posterior", "predictions", "checkpoint"])
def test_nor_by_the_names_of_further_files(name: str, runs: Path, tmp_path: Path):
    packed = hostile_pack(runs, tmp_path / "p", "fine", lambda record: record.update(further={name: []}))
    before = {*tmp_path.rglob("*")}
    with pytest.raises(ValueError, match="the packs lack something of fine"):
        unpack([packed], tmp_path / "into")
    assert {*tmp_path.rglob("*")} == before


def test_nor_through_a_link(runs: Path, tmp_path: Path):
    packed = hostile_pack(runs, tmp_path / "p", "fine")
    for folder in ("elsewhere", "into"):
        (tmp_path / folder).mkdir()
    (tmp_path / "into" / "fine").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="is a link to elsewhere"):
        unpack([packed], tmp_path / "into")
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.clear(),
        lambda record: record["digests"].update({PREDICTIONS: "0" * 64}),
        lambda record: record["sets"].append("ood/more"),
    ],
)
def test_packs_that_are_not_what_they_say_are_refused(change: Callable, runs: Path, tmp_path: Path):
    packed = hostile_pack(runs, tmp_path / "p", "fine", change)
    with pytest.raises(ValueError, match="the packs lack something of fine"):
        unpack([packed], tmp_path / "into")
    assert not (tmp_path / "into").exists()


def test_the_command_reports_the_rest(runs: Path, broken: Path, tmp_path: Path):
    flip_byte(broken)
    command = [sys.executable, "-c", "from demur.cli import main; main()", "report", "runs", "--out", "out"]
    done = subprocess.run([*command, "--jobs", "1"], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0
    assert "from 1 cell\n" in done.stdout
    # a slow machine is also told how far it is
    (said,) = (line for line in done.stderr.splitlines() if line.startswith("demur: note: "))
    assert said.startswith("demur: note: left out: ")
    assert said.endswith(f"delete {broken.relative_to(tmp_path)}, and the study makes it anew")


def test_predictions_that_are_not_finite_are_not_stored(tmp_path: Path):
    result = make_result(WHOLE)
    result.test.probs[3, 0] = torch.nan
    with pytest.raises(FloatingPointError, match="the predictions of test have NaN"):
        write_runs([result], tmp_path / "runs")
    assert find_cells(tmp_path / "runs") == []


# studies ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "study", NOWHERE)


@pytest.mark.parametrize("name", ["a list", "an unknown field", "a folder for a record"])
def test_a_study_makes_the_others_and_says_what_to_delete(name: str, place: Place):
    first, second = quick("map", "vb")
    folder = run_cell(first, place)
    DAMAGE[name][1](folder)
    assert "known once" in seconds_left(of([first, second]), place)
    (failure,) = run_cells(of([first, second]), place, nothing)
    assert failure.cell == first
    assert f"{folder / RECORD} is damaged" in failure.reason
    assert f"delete {folder}, and the study makes it anew" in failure.reason
    with pytest.warns(UserWarning, match="left out"):
        assert [result.cell for result in results_of(of([first, second]), place)] == [second]


def test_predictions_that_were_damaged_later_are_left_out_of_the_table(place: Place):
    cells = quick("map", "vb")
    assert run_cells(of(cells), place, nothing) == []
    flip_byte(folder_of(cells[0], place))
    with pytest.warns(UserWarning, match="left out: .* is damaged"):
        assert [result.cell for result in results_of(of(cells), place)] == cells[1:]


def test_a_posterior_that_is_damaged_is_named(place: Place):
    plain, laplace = quick("map", "la")
    folder = run_cell(plain, place)
    os.truncate(folder / POSTERIOR, 1000)
    (failure,) = run_cells(of([laplace]), place, nothing)
    assert f"delete {folder / POSTERIOR}, and the study fits it anew" in failure.reason
    (folder / POSTERIOR).unlink()
    assert run_cells(of([laplace]), place, nothing) == []


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text("long")])
def test_a_network_that_does_not_say_how_long_it_took_is_named(damage: Callable, place: Place):
    plain, laplace = quick("map", "la")
    folder = run_cell(plain, place)
    damage(folder / SECONDS)
    (failure,) = run_cells(of([laplace]), place, nothing)
    assert f"{folder / SECONDS} is damaged" in failure.reason
    assert f"delete {folder}, and the study makes it anew" in failure.reason
    shutil.rmtree(folder)
    assert run_cells(of([laplace]), place, nothing) == []


def test_a_posterior_of_other_data_is_not_taken(place: Place, monkeypatch: pytest.MonkeyPatch):
    plain, laplace = quick("map", "la")
    folder = run_cell(plain, place)
    monkeypatch.setattr(making, "digests_of", lambda *_: dict.fromkeys(("train", "validation", "outliers"), "0" * 64))
    (failure,) = run_cells(of([laplace]), place, nothing)
    assert f"{folder} was fitted with other data (train, validation) than there is now" in failure.reason


def test_a_damaged_checkpoint_is_set_aside_and_training_starts_anew(place: Place):
    cell = quick("map")[0]
    folder = folder_of(cell, place)
    folder.mkdir(parents=True)
    (folder / CHECKPOINT).write_bytes(b"no checkpoint at all")
    with pytest.warns(UserWarning, match=r"checkpoint .* is damaged .* training starts anew; .*damaged and may be"):
        assert run_cells(of([cell]), place, nothing) == []
    assert (folder / f"{CHECKPOINT}.damaged").read_bytes() == b"no checkpoint at all"


@pytest.mark.parametrize("written", [SECONDS, POSTERIOR, PREDICTIONS, RECORD])
def test_on_a_full_disk_a_cell_stays_unfinished_and_says_so(
    written: str, place: Place, monkeypatch: pytest.MonkeyPatch
):
    """Whichever file does not fit; not even the log does. With room again, the same bytes come out."""
    real, cell = os.replace, quick("map")[0]

    def full(source: object, target: object) -> None:
        if Path(str(target)).name == written:
            raise OSError(28, "No space left on device")
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        patch.setattr("demur.study.engine.LOG", "no/such/folder")
        (failure,) = run_cells(of([cell]), place, nothing)
    assert "No space left on device" in failure.reason
    assert "no log could be written" in failure.reason
    assert results_of(of([cell]), place) == []
    assert not list(place.runs.rglob("*.part"))
    assert run_cells(of([cell]), place, nothing) == []
    assert len(results_of(of([cell]), place)) == 1
