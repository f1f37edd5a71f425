"""What RESULTS.md and the page begin with: how much of the paper is measured, whether it agrees, what to use."""

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from demur.paper.agreement import LIMIT, agreement, coverage
from demur.paper.analysis import CORRECTED, PUBLISHED, Analysis
from demur.paper.causes import OPEN
from demur.paper.choice import Candidate
from demur.paper.grid import CONVENTIONS, commands
from demur.paper.published import TITLES, is_plain
from demur.paper.recommended import (
    TASKS,
    Tested,
    Validated,
    cell_of,
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
from demur.report.verdicts import by_verdict
from demur.study.measuring import per_cent, with_sign
from demur.study.table import Measured

USUAL = "the usual"


def with_half_width(known: Known) -> str:
    return f"{known.text()} ±{per_cent(known.half)}"


def in_short(analysis: Analysis) -> Section | None:
    """What one reads who reads nothing else; None where nothing is measured that the paper prints."""
    lines = analysis.printed
    counts = coverage(lines)
    total = counts.loc["all", "all"]
    if not total[CORRECTED] and not total[PUBLISHED]:
        return None
    lacking = [task for task in dict.fromkeys(lines["task"]) if not counts.loc[("all", task), list(CONVENTIONS)].any()]
    measured = (
        f" Of the {total['printed']:,} values in the paper's tables, {total[CORRECTED]:,} are measured in the corrected"
        f" convention, demur's own, and {total[PUBLISHED]:,} in the published one, which does what the paper's code"
        " did."
    )
    blocks: list[Text] = [
        (Strong("How much is measured?"), measured + f" None is measured on {' or '.join(lacking)}." * bool(lacking))
    ]
    shares = agreement(lines, PUBLISHED)
    if ("all", "all") in shares.index:
        by_metric = [
            f"{title}: {_share(shares, 'all', name)}"
            for name, title in METRIC_TITLES.items()
            if ("all", name) in shares.index
        ]
        apart = [cause for _, cause in analysis.disagreements]
        agreed = (
            f" In the published convention {_share(shares, 'all', 'all')} values lie within {100 * LIMIT:.0f} points"
            f" of the printed ones. By metric: {'; '.join(by_metric)}. Of the {len(apart):,} differences that are"
            f" larger, {len(apart) - apart.count(OPEN):,} have a possible cause, which was not tested for all of them."
        )
        blocks.append((Strong("Does it agree?"), agreed))
    if short := by_verdict(analysis):
        groups = (f"{verdict}: {', '.join(str(number) for number, *_ in claims)}" for verdict, claims in short.items())
        blocks.append(
            (
                Strong("Do the paper's claims hold?"),
                f" In the corrected convention, by their numbers below: {'; '.join(groups)}.",
            )
        )
    if chosen := analysis.recommended:
        blocks.append((Strong("What should you use?"), " ", *candidate_name(chosen), ": see the recommendation."))
    return Section("In short", blocks, first=True)


def beside_the_paper(analysis: Analysis) -> list[Section]:
    """How many of its values are measured, and how many of these agree; nothing where none is."""
    lines = analysis.printed
    counts = coverage(lines)
    total = counts.loc["all", "all"]
    if not total[CORRECTED] and not total[PUBLISHED]:
        return []
    tasks = list(dict.fromkeys(lines["task"]))
    places = [(task, CORRECTED) for task in (*tasks, "all")] + [("all", PUBLISHED)]
    rows: list[list[Text]] = [
        [TITLES.get(table, Strong("all")), *(_count(counts, table, *place) for place in places)]
        for table in counts.index.unique("table")
    ]
    missing = [f"{task} {count:,}" for task in tasks if (count := int(counts.loc[("all", task)] @ _MISSING))]
    covered = Section(
        "Coverage",
        [
            f"The paper's tables have {total['printed']:,} values. {total[CORRECTED]:,} of them are measured in the "
            f"corrected convention, and {total[PUBLISHED]:,} in the published one, which does what the paper's code "
            "did.",
            Sheet(["table", *tasks, "all", "all, published convention"], rows),
            *[f"Missing in the corrected convention, by task: {', '.join(missing)}."] * bool(missing),
        ],
    )
    metrics = [name for name in (*METRIC_TITLES, "all") if name in {*lines["metric"], "all"}]
    agreed: list[list[Text]] = []
    for convention in (PUBLISHED, CORRECTED):
        shares = agreement(lines, convention)
        there = (task for task in (*tasks, "all") if task in shares.index.unique("task"))
        agreed += [[convention, task, *(_share(shares, task, metric) for metric in metrics)] for task in there]
    titles = [METRIC_TITLES.get(name, name) for name in metrics]
    return [
        covered,
        Section(
            "Agreement with the paper",
            [
                f"The fraction of measured values that lie within {100 * LIMIT:.0f} points of the printed ones. The "
                "published convention should agree. The corrected one shows how much conventions matter. As in the "
                "paper, a none class that is chosen for test data counts as an error, and ECE leaves out inputs with a "
                "confidence of 14/15 or more.",
                Sheet(["convention", "task", *titles], agreed, names=2),
            ],
        ),
    ]


_MISSING = pd.Series({CORRECTED: -1, PUBLISHED: 0, "printed": 1})


def _count(counts: pd.DataFrame, table: str, task: str, convention: str) -> str:
    if (table, task) not in counts.index:
        return ""
    of = counts.loc[(table, task)]
    return f"{of[convention]:,} of {of['printed']:,}"


def _share(shares: pd.DataFrame, task: str, metric: str) -> str:
    if (task, metric) not in shares.index:
        return "–"
    of = shares.loc[(task, metric)]
    return f"{100 * of['mean']:.0f} % of {of['count']:,.0f}"


# the recommendation -------------------------------------------------------------------------------------------------


def recommendation(analysis: Analysis) -> Section | None:
    """The chosen method and how it does; nothing where no candidate can be chosen."""
    chosen, cells, view = analysis.recommended, analysis.cells, analysis.views[CORRECTED]
    if chosen is None:
        return None
    by_task = {task: best for task in analysis.candidates[0].fpr95 if (best := recommend(validate(view, [task])))}
    notes: list[Text] = [
        "In per cent; ± is half the 95 % interval over test points and training. FPR95 is the mean over the paper's "
        "OOD sets, without those trained with. The paper's best is its row with the least such mean, by max "
        "probability or by the none mass. Level: it lies within the ±. A second line leaves out the sets for which "
        "others stand in.",
        "Far away is FPR95 on noise 5,000 times as bright as any image. No mean counts it. A score of the none mass "
        "can fail there altogether.",
    ]
    return Section(
        "Recommendation",
        [
            (
                Strong((candidate_name(chosen), ".")),
                " The code that chose saw validation images and printed letters alone. But none_share became a "
                "candidate after test values had been seen, so the test values below may flatter it. Candidates "
                "whose validation accuracy is more than half a point and a standard error below the best are left "
                "out. Of the others, the least FPR95 of the letters decides, in the mean over tasks. Among those "
                "within a standard error of it, Laplace comes before MAP before ensembles. ",
                Link("All candidates", "tables/candidates.md"),
                ".",
            ),
            _test_rows(cells, dict.fromkeys(TASKS, chosen)),
            *(
                [
                    "The same rule for each task alone, as you would choose for data of your own:",
                    _test_rows(cells, by_task, named=True),
                ]
                if {*by_task.values()} != {chosen}
                else []
            ),
            *notes,
        ],
    )


def missing_candidates(analysis: Analysis) -> list[str]:
    """What to type for what the choice still lacks, where a candidate can be chosen."""
    return [] if analysis.recommended is None else commands(missing_cells(analysis.views[CORRECTED]))


def candidate_name(candidate: Candidate) -> tuple[Text, ...]:
    trained = "" if is_plain(candidate.method) else f", trained with {candidate.outliers or 'the usual outliers'}"
    return Code(candidate.method), " with the score ", Code(candidate.score), trained


def candidates(analysis: Analysis) -> Sheet | None:
    """All of them: on validation data, by which one is chosen, and on test data, at which the choice did not look."""
    validated, cells = analysis.candidates, analysis.cells
    if not validated:
        return None
    tasks = list(validated[0].fpr95)
    everyone = [one.candidate for one in validated]
    tested = own_view(
        match_seeds(cells, [cell_of(one, task) for one in everyone for task in tasks]), "corrected", everyone=cells
    )
    head: list[Text] = ["method", "outliers", "score", "", "mean FPR95"]
    head += [[f"{what}, {when}", task] for when, what in _COLUMNS for task in tasks]
    return Sheet(
        head,
        [_candidate(one, analysis.recommended, tested, everyone) for one in validated],
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
    comparable = match_seeds(cells, [cell_of(candidate, task) for task, candidate in chosen.items()])
    view = own_view(comparable, "corrected", everyone=cells)
    rows: list[list[Text]] = []
    for task in (task for task in tasks_there(view) if task in chosen):
        candidate = chosen[task]
        seen, others = trained_with([candidate], task), stand_ins(comparable, task)
        tested = measure(view, candidate, task, seen)
        first: list[Text] = [task, *[candidate_name(candidate)] * named]
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
