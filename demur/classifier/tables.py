"""Tables as they come: columns of numbers, dates and categories, with gaps, as numbers that a network takes.

There are two steps. `encode_cells` gives every cell one number, (N, columns): a number itself, a date's days since
1970, a category's place among the entries of its column, NaN where a number or a date is missing. `features` makes the
network's inputs of these: numbers are standardised, and have their rank among the training values beside; gaps are
filled with the median and marked by an indicator; categories are one-hot. The second step needs tensors alone, so an
exported graph has it inside, and takes codes.
"""

import math
import re
import sys
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from torch import Tensor

from demur.metrics import Array
from demur.outliers.synthetic import Group, rank

QUANTILES = 16  # equal parts of a column's training values
FEWEST = 5  # training rows that a category needs for an entry of its own
MOST = 50  # categories of a column that have one; the others are rare
KNOWN = 1_000  # rare categories of a column, beyond which new ones are nothing unusual
NEW = 0.02  # nor where so many of the training rows have a category that no other row has
FARTHEST = 1e6  # deviations from the mean; beyond, float32 would lose the rest of the row
CELLS = "numbers, dates, strings or truth values"
RARE, MISSING, UNSEEN = "(rare)", "(missing)", "(unseen)"
TRUTH = {"True": "true", "TRUE": "true", "False": "false", "FALSE": "false"}  # as files and frames write it
BITS = {"1": "true", "0": "false"}  # as databases do
LARGEST = sys.float_info.max
EPOCH, DAY = pd.Timestamp(0, tz="UTC").as_unit("s"), pd.Timedelta(days=1).as_unit("s")  # of any year, 9999 included
# strings that a reader would take for numbers, dates or times, such as 1,5 and 31.12.2020 and 10:30
NUMBER_LIKE = r"\s*[-+$€£]?\s*\d[\d.,'/: -]*\s*[%€$£]?\s*"


@dataclass(frozen=True)
class Number:
    """A column of numbers, or of dates as days since 1970: an entry for it, one that is 1 where it is missing, and one
    for its rank among the training values, which tells apart what lies close in a column of long tails."""

    mean: float
    scale: float
    fill: float  # the median, put where a number is missing
    gaps: bool  # whether training rows have any; if not, a gap is as unusual as a category that was never seen
    date: bool = False
    quantiles: tuple[float, ...] = ()  # of the training values, the ends included; none in older models

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise ValueError(f"scale {self.scale} of a column is not positive; save it anew")
        known = all(isinstance(edge, int | float) and math.isfinite(edge) for edge in self.quantiles)
        if len(self.quantiles) not in (0, QUANTILES + 1) or not known or list(self.quantiles) != sorted(self.quantiles):
            raise ValueError(f"the quantiles of a column are not {QUANTILES + 1} that rise; save it anew")

    @classmethod
    def of(cls, values: Array, name: str, date: bool = False) -> "Number":
        there = values[~np.isnan(values)]
        if np.isinf(there).any():
            raise ValueError(f"X has an infinite value in column {name!r}; write it as a number, or leave it empty")
        if not len(there):
            return cls(0.0, 1.0, 0.0, True, date)
        with np.errstate(over="ignore", invalid="ignore"):
            mean, deviation = float(there.mean()), float(there.std())
        if not np.isfinite([mean, deviation]).all():
            raise ValueError(
                f"X has values up to {np.abs(there).max():g} in column {name!r}, too large to be standardised; divide "
                "the column, or take its logarithm"
            )
        constant = deviation <= 1e-12 * np.abs(there).max()  # or varies by rounding only
        quantiles = () if constant else tuple(np.quantile(there, np.linspace(0, 1, QUANTILES + 1)).tolist())
        scale, fill = 1.0 if constant else deviation, float(np.median(there))
        return cls(mean, scale, fill, len(there) < len(values), date, quantiles)

    @cached_property
    def group(self) -> Group:
        missing = torch.tensor([np.nan], dtype=torch.float64)
        unseen = None if self.gaps else tuple(self.features(missing)[0].tolist())
        return Group(3 if self.quantiles else 2, unseen=unseen, knots=self._knots)

    @cached_property
    def _knots(self) -> tuple[float, ...]:
        """Standardised."""
        return tuple((edge - self.mean) / self.scale for edge in self.quantiles)

    @property
    def _filled(self) -> float:
        return (self.fill - self.mean) / self.scale

    @property
    def what(self) -> str:
        return "date" if self.date else "number"

    def encode(self, cells: pd.Series) -> Array:
        return _days(cells) if self.date else _numbers(cells)

    def features(self, codes: Tensor) -> Tensor:
        gap, standard = codes.isnan(), ((codes - self.mean) / self.scale).clamp(-FARTHEST, FARTHEST)
        number = torch.where(gap, torch.full_like(codes, self._filled), standard)
        ranks = [rank(number, self._knots)] if self.quantiles else []
        return torch.stack([number, gap.to(codes.dtype), *ranks], 1)


@dataclass(frozen=True)
class Category:
    """A column of names: an entry for each frequent one, and one each for rare, missing and never seen ones.

    Where new names are nothing unusual, as those of passengers are, `open` is set, and they count as rare. So does a
    missing one, if no training row has a gap; in other columns that counts as never seen.
    """

    values: tuple[str, ...]
    rare: tuple[str, ...]
    gaps: bool
    open: bool

    def __post_init__(self) -> None:
        if len(self.values) > MOST or len(self.rare) > KNOWN:
            raise ValueError(f"a column has more than {MOST} frequent or {KNOWN} rare categories; save it anew")

    @classmethod
    def of(cls, cells: pd.Series) -> "Category":
        names = _names(cells)
        count = Counter(names.tolist())
        gaps = count.pop(MISSING, 0)
        distinct = sorted(count, key=lambda name: (-count[name], name))
        values = [name for name in distinct if count[name] >= FEWEST][:MOST]
        rare = sorted(distinct[len(values) :])
        is_open = len(rare) > KNOWN or list(count.values()).count(1) > NEW * len(names)
        return cls(tuple(values), () if is_open else tuple(rare), gaps > 0, is_open)

    @cached_property
    def entries(self) -> tuple[str, ...]:
        """The last stands for what was never seen in training, unless the column is open."""
        has = {RARE: self.open or self.rare, MISSING: self.gaps, UNSEEN: not self.open}
        return (*self.values, *(name for name, there in has.items() if there))

    @cached_property
    def places(self) -> dict[str, int]:
        """By name, of what was seen in training."""
        place = {name: number for number, name in enumerate(self.values)}
        gap = {MISSING: self.entries.index(MISSING, len(place))} if self.gaps else {}
        places = place | dict.fromkeys(self.rare, len(place)) | gap
        truth = bool(place) and {*self.values, *self.rare} <= {*BITS.values()}
        return places | {bit: places[name] for bit, name in BITS.items() if truth and name in places}

    @property
    def group(self) -> Group:
        never = (*(0.0 for _ in self.entries[1:]), 1.0)
        return Group(len(self.entries), one_hot=True, unseen=None if self.open else never)

    def encode(self, cells: pd.Series) -> Array:
        new = len(self.values) if self.open else len(self.entries) - 1
        return np.array([self.places.get(name, new) for name in _names(cells)], np.float64)

    def features(self, codes: Tensor) -> Tensor:
        return (codes.unsqueeze(1) == torch.arange(len(self.entries), device=codes.device)).to(codes.dtype)


Column = Number | Category


def learn_columns(frame: pd.DataFrame) -> tuple[Column, ...]:
    """What each column is, by its type or by what is in it, and what there is to know of it."""
    return tuple(_column(frame.iloc[:, place], str(name)) for place, name in enumerate(frame.columns))


def _column(cells: pd.Series, name: str) -> Column:
    kind = cells.dtype
    if isinstance(kind, pd.CategoricalDtype) or pd.api.types.is_bool_dtype(kind) or _is_dictionary(kind):
        return Category.of(cells)
    if pd.api.types.is_datetime64_any_dtype(kind):
        return Number.of(_days(cells), name, date=True)
    if pd.api.types.is_numeric_dtype(kind) and kind.kind != "c":
        return Number.of(_numbers(cells), name)
    if not (pd.api.types.is_string_dtype(kind) or pd.api.types.is_object_dtype(kind)):
        raise ValueError(f"X has column {name!r} of dtype {kind}; make it {CELLS}")
    there = cells[~_missing(cells)]
    there = there[[not isinstance(cell, bool | np.bool_) for cell in there]]
    if len(there):
        for convert, what in ((_numbers, "number"), (_days, "date")):
            good = ~np.isnan(convert(there))
            if good.all():
                return Number.of(convert(cells), name, date=convert is _days)
            if good.mean() >= 0.5:
                raise ValueError(
                    f"X has {there.iloc[int(good.argmin())]!r} in column {name!r}, among {what}s; write it as a "
                    f"{what} or leave it empty, or give the column as categories (dtype 'category')"
                )
        _warn_of_numbers(there, name)
    return Category.of(cells)


def _is_dictionary(kind: Any) -> bool:
    return isinstance(kind, pd.ArrowDtype) and pa.types.is_dictionary(kind.pyarrow_dtype)


def _warn_of_numbers(there: pd.Series, name: str) -> None:
    """Of a column that is read as names, and looks like something else to a reader."""
    alike = [isinstance(cell, str) and re.fullmatch(NUMBER_LIKE, cell) is not None for cell in there]
    if np.mean(alike) >= 0.5:
        warnings.warn(
            f"column {name!r} has cells such as {there.iloc[alike.index(True)]!r}, which are read as names; if they "
            "are numbers or dates, write them like 1234.5 or 2020-12-31",
            stacklevel=2,
        )


def encode_cells(columns: Sequence[Column], frame: pd.DataFrame) -> tuple[Array, dict[int, str]]:
    """The codes of all cells, and by row what is wrong with it: a phrase that begins with the value and its column."""
    table, wrong = np.empty((len(frame), len(columns))), dict[int, str]()
    for place, column in enumerate(columns):
        cells, name = frame.iloc[:, place], frame.columns[place]
        table[:, place] = codes = column.encode(cells)
        if isinstance(column, Category):
            continue
        bad = np.isinf(codes) | (np.isnan(codes) & ~_missing(cells) if np.isnan(codes).any() else False)
        for row in np.flatnonzero(bad).tolist():
            cell = f"{_quote(cells.iloc[row])} in column {name!r}"
            wrong.setdefault(row, f"{cell}, which is no {column.what}; write it as one, or leave it empty")
    return table, wrong


def codes_of(columns: Sequence[Column], frame: pd.DataFrame, what: str) -> Array:
    """The codes, of a table with nothing wrong in it."""
    codes, wrong = encode_cells(columns, frame)
    if wrong:
        row = min(wrong)
        raise ValueError(f"{what} has in row {frame.index[row]} {wrong[row]}")
    return codes


def features(columns: Sequence[Column], codes: Tensor) -> Tensor:
    """(N, columns) to (N, inputs of the network), float32."""
    return torch.cat([column.features(codes[:, place]) for place, column in enumerate(columns)], 1).float()


def columns_from_json(saved: Sequence[Mapping[str, Any]]) -> tuple[Column, ...]:
    """As `dataclasses.asdict` gives them."""

    def column(values: Mapping[str, Any]) -> Column:
        if "mean" in values:
            return Number(**{**values, "quantiles": tuple(values.get("quantiles", ()))})
        return Category(tuple(values["values"]), tuple(values["rare"]), values["gaps"], values["open"])

    return tuple(map(column, saved))


# cells --------------------------------------------------------------------------------------------------------------


def is_mixed(X: Any) -> bool:
    """Whether X is a table with anything in it but numbers, or with gaps."""
    if isinstance(X, pa.Table):
        numbers = [pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in X.schema.types]
        return not all(numbers) or any(column.null_count for column in X.columns) or is_mixed(np.asarray(X))
    if hasattr(X, "to_pandas"):
        X = X.to_pandas()
    if isinstance(X, pd.DataFrame):
        numbers = [pd.api.types.is_numeric_dtype(kind) and kind.kind in "iuf" for kind in X.dtypes]
        return not all(numbers) or bool(X.isna().to_numpy().any())
    array = X if isinstance(X, np.ndarray) else np.asarray(X, dtype=object)
    if array.ndim != 2 or array.dtype.kind not in "fOU":
        return False
    if array.dtype.kind == "f":
        return bool(np.isnan(array).any())
    return any(
        isinstance(cell, str) or cell is None or (isinstance(cell, float) and cell != cell) for cell in array.flat
    )


def frame_of(X: Any, names: Sequence[str] = ()) -> pd.DataFrame:
    """X as a data frame; `names` are for columns that have none."""
    if isinstance(X, pa.Table):
        frame = X.to_pandas(date_as_object=False)
        return frame.set_index(pd.RangeIndex(1, len(frame) + 1))  # rows of files are counted from 1
    if hasattr(X, "to_pandas"):
        X = X.to_pandas()
    if isinstance(X, pd.DataFrame):
        return X
    array = np.asarray(X, dtype=None if isinstance(X, np.ndarray) else object)
    return pd.DataFrame(array, columns=list(names) if array.ndim == 2 and len(names) == array.shape[1] else None)


def find_gaps(frame: pd.DataFrame) -> Tensor:
    """(N, columns): which cells are empty."""
    gaps = [_missing(frame.iloc[:, place]) for place in range(frame.shape[1])]
    return torch.from_numpy(np.stack(gaps, 1))


def _missing(cells: pd.Series) -> np.ndarray:
    empty = cells.isna().to_numpy(bool)
    if pd.api.types.is_object_dtype(cells.dtype) or pd.api.types.is_string_dtype(cells.dtype):
        empty = empty | np.array([isinstance(cell, str) and not cell.strip() for cell in cells], bool)
    return empty


def _numbers(cells: pd.Series) -> Array:
    """NaN where a cell is empty or no number, as dates and complex numbers are none."""
    if pd.api.types.is_datetime64_any_dtype(cells.dtype) or cells.dtype.kind in "mc":
        return np.full(len(cells), np.nan)
    if isinstance(cells.dtype, pd.CategoricalDtype):
        cells = cells.astype(object)
    try:
        return pd.to_numeric(cells, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    except OverflowError:  # whole numbers that are beyond every float
        return _numbers(cells.map(lambda cell: math.inf if isinstance(cell, int) and abs(cell) > LARGEST else cell))


def _days(cells: pd.Series) -> Array:
    """NaN where a cell is empty or no date; dates without a zone are taken for UTC."""
    if pd.api.types.is_numeric_dtype(cells.dtype) or isinstance(cells.dtype, pd.PeriodDtype):
        return np.full(len(cells), np.nan)
    form = None if pd.api.types.is_datetime64_any_dtype(cells.dtype) else "ISO8601"
    dates = pd.to_datetime(cells, format=form, utc=True, errors="coerce")
    return ((dates - EPOCH) / DAY).to_numpy(np.float64, na_value=np.nan)


def _names(cells: pd.Series) -> np.ndarray:
    """Cells as names of categories, MISSING where they are empty."""
    try:
        place, distinct = pd.factorize(cells)
    except TypeError:
        odd = next(cell for cell in cells if not isinstance(cell, str | int | float))
        raise ValueError(f"X has a {type(odd).__name__} in column {str(cells.name)!r}; make it {CELLS}") from None
    names = np.array([*map(_name, distinct), MISSING], object)
    return names[place]


def _name(cell: Any) -> str:
    if isinstance(cell, float | np.floating) and float(cell).is_integer():
        cell = int(cell)  # whole numbers become floats where a column has gaps
    if isinstance(cell, datetime) and cell.time() == time():
        cell = cell.date()  # dates become timestamps in some frames
    text = str(cell).strip()
    return TRUTH.get(text, text) or MISSING


def _quote(cell: Any) -> str:
    return repr(cell.item() if isinstance(cell, np.generic) else cell)
