"""How many inputs the paper's code tests with, which AUPR depends on: all EMNIST letters and all of SVHN's digits, and
the test images that are not among 2,000 for validation. demur's own tests have at most 10,000 of each set.

They are predicted beside a cell's own sets, by the same network, so that a cell's folder keeps its name; its values in
the published convention are then of these. (set, "inputs") says how many there were.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from demur.paper.published import OOD_SETS
from demur.study.fits import DataSource, Inputs
from demur.study.grid import Cell
from demur.study.measuring import Place, Value
from demur.study.results import TEST, Result
from demur.study.table import Measured
from demur.tasks import IMAGES, Store
from demur.tasks.base import shuffled_order
from demur.tasks.images import OOD_COUNT, VALIDATION_COUNT, fit_images, load_split

COUNTS, INPUTS = "counts", "inputs"  # a kind of further inputs; a value
WHOLE: Mapping[str, int] = MappingProxyType({"emnist_letters": 20_800, "svhn": 26_032})
BESIDE = "_whole"  # a store may have some of a set to test with, and all of it under this name


def whole_sets(cell: Cell) -> list[str]:
    """Those of the task's OOD sets that the cell's convention counts whole."""
    published = cell.convention == "published" and cell.task in IMAGES
    return [name for name in OOD_SETS[cell.task] if name in WHOLE] if published else []


def with_counts(cell: Cell) -> Cell:
    """The cell, asked for the paper's counts where its convention has them."""
    further = {*cell.further, COUNTS} if whole_sets(cell) else cell.further
    return replace(cell, further=tuple(sorted(further)))


def counts(data: DataSource, store: Store) -> Inputs:
    """Of every set as many as the store has, named with their number as `counts/svhn/26032`."""
    test = load_split(store, data.name, "test")
    order = shuffled_order(len(test))
    rows = order[min(VALIDATION_COUNT, len(order) // 5) :].sort().values
    sets = {TEST: test.x[rows]}
    for name in OOD_SETS[data.name]:
        stored = next((each for each in (name + BESIDE, name) if store.has(each, "test")), None)
        if name in WHOLE and stored:
            sets[name] = fit_images(store.images(stored, "test")[0], test.x.shape[1:])
    few = None if data.limit is None else max(1, data.limit // 6)  # as of a task's own sets
    return test.y[rows][:few], {f"{COUNTS}/{name}/{len(x[:few])}": x[:few] for name, x in sets.items()}


def as_counted(result: Result) -> Result:
    """With the paper's counts, where it has them and its convention wants them."""
    if COUNTS not in result.further or not whole_sets(result.cell):
        return result
    counted = result.further[COUNTS]
    sets = {name.split("/")[1]: prediction for name, prediction in counted.sets.items()}
    test = sets.pop(TEST)
    return replace(result, y=counted.y, test=test, ood={**result.ood, **sets})


def inputs_of(result: Result) -> Iterator[tuple[Place, Value]]:
    """How many were tested with, where that is not the same in both conventions."""
    if names := [name for name in whole_sets(result.cell) if name in result.ood]:
        yield (TEST, INPUTS), Value(float(len(result.test)))
        yield from (((name, INPUTS), Value(float(len(result.ood[name])))) for name in names)


def data_tested(run: Measured, name: str) -> str | None:
    """The digest of the set that the values are of; None where unknown."""
    whole = [each for each in whole_sets(run.cell) if (run.values.get((each, INPUTS)) or Value(0)).value > OOD_COUNT]
    return run.record.data.get(COUNTS) if whole and name in (TEST, *whole) else run.data(name)


def lacking(run: Measured, sets: Collection[str]) -> Iterator[str]:
    """What the values on these sets are of, where it is not all that the paper's are of."""
    for name in whole_sets(run.cell):
        if name in sets and name in run.sets:
            known = run.values.get((name, INPUTS))
            tested = OOD_COUNT if known is None else int(known.value)
            if tested < WHOLE[name]:
                yield f"{name} has {tested:,} of its {WHOLE[name]:,} images, which AUPR depends on"
