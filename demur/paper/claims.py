"""What the paper claims, one by one, each put to tests that are made alike of our values and of those it prints.

A claim is data: its words, and tests, each of which compares two methods in one quantity on one task (or on several,
in the mean). What is there is tested; the rest waits.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
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
    return Known(sum(by_seed.values()) / len(by_seed), by_seed=by_seed) if by_seed else None


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


Tests = Iterator[Test]


def alone_unsure_of_noise(task: str) -> Tests:
    for quantity, other in product(("accuracy", "confidence"), WITHOUT):
        yield Test((task,), quantity, "map+oe", "like", other)
    for other in WITHOUT:
        yield Test((task,), "confidence on noise", "map+oe", "below", other)


def plain_lose(task: str) -> Tests:
    for quantity, other in product(("FPR95", "FPR95 on uniform noise"), WITHOUT):
        yield Test((task,), quantity, "map+oe", "below", other, counts=quantity == "FPR95")


def reach_exposure(task: str) -> Tests:
    for method in WITH_OUTLIERS:
        yield Test((task,), "FPR95", method, "below", "de")
        yield Test((task,), "FPR95", method, "not above", "map+oe")


def none_class_best(task: str) -> Tests:
    for inference, way in product(("vb", "la"), WAYS[1:]):
        one, other = f"{inference}+nc", f"{inference}+{way}"
        if task == EASY[0]:  # once, over all tasks
            yield Test(tuple(IMAGES), "FPR95", one, "not above", other)
        yield Test((task,), "FPR95", one, "not above", other, counts=False)


def soft_labels_by_difficulty(task: str) -> Tests:
    for inference in ("vb", "la"):
        soft = f"{inference}+sl"
        for way in ("nc", "ml", "oe") if task in EASY else ():
            yield Test((task,), "FPR95", soft, "not above", f"{inference}+{way}")
        if task in HARD:
            yield Test((task,), "accuracy", soft, "below", inference)
            yield Test((task,), "ECE", inference, "below", soft)


def better_calibrated(task: str) -> Tests:
    for method, point in product(WITH_OUTLIERS, ("map", "map+oe")):
        yield Test((task,), "ECE", method, "below", point)


def calibrated_with_noise(task: str) -> Tests:
    for method in LA_WITH_OUTLIERS:
        yield Test((task,), "ECE", method, "not above", "map", NOISE)
    yield Test((task,), "ECE", "map+oe", "above", "map", NOISE)


def noise_is_enough(task: str) -> Tests:
    for method in ("map+oe", *LA_WITH_OUTLIERS):
        yield Test((task,), "FPR95 of unseen sets", method, "below", split_method(method)[0], NOISE)


def text_gains(task: str) -> Tests:
    for method in ("map+oe", *LA_WITH_OUTLIERS):
        yield Test((task,), "FPR95", method, "below", split_method(method)[0])


def others_gain(task: str) -> Tests:
    for inference in ("flipout", "csghmc", "de"):
        yield Test((task,), "FPR95", f"{inference}+nc", "below", inference)


def unsure_far_away(task: str) -> Tests:
    for inference, way in product(("vb", "la"), ("", "+oe")) if task != "blobs" else [("la", "+oe")]:
        yield Test((task,), "confidence far away", inference + way, "below", "map" + way)


def under_shift(task: str) -> Tests:
    for inference in ("vb", "la"):
        for way in WAYS[1:]:
            yield Test((task,), "ECE under shift", f"{inference}+{way}", "below", inference)
        yield Test((task,), "ECE under shift", f"{inference}+nc", "above", inference)


def cheap(task: str) -> Tests:
    yield Test((task,), "seconds", "map+oe", "at most twice", "map")
    yield Test((task,), "seconds that Laplace adds", "la+oe", "at most twice", "la")


# the claims, in the paper's order -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Claim:
    title: str
    statement: str  # by the paper, and where
    criterion: str  # what says yes
    studies: tuple[str, ...]  # that have its cells
    tasks: tuple[str, ...]
    of_task: Callable[[str], Tests]
    is_printed: bool = True  # whether the paper prints values to test

    @property
    def tests(self) -> list[Test]:
        return [test for task in self.tasks for test in self.of_task(task)]

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
APART = "Uniform noise, where one network's luck moves everything, is judged apart and does not count."

CLAIMS: tuple[Claim, ...] = (
    Claim(
        "Inside all methods are alike, but on noise OE alone is unsure",
        "Outlier exposure, ensembles, VB and Laplace have similar accuracy and confidence on test data, but on uniform "
        "noise only OE's confidence is low (figure 1; Fashion-MNIST is in the table of confidences).",
        f"Accuracy and confidence of OE lie within {100 * ALIKE:.0f} points of each of the others'; on noise its "
        "confidence is clearly below each of theirs.",
        ("table1",),
        IMAGE_TASKS,
        alone_unsure_of_noise,
    ),
    Claim(
        "Plain Bayesian networks lose to OE",
        "Without outliers in training, VB, Laplace and even ensembles detect outliers worse than OE (table 2).",
        f"OE's mean FPR95 is clearly below that of `de`, `vb` and `la`. {APART}",
        ("table1",),
        IMAGE_TASKS,
        plain_lose,
    ),
    Claim(
        "Trained with outliers, Bayesian networks beat ensembles and reach OE",
        "Whichever way outliers are shown to them, VB and Laplace then detect better than ensembles, and as well as "
        "OE or better (table 2).",
        "The mean FPR95 of each of the eight (`vb` and `la` with NC, SL, ML, OE) is clearly below that of `de`, and "
        "not clearly above that of `map+oe`. Uniform noise is left out of the mean.",
        ("table1",),
        IMAGE_TASKS,
        reach_exposure,
    ),
    Claim(
        "NC is the best way in general",
        "Of the four ways, a class of their own for outliers detects best in general (table 2).",
        "Averaged over the tasks that are there, the mean FPR95 of NC is not clearly above that of any other way. "
        "Single tasks stand beside. Uniform noise is left out of the mean.",
        ("table1",),
        IMAGE_TASKS,
        none_class_best,
    ),
    Claim(
        "SL is best on easy tasks, and costs accuracy and calibration on hard ones",
        "Soft labels detect best on MNIST and Fashion-MNIST, but lose accuracy and calibration on CIFAR (tables 1, 2).",
        "Easy (mnist, fashion_mnist): the mean FPR95 of SL is not clearly above that of another way. Hard (cifar10, "
        "cifar100): its accuracy is clearly below, and its ECE clearly above, that of the same inference without "
        "outliers.",
        ("table1",),
        (*EASY, *HARD),
        soft_labels_by_difficulty,
    ),
    Claim(
        "Trained with outliers, Bayesian networks are better calibrated than MAP and OE",
        "They also have the lower calibration error (table 1).",
        "The ECE of each of the eight is clearly below that of `map` and that of `map+oe`.",
        ("table1",),
        IMAGE_TASKS,
        better_calibrated,
    ),
    Claim(
        "Trained with noise, OE is worse calibrated than MAP, Laplace is not",
        "With smooth noise for natural images, OE pays with calibration; Laplace does not (table of noise).",
        "Trained with smooth noise, the ECE of `map+oe` is clearly above that of `map`, and that of Laplace, whichever "
        "way it is shown outliers, is not.",
        ("noise", "table1"),
        IMAGE_TASKS,
        calibrated_with_noise,
    ),
    Claim(
        "Synthetic noise is enough",
        "Where no outliers are at hand, training with noise already improves detection (table of noise).",
        "Trained with smooth noise, FPR95 is clearly below that of the same inference without outliers, in the mean "
        "over all OOD sets but noise.",
        ("noise", "table1"),
        IMAGE_TASKS,
        noise_is_enough,
    ),
    Claim(
        "Text gains as well",
        "On text, too, outliers in training improve detection (table of text).",
        "The mean FPR95 of OE, and of Laplace whichever way it is shown outliers, is clearly below that of the same "
        "inference without. In the published convention all OOD texts are rows of unknown words: FPR95 then says "
        "whether unknown words are told, not whether texts are.",
        ("text",),
        TEXT_TASKS,
        text_gains,
    ),
    Claim(
        "Flipout, CSGHMC and ensembles gain too",
        "A class for outliers helps other Bayesian methods as well (table of other methods).",
        "The mean FPR95 with NC is clearly below that without. Uniform noise is left out of the mean.",
        ("aux",),
        ("cifar10", "cifar100"),
        others_gain,
    ),
    Claim(
        "Far from the data, Bayesian methods are less confident",
        "Seen from afar, OE is confident again in the toy example, Bayesian methods are not (toy figure).",
        "Far away (images: 5,000 times uniform noise) the confidence of `vb` and `la` is clearly below that of the "
        "single network of the same likelihood. Other likelihoods are not compared: where there is a class for "
        "outliers, low confidence may be certainty.",
        ("table1", "toy"),
        ("blobs", *IMAGE_TASKS),
        unsure_far_away,
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
        under_shift,
    ),
    Claim(
        "Training with outliers is cheap",
        "It is ordinary training on twice the inputs, after which Laplace passes once over twice the data (text).",
        f"`map+oe` takes at most {TWICE} times as long to fit as `map` (twice, and a tenth for the clock), and so does "
        "what Laplace adds to its network. Only networks that had the device alone are compared.",
        ("table1",),
        IMAGE_TASKS,
        cheap,
        is_printed=False,
    ),
)
