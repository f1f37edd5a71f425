"""Why values differ from the printed ones: every disagreement has one cause, or is said to have none that is known."""

from dataclasses import replace

import pytest

from demur.paper.agreement import LIMIT, compare_printed
from demur.paper.analysis import Analysis
from demur.paper.causes import CAUSES, OPEN, Disagreement, disagreements
from demur.paper.published import TITLES, printed_values
from demur.paper.statistics import Known, Spread
from demur.report.causes import by_cause, line_by_line
from demur.report.seeds import compared, is_within, seeds_section, seeds_tables
from demur.report.sheet import as_markdown, markdown
from demur.study.grid import Cell
from demur.study.measuring import Value
from demur.study.results import TEST
from demur.study.table import Measured
from tests.test_claims import measured

PRINTED = {
    (entry.task, entry.row.method, entry.set, entry.metric): entry.value
    for entry in printed_values()
    if entry.row.score == "max_prob" and entry.outliers != "smooth"
}


def as_printed(cell: Cell, **changed: float) -> Measured:
    """A cell with the paper's own values, some of them moved: `fpr95_kmnist=0.1`."""
    moved = {tuple(place.split("_", 1)): difference for place, difference in changed.items()}
    values = {
        (where, metric): Value(value + moved.get((metric.split("_")[0], where), 0.0))
        for (task, method, where, metric), value in PRINTED.items()
        if (task, method) == (cell.task, cell.method)
    }
    accuracy = {(TEST, "accuracy"): Value(0.9), (TEST, "majority"): Value(0.1), (TEST, "nll"): Value(0.1)}
    return replace(measured(cell, lambda *place: 0.5), values={**accuracy, **values}, sets=("kmnist", "emnist_letters"))


def cell(method: str, task: str = "mnist", seed: int = 0) -> Cell:
    return Cell(task, method, seed, "published")


def test_a_value_as_it_is_printed_disagrees_with_nothing():
    assert list(disagreements([as_printed(cell("la+nc")), as_printed(cell("vb", "cifar10"))])) == []
    assert by_cause(Analysis([as_printed(cell("la+nc"))])) is None
    assert line_by_line(Analysis([as_printed(cell("la+nc"))])) is None


def causes_of(*runs: Measured) -> dict[tuple[str, str], str]:
    return {(one.printed.metric, one.printed.set): cause.title for one, cause in disagreements(runs)}


def test_each_disagreement_has_the_first_cause_that_applies():
    assert causes_of(as_printed(cell("la+nc"), fpr95_kmnist=0.05)) == {("fpr95", "kmnist"): "Not known"}
    assert causes_of(as_printed(cell("la+nc"), fpr95_kmnist=LIMIT)) == {}
    assert causes_of(as_printed(cell("la+sl"), fpr95_kmnist=0.05)) == {("fpr95", "kmnist"): "Soft labels"}
    assert causes_of(as_printed(cell("map"), fpr95_uniform=-0.5)) == {("fpr95", "uniform"): "Uniform noise"}
    few = {("aupr_published", "emnist_letters"): "Fewer letters and digits"}
    assert causes_of(as_printed(cell("map"), aupr_emnist_letters=0.1)) == few
    on_photographs = as_printed(cell("vb+ml", "cifar10"), fpr95_cifar100=0.1)
    assert causes_of(on_photographs) == {("fpr95", "cifar100"): "Other natural images"}
    assert causes_of(as_printed(cell("vb", "cifar10"), fpr95_cifar100=0.1)) == {("fpr95", "cifar100"): "Not known"}


def test_luck_is_what_two_networks_differ_by_where_their_spread_is_measured():
    """What is printed is of one network, too: with three of ours a difference has twice the interval of their mean."""
    of_map = (one for one in printed_values() if (one.table, one.task, one.row.label) == ("fpr95", "mnist", "map"))
    entry = next(one for one in of_map if one.set == "kmnist")
    ours = Known(entry.value + 0.05, by_seed={0: entry.value + 0.05}, spread=Spread(0.02**2, 100))
    one = Disagreement(entry, ours, (as_printed(cell("map")),), printed_collapsed=False)
    luck = next(cause for cause in CAUSES if cause.title == "Luck of training")
    assert one.ours.of_one_more == pytest.approx(2.776 * 0.02 * 2**0.5, rel=1e-3)
    assert luck.applies(one)
    assert not luck.applies(replace(one, ours=replace(ours, spread=Spread(0.02**2, 100, assumed=True))))
    assert not luck.applies(replace(one, ours=replace(ours, spread=Spread(0.01**2, 100))))
    three = replace(ours, by_seed=dict.fromkeys(range(3), ours.value))
    assert three.of_one_more == pytest.approx(2 * three.training)


def test_all_that_disagrees_is_counted_once_and_listed():
    differ = [as_printed(cell(method), fpr95_kmnist=0.05, mmc_uniform=0.3) for method in ("map", "la+nc", "vb+sl")]
    lines = compare_printed(differ)
    apart = lines[lines["published"].notna() & ((lines["published"] - lines["printed"]).abs().round(3) > LIMIT)]
    section, sheet = by_cause(Analysis(differ)), line_by_line(Analysis(differ))
    assert section is not None
    assert sheet is not None
    counts = section.blocks[1]
    assert counts.rows[-1][-1] == str(len(apart))
    assert sum(int(row[-1]) for row in counts.rows[:-1]) == len(apart)
    assert [row[0] for row in counts.rows[:-1]] == [
        cause.title for cause in (*CAUSES, OPEN) if cause.title in {row[3] for row in sheet.rows}
    ]
    listed = as_markdown([row[-1] for row in sheet.rows])
    assert listed.count("+5.0") == 3
    assert set(apart["table"]) <= {*TITLES}


def test_a_collapsed_classifier_is_named_first():
    values = as_printed(cell("la+ml", "sst"), accuracy_test=0.3, fpr95_snli=-0.8).values
    ours = replace(as_printed(cell("la+ml", "sst")), values=values)
    assert set(causes_of(ours).values()) == {"Collapsed"}
    fallen = replace(as_printed(cell("map"), fpr95_kmnist=0.5))
    gone = replace(fallen, values={**fallen.values, (TEST, "accuracy"): Value(0.1)})
    assert causes_of(gone) == {("fpr95", "kmnist"): "Collapsed"}


# the spread over seeds ----------------------------------------------------------------------------------------------


def corrected(method: str, task: str, *moved: float) -> list[Measured]:
    """A network a value: its FPR95 on characters is so far from the printed one."""
    cells = [Cell(task, method, seed) for seed in range(len(moved))]
    return [as_printed(cell, fpr95_kmnist=by) for cell, by in zip(cells, moved, strict=True)]


def test_a_printed_value_lies_within_where_one_more_network_might():
    """With sd s of three networks, a fourth is within 4.30 s (1 + 1/3)^1/2 of their mean in 95 % of all cases."""
    near = corrected("map", "mnist", 0.08, 0.10, 0.12)
    ours, printed = compared(Analysis(near))["mnist", "map"]["kmnist"]
    assert ours.value - printed == pytest.approx(0.1)
    alone = replace(ours, spread=Spread(), over_points=0.0)
    assert alone.of_one_more == pytest.approx(4.3027 * 0.02 * (4 / 3) ** 0.5, rel=1e-4)
    assert is_within(replace(alone, value=printed + 0.099), printed)
    assert not is_within(replace(alone, value=printed + 0.1), printed)


def test_values_are_counted_and_marked_by_set():
    cells = [*corrected("map", "mnist", 0.3, 0.31, 0.29), *corrected("map+oe", "mnist", 0.0, 0.01, -0.01)]
    few = [*corrected("la", "mnist", 0.3, 0.3), *corrected("map", "sst", 0.1, 0.1, 0.1)]
    section, (table,) = seeds_section(Analysis([*cells, *few])), seeds_tables(Analysis([*cells, *few]))
    assert section is not None
    assert section.blocks[1].rows == seeds_section(Analysis(cells)).blocks[1].rows  # two seeds are too few
    assert [as_markdown(row) for row in section.blocks[1].rows] == ["`map`<br>4 of 5", "`map+oe`<br>5 of 5"]
    line = next(line for line in markdown(table).splitlines() if line.startswith("| `map` |"))
    printed = PRINTED["mnist", "map", "kmnist", "fpr95"]
    assert f"| {100 * (printed + 0.3):.1f} ±1.0<br>**{100 * printed:.1f} outside** |" in line
    assert line.count("outside") == 1
    assert seeds_section(Analysis(few)) is None
    assert seeds_tables(Analysis(few)) == []
