"""What the paper claims, one by one, each tested alike on our figures and on those it prints.

A claim is data: the cells that it needs, and a function from a view of figures to cases, the lines of its table. There
are three views: our networks of each convention, judged by the metrics of that convention, and the paper's tables.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from demur.paper.grid import BAYESIAN, STUDIES, Cell
from demur.paper.published import SHIFT_SETS, mean_but
from demur.paper.views import NOISE, Known, View
from demur.study.measuring import TEST, per_cent
from demur.study.run import FAR_AWAY

WAYS = ("nc", "sl", "ml", "oe")  # to show outliers
WITH_OUTLIERS = tuple(method for method in BAYESIAN if "+" in method)
LA_WITH_OUTLIERS = tuple(f"la+{way}" for way in WAYS)
EASY, HARD = ("mnist", "fashion_mnist"), ("cifar10", "cifar100")

ALIKE = 0.03  # accuracies and confidences that are called similar differ by no more
TIMES = (
    "Times are as they were when the cells were made, with other processes on the same card or cores; they compare "
    "only roughly."
)
TWICE = 2.2  # twice the inputs, and a tenth for the clock


# outcomes -----------------------------------------------------------------------------------------------------------

YES, PART, NO, UNCLEAR = "yes", "in part", "no", "unclear"


def below(one: Known, other: Known) -> str:
    """Whether one is clearly less: by more than the two intervals explain. A collapsed classifier is never better."""
    if one.collapsed:
        return NO
    apart = math.hypot(one.half, other.half)
    return YES if one.value < other.value - apart else NO if one.value > other.value + apart else UNCLEAR


def not_above(one: Known, other: Known) -> str:
    """Whether one is not more; unclear where it is, but not clearly."""
    found = below(one, other)
    return YES if found == UNCLEAR and one.value <= other.value else found


def joint(outcomes: Collection[str]) -> str:
    """Of many tests: yes if all say so, no if none does; unclear if most are."""
    kinds = set(outcomes)
    if len(kinds) == 1:
        return kinds.pop()
    if sum(outcome == UNCLEAR for outcome in outcomes) > len(outcomes) / 2:
        return UNCLEAR
    return NO if kinds == {NO, UNCLEAR} else PART


def every(outcomes: Collection[str]) -> str:
    """Of one test with several conditions: no if one fails."""
    return NO if NO in outcomes else UNCLEAR if UNCLEAR in outcomes else YES


@dataclass(frozen=True)
class Case:
    """A line of a claim's table: figures, and the outcomes of their tests; without any it stands beside."""

    what: str
    shown: str
    outcomes: tuple[str, ...] = ()


def listed(known: Mapping[str, Known], with_half: bool = False) -> str:
    return ", ".join(f"`{method}` {figure.text(with_half)}" for method, figure in known.items())


def compared(known: Mapping[str, Known], outcomes: Collection[str]) -> str:
    """The figures, with their intervals where these leave a test unclear."""
    return listed(known, UNCLEAR in outcomes)


def less(one: str, other: str, known: Mapping[str, Known]) -> tuple[str, tuple[str, ...]]:
    """Whether one method's figure is clearly less than the other's."""
    outcomes = (below(known[one], known[other]),)
    return compared(known, outcomes), outcomes


def tally(known: Mapping[str, Known], outcomes: Mapping[str, str]) -> str:
    """How many say yes, and which do not."""

    def those(kind: str) -> dict[str, Known]:
        return {method: known[method] for method, outcome in outcomes.items() if outcome == kind}

    others = [f"{kind}: {listed(those(kind), kind == UNCLEAR)}" for kind in (NO, UNCLEAR) if those(kind)]
    return "; ".join([f"{len(those(YES))} of {len(known)}", *others])


ECES = {"ece": "all inputs", "ece_published": "below 14/15"}


def by_ece(view: View, test: Callable[[str], tuple[str, Sequence[str]]]) -> tuple[str, tuple[str, ...]]:
    """Judged by the view's own calibration error; what the other says is put beside."""
    (shown, outcomes), *others = (test(metric) for metric in view.eces)
    beside = [f"({ECES[metric]}: {text})" for metric, (text, _) in zip(view.eces[1:], others, strict=True)]
    return "<br>".join([shown, *beside]), tuple(outcomes)


# tests --------------------------------------------------------------------------------------------------------------


def sure_of_noise(view: View, tasks: Sequence[str]) -> Iterator[Case]:
    methods = ("map+oe", "de", "vb", "la")
    for task in tasks:
        for name, metric in (("accuracy", view.accuracy), ("confidence", "mmc")):
            inside = {method: view.known(task, method, TEST, metric) for method in methods}
            values = [figure.value for figure in inside.values()]
            yield Case(f"{task}, {name}", listed(inside), (YES if max(values) - min(values) <= ALIKE else NO,))
        noise = {method: view.known(task, method, "uniform", "mmc") for method in methods}
        outcomes = tuple(below(noise["map+oe"], noise[method]) for method in methods[1:])
        yield Case(f"{task}, confidence on noise", compared(noise, outcomes), outcomes)


def plain_lose(view: View, tasks: Sequence[str]) -> Iterator[Case]:
    for task in tasks:
        known = {method: view.fpr95(task, method) for method in ("map+oe", "de", "vb", "la")}
        outcomes = tuple(below(known["map+oe"], known[method]) for method in ("de", "vb", "la"))
        yield Case(task, compared(known, outcomes), outcomes)


def reach_exposure(view: View, tasks: Sequence[str]) -> Iterator[Case]:
    for task in tasks:
        known = {method: view.fpr95(task, method) for method in WITH_OUTLIERS}
        for other, test, words in (("de", below, "less"), ("map+oe", not_above, "not more")):
            standard = view.fpr95(task, other)
            outcomes = {method: test(figure, standard) for method, figure in known.items()}
            shown = f"{words} than {standard.text(True)}: {tally(known, outcomes)}"
            yield Case(f"{task}, against `{other}`", shown, tuple(outcomes.values()))


def none_class_best(view: View, tasks: Sequence[str]) -> Iterator[Case]:
    by_place = {
        (i, task): {way: view.fpr95(task, f"{i}+{way}") for way in WAYS} for i in ("vb", "la") for task in tasks
    }
    both_kinds = {*tasks} & {*EASY} and {*tasks} & {*HARD}
    for inference in ("vb", "la") if both_kinds else ():
        overall = {way: mean_of([by_place[inference, task][way] for task in tasks]) for way in WAYS}
        yield Case(f"mean over tasks, `{inference}`", *best_of("nc", overall))
    for (inference, task), known in by_place.items():
        yield Case(f"{task}, `{inference}`", listed(known))


def mean_of(independent: Sequence[Known]) -> Known:
    half = math.hypot(*(one.half for one in independent)) / len(independent)
    return Known(float(np.mean([one.value for one in independent])), half, any(one.collapsed for one in independent))


def best_of(way: str, known: Mapping[str, Known]) -> tuple[str, tuple[str]]:
    """Whether none of the others is less."""
    others = [figure for name, figure in known.items() if name != way]
    near = any(below(known[way], other) == UNCLEAR for other in others)
    return listed(known, near), (every([not_above(known[way], other) for other in others]),)


def soft_labels_by_difficulty(view: View, tasks: Sequence[str]) -> Iterator[Case]:
    def calibration(task: str, plain: str, soft: str, metric: str) -> tuple[str, Sequence[str]]:
        return less(plain, soft, {method: view.known(task, method, TEST, metric) for method in (plain, soft)})

    for task in tasks:
        for inference in ("vb", "la"):
            if task in EASY:
                known = {way: view.fpr95(task, f"{inference}+{way}") for way in WAYS}
                yield Case(f"{task}, `{inference}`, FPR95", *best_of("sl", known))
            else:
                plain, soft = inference, f"{inference}+sl"
                accuracy = {method: view.known(task, method, TEST, view.accuracy) for method in (plain, soft)}
                costs = {
                    "accuracy": less(soft, plain, accuracy),
                    "ECE": by_ece(view, partial(calibration, task, plain, soft)),
                }
                for what, (shown, outcomes) in costs.items():
                    # one that did not train does not tell what training costs
                    told = (UNCLEAR,) if accuracy[soft].collapsed else outcomes
                    yield Case(f"{task}, `{inference}`, {what}", shown, told)


def better_calibrated(view: View, tasks: Sequence[str]) -> Iterator[Case]:
    def than_points(task: str, metric: str) -> tuple[str, Sequence[str]]:
        points = {method: view.known(task, method, TEST, metric) for method in ("map", "map+oe")}
        known = {method: view.known(task, method, TEST, metric) for method in WITH_OUTLIERS}
        outcomes = {
            method: every([below(figure, point) for point in points.values()]) for method, figure in known.items()
        }
        shown = f"less than {compared(points, outcomes.values())}: {tally(known, outcomes)}"
        return shown, tuple(outcomes.values())

    for task in tasks:
        yield Case(task, *by_ece(view, partial(than_points, task)))


def calibrated_with_noise(view: View, tasks: Sequence[str]) -> Iterator[Case]:
    def exposed(task: str, metric: str) -> tuple[str, Sequence[str]]:
        plain, noisy = view.known(task, "map", TEST, metric), view.known(task, "map+oe", TEST, metric, NOISE)
        return less("map", "map+oe", {"map": plain, "map+oe": noisy})

    def laplace(task: str, metric: str) -> tuple[str, Sequence[str]]:
        plain = view.known(task, "map", TEST, metric)
        known = {method: view.known(task, method, TEST, metric, NOISE) for method in LA_WITH_OUTLIERS}
        outcomes = {method: not_above(figure, plain) for method, figure in known.items()}
        return tally(known, outcomes), tuple(outcomes.values())

    for task in tasks:
        yield Case(f"{task}, `map+oe` above `map`", *by_ece(view, partial(exposed, task)))
        yield Case(f"{task}, `la+…` not above `map`", *by_ece(view, partial(laplace, task)))


def noise_is_enough(view: View, tasks: Sequence[str]) -> Iterator[Case]:
    unseen, methods = mean_but(NOISE), ("map+oe", *LA_WITH_OUTLIERS)
    for task in tasks:
        plain = {method: view.known(task, method, unseen, "fpr95") for method in ("map", "la")}
        noise = {method: view.known(task, method, unseen, "fpr95", NOISE) for method in methods}
        photographs = {method: view.known(task, method, unseen, "fpr95") for method in methods}
        outcomes = {method: below(figure, plain[method.partition("+")[0]]) for method, figure in noise.items()}
        pairs = (f"`{method}` {noise[method].text()} ({photographs[method].text()})" for method in methods)
        shown = f"less than {compared(plain, outcomes.values())}: {tally(noise, outcomes)}"
        shown += f"<br>noise (photographs): {', '.join(pairs)}"
        yield Case(task, shown, tuple(outcomes.values()))


def text_gains(view: View, tasks: Sequence[str]) -> Iterator[Case]:
    methods = ("map", "map+oe", "la", *LA_WITH_OUTLIERS)
    for task in tasks:
        known = {method: view.fpr95(task, method) for method in methods}
        accuracy = {method: view.known(task, method, TEST, view.accuracy) for method in methods}
        plain = {method: known[method.partition("+")[0]] for method in methods if "+" in method}
        outcomes = tuple(below(known[method], without) for method, without in plain.items())
        figures = (f"`{m}` {known[m].text(UNCLEAR in outcomes)} ({per_cent(accuracy[m].value)})" for m in methods)
        yield Case(task, ", ".join(figures), outcomes)


def others_gain(view: View, tasks: Sequence[str]) -> Iterator[Case]:
    for task in tasks:
        for inference in ("flipout", "csghmc", "de"):
            pair = inference, f"{inference}+nc"
            shown, outcomes = less(pair[1], pair[0], {method: view.fpr95(task, method) for method in pair})
            accuracy, ece = (
                " and ".join(view.known(task, method, TEST, metric).text() for method in pair)
                for metric in (view.accuracy, view.eces[0])
            )
            yield Case(f"{task}, `{inference}`", f"{shown}<br>(accuracy {accuracy}, ECE {ece})", outcomes)


def unsure_far_away(view: View, tasks: Sequence[str]) -> Iterator[Case]:
    for task in tasks:
        groups = (("map+oe", "la+oe"),) if task == "blobs" else (("map", "vb", "la"), ("map+oe", "vb+oe", "la+oe"))
        for point, *bayesian in groups:
            known = {method: view.known(task, method, FAR_AWAY, "mmc") for method in (point, *bayesian)}
            outcomes = tuple(below(known[method], known[point]) for method in bayesian)
            yield Case(f"{task}, `{point}`", compared(known, outcomes), outcomes)


def shifted(view: View, task: str, method: str, metric: str) -> Known:
    """The mean over severities; of the same pictures, so that the intervals do not shrink."""
    parts = [view.known(task, method, name, metric) for name in SHIFT_SETS.values()]
    value, half = (float(np.mean([getattr(part, name) for part in parts])) for name in ("value", "half"))
    return Known(value, half, parts[0].collapsed)


def under_shift(view: View, tasks: Sequence[str]) -> Iterator[Case]:
    def others(task: str, inference: str, metric: str) -> tuple[str, Sequence[str]]:
        known = {m: shifted(view, task, m, metric) for m in (inference, *(f"{inference}+{way}" for way in WAYS[1:]))}
        outcomes = [below(figure, known[inference]) for method, figure in known.items() if method != inference]
        return compared(known, outcomes), outcomes

    def none_class(task: str, inference: str, metric: str) -> tuple[str, Sequence[str]]:
        none = f"{inference}+nc"
        return less(inference, none, {method: shifted(view, task, method, metric) for method in (inference, none)})

    for task in tasks:
        for inference in ("vb", "la"):
            yield Case(f"`{inference}`, SL, ML, OE below plain", *by_ece(view, partial(others, task, inference)))
            yield Case(f"`{inference}`, NC above plain", *by_ece(view, partial(none_class, task, inference)))
            methods = (inference, *(f"{inference}+{way}" for way in WAYS))
            yield Case(f"`{inference}`, accuracy", listed({m: shifted(view, task, m, view.accuracy) for m in methods}))


def cheap(view: View, tasks: Sequence[str]) -> Iterator[Case]:
    for task in tasks:
        took = {method: view.seconds(task, method) for method in ("map", "map+oe", "de", "la", "la+oe")}
        alone, exposed, ensemble = (float(np.mean(list(took[method].values()))) for method in ("map", "map+oe", "de"))
        shown = f"`map` {alone:.0f} s, `map+oe` {exposed:.0f} s, `de` {ensemble:.0f} s"
        yield Case(f"{task}, training", shown, (at_most_twice(exposed, alone),))
        plain, both = (added(took["la" + way], took["map" + way]) for way in ("", "+oe"))
        shown = f"`la` {plain:.1f} s after `map`, `la+oe` {both:.1f} s after `map+oe`"
        yield Case(f"{task}, Laplace", shown, (at_most_twice(both, plain),))


def added(whole: Mapping[int, float], part: Mapping[int, float]) -> float:
    """Seconds beyond those of the network that a posterior is made from; nan where no seed has both."""
    differences = [whole[seed] - part[seed] for seed in whole.keys() & part.keys()]
    return float(np.mean(differences)) if differences else math.nan


def at_most_twice(one: float, other: float) -> str:
    """Unclear where either is no duration, such as the difference of networks that were not shared after all."""
    return UNCLEAR if not (one > 0 and other > 0) else YES if one <= TWICE * other else NO


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
        (Need("table1", ("map+oe", "de", "vb", "la")),),
        sure_of_noise,
        ("accuracy", "confidence", "confidence on noise"),
    ),
    Claim(
        "Plain Bayesian networks lose to OE",
        "Without outliers in training, VB, Laplace and even ensembles detect outliers worse than OE (table 2).",
        "OE's mean FPR95 is clearly below that of `de`, `vb` and `la`.",
        (Need("table1", ("map+oe", "de", "vb", "la")),),
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
        "Far away (pictures: 5,000 times uniform noise) the confidence of `vb` and `la` is clearly below that of the "
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
    return cell.method + f" with {cell.outliers}" * bool(cell.outliers and "+" in cell.method)
