"""Ways to damage what a model in use leaves behind, and what one is begun with: answers, reviews, backbones."""

import json
import pickle
import random
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from experiments.damage import CANARY, SPECIAL, Damage, Evil, cell, encoded, ragged

ROWS = SPECIAL["rows.csv"]
JUNK = (None, [], {}, "x", -1, 10**30, 1e999, True, [[["x"]]], {"a": 1}, {"a": "b"}, "\ud800", "unsure", "a" * 300)


def answered(*values: str) -> Damage:
    """Something else in place of a cell of any column."""

    def damage(path: Path, rng: random.Random) -> None:
        lines = [line.split(",") for line in path.read_text().splitlines()]
        row = rng.choice(lines[1:])
        row[rng.randrange(len(row))] = rng.choice(values)
        path.write_text("\n".join(map(",".join, lines)))

    return damage


ANSWERS: dict[str, Damage] = {
    "a cell changed": answered("", "nan", "inf", "-inf", "1e999", "x", "a", "b", "unsure", "unknown", "invalid", '"'),
    "first cells changed": cell("", "a", "unsure", "invalid"),
    "ragged": ragged,
    "no header": ROWS["no header"],
    "header alone": lambda path, rng: path.write_text(path.read_text().partition("\n")[0]),
    "a column renamed": lambda path, rng: path.write_text(
        path.read_text().replace(rng.choice(["label", "decision", "outlier_score"]), "c9", 1)
    ),
    "no UTF-8": encoded("latin-1"),
    "UTF-16": encoded("utf-16"),
    "byte order mark": ROWS["byte order mark"],
    "semicolons": ROWS["semicolons"],
    "a long line": cell("1" * 3_000_000),
    "an open quote": ROWS["an open quote"],
}


# reviews ------------------------------------------------------------------------------------------------------------


def changed_record(change: Callable[[dict, random.Random], object]) -> Damage:
    def damage(path: Path, rng: random.Random) -> None:
        file = rng.choice(sorted(path.glob("reviewed-*.json")))
        record = json.loads(file.read_text())
        change(record, rng)
        file.write_text(json.dumps(record))

    return damage


def junk(record: dict, rng: random.Random) -> None:
    record[rng.choice(sorted(record))] = rng.choice(JUNK)


def junk_input(record: dict, rng: random.Random) -> None:
    if isinstance(record["input"], dict):
        record["input"][rng.choice(sorted(record["input"]))] = rng.choice(JUNK)
    else:
        record["input"] = rng.choice(JUNK)


def linked_record(path: Path, rng: random.Random) -> None:
    file = rng.choice(sorted(path.iterdir()))
    file.unlink()
    file.symlink_to(rng.choice(["/etc/passwd", "/nowhere", path]))


def into_folder(path: Path, rng: random.Random) -> None:
    file = rng.choice(sorted(path.iterdir()))
    file.unlink()
    file.mkdir()


def renamed_record(path: Path, rng: random.Random) -> None:
    file = rng.choice(sorted(path.iterdir()))
    file.rename(path / rng.choice(["reviewed-1.json", "x.json", "reviewed-.json", f"{file.name}.part", "new\n.json"]))


KEPT: dict[str, Damage] = {
    "junk in a record": changed_record(junk),
    "junk in an input": changed_record(junk_input),
    "a key gone": changed_record(lambda record, rng: record.pop(rng.choice(sorted(record)))),
    "another model": changed_record(lambda record, rng: record.update(model="another")),
    "another kind": changed_record(lambda record, rng: record.update(kind="images")),
    "a record linked": linked_record,
    "a folder for a record": into_folder,
    "a record renamed": renamed_record,
    "a record gone": lambda path, rng: rng.choice(sorted(path.iterdir())).unlink(),
    "deep": lambda path, rng: rng.choice(sorted(path.iterdir())).write_text("[" * 10**5),
    "no records": lambda path, rng: [file.unlink() for file in path.iterdir()],
}


# backbones ----------------------------------------------------------------------------------------------------------


def changed_settings(path: Path, rng: random.Random) -> None:
    file = path / rng.choice(["config.json", "config.json", "tokenizer_config.json", "tokenizer.json"])
    settings = json.loads(file.read_text())
    settings[rng.choice(sorted(settings))] = rng.choice([*JUNK[:9], 2**40, 0.5, "bert", "vit"])
    file.write_text(json.dumps(settings))


def other_code(path: Path, rng: random.Random) -> None:
    """Code of its own, which would leave a file behind."""
    settings = json.loads((path / "config.json").read_text())
    settings |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config", "AutoModel": "mine.Model"}}
    (path / "config.json").write_text(json.dumps(settings))
    (path / "mine.py").write_text(f"open({str(CANARY)!r}, 'w').close()\n")


def pickled_weights(path: Path, rng: random.Random) -> None:
    (path / "model.safetensors").unlink()
    (path / "pytorch_model.bin").write_bytes(pickle.dumps(Evil()))


def changed_weights(change: Callable[[dict, random.Random], object]) -> Damage:
    def damage(path: Path, rng: random.Random) -> None:
        tensors = load_file(path / "model.safetensors")
        change(tensors, rng)
        save_file(tensors, path / "model.safetensors", {"format": "pt"})

    return damage


BACKBONES: dict[str, Damage] = {
    "junk in its settings": changed_settings,
    "code of its own": other_code,
    "pickled weights": pickled_weights,
    "NaN weights": changed_weights(lambda tensors, rng: tensors[rng.choice(sorted(tensors))].fill_(torch.nan)),
    "a tensor gone": changed_weights(lambda tensors, rng: tensors.pop(rng.choice(sorted(tensors)))),
    "another shape": changed_weights(
        lambda tensors, rng: tensors.update({rng.choice(sorted(tensors)): torch.zeros(rng.choice([(3,), (2, 2)]))})
    ),
    "a file gone": lambda path, rng: rng.choice(sorted(path.iterdir())).unlink(),
    "no files": lambda path, rng: [file.unlink() for file in path.iterdir()],
}
