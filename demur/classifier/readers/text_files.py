"""Files of text: csv, jsonl, txt, and standard input."""

import csv
import io
import itertools
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv

from demur.classifier.readers.base import (
    BATCH,
    LABELS,
    Asked,
    Batch,
    Inputs,
    check_labels,
    decoded,
    feature_columns,
    join_names,
    label_column,
    wrong_rows,
)
from demur.classifier.readers.tables import as_cells, is_mixed, wrong_cells
from demur.data.formats import reading
from demur.errors import first_line
from demur.files import check_quotes

STDIN = Path("-")
BLOCK, LONGEST = 2**20, 2**30  # bytes of a csv that are read at a time, and of its longest row


def open_stream(file: io.FileIO, asked: Asked) -> Inputs:
    """What a file of text holds; it is closed when it has been read or refused."""
    with ExitStack() as until_refused:
        stream: io.BufferedReader = until_refused.enter_context(io.BufferedReader(file))
        kind = asked.path.suffix.lower()
        if asked.path == STDIN:
            asked, kind = replace(asked, path=Path("standard input")), ".jsonl" if stream.peek()[:1] == b"{" else ".csv"
        inputs = READERS[kind](stream, asked)
        until_refused.pop_all()
    return replace(inputs, batches=closing(stream, inputs.batches))


def closing(stream: io.BufferedReader, batches: Iterator[Batch]) -> Iterator[Batch]:
    with stream:
        yield from batches


# csv ----------------------------------------------------------------------------------------------------------------


def open_csv(stream: io.BufferedReader, asked: Asked) -> Inputs:
    path, labelled, columns = asked.path, asked.labelled, asked.columns
    header, delimiter = read_header(stream, path, columns)
    texts = not columns and "text" in header
    names = ["text"] if texts else columns
    label = label_column(header, path, asked.label, names) if labelled or asked.label else None
    taken = feature_columns(header, path, names, label)
    reopened = reopener(stream)
    mixed = asked.mixed
    if mixed is None and not texts:
        every = pa.csv.ConvertOptions(column_types=dict.fromkeys(taken, pa.string()), include_columns=taken)
        mixed = is_mixed(csv_parts(reopened, path, header, pa.csv.ParseOptions(delimiter=delimiter), every), path)
    plain = pa.string() if texts or mixed else pa.float64()
    types = dict.fromkeys(taken, pa.binary() if asked.tolerant else plain)
    if labelled:
        types |= {label: pa.string()}
    long = ["text"] if texts else []  # columns whose cells may have several lines
    long += [name for name in header if name not in types]  # which are read for the sake of their quotes alone
    types |= {name: pa.binary() for name in header if name not in types}
    quotes_checked = False
    ragged: dict[int, str] = {}  # by number, rows that have another number of cells

    def skip(row: pa.csv.InvalidRow) -> str:
        cells = f"{row.actual_columns} cells, not {row.expected_columns}"
        ragged[row.number] = f"{path} has {cells}, in row {row.number}; mend or remove it"
        return "error" if "\n" in row.text else "skip"  # a quote that is not closed may have other rows in it

    parse = pa.csv.ParseOptions(
        delimiter=delimiter, newlines_in_values=texts, invalid_row_handler=skip if asked.tolerant else None
    )
    convert = pa.csv.ConvertOptions(column_types=types, include_columns=list(types))

    def batches() -> Iterator[Batch]:
        last = 0
        for part in csv_parts(reopened, path, header, parse, convert):
            numbers, left = [], len(part)
            while left:
                last += 1
                numbers.append(last)
                left -= last not in ragged
            yield batch_of(part, numbers)
        if behind := sorted(number for number in ragged if number > last):
            empty = [pa.array([], kind) for kind in types.values()]
            yield batch_of(pa.RecordBatch.from_arrays(empty, list(types)), behind)

    def batch_of(part: pa.RecordBatch, numbers: Sequence[int]) -> Batch:
        """The rows of these numbers, of which those that are ragged are not in `part`."""
        nonlocal quotes_checked
        if not quotes_checked and any(map(has_several_lines, part.select(long).columns)):
            check_quotes(reopened(), delimiter, path, first=2)
            quotes_checked = True
        names = [str(number) for number in numbers]
        wrong = {place: ragged[number] for place, number in enumerate(numbers) if number in ragged}
        places = [place for place in range(len(names)) if place not in wrong]
        y = part[label].to_pylist() if labelled else None
        check_labels(y, path, names)
        if broken := [number for number, name in zip(names, y or (), strict=False) if "\n" in name or "\r" in name]:
            # a quote that is not closed would hide the rows up to the next
            raise ValueError(f"{path} has a label of several lines in row {broken[0]}; is a quote not closed?")
        if texts:
            sentences = [decoded(value) for value in part["text"].to_pylist()]
            reason = f"{path} has a text that is not UTF-8, in row {{}}; convert it"
            wrong |= {
                places[row]: reason.format(names[places[row]]) for row, text in enumerate(sentences) if text is None
            }
            return Batch(names, [text for text in sentences if text is not None], y, wrong)
        rows, named = pa.Table.from_batches([part]).select(taken), [names[place] for place in places]
        if mixed:
            rows, undecoded = as_cells(rows, path)
            bad = wrong_cells(rows, path, named, asked.check, asked.tolerant)
            bad |= {row: f"{path} has a cell that is not UTF-8, in row {named[row]}; convert it" for row in undecoded}
        else:
            if asked.tolerant:
                rows = pa.table([as_numbers(column, path) for column in rows.columns], names=taken)
            bad = wrong_rows(np.asarray(rows), path, named, taken, asked.tolerant)
        wrong |= {places[row]: why for row, why in bad.items()}
        right = pa.array([row not in bad for row in range(len(rows))], pa.bool_())
        return Batch(names, rows.filter(right), y, wrong)

    return Inputs("texts" if texts else "tables", batches(), columns=() if texts else tuple(taken), mixed=bool(mixed))


def has_several_lines(cells: pa.Array) -> bool:
    return bool(pa.compute.any(pa.compute.match_substring_regex(cells, "[\r\n]")).as_py())


def as_numbers(cells: pa.ChunkedArray, path: Path) -> pa.Array:
    """Cells (binary) as numbers, NaN where they are none; several lines in one are refused, for they were rows."""
    try:
        return pa.compute.cast(pa.compute.utf8_trim_whitespace(cells.cast(pa.string())), pa.float64())
    except pa.ArrowInvalid:
        raw = cells.to_pylist()
        if any(b"\n" in cell for cell in raw):
            raise ValueError(f"{path} has a quote that is not closed before the end of its line; close it") from None
        return pa.array([as_number(cell) for cell in raw], pa.float64())


def as_number(cell: bytes) -> float:
    try:
        return pa.scalar(cell.decode().strip()).cast(pa.float64()).as_py()
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return float("nan")


def csv_parts(
    reopened: Callable[[], pa.NativeFile],
    path: Path,
    header: Sequence[str],
    parse: pa.csv.ParseOptions,
    convert: pa.csv.ConvertOptions,
) -> Iterator[pa.RecordBatch]:
    """Some rows at a time; where one is longer than what is read at a time, all is read again in larger blocks."""
    block, done = BLOCK, 0
    while True:
        # without threads errors have the row's number
        read = pa.csv.ReadOptions(use_threads=False, column_names=header, block_size=block)
        try:
            seen = 0
            with only_raised():
                file = pa.csv.open_csv(reopened(), read, parse, convert)
            while True:
                with only_raised():
                    part = next(file, None)
                if part is None:
                    return
                fresh = part.slice(max(0, done - seen))
                seen += len(part)
                if len(fresh):
                    done = seen
                    yield fresh
        except pa.ArrowInvalid as error:
            if "straddl" not in str(error):
                raise refusal(error, path, header) from None
            block *= 8
            if block > LONGEST:
                raise ValueError(f"{path} has a row of more than {block // 2**23} MiB; shorten it") from None


@contextmanager
def only_raised() -> Iterator[None]:
    """Arrow shows a row that is no UTF-8 to nobody: Python would print that its handler failed, beside the refusal."""
    before, sys.unraisablehook = sys.unraisablehook, lambda failure: None
    try:
        yield
    finally:
        sys.unraisablehook = before


def reopener(stream: io.BufferedReader) -> Callable[[], pa.NativeFile]:
    """Opens what is left of the stream, again and again, as a file of Arrow's own; a pipe is read whole.

    Arrow reads ahead in threads, and a thread that calls Python while it ends aborts the process.
    """
    if isinstance(stream.raw.name, int) or not stream.seekable():  # type: ignore[attr-defined]
        rest = pa.py_buffer(stream.read())
        return lambda: pa.BufferReader(rest)
    start, path = stream.tell(), os.fsencode(stream.raw.name)  # type: ignore[attr-defined]

    def reopened() -> pa.NativeFile:
        file = pa.OSFile(path)
        file.seek(start)
        return file

    return reopened


def refusal(error: pa.ArrowInvalid, path: Path, header: Sequence[str]) -> ValueError:
    reason = first_line(error)
    place = re.search(r"CSV column #(\d+): (?:Row #(\d+): )?.*invalid value '(.*)'", reason)
    if place is None:
        return ValueError(f"{path} cannot be read as csv ({reason}); is it whole, and what its name says?")
    column, row = header[int(place[1])], f", row {place[2]}" if place[2] else ""
    return ValueError(
        f"{path} has {place[3]!r} in column {column!r}{row}, which is no number; write it as one, "
        "or take the column out"
    )


def read_header(stream: io.BufferedReader, path: Path, columns: Sequence[str]) -> tuple[list[str], str]:
    """The names of a csv's columns, from its first line, and what divides them; numbers only if they are `columns`."""
    with reading(path, "csv in UTF-8"):
        line = stream.readline().decode("utf-8-sig").rstrip("\r\n")
        if not line or "\r" in line:
            raise ValueError("its first line is empty" if not line else "its lines do not end in a line feed")
        delimiter = "\t" if path.suffix.lower() == ".tsv" else max(",;\t", key=line.count)
        header = next(csv.reader([line], delimiter=delimiter))
    twice = [name for name, count in Counter(header).items() if count > 1]
    if twice:
        raise ValueError(f"{path} has more than one column {twice[0]!r}; rename all but one")
    if all(is_number(name) for name in header) and not (columns and {*columns} <= {*header}):
        raise ValueError(
            f"{path} has no names of columns in its first line, but {join_names(header)}; put one above it"
        )
    return header, delimiter


def is_number(text: str) -> bool:
    return re.fullmatch(r"\s*[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?\s*", text, re.IGNORECASE) is not None


# lines --------------------------------------------------------------------------------------------------------------

Line = tuple[str, str]  # a text and its label


def open_jsonl(stream: io.BufferedReader, asked: Asked) -> Inputs:
    path, key = asked.path, asked.label or LABELS[0]

    def parse(line: str, number: int) -> Line:
        record = read_json(line, f"{path}, line {number}")
        text, of = record.get("text"), record.get(key)
        if not isinstance(text, str):
            raise ValueError(f'{path}, line {number} has no "text"; give {{"text": "...", "{key}": "..."}} a line')
        if asked.labelled and not (type(of) is int or (type(of) is str and of and of.isprintable())):
            raise ValueError(f'{path}, line {number} has "{key}" {of!r}; give a word or a whole number')
        return text, str(of)

    return Inputs("texts", line_batches(stream, asked, parse))


def read_json(line: str, place: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place} cannot be read as JSON ({error}); write one object a line") from None
    if not isinstance(record, dict):
        raise ValueError(f'{place} is not an object; write {{"text": ...}} a line')
    return record


def open_txt(stream: io.BufferedReader, asked: Asked) -> Inputs:
    if asked.labelled:
        raise ValueError(f'{asked.path} has no labels; give a jsonl of {{"text": ..., "label": ...}}, or a csv')
    return Inputs("texts", line_batches(stream, asked, lambda line, number: (line, "")))


def line_batches(stream: io.BufferedReader, asked: Asked, parse: Callable[[str, int], Line]) -> Iterator[Batch]:
    """Lines that are not blank; their names are their numbers from 1."""

    def read() -> Iterator[tuple[str, Line | ValueError]]:
        for number, line in enumerate(stream, 1):
            try:
                if text := decoded_line(line, asked.path, number):
                    yield str(number), parse(text, number)
            except ValueError as error:
                if not asked.tolerant:
                    raise
                yield str(number), error

    lines = read()
    while part := list(itertools.islice(lines, BATCH)):
        right = [one for _, one in part if not isinstance(one, ValueError)]
        wrong = {place: str(one) for place, (_, one) in enumerate(part) if isinstance(one, ValueError)}
        y = [label for _, label in right] if asked.labelled else None
        yield Batch([name for name, _ in part], [text for text, _ in right], y, wrong)


def decoded_line(line: bytes, path: Path, number: int) -> str:
    with reading(path, f"text in UTF-8, line {number}"):
        text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
    if "\0" in text:
        raise ValueError(f"{path} has a zero byte in line {number}, so it is not text in UTF-8; convert it")
    return text


READERS: dict[str, Callable[[io.BufferedReader, Asked], Inputs]] = {
    ".csv": open_csv,
    ".tsv": open_csv,
    ".jsonl": open_jsonl,
    ".txt": open_txt,
}
