"""Damage model files and inputs at random, run the command line on them, and judge: `python -m experiments.fuzz 2000`.

A run must end in one of two ways: one sentence and exit code 2, or the right answer. Right is, for a damaged model,
what the whole one says; for a damaged input, what the whole model says of it as a second, simple reader reads it.
"""

import csv
import hashlib
import io
import json
import math
import os
import pickle
import random
import shutil
import struct
import sys
import tempfile
import traceback
import zipfile
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from demur.classifier import Classifier
from demur.cli import main

WORDS = [
    "red",
    "green",
    "blue",
    "round",
    "square",
    "heavy",
    "light",
    "fast",
    "slow",
    "old",
    "new",
    "warm",
    "cold",
    "loud",
    "soft",
]
PARTS = ("manifest.json", "model.json", "posterior.safetensors")
Damage = Callable[[Path, random.Random], object]


# what is whole -------------------------------------------------------------------------------------------------------


def make_whole(folder: Path) -> None:
    """A small model of each kind as a folder and as a file, and inputs for each."""
    draw = np.random.default_rng(0)
    group = np.arange(150) % 3
    y = np.array(["a", "b", "c"])[group]
    rows = (draw.normal(size=(150, 3)) + 4 * group[:, None]).round(6)
    pixels = (draw.integers(0, 80, (150, 1, 12, 12)) + 80 * group[:, None, None, None]).astype(np.uint8)
    texts = [" ".join(draw.choice(WORDS[5 * kind :][:5], 6)) for kind in group]
    table = pa.table({f"c{column}": rows[:, column] for column in range(3)})
    for kind, x in {"rows": table, "pictures": pixels, "texts": texts}.items():
        model = Classifier("la+nc", epochs=3, device="cpu").fit(x, y)
        for name in (kind, f"{kind}.demur"):
            model.save(folder / name)
    with (folder / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [["c0", "c1", "c2", "label"], *([*row, of] for row, of in zip(rows[:30].tolist(), y[:30], strict=True))]
        )
    np.savez(folder / "rows.npz", x=rows[:30], y=y[:30])
    lines = (json.dumps({"text": text, "label": str(of)}) for text, of in zip(texts[:30], y[:30], strict=True))
    (folder / "texts.jsonl").write_text("\n".join(lines))
    (folder / "texts.txt").write_text("\n".join(texts[:30]))
    (folder / "pictures.d").mkdir()
    for number, suffix in enumerate(("png", "jpg", "webp", "bmp", "gif", "tiff", "pgm")):
        Image.fromarray(pixels[number, 0]).save(folder / "pictures.d" / f"{number}.{suffix}")


INPUTS = {
    "rows.csv": "rows",
    "rows.npz": "rows",
    "texts.jsonl": "texts",
    "texts.txt": "texts",
    "pictures.d": "pictures",
}


def read_simply(path: Path) -> tuple[list[str], object]:
    """Names and inputs, by other means than demur's."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        opened = [Image.open(file).convert("L").resize((12, 12), Image.Resampling.BILINEAR) for file in files]
        return [file.relative_to(path).as_posix() for file in files], np.stack([np.asarray(one) for one in opened])
    if path.suffix == ".npz":
        x = np.load(path)["x"]
        return [str(row + 1) for row in range(len(x))], pa.table({f"c{c}": x[:, c].astype(float) for c in range(3)})
    lines = path.read_bytes().decode("utf-8-sig").splitlines()
    if path.suffix == ".csv":
        delimiter = max(",;\t", key=lines[0].count)
        head, *rows = (row for row in csv.reader(lines, delimiter=delimiter, strict=True) if row)
        assert all(len(row) == len(head) for row in rows)
        columns = {name: [float(row[head.index(name)]) for row in rows] for name in ("c0", "c1", "c2")}
        return [str(number + 1) for number in range(len(rows))], pa.table(columns)
    numbered = [(str(number), line.strip()) for number, line in enumerate(lines, 1) if line.strip()]
    texts = [json.loads(line)["text"] if path.suffix == ".jsonl" else line for _, line in numbered]
    assert all(type(text) is str for text in texts)
    return [number for number, _ in numbered], texts


# damage to any file --------------------------------------------------------------------------------------------------


def rewritten(change: Callable[[bytes, random.Random], bytes]) -> Damage:
    """Damage to the content of a file, or of one file of a folder."""

    def damage(path: Path, rng: random.Random) -> None:
        file = rng.choice(sorted(path.rglob("*"))) if path.is_dir() else path
        file.write_bytes(change(file.read_bytes(), rng))

    return damage


def flipped(content: bytes, rng: random.Random, bits: int = 1) -> bytes:
    changed = bytearray(content)
    for _ in range(bits):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(content: bytes, rng: random.Random, paste: bytes = b"") -> bytes:
    start = rng.randrange(len(content))
    return content[:start] + paste + content[start + rng.randint(1, 40) :]


ANYWHERE: dict[str, Damage] = {
    "truncated": rewritten(lambda content, rng: content[: rng.randrange(len(content))]),
    "one bit flipped": rewritten(flipped),
    "many bits flipped": rewritten(lambda content, rng: flipped(content, rng, bits=50)),
    "bytes cut out": rewritten(cut),
    "bytes replaced": rewritten(lambda content, rng: cut(content, rng, rng.randbytes(20))),
    "bytes appended": rewritten(lambda content, rng: content + rng.randbytes(rng.randint(1, 100))),
    "zeros inside": rewritten(lambda content, rng: cut(content, rng, bytes(40))),
    "empty": rewritten(lambda content, rng: b""),
    "noise": rewritten(lambda content, rng: rng.randbytes(rng.randint(1, 5000))),
    "a pickle": rewritten(lambda content, rng: pickle.dumps(Evil())),
}


class Evil:
    """Leaves a file behind if it is unpickled."""

    def __reduce__(self) -> tuple:
        return (Path.touch, (Path(tempfile.gettempdir()) / f"demur-fuzz-{os.getpid()}",))


CANARY = Path(tempfile.gettempdir()) / f"demur-fuzz-{os.getpid()}"


# damage to models ----------------------------------------------------------------------------------------------------


def rehashed(change: Callable[[Path, random.Random], object]) -> Damage:
    """Damage to the parts of a folder, whose hashes are then made right again."""

    def damage(path: Path, rng: random.Random) -> None:
        change(path, rng)
        found = {name: (path / name).read_bytes() for name in PARTS[1:]}
        parts = {name: {"bytes": len(part), "sha256": hashlib.sha256(part).hexdigest()} for name, part in found.items()}
        manifest = json.loads((path / PARTS[0]).read_text()) | {"parts": parts}
        (path / PARTS[0]).write_text(json.dumps(manifest))

    return damage


def junk_in_json(path: Path, rng: random.Random) -> None:
    """Something of another kind in place of any value, however deep."""
    content = json.loads((path / PARTS[1]).read_text())
    places = []

    def walk(value: object) -> None:
        for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
            places.append((value, key))
            walk(value[key])  # type: ignore[index]

    walk(content)
    value, key = rng.choice(places)
    value[key] = rng.choice([None, [], {}, "x", -1, 10**30, 2**40, math.nan, 1e999, True, [[["x"]]], "\ud800"])
    (path / PARTS[1]).write_text(json.dumps(content))


def nan_weights(path: Path, rng: random.Random) -> None:
    with (path / PARTS[2]).open("rb") as file:
        about = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))["__metadata__"]
    tensors = load_file(path / PARTS[2])
    for tensor in tensors.values():
        tensor.view(-1)[rng.randrange(tensor.numel())] = rng.choice([math.nan, math.inf])
    save_file(tensors, path / PARTS[2], about)


def huge_header(path: Path, rng: random.Random) -> None:
    content = (path / PARTS[2]).read_bytes()
    (path / PARTS[2]).write_bytes(struct.pack("<Q", rng.choice([2**63, 2**40, len(content), 2**31])) + content[8:])


def huge_tensor(path: Path, rng: random.Random) -> None:
    header = {
        "w": {"dtype": "F32", "shape": [2**30, 2**30], "data_offsets": [0, 2**62]},
        "__metadata__": {"demur": "{}"},
    }
    packed = json.dumps(header).encode()
    (path / PARTS[2]).write_bytes(struct.pack("<Q", len(packed)) + packed)


def other_parts(path: Path, rng: random.Random) -> None:
    other = path.parent / "whole" / rng.choice(["rows", "pictures", "texts"])
    name = rng.choice(PARTS)
    shutil.copy(other / name, path / name)


def renamed_part(path: Path, rng: random.Random) -> None:
    part = path / rng.choice(PARTS)
    part.rename(path / rng.choice(["weights.pt", "model.pkl", PARTS[0].upper(), "x"]))


def linked_part(path: Path, rng: random.Random) -> None:
    part = path / rng.choice(PARTS)
    part.unlink()
    part.symlink_to("/etc/passwd")


FOLDERS: dict[str, Damage] = {
    "junk in JSON, hashes right": rehashed(junk_in_json),
    "NaN weights, hashes right": rehashed(nan_weights),
    "huge header, hashes right": rehashed(huge_header),
    "huge tensor, hashes right": rehashed(huge_tensor),
    "pickle as weights, hashes right": rehashed(lambda path, rng: (path / PARTS[2]).write_bytes(pickle.dumps(Evil()))),
    "deep JSON": lambda path, rng: (path / rng.choice(PARTS[:2])).write_text("[" * 10**5),
    "a part of another model": other_parts,
    "a part missing": lambda path, rng: (path / rng.choice(PARTS)).unlink(),
    "a part renamed": renamed_part,
    "a part linked": linked_part,
    "a part too many": lambda path, rng: (path / "extra.py").write_text("print(1)"),
    "later format": lambda path, rng: (path / PARTS[0]).write_text('{"demur": "9.0", "parts": {}}'),
}


def zipped_anew(path: Path, rng: random.Random, prefix: str = "", **options: int) -> None:
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, content in parts.items():
            archive.writestr(prefix + name, content)


def huge_sizes(path: Path, rng: random.Random) -> None:
    """The central directory says that a part is large."""
    content = path.read_bytes()
    place = content.index(b"PK\x01\x02")
    path.write_bytes(content[: place + 20] + struct.pack("<II", 2**32 - 2, 2**32 - 2) + content[place + 28 :])


ZIPS: dict[str, Damage] = {
    "zip slip": lambda path, rng: zipped_anew(path, rng, prefix=rng.choice(["../", "/tmp/", "a/../../", "C:\\"])),
    "compressed": lambda path, rng: zipped_anew(path, rng, compression=zipfile.ZIP_DEFLATED),
    "huge sizes": huge_sizes,
}


# damage to inputs ----------------------------------------------------------------------------------------------------


def cell(*values: str) -> Damage:
    def damage(path: Path, rng: random.Random) -> None:
        rows = list(csv.reader(path.read_text().splitlines()))
        rng.choice(rows[1:])[rng.randrange(3)] = rng.choice(values)
        path.write_text("\n".join(map(",".join, rows)))

    return damage


def columns(change: Callable[[list[list[str]], random.Random], object]) -> Damage:
    """Damage to a csv, turned on its side."""

    def damage(path: Path, rng: random.Random) -> None:
        turned = [list(column) for column in zip(*csv.reader(path.read_text().splitlines()), strict=True)]
        change(turned, rng)
        path.write_text("\n".join(map(",".join, zip(*turned, strict=True))))

    return damage


def ragged(path: Path, rng: random.Random) -> None:
    lines = path.read_text().splitlines()
    row = rng.randrange(1, len(lines))
    lines[row] = rng.choice([lines[row] + ",1", lines[row].rpartition(",")[0], lines[row].replace(",", ";", 1)])
    path.write_text("\n".join(lines))


def encoded(codec: str) -> Damage:
    return lambda path, rng: path.write_bytes((path.read_text() + "\n\u00e9").encode(codec))


def line(*values: str) -> Damage:
    def damage(path: Path, rng: random.Random) -> None:
        lines = path.read_text().splitlines()
        lines[rng.randrange(len(lines))] = rng.choice(values)
        path.write_text("\n".join(lines))

    return damage


def npz(**arrays: object) -> Damage:
    return lambda path, rng: np.savez(path, **{name: np.asarray(value) for name, value in arrays.items()})


def huge_array(path: Path, rng: random.Random) -> None:
    header = {"descr": "<f8", "fortran_order": False, "shape": (rng.choice([10**9, 10**13, 10**18]), 3)}
    written = io.BytesIO()
    np.lib.format.write_array_header_1_0(written, header)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", written.getvalue())


def picture(make: Callable[[random.Random], Image.Image], name: str = "new.png") -> Damage:
    return lambda path, rng: make(rng).save(path / name)


def huge_picture(path: Path, rng: random.Random) -> None:
    content = bytearray((path / "0.png").read_bytes())
    content[16:24] = struct.pack(">II", rng.choice([10**5, 2**31 - 1]), 10**5)
    content[29:33] = struct.pack(">I", __import__("zlib").crc32(content[12:29]))
    (path / "0.png").write_bytes(content)


SPECIAL: dict[str, dict[str, Damage]] = {
    "rows.csv": {
        "ragged": ragged,
        "no number": cell("", "NaN", "nan", "inf", "-inf", "NULL", "x", "1e999", "0x10", "1,5", "\u0661", "--1", "1 2"),
        "large number": cell("1e300", "-1e38", "9" * 400),
        "no UTF-8": encoded("latin-1"),
        "UTF-16": encoded("utf-16"),
        "byte order mark": lambda path, rng: path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes()),
        "column missing": columns(lambda turned, rng: turned.pop(rng.randrange(3))),
        "column twice": columns(lambda turned, rng: turned.append(turned[0])),
        "column renamed": columns(lambda turned, rng: turned[0].__setitem__(0, "c9")),
        "columns in another order": columns(lambda turned, rng: rng.shuffle(turned)),
        "a column of words": columns(lambda turned, rng: turned.insert(0, ["id", *("w" * len(turned[0][1:]))])),
        "no header": lambda path, rng: path.write_text("\n".join(path.read_text().splitlines()[1:])),
        "header alone": lambda path, rng: path.write_text("c0,c1,c2\n"),
        "semicolons": lambda path, rng: path.write_text(path.read_text().replace(",", ";")),
        "a long line": cell("1" * 3_000_000),
        "an open quote": cell('"1'),
    },
    "rows.npz": {
        "objects": npz(x=np.array([{1: 2}, Evil()], dtype=object)),
        "huge array": huge_array,
        "NaN": npz(x=[[1.0, 2.0, math.nan]]),
        "other columns": npz(x=np.zeros((3, 5))),
        "no rows": npz(x=np.zeros((0, 3))),
        "pictures": npz(x=np.zeros((3, 12, 12), np.uint8)),
        "complex": npz(x=np.zeros((3, 3), complex)),
        "no x": npz(z=np.zeros((3, 3))),
    },
    "texts.jsonl": {
        "no text": line('{"label": "a"}', '{"text": null}', '{"text": 3}', '{"text": ["a"]}'),
        "no object": line("[]", "3", "null", '"red"', "{", "}", "nonsense", "NaN"),
        "deep": line("[" * 10**5, '{"text": ' * 10**5),
        "a long number": line('{"text": ' + "9" * 5000 + "}"),
        "half a character": line('{"text": "\\ud800 red"}'),
        "no UTF-8": encoded("latin-1"),
        "UTF-16": encoded("utf-16"),
        "no words": line('{"text": ""}', '{"text": "!?"}'),
    },
    "texts.txt": {"no UTF-8": encoded("latin-1"), "UTF-16": encoded("utf-16"), "zero bytes": line("red\0green")},
    "pictures.d": {
        "one pixel": picture(lambda rng: Image.new("L", (1, 1), rng.randrange(256))),
        "a line": picture(lambda rng: Image.new("L", (1, 5000), 9)),
        "colours": picture(lambda rng: Image.new("RGB", (12, 12), "red")),
        "transparent": picture(lambda rng: Image.new("RGBA", (12, 12), (1, 2, 3, 4))),
        "palette": picture(lambda rng: Image.new("P", (12, 12), 3)),
        "16 bits": picture(lambda rng: Image.fromarray(np.full((12, 12), 40_000, np.uint16))),
        "floats": picture(lambda rng: Image.new("F", (12, 12), 0.5), "new.tiff"),
        "CMYK": picture(lambda rng: Image.new("CMYK", (12, 12)), "new.jpg"),
        "huge": huge_picture,
        "text": lambda path, rng: (path / "new.png").write_text("<svg/>"),
        "another kind's name": lambda path, rng: (path / "0.png").rename(path / "0.jpg"),
        "no pictures": lambda path, rng: [file.unlink() for file in path.iterdir()],
    },
}


def renamed_input(path: Path, rng: random.Random) -> None:
    path.rename(
        path.with_name("renamed" + rng.choice([".csv", ".jsonl", ".txt", ".npz", ".png", ".demur", ".pkl", ""]))
    )


# runs ----------------------------------------------------------------------------------------------------------------


def cases() -> list[tuple[str, str, str, Damage]]:
    """Every pair of something and a damage to it: (what is damaged, how, the input, the damage)."""
    found = []
    for name, kind in INPUTS.items():
        for how, damage in {**ANYWHERE, **SPECIAL[name], "renamed": renamed_input}.items():
            found.append((name, how, name, damage))
        if name == next(one for one, of in INPUTS.items() if of == kind):
            found += [("model folder", how, name, damage) for how, damage in (ANYWHERE | FOLDERS).items()]
            found += [("model file", how, name, damage) for how, damage in (ANYWHERE | ZIPS).items()]
    return found


def called(*arguments: object, printed: list[str] | None = None) -> tuple[int, str]:
    """The exit code of the command line and what it said on the error stream; a traceback has the code 1."""
    out, said = io.StringIO(), io.StringIO()
    command = ["demur", *map(str, arguments)]
    quiet = mock.patch("demur.cli.progress.FIRST_LINE", 1e6)  # however slow the machine
    with mock.patch.object(sys, "argv", command), quiet, redirect_stdout(out), redirect_stderr(said):
        try:
            main()
        except SystemExit as end:
            return int(end.code or 0), said.getvalue()
        except BaseException:
            return 1, traceback.format_exc()
        finally:
            if printed is not None:
                printed.append(out.getvalue())
    return 0, said.getvalue()


def run(whole: Path, folder: Path, case: tuple[str, str, str, Damage], rng: random.Random) -> tuple[str, str]:
    """`refused`, `right`, or what is wrong, and what was said."""
    what, how, name, damage = case
    kind = INPUTS[name]
    model = folder / (f"{kind}.demur" if what == "model file" else kind)
    (folder / "whole").symlink_to(whole)
    for path in (model, folder / name):
        source = whole / path.name
        shutil.copytree(source, path) if source.is_dir() else shutil.copy(source, path)
    damage(model if what.startswith("model") else folder / name, rng)
    given = next(path for path in folder.iterdir() if path not in (model, folder / "whole"))
    code, said = called("predict", model, given, "-o", folder / "out.csv", "--device", "cpu")
    if CANARY.exists():
        return "EXECUTED", said
    sentences = [one for one in said.splitlines() if not one.startswith("demur: note: ")]
    if code == 2 and len(sentences) == 1 and sentences[0].startswith("demur: ") and not (folder / "out.csv").exists():
        return "refused", said
    if code != 0:
        return "TRACEBACK", said
    if how == "junk in JSON, hashes right":  # with its hashes right it is another model, not a damaged one
        return ("right" if "nan" not in (folder / "out.csv").read_text() else "WRONG"), said
    return ("right" if same(folder / "out.csv", whole / kind, given) else "WRONG"), said


def same(out: Path, model: Path, given: Path) -> bool:
    try:
        names, x = read_simply(given)
        said = Classifier.load(model, device="cpu").predict_all(x)
    except Exception:  # what a simple reader cannot read has no right answer
        return False
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    numbers = [(float(row["probability"]), float(row["outlier_score"])) for row in rows]
    return (
        [row["input"] for row in rows] == names
        and [row["decision"] for row in rows] == said.decision.tolist()
        and [row["label"] for row in rows] == said.label.tolist()
        and np.allclose(numbers, np.stack([said.probability, said.outlier_score], 1), atol=1e-5, rtol=1e-4)
    )


def fuzz(count: int, seed: int = 0) -> tuple[dict[tuple[str, str], Counter[str]], list[str]]:
    """How many runs of each case ended how, and what the bad ones said; all cases come before any comes again."""
    ends: dict[tuple[str, str], Counter[str]] = {}
    bad = []
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole"
        whole.mkdir()
        make_whole(whole)
        every = cases()
        random.Random(seed).shuffle(every)
        for number in range(count):
            case = every[number % len(every)]
            with tempfile.TemporaryDirectory(dir=folder) as place:
                end, said = run(whole, Path(place), case, random.Random(f"{seed}/{number}"))
            ends.setdefault(case[:2], Counter())[end] += 1
            if end not in ("refused", "right"):
                bad.append(f"{number} {case[0]}, {case[1]}: {end}: {said[-1500:]}")
    return ends, bad


if __name__ == "__main__":
    torch.set_num_threads(1)
    ends, bad = fuzz(int(sys.argv[1]) if len(sys.argv) > 1 else 2000, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    kinds = ("refused", "right", "WRONG", "TRACEBACK", "EXECUTED")
    print(f"| damaged | how | {' | '.join(kinds)} |\n|{'---|' * (2 + len(kinds))}")
    for (what, how), counts in sorted(ends.items()):
        print(f"| {what} | {how} | {' | '.join(str(counts[kind]) for kind in kinds)} |")
    total = sum(ends.values(), Counter())
    print(f"| all | | {' | '.join(str(total[kind]) for kind in kinds)} |")
    for said in bad:
        print(said)
    sys.exit(bool(bad))
