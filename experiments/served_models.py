"""The models that load and faults are measured with: one of tables, one of images, one of texts.

    python -m experiments.served_models image models --data DATA

Wine (178 rows, from scikit-learn), Fashion-MNIST (the first 3,000 training images, LeNet for 32 pixels) and TREC with
its six coarse classes, all `la+nc` with seed 0. Beside each model lie inputs that it was not fitted to, one a line.
"""

import argparse
import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_wine

from demur.classifier import Classifier
from demur.data.store import Store

TRAINED = 3000  # images
ASKED = 200  # inputs to ask about
SIDE = 32  # pixels
EPOCHS = {"table": None, "image": 6, "text": 5}  # enough for answers that are mostly right

Data = tuple[Any, Any, Any, list[Any]]  # inputs, labels, outliers, and what to ask as JSON has it


def wine(_: Path | None) -> Data:
    x, y = load_wine(return_X_y=True, as_frame=True)
    names = np.array([f"class_{label}" for label in y])
    return x, names, None, x.to_dict("records")  # there are too few to leave some out


def fashion(root: Path | None) -> Data:
    store = stored(root)
    (train, y), (test, _) = store.images("fashion_mnist", "train"), store.images("fashion_mnist", "test")
    names = np.array(store.classes("fashion_mnist", "train"))
    x, asked = padded(train[:TRAINED]), padded(test[:ASKED])
    assert y is not None
    return x, names[y[:TRAINED].numpy()], None, [encoded(image) for image in asked]


def trec(root: Path | None) -> Data:
    store = stored(root)
    (train, y), (test, _) = store.texts("trec", "train"), store.texts("trec", "test")
    names = np.array([name.partition(":")[0] for name in store.classes("trec", "train")])
    outliers, _ = store.texts("wikitext2", "train")
    assert y is not None
    return train, names[y.numpy()], [text for text in outliers if len(text) > 20][:5000], test[:ASKED]


KINDS: dict[str, Callable[[Path | None], Data]] = {"table": wine, "image": fashion, "text": trec}


def stored(root: Path | None) -> Store:
    if root is None:
        raise SystemExit("this model is fitted to a data set; name the folder of data sets with --data")
    return Store(root, Path("build/decoded"))


def padded(images: torch.Tensor) -> np.ndarray:
    border = (SIDE - images.shape[-1]) // 2
    return torch.nn.functional.pad(images, (border,) * 4).numpy()


def encoded(image: np.ndarray) -> str:
    file = io.BytesIO()
    Image.fromarray(image[0]).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def prepared(kind: str, folder: Path, root: Path | None) -> tuple[Path, Path]:
    """The model and its inputs; fitted where they are not there yet."""
    model, inputs = folder / f"{kind}.demur", folder / f"{kind}.jsonl"
    if not (model.exists() and inputs.exists()):
        x, y, outliers, asked = KINDS[kind](root)
        folder.mkdir(parents=True, exist_ok=True)
        Classifier("la+nc", epochs=EPOCHS[kind], device="cpu").fit(x, y, outliers).save(model)
        inputs.write_text("".join(json.dumps(each) + "\n" for each in asked), "utf-8")
    return model, inputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path)
    given = parser.parse_args()
    print(*prepared(given.kind, given.folder, given.data))


if __name__ == "__main__":
    main()
