"""What a view of values says of a claim, and what is missing to say more."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from demur.paper.claims import QUANTITIES, RULES, TWICE, Claim, Test
from demur.paper.grid import STUDIES, commands
from demur.paper.statistics import (
    NO,
    PART,
    UNCLEAR,
    YES,
    Known,
    combine_outcomes,
    difference,
    mean_difference,
    mean_of,
)
from demur.paper.views import View

VERDICTS = {YES: "holds", PART: "holds in part", NO: "does not hold", UNCLEAR: "undecided"}
WAITING = "waiting"


@dataclass(frozen=True)
class Finding:
    """A test that could be made: its two values, and what it says."""

    test: Test
    one: Known
    other: Known
    outcome: str
    tie: bool  # within the interval of the difference
    seeds: int
    assumed: bool


@dataclass(frozen=True)
class Verdict:
    """A claim in one view."""

    findings: tuple[Finding, ...]
    asked: int  # how many tests there would be that count

    @property
    def counted(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.test.counts]

    @property
    def word(self) -> str:
        return VERDICTS[combine_outcomes([finding.outcome for finding in self.counted])] if self.counted else WAITING

    @property
    def tests(self) -> str:
        """How many say what; empty where there is none."""
        outcomes = [finding.outcome for finding in self.counted]
        ties = sum(finding.tie and finding.outcome == YES for finding in self.counted)
        unclear, waiting = outcomes.count(UNCLEAR), self.asked - len(outcomes)
        counts = [f"{outcomes.count(YES)} of {len(outcomes)} tests"] + [f"{ties} of them ties"] * bool(ties)
        against = outcomes.count(NO)
        counts += [f"{against} against"] * bool(against) + [f"{unclear} unclear"] * bool(unclear)
        counts += [f"{waiting} more wait"] * bool(waiting)
        return ", ".join(counts) if outcomes else ""

    @property
    def dagger(self) -> str:
        """A mark where tests count for which the spread of training is assumed."""
        return "†" * any(finding.assumed for finding in self.counted)

    @property
    def text(self) -> str:
        return f"{self.word} ({self.tests}){self.dagger}" if self.counted else self.word

    @property
    def seeds(self) -> Mapping[str, tuple[int, int]]:
        """The fewest and the most that tests of a task had."""
        counts: dict[str, list[int]] = {}
        for finding in self.findings:
            if len(finding.test.tasks) == 1 and finding.seeds:
                counts.setdefault(finding.test.tasks[0], []).append(finding.seeds)
        return {task: (min(each), max(each)) for task, each in counts.items()}


def examine(claim: Claim, view: View) -> Verdict:
    results = tuple(finding for test in claim.tests if (finding := run_test(test, view)) is not None)
    return Verdict(results, sum(test.counts for test in claim.tests))


def run_test(test: Test, view: View) -> Finding | None:
    """The test's outcome; None where a side of it is not there."""
    quantity = QUANTITIES[test.quantity]
    both = [[quantity.of(view, task, *side) for side in test.sides] for task in test.tasks]
    pairs = [(one, other) for one, other in both if one is not None and other is not None]
    if not pairs:
        return None
    ones, others = ([*side] for side in zip(*pairs, strict=True))
    if quantity.is_time:
        pairs = [(one, Known(TWICE * other.value)) for one, other in pairs]
    apart = mean_difference([difference(one, other) for one, other in pairs])
    outcome = RULES[test.rule](apart)
    if any(one.collapsed for one in ones):
        outcome = UNCLEAR if test.rule == "below" and quantity.higher_is_better else NO  # it is never better
    elif any(other.collapsed for other in others) and quantity.of_classes:
        outcome = UNCLEAR
    one, other = (side[0] if len(side) == 1 else mean_over_tasks(side) for side in (ones, others))
    tie = test.rule == "not above" and apart.half > 0 and abs(apart.value) <= apart.half
    return Finding(test, one, other, outcome, tie, apart.seeds, apart.assumed)


def mean_over_tasks(parts: Sequence[Known]) -> Known:
    """The value alone; its interval is the difference's affair."""
    return replace(mean_of(parts), by_seed={}, over_points=0.0)


def waiting(claim: Claim, views: Mapping[str, View]) -> list[str]:
    """What to type for the cells that are not there: whole studies of a task, since methods share networks."""
    absent = {
        (study, cell.task, cell.convention)
        for study in claim.studies
        for cell in STUDIES[study]
        if cell in claim.cells and not views[cell.convention].seeds(cell)
    }
    cells = [(study, cell) for study in claim.studies for cell in STUDIES[study]]
    return commands(cell for study, cell in cells if (study, cell.task, cell.convention) in absent)
