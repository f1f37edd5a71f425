"""claims.md: the verdict on every claim, in both conventions and by the paper's own figures, and what it rests on."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from demur.paper.claims import CLAIMS, NO, PART, UNCLEAR, YES, Case, Claim, joint, so_far
from demur.paper.grid import CONVENTIONS, STUDIES, commands
from demur.paper.views import NOISE, View, matched, ours, printed
from demur.report.render import rendered
from demur.study.grid import Cell
from demur.study.table import Measured

VERDICTS = {YES: "holds", PART: "holds in part", NO: "does not hold", UNCLEAR: "undecided"}
WAITING = "waiting"
COLUMNS = (*CONVENTIONS, "printed")
SETUP = {  # by what was trained or tested with
    "tiny_imagenet32": "images have 40,000 photographs as training outliers (tiny_imagenet32), not 1.28 million",
    "places_classroom": "classrooms are those of Places, not of LSUN",
    "wikitext2": "text has what is at hand of WikiText-2 as training outliers, and at most 10,000 inputs a test set",
    "shift": "corrupted images are generated, from 2,000 of the test set",
}


@dataclass(frozen=True)
class Tested:
    """A claim in one view."""

    seeds: Mapping[str, int]  # by task, where there are any
    tasks: int  # that the claim is about
    cases: tuple[Case, ...]
    trained_here: bool = True

    @property
    def verdict(self) -> str:
        outcomes = [outcome for case in self.cases for outcome in case.outcomes]
        if not outcomes:
            return WAITING
        unclear = outcomes.count(UNCLEAR)
        said = [f"{outcomes.count(YES)} of {len(outcomes)} tests" + f", {unclear} unclear" * bool(unclear)]
        said *= len({*outcomes}) > 1
        said += [f"tested on {len(self.seeds)} of {self.tasks} tasks"] * (len(self.seeds) < self.tasks)
        return VERDICTS[joint(outcomes)] + f" ({', '.join(said)})" * bool(said)

    @property
    def marked(self) -> str:
        """With a mark where the luck of training one network may decide."""
        return self.verdict + "†" * (self.trained_here and self.verdict != WAITING and 1 in self.seeds.values())

    @property
    def with_seeds(self) -> str:
        """And how many seeds there are, and of which tasks if not of all."""
        if not self.trained_here or self.verdict == WAITING:
            return self.marked
        counts = {*self.seeds.values()}
        if len(counts) > 1:
            return f"{self.marked}, seeds: {', '.join(f'{task} {count}' for task, count in self.seeds.items())}"
        return f"{self.marked}, {min(counts)} seed{'s' * (min(counts) > 1)}"


def examine(claim: Claim, view: View, trained_here: bool = True) -> Tested:
    counts: dict[str, int] = {}
    for cell in claim.cells:
        if cell.convention == view.convention:
            counts[cell.task] = min(counts.get(cell.task, view.seeds(cell)), view.seeds(cell))
    seeds = {task: count for task, count in counts.items() if count}
    unfinished = (case for task in counts if task not in seeds for case in so_far(claim, view, task))
    return Tested(seeds, len(counts), (*claim.cases(view, tuple(seeds)), *unfinished), trained_here)


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


def waiting(claim: Claim, measured: Sequence[View]) -> list[str]:
    """What to type for the cells that are not there: whole studies of a task, since methods share networks."""
    views = {view.convention: view for view in measured}
    absent = {
        (need.study, cell.task, cell.convention)
        for need in claim.needs
        for cell in need.cells
        if not views[cell.convention].seeds(cell)
    }
    studies = dict.fromkeys(need.study for need in claim.needs)
    cells = [cell for study in studies for cell in STUDIES[study] if (study, cell.task, cell.convention) in absent]
    return commands(cells)
