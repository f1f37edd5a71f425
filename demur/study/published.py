"""What the paper printed: its figures, and the rows and columns of its tables.

tables.csv and cifar10c.csv hold the figures, in per cent, of the tables and of the dataset-shift plot in Kristiadi,
Hein and Hennig, "Being a Bit Frequentist Improves Bayesian Neural Networks" (AISTATS 2022): facts, cited from there.
Here they are fractions, under the names that `demur.metrics` gives to the same quantities.
"""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Literal, NamedTuple

TEST, MEAN = "test", "mean"  # a column's set is one of these, or an OOD set's name

# the paper counts the answer "none" as a wrong class, and takes the trapezoid under the precision-recall curve
OUR_METRICS = {"accuracy": "accuracy_with_none", "auprc": "aupr_published"}
NONE_SCORE_MARK = "(none-class score)"


class Row(NamedTuple):
    """A method, and the score that tells its outliers: `max_prob`, or `none` in the columns that the paper hides."""

    method: str
    score: str = "max_prob"

    @property
    def label(self) -> str:
        return self.method if self.score == "max_prob" else f"{self.method}, {self.score} score"


@dataclass(frozen=True)
class Figure:
    """One printed number; `sem` is the paper's +/- over five prediction runs of one network."""

    table: str  # its LaTeX label
    outliers: str  # trained with
    task: str
    set: str
    row: Row
    metric: str
    value: float
    sem: float | None


@dataclass(frozen=True)
class ShiftFigure:
    """One point behind the dataset-shift plot: a method on CIFAR-10 under one corruption."""

    method: str
    corruption: str
    severity: int
    metric: str
    value: float


def _read(name: str) -> Iterator[dict[str, str]]:
    yield from csv.DictReader((files("demur.study") / name).read_text("utf-8").splitlines())


def _set(task: str, printed: str) -> str:
    return TEST if printed in ("", task) else MEAN if printed.startswith("(mean") else printed


@cache
def figures() -> tuple[Figure, ...]:
    """All 2,789 figures of the paper's tables."""
    return tuple(
        Figure(
            line["table"],
            line["outlier_training"],
            line["in_data"],
            _set(line["in_data"], line["ood_data"]),
            Row(
                line["method"].removesuffix(NONE_SCORE_MARK),
                "none" if line["method"].endswith(NONE_SCORE_MARK) else "max_prob",
            ),
            OUR_METRICS.get(line["metric"], line["metric"]),
            float(line["value"]) / 100,
            float(line["sem"]) / 100 if line["sem"] else None,
        )
        for line in _read("tables.csv")
    )


@cache
def shift_figures() -> tuple[ShiftFigure, ...]:
    """Every method under 19 corruptions of 5 severities."""
    return tuple(
        ShiftFigure(
            line["method"],
            line["corruption"],
            int(line["severity"]),
            OUR_METRICS.get(line["metric"], line["metric"]),
            float(line["value"]) / 100,
        )
        for line in _read("cifar10c.csv")
    )


def shift_by_severity(metric: str = "ece_published") -> dict[str, dict[int, list[float]]]:
    """Method to severity to the figures of all corruptions: what the shift plot draws."""
    found: dict[str, dict[int, list[float]]] = {}
    for figure in shift_figures():
        if figure.metric == metric:
            found.setdefault(figure.method, {}).setdefault(figure.severity, []).append(figure.value)
    return found


# the tables ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """What is measured: a metric of the test data, on an OOD set, or its mean over several (`over`).

    The convention is the metric's, whatever the network was trained in; only published ones have a printed figure.
    """

    task: str
    set: str
    metric: str
    convention: Literal["published", "corrected"] = "published"
    over: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """A table of the paper, or the part of a long one that fits a page, with the corrected columns beside."""

    label: str  # in the paper's LaTeX
    part: str  # empty where the table is whole
    title: str
    outliers: str
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]

    @property
    def name(self) -> str:
        return f"{self.label}-{self.part}" if self.part else self.label

    def published(self, row: Row, column: Column) -> Figure | None:
        """The printed figure at that place, if there is one."""
        if column.convention == "corrected":
            return None
        return _by_place().get((self.label, column.task, column.set, row, column.metric))


@cache
def _by_place() -> Mapping[tuple[str, str, str, Row, str], Figure]:
    places = {(figure.table, figure.task, figure.set, figure.row, figure.metric): figure for figure in figures()}
    return MappingProxyType(places)


DEFAULT_OUTLIERS = {
    **dict.fromkeys(("mnist", "fashion_mnist", "svhn", "cifar10", "cifar100"), "imagenet32"),
    **dict.fromkeys(("sst", "trec"), "wikitext2"),
}
OOD_SETS: Mapping[str, tuple[str, ...]] = {
    "mnist": ("fashion_mnist", "emnist_letters", "kmnist", "cifar10_gray", "uniform", "smooth"),
    "fashion_mnist": ("mnist", "emnist_letters", "kmnist", "cifar10_gray", "uniform", "smooth"),
    "svhn": ("cifar10", "lsun_classroom", "cifar100", "fashion_mnist_rgb", "uniform", "smooth"),
    "cifar10": ("svhn", "lsun_classroom", "cifar100", "fashion_mnist_rgb", "uniform", "smooth"),
    "cifar100": ("svhn", "lsun_classroom", "cifar10", "fashion_mnist_rgb", "uniform", "smooth"),
    "sst": ("snli", "multi30k", "wmt16"),
    "trec": ("snli", "multi30k", "wmt16"),
}
LEFT_OUT = {"cifar100": ("svhn",)}  # of the paper's tables of CIFAR-100, but for that of mean confidence
IMAGES, TEXTS, NATURAL = (
    ("mnist", "fashion_mnist", "svhn", "cifar10", "cifar100"),
    ("sst", "trec"),
    ("cifar10", "cifar100"),
)

_PLAIN = ("map", "de", "map+oe")
_VB, _LA = (tuple(first + second for second in ("", "+nc", "+sl", "+ml", "+oe")) for first in ("vb", "la"))
_HIDDEN = {"vb+nc", "la+nc"}


def _rows(*methods: str, hidden: bool = False) -> tuple[Row, ...]:
    """A row a method; `hidden` adds those whose outliers the none mass tells."""
    scores = {method: ("max_prob", "none") if hidden and method in _HIDDEN else ("max_prob",) for method in methods}
    return tuple(Row(method, score) for method in methods for score in scores[method])


def _unseen(task: str, outliers: str) -> tuple[str, ...]:
    return tuple(name for name in OOD_SETS[task] if name != outliers)


def _detailed(label: str, outliers: str, title: str, metric: str, rows: tuple[Row, ...], task: str) -> Table:
    columns = (
        Column(task, name, metric, "corrected" if name in LEFT_OUT.get(task, ()) else "published")
        for name in _unseen(task, outliers)
    )
    return Table(label, task, f"{title}, {task}", outliers, rows, tuple(columns))


def _confidence(task: str) -> Table:
    columns = tuple(Column(task, name, "mmc") for name in (TEST, *OOD_SETS[task]))
    rows = _rows(*_PLAIN, *_VB, *_LA, hidden=True)
    return Table("mmc", task, f"Mean confidence, {task}", "imagenet32", rows, columns)


def _both(task: str, published: str, corrected: str) -> tuple[Column, ...]:
    return Column(task, TEST, published), Column(task, TEST, corrected, "corrected")


def _calibration(
    label: str, outliers: str, of: str, rows: tuple[Row, ...], tasks: tuple[str, ...]
) -> tuple[Table, ...]:
    accuracy = tuple(column for task in tasks for column in _both(task, "accuracy_with_none", "accuracy"))
    ece = tuple(column for task in tasks for column in _both(task, "ece_published", "ece"))
    return (
        Table(label, "accuracy", f"Accuracy{of}", outliers, rows, accuracy),
        Table(label, "ece", f"Expected calibration error{of}", outliers, rows, ece),
    )


def _mean(task: str, outliers: str) -> tuple[Column, ...]:
    """The paper's average counts the noise trained on, and not SVHN for CIFAR-100; the corrected one the reverse."""
    counted = tuple(name for name in OOD_SETS[task] if name not in LEFT_OUT.get(task, ()))
    unseen = _unseen(task, outliers)
    published = Column(task, MEAN, "fpr95", over=counted)
    return (published,) if counted == unseen else (published, Column(task, MEAN, "fpr95", "corrected", unseen))


def _summary(
    label: str, outliers: str, title: str, rows: tuple[Row, ...], tasks: tuple[str, ...], ece: bool = True
) -> Table:
    errors = tuple(column for task in tasks for column in _both(task, "ece_published", "ece")) if ece else ()
    means = tuple(column for task in tasks for column in _mean(task, outliers))
    return Table(label, "", title, outliers, rows, errors + means)


_MAIN = _rows(*_PLAIN, *_VB, *_LA)
_MAIN_HIDDEN = _rows(*_PLAIN, *_VB, *_LA, hidden=True)
_TEXT, _TEXT_HIDDEN = _rows(*_PLAIN, *_LA), _rows(*_PLAIN, *_LA, hidden=True)
_NOISE = _rows("map", "map+oe", *_LA)
_AUX = _rows("flipout", "flipout+nc", "csghmc", "csghmc+nc", "de", "de+nc")

TABLES: tuple[Table, ...] = (
    *_calibration("acc_ece", "imagenet32", "", _MAIN, IMAGES),
    _summary("ood_summary", "imagenet32", "Mean FPR95", _MAIN, IMAGES, ece=False),
    _summary("ood_nlp", "wikitext2", "ECE and mean FPR95, text", _TEXT, TEXTS),
    _summary("ood_noise", "smooth", "ECE and mean FPR95, trained with smooth noise", _NOISE, ("svhn", *NATURAL)),
    _summary("ood_aux", "imagenet32", "ECE and mean FPR95, other Bayesian methods", _AUX, NATURAL),
    *_calibration("acc_ece_smooth", "smooth", ", trained with smooth noise", _MAIN, IMAGES),
    *_calibration("acc_ece_nlp", "wikitext2", ", text", _TEXT, TEXTS),
    *_calibration("acc_ece_aux", "imagenet32", ", other Bayesian methods", _AUX, NATURAL),
    *(_confidence(task) for task in IMAGES),
    *(_detailed("fpr95", "imagenet32", "FPR95", "fpr95", _MAIN_HIDDEN, task) for task in IMAGES),
    *(_detailed("auroc", "imagenet32", "AUROC", "auroc", _MAIN_HIDDEN, task) for task in IMAGES),
    *(_detailed("auprc", "imagenet32", "AUPR by trapezoid", "aupr_published", _MAIN_HIDDEN, task) for task in IMAGES),
    *(
        _detailed("fpr95_noise_more", "smooth", "FPR95, trained with smooth noise", "fpr95", _MAIN_HIDDEN, task)
        for task in IMAGES
    ),
    *(_detailed("fpr95_nlp_detailed", "wikitext2", "FPR95", "fpr95", _TEXT_HIDDEN, task) for task in TEXTS),
    *(
        _detailed("ood_aux_more", "imagenet32", "FPR95, other Bayesian methods", "fpr95", _AUX, task)
        for task in NATURAL
    ),
)
