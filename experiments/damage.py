"""Ways to damage models, inputs, results and packs; `experiments.fuzz` tries them all."""

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
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image
from safetensors.torch import load_file, save_file

PARTS = ("manifest.json", "model.json", "posterior.safetensors")
Damage = Callable[[Path, random.Random], object]


# damage to any file --------------------------------------------------------------------------------------------------


def rewritten(change: Callable[[bytes, random.Random], bytes]) -> Damage:
    """Damage to the content of a file, or of one file of a folder."""

    def damage(path: Path, rng: random.Random) -> None:
        files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
        file = rng.choice(files)
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
    other = path.parent / "whole" / rng.choice(["tables", "mixed", "images", "texts"])
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


def opened(path: Path, rng: random.Random) -> None:
    """A quote before any cell of a csv, its label's included, that is closed nowhere."""
    rows = path.read_text().splitlines()
    row = rng.randrange(1, len(rows))
    cells = rows[row].split(",")
    place = rng.randrange(len(cells))
    cells[place] = f'"{cells[place]}'
    rows[row] = ",".join(cells)
    path.write_text("\n".join([*rows, ""]))


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


def image(make: Callable[[random.Random], Image.Image], name: str = "new.png") -> Damage:
    return lambda path, rng: make(rng).save(path / name)


def huge_image(path: Path, rng: random.Random) -> None:
    content = bytearray((path / "0.png").read_bytes())
    content[16:24] = struct.pack(">II", rng.choice([10**5, 2**31 - 1]), 10**5)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
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
        "an open quote": opened,
    },
    "rows.npz": {
        "objects": npz(x=np.array([{1: 2}, Evil()], dtype=object)),
        "huge array": huge_array,
        "NaN": npz(x=[[1.0, 2.0, math.nan]]),
        "other columns": npz(x=np.zeros((3, 5))),
        "no rows": npz(x=np.zeros((0, 3))),
        "images": npz(x=np.zeros((3, 12, 12), np.uint8)),
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
    "images.d": {
        "one pixel": image(lambda rng: Image.new("L", (1, 1), rng.randrange(256))),
        "a line": image(lambda rng: Image.new("L", (1, 5000), 9)),
        "colours": image(lambda rng: Image.new("RGB", (12, 12), "red")),
        "transparent": image(lambda rng: Image.new("RGBA", (12, 12), (1, 2, 3, 4))),
        "palette": image(lambda rng: Image.new("P", (12, 12), 3)),
        "16 bits": image(lambda rng: Image.fromarray(np.full((12, 12), 40_000, np.uint16))),
        "floats": image(lambda rng: Image.new("F", (12, 12), 0.5), "new.tiff"),
        "CMYK": image(lambda rng: Image.new("CMYK", (12, 12)), "new.jpg"),
        "huge": huge_image,
        "text": lambda path, rng: (path / "new.png").write_text("<svg/>"),
        "another kind's name": lambda path, rng: (path / "0.png").rename(path / "0.jpg"),
        "no images": lambda path, rng: [file.unlink() for file in path.iterdir()],
    },
}


def renamed_input(path: Path, rng: random.Random) -> None:
    path.rename(
        path.with_name("renamed" + rng.choice([".csv", ".jsonl", ".txt", ".npz", ".png", ".demur", ".pkl", ""]))
    )


# damage to results ---------------------------------------------------------------------------------------------------


def changed_line(path: Path, rng: random.Random) -> None:
    file = rng.choice(sorted(path.glob("*.csv")))
    lines = file.read_text().splitlines()
    place = rng.randrange(len(lines))
    cells = lines[place].split(",")
    cells[rng.randrange(len(cells))] = rng.choice(["", "nan", "x", "1e999", "-1", "[]", '"', "../..", "mnist", "{}"])
    lines[place] = ",".join(cells)
    file.write_text("\n".join(lines) + "\n")


def lines_gone(path: Path, rng: random.Random) -> None:
    file = rng.choice(sorted(path.glob("*.csv")))
    lines = file.read_text().splitlines()
    del lines[rng.randrange(len(lines)) :]
    file.write_text("\n".join(lines))


def one_of(path: Path, rng: random.Random) -> Path:
    return rng.choice(sorted(folder for folder in path.iterdir() if folder.is_dir()))


def junk_record(path: Path, rng: random.Random) -> None:
    record = one_of(path, rng) / "cell.json"
    found = json.loads(record.read_text())
    found[rng.choice(sorted(found))] = rng.choice([None, [], {}, "x", -1, 10**30, [[["x"]]], {"a": 1}, "../x"])
    record.write_text(json.dumps(found))


def other_record(*contents: str) -> Damage:
    return lambda path, rng: (one_of(path, rng) / "cell.json").write_text(rng.choice(contents))


def repacked(change: Callable[[dict, dict, random.Random], object]) -> Damage:
    """Damage to the tensors and records of a pack, which is then written anew."""

    def damage(path: Path, rng: random.Random) -> None:
        with path.open("rb") as file:
            records = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))["__metadata__"]
        tensors = load_file(path)
        change(tensors, records, rng)
        save_file(tensors, path, records)

    return damage


def moved(tensors: dict, records: dict, rng: random.Random) -> None:
    """To a folder elsewhere."""
    new = rng.choice(["..", "../x", "", ".", "/tmp/demur-fuzz-x", "a/b", "\\x", "x\0y"])
    old = rng.choice(sorted(records))
    records[new] = records.pop(old)
    for key in [key for key in tensors if key.startswith(f"{old}/")]:
        tensors[new + key.removeprefix(old)] = tensors.pop(key)


def renamed_file(tensors: dict, records: dict, rng: random.Random) -> None:
    key = rng.choice(sorted(tensors))
    folder, _, name = key.split("/", 2)
    tensors[f"{folder}/{rng.choice(['../x.safetensors', 'x', '', 'cell.json', '..'])}/{name}"] = tensors.pop(key)


def junk_in_pack(tensors: dict, records: dict, rng: random.Random) -> None:
    name = rng.choice(sorted(records))
    records[name] = rng.choice(["", "{}", "[]", "null", "{", '{"sets": []}', '{"sets": ["../x"]}', "[" * 10**5])


RESULTS: dict[str, dict[str, Damage]] = {
    "runs.d": {
        "junk in a record": junk_record,
        "another record": other_record("", "[]", "{}", "null", "{", "[" * 10**5, '{"cells": [], "sets": []}'),
        "a file gone": lambda path, rng: rng.choice(sorted(one_of(path, rng).iterdir())).unlink(),
        "a record linked": lambda path, rng: (one_of(path, rng) / "new.json").symlink_to("/etc/passwd"),
    },
    "tables.d": {
        "a cell changed": changed_line,
        "lines gone": lines_gone,
        "a table gone": lambda path, rng: (path / rng.choice(["cells.csv", "results.csv"])).unlink(),
    },
    "pack.safetensors": {
        "moved elsewhere": repacked(moved),
        "a file renamed": repacked(renamed_file),
        "junk in a record": repacked(junk_in_pack),
        "a tensor gone": repacked(lambda tensors, records, rng: tensors.pop(rng.choice(sorted(tensors)))),
        "a record gone": repacked(lambda tensors, records, rng: records.pop(rng.choice(sorted(records)))),
    },
}

# damage to what is added to the store
INPUT: dict[str, dict[str, Damage]] = {
    "texts.csv": {
        "ragged": ragged,
        "an open quote": opened,
        "no UTF-8": encoded("latin-1"),
        "UTF-16": encoded("utf-16"),
        "no header": SPECIAL["rows.csv"]["no header"],
        "header alone": lambda path, rng: path.write_text("text,label\n"),
    },
    "texts.txt": SPECIAL["texts.txt"],
    "pixels.npz": {
        "objects": npz(x=np.array([{1: 2}, Evil()], dtype=object)),
        "huge array": huge_array,
        "tables": npz(x=np.zeros((3, 5), np.uint8)),
        "no images": npz(x=np.zeros((0, 4, 4), np.uint8)),
        "other labels": npz(x=np.zeros((3, 4, 4), np.uint8), y=[0.5, 1, 2]),
        "too few labels": npz(x=np.zeros((3, 4, 4), np.uint8), y=[1]),
        "no labels": npz(x=np.zeros((3, 4, 4), np.uint8)),
    },
    "classes.d": {
        name: (lambda damage: lambda path, rng: damage(one_of(path, rng), rng))(SPECIAL["images.d"][name])
        for name in ("one pixel", "colours", "transparent", "palette", "16 bits", "floats", "text")
    },
}
SPECIAL["classes.d"] = INPUT["classes.d"]
SPECIAL["mixed.csv"] = SPECIAL["rows.csv"] | {
    "odd names": cell("(unseen)", "(missing)", " Ulm ", "ulm", "\u0130", "True", "1.0", "2020-01-01", "x" * 100_000),
}
