"""What the paper claims, one by one, each put to tests that are made alike of our values and of those it prints.

A claim is data: its words, and tests, each of which compares two methods in one quantity on one task (or on several,
in the mean). What is there is tested; the rest waits.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from types import MappingProxyType

from demur.methods import method_name, split_method
from demur.paper.grid import BAYESIAN, STUDIES
from demur.paper.published import SHIFT_SETS, is_plain, outliers_of
from demur.paper.statistics import ALIKE, Difference, Known, is_above, is_below, is_not_above, is_tie, mean_of
from demur.paper.views import LUCK, NOISE, View, place
from demur.study.grid import Cell
from demur.study.results import TEST
from demur.study.run import FAR_AWAY
from demur.tasks import IMAGES, TEXTS

WAYS = ("nc", "sl", "ml", "oe")  # to show outliers
WITH_OUTLIERS = tuple(method for method in BAYESIAN if not is_plain(method))
LA_WITH_OUTLIERS = tuple(f"la+{way}" for way in WAYS)
WITHOUT = ("de", "vb", "la")  # outliers
EASY, HARD = ("mnist", "fashion_mnist"), ("cifar10", "cifar100")
TWICE = 2.2  # twice the inputs, and a tenth for the clock


# quantities: what is compared, by name ------------------------------------------------------------------------------

Lookup = Callable[[View, str, str, str | None], Known | None]  # of a task, a method and its training outliers


@dataclass(frozen=True)
class Quantity:
    """How a value is looked up, and what must be known of it to compare two."""

    of: Lookup
    higher_is_better: bool = False
    is_time: bool = False  # seconds: compared as a ratio, and exact
    of_classes: bool = False  # says nothing of what training costs where the other method tells no classes apart


def _mean(metric: str, *sets: str) -> Lookup:
    """Of a metric over some sets; None where one is not there."""

    def of(view: View, task: str, method: str, outliers: str | None) -> Known | None:
        parts = [view.known(task, method, name, view.metric(metric), outliers) for name in sets]
        values = [part for part in parts if part is not None]
        return mean_of(values) if len(values) == len(parts) else None

    return of


def _mean_fpr95(*without: str) -> Lookup:
    """Over the sets that the convention counts, but some; texts have no noise to leave out."""

    def of(view: View, task: str, method: str, outliers: str | None) -> Known | None:
        return view.known(task, method, view.counted(task, *without if task in IMAGES else ()), "fpr95", outliers)

    return of


def _seconds(view: View, task: str, method: str, outliers: str | None) -> Known | None:
    by_seed = view.seconds(place(task, method, outliers or outliers_of(Cell(task, method))))
    return _of_seeds(by_seed)


def _added_seconds(view: View, task: str, method: str, outliers: str | None) -> Known | None:
    """Beyond those of the network that Laplace is put around."""
    of_map = method_name("map", split_method(method)[1])
    whole, part = (_seconds(view, task, name, outliers) for name in (method, of_map))
    if whole is None or part is None:
        return None
    seeds = sorted(whole.by_seed.keys() & part.by_seed.keys())
    return _of_seeds({seed: whole.by_seed[seed] - part.by_seed[seed] for seed in seeds})


def _of_seeds(by_seed: Mapping[int, float]) -> Known | None:
    return Known(fmean(by_seed.values()), by_seed=by_seed) if by_seed else None


QUANTITIES: Mapping[str, Quantity] = MappingProxyType(
    {
        "accuracy": Quantity(_mean("accuracy", TEST), higher_is_better=True),
        "ECE": Quantity(_mean("ece", TEST), of_classes=True),
        "confidence": Quantity(_mean("mmc", TEST)),
        "confidence on noise": Quantity(_mean("mmc", LUCK)),
        "confidence far away": Quantity(_mean("mmc", FAR_AWAY)),
        "FPR95": Quantity(_mean_fpr95(LUCK)),
        "FPR95 on uniform noise": Quantity(_mean("fpr95", LUCK)),
        "FPR95 of unseen sets": Quantity(_mean_fpr95(NOISE, LUCK)),
        "ECE under shift": Quantity(_mean("ece", *SHIFT_SETS.values())),
        "seconds": Quantity(_seconds, is_time=True),
        "seconds that Laplace adds": Quantity(_added_seconds, is_time=True),
    }
)


def at_most_twice(apart: Difference) -> str:
    """Of the one less so many times the other."""
    return "yes" if apart.value <= 0 else "no"


RULES: Mapping[str, Callable[[Difference], str]] = MappingProxyType(
    {
        "below": is_below,
        "above": is_above,
        "not above": is_not_above,
        "like": is_tie,
        "at most twice": at_most_twice,
    }
)


# tests --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Test:
    """Whether one method is below another, or not above it, or like it."""

    tasks: tuple[str, ...]  # one, or several to take the mean over
    quantity: str  # of QUANTITIES
    one: str
    rule: str
    other: str
    outliers: str | None = None  # that the one was trained with; the other with the usual ones
    counts: bool = True  # or it stands beside

    @property
    def line(self) -> str:
        """Tests of one line stand together."""
        task = self.tasks[0] if len(self.tasks) == 1 else "mean over tasks"
        return f"{task}, {self.quantity}"

    @property
    def sides(self) -> tuple[tuple[str, str | None], tuple[str, str | None]]:
        return (self.one, self.outliers), (self.other, None)


Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Comparison:
    """Tests that differ in their methods and tasks alone: the first method of each pair against the second."""

    quantity: str
    pairs: Pairs
    rule: str
    outliers: str | None = None
    counts: bool = True
    only: tuple[str, ...] = ()  # of the claim's tasks; empty for all

    def on(self, *tasks: str) -> Iterator[Test]:
        """On one task, or in the mean over several."""
        for one, other in self.pairs:
            yield Test(tasks, self.quantity, one, self.rule, other, self.outliers, self.counts)


def every_pair(ones: Iterable[str], others: Iterable[str]) -> Pairs:
    return tuple(product(ones, others))


def without_outliers(*methods: str) -> Pairs:
    """Each with the same inference that is shown none."""
    return tuple((method, split_method(method)[0]) for method in methods)


def other_ways(way: str) -> Pairs:
    """Each inference with one way to show outliers, and with each other."""
    return tuple(
        (method_name(inference, way), method_name(inference, other))
        for inference in ("vb", "la")
        for other in WAYS
        if other != way
    )


# the claims, in the paper's order -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Claim:
    title: str
    statement: str  # by the paper, and where
    criterion: str  # what says yes
    studies: tuple[str, ...]  # that have its cells
    tasks: tuple[str, ...]
    comparisons: tuple[Comparison, ...]
    over_tasks: tuple[Comparison, ...] = ()  # in the mean over the tasks
    is_printed: bool = True  # whether the paper prints values to test

    @property
    def tests(self) -> list[Test]:
        means = (test for comparison in self.over_tasks for test in comparison.on(*self.tasks))
        of_each = (
            test
            for task in self.tasks
            for comparison in self.comparisons
            if task in (comparison.only or self.tasks)
            for test in comparison.on(task)
        )
        return [*means, *of_each]

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All that its tests look at."""
        wanted = {(task, *side) for test in self.tests for task in test.tasks for side in test.sides}
        known = dict.fromkeys(cell for study in self.studies for cell in STUDIES[study])
        return tuple(
            cell
            for cell in known
            if (cell.task, cell.method, None if is_plain(cell.method) else cell.outliers) in wanted
        )


IMAGE_TASKS, TEXT_TASKS = tuple(IMAGES), tuple(TEXTS)
FROM_AFAR = (("vb", "map"), ("vb+oe", "map+oe"), ("la", "map"), ("la+oe", "map+oe"))
APART = "Uniform noise, where one network's luck moves everything, is judged apart and does not count."

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "On test data all methods are alike, on noise OE alone is unsure",
        "Outlier exposure, ensembles, VB and Laplace have similar accuracy and confidence on test data, but on uniform "
        "noise only OE's confidence is low (figure 1; Fashion-MNIST is in the table of confidences).",
        f"Accuracy and confidence of OE lie within {100 * ALIKE:.0f} points of each of the others'; on noise its "
        "confidence is clearly below each of theirs.",
        ("table1",),
        IMAGE_TASKS,
        (
            Comparison("accuracy", every_pair(["map+oe"], WITHOUT), "like"),
            Comparison("confidence", every_pair(["map+oe"], WITHOUT), "like"),
            Comparison("confidence on noise", every_pair(["map+oe"], WITHOUT), "below"),
        ),
    ),
    Claim(
        "Plain Bayesian networks lose to OE",
        "Without outliers in training, VB, Laplace and even ensembles detect outliers worse than OE (table 2).",
        f"OE's mean FPR95 is clearly below that of `de`, `vb` and `la`. {APART}",
        ("table1",),
        IMAGE_TASKS,
        (
            Comparison("FPR95", every_pair(["map+oe"], WITHOUT), "below"),
            Comparison("FPR95 on uniform noise", every_pair(["map+oe"], WITHOUT), "below", counts=False),
        ),
    ),
    Claim(
        "Trained with outliers, Bayesian networks beat ensembles and reach OE",
        "Trained with outliers in any of the four ways, VB and Laplace detect better than ensembles, and as well as OE "
        "or better (table 2).",
        "The mean FPR95 of each of the eight (`vb` and `la` with NC, SL, ML, OE) is clearly below that of `de`, and "
        "not clearly above that of `map+oe`. Uniform noise is left out of the mean.",
        ("table1",),
        IMAGE_TASKS,
        (
            Comparison("FPR95", every_pair(WITH_OUTLIERS, ["de"]), "below"),
            Comparison("FPR95", every_pair(WITH_OUTLIERS, ["map+oe"]), "not above"),
        ),
    ),
    Claim(
        "NC is the best way in general",
        "Of the four ways, a class of their own for outliers detects best in general (table 2).",
        "Averaged over the tasks that are there, the mean FPR95 of NC is not clearly above that of any other way. "
        "Single tasks are shown and do not count. Uniform noise is left out of the mean.",
        ("table1",),
        IMAGE_TASKS,
        (Comparison("FPR95", other_ways("nc"), "not above", counts=False),),
        over_tasks=(Comparison("FPR95", other_ways("nc"), "not above"),),
    ),
    Claim(
        "SL is best on easy tasks, and costs accuracy and calibration on hard ones",
        "Soft labels detect best on MNIST and Fashion-MNIST, but lose accuracy and calibration on CIFAR (tables 1, 2).",
        "Easy (mnist, fashion_mnist): the mean FPR95 of SL is not clearly above that of another way. Hard (cifar10, "
        "cifar100): its accuracy is clearly below, and its ECE clearly above, that of the same inference without "
        "outliers.",
        ("table1",),
        (*EASY, *HARD),
        (
            Comparison("FPR95", other_ways("sl"), "not above", only=EASY),
            Comparison("accuracy", without_outliers("vb+sl", "la+sl"), "below", only=HARD),
            Comparison("ECE", (("vb", "vb+sl"), ("la", "la+sl")), "below", only=HARD),
        ),
    ),
    Claim(
        "Trained with outliers, Bayesian networks are better calibrated than MAP and OE",
        "They also have the lower calibration error (table 1).",
        "The ECE of each of the eight is clearly below that of `map` and that of `map+oe`.",
        ("table1",),
        IMAGE_TASKS,
        (Comparison("ECE", every_pair(WITH_OUTLIERS, ["map", "map+oe"]), "below"),),
    ),
    Claim(
        "Trained with noise, OE is worse calibrated than MAP, Laplace is not",
        "With smooth noise for natural images, OE pays with calibration; Laplace does not (table of noise).",
        "Trained with smooth noise, the ECE of `map+oe` is clearly above that of `map`. That of Laplace, with any "
        "likelihood for outliers, is not.",
        ("noise", "table1"),
        IMAGE_TASKS,
        (
            Comparison("ECE", every_pair(LA_WITH_OUTLIERS, ["map"]), "not above", NOISE),
            Comparison("ECE", (("map+oe", "map"),), "above", NOISE),
        ),
    ),
    Claim(
        "Synthetic noise is enough",
        "Where no outliers are at hand, training with noise already improves detection (table of noise).",
        "Trained with smooth noise, FPR95 is clearly below that of the same inference without outliers, in the mean "
        "over all OOD sets but noise.",
        ("noise", "table1"),
        IMAGE_TASKS,
        (Comparison("FPR95 of unseen sets", without_outliers("map+oe", *LA_WITH_OUTLIERS), "below", NOISE),),
    ),
    Claim(
        "Text gains as well",
        "On text, too, outliers in training improve detection (table of text).",
        "The mean FPR95 of OE, and of Laplace with any likelihood for outliers, is clearly below that of the same "
        "inference without. In the published convention all OOD texts are rows of unknown words: FPR95 then says "
        "whether unknown words are noticed, not whether texts are.",
        ("text",),
        TEXT_TASKS,
        (Comparison("FPR95", without_outliers("map+oe", *LA_WITH_OUTLIERS), "below"),),
    ),
    Claim(
        "Flipout, CSGHMC and ensembles gain too",
        "A class for outliers helps other Bayesian methods as well (table of other methods).",
        "The mean FPR95 with NC is clearly below that without. Uniform noise is left out of the mean.",
        ("aux",),
        ("cifar10", "cifar100"),
        (Comparison("FPR95", without_outliers("flipout+nc", "csghmc+nc", "de+nc"), "below"),),
    ),
    Claim(
        "Far from the data, Bayesian methods are less confident",
        "Seen from afar, OE is confident again in the toy example, Bayesian methods are not (toy figure).",
        "Far away (images: 5,000 times uniform noise) the confidence of `vb` and `la` is clearly below that of the "
        "single network of the same likelihood. Other likelihoods are not compared: where there is a class for "
        "outliers, low confidence may be certainty.",
        ("table1", "toy"),
        ("blobs", *IMAGE_TASKS),
        (
            Comparison("confidence far away", (("la+oe", "map+oe"),), "below", only=("blobs",)),
            Comparison("confidence far away", FROM_AFAR, "below", only=IMAGE_TASKS),
        ),
        is_printed=False,
    ),
    Claim(
        "Under shift outliers in training help, but NC's calibration suffers",
        "On corrupted CIFAR-10 networks trained with outliers are better calibrated than plain ones, but not with NC "
        "(figure of dataset shift).",
        "In the mean over 19 corruptions and 5 severities, ECE with SL, ML and OE is clearly below, and with NC "
        "clearly above, that of the same inference without outliers.",
        ("shift",),
        ("cifar10",),
        tuple(
            Comparison("ECE under shift", without_outliers(*(f"{inference}+{way}" for way in ways)), rule)
            for inference in ("vb", "la")
            for ways, rule in ((WAYS[1:], "below"), (WAYS[:1], "above"))
        ),
    ),
    Claim(
        "Training with outliers is cheap",
        "It is ordinary training on twice the inputs, after which Laplace passes once over twice the data (text).",
        f"`map+oe` takes at most {TWICE} times as long to fit as `map` (twice, and a tenth for the clock), and so does "
        "what Laplace adds to its network. Only networks that had the device alone are compared.",
        ("table1",),
        IMAGE_TASKS,
        (
            Comparison("seconds", (("map+oe", "map"),), "at most twice"),
            Comparison("seconds that Laplace adds", (("la+oe", "la"),), "at most twice"),
        ),
        is_printed=False,
    ),
)
