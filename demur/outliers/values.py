"""Outliers as values: what is to be shown, said before there is any data.

    mix(natural("tiny_imagenet32"), synthetic("patches"))   # images of the store, and the inliers' own patches
    mix(given(), spectrum_matched(given()))                 # the caller's, as they are and as sharp as the inliers

A value has a name, which is what is stored and what a command line takes: `tiny_imagenet32+patches`. `parse` is the
only place that reads such names.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor

from demur.names import OLD_NAMES, choose_or_import, current
from demur.outliers.noise import Mixed
from demur.outliers.spectrum import Matched, match_spectrum, mean_power
from demur.outliers.synthetic import SYNTHETIC, FromInliers, Groups, InGroups
from demur.training_data import Fixed, OutlierSource

AND = "+"
GIVEN = "given"
MATCHED = "spectrum_matched"


@dataclass(frozen=True)
class Given:
    """What the caller has."""

    def __str__(self) -> str:
        return GIVEN


@dataclass(frozen=True)
class Natural:
    """A data set of the store."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Synthetic:
    """Made from the inliers, by a name of the kind of data: `patches`, `columns`, ..., or `module:name`."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class SpectrumMatched:
    """Images filtered to be as sharp as the inliers."""

    of: Given | Natural

    def __str__(self) -> str:
        return MATCHED if isinstance(self.of, Given) else f"{self.of}_{MATCHED}"


@dataclass(frozen=True)
class Mix:
    """As many of each."""

    parts: tuple[Given | Natural | Synthetic | SpectrumMatched, ...]

    def __str__(self) -> str:
        return AND.join(map(str, self.parts))


Leaf = Given | Natural | Synthetic | SpectrumMatched
Shown = Leaf | Mix


def given() -> Given:
    """The outliers that are passed to `fit`."""
    return Given()


def natural(name: str) -> Natural:
    """A data set of the store as outliers."""
    return Natural(name)


def synthetic(*names: str) -> Shown:
    """Outliers made from the inliers: `patches`, `columns`, ..., or `mypackage.mymodule:name`; several are mixed."""
    return mix(*map(Synthetic, names))


def spectrum_matched(of: Given | Natural) -> SpectrumMatched:
    """Images filtered to be as sharp as the inliers."""
    return SpectrumMatched(of)


def mix(*parts: Shown) -> Shown:
    """Outliers of several sources, as many of each. A mix may have mixes in it."""
    flat = tuple(leaf for part in parts for leaf in leaves(part))
    if not flat:
        raise ValueError("a mix of no outliers; name at least one kind")
    return flat[0] if len(flat) == 1 else Mix(flat)


def leaves(shown: Shown) -> Iterator[Leaf]:
    if isinstance(shown, Mix):
        yield from shown.parts
    else:
        yield shown


def parse(name: str) -> Shown:
    """From a name as people write it: `a+b` is a mix, `a_spectrum_matched` the set a as sharp as the inliers."""
    return mix(*map(_leaf, name.split(AND)))


def _leaf(name: str) -> Leaf:
    if name == GIVEN:
        return Given()
    if current(name) == MATCHED:
        return SpectrumMatched(Given())
    if ":" in name or any(name in makes for makes in SYNTHETIC.values()):
        return Synthetic(name)
    for suffix in (MATCHED, *(old for old, new in OLD_NAMES.items() if new == MATCHED)):
        if name.endswith(f"_{suffix}"):
            return SpectrumMatched(Natural(name.removesuffix(f"_{suffix}")))
    return Natural(name)


def current_name(name: str | None) -> str | None:
    """The name of today for outliers that an older table or record may name otherwise."""
    return name and str(parse(name))


def sets_of(name: str | None) -> tuple[str, ...]:
    """The sets that outliers of that name are made of, each once: of `a+b_spectrum_matched` a and b; none of None."""
    if name is None:
        return ()
    of = (leaf.of if isinstance(leaf, SpectrumMatched) else leaf for leaf in leaves(parse(name)))
    return tuple(dict.fromkeys(map(str, of)))


def build(
    shown: Shown,
    kind: str,
    inliers: Tensor,
    *,
    given: Tensor | None = None,
    store: Callable[[str], OutlierSource] | None = None,
    groups: Groups = (),
) -> OutlierSource:
    """A source of such outliers for inliers of that kind; `store` gives those of a data set by its name.

    `groups` says which entries of an encoded row were one column of a table.
    """

    def source(leaf: Leaf) -> OutlierSource:
        if isinstance(leaf, Synthetic):
            how = choose_or_import(SYNTHETIC[kind], leaf.name, f"synthetic outliers for {kind}")
            return FromInliers(inliers, InGroups(how, groups) if groups and leaf.name in SYNTHETIC[kind] else how)
        if isinstance(leaf, SpectrumMatched):
            if kind != "images":
                raise ValueError(f"outliers {str(leaf)!r} are images, and the data is {kind}; leave them out")
            if isinstance(leaf.of, Given) and given is not None:  # filtered once, not in every epoch
                return Fixed(match_spectrum(given, mean_power(inliers)))
            return Matched(source(leaf.of), mean_power(inliers))
        if isinstance(leaf, Given):
            if given is None:
                raise ValueError("outliers are made from real ones, and there are none; give some")
            return Fixed(given)
        if store is None:
            choose_or_import(SYNTHETIC[kind], leaf.name, f"synthetic outliers for {kind}")
            raise ValueError(f"outliers {leaf.name!r} are a data set, and there is no store to take them from")
        return store(leaf.name)

    sources = tuple(map(source, leaves(shown)))
    return sources[0] if len(sources) == 1 else Mixed(sources)
