"""The paper as data: which network, recipe and inference go with which task, and every cell of every table."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, product
from types import MappingProxyType
from typing import Any

from demur.inference import Laplace
from demur.methods import METHODS, method_name, parse_method
from demur.names import choose
from demur.networks import gru, lenet, mlp, wide_resnet
from demur.study.grid import AS_IT_IS, USUAL, Cell, Setting, Settings, setting_of
from demur.study.grid import select as select_cells
from demur.tasks import IMAGES, TEXTS
from demur.training_data import Recipe

BY_DEFAULT: tuple[str, ...] = ()
DIGITS = {BY_DEFAULT: Setting(partial(mlp, inputs=64, hidden=(256, 256)), Recipe(epochs=150))}

_plane = Setting(partial(mlp, inputs=2, hidden=(100, 100)), Recipe(epochs=150))
# a tuned prior precision can run to the MAP network here; the Dirichlet's information does not vanish at confident
# logits as the Categorical's does, so SL needs a smaller one
BLOBS = {
    BY_DEFAULT: _plane,
    ("la",): replace(_plane, inference=Laplace(prior_precision=300.0)),
    ("la", "sl"): replace(_plane, inference=Laplace(prior_precision=10.0)),
}
LENET = {BY_DEFAULT: Setting(partial(lenet, channels=1, size=28), Recipe(epochs=100, optimizer="adam", lr=1e-3))}

_sgd = Recipe(epochs=100, optimizer="sgd", lr=0.1)
# where the weights themselves are noisy in training, dropout would be noise upon noise
_without_dropout = Setting(partial(wide_resnet, depth=16, width=4, dropout=0.0), _sgd)
WIDE_RESNET = {
    BY_DEFAULT: Setting(partial(wide_resnet, depth=16, width=4, dropout=0.3), _sgd),
    ("flipout",): _without_dropout,
    ("csghmc",): _without_dropout,
}

_text = Recipe(epochs=5, batch_size=64, optimizer="adam", lr=0.01, weight_decay=0.0, cosine="epoch")
GRU = {
    BY_DEFAULT: Setting(gru, _text),
    ("la",): Setting(gru, replace(_text, weight_decay=5e-4), Laplace(over="head")),
}

SETTINGS: Mapping[str, Settings] = MappingProxyType(
    {
        "digits": DIGITS,
        "blobs": BLOBS,
        "mnist": LENET,
        "fashion_mnist": LENET,
        "svhn": WIDE_RESNET,
        "cifar10": WIDE_RESNET,
        "cifar100": WIDE_RESNET,
        "sst": GRU,
        "trec": GRU,
    }
)


def setting(task: str, method: str) -> Setting:
    """What the paper's method is fitted with on its task."""
    return setting_of(parse_method(method), choose(SETTINGS, task, "task"))


# what demur has beside these is not the paper's
PAPER_INFERENCES, PAPER_LIKELIHOODS = ("map", "de", "la", "vb", "flipout", "csghmc"), ("plain", "nc", "sl", "ml", "oe")
BAYESIAN = tuple(method_name(inference, likelihood) for inference in ("vb", "la") for likelihood in PAPER_LIKELIHOODS)
# the rows of the paper's tables
PAPER_ROWS = ("map", "de", "map+oe", *BAYESIAN)
TEXT_ROWS = ("map", "de", "map+oe", "la", "la+nc", "la+sl", "la+ml", "la+oe")
TOY_ROWS = ("map+oe", "la+nc", "la+sl", "la+ml", "la+oe")
SOPHISTICATED = ("flipout", "flipout+nc", "csghmc", "csghmc+nc", "de", "de+nc")
CONVENTIONS = (AS_IT_IS, "published")
_PATCHES, _BOTH = "tiny_imagenet32+patches", "tiny_imagenet32+patches+halves"
_SOFT = "tiny_imagenet32_spectrum_matched"
_HALF_SOFT = f"tiny_imagenet32+{_SOFT}"
CANDIDATES = (
    *product(("map+nc", "la+nc"), (None, _PATCHES, "tiny_imagenet32+halves", _BOTH, "tiny_imagenet32+smooth+uniform")),
    *product(("map+nc", "la+nc"), (_SOFT, _HALF_SOFT, f"{_PATCHES}+{_SOFT}")),
    *product(("la+sl", "de+nc"), (None, _PATCHES, _BOTH)),
)

# the rule of demur/paper/choice.py: every candidate but those shown the tests' own noise, and what they have to beat
CHOICE = (
    *(("map", None), ("map+oe", None), ("la+oe", None)),
    *((method, outliers) for method, outliers in CANDIDATES if outliers != "tiny_imagenet32+smooth+uniform"),
)
CHOICE_SCORES = ("energy", "max_logit", "knn", "vim", "gen", "rmds", "fdbd", "doubt")


def cells(
    tasks: Iterable[str], methods: tuple[str, ...], outliers: str | None = None, further: tuple[str, ...] = ()
) -> tuple[Cell, ...]:
    """Both conventions of every method on every task."""
    return tuple(
        Cell(task, method, convention=convention, outliers=outliers, further=further)
        for task, method, convention in product(tasks, methods, CONVENTIONS)
    )


def union(studies: Iterable[Sequence[Cell]]) -> tuple[Cell, ...]:
    """Every cell once, with all the further inputs that studies ask of it."""
    kinds_by_cell: dict[Cell, set[str]] = {}
    for cell in chain.from_iterable(studies):
        kinds_by_cell.setdefault(replace(cell, further=()), set()).update(cell.further)
    return tuple(replace(bare, further=tuple(sorted(kinds))) for bare, kinds in kinds_by_cell.items())


_images = cells(IMAGES, PAPER_ROWS)
_single: Mapping[str, tuple[Cell, ...]] = {
    "digits": tuple(Cell("digits", method) for method in PAPER_ROWS),
    "matrix": tuple(Cell("digits", method_name(*pair)) for pair in product(PAPER_INFERENCES, PAPER_LIKELIHOODS)),
    "toy": tuple(Cell("blobs", method, further=("plane",)) for method in TOY_ROWS),
    "figure1": cells(("mnist", "svhn", "cifar10", "cifar100"), ("map+oe", "de", "vb", "la")),
    # tables of the same cells: accuracy and ECE; mean FPR95; and, in the appendix, every OOD set
    **dict.fromkeys(("table1", "table2", "mmc", "fpr95", "auroc", "aupr"), _images),
    "text": cells(TEXTS, TEXT_ROWS),
    "noise": cells(IMAGES, PAPER_ROWS, outliers="smooth"),
    "aux": cells(("cifar10", "cifar100"), SOPHISTICATED),
    "shift": cells(("cifar10",), PAPER_ROWS, further=("shift",)),
    # how much of what outliers teach is that they are sharper than the inliers
    "spectrum_matched": tuple(
        chain.from_iterable(cells(("cifar10",), ("map+oe", "la+nc"), outliers) for outliers in (_SOFT, _HALF_SOFT))
    ),
    # what might be better than anything published; chosen by validation data
    "recommended": tuple(
        Cell(task, method, outliers=outliers, further=("validation",))
        for task, (method, outliers) in product(("mnist", "fashion_mnist", "cifar10"), CANDIDATES)
    ),
    # digits are for a trial of the study: its candidates have one kind of outliers, of the suite's photograph
    "choice": tuple(
        Cell(task, method, outliers=outliers, further=("suite",))
        for task, (method, outliers) in product((*IMAGES, "digits"), CHOICE)
        if task != "digits" or outliers is None
    ),
}
STUDIES: Mapping[str, tuple[Cell, ...]] = MappingProxyType({**_single, "all": union(_single.values())})


def outliers_in(study: str) -> list[str]:
    """What the cells of a study are trained with."""
    return list(dict.fromkeys(cell.outliers or USUAL for cell in STUDIES[study]))


def select(study: str, **options: Any) -> list[Cell]:
    """The cells of one of the paper's studies, or some of them; the options are those of `demur.study.grid.select`."""
    return select_cells(choose(STUDIES, study, "study"), study, **options)


def commands(cells: Iterable[Cell]) -> list[str]:
    """What to type to have these cells made, the reverse of `select`: whole studies first, then methods by name.

    A cell that no study has, such as one with outliers of one's own, has no command; one with several kinds of further
    inputs has one for each, since a single study asks for one kind at most. Kinds that no study asks of the cell, which
    may share its folder with one that has them, are passed over.
    """
    planned, seeds = set(chain.from_iterable(_single.values())), dict[Cell, int]()
    for cell in cells:
        bare = replace(cell, seed=0, further=())
        kinds = [replace(bare, further=(kind,)) for kind in cell.further]
        for first in [one for one in kinds if replace(one, epochs=None, limit=None) in planned] or [bare]:
            seeds[first] = max(seeds.get(first, 0), cell.seed + 1)
    groups: dict[tuple[int | None, int | None, int, str], set[Cell]] = {}
    for cell, count in seeds.items():
        place = cell.epochs, cell.limit, count, cell.task
        groups.setdefault(place, set()).add(replace(cell, epochs=None, limit=None))
    lines = []
    for (epochs, limit, count, task), wanted in groups.items():
        given = {"--task": task, "--seeds": count if count > 1 else None, "--epochs": epochs, "--limit": limit}
        fixed = [f"{option} {value}" for option, value in given.items() if value is not None]
        lines += [f"demur study {' '.join([name, *fixed, *chosen])}" for name, chosen in _covering(task, wanted)]
    return lines


def _covering(task: str, wanted: set[Cell]) -> Iterator[tuple[str, list[str]]]:
    """Studies, and options that choose among their cells, which together have all that is wanted of a task."""
    bare = {replace(cell, further=()) for cell in wanted}
    left = set(wanted)
    while True:
        offers = []
        for name, convention in product(_single, (None, *CONVENTIONS)):
            kinds = outliers_in(name)
            for outliers in (None, *kinds) if len(kinds) > 1 else (None,):
                had = [
                    cell
                    for cell in STUDIES[name]
                    if cell.task == task
                    and convention in (None, cell.convention)
                    and outliers in (None, cell.outliers or USUAL)
                ]
                covered, whole = left & set(had), all(cell in (wanted if cell.further else bare) for cell in had)
                if covered and (whole or (convention and (outliers or len(kinds) == 1))):
                    offers.append((whole, len(covered), name, convention, outliers, covered))
        if not offers:
            return
        whole, _, name, convention, outliers, covered = max(offers, key=lambda offer: offer[:2])
        methods = () if whole else sorted({cell.method for cell in covered}, key=METHODS.index)
        chosen = {"--convention": convention, "--outliers": outliers}
        options = [f"{option} {value}" for option, value in chosen.items() if value]
        yield name, [*options, *(f"--method {method}" for method in methods)]
        left -= covered
