"""claims.md: the verdict on every claim, in both conventions and by the paper's own figures, and what it rests on."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from demur.paper.claims import CLAIMS
from demur.paper.comparing import Case, joint
from demur.paper.grid import CONVENTIONS
from demur.paper.verdicts import WAITING, Tested, examine, waiting
from demur.paper.views import NOISE, matched, ours, printed
from demur.report.render import rendered
from demur.study.grid import Cell
from demur.study.table import Measured

COLUMNS = (*CONVENTIONS, "printed")
SETUP = {  # by what was trained or tested with
    "tiny_imagenet32": "images have 40,000 photographs as training outliers (tiny_imagenet32), not 1.28 million",
    "places_classroom": "classrooms are those of Places, not of LSUN",
    "wikitext2": "text has what is at hand of WikiText-2 as training outliers, and at most 10,000 inputs a test set",
    "shift": "corrupted images are generated, from 2,000 of the test set",
}


def claims_document(cells: Sequence[Measured]) -> str | None:
    """Markdown, from values alone; None where no claim can be tested."""
    views = [ours(cells, convention) for convention in CONVENTIONS]
    claims: list[dict[str, Any]] = []
    for claim in CLAIMS:
        compared = matched(cells, claim.cells)
        columns = [examine(claim, ours(compared, convention)) for convention in CONVENTIONS]
        if claim.is_printed:
            columns.append(examine(claim, printed(), trained_here=False))
        claims.append({"claim": claim, "columns": columns, "rows": _rows(columns), "waiting": waiting(claim, views)})
    if all(one.verdict == WAITING for claim in claims for one in claim["columns"] if one.trained_here):
        return None
    needed = list(dict.fromkeys(_bare(cell) for claim in CLAIMS for cell in claim.cells))
    used = sorted((one for one in cells if _bare(one.cell) in needed), key=lambda one: needed.index(_bare(one.cell)))
    features = {name for one in used for name in (*one.sets, one.record.trained_with, *one.cell.further)}
    return rendered(
        "claims.md",
        columns=COLUMNS,
        claims=claims,
        measured=_measured(used),
        differences=[text for name, text in SETUP.items() if name in features],
        missing=sorted({name for one in used for name in one.record.missing}),
    )


def _bare(cell: Cell) -> Cell:
    return replace(cell, seed=0, further=())


def _measured(used: Sequence[Measured]) -> str:
    """Tasks, seeds and device."""
    seeds: dict[str, dict[str, Counter[Cell]]] = {}
    for one in used:
        task = one.cell.task + f" with {one.cell.outliers} noise" * (one.cell.outliers == NOISE)
        by_convention = seeds.setdefault(task, {name: Counter() for name in CONVENTIONS})
        by_convention[one.cell.convention][_bare(one.cell)] += 1

    def least_to_most(counts: Counter[Cell]) -> str:
        ends = {min(counts.values(), default=0), max(counts.values(), default=0)}
        return " to ".join(map(str, sorted(ends)))

    tasks = (f"{task} {'/'.join(map(least_to_most, counts.values()))}" for task, counts in seeds.items())
    devices = ", ".join(sorted({one.record.device for one in used}))
    return f"{devices} (training seeds, {'/'.join(CONVENTIONS)}: {', '.join(tasks)})"


def _rows(columns: Sequence[Tested]) -> list[list[str]]:
    """A line for each case that any column has, in the order of the fullest."""
    by_column = [{case.what: case for case in one.cases} for one in columns]
    fullest_first = sorted(columns, key=lambda one: len(one.cases), reverse=True)
    lines = dict.fromkeys(case.what for one in fullest_first for case in one.cases)
    return [[what, *(_shown(cases.get(what)) for cases in by_column)] for what in lines]


def _shown(case: Case | None) -> str:
    if case is None:
        return "–"
    return f"**{joint(case.outcomes)}**: {case.shown}" if case.outcomes else case.shown
