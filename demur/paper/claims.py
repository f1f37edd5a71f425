"""What the paper claims, one by one, each tested alike on our values and on those it prints.

A claim is data: the cells that it needs, and a function from a view of values to cases, the lines of its table. There
are three views: our networks of each convention, judged by the metrics of that convention, and the paper's tables.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np

from demur.methods import split_method
from demur.paper.comparing import (
    NO,
    TWICE,
    UNCLEAR,
    YES,
    Case,
    added,
    at_most_twice,
    below,
    below_each,
    best_of,
    by_ece,
    compared,
    every,
    listed,
    mean_of,
    not_above,
    tally,
)
from demur.paper.grid import BAYESIAN, STUDIES
from demur.paper.published import SHIFT_SETS, is_plain, mean_but
from demur.paper.views import NOISE, Known, View
from demur.study.grid import Cell
from demur.study.measuring import TEST, per_cent
from demur.study.run import FAR_AWAY

WAYS = ("nc", "sl", "ml", "oe")  # to show outliers
WITH_OUTLIERS = tuple(method for method in BAYESIAN if not is_plain(method))
LA_WITH_OUTLIERS = tuple(f"la+{way}" for way in WAYS)
WITHOUT = ("map+oe", "de", "vb", "la")  # outliers, but the first
EASY, HARD = ("mnist", "fashion_mnist"), ("cifar10", "cifar100")

ALIKE = 0.03  # accuracies and confidences that are called similar differ by no more
TIMES = (
    "Times are as they were when the cells were made, with other processes on the same card or cores; they compare "
    "only roughly."
)


# tests --------------------------------------------------------------------------------------------------------------

Tested = tuple[str, tuple[str, ...]]  # what is shown, and outcomes


def on(view: View, task: str, methods: Iterable[str], where: str, metric: str) -> dict[str, Known]:
    return {method: view.known(task, method, where, metric) for method in methods}


def fpr95(view: View, task: str, methods: Iterable[str]) -> dict[str, Known]:
    return {method: view.fpr95(task, method) for method in methods}


def with_ways(inference: str, ways: Iterable[str] = WAYS) -> list[str]:
    return [f"{inference}+{way}" for way in ways]


def sure_of_noise(view: View, tasks: Sequence[str]) -> Iterator[Case]:
    for task in tasks:
        for name, metric in (("accuracy", view.accuracy), ("confidence", "mmc")):
            inside = on(view, task, WITHOUT, TEST, metric)
            values = [known.value for known in inside.values()]
            yield Case(f"{task}, {name}", listed(inside), (YES if max(values) - min(values) <= ALIKE else NO,))
        noise = on(view, task, WITHOUT, "uniform", "mmc")
        yield Case(f"{task}, confidence on noise", *below_each("map+oe", WITHOUT[1:], noise))


def plain_lose(view: View, tasks: Sequence[str]) -> Iterator[Case]:
    for task in tasks:
        yield Case(task, *below_each("map+oe", WITHOUT[1:], fpr95(view, task, WITHOUT)))


def reach_exposure(view: View, tasks: Sequence[str]) -> Iterator[Case]:
    for task in tasks:
        known = fpr95(view, task, WITH_OUTLIERS)
        for other, test, words in (("de", below, "less"), ("map+oe", not_above, "not more")):
            standard = view.fpr95(task, other)
            outcomes = {method: test(value, standard) for method, value in known.items()}
            shown = f"{words} than {standard.text(True)}: {tally(known, outcomes)}"
            yield Case(f"{task}, against `{other}`", shown, tuple(outcomes.values()))


def none_class_best(view: View, tasks: Sequence[str]) -> Iterator[Case]:
    places = [(inference, task) for inference in ("vb", "la") for task in tasks]
    by_place = {(i, task): {way: view.fpr95(task, f"{i}+{way}") for way in WAYS} for i, task in places}
    both_kinds = {*tasks} & {*EASY} and {*tasks} & {*HARD}
    for inference in ("vb", "la") if both_kinds else ():
        overall = {way: mean_of([by_place[inference, task][way] for task in tasks]) for way in WAYS}
        yield Case(f"mean over tasks, `{inference}`", *best_of("nc", overall))
    for (inference, task), known in by_place.items():
        yield Case(f"{task}, `{inference}`", listed(known))


def soft_labels_by_difficulty(view: View, tasks: Sequence[str]) -> Iterator[Case]:
    for task, plain in product(tasks, ("vb", "la")):
        if task in EASY:
            yield Case(f"{task}, `{plain}`, FPR95", *best_of("sl", {w: view.fpr95(task, f"{plain}+{w}") for w in WAYS}))
            continue
        soft, pair = f"{plain}+sl", (plain, f"{plain}+sl")
        accuracy = on(view, task, pair, TEST, view.accuracy)

        def error(metric: str, task: str = task, pair: tuple[str, str] = pair) -> Tested:
            return below_each(pair[0], pair[1:], on(view, task, pair, TEST, metric))

        costs = {
            "accuracy": below_each(soft, [plain], accuracy),
            "ECE": by_ece(view, error),
        }
        for what, (shown, outcomes) in costs.items():
            # one that did not train does not tell what training costs
            yield Case(f"{task}, `{plain}`, {what}", shown, (UNCLEAR,) if accuracy[soft].collapsed else outcomes)


def better_calibrated(view: View, tasks: Sequence[str]) -> Iterator[Case]:
    def than_points(task: str, metric: str) -> Tested:
        points, known = (on(view, task, methods, TEST, metric) for methods in (("map", "map+oe"), WITH_OUTLIERS))
        outcomes = {name: every([below(value, point) for point in points.values()]) for name, value in known.items()}
        shown = f"less than {compared(points, outcomes.values())}: {tally(known, outcomes)}"
        return shown, tuple(outcomes.values())

    for task in tasks:
        yield Case(task, *by_ece(view, partial(than_points, task)))


def calibrated_with_noise(view: View, tasks: Sequence[str]) -> Iterator[Case]:
    def noisy(task: str, method: str, metric: str) -> Known:
        return view.known(task, method, TEST, metric, NOISE)

    def exposed(task: str, metric: str) -> Tested:
        known = {"map": view.known(task, "map", TEST, metric), "map+oe": noisy(task, "map+oe", metric)}
        return below_each("map", ["map+oe"], known)

    def laplace(task: str, metric: str) -> Tested:
        known = {method: noisy(task, method, metric) for method in LA_WITH_OUTLIERS}
        plain = view.known(task, "map", TEST, metric)
        outcomes = {method: not_above(value, plain) for method, value in known.items()}
        return tally(known, outcomes), tuple(outcomes.values())

    for task in tasks:
        yield Case(f"{task}, `map+oe` above `map`", *by_ece(view, partial(exposed, task)))
        yield Case(f"{task}, `la+…` not above `map`", *by_ece(view, partial(laplace, task)))


def noise_is_enough(view: View, tasks: Sequence[str]) -> Iterator[Case]:
    unseen, methods = mean_but(NOISE), ("map+oe", *LA_WITH_OUTLIERS)
    for task in tasks:
        plain, photographs = (on(view, task, some, unseen, "fpr95") for some in (("map", "la"), methods))
        noise = {method: view.known(task, method, unseen, "fpr95", NOISE) for method in methods}
        outcomes = {method: below(value, plain[split_method(method)[0]]) for method, value in noise.items()}
        pairs = (f"`{method}` {noise[method].text()} ({photographs[method].text()})" for method in methods)
        shown = f"less than {compared(plain, outcomes.values())}: {tally(noise, outcomes)}"
        shown += f"<br>noise (photographs): {', '.join(pairs)}"
        yield Case(task, shown, tuple(outcomes.values()))


def text_gains(view: View, tasks: Sequence[str]) -> Iterator[Case]:
    exposed = ("map+oe", *LA_WITH_OUTLIERS)
    methods = ("map", "map+oe", "la", *LA_WITH_OUTLIERS)
    for task in tasks:
        known, accuracy = fpr95(view, task, methods), on(view, task, methods, TEST, view.accuracy)
        outcomes = tuple(below(known[method], known[split_method(method)[0]]) for method in exposed)
        shown = (f"`{m}` {known[m].text(UNCLEAR in outcomes)} ({per_cent(accuracy[m].value)})" for m in methods)
        yield Case(task, ", ".join(shown), outcomes)


def others_gain(view: View, tasks: Sequence[str]) -> Iterator[Case]:
    for task, inference in product(tasks, ("flipout", "csghmc", "de")):
        pair = inference, f"{inference}+nc"
        shown, outcomes = below_each(pair[1], pair[:1], fpr95(view, task, pair))
        accuracy, ece = (
            " and ".join(known.text() for known in on(view, task, pair, TEST, metric).values())
            for metric in (view.accuracy, view.eces[0])
        )
        yield Case(f"{task}, `{inference}`", f"{shown}<br>(accuracy {accuracy}, ECE {ece})", outcomes)


def unsure_far_away(view: View, tasks: Sequence[str]) -> Iterator[Case]:
    for task in tasks:
        groups = (("map+oe", "la+oe"),) if task == "blobs" else (("map", "vb", "la"), ("map+oe", "vb+oe", "la+oe"))
        for point, *bayesian in groups:
            known = on(view, task, (point, *bayesian), FAR_AWAY, "mmc")
            outcomes = tuple(below(known[method], known[point]) for method in bayesian)
            yield Case(f"{task}, `{point}`", compared(known, outcomes), outcomes)


def shifted(view: View, task: str, method: str, metric: str) -> Known:
    """The mean over severities; of the same images, so that the intervals do not shrink."""
    parts = [view.known(task, method, name, metric) for name in SHIFT_SETS.values()]
    value, half = (float(np.mean([getattr(part, name) for part in parts])) for name in ("value", "half"))
    return Known(value, half, parts[0].collapsed)


def under_shift(view: View, tasks: Sequence[str]) -> Iterator[Case]:
    def known(task: str, methods: Iterable[str], metric: str) -> dict[str, Known]:
        return {method: shifted(view, task, method, metric) for method in methods}

    def others(task: str, plain: str, metric: str) -> Tested:
        by_method = known(task, [plain, *with_ways(plain, WAYS[1:])], metric)
        outcomes = tuple(below(value, by_method[plain]) for method, value in by_method.items() if method != plain)
        return compared(by_method, outcomes), outcomes

    def none_class(task: str, plain: str, metric: str) -> Tested:
        return below_each(plain, [f"{plain}+nc"], known(task, (plain, f"{plain}+nc"), metric))

    for task, plain in product(tasks, ("vb", "la")):
        yield Case(f"`{plain}`, SL, ML, OE below plain", *by_ece(view, partial(others, task, plain)))
        yield Case(f"`{plain}`, NC above plain", *by_ece(view, partial(none_class, task, plain)))
        yield Case(f"`{plain}`, accuracy", listed(known(task, [plain, *with_ways(plain)], view.accuracy)))


def cheap(view: View, tasks: Sequence[str]) -> Iterator[Case]:
    for task in tasks:
        took = {method: view.seconds(task, method) for method in ("map", "map+oe", "de", "la", "la+oe")}
        alone, exposed, ensemble = (float(np.mean(list(took[method].values()))) for method in ("map", "map+oe", "de"))
        shown = f"`map` {alone:.0f} s, `map+oe` {exposed:.0f} s, `de` {ensemble:.0f} s"
        yield Case(f"{task}, training", shown, (at_most_twice(exposed, alone),))
        plain, both = (added(took["la" + way], took["map" + way]) for way in ("", "+oe"))
        shown = f"`la` {plain:.1f} s after `map`, `la+oe` {both:.1f} s after `map+oe`"
        yield Case(f"{task}, Laplace", shown, (at_most_twice(both, plain),))


# the claims, in the paper's order -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Need:
    """Some methods of a study."""

    study: str
    methods: tuple[str, ...]
    tasks: tuple[str, ...] | None = None  # or all that the study has

    @property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(
            cell
            for cell in STUDIES[self.study]
            if cell.method in self.methods and (self.tasks is None or cell.task in self.tasks)
        )


@dataclass(frozen=True)
class Claim:
    title: str
    said: str  # by the paper, and where
    test: str  # what says yes
    needs: tuple[Need, ...]
    cases: Callable[[View, Sequence[str]], Iterator[Case]]  # of the tasks of which all cells are there
    figures: tuple[str, ...] = ()  # of FIGURES, shown of the others
    is_printed: bool = True  # whether the paper has figures to test

    @property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(cell for need in self.needs for cell in need.cells)


CLAIMS: tuple[Claim, ...] = (
    Claim(
        "Inside all methods are alike, but on noise OE alone is unsure",
        "Outlier exposure, ensembles, VB and Laplace have similar accuracy and confidence on test data, but on uniform "
        "noise only OE's confidence is low (figure 1; Fashion-MNIST is in the table of confidences).",
        "The four accuracies lie within three points, and so do the four confidences; on noise OE's confidence is "
        "clearly below each of the others'.",
        (Need("table1", WITHOUT),),
        sure_of_noise,
        ("accuracy", "confidence", "confidence on noise"),
    ),
    Claim(
        "Plain Bayesian networks lose to OE",
        "Without outliers in training, VB, Laplace and even ensembles detect outliers worse than OE (table 2).",
        "OE's mean FPR95 is clearly below that of `de`, `vb` and `la`.",
        (Need("table1", WITHOUT),),
        plain_lose,
        ("FPR95",),
    ),
    Claim(
        "Trained with outliers, Bayesian networks beat ensembles and reach OE",
        "Whichever way outliers are shown to them, VB and Laplace then detect better than ensembles, and as well as "
        "OE or better (table 2).",
        "The mean FPR95 of each of the eight (`vb` and `la` with NC, SL, ML, OE) is clearly below that of `de`, and "
        "not above that of `map+oe`.",
        (Need("table1", ("de", "map+oe", *WITH_OUTLIERS)),),
        reach_exposure,
        ("FPR95",),
    ),
    Claim(
        "NC is the best way in general",
        "Of the four ways, a class of their own for outliers detects best in general (table 2).",
        "Averaged over tasks, some easy (mnist, fashion_mnist) and some hard (cifar10, cifar100), no other way's mean "
        "FPR95 is below that of NC. Single tasks stand beside.",
        (Need("table1", WITH_OUTLIERS),),
        none_class_best,
        ("FPR95",),
    ),
    Claim(
        "SL is best on easy tasks, and costs accuracy and calibration on hard ones",
        "Soft labels detect best on MNIST and Fashion-MNIST, but lose accuracy and calibration on CIFAR (tables 1, 2).",
        "Easy (mnist, fashion_mnist): no other way's mean FPR95 is below that of SL. Hard (cifar10, cifar100): "
        "SL's accuracy is clearly below, and its ECE clearly above, that of the same inference without outliers; a "
        "collapsed classifier does not tell.",
        (Need("table1", WITH_OUTLIERS, EASY), Need("table1", ("vb", "vb+sl", "la", "la+sl"), HARD)),
        soft_labels_by_difficulty,
        ("FPR95", "accuracy", "ECE"),
    ),
    Claim(
        "Trained with outliers, Bayesian networks are better calibrated than MAP and OE",
        "They also have the lower calibration error (table 1).",
        "The ECE of each of the eight is clearly below that of `map` and that of `map+oe`.",
        (Need("table1", ("map", "map+oe", *WITH_OUTLIERS)),),
        better_calibrated,
        ("ECE",),
    ),
    Claim(
        "Trained with noise, OE is worse calibrated than MAP, Laplace is not",
        "With smooth noise for photographs, OE pays with calibration; Laplace does not (table of noise).",
        "Trained with smooth noise, the ECE of `map+oe` is clearly above that of `map`, and that of Laplace, whichever "
        "way it is shown outliers, is not.",
        (Need("noise", ("map+oe", *LA_WITH_OUTLIERS)), Need("table1", ("map",))),
        calibrated_with_noise,
        ("ECE",),
    ),
    Claim(
        "Synthetic noise is enough",
        "Where no outliers are at hand, training with noise already improves detection (table of noise).",
        "Trained with smooth noise, FPR95 is clearly below that of the same inference without outliers, in the mean "
        "over all OOD sets but that noise, which the paper's mean counts. What photographs give stands beside.",
        (Need("noise", ("map+oe", *LA_WITH_OUTLIERS)), Need("table1", ("map", "map+oe", "la", *LA_WITH_OUTLIERS))),
        noise_is_enough,
        ("FPR95 of unseen sets",),
    ),
    Claim(
        "Text gains as well",
        "On text, too, outliers in training improve detection (table of text).",
        "The mean FPR95 of OE, and of Laplace whichever way it is shown outliers, is clearly below that of the same "
        "inference without; accuracy in brackets. A collapsed classifier gains nothing.",
        (Need("text", ("map", "map+oe", "la", *LA_WITH_OUTLIERS)),),
        text_gains,
        ("FPR95", "accuracy"),
    ),
    Claim(
        "Flipout, CSGHMC and ensembles gain too",
        "A class for outliers helps other Bayesian methods as well (table of other methods).",
        "The mean FPR95 with NC is clearly below that without. Accuracy and ECE stand beside.",
        (Need("aux", ("flipout", "flipout+nc", "csghmc", "csghmc+nc", "de", "de+nc")),),
        others_gain,
        ("FPR95",),
    ),
    Claim(
        "Far from the data, Bayesian methods are less confident",
        "Seen from afar, OE is confident again in the toy example, Bayesian methods are not (toy figure).",
        "Far away (images: 5,000 times uniform noise) the confidence of `vb` and `la` is clearly below that of the "
        "single network of the same likelihood. Other likelihoods are not compared: where there is a class for "
        "outliers, low confidence may be certainty.",
        (Need("toy", ("map+oe", "la+oe")), Need("table1", ("map", "vb", "la", "map+oe", "vb+oe", "la+oe"))),
        unsure_far_away,
        ("confidence far away",),
        is_printed=False,
    ),
    Claim(
        "Under shift outliers in training help, but NC's calibration suffers",
        "On corrupted CIFAR-10 networks trained with outliers are better calibrated than plain ones, but not with NC "
        "(figure of dataset shift).",
        "In the mean over 19 corruptions and 5 severities, ECE with SL, ML and OE is clearly below, and with NC "
        "clearly above, that of the same inference without outliers. What it costs in accuracy stands beside.",
        (Need("shift", BAYESIAN),),
        under_shift,
        ("ECE under shift",),
    ),
    Claim(
        "Training with outliers is cheap",
        "It is ordinary training on twice the inputs, after which Laplace passes once over twice the data (text).",
        f"`map+oe` takes at most {TWICE} times as long to fit as `map` (twice, and a tenth for the clock), and so does "
        f"what Laplace adds to its network with outliers, compared to without. {TIMES}",
        (Need("table1", ("map", "map+oe", "de", "la", "la+oe")),),
        cheap,
        is_printed=False,
    ),
)
