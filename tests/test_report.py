"""The report: published figures in their places, intervals that are the bootstrap's, the same files each time."""

import csv
import re
import shutil
import subprocess
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from torch import Tensor

from demur.bootstrap import AGAINST, counts, interval, resample_separation
from demur.metrics import METRICS, Prediction, Separation, accuracy, ece, ece_published, mmc
from demur.paper.agreement import agreement, compare_printed, coverage
from demur.paper.analysis import Analysis
from demur.paper.further import PRINTED, VALIDATION, shift_set_name
from demur.paper.grid import STUDIES, Cell
from demur.paper.measuring import BOUNDED, sets_to_average, values_of
from demur.paper.published import (
    BY_TASK,
    DEFAULT_OUTLIERS,
    MEAN,
    OOD_SETS,
    SHIFT_LABEL,
    SHIFT_SETS,
    TITLES,
    measured_as,
    outliers_of,
    printed_values,
    published_tables,
    shift_by_severity,
    shift_values,
)
from demur.paper.views import own_view
from demur.report import sheet as formats
from demur.report import tables as terminal
from demur.report import verdicts
from demur.report.compare import tables
from demur.report.figures import WIDTH, acceptance, draw_noise_confidence, draw_shift
from demur.report.front import claim_cards, heat_maps
from demur.report.page import write_report
from demur.report.sheet import Code, Link, Sheet, Small, Strong, as_html, as_latex, as_markdown
from demur.scores import max_prob_score
from demur.study.measuring import Value, per_cent, resample_metric
from demur.study.records import Record
from demur.study.results import TEST, Predicted, Result, write_further, write_result
from demur.study.run import FAR_AWAY
from demur.study.run import Row as MeasuredRow
from demur.study.table import Measured, cells_csv, results_csv
from demur.study.table import gather as gather_by
from demur.study.table import measured_cell as measured_by
from demur.tasks.shift import CORRUPTIONS, SEVERITIES

POINTS = 300
PRINTED_CELLS = [cell for name in ("table1", "text", "noise", "aux") for cell in STUDIES[name]]
gather = partial(gather_by, measure=values_of)


def measure(result: Result) -> Measured:
    return measured_by(result, values_of(result))


def predict(sure: float, classes: int, none: bool, seed: int, y: Tensor | None = None) -> Prediction:
    """Probabilities with ties; right about nine labels of ten where labels are given."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(POINTS, classes + none, generator=generator)
    guess = torch.randint(classes, (POINTS,), generator=generator)
    if y is not None:
        guess = torch.where(torch.rand(POINTS, generator=generator) < 0.9, y, guess)
    logits[torch.arange(POINTS), guess] += sure
    probs = ((logits.softmax(1) * 200).round() / 200).clamp(min=1e-3)
    return Prediction(probs[:, :classes], probs[:, -1] if none else None, torch.zeros(POINTS))


def make_result(
    cell: Cell, *, sure: float = 6.0, missing: tuple[str, ...] = (), collapsed: bool = False, seed: int | None = None
) -> Result:
    seed = cell.seed if seed is None else seed
    classes, none = 10, cell.method.endswith("+nc")
    y = torch.arange(POINTS) % classes
    test = predict(sure, classes, none, seed, torch.zeros_like(y) if collapsed else y)
    names = [name for name in (*OOD_SETS.get(cell.task, ("noise",)), "far_away") if name not in missing]
    ood = {name: predict(2.0 + place, classes, none, 100 + place + seed) for place, name in enumerate(names)}
    further = {}
    if "shift" in cell.further:
        names = [shift_set_name(corruption, severity) for corruption in CORRUPTIONS for severity in SEVERITIES]
        of_each = {name: 6.0 - int(name[-1]) - len(name) % 3 / 2 for name in names}  # how sure, by severity
        further["shift"] = Predicted(y, {name: predict(less, classes, none, seed, y) for name, less in of_each.items()})
    if "validation" in cell.further:
        sets = {VALIDATION: predict(sure, classes, none, seed, y), PRINTED: predict(3.0, classes, none, seed)}
        further["validation"] = Predicted(y, sets)
    record = Record(
        cells=(cell,),
        fit={"recipe": {"epochs": 1}},
        notes={"tiny": "stands in for large"},
        missing=missing,
        seconds={"fit": 12.25, "predict": 1.5},
        threads=2,
        device="CPU",
        trained_with=(cell.outliers or "tiny") if "+" in cell.method else None,
        training_inputs=600,
        sets=(TEST, *(f"ood/{name}" for name in ood)),
    )
    return Result(cell, y, test, ood, record, further)


def write_runs(results: list[Result], runs: Path) -> Path:
    for place, one in enumerate(results):
        folder = runs / f"{one.cell.task}-{one.cell.method}-{place}"
        folder.mkdir(parents=True)
        sets = {TEST: one.test, **{f"ood/{name}": prediction for name, prediction in one.ood.items()}}
        write_result(folder, one.y, sets, one.record)
        for kind, predicted in one.further.items():
            write_further(folder, kind, predicted.y, predicted.sets)
    return runs


def named(made: list[Sheet], name: str) -> Sheet:
    return next(table for table in made if table.name == name)


def entries(table: Sheet, heading: str) -> dict[str, list[str]]:
    """The lines of a column's cells, by row; what is best has stars around it."""
    place = next(place for place, head in enumerate(table.head) if heading in as_markdown(head))
    return {row[0].text: as_markdown(row[place]).split("<br>") for row in table.rows}


# published ----------------------------------------------------------------------------------------------------------


def test_every_published_figure_stands_in_one_table():
    placed = [one for _, some in published_tables().values() for one in some if one.table != SHIFT_LABEL]
    assert len(printed_values()) == len(placed) == 2789
    assert set(placed) == set(printed_values())
    assert {one.table for one in printed_values()} | {SHIFT_LABEL} == TITLES.keys() >= {*BY_TASK}


def test_the_cells_of_every_table_are_in_a_study():
    made = {(cell.task, cell.method, cell.outliers or DEFAULT_OUTLIERS[cell.task]) for cell in PRINTED_CELLS}
    assert {(one.task, one.row.method, one.outliers) for one in printed_values()} <= made


def test_the_shift_table_holds_the_means_of_the_plot():
    _, some = published_tables()[SHIFT_LABEL]
    points = shift_values().query("method == 'la+nc' and severity == 4 and metric == 'ece_published'")
    at = {(one.row.method, one.set, one.metric): one.value for one in some}
    assert at["la+nc", SHIFT_SETS[4], "ece_published"] == pytest.approx(points["value"].mean())


def test_the_published_means_are_those_of_the_detailed_table():
    at = {(f.table, f.task, f.set, f.row, f.metric): f.value for f in printed_values()}
    for one in (one for one in printed_values() if (one.table, one.set) == ("ood_summary", MEAN)):
        left_out = measured_as(one).removeprefix(f"{MEAN}_but_")
        parts = [at["fpr95", one.task, name, one.row, "fpr95"] for name in OOD_SETS[one.task] if name != left_out]
        assert abs(np.mean(parts) - one.value) < 0.0011, (one.task, one.row)


def test_the_shift_values_are_complete():
    assert len(shift_values()) == 13 * 19 * 5 * 3
    by_severity = shift_by_severity()
    assert len(by_severity) == 13
    assert all(len(values) == 19 for method in by_severity.values() for values in method.values())


# the note on ECE ----------------------------------------------------------------------------------------------------


def test_the_note_lists_the_rows_that_break_the_bound():
    at = {(f.table, f.task, f.row.method, f.metric): 100 * f.value for f in printed_values() if f.set == TEST}
    broken = set()
    for (table, task, method, metric), error in at.items():
        if (table, metric) == ("acc_ece", "ece_published"):
            right, confidence = at[table, task, method, "accuracy_with_none"], at["mmc", task, method, "mmc"]
            bound = 200 - right - confidence
            if error > bound + 0.15:  # what three figures rounded to 0.1 can account for
                values = (f"{value:.1f}" for value in (right, confidence, bound, error, error - bound))
                broken.add((task, f"`{method}`", *values))
    note = (Path(__file__).parents[1] / "docs" / "ece.md").read_text("utf-8")
    listed = {tuple(cell.strip() for cell in line.strip("|").split("|")) for line in note.splitlines() if "| `" in line}
    assert listed == broken
    assert len(broken) == 23
    assert sum(row[0] == "mnist" for row in broken) == 13


def test_the_notes_small_case():
    probs = torch.tensor([[1.0, 0.0]] * 98 + [[0.5, 0.5]] * 2)
    prediction, y = Prediction(probs, None, torch.zeros(100)), torch.tensor([0] * 98 + [1] * 2)
    assert (accuracy(prediction, y), mmc(prediction)) == (0.98, 0.99)
    assert ece(prediction, y) == pytest.approx(0.01)
    assert ece_published(prediction, y) == 0.5 > 0.03


@given(st.integers(0, 10**6), st.floats(0, 20), st.integers(2, 12))
@settings(max_examples=50, deadline=None)
def test_ece_keeps_the_bound(seed: int, sure: float, classes: int):
    y = torch.arange(POINTS) % classes
    prediction = predict(sure, classes, False, seed, y)
    assert ece(prediction, y) <= (1 - accuracy(prediction, y)) + (1 - mmc(prediction)) + 1e-9


# intervals ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def result() -> Result:
    return make_result(Cell("mnist", "la+nc"))


def repeated(prediction: Prediction, drawn: np.ndarray) -> tuple[Prediction, np.ndarray]:
    index = np.repeat(np.arange(len(prediction)), drawn)
    none = None if prediction.none is None else prediction.none[index]
    return Prediction(prediction.probs[index], none, prediction.expected_entropy[index]), index


@pytest.mark.parametrize("metric", BOUNDED)
def test_a_resample_is_the_metric_of_the_points_drawn(metric: str, result: Result):
    drawn = counts("test", POINTS)
    _, again = resample_metric(metric, result.test, result.y, drawn)
    for column in range(4):
        prediction, index = repeated(result.test, drawn[:, column])
        assert again[column] == pytest.approx(METRICS[metric](prediction, result.y[index]), rel=1e-6)


@pytest.mark.parametrize("metric", AGAINST)
def test_a_resample_separates_as_the_points_drawn(metric: str, result: Result):
    inside, outside = -max_prob_score(result.test), -max_prob_score(result.ood["uniform"])
    drawn = counts("test", POINTS), counts("uniform", POINTS)
    resampled = resample_separation(metric, inside, outside, *drawn)
    for column in range(6):
        again = Separation(np.repeat(inside, drawn[0][:, column]), np.repeat(outside, drawn[1][:, column]))
        assert resampled[column] == pytest.approx(getattr(again, metric), rel=1e-6)


def test_the_interval_of_an_accuracy_is_the_binomials():
    right = np.arange(2000) < 1800
    probs = torch.tensor([[0.6, 0.4]]).expand(2000, 2)
    y = torch.from_numpy(~right).long()
    low, high = interval(
        resample_metric("accuracy", Prediction(probs, None, torch.zeros(2000)), y, counts("test", 2000))[1]
    )
    half = 1.96 * (0.9 * 0.1 / 2000) ** 0.5
    assert (low, high) == (pytest.approx(0.9 - half, abs=0.15 * half), pytest.approx(0.9 + half, abs=0.15 * half))


def test_seeds_that_err_alike_are_no_more_evidence_about_the_test_points_than_one():
    one = measure(make_result(Cell("mnist", "map")))
    twin = replace(one, cell=replace(one.cell, seed=1))
    alone, both = (
        own_view(cells, "corrected").known("mnist", "map", "kmnist", "fpr95") for cells in ([one], [one, twin])
    )
    assert (alone.value, alone.over_points) == pytest.approx((both.value, both.over_points))
    assert alone.training > both.training > 0


# tables -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def results() -> list[Result]:
    cells = [Cell("fashion_mnist", method, seed) for method in ("map", "map+oe", "la", "la+nc") for seed in (0, 1)]
    made = [make_result(cell, sure=5 + 0.2 * place) for place, cell in enumerate(cells)]
    made.append(make_result(Cell("fashion_mnist", "vb"), collapsed=True, sure=12, seed=6))
    made.append(make_result(Cell("fashion_mnist", "la+oe", outliers="smooth"), seed=7))
    made.append(make_result(Cell("fashion_mnist", "map", convention="published"), seed=8))
    made.append(make_result(Cell("cifar100", "map"), missing=("lsun_classroom",), seed=9))
    made.append(make_result(Cell("cifar10", "la+nc", further=("shift",)), seed=3))
    made.append(make_result(Cell("cifar10", "map", further=("shift",)), seed=4))
    made.append(make_result(Cell("digits", "map", epochs=2)))
    return made


@pytest.fixture(scope="module")
def cells(results: list[Result]) -> list[Measured]:
    return [measure(result) for result in results]


@pytest.fixture(scope="module")
def made(cells: list[Measured]) -> list[Sheet]:
    return tables(cells)


def test_a_figure_stands_beside_its_published_one(results: list[Result], made: list[Sheet]):
    seeds = [one for one in results if (one.cell.task, one.cell.method) == ("fashion_mnist", "la+nc")]
    expected = np.mean(
        [Separation(-one.test.none.double().numpy(), -one.ood["kmnist"].none.double().numpy()).fpr95 for one in seeds]
    )
    first, second = entries(named(made, "fpr95-fashion_mnist"), "kmnist")["la+nc, none score"]
    printed = next(
        one.value
        for one in printed_values()
        if (one.table, one.task, one.set, one.row) == ("fpr95", "fashion_mnist", "kmnist", ("la+nc", "none"))
    )
    assert first.strip("*").startswith(f"{100 * expected:.1f}")
    assert second == f"{100 * printed:.1f} {100 * (expected - printed):+.1f}".replace("-", "−")


def test_outliers_and_conventions_are_kept_apart(made: list[Sheet]):
    names = "fpr95-fashion_mnist", "fpr95_noise_more-fashion_mnist", "fpr95-fashion_mnist-published"
    found = [entries(named(made, name), "kmnist") for name in names]
    usual, noise, published = ({row for row, lines in each.items() if lines[0] != "–"} for each in found)
    assert usual == {"map", "map+oe", "vb", "la", "la+nc", "la+nc, none score"}
    assert noise == {"map", "vb", "la", "la+oe"}  # what is shown no outliers fits every table
    assert published == {"map"}
    assert found[0]["map"][0] != found[2]["map"][0]


def test_scores_that_a_study_kept_have_a_table_of_their_own(cells: list[Measured]):
    """The usual one first, demur's in their order, one's own last; cells without such scores have no line."""
    assert not [one.name for one in tables(cells) if one.name.startswith("scores")]
    of_task = {run.cell.method: run for run in cells if run.cell.task == "cifar10"}
    plain, shown = of_task["map"], of_task["la+nc"]

    def with_scores(run: Measured, *names: str) -> Measured:
        further = {
            (where, f"{name}_{metric}"): Value(0.01 * number)
            for (where, metric) in run.values
            for number, name in enumerate(names, start=1)
            if metric == "fpr95"
        }
        return replace(run, values={**run.values, **further})

    kept = [with_scores(plain, "vim", "mine.own:score", "energy"), with_scores(shown, "energy")]
    others = [run for run in cells if run.cell.task != "cifar10"]
    table = named(tables([*kept, *others]), "scores-cifar10")
    assert {row: values[0].split(" ")[0].strip("*") for row, values in entries(table, "FPR95<br>svhn").items()} == {
        "map": per_cent(plain.values["svhn", "fpr95"].value),
        "map, energy score": "3.0",
        "map, vim score": "1.0",
        "map, mine.own:score score": "2.0",
        "la+nc": per_cent(shown.values["svhn", "fpr95"].value),
        "la+nc, none score": per_cent(shown.values["svhn", "none_fpr95"].value),
        "la+nc, none_share score": per_cent(shown.values["svhn", "none_share_fpr95"].value),
        "la+nc, energy score": "1.0",
    }
    without = replace(plain, cell=replace(plain.cell, seed=1))  # its values are not asked for
    mixed = named(tables([kept[0], without, *others]), "scores-cifar10")
    assert entries(mixed, "FPR95<br>svhn")["map, energy score"][0].strip("*").startswith("3.0")
    assert "Means of 1 or 2 training seeds" in mixed.notes
    in_order = ["map", "map, energy score", "map, vim score", "map, mine.own:score score"]
    assert [*entries(table, "accuracy")][:4] == in_order
    again = replace(plain, cell=replace(plain.cell, seed=7))
    table = named(tables([*kept, again, *others]), "scores-cifar10")
    assert entries(table, "FPR95<br>svhn")["map, vim score"][0].split(" ")[0].strip("*") == "1.0"
    assert "Post-hoc scores of map: training seed 0 only" in table.notes


def test_the_best_of_each_group_is_no_collapsed_classifier(made: list[Sheet]):
    """The planted one, vb, tells outliers best, and no classes apart."""
    table = named(made, "fpr95-fashion_mnist")
    rows = [row[0].text for row in table.rows]
    assert [rows[place] for place in table.ruled] == ["map", "la", "vb"]
    of_group = {row: max(place for place in table.ruled if place <= rows.index(row)) for row in rows}
    for head in ("kmnist", "uniform", "emnist letters"):
        shown = {row: lines[0] for row, lines in entries(table, head).items() if lines[0] != "–"}
        value = {row: float(re.search(r"\d+\.\d", text)[0]) for row, text in shown.items()}
        assert [row for row, text in shown.items() if "‡" in text] == ["vb"]
        assert min(value, key=value.get) == "vb"
        for group in table.ruled:
            some = {row: value[row] for row in value if of_group[row] == group and row != "vb"}
            best = {row for row in some if some[row] == min(some.values()) and len({*some.values()}) > 1}
            assert {row for row in shown if of_group[row] == group and shown[row].startswith("**")} == best


def test_a_mean_that_lacks_a_set_says_so(made: list[Sheet]):
    table = named(made, "ood_summary")
    assert "†" in entries(table, "cifar100")["map"][0]
    text = formats.text(table)
    assert "† A mean over those of its sets that were measured; the data is missing of cifar100: lsun_classroom" in text
    assert "fashion_mnist: tiny stands in for large" in text
    assert "The mean of cifar100 is mean but svhn" in text


def test_what_was_not_measured_is_a_dash_above_the_published_figure(made: list[Sheet]):
    de = next(
        f
        for f in printed_values()
        if (f.table, f.task, f.row.method, f.metric) == ("acc_ece", "fashion_mnist", "de", "ece_published")
    )
    found = entries(named(made, "acc_ece"), "fashion mnist<br>ECE")
    assert found["de"] == ["–", f"{100 * de.value:.1f}"]


def test_every_format_has_every_row_and_column(made: list[Sheet]):
    for table in made:
        tex = formats.latex(table)
        assert re.sub(r"\\[{}]", "", tex).count("{") == tex.count("}")
        assert not re.search(r"(?<!\\)[%#]|[±–†‡−]", tex)
        rows = [line for line in tex.splitlines() if " & " in line]
        assert {line.count(" & ") for line in rows} == {len(table.head) - 1}
        pipes = [line.count("|") for line in formats.markdown(table).splitlines() if line.startswith("|")]
        assert pipes == [len(table.head) + 1] * (len(table.rows) + 2)
        text = formats.text(table)
        assert all(row[0].text in text for row in table.rows)


def outdated_cells(**of_fit: object) -> list[Measured]:
    result = make_result(Cell("cifar10", "la+oe"))
    return [measure(replace(result, record=replace(result.record, fit={"recipe": {"epochs": 1}, **of_fit})))]


def test_a_table_says_what_older_cells_were_made_with():
    """Told from what their records lack."""
    older = outdated_cells(
        inference={"is": "Laplace", "prior_precision": None}, likelihood={"is": "exposure_shared_among_classes"}
    )
    notes = named(tables(older), "fpr95-cifar10").notes
    said = [note for note in notes if note.startswith("Older cells")]
    assert said == [
        "Older cells: SVHN's test images were cut by another rule than the published ones (all rows)",
        "Older cells: Laplace's prior precision was tuned by the Brier score (all rows)",
        "Older cells: outlier exposure had the weight 0.5 / K (all rows)",
    ]
    newer = outdated_cells(inference={"is": "Laplace", "prior_precision": None, "criterion": "nll"})
    newer = [replace(one, record=replace(one.record, data=ALL)) for one in newer]
    assert not any("Older" in note for note in named(tables(newer), "fpr95-cifar10").notes)


# files --------------------------------------------------------------------------------------------------------------


def test_results_csv_is_right_to_six_digits_and_has_no_order_but_its_own(cells: list[Measured], results: list[Result]):
    text = results_csv(cells)
    assert results_csv(cells[::-1]) == text
    rows = list(csv.DictReader(StringIO(text)))
    assert not {"seconds", "device", "threads"} & rows[0].keys()
    keys = [tuple(row[name] for name in rows[0] if name not in Value._fields) for row in rows]
    assert len(set(keys)) == len(keys)
    last = results[-1]
    found = {row["metric"]: row["value"] for row in rows if row["task"] == "digits" and row["set"] == "test"}
    for name, metric in METRICS.items():
        assert float(found[name]) == pytest.approx(metric(last.test, last.y), abs=1e-6, nan_ok=True)


def test_a_mean_has_the_interval_of_the_mean_in_every_resample(cells: list[Measured], results: list[Result]):
    one, result = cells[0], results[0]
    inside = -max_prob_score(result.test)
    names = [name for name in result.ood if name not in (FAR_AWAY, "smooth")]
    assert sets_to_average("fashion_mnist", result.ood, ["smooth"]) == names
    resampled = [
        resample_separation(
            "fpr95", inside, -max_prob_score(result.ood[name]), counts(TEST, POINTS), counts(name, POINTS)
        )
        for name in names
    ]
    found = one.values["mean_but_smooth", "fpr95"]
    assert (found.low, found.high) == pytest.approx(interval(np.mean(resampled, axis=0)), abs=1e-6)
    assert found.value == pytest.approx(np.mean([one.values[name, "fpr95"].value for name in names]), abs=2e-6)


def test_a_stand_in_fills_the_place_of_the_set_it_stands_in_for():
    result = make_result(Cell("cifar10", "map"))
    ood = {"places_classroom" if name == "lsun_classroom" else name: x for name, x in result.ood.items()}
    stand_in, usual = (
        entries(named(tables([measure(one)]), "ood_summary"), "mean")["map"][0]
        for one in (replace(result, ood=ood), result)
    )
    assert stand_in == usual
    assert "†" not in usual


def test_the_shift_means_are_over_all_corruptions(cells: list[Measured], results: list[Result]):
    place = next(place for place, one in enumerate(results) if one.cell.further)
    further = results[place].further["shift"]
    errors = [ece(further.sets[shift_set_name(corruption, 3)], further.y) for corruption in CORRUPTIONS]
    found = cells[place].values[SHIFT_SETS[3], "ece"]
    assert found.value == pytest.approx(np.mean(errors), abs=1e-6)
    assert found.low < found.value < found.high


def test_stored_tables_make_the_same_report_as_the_runs(report: Path, tmp_path: Path):
    stored = tmp_path / "stored"
    stored.mkdir()
    for name in ("results.csv", "cells.csv"):
        shutil.copy(report / name, stored)
    write_report(gather([stored]), stored)
    for name in ("results.csv", "cells.csv", "RESULTS.md", "figures/noise.svg", "figures/shift-ece.png"):
        assert (stored / name).read_bytes() == (report / name).read_bytes(), name
    assert {path.name for path in (stored / "tables").iterdir()} == {
        path.name for path in (report / "tables").iterdir()
    }


def test_reports_accumulate_and_the_last_of_a_cell_wins(tmp_path: Path):
    def runs(name: str, *cells: Cell, sure: float = 6.0) -> Path:
        return write_runs([make_result(cell, sure=sure) for cell in cells], tmp_path / name)

    old = runs("old", Cell("mnist", "map"), Cell("mnist", "map", 1))
    new = runs("new", Cell("mnist", "map"), Cell("mnist", "la"), sure=3.0)
    write_report(gather([old]), tmp_path / "stored")
    cells = gather([tmp_path / "stored", new])
    assert [(one.cell.method, one.cell.seed) for one in cells] == [("la", 0), ("map", 0), ("map", 1)]
    assert cells[1].values == gather([new])[1].values != gather([old])[0].values
    assert cells[2] == replace(gather([old])[1], folder=None)
    assert results_csv(gather([old, new])) == results_csv(cells)
    assert cells_csv(gather([old, new])) == cells_csv(cells)


@pytest.mark.parametrize(
    ("first", "then"), [(("shift",), ("validation",)), (("validation",), ("shift",)), (("shift",), ())]
)
def test_further_inputs_of_one_folder_add_up(first: tuple[str, ...], then: tuple[str, ...], tmp_path: Path):
    cell, stored, both = Cell("cifar10", "la+nc"), tmp_path / "stored", tuple(sorted(first + then))
    of_first, of_then = (
        write_runs([make_result(replace(cell, further=further))], tmp_path / name)
        for name, further in (("first", first), ("then", then))
    )
    write_report(gather([of_first]), stored)
    (one,) = gather([stored, of_then])  # whose predictions are those of the second
    (whole,) = gather([write_runs([make_result(replace(cell, further=both))], tmp_path / "both")])
    assert (results_csv([one]), cells_csv([one])) == (results_csv([whole]), cells_csv([whole]))
    assert one.cell.further == both
    write_report([one], stored)
    assert gather([stored]) == [replace(one, folder=None)]
    assert own_view([one], "corrected").seeds(replace(cell, further=first)) == 1
    assert own_view(gather([of_then]), "corrected").seeds(replace(cell, further=first)) == 0


def test_of_another_folder_nothing_stays(tmp_path: Path):
    shifting, validated = (make_result(Cell("cifar10", "la+nc", further=(kind,))) for kind in ("shift", "validation"))
    old = write_runs([shifting], tmp_path / "old")
    new = write_runs([make_result(Cell("mnist", "map")), validated], tmp_path / "new")  # so that its name is another
    assert gather([old, new]) == gather([new])


def test_of_another_network_nothing_stays(tmp_path: Path):
    cell = Cell("cifar10", "la+nc")
    old = write_runs([make_result(replace(cell, further=("shift",)))], tmp_path / "old")
    again = make_result(replace(cell, further=("validation",)))
    other = replace(again.test, probs=again.test.probs.roll(1, -1))  # trained once more: its folder has the same name
    new = write_runs([replace(again, test=other)], tmp_path / "new")
    (one,) = gather([old, new])
    assert one.cell.further == ("validation",)
    assert [one] == gather([new])


def of_data(method: str, data: dict[str, str] | None, seed: int = 0) -> Result:
    result = make_result(Cell("cifar10", method, seed))
    return result if data is None else replace(result, record=replace(result.record, data=data))


ALL = {TEST: "a", **{f"ood/{name}": "a" for name in (*OOD_SETS["cifar10"], "far_away")}}


def remarks_on_data(*results: Result, runs: Path) -> dict[str, list[str]]:
    """By the name of the table, the same from runs and from stored tables."""
    cells = gather([write_runs(list(results), runs)])
    write_report(cells, runs / "out")
    found, again = (
        {table.name: [said for said in table.notes if "the same data" in said] for table in tables(some)}
        for some in (cells, gather([runs / "out"]))
    )
    assert found == again
    return found


def test_a_table_says_which_rows_were_measured_on_other_data(tmp_path: Path):
    """`la` on another SVHN, and `vb` from when nothing of the kind was recorded."""
    same = [of_data(method, ALL) for method in ("map", "de")]
    said = remarks_on_data(*same, of_data("la", {**ALL, "ood/svhn": "b"}), of_data("vb", None), runs=tmp_path / "runs")
    others = "test, lsun_classroom, cifar100, fashion_mnist_rgb, uniform, smooth"
    assert said["fpr95-cifar10"] == [
        f"cifar10, {others}: not known to be the same data in all rows: map, de, la; vb (not recorded)",
        "cifar10, svhn: not known to be the same data in all rows: map, de; vb (not recorded); la",
    ]
    assert said["acc_ece"] == [
        "cifar10, test: not known to be the same data in all rows: map, de, la; vb (not recorded)"
    ]


def test_so_it_does_of_seeds_whose_mean_it_shows(tmp_path: Path):
    said = remarks_on_data(of_data("map", ALL), of_data("map", {**ALL, "ood/svhn": "b"}, 1), runs=tmp_path / "runs")
    assert said["fpr95-cifar10"] == ["cifar10, svhn: not known to be the same data in all rows: map; map"]


def test_where_all_rows_have_the_same_data_or_none_says_which_nothing_is_said(tmp_path: Path):
    for name, data in (("recorded", ALL), ("not", None)):
        said = remarks_on_data(of_data("map", data), of_data("la", data), runs=tmp_path / name)
        assert not any(said.values())


def test_tables_of_different_cells_are_refused(tmp_path: Path):
    write_report(gather([write_runs([make_result(Cell("mnist", "map"))], tmp_path / "runs")]), tmp_path / "out")
    with (tmp_path / "out" / "results.csv").open("a") as file:
        file.write("mnist,,la,0,corrected,,,test,accuracy,0.5,,\n")
    with pytest.raises(ValueError, match="not of the same cells; make both anew"):
        gather([tmp_path / "out"])
    with pytest.raises(ValueError, match=r"no results in .*; make some with"):
        gather([tmp_path / "nothing"])


class Page(HTMLParser):
    """What a page refers to, and what it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src"):
                self.links.append(value or "")
            elif name == "id":
                self.ids.append(value or "")


@pytest.fixture(scope="module")
def report(results: list[Result], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report")
    write_report(gather([write_runs(results, out / "runs")]), out)
    return out


def test_the_document_links_every_table_and_has_the_commands_last(report: Path):
    text = (report / "RESULTS.md").read_text("utf-8")
    linked = re.findall(r"\]\(tables/([^)]*)\)", text)
    assert sorted(linked) == sorted(path.name for path in (report / "tables").glob("*.md"))
    assert (
        "demur study shift --task cifar10 --convention corrected --method map --method la+nc" in text.splitlines()[-20:]
    )
    assert re.findall(r"^## (.*)", text, re.MULTILINE) == [
        "In short",
        "Coverage",
        "Agreement with the paper",
        "Causes of disagreement",
        "The paper's claims",
        "Figures",
        "Tables",
        "How the cells were made",
    ]  # nothing is recommended where no candidate was validated
    for link in re.findall(r"\]\(((?:figures|tables)/[^)]*)\)", text):
        assert (report / link).is_file()


def test_coverage_and_agreement_count_every_printed_figure(cells: list[Measured]):
    lines = compare_printed(cells)
    assert len(lines) == 2789
    counts = coverage(lines)
    assert counts.loc[("all", "all"), "printed"] == 2789
    assert counts.loc[("fpr95", "fashion_mnist")].tolist() == [36, 6, 90]  # six sets; two scores of la+nc
    near = agreement(lines, "corrected").loc[("fashion_mnist", "fpr95")]
    here = lines.query("task == 'fashion_mnist' and metric == 'fpr95' and corrected == corrected")
    assert near["count"] == len(here)
    assert near["mean"] == pytest.approx(((here["corrected"] - here["printed"]).abs() <= 0.04).mean(), abs=0.02)


def test_the_page_needs_nothing_but_itself(report: Path):
    text = (report / "index.html").read_text("utf-8")
    page = Page(text)
    assert len(set(page.ids)) == len(page.ids)
    for link in page.links:
        if link.startswith("#"):
            assert link[1:] in page.ids
        elif not link.startswith("data:"):
            assert (report / link).is_file(), link
    assert "<!-- " not in text
    assert not re.search(r"@import|url\(|fetch\(", text)


def test_a_none_class_has_a_second_line_by_its_share():
    def row(method: str, **fpr95: float) -> MeasuredRow:
        figures = {"accuracy": 0.95, "ece": 0.01}
        return MeasuredRow("digits", method, 0, 1, "corrected", figures, {"letters": fpr95}, 0.1, None, (), {})

    plain, none = row("map", fpr95=0.5), row("la+nc", fpr95=0.3, none_share_fpr95=0.1)
    assert terminal.lines_of([plain, none]) == [(plain, "max_prob"), (none, "max_prob"), (none, "none_share")]
    console = Console(width=100, record=True, file=StringIO())
    console.print(terminal.table([plain, none], "digits"))
    *_, last = (line for line in console.export_text().splitlines() if line.strip())
    assert last.split() == ["by", "none_share", "95.0", "1.0", "10.0", "10.0"]


def test_marked_text_is_the_same_in_every_format():
    text = [(Code("la+nc"), "* and ", Strong((Code("a<b"), " wins"))), (Small("1 < 2 & a|b"), Link("x", "y.md"))]
    assert as_markdown(text) == r"`la+nc`\* and **`a<b` wins**<br>1 < 2 & a\|b[x](y.md)"
    assert as_html(text) == (
        "<code>la+nc</code>* and <strong><code>a&lt;b</code> wins</strong><br>"
        '<small>1 &lt; 2 &amp; a|b</small><a href="y.md">x</a>'
    )
    assert as_latex(Strong("5 % ±")) == r"\textbf{5 \% $\pm$}"


def test_every_figure_is_there_twice(report: Path):
    drawn = {path.stem for path in (report / "figures").glob("*.png")}
    assert drawn == {path.stem for path in (report / "figures").glob("*.svg")}
    assert {
        "noise",
        "shift-ece",
        "shift-accuracy",
        "roc-digits-epochs2",
        "scores-cifar100",
        "reliability-fashion_mnist-published",
    } <= drawn


def test_the_same_results_make_the_same_report(results: list[Result], tmp_path: Path):
    once, again = tmp_path / "once", tmp_path / "again"
    for out, some in ((once, results[-2:]), (again, results[:-3:-1])):
        runs = write_runs(some, tmp_path / f"runs of {out.name}")
        write_report(gather([runs], jobs=2 if out == again else 1), out)
    files = [path.relative_to(once) for path in once.rglob("*.*")]
    assert "index.html" in map(str, files)
    for path in files:
        assert (once / path).read_bytes() == (again / path).read_bytes() or path.name == "cells.csv", path


def test_a_report_of_nothing_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="no results to report; run a study first"):
        write_report([], tmp_path)


SORT = """<script>
const table = document.querySelector("#measured-fashion_mnist table"), said = [];
const column = () => [...table.tBodies[0].rows].map(row => parseFloat(row.cells[1].textContent)).join(" ");
said.push(column());
for (let click = 0; click < 3; click++) { table.tHead.rows[0].cells[1].firstChild.click(); said.push(column()); }
document.body.dataset.said = said.join("|");
</script>"""


def said_by(page: Path, folder: Path) -> list[str]:
    """What the page's script leaves, in a browser."""
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    command = ["chromium", *flags, f"--user-data-dir={folder / 'profile'}", "--dump-dom", page.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return re.search(r'data-said="([^"]*)"', shown)[1].split("|")


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium to open the page with")
def test_tables_sort_by_a_click(report: Path, tmp_path: Path):
    page = tmp_path / "index.html"
    page.write_text((report / "index.html").read_text("utf-8").replace("</body>", SORT + "</body>"), "utf-8")
    before, up, down, after = said_by(page, tmp_path)
    rising = sorted(before.split(), key=float)
    assert len(set(rising)) > 3
    assert (up.split(), down.split(), after) == (rising, rising[::-1], before)


FILTER = """<script>
const shown = () => [...document.querySelectorAll(".heat")].filter(one => !one.hidden).map(one => one.dataset.task
  + ":" + [...one.querySelectorAll("tbody tr")].filter(row => !row.hidden).length).join(" ");
const steps = [shown()];
method.value = "nc"; method.dispatchEvent(new Event("input")); steps.push(shown());
task.value = "fashion_mnist"; task.dispatchEvent(new Event("change")); steps.push(shown());
document.body.dataset.said = steps.join("|");
</script>"""


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium to open the page with")
def test_the_heat_map_is_filtered(report: Path, cells: list[Measured], tmp_path: Path):
    page = tmp_path / "index.html"
    page.write_text((report / "index.html").read_text("utf-8").replace("</body>", FILTER + "</body>"), "utf-8")
    everything, by_method, by_both = said_by(page, tmp_path)
    maps = heat_maps(Analysis(cells))
    assert {*everything.split()} == {f"{heat.task}:{len(heat.rows)}" for heat in maps}
    rows = {heat.task: sum("nc" in method for method, *_ in heat.rows) for heat in maps}
    assert {*by_method.split()} == {f"{task}:{count}" for task, count in rows.items()}
    assert by_both == f"fashion_mnist:{rows['fashion_mnist']}"
    assert 0 < rows["fashion_mnist"] < len(next(heat.rows for heat in maps if heat.task == "fashion_mnist"))


def test_the_heat_map_has_the_means_over_seeds(cells: list[Measured]):
    for heat in heat_maps(Analysis(cells)):
        for method, score, values in heat.rows:
            here = [
                run
                for run in cells
                if (run.cell.task, run.cell.method, run.cell.convention, run.cell.epochs, run.cell.limit)
                == (heat.task, method, "corrected", None, None)
                and outliers_of(run.cell) == DEFAULT_OUTLIERS.get(heat.task, "default")
            ]
            metric = "fpr95" if score == "max_prob" else f"{score}_fpr95"
            for name, shown in zip(heat.sets, values, strict=True):
                known = [run.values[name, metric].value for run in here if (name, metric) in run.values]
                assert (shown is None) == (not known)
                assert shown is None or shown[0] == pytest.approx(np.mean(known))


def test_every_claim_is_a_card_with_the_verdicts_of_the_table(cells: list[Measured]):
    table = verdicts.summary(Analysis(cells))
    for card, (title, *texts) in zip(claim_cards(Analysis(cells)), table.rows, strict=True):
        said = {whose: f"{word} ({tests})" if tests else word for whose, word, tests in card.verdicts}
        marked = {whose: text.removesuffix("†") for whose, text in zip(table.head[1:], texts, strict=True)}
        assert card.title == title
        assert {whose: text.replace("†", "") for whose, text in said.items()} == {
            whose: text for whose, text in marked.items() if text != "–"
        }


# figures ------------------------------------------------------------------------------------------------------------


def test_figures_are_one_column_wide():
    confidences = {"mnist": {"de": 0.9, "la": 0.5}}
    shift = shift_by_severity()
    for figure in (draw_noise_confidence(confidences, confidences), draw_shift(shift, shift, "ECE")):
        assert figure.get_size_inches()[0] == WIDTH == 3.3


def test_the_area_under_the_drawn_curve_is_auroc(result: Result):
    outside = result.ood["uniform"]
    x, y = acceptance(-max_prob_score(result.test), -max_prob_score(outside))
    area = -np.trapezoid(y, x) / 100**2
    assert area == pytest.approx(Separation(-max_prob_score(result.test), -max_prob_score(outside)).auroc, abs=0.01)
    assert (x[0], y[0], x[-1], y[-1]) == (100, 100, 0, 0)
