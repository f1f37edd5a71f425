"""What RESULTS.md and the page begin with: how much of the paper is measured, whether it agrees, what to use."""

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from demur.paper.agreement import LIMIT, agreement, compare_printed, coverage
from demur.paper.grid import CONVENTIONS, commands
from demur.paper.published import TITLES
from demur.paper.recommended import (
    TASKS,
    Candidate,
    Tested,
    Validated,
    compare_to_printed,
    measure,
    missing_cells,
    recommend,
    stand_ins,
    tasks_there,
    trained_with,
    validate,
)
from demur.paper.statistics import Known
from demur.paper.views import View, match_seeds, own_view
from demur.report.compare import METRIC_TITLES
from demur.report.sheet import Code, Link, Section, Sheet, Strong, Text
from demur.study.measuring import per_cent
from demur.study.table import Measured

USUAL = "the usual"


def with_half_width(known: Known) -> str:
    return f"{known.text()} ±{per_cent(known.half)}"


def with_sign(difference: float) -> str:
    return f"{round(100 * difference, 1) + 0.0:+.1f}".replace("-", "−")  # no minus before zero


def beside_the_paper(cells: Sequence[Measured]) -> list[Section]:
    """How many of its values are measured, and how many of these agree; nothing where none is."""
    lines = compare_printed(cells)
    counts = coverage(lines)
    total = counts.loc["all", "all"]
    if not total[CONVENTIONS[0]] and not total[CONVENTIONS[1]]:
        return []
    tasks = list(dict.fromkeys(lines["task"]))
    rows: list[list[Text]] = [
        [TITLES.get(table, Strong("all")), *(_count_row(counts, table, task) for task in (*tasks, "all"))]
        for table in counts.index.unique("table")
    ]
    both = " and ".join(f"{total[name]:,} in the {name}" for name in CONVENTIONS)
    covered = Section(
        "Coverage",
        [
            f"Of the {total['printed']:,} figures in the paper's tables, {both} convention are measured. Where "
            "the two differ, the corrected one stands first.",
            Sheet(["table", *tasks, "all"], rows),
        ],
    )
    metrics = [name for name in (*METRIC_TITLES, "all") if name in {*lines["metric"], "all"}]
    agreed: list[list[Text]] = []
    for convention in CONVENTIONS:
        shares = agreement(lines, convention)
        for task in (task for task in (*tasks, "all") if task in shares.index.unique("task")):
            shown = (
                f"{shares.loc[(task, metric), 'mean']:.0%} of {shares.loc[(task, metric), 'count']:,}".replace(
                    "%", " %"
                )
                if (task, metric) in shares.index
                else "–"
                for metric in metrics
            )
            agreed.append([task, convention, *shown])
    titles = [METRIC_TITLES.get(name, name) for name in metrics]
    return [
        covered,
        Section(
            "Agreement with the paper",
            [
                f"The fraction of all comparable figures that lie within {100 * LIMIT:.0f} points of the printed ones, "
                "by task and metric, with one network or the mean of several. The published convention is what should "
                "agree; the corrected one shows how much the conventions matter.",
                Sheet(["task", "networks of the convention", *titles], agreed, names=2),
            ],
        ),
    ]


def _count_row(counts: pd.DataFrame, table: str, task: str) -> str:
    if (table, task) not in counts.index:
        return ""
    corrected, published, printed = counts.loc[(table, task)]
    both = str(corrected) if corrected == published else f"{corrected}, {published}"
    return f"{both} of {printed}"


# the recommendation -------------------------------------------------------------------------------------------------


def recommendation(cells: Sequence[Measured]) -> Section | None:
    """The chosen method and how it does; nothing where no candidate can be chosen."""
    view = own_view(cells, "corrected")
    validated = validate(view)
    chosen = recommend(validated)
    if chosen is None:
        return None
    by_task = {task: best for task in validated[0].fpr95 if (best := recommend(validate(view, [task])))}
    missing = commands(missing_cells(view))
    notes: list[Text] = [
        "In per cent; ± is half the 95 % interval over test points and training",
        "FPR95 is the mean over the paper's OOD sets but those trained with; the paper's best is the least such mean "
        "of all its rows, by max probability and by the none mass. Ahead, level or behind: by the ±; below, the same "
        "without the sets for which others stand in",
        "Far away is FPR95 on noise 5,000 times as bright as any image, which no mean counts: there a score of the "
        "none mass can fail altogether",
    ]
    if missing:
        listed = [part for line in missing for part in (", ", Code(line))]
        notes.append(("Not there yet: ", *listed[1:]))
    return Section(
        "Recommendation",
        [
            (
                Strong((_candidate_name(chosen), ".")),
                " Chosen by code that looked at validation images and printed letters alone, never at test data: the "
                "least FPR95 of the letters, in the mean over tasks, among candidates whose validation accuracy is at "
                "most half a point and a standard error below the best. Among those within a standard error of the "
                "best, Laplace comes before MAP before ensembles. ",
                Link("All candidates", "tables/candidates.md"),
                ".",
            ),
            _test_rows(cells, dict.fromkeys(TASKS, chosen)),
            *(
                [
                    "By the same rule for each task alone, which is what one does with data of one's own:",
                    _test_rows(cells, by_task, named=True),
                ]
                if {*by_task.values()} != {chosen}
                else []
            ),
            *notes,
        ],
    )


def _candidate_name(candidate: Candidate) -> Text:
    trained = f", trained with {candidate.outliers or 'the usual outliers'}"
    return Code(candidate.method), " with the score ", Code(candidate.score), trained


def candidates(cells: Sequence[Measured]) -> Sheet | None:
    """All of them: on validation data, by which one is chosen, and on test data, at which the choice did not look."""
    view = own_view(cells, "corrected")
    validated = validate(view)
    if not validated:
        return None
    tasks = list(validated[0].fpr95)
    everyone = [one.candidate for one in validated]
    tested = own_view(
        match_seeds(cells, [one.cell(task) for one in everyone for task in tasks]), "corrected", everyone=cells
    )
    head: list[Text] = ["method", "outliers", "score", "", "mean FPR95"]
    head += [[f"{what}, {when}", task] for when, what in _COLUMNS for task in tasks]
    return Sheet(
        head,
        [_candidate(one, recommend(validated), tested, everyone) for one in validated],
        names=3,
        title="Candidates, on validation and on test data",
        notes=(
            "In per cent. Validation: held-out inliers and printed letters, by which the choice is made",
            "Test: the mean FPR95 over the OOD sets that none of the candidates was trained with, of the training "
            "seeds that all have; the choice did not look at it",
            "What waits was not validated on all of these tasks",
        ),
        name="candidates",
    )


_COLUMNS = (("validation", "FPR95"), ("validation", "accuracy"), ("test", "FPR95"))


def _candidate(one: Validated, chosen: Candidate | None, view: View, everyone: Sequence[Candidate]) -> list[Text]:
    values = [one.mean, *one.fpr95.values(), *one.accuracy.values()]
    remark: Text = "waits" if math.isnan(one.mean) else "" if one.accurate else "out: accuracy"
    method, outliers, score = one.candidate
    tested = [measure(view, one.candidate, task, trained_with(everyone, task)) for task in one.fpr95]
    return [
        Code(method),
        outliers or USUAL,
        Code(score),
        Strong("chosen") if one.candidate == chosen else remark,
        *("–" if math.isnan(value) else per_cent(value) for value in values),
        *("–" if test is None else with_half_width(test.fpr95) for test in tested),
    ]


def _test_rows(cells: Sequence[Measured], chosen: Mapping[str, Candidate], named: bool = False) -> Sheet:
    """Test results of the candidate of each task."""
    comparable = match_seeds(cells, [candidate.cell(task) for task, candidate in chosen.items()])
    view = own_view(comparable, "corrected", everyone=cells)
    rows: list[list[Text]] = []
    for task in (task for task in tasks_there(view) if task in chosen):
        candidate = chosen[task]
        seen, others = trained_with([candidate], task), stand_ins(comparable, task)
        tested = measure(view, candidate, task, seen)
        first: list[Text] = [task, *[_candidate_name(candidate)] * named]
        if tested is None:
            rows.append([*first, *["–"] * 6])
            continue
        to_map = "–" if tested.plain is None else with_sign(tested.accuracy.value - tested.plain.value)
        without = [one for one in [measure(view, candidate, task, seen, others)] if one and others]
        beside = map(list, zip(*(_beside_best(one) for one in (tested, *without)), strict=True))
        rows.append([*first, with_half_width(tested.accuracy), to_map, *beside, tested.far_away.text()])
    head = ["accuracy", ("against ", Code("map")), "mean FPR95", "the paper's best", "its best by none mass"]
    return Sheet(["task", *["chosen"] * named, *head, "far away"], rows, names=1 + named)


def _beside_best(tested: Tested) -> list[Text]:
    best = (
        "–"
        if best is None
        else (Code(best[0].method), f" {best[1].text()}: ", Strong(compare_to_printed(tested.fpr95, best[1])))
        for best in tested.printed.values()
    )
    return [with_half_width(tested.fpr95), *best]
