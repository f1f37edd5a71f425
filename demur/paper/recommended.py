"""Which method to use: chosen among candidates by validation data alone, and only then tested."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from demur.measures import value_name
from demur.methods import parse_method
from demur.outliers.values import sets_of
from demur.paper.choice import Candidate
from demur.paper.further import LETTER_COUNT, PRINTED, VALIDATION
from demur.paper.grid import CANDIDATES, STUDIES
from demur.paper.published import OOD_SETS, Row, mean_but
from demur.paper.statistics import Known, mean_of
from demur.paper.views import View, best_printed
from demur.study.grid import Cell
from demur.study.results import TEST
from demur.study.run import FAR_AWAY
from demur.study.table import Measured
from demur.tasks.images import STAND_INS, VALIDATION_COUNT

STUDY = STUDIES["recommended"]
TASKS = tuple(dict.fromkeys(cell.task for cell in STUDY))
BY_TASK = {task: {(cell.method, cell.outliers): cell for cell in STUDY if cell.task == task} for task in TASKS}
# in a tie the first: Laplace is what the paper argues for
INFERENCES, SCORES = ("la", "map", "de"), ("none_share", "none", "max_prob")
ALLOWED = 0.005  # of accuracy, below the best candidate's, beyond a standard error


# the choice ---------------------------------------------------------------------------------------------------------


def cell_of(candidate: Candidate, task: str) -> Cell:
    """As the study has it."""
    return BY_TASK[task][candidate.method, candidate.outliers]


@dataclass(frozen=True)
class Validated:
    """A candidate's values on validation data, by task; nan where it is not there but others are."""

    candidate: Candidate
    fpr95: Mapping[str, float]
    accuracy: Mapping[str, float]
    accurate: bool  # nowhere too far below the best candidate

    @property
    def mean(self) -> float:
        """Of FPR95; nan where a task is missing."""
        return float(np.mean([*self.fpr95.values()]))

    @property
    def eligible(self) -> bool:
        return self.accurate and not math.isnan(self.mean)

    @property
    def standard_error(self) -> float:
        """Of the mean, over which letters are drawn."""
        return math.sqrt(sum(share * (1 - share) for share in self.fpr95.values()) / LETTER_COUNT) / len(self.fpr95)

    @property
    def preference(self) -> tuple[int, int, int]:
        """By inference, by score, by how many sources the outliers have."""
        inference = parse_method(self.candidate.method).inference_name
        return INFERENCES.index(inference), SCORES.index(self.candidate.score), self.candidate.sources


def scores_of(method: str) -> tuple[str, ...]:
    return SCORES if parse_method(method).likelihood(2).has_none_class else ("max_prob",)


def validate(view: View, tasks: Iterable[str] = TASKS) -> list[Validated]:
    """Every candidate of which something is there, best first; those that lack a task come last."""
    measured = {cell for cell in STUDY if view.seeds(cell)}
    tasks = [task for task in tasks if any(cell.task == task for cell in measured)]

    def values_on(pair: tuple[str, str | None], name: str, metric: str) -> dict[str, float]:
        by_task = {task: BY_TASK[task][pair] for task in tasks}
        return {
            task: view.of(cell, name, metric).value if cell in measured else math.nan for task, cell in by_task.items()
        }

    candidates = [pair for pair in CANDIDATES if any(BY_TASK[task][pair] in measured for task in tasks)]
    accuracy = {pair: values_on(pair, VALIDATION, "accuracy") for pair in candidates}
    best = {task: float(np.nanmax([each[task] for each in accuracy.values()])) for task in tasks}
    validated = []
    for candidate in candidates:
        # rounded, since what is allowed is still allowed
        accurate = not any(
            round(best[task] - value - math.sqrt(best[task] * (1 - best[task]) / VALIDATION_COUNT), 6) > ALLOWED
            for task, value in accuracy[candidate].items()
        )
        for score in scores_of(candidate[0]):
            fpr95 = values_on(candidate, PRINTED, value_name("fpr95", score))
            validated.append(Validated(Candidate(*candidate, score), fpr95, accuracy[candidate], accurate))
    return sorted(validated, key=lambda one: (math.inf if math.isnan(one.mean) else one.mean, one.preference))


def recommend(validated: Sequence[Validated]) -> Candidate | None:
    """The preferred one of those that are within a standard error of the best."""
    eligible = [one for one in validated if one.eligible]
    if not eligible:
        return None
    best = eligible[0]
    level = [one for one in eligible if one.mean <= best.mean + best.standard_error]
    return min(level, key=lambda one: one.preference).candidate


# its test -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tested:
    """A candidate on a task's test data, beside the paper's best rows over the same OOD sets."""

    accuracy: Known
    plain: Known | None  # the accuracy of `map`
    fpr95: Known
    far_away: Known  # FPR95 there, which no mean counts
    printed: Mapping[str, tuple[Row, Known] | None]  # by score


def tasks_there(view: View) -> list[str]:
    """Those of the study of which a candidate, or `map`, is there."""
    return [
        task for task in TASKS if any(_is_there(view, cell) for cell in (Cell(task, "map"), *BY_TASK[task].values()))
    ]


def missing_cells(view: View) -> list[Cell]:
    """What it takes to choose among all candidates, and to test the chosen one."""
    return [cell for cell in STUDY if not view.seeds(cell)]


def trained_with(candidates: Iterable[Candidate], task: str) -> list[str]:
    """Those of the task's OOD sets that some of the candidates were shown in training."""
    shown = {name for candidate in candidates for name in sets_of(candidate.outliers)}
    return [name for name in OOD_SETS[task] if name in shown]


def stand_ins(cells: Iterable[Measured], task: str) -> list[str]:
    """Those of the paper's OOD sets for which another stands in."""
    sets = {name for one in cells if one.cell.task == task for name in one.sets}
    return [name for name in OOD_SETS[task] if STAND_INS.get(name) in sets]


def measure(
    view: View, candidate: Candidate, task: str, seen: Collection[str], others: Collection[str] = ()
) -> Tested | None:
    """Over the OOD sets but those `seen` in training, and but `others`; None where the cell is not there."""
    cell, plain, metric = cell_of(candidate, task), Cell(task, "map"), value_name("fpr95", candidate.score)
    if not _is_there(view, cell):
        return None
    sets = view.sets(cell, [*seen, *others])
    fpr95 = view.of(cell, mean_but(*seen), metric)
    if others:
        fpr95 = mean_of([view.of(cell, name, metric) for name in sets])
    return Tested(
        view.of(cell, TEST, "accuracy"),
        view.of(plain, TEST, "accuracy") if view.seeds(plain) else None,
        fpr95,
        view.of(cell, FAR_AWAY, metric),
        {score: best_printed(task, score, sets) for score in ("max_prob", "none")},
    )


def compare_to_printed(one: Known, printed: Known) -> str:
    """By the interval of our value, less being better."""
    difference = one.value - printed.value
    return "level" if abs(difference) <= one.half else "ahead" if difference < 0 else "behind"


def _is_there(view: View, cell: Cell) -> bool:
    return view.seeds(replace(cell, further=())) > 0
