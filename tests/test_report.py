"""The report: published figures in their places, intervals that are the bootstrap's, the same files each time."""

import csv
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from demur.metrics import METRICS, Prediction, Separation, accuracy, ece, ece_published, max_prob_score, mmc
from demur.report import render
from demur.report.compare import ReportTable, tables
from demur.report.figures import WIDTH, _kept, draw_noise_confidence, draw_shift
from demur.report.intervals import AGAINST, INSIDE, against, counts, interval
from demur.report.page import results_csv, write_report
from demur.study.grid import Cell
from demur.study.published import OOD_SETS, TABLES, TEST, figures, shift_by_severity, shift_figures
from demur.study.results import Result

POINTS = 300


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
    record = {
        "notes": {"tiny": "stands in for large"},
        "missing": list(missing),
        "seconds": {"fit": 12.25},
        "threads": 2,
    }
    return Result(cell, y, test, ood, record)


def named(made: list[ReportTable], name: str) -> ReportTable:
    return next(table for table in made if table.name == name)


# published ----------------------------------------------------------------------------------------------------------


def test_every_published_figure_has_one_place():
    placed = [table.published(row, column) for table in TABLES for row in table.rows for column in table.columns]
    found = [figure for figure in placed if figure is not None]
    assert len(figures()) == len(found) == 2789
    assert set(found) == set(figures())


def test_tables_of_everything_show_every_published_figure():
    shown = [entry for table in tables([], everything=True) for line in table.lines for entry in line.entries]
    assert {entry.published for entry in shown} - {None} == set(figures())
    assert tables([]) == []


def test_published_columns_lack_no_figure():
    for table in TABLES:
        for column in table.columns:
            for row in table.rows:
                assert (table.published(row, column) is not None) == (column.convention == "published")


def test_the_published_means_are_those_of_the_detailed_table():
    at = {(f.table, f.task, f.set, f.row, f.metric): f.value for f in figures()}
    summary = next(table for table in TABLES if table.label == "ood_summary")
    for column in (column for column in summary.columns if column.convention == "published"):
        for row in summary.rows:
            parts = [at["fpr95", column.task, name, row, "fpr95"] for name in column.over]
            assert abs(np.mean(parts) - summary.published(row, column).value) < 0.0011, (column.task, row)


def test_the_shift_figures_are_complete():
    assert len(shift_figures()) == 13 * 19 * 5 * 3
    by_severity = shift_by_severity()
    assert len(by_severity) == 13
    assert all(len(values) == 19 for method in by_severity.values() for values in method.values())


# the note on ECE ----------------------------------------------------------------------------------------------------


def test_the_note_lists_the_rows_that_break_the_bound():
    at = {(f.table, f.task, f.row.method, f.metric): 100 * f.value for f in figures() if f.set == TEST}
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


@pytest.mark.parametrize("metric", INSIDE)
def test_a_resample_is_the_metric_of_the_points_drawn(metric: str, result: Result):
    drawn = counts("test", POINTS)
    resampled = INSIDE[metric](result.test, result.y, drawn)
    for column in range(4):
        prediction, index = repeated(result.test, drawn[:, column])
        assert resampled[column] == pytest.approx(METRICS[metric](prediction, result.y[index]), rel=1e-6)


@pytest.mark.parametrize("metric", AGAINST)
def test_a_resample_separates_as_the_points_drawn(metric: str, result: Result):
    inside, outside = -max_prob_score(result.test), -max_prob_score(result.ood["uniform"])
    drawn = counts("test", POINTS), counts("uniform", POINTS)
    resampled = against(metric, inside, outside, *drawn)
    for column in range(6):
        again = Separation(np.repeat(inside, drawn[0][:, column]), np.repeat(outside, drawn[1][:, column]))
        assert resampled[column] == pytest.approx(getattr(again, metric), rel=1e-6)


def test_the_interval_of_an_accuracy_is_the_binomials():
    right = np.arange(2000) < 1800
    probs = torch.tensor([[0.6, 0.4]]).expand(2000, 2)
    y = torch.from_numpy(~right).long()
    low, high = interval(INSIDE["accuracy"](Prediction(probs, None, torch.zeros(2000)), y, counts("test", 2000)))
    half = 1.96 * (0.9 * 0.1 / 2000) ** 0.5
    assert (low, high) == (pytest.approx(0.9 - half, abs=0.15 * half), pytest.approx(0.9 + half, abs=0.15 * half))


def test_seeds_share_their_resamples():
    """Two networks that answer alike are no more evidence about the test points than one."""
    one = make_result(Cell("mnist", "map"))
    twin = replace(one, cell=replace(one.cell, seed=1))
    alone, both = (named(tables(results), "fpr95-mnist").lines[0] for results in ([one], [one, twin]))
    for first, second in zip(alone.entries, both.entries, strict=True):
        assert (first.measured.low, first.measured.high) == pytest.approx((second.measured.low, second.measured.high))
        assert len(second.measured.by_seed) == 2


# tables -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def results() -> list[Result]:
    cells = [Cell("fashion_mnist", method, seed) for method in ("map", "map+oe", "la", "la+nc") for seed in (0, 1)]
    made = [make_result(cell, sure=5 + 0.2 * place) for place, cell in enumerate(cells)]
    made.append(make_result(Cell("fashion_mnist", "vb"), collapsed=True, sure=12))
    made.append(make_result(Cell("fashion_mnist", "la+oe", outliers="smooth"), seed=7))
    made.append(make_result(Cell("fashion_mnist", "map", convention="published"), seed=8))
    made.append(make_result(Cell("cifar100", "map"), missing=("lsun_classroom",), seed=9))
    made.append(make_result(Cell("digits", "map", epochs=2)))
    return made


@pytest.fixture(scope="module")
def made(results: list[Result]) -> list[ReportTable]:
    return tables(results)


def test_a_figure_stands_beside_its_published_one(results: list[Result], made: list[ReportTable]):
    table = named(made, "fpr95-fashion_mnist")
    line = next(line for line in table.lines if line.row == ("la+nc", "none"))
    place = next(place for place, column in enumerate(table.columns) if column.set == "kmnist")
    seeds = [one for one in results if one.cell.method == "la+nc"]
    expected = [
        Separation(-one.test.none.double().numpy(), -one.ood["kmnist"].none.double().numpy()).fpr95 for one in seeds
    ]
    entry = line.entries[place]
    assert entry.measured.by_seed == tuple(expected)
    printed = [f for f in figures() if f.table == "fpr95" and f.task == "fashion_mnist" and f.set == "kmnist"]
    assert entry.published == next(figure for figure in printed if figure.row == line.row)
    assert entry.difference == np.mean(expected) - entry.published.value


def test_outliers_and_conventions_are_kept_apart(made: list[ReportTable]):
    usual, noise = named(made, "fpr95-fashion_mnist"), named(made, "fpr95_noise_more-fashion_mnist")
    published = named(made, "fpr95-fashion_mnist-published")
    done = {
        table: {line.row.label for line in table.lines if line.entries[0].measured}
        for table in (usual, noise, published)
    }
    assert done[usual] == {"map", "map+oe", "vb", "la", "la+nc", "la+nc, none score"}
    assert done[noise] == {"map", "vb", "la", "la+oe"}  # what is shown no outliers fits every table
    assert done[published] == {"map"}
    first = {table: next(line for line in table.lines if line.row.method == "map").entries[0] for table in done}
    assert first[usual].measured.value != first[published].measured.value


def test_the_best_is_no_collapsed_classifier(made: list[ReportTable]):
    """The planted one tells outliers best, and no classes apart."""
    table = named(made, "fpr95-fashion_mnist")
    for place in range(len(table.columns)):
        found = {line.row: entry for line in table.lines if (entry := line.entries[place]).measured}
        assert [row.method for row, entry in found.items() if entry.measured.collapsed] == ["vb"]
        shown = {row: round(100 * entry.measured.value, 1) for row, entry in found.items()}
        assert min(shown, key=shown.get) == ("vb", "max_prob")
        best = min(value for row, value in shown.items() if row.method != "vb")
        starred = {row for row, entry in found.items() if entry.best}
        assert starred == {row for row, value in shown.items() if value == best and row.method != "vb"}


def test_a_mean_that_lacks_a_set_says_so(made: list[ReportTable]):
    table = named(made, "ood_summary")
    place = next(p for p, c in enumerate(table.columns) if c.task == "cifar100" and c.convention == "corrected")
    assert table.columns[place].over == OOD_SETS["cifar100"]
    assert table.lines[0].entries[place].measured.partial
    text = render.text(table)
    assert "† A mean over those" in text
    assert "cifar100: not measured, since the data is missing: lsun_classroom" in text
    assert "fashion_mnist: tiny stands in for large" in text


def test_what_was_not_measured_is_a_dash_above_the_published_figure(made: list[ReportTable]):
    lines = render.text(named(made, "acc_ece-ece")).splitlines()
    row = next(place for place, line in enumerate(lines) if line.startswith("de "))
    assert lines[row].split()[1] == "–"
    de = next(
        f
        for f in figures()
        if (f.table, f.task, f.row.method, f.metric) == ("acc_ece", "fashion_mnist", "de", "ece_published")
    )
    assert f"{100 * de.value:.1f}" in lines[row + 1].split()


def test_a_wide_table_goes_on_below(made: list[ReportTable]):
    table = named(made, "measured-fashion_mnist")
    narrow = render.text(table, width=60)
    assert max(map(len, narrow.splitlines()[2:-8])) <= 60
    assert narrow.count("\nmethod") > render.text(table, width=300).count("\nmethod") == 1


def test_latex_and_markdown_are_well_formed(made: list[ReportTable]):
    for table in made:
        tex = render.latex(table)
        assert re.sub(r"\\[{}]", "", tex).count("{") == tex.count("}")
        assert not re.search(r"(?<!\\)[%#]|[±–†‡−]", tex)
        rows = [line for line in tex.splitlines() if " & " in line]
        assert {line.count(" & ") for line in rows} == {len(table.columns)}
        pipes = {line.count("|") for line in render.markdown(table).splitlines() if line.startswith("|")}
        assert pipes == {len(table.columns) + 2}


# files --------------------------------------------------------------------------------------------------------------


def test_results_csv_is_exact_and_has_no_order_but_its_own(results: list[Result]):
    text = results_csv(results)
    assert results_csv(results[::-1]) == text
    rows = list(csv.DictReader(StringIO(text)))
    assert not {"seconds", "device", "threads"} & rows[0].keys()
    keys = [tuple(row[name] for name in rows[0] if name != "value") for row in rows]
    assert len(set(keys)) == len(keys)
    last = results[-1]
    found = {row["metric"]: row["value"] for row in rows if row["task"] == "digits" and row["set"] == "test"}
    for name, metric in METRICS.items():
        expected = metric(last.test, last.y)
        assert float(found[name]) == expected or np.isnan(expected)


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
    write_report(results, out, shift={"map": {1: [0.1, 0.2], 2: [0.2, 0.4]}})
    return out


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


def test_every_figure_is_there_twice(report: Path):
    drawn = {path.stem for path in (report / "figures").glob("*.png")}
    assert drawn == {path.stem for path in (report / "figures").glob("*.svg")}
    assert {"noise", "shift", "roc-digits-epochs2", "scores-cifar100", "reliability-fashion_mnist-published"} <= drawn


def test_the_same_results_make_the_same_report(results: list[Result], tmp_path: Path):
    once, again = tmp_path / "once", tmp_path / "again"
    write_report(results[-2:], once)
    write_report(results[:-3:-1], again)
    files = [path.relative_to(once) for path in once.rglob("*.*")]
    assert "index.html" in map(str, files)
    for path in files:
        assert (once / path).read_bytes() == (again / path).read_bytes() or path.name == "cells.csv", path


def test_a_report_of_nothing_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="no results to report; run a study first"):
        write_report([], tmp_path)


SORT = """<script>
const table = document.querySelector("#measured-fashion_mnist table"), said = [];
const column = () => [...table.tBodies[0].rows].map(row => row.cells[1].dataset.value ?? "none").join(" ");
said.push(column());
for (let click = 0; click < 3; click++) { table.tHead.rows[0].cells[1].firstChild.click(); said.push(column()); }
document.body.dataset.said = said.join("|");
</script>"""


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium to open the page with")
def test_tables_sort_by_a_click(report: Path, tmp_path: Path):
    page = tmp_path / "index.html"
    page.write_text((report / "index.html").read_text("utf-8").replace("</body>", SORT + "</body>"), "utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    command = ["chromium", *flags, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", page.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    before, up, down, after = re.search(r'data-said="([^"]*)"', shown)[1].split("|")
    rising = sorted(before.split(), key=float)
    assert len(set(rising)) > 3
    assert (up.split(), down.split(), after) == (rising, rising[::-1], before)


# figures ------------------------------------------------------------------------------------------------------------


def test_figures_are_one_column_wide():
    confidences = {"mnist": {"de": 0.9, "la": 0.5}}
    for figure in (draw_noise_confidence(confidences, confidences), draw_shift(shift_by_severity())):
        assert figure.get_size_inches()[0] == WIDTH == 3.3


def test_the_area_under_the_drawn_curve_is_auroc(result: Result):
    outside = result.ood["uniform"]
    x, y = _kept(result.test, outside)
    area = -np.trapezoid(y, x) / 100**2
    assert area == pytest.approx(Separation(-max_prob_score(result.test), -max_prob_score(outside)).auroc, abs=0.01)
    assert (x[0], y[0], x[-1], y[-1]) == (100, 100, 0, 0)
