"""What the paper printed: its values, and the rows and columns of its tables.

tables.csv and cifar10c.csv hold the values, in per cent, of the tables and of the dataset-shift plot in Kristiadi,
Hein and Hennig, "Being a Bit Frequentist Improves Bayesian Neural Networks" (AISTATS 2022): facts, cited from there.
Here they are fractions, under the names that `demur.metrics` gives to the same quantities.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files
from statistics import fmean
from types import MappingProxyType
from typing import NamedTuple

import pandas as pd

from demur.methods import PLAIN, split_method
from demur.study.grid import Cell
from demur.study.results import TEST
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
class PrintedValue:
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
def printed_values() -> tuple[PrintedValue, ...]:
    """All 2,789 values in the paper's tables."""
    return tuple(
        PrintedValue(
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
def shift_values() -> pd.DataFrame:
    """The points behind the dataset-shift plot: every method on CIFAR-10 under 19 corruptions of 5 severities."""
    return _read("cifar10c.csv").astype({"severity": int})


def shift_by_severity(metric: str = "ece_published") -> dict[str, dict[int, list[float]]]:
    """Method to severity to the values of all corruptions: what the shift plot draws."""
    by_method: dict[str, dict[int, list[float]]] = {}
    points = shift_values().query("metric == @metric")
    for (method, severity), values in points.groupby(["method", "severity"], sort=False)["value"]:
        by_method.setdefault(method, {})[severity] = list(values)
    return by_method


# the tables ---------------------------------------------------------------------------------------------------------

SHIFT_LABEL = "shift"
TITLES: Mapping[str, str] = MappingProxyType(  # by the LaTeX label, in the order of the paper
    {
        "acc_ece": "Accuracy and ECE",
        "ood_summary": "Mean FPR95",
        "ood_nlp": "ECE and mean FPR95, text",
        "ood_noise": "ECE and mean FPR95, trained with smooth noise",
        "ood_aux": "ECE and mean FPR95, other Bayesian methods",
        SHIFT_LABEL: "Under shift, mean over 19 corruptions",
        "acc_ece_smooth": "Accuracy and ECE, trained with smooth noise",
        "acc_ece_nlp": "Accuracy and ECE, text",
        "acc_ece_aux": "Accuracy and ECE, other Bayesian methods",
        "mmc": "Mean confidence",
        "fpr95": "FPR95",
        "auroc": "AUROC",
        "auprc": "AUPR by trapezoid",
        "fpr95_noise_more": "FPR95, trained with smooth noise",
        "fpr95_nlp_detailed": "FPR95, text",
        "ood_aux_more": "FPR95, other Bayesian methods",
    }
)
BY_TASK = ("mmc", "fpr95", "auroc", "auprc", "fpr95_noise_more", "fpr95_nlp_detailed", "ood_aux_more")  # the long ones


def published_tables() -> Mapping[str, tuple[str, tuple[PrintedValue, ...]]]:
    """By name: a title, and values; a long table a task at a time."""
    parts: dict[str, tuple[str, list[PrintedValue]]] = {}
    everything = (*printed_values(), *shift_means())
    for entry in sorted(everything, key=lambda entry: [*TITLES].index(entry.table)):
        part = f"{entry.table}-{entry.task}" if entry.table in BY_TASK else entry.table
        title = TITLES[entry.table] + f", {entry.task}" * (entry.table in (*BY_TASK, SHIFT_LABEL))
        parts.setdefault(part, (title, []))[1].append(entry)
    return {name: (title, tuple(entries)) for name, (title, entries) in parts.items()}


def shift_means() -> Iterator[PrintedValue]:
    """The dataset-shift plot as a table: means over the corruptions of a severity."""
    for metric in ("accuracy_with_none", "ece_published"):
        for method, by_severity in shift_by_severity(metric).items():
            for severity, values in by_severity.items():
                place = SHIFT_LABEL, "imagenet32", "cifar10", SHIFT_SETS[severity], Row(method), metric
                yield PrintedValue(*place, fmean(values))


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


def mean_but(*left_out: str) -> str:
    """What the mean over all of a task's OOD sets but some is called."""
    return "_".join((MEAN, "but", *sorted(left_out))) if left_out else MEAN


def measured_as(entry: PrintedValue) -> str:
    """What our value of it is of: the paper's means of CIFAR-100 leave SVHN out."""
    return mean_but(*LEFT_OUT.get(entry.task, ())) if entry.set == MEAN else entry.set
