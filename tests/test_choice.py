"""The rule that chooses the recommended method, on synthetic results."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from demur.cli import app
from demur.outliers.spectrum import mean_power
from demur.outliers.synthetic import SYNTHETIC
from demur.paper.choice import SEEDS, Candidate, OfSeed, candidates_in, choose_candidate, choose_for_all, rank
from demur.paper.grid import CHOICE, CHOICE_SCORES
from demur.paper.measuring import values_of
from demur.paper.published import MEAN, OOD_SETS
from demur.paper.suite import COUNT, INLIERS, KINDS, SUITE, interlaced, overlaid, set_name, suite
from demur.report.choice import choice_section, choice_tables
from demur.report.field import field_table
from demur.report.page import write_report
from demur.report.sheet import Section, Sheet, as_markdown, markdown
from demur.streams import generator_for
from demur.study.fits import Data
from demur.study.grid import Cell
from demur.study.measuring import Value
from demur.study.records import Record
from demur.study.results import TEST
from demur.study.table import Measured, cells_csv, gather, read_tables, results_csv
from demur.tasks import Split, Store
from demur.tasks import load as load_task

NOWHERE = Store(Path("nowhere"))

NAMES = [name for sets in SUITE.values() for name in sets]
MAP = [OfSeed(seed, 0.95, {}) for seed in range(SEEDS)]
LA, DE, SL = (Candidate(method, None, "none_share") for method in ("la+nc", "de+nc", "la+sl"))


def runs(fpr95: float, accuracy: float = 0.95, seeds: int = SEEDS, **others: float) -> list[OfSeed]:
    """The same everywhere but on the sets named."""
    return [OfSeed(seed, accuracy, dict.fromkeys(NAMES, fpr95) | others) for seed in range(seeds)]


def test_the_mean_rank_decides_and_not_one_hard_set():
    """The first is better on all kinds but one, and much worse there: its mean FPR95 is the worse."""
    made = rank({LA: runs(0.10, gradients=0.9), DE: runs(0.12)}, MAP)
    assert choose_candidate(made) == LA
    assert [one.mean_rank for one in made] == pytest.approx([(7 * 1 + 2) / 8, (7 * 2 + 1) / 8])


def test_a_kind_counts_once_however_many_sets_it_has():
    kinds = {"one": ("letters",), "three": ("shapes", "gradients", "overlaid"), "other": ("interlaced",)}
    made = rank({LA: runs(0.2, shapes=0.0, gradients=0.0, overlaid=0.0), DE: runs(0.1)}, MAP, kinds)
    assert choose_candidate(made) == DE
    assert made[1].ranks["three"] == 1


def test_half_a_point_of_accuracy_may_be_lost_and_no_more():
    made = rank({LA: runs(0.01, accuracy=0.9449), DE: runs(0.5, accuracy=0.945)}, MAP)
    assert choose_candidate(made) == DE
    assert made[-1].barred == "accuracy 0.5 points below map"


def test_three_seeds_and_every_set_are_needed():
    short = [OfSeed(seed, 0.95, dict.fromkeys(NAMES[1:], 0.1)) for seed in range(SEEDS)]
    made = rank({LA: runs(0.01, seeds=1), DE: short, SL: runs(0.9)}, MAP)
    assert choose_candidate(made) == SL
    assert {one.barred for one in made[1:]} == {f"1 of {SEEDS} training seeds", f"not measured on {NAMES[0]}"}


def test_barred_candidates_take_no_rank_from_others():
    assert rank({LA: runs(0.01, accuracy=0.5), DE: runs(0.2), SL: runs(0.3)}, MAP)[0].mean_rank == 1


def test_ties_share_their_rank_and_nothing_is_chosen_of_nothing():
    assert [one.mean_rank for one in rank({LA: runs(0.1), DE: runs(0.1)}, MAP)] == [1.5, 1.5]
    assert choose_candidate(rank({LA: runs(0.1)}, [])) is None
    assert rank({}, MAP) == []


def test_nothing_is_chosen_among_what_candidates_have_to_beat():
    """They are measured first; until a candidate is, the best of them is no recommendation."""
    rivals = {Candidate("map", None, "energy"): runs(0.1), Candidate("map+oe", None, "max_prob"): runs(0.2)}
    assert choose_candidate(rank(rivals, MAP)) is None
    assert choose_candidate(rank({**rivals, LA: runs(0.01, seeds=1)}, MAP)) is None
    assert choose_candidate(rank({**rivals, LA: runs(0.3)}, MAP)) == Candidate("map", None, "energy")
    assert choose_candidate(rank({**rivals, LA: runs(0.01)}, MAP)) == LA
    apart = {"mnist": ({**rivals, LA: runs(0.3)}, MAP), "cifar10": ({**rivals, DE: runs(0.3)}, MAP)}
    assert choose_for_all(apart) is None
    assert choose_for_all({task: ({**measured, SL: runs(0.01)}, MAP) for task, (measured, _) in apart.items()}) == SL


def test_one_for_several_tasks_is_eligible_on_each_and_ranked_among_these():
    """The best of each task is out on the other; what is left is ranked anew."""
    first = {LA: runs(0.1), DE: runs(0.2), SL: runs(0.3)}
    second = {LA: runs(0.1, accuracy=0.9), DE: runs(0.3), SL: runs(0.2, letters=0.9)}
    assert choose_for_all({"mnist": (first, MAP)}) == LA
    assert choose_for_all({"mnist": (first, MAP), "cifar10": (second, MAP)}) == DE  # 1 and 15 / 8 against 2 and 9 / 8
    assert choose_for_all({"mnist": (first, MAP), "cifar10": ({LA: runs(0.1, seeds=1)}, MAP)}) is None
    assert choose_for_all({}) is None


# the suite ----------------------------------------------------------------------------------------------------------


def test_the_suite_shares_no_set_with_the_tests_nor_with_what_is_trained_with():
    assert not {*NAMES} & {name for sets in OOD_SETS.values() for name in sets}
    shown = {name for _, outliers in CHOICE for name in (outliers or "").split("+")}
    assert not {*NAMES} & {*shown, *SYNTHETIC["images"]}
    assert len({*NAMES}) == len(NAMES)
    assert {"soft", "sharp"} == {kind.split(", ")[1] for kind in SUITE}


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 8, 8)])
def test_every_set_is_of_the_inliers_kind_varied_and_always_the_same(shape: tuple[int, ...]):
    held_out = Split(torch.randint(256, (60, *shape), dtype=torch.uint8), torch.arange(60) % 3)
    for kind in KINDS.values():
        for name, make in kind.items():
            made, again = (make(held_out, generator_for(name)) for _ in range(2))
            assert made.shape == (COUNT, *shape)
            assert made.dtype == torch.uint8
            assert torch.equal(made, again)
            assert made.float().std() > 20
            assert len(made.flatten(1).unique(dim=0)) > COUNT / 10


def test_soft_sets_are_softer_than_sharp_ones():
    """By the share of power in the upper half of the frequencies."""
    inliers = Split(torch.randint(256, (60, 3, 32, 32), dtype=torch.uint8), torch.arange(60) % 3)

    def sharpness(kind: str) -> float:
        (make,) = KINDS[kind].values()
        power = mean_power(make(inliers, generator_for(kind)))
        return float(power[16:, 16:].sum() / (power.sum() - power[0, 0]))

    for subject in ("characters", "photographs", "drawn"):
        assert sharpness(f"{subject}, soft") < 0.2 * sharpness(f"{subject}, sharp")


def test_two_inliers_are_of_different_classes():
    """Each class has a grey of its own, so that both parts can be told."""
    y = torch.arange(90) % 3
    x = (100 * y).to(torch.uint8)[:, None, None, None].expand(-1, 1, 16, 16)
    joined, mean = interlaced(Split(x, y), generator_for("a")), overlaid(Split(x, y), generator_for("b"))
    assert {tuple(values.unique().tolist()) for values in joined} == {(0, 100), (0, 200), (100, 200)}
    assert {tuple(values.unique().tolist()) for values in mean} == {(50,), (100,), (150,)}
    bands = joined[:, 0, :, 0].reshape(COUNT, 8, 2)
    assert (bands[:, :, 0] == bands[:, :, 1]).all()
    assert (bands[:, ::2] == bands[:, :1]).all()


def test_tasks_that_have_no_suite_are_refused():
    with pytest.raises(ValueError, match="the validation suite is of images, and task 'blobs' has none"):
        suite(Data("blobs"), NOWHERE)
    with pytest.raises(ValueError, match="needs held-out inputs of two classes, not 1; raise --limit"):
        suite(Data("digits", limit=6), NOWHERE)


def test_the_suite_has_held_out_inliers_and_every_set():
    y, sets = suite(Data("digits"), NOWHERE)
    task = load_task("digits")
    assert torch.equal(sets[INLIERS], task.training.held_out.x)
    assert torch.equal(y, task.training.held_out.y)
    assert [*sets] == [INLIERS, *map(set_name, NAMES)]


# the report ---------------------------------------------------------------------------------------------------------


def measured(
    task: str,
    method: str,
    seed: int,
    fpr95: float,
    outliers: str | None = None,
    epochs: int | None = None,
    accuracy: float = 0.95,
    test: float = 0.3,
) -> Measured:
    """A cell whose FPR95 on the suite is the same everywhere, and better by energy; on test data as well."""
    scores = {"": 0.0, "energy_": -0.05, **({"none_share_": -0.02} if method.endswith("nc") else {})}
    values = {(INLIERS, "accuracy"): Value(accuracy), (TEST, "accuracy"): Value(accuracy), (TEST, "ece"): Value(0.02)}
    for prefix, less in scores.items():
        values |= {(set_name(name), f"{prefix}fpr95"): Value(fpr95 + less + seed / 1000) for name in NAMES}
        for name in (*OOD_SETS.get(task, ()), MEAN):
            values[name, f"{prefix}fpr95"] = Value(test + less + seed / 100)
            values[name, f"{prefix}auroc"] = Value(0.9)
            values[name, "mmc"] = Value(0.5)
    values[TEST, "majority"] = Value(0.1)
    record = Record(
        cells=(),
        sets=(),
        fit={"recipe": {"epochs": 1}},
        seconds={"fit": 120.0 if method == "map" else 300.0},
        missing=(),
        notes={},
        trained_with=outliers,
        training_inputs=600,
        threads=1,
        device="a GPU",
        jobs=1,
        data={"ood/svhn": "digest"},
    )
    cell = Cell(task, method, seed, outliers=outliers, epochs=epochs, further=("suite",))
    return Measured(cell, values, record, OOD_SETS.get(task, ()))


PATCHES = "tiny_imagenet32+patches"


@pytest.fixture
def cells() -> list[Measured]:
    """la+nc with patches is the best that is accurate enough; de+nc has two seeds only."""
    return [
        *(measured("cifar10", "map", seed, 0.5) for seed in range(3)),
        *(measured("cifar10", "map+oe", seed, 0.4, test=0.1) for seed in range(3)),
        *(measured("cifar10", "la+nc", seed, 0.2, PATCHES) for seed in range(3)),
        *(measured("cifar10", "la+nc", seed, 0.3) for seed in range(3)),
        *(measured("cifar10", "la+sl", seed, 0.1, accuracy=0.9) for seed in range(3)),
        *(measured("cifar10", "de+nc", seed, 0.1) for seed in range(2)),
    ]


def test_the_table_of_candidates_has_ranks_by_kind_and_says_who_is_out(cells: list[Measured]):
    (table,) = choice_tables(cells)
    lines = [line.split(" | ") for line in markdown(table).splitlines() if line.startswith("| `")]
    assert table.name == "choice-cifar10"
    assert lines[0][:7] == ["| `la+nc`", PATCHES, "`energy`", "**chosen**", "3", "1.0", "1"]
    assert lines[0][-2:] == ["15.1", "95.0 |"]
    assert lines[1][:3] == ["| `la+nc`", PATCHES, "`none_share`"]
    assert {tuple(line[i] for i in (0, 3)) for line in lines if line[5] == "–"} == {
        ("| `la+sl`", "accuracy 5.0 points below map"),
        ("| `de+nc`", "2 of 3 training seeds"),
    }
    assert len(lines) == 2 + 2 + 3 + 3 + 2 + 3  # a line a method, its outliers and a score


def test_a_first_look_ranks_and_chooses_nothing():
    short = [measured("cifar10", method, 0, 0.2, epochs=30) for method in ("map", "la+nc")]
    (table,) = choice_tables(short)
    assert table.name == "choice-cifar10-epochs30"
    text = markdown(table)
    assert "**chosen**" not in text
    assert "by which nothing is chosen" in text
    assert "| `la+nc` | the usual | `energy` |  | 1 | 1.5 |" in text
    assert choice_section(short) is None


def test_the_section_tests_the_chosen_one_and_names_what_is_ahead_of_it(cells: list[Measured]):
    text = read(choice_section(cells))
    assert (
        "| cifar10 | `la+nc` with the score `energy`, trained with tiny_imagenet32+patches "
        "| 95.0 ±0.0 | +0.0 | 2.0 ±0.0 |" in text
    )
    row = next(line for line in text.splitlines() if line.startswith("| cifar10 |"))
    assert "| 26.0 ±1.0 | 90.0 ±0.0 | 5.0 (2.5 ×) | 3 |" in row
    assert "`map+oe` by `energy` 6.0" in row
    assert "`map+oe` by `max_prob` 11.0" in row
    assert "the paper's `la+nc, none score` 12.0" in row
    assert "`map` by" not in row


def test_digits_are_a_trial_and_recommend_nothing(cells: list[Measured]):
    digits = [measured("digits", method, seed, 0.2) for method in ("map", "la+nc") for seed in range(3)]
    (table,) = choice_tables(digits)
    assert "**chosen**" in markdown(table)
    assert choice_section(digits) is None
    assert read(choice_section([*cells, *digits])) == read(choice_section(cells))


def test_test_figures_have_no_say(cells: list[Measured]):
    worse = [
        replace(run, values={place: value for place, value in run.values.items() if place[0].startswith("suite")})
        for run in cells
    ]
    assert rank(*candidates_in(worse, "cifar10")) == rank(*candidates_in(cells, "cifar10"))


def test_several_tasks_have_one_choice_and_their_own(cells: list[Measured]):
    others = [
        *(measured("svhn", "map", seed, 0.5) for seed in range(3)),
        *(measured("svhn", "la+nc", seed, 0.4) for seed in range(3)),
        *(measured("svhn", "map+oe", seed, 0.1) for seed in range(3)),
        *(measured("svhn", "la+nc", seed, 0.2, PATCHES) for seed in range(3)),
    ]
    text = read(choice_section([*cells, *others]))
    assert (
        "One for all of these tasks, by the mean over tasks: `la+nc` with the score "
        "`energy`, trained with tiny_imagenet32+p" in text
    )
    by_itself = text[text.index("By each task alone") :]
    assert "| svhn | `map+oe` with the score `energy`, trained with the usual outliers |" in by_itself


def test_the_study_runs_and_its_table_is_made(tmp_path: Path):
    """On digits, all there is of candidates from training to the ranks, by every score."""
    runs = tmp_path / "runs"
    options = "--task digits --method map --method la+nc --epochs 1 --limit 120 --seeds 1 --jobs 1 --device cpu"
    done = CliRunner().invoke(app, ["study", "choice", *options.split(), "--runs", str(runs)])
    assert done.exit_code == 0, done.output
    (table,) = choice_tables(gather([runs], values_of))
    assert table.name == "choice-digits-epochs1-limit120"
    lines = {tuple(as_markdown(entry).strip("`") for entry in row[:3:2]) for row in table.rows}
    assert lines >= {(method, score) for method in ("map", "la+nc") for score in (*CHOICE_SCORES, "max_prob")}
    assert ("la+nc", "none_share") in lines
    assert ("map", "none_share") not in lines


# beside the field ---------------------------------------------------------------------------------------------------


def test_the_table_beside_the_field_fills_as_results_come_in(cells: list[Measured]):
    assert field_table([run for run in cells if run.cell.method != "map"]) is None
    assert field_table([run for run in cells if run.cell.epochs is not None]) is None
    table = field_table(cells)
    lines = {tuple(line.split(" | ")[:2]): line for line in markdown(table).splitlines() if line.startswith("| `")}
    assert [*lines] == [
        ("| `map`", "max. probability"),
        ("| `map`", "energy"),
        ("| `map+oe`", "max. probability"),
        ("| `map+oe`", "energy"),
        ("| `la+nc`", "none's share"),
        ("| `de+nc`", "none's share"),
    ]
    assert lines["| `map`", "energy"].endswith("| energy | 95.0 ±0.0 | 26.0 ±1.0 | 90.0 ±0.0 | 2.0 (1.0 ×) | 3 |")
    assert lines["| `la+nc`", "none's share"].endswith("| 29.0 ±1.0 | 90.0 ±0.0 | 5.0 (2.5 ×) | 3 |")
    text = markdown(table)
    assert "lower is better" in text
    assert "Not measured on cifar10: map by knn, map by vim, la+oe by max_prob" in text
    assert "Not measured on cifar100: map by max_prob, " in text
    assert "Fewer than 3 training seeds: de+nc on cifar10" in text


def test_older_cells_and_other_outliers_are_no_part_of_it(cells: list[Measured]):
    old = [replace(run, record=replace(run.record, data={})) for run in cells if run.cell.seed == 0]
    text = markdown(field_table([*old, *(run for run in cells if run.cell.seed)]))
    assert "| energy | 95.0 ±0.0 | 26.5 ±0.7 | 90.0 ±0.0 | 2.0 (1.0 ×) | 2 |" in text
    assert "Left out, 6 older cells: SVHN's test images were cut by another rule than the published ones" in text


def test_both_tables_are_made_from_the_stored_ones_alone(cells: list[Measured], tmp_path: Path):
    for name, text in (("results.csv", results_csv(cells)), ("cells.csv", cells_csv(cells))):
        (tmp_path / name).write_text(text, "utf-8")
    stored = read_tables(tmp_path)
    assert markdown(field_table(stored)) == markdown(field_table(cells))
    assert read(choice_section(stored)) == read(choice_section(cells))
    write_report(stored, tmp_path / "report")
    document = (tmp_path / "report" / "RESULTS.md").read_text("utf-8")
    assert "## Beside the field" in document
    assert "## The recommended method" in document
    for link in ("tables/choice-cifar10.md", "tables/field.md"):
        assert (tmp_path / "report" / link).exists()


def read(section: Section) -> str:
    return "\n".join(markdown(block) if isinstance(block, Sheet) else as_markdown(block) for block in section.blocks)
