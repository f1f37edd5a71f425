"""Tables with more in them than numbers, and parquet files."""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from demur.classifier.readers.base import (
    BATCH,
    Asked,
    Batch,
    Check,
    Inputs,
    check_labels,
    decoded,
    feature_columns,
    label_column,
    wrong_rows,
)
from demur.classifier.tables import CELLS
from demur.data.formats import reading

GAPS = pa.array(  # what Arrow takes for an empty cell of numbers
    [
        "",
        "#N/A",
        "#N/A N/A",
        "#NA",
        "-1.#IND",
        "-1.#QNAN",
        "-NaN",
        "-nan",
        "1.#IND",
        "1.#QNAN",
        "N/A",
        "NA",
        "NULL",
        "NaN",
        "n/a",
        "nan",
        "null",
    ]
)
NUMBER = r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$"
USABLE = (
    *(pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean, pa.types.is_null),
    *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_dictionary),
    *(pa.types.is_timestamp, pa.types.is_date),
)


def without_gaps(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    """Strings, null where they stand for an empty cell."""
    trimmed = pc.utf8_trim_whitespace(cells)
    return pc.if_else(pc.is_in(trimmed, GAPS), pa.scalar(None, pa.string()), trimmed)


def plain_strings(cells: pa.Array) -> pa.Array:
    """Those of polars are views, of which Arrow computes little."""
    return cells.cast(pa.string()) if pa.types.is_string_view(cells.type) else cells


def is_mixed(parts: Iterable[pa.RecordBatch], path: Path) -> bool:
    """Whether there is more than finite numbers; a column of numbers with words among them is refused."""
    mixed, rows, numbers, words = False, 0, Counter[str](), Counter[str]()
    first: dict[str, tuple[str, int]] = {}  # by column, a word and its row
    for part in parts:
        for name, cells in zip(part.schema.names, part.columns, strict=True):
            if pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type):
                there = without_gaps(pa.chunked_array([cells.cast(pa.string())]))
                places = _words_in(there)
                words[name] += len(places)
                numbers[name] += len(there) - there.null_count - len(places)
                if places:
                    first.setdefault(name, (there[places[0]].as_py(), rows + places[0] + 1))
                mixed |= bool(there.null_count)
            elif pa.types.is_integer(cells.type) or pa.types.is_floating(cells.type):
                mixed |= bool(cells.null_count) or bool(np.isnan(np.asarray(cells, np.float64)).any())
            else:
                mixed = True
        rows += len(part)
    for name, (word, row) in first.items():
        if numbers[name] >= words[name]:
            raise ValueError(
                f"{path} has {word!r} in column {name!r}, row {row}, which is no number; write it as one, leave it "
                "empty, or take the column out"
            )
    return mixed or bool(first)


def _words_in(cells: pa.ChunkedArray) -> list[int]:
    """The places of strings that are no numbers; infinite ones are."""
    try:
        pc.cast(cells, pa.float64())
        return []
    except pa.ArrowInvalid:
        is_number = pc.match_substring_regex(cells, NUMBER)
        return np.flatnonzero(np.asarray(pc.fill_null(pc.invert(is_number), False))).tolist()


def as_cells(rows: pa.Table, path: Path) -> tuple[pa.Table, list[int]]:
    """Cells of a csv, strings or bytes, as strings or null; and the rows of those that are not UTF-8."""
    columns, broken = list[pa.ChunkedArray](), set[int]()
    for cells in rows.columns:
        try:
            texts = cells.cast(pa.string())
        except pa.ArrowInvalid:
            strings = [decoded(cell) for cell in cells.to_pylist()]
            broken |= {row for row, text in enumerate(strings) if text is None}
            texts = pa.chunked_array([pa.array(strings, pa.string())])
        if pc.any(pc.match_substring(texts, "\n")).as_py():
            raise ValueError(f"{path} has a quote that is not closed before the end of its line; close it")
        columns.append(without_gaps(texts))
    return pa.table(columns, names=rows.column_names), sorted(broken)


def wrong_cells(
    rows: pa.Table, path: Path, names: Sequence[str], check: Check | None, tolerant: bool
) -> dict[int, str]:
    """The places of rows that the model cannot take; refused, unless `tolerant`."""
    reasons = check(rows) if check and len(rows) else {}
    wrong = {row: f"{path} has in row {names[row]} {why}" for row, why in reasons.items()}
    if wrong and not tolerant:
        raise ValueError(wrong[min(wrong)])
    return wrong


def open_parquet(
    asked: Asked, source: pa.NativeFile | None = None, groups: Sequence[int] | None = None, first: int = 1
) -> Inputs:
    """A table with typed columns, or texts where a column is called `text`; of a file that is open elsewhere, or some
    of its row groups, whose rows count from `first`."""
    path, labelled, columns, mixed = asked.path, asked.labelled, asked.columns, asked.mixed
    with reading(path, "parquet"):
        file = pq.ParquetFile(path if source is None else source)
        header = file.schema_arrow.names
    texts = not columns and "text" in header
    features = ["text"] if texts else columns
    label = label_column(header, path, asked.label, features) if labelled or asked.label else None
    taken, named = feature_columns(header, path, features, label), label if labelled else None
    for name in taken:
        kind = file.schema_arrow.field(name).type
        plain = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        if not any(usable(kind) for usable in USABLE) or (mixed is False and not texts and not plain):
            wanted = "numbers" if mixed is False else CELLS
            raise ValueError(f"{path} has column {name!r} of {kind}; make it {wanted}, or take it out")

    def parts(wanted: Sequence[str]) -> Iterator[pa.RecordBatch]:
        stored = file.iter_batches(BATCH, row_groups=groups, columns=list(wanted), use_threads=False)
        while True:
            with reading(path, "parquet"):
                part = next(stored, None)
            if part is None:
                return
            yield pa.record_batch([plain_strings(part[name]) for name in wanted], names=list(wanted))

    if mixed is None and not texts:
        mixed = is_mixed(parts(taken), path)

    def batches() -> Iterator[Batch]:
        counted = itertools.count(first)
        for part in parts([*taken, *([named] if named else [])]):
            rows = pa.Table.from_batches([part])
            names = [str(next(counted)) for _ in range(len(rows))]
            y = None
            if named:
                y = ["" if cell is None or cell != cell else str(cell) for cell in rows[named].to_pylist()]
                check_labels(y, path, names)
            if texts:
                sentences = rows["text"].to_pylist()
                wrong = {
                    row: f"{path} has no text in row {names[row]}; fill it in, or remove the row"
                    for row, text in enumerate(sentences)
                    if not isinstance(text, str)
                }
                if wrong and not asked.tolerant:
                    raise ValueError(wrong[min(wrong)])
                yield Batch(names, [text for text in sentences if isinstance(text, str)], y, wrong)
                continue
            rows = rows.select(taken)
            if mixed:
                wrong = wrong_cells(rows, path, names, asked.check, asked.tolerant)
            else:
                rows = rows.cast(pa.schema([(name, pa.float64()) for name in taken]), safe=False)  # as a csv's are
                wrong = wrong_rows(np.asarray(rows), path, names, taken, asked.tolerant)
            right = pa.array([row not in wrong for row in range(len(rows))], pa.bool_())
            yield Batch(names, rows.filter(right), y, wrong)

    return Inputs("texts" if texts else "tables", batches(), columns=() if texts else tuple(taken), mixed=bool(mixed))
