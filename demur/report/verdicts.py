"""claims.md: the verdict on every claim, in both conventions and by the paper's own figures, and what it rests on."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from demur.paper.claims import CLAIMS, NO, PART, UNCLEAR, YES, Case, Claim, joint, so_far
from demur.paper.grid import CONVENTIONS, STUDIES, Cell, commands
from demur.paper.views import NOISE, View, matched, ours, printed
from demur.report.sections import markdown_table
from demur.study.table import Measured

VERDICTS = {YES: "holds", PART: "holds in part", NO: "does not hold", UNCLEAR: "undecided"}
WAITING = "waiting"
COLUMNS = (*CONVENTIONS, "printed")
SETUP = {  # by what was trained or tested with
    "tiny_imagenet32": "pictures have 40,000 photographs as training outliers (tiny_imagenet32), not 1.28 million",
    "places_classroom": "classrooms are those of Places, not of LSUN",
    "wikitext2": "text has what is at hand of WikiText-2 as training outliers, and at most 10,000 inputs a test set",
    "shift": "corrupted pictures are generated, from 2,000 of the test set",
}


@dataclass(frozen=True)
class Tested:
    """A claim in one view."""

    seeds: Mapping[str, int]  # by task, where there are any
    tasks: int  # that the claim is about
    cases: tuple[Case, ...]

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


def examine(claim: Claim, view: View) -> Tested:
    counts: dict[str, int] = {}
    for cell in claim.cells:
        if cell.convention == view.convention:
            counts[cell.task] = min(counts.get(cell.task, view.seeds(cell)), view.seeds(cell))
    seeds = {task: count for task, count in counts.items() if count}
    unfinished = (case for task in counts if task not in seeds for case in so_far(claim, view, task))
    return Tested(seeds, len(counts), (*claim.cases(view, tuple(seeds)), *unfinished))


def claims_document(cells: Sequence[Measured]) -> str | None:
    """Markdown, from figures alone; None where no claim can be tested."""
    measured, tested = [ours(cells, convention) for convention in CONVENTIONS], {}
    for claim in CLAIMS:
        compared = matched(cells, claim.cells)
        views = [*(ours(compared, convention) for convention in CONVENTIONS), *[printed()] * claim.is_printed]
        tested[claim] = [examine(claim, view) for view in views]
    if all(one.verdict == WAITING for columns in tested.values() for one in columns[: len(measured)]):
        return None
    needed = list(dict.fromkeys(_bare(cell) for claim in CLAIMS for cell in claim.cells))
    used = sorted((one for one in cells if _bare(one.cell) in needed), key=lambda one: needed.index(_bare(one.cell)))
    numbered = list(enumerate(tested.items(), start=1))
    rows = [
        [str(number), claim.title, *map(_verdict, columns, COLUMNS), *["–"] * (not claim.is_printed)]
        for number, (claim, columns) in numbered
    ]
    parts = [
        "# The paper's claims, one by one",
        "Kristiadi, Hein and Hennig, *Being a Bit Frequentist Improves Bayesian Neural Networks* (AISTATS 2022), "
        f"tested on {_measured(used)}. This file is made by `demur report` from results.csv and cells.csv.",
        markdown_table(["", "claim", *COLUMNS], rows),
        _legend(used),
        *(_section(number, claim, columns, _waiting(claim, measured)) for number, (claim, columns) in numbered),
    ]
    return "\n\n".join(parts) + "\n"


def _bare(cell: Cell) -> Cell:
    return replace(cell, seed=0, further=())


def _measured(used: Sequence[Measured]) -> str:
    """Tasks, seeds and device."""
    seeds: dict[str, dict[str, Counter[Cell]]] = {}
    for one in used:
        task = one.cell.task + f" with {one.cell.outliers} noise" * (one.cell.outliers == NOISE)
        by_convention = seeds.setdefault(task, {name: Counter() for name in CONVENTIONS})
        by_convention[one.cell.convention][_bare(one.cell)] += 1
    tasks = (f"{task} {'/'.join(map(_range, counts.values()))}" for task, counts in seeds.items())
    devices = ", ".join(sorted({one.record.device for one in used}))
    return f"{devices} (training seeds, {'/'.join(CONVENTIONS)}: {', '.join(tasks)})"


def _range(counts: Counter[Cell]) -> str:
    least, most = min(counts.values(), default=0), max(counts.values(), default=0)
    return str(most) if least == most else f"{least} to {most}"


def _legend(used: Sequence[Measured]) -> str:
    features = {name for one in used for name in (*one.sets, one.record.trained_with, *one.cell.further)}
    differences = [text for name, text in SETUP.items() if name in features]
    missing = sorted({name for one in used for name in one.record.missing})
    said = [
        "*corrected* and *published* are networks trained here in that convention, and judged by its metrics; "
        "*printed* are the paper's own figures, put to the same tests.",
        "A claim **holds** if all its tests say yes, **in part** if some do, **not** if none does; it is undecided if "
        "most are not clear. A line without a bold word stands beside and does not count, such as what is there *so "
        "far* of a task that lacks some of the claim's cells.",
        "In per cent, means over training seeds, those that all of a claim's cells of a task have. FPR95 is the share "
        "of outliers that pass where 95 % of the inliers do: less is better. ‡ is a collapsed classifier, no more "
        "accurate than always answering the most frequent class; it never says yes.",
        "† is a verdict that rests in part on one network per method: with one training seed, the luck of training is "
        "not in its ±.",
        "Two figures differ *clearly* if by more than their ± together (in squares); where a test asks that one be not "
        "above another, it is unclear if it is, but not clearly. ± is half the 95 % interval over "
        "test points (bootstrap) and, if there are several, training seeds (Student's t); it is shown where it "
        "decides, or nothing does so far. Printed figures have no ±: any difference counts.",
        "ECE: the corrected column is judged by that of all inputs, the others by the paper's, which leaves out every "
        "input with a confidence of 14/15 or more; the other of the two stands in brackets.",
        *([f"Not as in the paper: {'; '.join(differences)}."] if differences else []),
        *([f"Not measured, since the data is missing: {', '.join(missing)}."] if missing else []),
    ]
    return "\n".join(f"- {one}" for one in said)


def _section(number: int, claim: Claim, columns: Sequence[Tested], waiting: Sequence[str]) -> str:
    titles = COLUMNS[: len(columns)]
    found = [{case.what: case for case in one.cases} for one in columns]
    fullest_first = sorted(columns, key=lambda one: len(one.cases), reverse=True)
    lines = dict.fromkeys(case.what for one in fullest_first for case in one.cases)
    rows = [[what, *(_shown(by_line.get(what)) for by_line in found)] for what in lines]
    verdicts = (
        f"{title}: {_verdict(one, title)}{_seeds(one, title)}" for title, one in zip(titles, columns, strict=True)
    )
    parts = [
        f"## {number}. {claim.title}",
        f"**The paper:** {claim.said}",
        f"**Yes if:** {claim.test}",
        *([markdown_table(["", *titles], rows)] if rows else []),
        f"**Verdict:** {'; '.join(verdicts)}.",
        *([f"**Waiting for:** {', '.join(f'`{command}`' for command in waiting)}."] if waiting else []),
    ]
    return "\n\n".join(parts)


def _shown(case: Case | None) -> str:
    if case is None:
        return "–"
    return f"**{joint(case.outcomes)}**: {case.shown}" if case.outcomes else case.shown


def _verdict(one: Tested, title: str) -> str:
    single = title in CONVENTIONS and one.verdict != WAITING and 1 in one.seeds.values()
    return one.verdict + "†" * single


def _seeds(one: Tested, title: str) -> str:
    """How many, and of which tasks if not of all."""
    if title not in CONVENTIONS or one.verdict == WAITING:
        return ""
    counts = {*one.seeds.values()}
    if len(counts) == 1:
        (count,) = counts
        return f", {count} seed{'s' * (count > 1)}"
    return f", seeds: {', '.join(f'{task} {count}' for task, count in one.seeds.items())}"


def _waiting(claim: Claim, measured: Sequence[View]) -> list[str]:
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
