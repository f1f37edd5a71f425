"""What the fuzz damages, whole: a small model of each kind, inputs for each, answers, reviews and a study's results."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from PIL import Image

from demur.classifier import Classifier, backbones
from demur.paper.grid import Cell
from demur.serving.answers import Answer
from demur.serving.keeping import Keeper
from demur.serving.review import Review
from demur.study.results import pack
from experiments.calling import called
from experiments.simple_readers import MIXED

TOWNS = ("Ulm", "Bonn", "Hof", "Kiel")
WORDS = "red green blue round square heavy light fast slow old new warm cold loud soft".split()  # noqa: SIM905
KINDS = {"rows.csv": "tables", "mixed.csv": "mixed", "rows.npz": "tables", "texts.jsonl": "texts", "texts.txt": "texts"}
KINDS |= {"images.d": "images", "classes.d": "images"}
OTHERS = {"others.csv": "rows.csv", "others.txt": "texts.jsonl", "others.d": "classes.d"}  # outliers, and of what
INPUTS = {"tables": "rows.csv", "mixed": "mixed.csv", "texts": "texts.jsonl", "images": "images.d"}  # of each model
INPUTS |= {"bert": "texts.jsonl", "vit": "images.d"}
PHOTOS = (3, 16, 16)  # what the image backbone takes


def make_whole(folder: Path) -> None:
    """A small model of each kind as a folder and as a file, inputs for each, and a study's results."""
    draw = np.random.default_rng(0)
    group = np.arange(150) % 3
    y = np.array(["a", "b", "c"])[group]
    rows = (draw.normal(size=(150, 3)) + 4 * group[:, None]).round(6)
    pixels = (draw.integers(0, 80, (150, 1, 12, 12)) + 80 * group[:, None, None, None]).astype(np.uint8)
    texts = [" ".join(draw.choice(WORDS[5 * kind :][:5], 6)) for kind in group]
    table = pa.table({f"c{column}": rows[:, column] for column in range(3)})
    towns = [str(draw.choice([TOWNS[kind], TOWNS[3], ""], p=[0.6, 0.3, 0.1])) for kind in group]
    sizes = [None if draw.random() < 0.1 else size for size in rows[:, 0].tolist()]
    mixed = pa.table({"size": sizes, "width": rows[:, 1], "town": [town or None for town in towns]})
    for kind, x in {"tables": table, "mixed": mixed, "images": pixels, "texts": texts}.items():
        model = Classifier("la+nc", epochs=3, device="cpu").fit(x, y)
        for name in (kind, f"{kind}.demur"):
            model.save(folder / name)
    make_backbones(folder)
    photos = np.resize(pixels, (150, 1, 16, 16)).repeat(3, 1)
    for name, backbone, x in (("bert", "hf.d", texts), ("vit", "vit.d", photos)):
        model = Classifier("la+nc", backbone=f"hf:{folder / backbone}", epochs=3, device="cpu").fit(x, y)
        model.save(folder / name)
        model.save(folder / f"{name}.demur")
    write_csv(
        folder / "rows.csv",
        ["c0", "c1", "c2", "label"],
        ([*r, of] for r, of in zip(rows.tolist()[:30], y[:30], strict=True)),
    )
    write_csv(
        folder / "mixed.csv",
        [*MIXED, "label"],
        zip(
            ["" if size is None else size for size in sizes[:60]],
            rows[:60, 1].tolist(),
            towns[:60],
            y[:60],
            strict=True,
        ),
    )
    write_csv(folder / "texts.csv", ["text", "label"], zip(texts[:30], y[:30], strict=True))
    np.savez(folder / "rows.npz", x=rows[:30], y=y[:30])
    np.savez(folder / "pixels.npz", x=pixels[:30, 0], y=group[:30])
    lines = (json.dumps({"text": text, "label": str(of)}) for text, of in zip(texts[:30], y[:30], strict=True))
    (folder / "texts.jsonl").write_text("\n".join(lines))
    (folder / "texts.txt").write_text("\n".join(texts[:30]))
    (folder / "images.d").mkdir()
    for number, suffix in enumerate(("png", "jpg", "webp", "bmp", "gif", "tiff", "pgm")):
        Image.fromarray(pixels[number, 0]).save(folder / "images.d" / f"{number}.{suffix}")
    for number in range(18):
        (folder / "classes.d" / y[number]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[number, 0]).save(folder / "classes.d" / y[number] / f"{number}.png")
    make_others(folder, rows, texts, pixels)
    make_answers(folder, rows)
    make_reviews(folder, rows, texts)
    make_results(folder)


def make_backbones(folder: Path) -> None:
    """A small encoder of texts, hf.d, and one of images, vit.d, as transformers keeps them."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    from tests.test_backbones import hf_folder

    hf_folder(folder / "vit.d")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = {word: place for place, word in enumerate([*special, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(words, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    torch.manual_seed(0)
    with backbones._quiet(transformers):
        config = transformers.BertConfig(vocab_size=len(words), max_position_embeddings=32, **sizes)
        transformers.BertModel(config).save_pretrained(folder / "hf.d")
        named = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
        fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named)
        fast.save_pretrained(folder / "hf.d")


def make_others(folder: Path, rows: np.ndarray, texts: list[str], pixels: np.ndarray) -> None:
    """Outliers of each kind, two inliers among them."""
    write_csv(folder / "others.csv", ["c0", "c1", "c2"], [*(rows[:20] * [1, -1, 1]).tolist(), *rows[:2].tolist()])
    (folder / "others.txt").write_text("\n".join([*(f"{text} often." for text in texts[::3]), *texts[:2]]))
    (folder / "others.d").mkdir()
    for number in range(8):
        image = pixels[number, 0] if number < 2 else pixels[number, 0].T // 2
        Image.fromarray(image).save(folder / "others.d" / f"{number}.png")


def make_answers(folder: Path, rows: np.ndarray) -> None:
    """What was answered to inliers and then to outliers, enough of which are an alarm."""
    write_csv(folder / "asked.csv", ["c0", "c1", "c2"], [*rows[:60].tolist(), *(rows[:40] * [1, -1, 1]).tolist()])
    code, said = called("predict", folder / "tables", folder / "asked.csv", "-o", folder / "answers.csv")
    assert code == 0, said
    (folder / "asked.csv").unlink()


def make_reviews(folder: Path, rows: np.ndarray, texts: list[str]) -> None:
    """Inputs that a server kept, most with a verdict."""
    tables = [dict(zip(("c0", "c1", "c2"), row, strict=True)) for row in (rows[:8] * [1, -1, 1]).tolist()]
    answer = Answer("unsure", "a", 0.5, {"a": 0.5, "b": 0.3, "c": 0.2}, 0.9, 0.8, None, 0.0, "", "")
    for kind, values in {"tables": tables, "texts": texts[:8]}.items():
        keeper = Keeper(folder / f"kept-{kind}.d")
        keeper.keep(kind, kind, values, [answer] * len(values))
        review = Review(folder / f"kept-{kind}.d")
        for id, verdict in zip(review.ids(), ("a", "a", "b", "new", "new", None, None), strict=False):
            review.judge(id, "class" if verdict else "junk", verdict)


def make_results(folder: Path) -> None:
    """Of a study: its folder, its tables and its pack."""
    from tests.test_report import make_result, write_runs

    write_runs([make_result(Cell("mnist", method)) for method in ("map", "la+nc")], folder / "runs.d")
    code, said = called("report", folder / "runs.d", "--out", folder / "tables.d", "--jobs", 1)
    assert code == 0, said
    for path in (folder / "tables.d").iterdir():
        if path.name not in ("results.csv", "cells.csv"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    (made,) = pack(folder / "runs.d", folder / "packs")
    shutil.move(made, folder / "pack.safetensors")
    shutil.rmtree(folder / "packs")


def write_csv(path: Path, head: list[str], rows: object) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])  # type: ignore[misc]
