"""The choice of the recommended method: candidates and their ranks on the validation suite, then its test."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from demur.measures import value_name
from demur.paper.choice import (
    ALLOWED,
    RIVALS,
    SEEDS,
    Candidate,
    Ranked,
    candidates_in,
    choose_candidate,
    choose_for_all,
    rank,
    screened,
)
from demur.paper.published import MEAN, OOD_SETS, is_plain
from demur.paper.statistics import Known
from demur.paper.suite import SUITE
from demur.paper.views import View, own_view, printed_means
from demur.report.compare import Kind, kept_scores, kind_of, shown_scores
from demur.report.field import minutes, up_to_date, with_deviation
from demur.report.sections import candidate_name
from demur.report.sheet import Code, Link, Section, Sheet, Strong, Text
from demur.study.grid import Cell
from demur.study.measuring import per_cent, with_sign
from demur.study.results import TEST
from demur.study.table import Measured

FULL = Kind("corrected", None, None)
SHOWN = 10  # candidates in RESULTS.md; the table has all


def choice_tables(cells: Sequence[Measured]) -> list[Sheet]:
    """Every candidate on the suite, for each task and length of training."""
    return [
        _candidates(ranked, task, kind) for kind, task, of_task in _validated(cells) if (ranked := _rank(of_task, task))
    ]


def choice_section(cells: Sequence[Measured]) -> Section | None:
    """What is chosen and how it does; nothing where no candidate can be."""
    # digits are a trial
    validated = {task: of_task for kind, task, of_task in _validated(cells) if kind == FULL and task in OOD_SETS}
    by_task = {task: candidates_in(of_task, task) for task, of_task in validated.items()}
    ranked = {task: rank(*of_task) for task, of_task in by_task.items()}
    chosen = {task: choice for task, each in ranked.items() if (choice := choose_candidate(each))}
    if not chosen:
        return None
    for_all = choose_for_all({task: by_task[task] for task in chosen})
    blocks: list[Text | Sheet] = [
        (
            f"By the mean rank over {len(SUITE)} kinds of validation outliers (",
            Code("demur/paper/suite.py"),
            f"), none of which is tested or trained with; {SEEDS} training seeds; accuracy on held-out inliers at most "
            f"{100 * ALLOWED:.1f} points below that of ",
            Code("map"),
            ". Test data had no say.",
        )
    ]
    for task in chosen:
        sheet = _candidates(ranked[task][:SHOWN], task, FULL)
        blocks += [(Strong(task), ": the best of ", Link(f"{len(ranked[task])} candidates", f"tables/{sheet.name}.md"))]
        blocks.append(sheet)
    view = own_view(up_to_date(cells)[0], "corrected")
    if for_all and len(chosen) > 1:
        blocks += [
            ("One for all of these tasks, by the mean over tasks: ", *candidate_name(for_all), "."),
            _tests(cells, view, dict.fromkeys(chosen, for_all)),
            "By each task alone:",
        ]
    blocks.append(_tests(cells, view, chosen))
    blocks.append(
        "On test data: means over the paper's OOD sets, inliers as positive; ± is the standard deviation over seeds. "
        "Ahead of it, by the mean over seeds: any row of the paper's tables on the same sets, and "
        f"{', '.join(RIVALS)} by any score that was measured."
    )
    return Section("The recommended method", blocks)


def _validated(cells: Sequence[Measured]) -> Iterator[tuple[Kind, str, list[Measured]]]:
    """The cells of each task that were measured on the suite, by length of training."""
    asked = [run for run in cells if "suite" in run.cell.further and run.cell.convention == "corrected"]
    for kind in sorted({kind_of(run.cell) for run in asked}, key=lambda kind: kind.order):
        for task in dict.fromkeys(run.cell.task for run in asked if kind_of(run.cell) == kind):
            yield kind, task, [run for run in asked if (kind_of(run.cell), run.cell.task) == (kind, task)]


def _rank(cells: Sequence[Measured], task: str) -> list[Ranked]:
    measured, of_map = candidates_in(cells, task)
    return rank(measured, of_map, seeds=screened(measured))


def _candidates(ranked: Sequence[Ranked], task: str, kind: Kind) -> Sheet:
    chosen = choose_candidate(ranked) if kind == FULL else None
    rows: list[list[Text]] = []
    for one in ranked:
        ranks = [f"{one.ranks[name]:g}" for name in SUITE] if one.ranks else ["–"] * len(SUITE)
        rows.append(
            [
                Code(one.choice.method),
                "" if is_plain(one.choice.method) else one.choice.outliers or "the usual",
                Code(one.choice.score),
                Strong("chosen") if one.choice == chosen else one.barred or "",
                str(one.seeds),
                f"{one.mean_rank:.1f}" if one.ranks else "–",
                *ranks,
                per_cent(fmean(one.fpr95.values())) if one.fpr95 else "–",
                per_cent(one.accuracy),
            ]
        )
    kinds: list[Text] = [[*name.split(", ")] for name in SUITE]
    head: list[Text] = ["method", "outliers", "score", "", "seeds", "mean rank", *kinds, "mean FPR95", "accuracy"]
    first_look = "" if chosen else ". This is a first look, by which nothing is chosen"
    return Sheet(
        head,
        rows,
        names=3,
        title=f"Candidates on the validation suite, {task}",
        networks=kind.networks,
        notes=[
            "Ranks by kind of validation outliers, 1 is the best, of FPR95 (inliers as positive, lower is better), the "
            f"mean over sets and seeds{first_look}",
            "Accuracy on held-out inliers and mean FPR95 over the kinds in per cent",
        ],
        name="-".join(filter(None, ("choice", task, kind.slug))),
    )


def _tests(cells: Sequence[Measured], view: View, chosen: Mapping[str, Candidate]) -> Sheet:
    head: list[Text] = ["task", "chosen", "accuracy", ("against ", Code("map")), "ECE", ("against ", Code("map"))]
    head += ["mean FPR95", "mean AUROC", "minutes to train", "seeds", "ahead of it"]
    rows = [_test(cells, view, task, choice) for task, choice in chosen.items()]
    return Sheet(head, rows, names=2)


def _test(cells: Sequence[Measured], view: View, task: str, choice: Candidate) -> list[Text]:
    cell = Cell(task, choice.method, outliers=choice.outliers)

    def known(where: str, metric: str, of: Cell = cell) -> Known:
        return view.of(of, where, metric)

    fpr95 = known(MEAN, value_name("fpr95", choice.score))
    if not fpr95.by_seed:
        return [task, candidate_name(choice), *["–"] * 9]
    values: list[Text] = []
    for metric in ("accuracy", "ece"):
        own, plain = known(TEST, metric), known(TEST, metric, Cell(task, "map"))
        values += [with_deviation(own.by_seed.values()), with_sign(own.value - plain.value) if plain.by_seed else "–"]
    auroc = known(MEAN, value_name("auroc", choice.score))
    values += [with_deviation(fpr95.by_seed.values()), with_deviation(auroc.by_seed.values())]
    values += [minutes(view, task, choice.method, choice.outliers), str(len(fpr95.by_seed))]
    return [task, candidate_name(choice), *values, [*_ahead(cells, view, task, choice, fpr95.value)] or "none"]


def _ahead(cells: Sequence[Measured], view: View, task: str, choice: Candidate, value: float) -> Iterator[Text]:
    """What has a lower mean FPR95."""
    rivals = [run for run in cells if run.cell.task == task and run.cell.method in RIVALS]
    scores = dict.fromkeys(name for run in rivals for name in (*shown_scores(run), *kept_scores(run)))
    for method, score in ((method, score) for method in RIVALS for score in scores):
        rival = view.known(task, method, MEAN, value_name("fpr95", score))
        if rival and rival.value < value and (method, None, score) != choice:
            yield Code(method), " by ", Code(score), f" {rival.text()}"
    sets = view.sets(Cell(task, choice.method, outliers=choice.outliers), ())
    for row, printed in printed_means(task, sets) if len(sets) == len(OOD_SETS[task]) else ():
        if printed.value < value:
            yield "the paper's ", Code(row.label), f" {printed.text()}"
