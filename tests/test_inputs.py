"""What people have, read a batch at a time: the same values whatever the format, or one sentence."""

import json
import os
import re
import struct
import threading
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

from demur.classifier.readers import BATCH, LARGEST, images, open_inputs, read_outliers
from demur.classifier.readers.images import read_image
from demur.classifier.readers.text_files import BLOCK
from demur.data.store import Store
from demur.tasks.images import fit_images


def written(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


ROWS = np.array([[1.5, -2.0], [3.0, 4e-3], [1e9 + 1, 7.0]])


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_csv_is_its_numbers(tmp_path, delimiter, ending, mark):
    lines = [("a", "b", "label"), *((repr(a), repr(b), of) for (a, b), of in zip(ROWS.tolist(), "xyx", strict=True))]
    path = written(tmp_path, "rows.csv", mark + ending.join(map(delimiter.join, lines)))
    given = open_inputs(path, labelled=True)
    read = given.gather()
    assert (given.kind, given.columns, read.names, read.y) == ("tables", ("a", "b"), ["1", "2", "3"], ["x", "y", "x"])
    assert isinstance(read.x, pa.Table)
    np.testing.assert_array_equal(np.asarray(read.x), ROWS)


def test_columns_are_found_by_name_and_others_are_left_alone(tmp_path):
    path = written(tmp_path, "rows.csv", "id,b,label,a\nfirst,2,x,1\nsecond,4,y,3\n")
    read = open_inputs(path, columns=("a", "b")).gather()
    np.testing.assert_array_equal(np.asarray(read.x), [[1, 2], [3, 4]])
    assert read.y is None


def test_a_long_csv_comes_in_parts_that_are_numbered_on(tmp_path):
    count = 300_000
    path = written(tmp_path, "rows.csv", "a,b\n" + "".join(f"{row},{row / 8}\n" for row in range(count)))
    batches = list(open_inputs(path).batches)
    assert len(batches) > 2
    assert [name for batch in batches for name in batch.names] == [str(row + 1) for row in range(count)]
    np.testing.assert_array_equal(
        np.concatenate([np.asarray(batch.x)[:, 1] for batch in batches]), np.arange(count) / 8
    )


def test_texts_are_the_same_from_every_format(tmp_path):
    texts = ["who, me?", 'a "quoted" one', "été"] * BATCH
    csv = "text,label\n" + "".join(f'"{text.replace(chr(34), chr(34) * 2)}",x\n' for text in texts)
    jsonl = "\n".join(json.dumps({"text": text, "label": "x"}) for text in texts)
    np.savez(tmp_path / "texts.npz", x=np.array(texts))
    paths = [
        written(tmp_path, "texts.csv", csv),
        written(tmp_path, "texts.jsonl", jsonl),
        written(tmp_path, "texts.txt", "\n".join(texts)),
        tmp_path / "texts.npz",
    ]
    for path in paths:
        given = open_inputs(path)
        assert given.kind == "texts"
        assert given.gather().x == texts
    for path in paths[:2]:
        assert set(open_inputs(path, labelled=True).gather().y) == {"x"}


def test_class_folders_are_images_and_labels(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 9, 7), dtype=np.uint8)
    for number, place in enumerate(("cat/1.png", "cat/2.bmp", "dog/deep/3.png", "dog/4.pgm")):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[number]).save(tmp_path / place)
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / "cat" / "._1.png").write_text("not one either")
    given = open_inputs(tmp_path, labelled=True)
    read = given.gather()
    assert given.shape == (1, 9, 7)
    assert read.names == ["cat/1.png", "cat/2.bmp", "dog/4.pgm", "dog/deep/3.png"]
    assert read.y == ["cat", "cat", "dog", "dog"]
    np.testing.assert_array_equal(read.x[:, 0], pixels[[0, 1, 3, 2]])
    one = open_inputs(tmp_path / "dog" / "4.pgm").gather()
    assert one.names == ["4.pgm"]
    np.testing.assert_array_equal(one.x[0, 0], pixels[3])


def test_images_are_brought_to_the_most_frequent_size_and_to_common_colours(tmp_path):
    ramp = np.linspace(0, 255, 40 * 20 * 3).reshape(40, 20, 3).astype(np.uint8)
    for name in ("a", "b"):
        Image.fromarray(ramp[..., 0]).save(tmp_path / f"{name}.png")
    Image.fromarray(ramp[:20]).save(tmp_path / "c.png")
    given = open_inputs(tmp_path)
    read = given.gather().x
    assert given.shape == (3, 40, 20)
    np.testing.assert_array_equal(read[0], np.repeat(ramp[None, ..., 0], 3, 0))  # grey in three channels
    # larger by Pillow and by torch, within rounding
    by_torch = fit_images(torch.from_numpy(ramp[:20]).permute(2, 0, 1)[None], torch.Size((3, 40, 20)))
    assert np.abs(read[2].astype(int) - by_torch[0].numpy()).max() <= 1
    assert open_inputs(tmp_path, size=(8, 6), channels=1).gather().x.shape == (3, 1, 8, 6)
    Image.new("L", (1000, 500)).save(tmp_path / "only.png")
    assert open_inputs(tmp_path / "only.png").shape == (1, LARGEST // 2, LARGEST)


def test_a_image_that_lies_on_its_side_is_turned(tmp_path):
    upright = np.arange(6 * 4, dtype=np.uint8).reshape(6, 4) * 10
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter, clockwise
    Image.fromarray(np.rot90(upright)).save(tmp_path / "a.png", exif=exif)
    given = open_inputs(tmp_path)
    assert given.shape == (1, 6, 4)
    np.testing.assert_array_equal(given.gather().x[0, 0], upright)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW", "NHW"])
def test_an_npz_of_images(tmp_path, layout):
    pixels = np.random.default_rng(0).integers(0, 256, (5, 8, 6, 1 if layout == "NHW" else 3), dtype=np.uint8)
    stored = {"NHWC": pixels, "NCHW": pixels.transpose(0, 3, 1, 2), "NHW": pixels[..., 0]}[layout]
    np.savez(tmp_path / "a.npz", x=stored, y=np.arange(5))
    read = open_inputs(tmp_path / "a.npz", labelled=True).gather()
    np.testing.assert_array_equal(read.x, pixels.transpose(0, 3, 1, 2))
    assert read.y == ["0", "1", "2", "3", "4"]


def test_outliers_are_a_path_a_data_set_or_a_name(tmp_path, data_root):
    rows = open_inputs(written(tmp_path, "in.csv", "a,b,label\n1,2,x\n3,4,y\n"), labelled=True)
    out = written(tmp_path, "out.csv", "b,label,a\n20,z,10\n")
    store = Store(data_root, tmp_path / "decoded")
    np.testing.assert_array_equal(np.asarray(read_outliers(str(out), rows, [], lambda: store)), [[10, 20]])
    assert read_outliers("columns+box", rows, [], lambda: store) == "columns+box"
    texts = open_inputs(written(tmp_path, "in.txt", "one two three\nfour five\n"))
    inliers = texts.gather().x
    drawn = read_outliers("wikitext2", texts, inliers, lambda: store)
    assert {len(text.split()) for text in drawn} == {2, 3}  # as long as the inliers
    with pytest.raises(
        ValueError,
        match=re.escape("unknown path, synthetic outliers or data set of texts 'wikitext3'; did you mean 'wikitext2'"),
    ):
        read_outliers("wikitext3", texts, inliers, lambda: store)
    with pytest.raises(ValueError, match="holds texts, the training data tables"):
        read_outliers(str(tmp_path / "in.txt"), rows, [], lambda: store)


PNG = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + struct.pack(">II", 10**5, 10**5) + b"\x08\0\0\0\0"


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", "", "its first line is empty"),
        ("a.csv", "a,b,label\r1,2,x\r", "its lines do not end in a line feed"),
        ("a.csv", "a,b,label\n", "Empty CSV file"),
        ("a.csv", "1,2,3\n4,5,6\n", "has no names of columns in its first line, but 1, 2, 3"),
        ("a.csv", "a,a,label\n1,2,x\n", "more than one column 'a'"),
        ("a.csv", "a,b,kind\n1,2,x\n", "no column label or class or target or y; name the label's with --label"),
        ("a.csv", "a,b,label\n1,2,x\n3,Paris,y\n", "has 'Paris' in column 'b', row 2, which is no number"),
        ("a.csv", "a,b,label\n1,2,x\n3,,y\n", "NaN or infinite cell in row 2, column 'b'"),
        ("a.csv", "a,b,label\n1,inf,x\n", "NaN or infinite cell in row 1, column 'b'"),
        ("a.csv", "a,b,label\n1,2,x\n3,4\n", "Expected 3 columns, got 2"),
        ("a.csv", "a,b,label\n1,2,\n", "no label in row 1"),
        ("a.csv", "a,b,label\n1,2,\xe9\n".encode("latin-1"), "invalid UTF8"),
        ("a.csv", "a,b,label\n1,2,x\n".encode("utf-16"), "cannot be read as csv in UTF-8"),
        ("a.jsonl", '{"text": "a", "label": "x"}\n{"text": "b"}\n', 'line 2 has "label" None'),
        ("a.jsonl", '{"text": 1, "label": "x"}', 'line 1 has no "text"'),
        ("a.jsonl", '{"text": "a", "label": "\\ud800"}', 'has "label"'),
        ("a.jsonl", "[" * 100_000, "cannot be read as JSON"),
        ("a.txt", "a\nb", "has no labels"),
        ("a.npz", b"PK", "cannot be read as npz"),
        ("a.png", b"", "cannot be read as an image"),
        ("a.png", PNG, "cannot be read as an image"),
        ("a.pkl", b"", "of no known kind"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_sentence(tmp_path, name, content, says):
    path = written(tmp_path, name, content)
    with pytest.raises(ValueError, match=re.escape(says)) as error:
        open_inputs(path.parent if name == "a.png" and not content else path, labelled=name != "a.png").gather()
    assert str(tmp_path) in str(error.value)


def test_names_that_are_numbers_are_known_from_the_model(tmp_path):
    path = written(tmp_path, "a.csv", "0,1\n4,5\n")
    with pytest.raises(ValueError, match="has no names of columns"):
        open_inputs(path)
    with pytest.raises(ValueError, match="has no names of columns"):
        open_inputs(path, columns=["1", "2"])
    assert np.asarray(open_inputs(path, columns=["1", "0"]).gather().x).tolist() == [[5, 4]]


def test_folders_without_classes_are_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no images"):
        open_inputs(tmp_path)
    for split in ("train", "test"):
        (tmp_path / split / "cat").mkdir(parents=True)
        Image.new("L", (4, 4)).save(tmp_path / split / "cat" / "1.png")
    with pytest.raises(ValueError, match="holds test and train, which are no classes"):
        open_inputs(tmp_path, labelled=True)
    Image.new("L", (4, 4)).save(tmp_path / "stray.png")
    with pytest.raises(ValueError, match=r"outside the class folders, stray.png"):
        open_inputs(tmp_path, labelled=True)


# what is unusual ----------------------------------------------------------------------------------------------------


def class_folders(path, names="ab"):
    for name in names:
        (path / name).mkdir(parents=True)
        Image.new("L", (8, 8), 9).save(path / name / "0.png")
    return path


def test_links_to_folders_and_files_are_followed(tmp_path):
    elsewhere, path = class_folders(tmp_path / "elsewhere", "cd"), class_folders(tmp_path / "here")
    (path / "c").symlink_to(elsewhere / "c")
    (path / "a" / "1.png").symlink_to(elsewhere / "d" / "0.png")
    (path / ".hidden").mkdir()
    Image.new("L", (8, 8), 9).save(path / ".hidden" / "0.png")
    read = open_inputs(path, labelled=True).gather()
    assert list(zip(read.names, read.y, strict=True)) == [
        ("a/0.png", "a"),
        ("a/1.png", "a"),
        ("b/0.png", "b"),
        ("c/0.png", "c"),
    ]


def test_links_in_a_circle_and_to_nothing_are_refused(tmp_path):
    round_about = class_folders(tmp_path / "circle")
    (round_about / "a" / "up").symlink_to(round_about)
    with pytest.raises(ValueError, match="up is a link to a folder that it lies in"):
        open_inputs(round_about)
    dangling = class_folders(tmp_path / "nothing")
    (dangling / "c").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="c is a link to nothing"):
        open_inputs(dangling, labelled=True)
    image = class_folders(tmp_path / "image")
    (image / "a" / "1.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(ValueError, match=r"1\.png cannot be read as an image"):
        open_inputs(image, labelled=True)


def test_a_folder_that_may_not_be_read_is_refused(tmp_path, monkeypatch):
    path, scandir = class_folders(tmp_path / "here"), os.scandir

    def forbidden(place):
        if str(place).endswith("b"):
            raise PermissionError(13, "Permission denied", str(place))
        return scandir(place)

    monkeypatch.setattr(os, "scandir", forbidden)
    with pytest.raises(ValueError, match=r"b cannot be read \(Permission denied\)"):
        open_inputs(path, labelled=True)


def test_a_folder_without_images_is_said_to_be_no_class(tmp_path):
    path = class_folders(tmp_path / "here")
    (path / "c").mkdir()
    with pytest.warns(UserWarning, match="c holds no images, so it is no class"):
        open_inputs(path, labelled=True)


@pytest.mark.parametrize("name", ["x.png", "x.tiff", "x.ppm"])
def test_colours_of_16_bits_are_refused(tmp_path, name):
    pixels = np.full((8, 8, 3), 40_000, np.uint16)
    if name == "x.png":
        rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
        chunks = [
            (b"IHDR", struct.pack(">IIBBBBB", 8, 8, 16, 2, 0, 0, 0)),
            (b"IDAT", zlib.compress(rows)),
            (b"IEND", b""),
        ]
        content = b"\x89PNG\r\n\x1a\n" + b"".join(
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
            for kind, body in chunks
        )
    elif name == "x.ppm":
        content = b"P6 8 8 65535\n" + pixels.astype(">u2").tobytes()
    else:
        entries = [(256, 3, 8), (257, 3, 8), (259, 3, 1), (262, 3, 2), (277, 3, 3), (278, 3, 8)]
        body = pixels.astype("<u2").tobytes()
        start = 8 + 2 + 12 * (len(entries) + 3) + 4
        tags = [struct.pack("<HHIHH", tag, kind, 1, value, 0) for tag, kind, value in entries]
        tags.append(struct.pack("<HHII", 258, 3, 3, start))
        tags.append(struct.pack("<HHII", 273, 4, 1, start + 6))
        tags.append(struct.pack("<HHII", 279, 4, 1, len(body)))
        content = b"II*\0" + struct.pack("<IH", 8, len(tags)) + b"".join(sorted(tags)) + bytes(4)
        content += struct.pack("<HHH", 16, 16, 16) + body
    path = written(tmp_path, name, content)
    with Image.open(path) as image:
        assert image.mode == "RGB"  # which is how they came through
    with pytest.raises(ValueError, match="its pixels are 16-bit RGB, not 8-bit grey or RGB; convert it"):
        open_inputs(path)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
@pytest.mark.parametrize("channels", [1, 3])
def test_what_is_transparent_shows_white(tmp_path, mode, channels):
    """Half of it opaque and dark, a quarter clear, a quarter half clear."""
    alpha = np.repeat([[255, 255, 0, 128]], 4, axis=0).astype(np.uint8)
    dark = np.full((4, 4), 40, np.uint8)
    image = Image.merge("RGBA", [*map(Image.fromarray, (dark, dark, dark, alpha))])
    if mode == "P":
        image = image.quantize(8, dither=Image.Dither.NONE)
    elif mode == "LA":
        image = image.convert("LA")
    image.save(tmp_path / "x.png")
    read = open_inputs(tmp_path / "x.png", channels=channels).gather().x
    half = round(40 * 128 / 255 + 255 * 127 / 255)
    expected = np.broadcast_to([40, 40, 255, half], (1, channels, 4, 4))
    np.testing.assert_allclose(read, expected, atol=2)


@pytest.mark.parametrize(
    ("mode", "name"), [("1", "x.png"), ("L", "x.jpg"), ("LA", "x.png"), ("P", "x.gif"), ("RGB", "x.jpg")]
)
def test_grey_and_colour_are_read_as_pillow_converts_them(tmp_path, mode, name):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)).convert(mode)
    image.save(tmp_path / name)
    with Image.open(tmp_path / name) as saved:
        expected = np.asarray(saved.convert("RGB")).transpose(2, 0, 1)
    np.testing.assert_array_equal(open_inputs(tmp_path / name, channels=3).gather().x[0], expected)


@pytest.mark.parametrize("name", ["x.jpg", "x.tiff"])
def test_colours_for_print_are_read_as_colours(tmp_path, name):
    """CMYK: no ink is white, and a lot of cyan has no red."""
    inks = np.zeros((8, 8, 4), np.uint8)
    inks[:, 4:, 0] = 255
    Image.fromarray(inks, "CMYK").save(tmp_path / name)
    given = open_inputs(tmp_path / name)
    red, green, blue = given.gather().x[0].astype(int)
    assert given.shape == (3, 8, 8)
    assert min(red[:, :3].min(), green.min(), blue.min()) > 245
    assert red[:, 5:].max() < 10


@pytest.mark.parametrize("mode", ["I;16", "I", "F"])
def test_grey_of_more_than_8_bits_is_refused_by_name(tmp_path, mode):
    Image.fromarray(np.full((8, 8), 40_000, {"I;16": np.uint16, "I": np.int32, "F": np.float32}[mode])).save(
        tmp_path / "x.tiff"
    )
    with pytest.raises(ValueError, match=rf"x\.tiff .*\(its pixels are (16-bit )?{mode}, not 8-bit"):
        open_inputs(tmp_path / "x.tiff")


def test_images_decoded_together_keep_their_order_and_the_first_that_is_damaged_is_named(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (60, 3, 16, 16), dtype=np.uint8)
    pixels[::2, :, :4] = 0  # which decode faster
    for number, image in enumerate(pixels):
        Image.fromarray(image.transpose(1, 2, 0)).resize((16 + 400 * (number % 3), 16)).save(
            tmp_path / f"{number:02d}.png"
        )
    shape = (3, 16, 16)
    files = sorted(tmp_path.iterdir())
    one_by_one = np.stack([read_image(file, shape) for file in files])
    np.testing.assert_array_equal(open_inputs(tmp_path, size=(16, 16)).gather().x, one_by_one)
    for number in (50, 7, 31):
        files[number].write_bytes(files[number].read_bytes()[:60])
    with pytest.raises(ValueError, match=r"07\.png cannot be read as an image"):
        open_inputs(tmp_path, size=(16, 16), channels=3).gather()
    (batch,) = open_inputs(tmp_path, size=(16, 16), channels=3, tolerant=True).batches
    assert [batch.names[place] for place in batch.wrong] == ["07.png", "31.png", "50.png"]
    np.testing.assert_array_equal(batch.x, np.delete(one_by_one, [7, 31, 50], axis=0))


def test_images_are_decoded_by_several_threads(tmp_path, monkeypatch):
    seen = set()
    together = threading.Barrier(2, timeout=20)

    def reading_together(file, shape, name=None):
        together.wait()  # nobody gets past it alone
        seen.add(threading.get_ident())
        return np.zeros(shape, np.uint8)

    monkeypatch.setattr(images, "read_image", reading_together)
    monkeypatch.setattr(images.os, "cpu_count", lambda: 2)
    images.decode([tmp_path] * 8, (3, 4, 4), ["x"] * 8)
    assert len(seen) == 2


def test_a_tsv_of_one_column_may_have_commas(tmp_path):
    path = written(tmp_path, "x.tsv", "text\nred, green, blue\none; two\n")
    assert open_inputs(path).gather().x == ["red, green, blue", "one; two"]
    columns = written(tmp_path, "y.TSV", "a,b\tlabel\n1\tx\n")
    assert open_inputs(columns, labelled=True).columns == ("a,b",)


@pytest.mark.parametrize("tolerant", [False, True])
def test_rows_longer_than_a_block_are_read(tmp_path, tolerant):
    texts = ["short", "x" * (BLOCK + 1), "short", "y" * (9 * BLOCK), "short"]
    path = written(tmp_path, "x.csv", "text,n\n" + "".join(f"{text},1\n" for text in texts))
    found = list(open_inputs(path, tolerant=tolerant).batches)
    assert [text for batch in found for text in batch.x] == texts
    assert [name for batch in found for name in batch.names] == ["1", "2", "3", "4", "5"]


def test_a_row_that_no_memory_should_hold_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("demur.classifier.readers.text_files.LONGEST", 4 * BLOCK)
    path = written(tmp_path, "x.csv", "text\n" + "x" * (2 * BLOCK) + "\n")
    with pytest.raises(ValueError, match="has a row of more than 1 MiB"):
        open_inputs(path)


def test_images_that_do_not_fit_into_memory_are_refused_unread(tmp_path):
    path = class_folders(tmp_path / "here")
    with pytest.raises(ValueError, match=r"2 images of 100000x100000 take [\d,]+ GiB .* give a smaller size"):
        open_inputs(path, labelled=True, size=(100_000, 100_000))
    array = tmp_path / "x.npz"
    np.savez(array, x=np.zeros((4, 8, 8), np.uint8), y=[0, 1, 0, 1])
    with pytest.raises(ValueError, match="give a smaller size"):
        open_inputs(array, labelled=True, size=(100_000, 100_000))


def test_a_csv_is_read_by_threads_that_need_no_python(tmp_path, monkeypatch):
    """Such a thread, still reading ahead when Python ends, would abort the process."""
    given, open_csv = [], pa.csv.open_csv
    monkeypatch.setattr(pa.csv, "open_csv", lambda file, *args: (given.append(file), open_csv(file, *args))[1])
    path = written(tmp_path, "x.csv", "a,b\n1,2\n")
    open_inputs(path).gather()
    with path.open("rb") as file:
        monkeypatch.setattr("sys.stdin", file)
        np.testing.assert_array_equal(np.asarray(open_inputs(Path("-")).gather().x), [[1, 2]])
    assert [type(file) for file in given] == [pa.OSFile, pa.BufferReader]


@pytest.mark.parametrize(
    "lines", [['"1,2', "3,4", "5,6"], ["1,2", '1,"2', "3,4"], ['"1,2', '3",4', "5,6"], ['1,"2', '3"', "4,5"]]
)
def test_an_open_quote_never_swallows_rows(tmp_path, lines):
    path = written(tmp_path, "x.csv", "\n".join(["a,b", "7,8", *lines, "9,10"]) + "\n")
    for tolerant in (False, True):
        with pytest.raises(ValueError, match=r"x\.csv"):
            list(open_inputs(path, tolerant=tolerant).batches)


@pytest.mark.parametrize("tolerant", [False, True])
@pytest.mark.parametrize(
    ("head", "rows", "line"),
    [
        ("a,b,c", ["1,2,x", '3,4,"x', "5,6,x", "7,8,x"], 3),  # up to the end of the file
        ("a,b,c", ["1,2,x", '3,4,"x', "5,6,x", '7,8,"x'], 3),  # up to the next, behind which the cell goes on
        ("c,a,b", ["x,1,2", '"x,3,4', 'y"z,5,6'], 3),
        ("text,c", ["red,x", 'green,"x', "blue,x"], 3),
        ("c,text", ["x,red", 'y,"green', "x,blue"], 3),
        ("c,text", ["x,red", 'y,"green', 'x,blue"', 'y,"white', "x,black"], 5),
    ],
)
def test_nor_in_a_column_that_is_not_asked_for_nor_in_the_last_text(tmp_path, head, rows, line, tolerant):
    path = written(tmp_path, "x.csv", "\r\n".join([head, *rows]) + "\r\n")
    with pytest.raises(ValueError, match=f"has a quote that is not closed, in line {line}; close it"):
        list(open_inputs(path, columns=() if "text" in head else ("a", "b"), tolerant=tolerant).batches)


def test_cells_of_several_lines_are_read_where_their_quotes_are_closed(tmp_path):
    long = f'"one\ntwo, ""three""\r\n{"x" * 200_000}"'  # longer than Python's own limit of a cell
    table = written(tmp_path, "x.csv", f"a,c\n1,{long}\n2,y\n")
    assert np.asarray(open_inputs(table, columns=("a",)).gather().x).tolist() == [[1], [2]]
    texts = written(tmp_path, "y.csv", f"text,c\n{long},{long}\nred,y\n")
    assert open_inputs(texts).gather().x == [long[1:-1].replace('""', '"'), "red"]


def test_a_ragged_row_that_is_no_text_is_refused_in_one_sentence(tmp_path, capfd):
    path = written(tmp_path, "x.csv", b"a,b\n1,2\n\xe9\n3,4\n")
    with pytest.raises(ValueError, match="Row #2: Expected 2 columns, got 1"):
        list(open_inputs(path, tolerant=True).batches)
    assert capfd.readouterr() == ("", "")
