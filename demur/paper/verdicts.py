"""What a view of values says of a claim, and what is missing to say more."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from demur.paper.claims import Claim, shifted
from demur.paper.comparing import NO, PART, UNCLEAR, YES, Case, joint, listed
from demur.paper.grid import STUDIES, commands
from demur.paper.published import is_plain, mean_but
from demur.paper.views import NOISE, Known, View
from demur.study.grid import Cell
from demur.study.measuring import TEST
from demur.study.run import FAR_AWAY

VERDICTS = {YES: "holds", PART: "holds in part", NO: "does not hold", UNCLEAR: "undecided"}
WAITING = "waiting"


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


# of tasks that lack some of a claim's cells -------------------------------------------------------------------------

FIGURES: Mapping[str, Callable[[View, Cell], Known]] = {
    "accuracy": lambda view, cell: view.of(cell, TEST, view.accuracy),
    "ECE": lambda view, cell: view.of(cell, TEST, view.eces[0]),
    "confidence": lambda view, cell: view.of(cell, TEST, "mmc"),
    "confidence on noise": lambda view, cell: view.of(cell, "uniform", "mmc"),
    "confidence far away": lambda view, cell: view.of(cell, FAR_AWAY, "mmc"),
    "FPR95": lambda view, cell: view.fpr95(cell.task, cell.method),
    "FPR95 of unseen sets": lambda view, cell: view.of(cell, mean_but(NOISE), "fpr95"),
    "ECE under shift": lambda view, cell: shifted(view, cell.task, cell.method, view.eces[0]),
}


def so_far(claim: Claim, view: View, task: str) -> Iterator[Case]:
    """The figures that are there, as lines that do not count; none where nothing can be compared."""
    needed = [cells for need in claim.needs if (cells := [c for c in need.cells if c.task == task])]
    there = [[c for c in cells if c.convention == view.convention and view.seeds(c)] for cells in needed]
    if not all(there) or sum(map(len, there)) < 2:
        return
    for name in claim.figures:
        known = {_named(cell): FIGURES[name](view, cell) for cells in there for cell in cells}
        yield Case(f"{task} (so far), {name}", listed(known, with_half=True))


def _named(cell: Cell) -> str:
    return cell.method + f" with {cell.outliers}" * bool(cell.outliers and not is_plain(cell.method))


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
