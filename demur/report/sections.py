"""Two sections of RESULTS.md: whether the cells agree with the paper, and which method does better than it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

from demur.paper.grid import STUDIES, commands
from demur.paper.published import Row, is_plain, mean_but
from demur.paper.recommended import (
    TASKS,
    Candidate,
    Tested,
    Validated,
    measure,
    recommended,
    replaced,
    standing,
    tasks_there,
    trained_with,
    unvalidated,
    validate,
)
from demur.paper.views import Known, View, matched, ours, printed, printed_mean
from demur.report.marks import Bullets, Code, Section, Sheet, Strong, Text
from demur.study.grid import Cell
from demur.study.measuring import TEST, per_cent
from demur.study.table import Measured
from demur.tasks import IMAGES

HALF = (
    "± is half the 95 % interval over test points (bootstrap) and, if there are several, training seeds (Student's t)"
)


def with_half(known: Known) -> str:
    return f"{known.text()} ±{per_cent(known.half)}"


def signed(difference: float) -> str:
    return f"{round(100 * difference, 1) + 0.0:+.1f}".replace("-", "−")  # no minus before zero


def stand_ins(cells: Sequence[Measured], tasks: Sequence[str]) -> list[str]:
    notes = (one.record.notes.items() for one in cells if one.cell.task in tasks)
    return sorted({f"{name} {note}" for each in notes for name, note in each})


def typed(lines: Sequence[str]) -> Text:
    """Commands, one after another."""
    return tuple(part for line in lines for part in (", ", Code(line)))[1:]


# agreement ----------------------------------------------------------------------------------------------------------

ROWS = ("map", "map+oe", "de", "la+nc", "la+sl")  # what others are compared with, and the paper's best
AS_SHARP = tuple(dict.fromkeys(cell.outliers for cell in STUDIES["spectrum_matched"]))  # as the inliers, all or half
LIMITS = {"accuracy": 0.01, "ECE": 0.04, "FPR95": 0.04}
LUCK = "uniform"  # noise on which one network's luck moves FPR95 by up to 100 points


def agreement(cells: Sequence[Measured]) -> Section | None:
    """Some rows beside the paper's; nothing where none of them is there."""
    views = [ours(cells, convention) for convention in ("published", "corrected")]
    rows: list[list[Text]] = []
    by_set: list[Text] = []
    near: dict[str, list[bool]] = {}
    marks: set[str] = set()
    for task, method in product(IMAGES, ROWS):
        for outliers in (None, *(() if is_plain(method) else AS_SHARP)):
            cell = Cell(task, method, outliers=outliers)
            view = next((view for view in views if view.seeds(cell)), None)
            if view is None or (outliers and view.convention == "corrected"):
                continue
            pairs = beside_the_paper(view, cell)
            far = [name for name, pair in pairs.items() if not is_near(*pair, LIMITS[name])]
            if not outliers:
                near.setdefault(task, []).extend(name not in far for name in pairs)
            collapsed = any(mine.collapsed for mine, _ in pairs.values())
            title = Code(method), "*" * (view.convention == "corrected"), f", {outliers}" * bool(outliers)
            if "FPR95" in far and not collapsed:
                by_set.append((f"FPR95 of {task}, ", *title, f", differs by set: {_by_set(view, cell)}"))
            answer = "collapsed" if collapsed else f"no: {', '.join(far)}" if far else "yes"
            shown = (_pair(*pairs[name]) if name in pairs else "–" for name in LIMITS)
            rows.append([task, title, str(view.seeds(cell)), *shown, answer])
            marks |= {view.convention, answer, "sharp" if outliers else "usual"}
    if not rows:
        return None
    limits = ", ".join(f"{100 * limit:.0f} of {name}" for name, limit in LIMITS.items())
    counted = ", ".join(f"{sum(each)} of {len(each)} on {task}" for task, each in near.items())
    return Section(
        "Agreement with the paper",
        [
            "The rows that others are compared with, and those that are the paper's best (all are among the tables "
            "below). Networks are trained and measured in the published convention: an answer of none is wrong, ECE "
            "leaves out every input with a confidence of 14/15 or more, and FPR95 is by max probability, the mean over "
            f"the paper's OOD sets but {LUCK} noise, where one network's luck moves it by up to 100 points. A value is "
            f"within limits if it differs by at most {limits}, in points.",
            Sheet(["task", "method", "seeds", *LIMITS, "within limits"], rows, names=2),
            Bullets(
                [
                    f"In per cent: measured; below, printed and difference. {HALF}",
                    f"Values within limits: {counted}",
                    *[
                        "Spectrum-matched outliers are as sharp as the inliers, which the usual ones are not; such "
                        "rows are not counted"
                    ]
                    * ("sharp" in marks),
                    *by_set,
                    *["Collapsed, ‡, is a classifier no more accurate than always answering the most frequent class"]
                    * ("collapsed" in marks),
                    *stand_ins(cells, list(near)),
                    *["* Trained in the corrected convention: there is none in the published one"]
                    * ("corrected" in marks),
                ]
            ),
        ],
    )


def beside_the_paper(view: View, cell: Cell) -> dict[str, tuple[Known, Known]]:
    """Measured and printed, where there are both."""
    paper, sets, usual = printed(), view.sets(cell, [LUCK]), replace(cell, outliers=None)
    both = {
        "accuracy": (view.of(cell, TEST, "accuracy_with_none"), paper.of(usual, TEST, "accuracy_with_none")),
        "ECE": (view.of(cell, TEST, "ece_published"), paper.of(usual, TEST, "ece_published")),
        "FPR95": (view.of(cell, mean_but(LUCK), "fpr95"), printed_mean(cell.task, Row(cell.method), sets)),
    }
    return {name: (mine, theirs) for name, (mine, theirs) in both.items() if theirs and not math.isnan(mine.value)}


def _by_set(view: View, cell: Cell) -> str:
    """Where the difference comes from, the most first."""
    pairs = {name: printed_mean(cell.task, Row(cell.method), [name]) for name in view.sets(cell, [LUCK])}
    apart = {name: view.of(cell, name, "fpr95").value - theirs.value for name, theirs in pairs.items() if theirs}
    return ", ".join(f"{name} {signed(apart[name])}" for name in sorted(apart, key=lambda name: -abs(apart[name])))


def is_near(mine: Known, theirs: Known, limit: float) -> bool:
    """As far as digits are shown."""
    return round(abs(mine.value - theirs.value), 3) <= limit


def _pair(mine: Known, theirs: Known) -> Text:
    return [with_half(mine), f"{theirs.text()} {signed(mine.value - theirs.value)}"]


# better than published ----------------------------------------------------------------------------------------------

USUAL = "the usual"


def better(cells: Sequence[Measured]) -> Section | None:
    """How the recommended method is chosen, and how it does; nothing where no candidate can be chosen."""
    view = ours(cells, "corrected")
    validated = validate(view)
    chosen = recommended(validated)
    if chosen is None:
        return None
    tasks = list(validated[0].fpr95)
    head: list[Text] = ["method", "outliers", "score", "", "mean FPR95"]
    head += [[what, task] for what in ("FPR95", "accuracy") for task in tasks]
    trained = f", trained with {chosen.outliers or 'the usual outliers'}"
    name = Code(chosen.method), " with the score ", Code(chosen.score), trained
    blocks: list[Text] = [
        (
            Strong(("Recommended: ", *name, ".")),
            f" The choice is made by code, which looked at validation images of {', '.join(tasks)} and at printed "
            "letters only: the least FPR95 of these letters wins, in the mean over tasks. (One OOD set is of letters "
            "too, by hand; it was not looked at.) A candidate is out if on a task its validation accuracy is more than "
            "half a point and a standard error below the best candidate's. Among those within a standard error of the "
            "best (over the letters drawn alone, not over inliers or training), the order is Laplace, MAP, ensembles, "
            "then ",
            *(Code("none_share"), ", ", Code("none"), ", ", Code("max_prob")),
            ", then fewer sources of outliers.",
        ),
        Sheet(head, [_validation(one, one.candidate == chosen) for one in validated], names=3),
        ("On test data, ", *name, ":"),
        _test(cells, dict.fromkeys(TASKS, chosen)),
    ]
    own = {task: found for task in tasks if (found := recommended(validate(view, [task])))}
    if {*own.values()} != {chosen}:
        blocks += [
            "By the same rule for each task alone, which is what one does with data of one's own (a candidate need not "
            "have been validated on the other tasks):",
            _test(cells, own, named=True),
        ]
    best: dict[tuple[str, str | None], Candidate] = {}
    for one in validated:
        best.setdefault(one.candidate[:2], one.candidate)
    candidates = list(best.values())
    left_out = dict.fromkeys(name for task in tasks for name in trained_with(candidates, task))
    without = f" (not {', '.join(left_out)})" if left_out else ""
    compared = matched(cells, [candidate.cell(task) for candidate in candidates for task in TASKS])
    missing = commands(unvalidated(view))
    blocks += [
        "All candidates on test data, each with the score that is best on validation data; the choice did not look at "
        f"this. Mean FPR95 over the OOD sets that none of them was trained with{without}, of the training seeds that "
        "all have; below, accuracy and FPR95 far away:",
        _all_tested(ours(compared, "corrected"), candidates),
        Bullets(
            [
                f"In per cent; {HALF}. With one seed the luck of training is not in it",
                "What waits was not validated on all of these tasks",
                "FPR95 is the mean over the paper's OOD sets but those trained with; the paper's best is the least "
                "such mean of all its rows, in whichever table, by max probability and by the none mass, a column that "
                "its source has and its pages do not show",
                "Ahead, level or behind: by the ±; below, the same without the sets for which others stand in. Far "
                "away is FPR95 on noise 5,000 times as bright as any image, which no mean counts: there a score of the "
                "none mass can fail altogether",
                *stand_ins(cells, tasks_there(view)),
                *[("Not there yet: ", *typed(missing))] * bool(missing),
            ]
        ),
    ]
    return Section("Better than published?", blocks)


def _validation(one: Validated, is_chosen: bool) -> list[Text]:
    values = [one.mean, *one.fpr95.values(), *one.accuracy.values()]
    remark = "waits" if math.isnan(one.mean) else "" if one.accurate else "out: accuracy"
    method, outliers, score = one.candidate
    shown = ("–" if math.isnan(value) else per_cent(value) for value in values)
    return [Code(method), outliers or USUAL, Code(score), Strong("chosen") if is_chosen else remark, *shown]


def _test(cells: Sequence[Measured], chosen: Mapping[str, Candidate], named: bool = False) -> Sheet:
    """Test results of the candidate of each task."""
    cells = matched(cells, [candidate.cell(task) for task, candidate in chosen.items()])
    view = ours(cells, "corrected")
    rows: list[list[Text]] = []
    for task in (task for task in tasks_there(view) if task in chosen):
        candidate = chosen[task]
        method, outliers, score = candidate
        seen, others = trained_with([candidate], task), replaced(cells, task)
        found = measure(view, candidate, task, seen)
        first: list[Text] = [task, *[[(Code(method), ", ", Code(score)), outliers or USUAL]] * named]
        if found is None:
            rows.append([*first, *["–"] * 6])
            continue
        to_map = "–" if found.plain is None else signed(found.accuracy.value - found.plain.value)
        without = [one for one in [measure(view, candidate, task, seen, others)] if one and others]
        compared = map(list, zip(*(_beside(one) for one in (found, *without)), strict=True))
        rows.append([*first, with_half(found.accuracy), to_map, *compared, found.far_away.text()])
    head = ["accuracy", ("against ", Code("map")), "mean FPR95", "the paper's best", "its best by none mass"]
    return Sheet(["task", *["chosen"] * named, *head, "far away"], rows, names=1 + named)


def _beside(found: Tested) -> list[Text]:
    best = (
        "–" if best is None else (Code(best[0].method), f" {best[1].text()}: ", Strong(standing(found.fpr95, best[1])))
        for best in found.printed.values()
    )
    return [with_half(found.fpr95), *best]


def _all_tested(view: View, candidates: Sequence[Candidate]) -> Sheet:
    tasks = tasks_there(view)

    def row(candidate: Candidate) -> list[Text]:
        tested = [measure(view, candidate, task, trained_with(candidates, task)) for task in tasks]
        shown = (
            "–" if one is None else [with_half(one.fpr95), f"{one.accuracy.text()}, {one.far_away.text()}"]
            for one in tested
        )
        return [Code(candidate.method), candidate.outliers or USUAL, Code(candidate.score), *shown]

    return Sheet(["method", "outliers", "score", *tasks], list(map(row, candidates)), names=3)
