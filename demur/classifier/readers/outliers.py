"""Outliers to train with."""

from collections.abc import Callable
from pathlib import Path

import torch

from demur.classifier.readers.base import Inputs, X
from demur.classifier.readers.opening import open_inputs
from demur.data.catalogue import CATALOGUE
from demur.data.store import Store
from demur.names import choose
from demur.outliers.synthetic import SYNTHETIC
from demur.outliers.values import Synthetic, leaves, parse
from demur.streams import generator_for
from demur.tasks.images import to_train_with
from demur.tasks.text import cut_pieces, normalise

OUTLIERS = 50_000  # at most, of a data set of the store
STORED = {"images": "images", "texts": "text"}  # what the catalogue calls them


def read_outliers(named: str, inputs: Inputs, inliers: X, store: Callable[[], Store]) -> str | X:
    """What lies at a path, without its labels; a data set of the store, opened if need be; synthetic ones, by name.

    Texts of the store are cut into pieces as long as the inliers, of whose length they would otherwise be known; of
    larger images half are cropped and half resized.
    """
    if Path(named).exists():
        return open_like(Path(named), inputs).gather().x
    if all(isinstance(leaf, Synthetic) for leaf in leaves(parse(named))):
        return named
    check_is_no_path(named)
    opened = store()
    check_stored(named, inputs.kind, opened)
    if inputs.kind == "images":
        assert inputs.shape
        images, _ = opened.images(named, "train")
        few = images[torch.randperm(len(images), generator=generator_for("outliers"))[:OUTLIERS]]
        return to_train_with(few, torch.Size(inputs.shape)).epoch(generator_for("outliers")).numpy()
    words = [word for text in opened.texts(named, "train")[0] for word in normalise(text)]
    lengths = torch.tensor([max(1, len(normalise(text))) for text in inliers])
    return [" ".join(piece) for piece in cut_pieces(words, lengths, generator_for("outliers"))[:OUTLIERS]]


def open_like(path: Path, inputs: Inputs) -> Inputs:
    """Outliers at a path, with the columns or the size of the images that the inliers have."""
    size, channels = (inputs.shape[1:], inputs.shape[0]) if inputs.shape else (None, None)
    given = open_inputs(path, columns=inputs.columns, size=size, channels=channels, mixed=inputs.mixed)
    if given.kind != inputs.kind:
        raise ValueError(f"{path} holds {given.kind}, the training data {inputs.kind}; give outliers of that kind")
    return given


def check_is_no_path(named: str) -> None:
    """Refuse what looks like the path of a file, where there is none."""
    if "/" in named or Path(named).suffix:
        raise ValueError(f"{named} does not exist; give outliers' path, a data set or the name of synthetic ones")


def check_stored(name: str, kind: str, store: Store) -> None:
    """Refuse a data set that the store does not have, or that is of another kind; the error names the nearest."""
    if kind == "tables" or not store.has(name, "train"):
        known = [each for each, data in CATALOGUE.items() if data.kind == STORED.get(kind)]
        what = f"path, synthetic outliers or data set of {kind}"
        choose(dict.fromkeys([*SYNTHETIC[kind], *known]), name, what)
