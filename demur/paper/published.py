"""What the paper printed: its figures, and the rows and columns of its tables.

tables.csv and cifar10c.csv hold the figures, in per cent, of the tables and of the dataset-shift plot in Kristiadi,
Hein and Hennig, "Being a Bit Frequentist Improves Bayesian Neural Networks" (AISTATS 2022): facts, cited from there.
Here they are fractions, under the names that `demur.metrics` gives to the same quantities.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files
from types import MappingProxyType
from typing import Literal, NamedTuple

import pandas as pd

from demur.methods import PLAIN, split_method
from demur.study.grid import Cell
from demur.study.measuring import TEST
from demur.tasks import IMAGES, TEXTS

MEAN = "mean"  # a column's set is this, TEST, or an OOD set's name
SHIFT_SETS = MappingProxyType({severity: f"shift/mean/{severity}" for severity in range(1, 6)})

# the paper counts the answer "none" as a wrong class, and takes the trapezoid under the precision-recall curve
OUR_METRICS = {"accuracy": "accuracy_with_none", "auprc": "aupr_published"}
NONE_SCORE_MARK = "(none-class score)"


class Row(NamedTuple):
    """A method, and the score that tells its outliers: `max_prob`, or `none` where the pages lack a column."""

    method: str
    score: str = "max_prob"

    @property
    def label(self) -> str:
        return self.method if self.score == "max_prob" else f"{self.method}, {self.score} score"


@dataclass(frozen=True)
class Figure:
    """One printed number."""

    table: str  # its LaTeX label
    outliers: str  # trained with
    task: str
    set: str
    row: Row
    metric: str
    value: float


def _read(name: str) -> pd.DataFrame:
    with as_file(files("demur.paper") / name) as path:
        printed = pd.read_csv(path, dtype=str, keep_default_na=False)
    return printed.assign(metric=printed["metric"].replace(OUR_METRICS), value=printed["value"].astype(float) / 100)


def _set(task: str, printed: str) -> str:
    return TEST if printed in ("", task) else MEAN if printed.startswith("(mean") else printed


@cache
def figures() -> tuple[Figure, ...]:
    """All 2,789 figures of the paper's tables."""
    return tuple(
        Figure(
            line.table,
            line.outlier_training,
            line.in_data,
            _set(line.in_data, line.ood_data),
            Row(
                line.method.removesuffix(NONE_SCORE_MARK),
                "none" if line.method.endswith(NONE_SCORE_MARK) else "max_prob",
            ),
            line.metric,
            line.value,
        )
        for line in _read("tables.csv").itertuples()
    )


@cache
def shift_figures() -> pd.DataFrame:
    """The points behind the dataset-shift plot: every method on CIFAR-10 under 19 corruptions of 5 severities."""
    return _read("cifar10c.csv").astype({"severity": int})


def shift_by_severity(metric: str = "ece_published") -> dict[str, dict[int, list[float]]]:
    """Method to severity to the figures of all corruptions: what the shift plot draws."""
    found: dict[str, dict[int, list[float]]] = {}
    points = shift_figures().query("metric == @metric")
    for (method, severity), values in points.groupby(["method", "severity"], sort=False)["value"]:
        found.setdefault(method, {})[severity] = list(values)
    return found


# the tables ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """What is measured: a metric of the test data, on an OOD set, or its mean over those in `over`.

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
    study: str  # whose cells fill it
    outliers: str
    groups: tuple[tuple[Row, ...], ...]  # rows that are compared with each other
    columns: tuple[Column, ...]

    @property
    def name(self) -> str:
        return f"{self.label}-{self.part}" if self.part else self.label

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(row for group in self.groups for row in group)

    def published(self, row: Row, column: Column) -> Figure | None:
        """The printed figure at that place, if there is one."""
        if column.convention == "corrected":
            return None
        name = MEAN if column.over else column.set
        return _by_place().get((self.label, column.task, name, row, column.metric))


@cache
def _by_place() -> Mapping[tuple[str, str, str, Row, str], Figure]:
    places = {(one.table, one.task, one.set, one.row, one.metric): one for one in (*figures(), *_shift_means())}
    return MappingProxyType(places)


def _shift_means() -> Iterator[Figure]:
    """The dataset-shift plot as a table: means over the corruptions of a severity."""
    for metric in shift_figures()["metric"].unique():
        for method, by_severity in shift_by_severity(metric).items():
            for severity, values in by_severity.items():
                place = SHIFT_LABEL, "imagenet32", "cifar10", SHIFT_SETS[severity], Row(method), metric
                yield Figure(*place, sum(values) / len(values))


DEFAULT_OUTLIERS = {**dict.fromkeys(IMAGES, "imagenet32"), **dict.fromkeys(TEXTS, "wikitext2")}


def outliers_of(cell: Cell) -> str:
    """What the cell is trained with, whether or not it says so."""
    return cell.outliers or DEFAULT_OUTLIERS.get(cell.task, "default")


def is_plain(method: str) -> bool:
    """Whether it is shown no outliers: then it is the same whatever they are."""
    return split_method(method)[1] == PLAIN


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
NATURAL = ("cifar10", "cifar100")

SHIFT_LABEL = "shift"

_PLAIN = ("map", "de", "map+oe")
_VB, _LA = (tuple(first + second for second in ("", "+nc", "+sl", "+ml", "+oe")) for first in ("vb", "la"))
_HIDDEN = {"vb+nc", "la+nc"}
Groups = tuple[tuple[Row, ...], ...]


def _groups(*groups: tuple[str, ...], hidden: bool = False) -> Groups:
    """A row a method; `hidden` adds those whose outliers the none mass tells."""
    scores = {
        method: ("max_prob", "none") if hidden and method in _HIDDEN else ("max_prob",) for g in groups for method in g
    }
    return tuple(tuple(Row(method, score) for method in group for score in scores[method]) for group in groups)


def mean_but(*left_out: str) -> str:
    """What the mean over all of a task's OOD sets but some is called."""
    return "_".join((MEAN, "but", *sorted(left_out))) if left_out else MEAN


def _unseen(task: str, outliers: str) -> tuple[str, ...]:
    return tuple(name for name in OOD_SETS[task] if name != outliers)


def _detailed(label: str, study: str, outliers: str, title: str, metric: str, groups: Groups, task: str) -> Table:
    columns = (
        Column(task, name, metric, "corrected" if name in LEFT_OUT.get(task, ()) else "published")
        for name in _unseen(task, outliers)
    )
    return Table(label, task, f"{title}, {task}", study, outliers, groups, tuple(columns))


def _confidence(task: str) -> Table:
    columns = tuple(Column(task, name, "mmc") for name in (TEST, *OOD_SETS[task]))
    return Table("mmc", task, f"Mean confidence, {task}", "mmc", "imagenet32", _MAIN_HIDDEN, columns)


def _both(task: str, name: str, published: str, corrected: str) -> tuple[Column, ...]:
    return Column(task, name, published), Column(task, name, corrected, "corrected")


def _calibration(
    label: str, study: str, outliers: str, of: str, groups: Groups, tasks: Iterable[str]
) -> tuple[Table, ...]:
    accuracy = tuple(column for task in tasks for column in _both(task, TEST, "accuracy_with_none", "accuracy"))
    ece = tuple(column for task in tasks for column in _both(task, TEST, "ece_published", "ece"))
    return (
        Table(label, "accuracy", f"Accuracy{of}", study, outliers, groups, accuracy),
        Table(label, "ece", f"Expected calibration error{of}", study, outliers, groups, ece),
    )


def _mean(task: str, outliers: str) -> tuple[Column, ...]:
    """The paper's average counts the noise trained on, and not SVHN for CIFAR-100; the corrected one the reverse."""
    left_out = LEFT_OUT.get(task, ())
    counted, unseen = (tuple(n for n in OOD_SETS[task] if n not in without) for without in (left_out, (outliers,)))
    published = Column(task, mean_but(*left_out), "fpr95", over=counted)
    if counted == unseen:
        return (published,)
    seen = (outliers,) if outliers in OOD_SETS[task] else ()
    return published, Column(task, mean_but(*seen), "fpr95", "corrected", unseen)


def _summary(
    label: str, study: str, outliers: str, title: str, groups: Groups, tasks: Iterable[str], ece: bool = True
) -> Table:
    errors = tuple(column for task in tasks for column in _both(task, TEST, "ece_published", "ece")) if ece else ()
    means = tuple(column for task in tasks for column in _mean(task, outliers))
    return Table(label, "", title, study, outliers, groups, errors + means)


def _shift() -> tuple[Table, ...]:
    """Both metrics by severity; the paper plots them."""
    tables = []
    for part, title, pair in (
        ("accuracy", "Accuracy", ("accuracy_with_none", "accuracy")),
        ("ece", "Expected calibration error", ("ece_published", "ece")),
    ):
        columns = tuple(column for name in SHIFT_SETS.values() for column in _both("cifar10", name, *pair))
        whole = f"{title} under shift, mean over 19 corruptions, cifar10"
        tables.append(Table(SHIFT_LABEL, part, whole, "shift", "imagenet32", _MAIN, columns))
    return tuple(tables)


_MAIN = _groups(_PLAIN, _VB, _LA)
_MAIN_HIDDEN = _groups(_PLAIN, _VB, _LA, hidden=True)
_TEXT, _TEXT_HIDDEN = _groups(_PLAIN, _LA), _groups(_PLAIN, _LA, hidden=True)
_NOISE = _groups(("map", "map+oe"), _LA)
_AUX = _groups(("flipout", "flipout+nc"), ("csghmc", "csghmc+nc"), ("de", "de+nc"))

TABLES: tuple[Table, ...] = (
    *_calibration("acc_ece", "table1", "imagenet32", "", _MAIN, IMAGES),
    _summary("ood_summary", "table2", "imagenet32", "Mean FPR95", _MAIN, IMAGES, ece=False),
    _summary("ood_nlp", "text", "wikitext2", "ECE and mean FPR95, text", _TEXT, TEXTS),
    _summary(
        "ood_noise", "noise", "smooth", "ECE and mean FPR95, trained with smooth noise", _NOISE, ("svhn", *NATURAL)
    ),
    _summary("ood_aux", "aux", "imagenet32", "ECE and mean FPR95, other Bayesian methods", _AUX, NATURAL),
    *_shift(),
    *_calibration("acc_ece_smooth", "noise", "smooth", ", trained with smooth noise", _MAIN, IMAGES),
    *_calibration("acc_ece_nlp", "text", "wikitext2", ", text", _TEXT, TEXTS),
    *_calibration("acc_ece_aux", "aux", "imagenet32", ", other Bayesian methods", _AUX, NATURAL),
    *(_confidence(task) for task in IMAGES),
    *(_detailed("fpr95", "fpr95", "imagenet32", "FPR95", "fpr95", _MAIN_HIDDEN, task) for task in IMAGES),
    *(_detailed("auroc", "auroc", "imagenet32", "AUROC", "auroc", _MAIN_HIDDEN, task) for task in IMAGES),
    *(
        _detailed("auprc", "aupr", "imagenet32", "AUPR by trapezoid", "aupr_published", _MAIN_HIDDEN, task)
        for task in IMAGES
    ),
    *(
        _detailed(
            "fpr95_noise_more", "noise", "smooth", "FPR95, trained with smooth noise", "fpr95", _MAIN_HIDDEN, task
        )
        for task in IMAGES
    ),
    *(_detailed("fpr95_nlp_detailed", "text", "wikitext2", "FPR95", "fpr95", _TEXT_HIDDEN, task) for task in TEXTS),
    *(
        _detailed("ood_aux_more", "aux", "imagenet32", "FPR95, other Bayesian methods", "fpr95", _AUX, task)
        for task in NATURAL
    ),
)
