"""Whatever is written reads back the same, and what was damaged is refused or says what is still there."""

import csv
import json
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

import demur
from demur.classifier.model_file import PARTS
from demur.classifier.readers import open_inputs
from experiments.simple_readers import read_simply

alike = settings(max_examples=40, derandomize=True, deadline=None, database=None)

# no halves of characters, which are no UTF-8, and no control characters
words = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)
labels = words.filter(lambda word: word.strip() == word)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=30)
numbers = st.floats(allow_nan=False, allow_infinity=False)


@contextmanager
def new_file(name: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / name


def write_csv(path: Path, rows: list[list[Any]], delimiter: str = ",") -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)


@alike
@given(st.data(), st.sampled_from(",;\t"))
def test_rows_of_a_csv_read_back_to_the_last_bit(data: st.DataObject, delimiter: str):
    columns = data.draw(
        st.lists(
            words.filter(lambda name: name not in ("text", "y", "class", "label", "target")).filter(
                lambda name: not set(name) & set(",;\t")
            ),
            min_size=2,
            max_size=4,
            unique=True,
        )
    )
    rows = data.draw(st.lists(st.tuples(*[numbers] * len(columns), labels), min_size=1, max_size=5))
    with new_file("rows.csv") as path:
        write_csv(path, [[*columns, "label"], *rows], delimiter)
        found = open_inputs(path, labelled=True)
        assert found.columns == tuple(columns)
        read = found.gather()
    assert np.asarray(read.x).tolist() == [list(row[:-1]) for row in rows]
    assert read.y == [row[-1] for row in rows]


@alike
@given(st.lists(st.tuples(texts, labels), min_size=1, max_size=5))
def test_texts_of_a_csv_read_back(rows: list[tuple[str, str]]):
    with new_file("texts.csv") as path:
        write_csv(path, [["text", "label"], *map(list, rows)])
        read = open_inputs(path, labelled=True).gather()
    assert list(zip(read.x, read.y or (), strict=True)) == rows


@alike
@given(st.lists(st.tuples(texts, labels.filter(str.isprintable) | st.integers()), min_size=1, max_size=5))
def test_texts_of_a_jsonl_read_back(rows: list[tuple[str, str | int]]):
    with new_file("texts.jsonl") as path:
        lines = [json.dumps({"text": text, "label": label}, ensure_ascii=len(text) % 2 == 0) for text, label in rows]
        path.write_text("\n".join(lines), "utf-8", newline="\n")
        read = open_inputs(path, labelled=True).gather()
    assert list(zip(read.x, read.y or (), strict=True)) == [(text, str(label)) for text, label in rows]


@alike
@given(st.lists(words, min_size=1, max_size=5))
def test_lines_of_a_txt_read_back(lines: list[str]):
    kept = {str(number): line.strip() for number, line in enumerate(lines, 1) if line.strip()}
    assume(kept and not lines[0].startswith("\ufeff"))
    with new_file("texts.txt") as path:
        path.write_text("\n".join(lines), "utf-8", newline="\n")
        read = open_inputs(path).gather()
    assert dict(zip(read.names, read.x, strict=True)) == kept


@alike
@given(st.data())
def test_arrays_of_an_npz_read_back(data: st.DataObject):
    count, sides = data.draw(st.integers(1, 4)), st.integers(1, 6)
    images = arrays.arrays(np.uint8, st.tuples(st.just(count), sides, sides))
    tables = arrays.arrays(np.float64, st.tuples(st.just(count), sides), elements=numbers)
    x = data.draw(images | tables)
    y = data.draw(arrays.arrays(np.int64, count) | arrays.arrays("U8", count, elements=labels))
    with new_file("inputs.npz") as path:
        np.savez(path, x=x, y=y)
        read = open_inputs(path, labelled=True).gather()
    assert np.array_equal(np.asarray(read.x).reshape(x.shape), x)
    assert read.y == [str(label) for label in y.tolist()]


folders = st.text(st.characters(categories=["L", "N"], exclude_characters="/"), min_size=1, max_size=6)


@alike
@given(
    st.dictionaries(folders, st.lists(arrays.arrays(np.uint8, (5, 7)), min_size=1, max_size=3), min_size=2, max_size=3)
)
def test_a_folder_of_images_reads_back(classes: dict[str, list[np.ndarray]]):
    assume(not all(name.lower() in ("train", "test", "val", "validation") for name in classes))
    with new_file("images") as path:
        for name, images in classes.items():
            (path / name).mkdir(parents=True)
            for number, image in enumerate(images):
                Image.fromarray(image).save(path / name / f"{number}.png")
        read = open_inputs(path, labelled=True).gather()
    found = dict(zip(read.names, zip(np.asarray(read.x)[:, 0].tolist(), read.y or (), strict=True), strict=True))
    assert found == {
        f"{name}/{number}.png": (image.tolist(), name)
        for name, images in classes.items()
        for number, image in enumerate(images)
    }


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """With a piece of it, which may be empty, replaced by other bytes."""
    start = draw(st.integers(0, len(content) - 1))
    end = min(len(content), start + draw(st.integers(0, 8)))
    instead = draw(st.binary(max_size=4) | st.sampled_from([b"\n", b'"', b",", b"e", b"\xff", b"-"]))
    return content[:start] + instead + content[end:]


FILES = {
    "rows.csv": b'c0,c1,c2,label\n1,2.5,3,a\n-1e3,0,"7",b\n0.125,4,5,"b c"\n',
    "texts.jsonl": '{"text": "red and round", "label": "a"}\n{"text": "grün", "label": 3}\n'.encode(),
    "texts.txt": "red\nround and grün\n\nblue\n".encode(),
}


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_refused_or_says_what_another_reader_reads_in_it(name: str):
    labelled, refused = name != "texts.txt", 0

    @settings(alike, max_examples=200)
    @given(damaged(FILES[name]))
    def check(mutated: bytes) -> None:
        nonlocal refused
        with new_file(name) as path:
            path.write_bytes(mutated)
            try:
                read = open_inputs(path, labelled=labelled).gather()
            except ValueError:
                refused += 1
                return
            other = read_simply(path, taken=None)
        assert (read.names, read.y or other.y) == (other.names, other.y)
        assert not other.wrong
        assert np.array_equal(np.asarray(read.x), np.asarray(other.x))

    check()
    assert refused


# the model file ------------------------------------------------------------------------------------------------------


def fitted(method: str, y: np.ndarray, x: Any, **options: Any) -> demur.Classifier:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of how little can be learned from this
        return demur.Classifier(method, epochs=1, device="cpu", **options).fit(x, y)


def said(model: demur.Classifier, x: Any) -> list[list[Any]]:
    found = model.predict_all(x)
    return [part.tolist() for part in (found.decision, found.label, found.probability, found.outlier_score)]


labellings = st.sampled_from(
    [np.array([3, -1, 7]), np.array([False, True]), np.array(["a", "b ", "ü"]), np.array([0.0, 2.0])]
)


@settings(alike, max_examples=20)
@given(
    st.sampled_from(["map", "map+nc", "la+sl", "la+nc", "vb+ml", "de+oe", "flipout+nc", "csghmc+nc"]),
    labellings,
    st.sampled_from(["model", "model.demur"]),
    st.floats(0.5, 0.99),
    st.booleans(),
    arrays.arrays(np.float64, (40, 2), elements=st.floats(-1e9, 1e9)),
)
def test_whatever_is_fitted_answers_the_same_when_it_is_read(
    method: str, classes: np.ndarray, name: str, coverage: float, by_class: bool, x: np.ndarray
):
    y = classes[np.arange(40) % len(classes)]
    model = fitted(method, y, x, coverage=coverage, by_class=by_class)
    with new_file(name) as path:
        model.save(path)
        read = demur.load_model(path, device="cpu")
    assert said(read, x) == said(model, x)
    assert read.classes_.dtype == model.classes_.dtype
    assert {**read.get_params(), "network": None} == {**model.get_params(), "network": None}


NAMES = ("model.demur", "model/manifest.json", *(f"model/{part}" for part in PARTS))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds one model in both forms."""
    x, place = np.random.default_rng(0).normal(size=(60, 2)), tmp_path_factory.mktemp("saved")
    model = fitted("la+nc", np.where(x[:, 0] > 0, "a", "b"), x)
    for name in ("model", "model.demur"):
        model.save(place / name)
    return place


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_model_is_refused_or_answers_as_it_did(saved: Path, name: str):
    x = np.random.default_rng(1).normal(size=(5, 2))
    whole, refused = said(demur.load_model(saved / "model", device="cpu"), x), 0

    @settings(alike, max_examples=50)
    @given(damaged((saved / name).read_bytes()))
    def check(mutated: bytes) -> None:
        nonlocal refused
        with new_file("copy") as folder:
            shutil.copytree(saved, folder)
            (folder / name).write_bytes(mutated)
            try:
                assert said(demur.load_model(folder / Path(name).parts[0], device="cpu"), x) == whole
            except ValueError:
                refused += 1

    check()
    assert refused


def test_a_quote_that_is_not_closed_hides_no_rows():
    """The rows up to the next quote would be part of a label, and gone without a word."""
    with new_file("rows.csv") as path:
        path.write_text('c0,c1,label\n1,2,"a\n3,4,b\n5,6,"a\n', "utf-8")
        with pytest.raises(ValueError, match="label of several lines in row 1; is a quote not closed"):
            open_inputs(path, labelled=True).gather()
