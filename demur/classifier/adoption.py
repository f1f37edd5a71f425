"""A network that is trained already, taught what it does not know."""

import warnings
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from demur.classifier.adopting import Adopting
from demur.classifier.backbones import Backbone
from demur.classifier.builders import builder
from demur.classifier.estimator import Classifier
from demur.classifier.heads import Started, find_head, layer_named, take_off
from demur.classifier.kinds import Ready, as_tensor
from demur.classifier.labels import validate_labels
from demur.likelihoods import plain
from demur.methods import parse_method
from demur.metrics import accuracy
from demur.outliers.values import Shown
from demur.posterior import Point
from demur.predictive import predict

ADOPTING = ("map", "la")  # the inferences that go on from given weights; the others start anew
BATCHES = ("pixel_values", "input_ids", "x")  # what transformers calls the inputs of a batch


def adopt(
    model: nn.Module,
    X: Any,
    y: Any = None,
    outliers: Any = None,
    *,
    method: str = "la+nc",
    classes: Sequence[Any] | None = None,
    head: str | None = None,
    tune: str = "head",
    synthetic: str | Shown | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    coverage: float = 0.95,
    abstain_by: str | None = None,
    validation: float = 0.1,
    device: str = "auto",
    random_state: int | np.random.RandomState | None = 0,
) -> Classifier:
    """A classifier that goes on from a trained network: trained on with outliers, Laplace, a calibrated threshold.

    X are inputs as the model takes them: float arrays, uint8 images (scaled to [0, 1]) or token numbers, 0 being
    padding; or a `DataLoader` of batches (x, y), and then no y. Outliers are given alike. Best are inliers that the
    model was not trained with: on its own training data thresholds come out too strict.

    `classes` are the labels in the order of the model's outputs, None for an output to leave out; by default the sorted
    labels of y. `head` names the last affine layer, which is otherwise found; it gets one more output if the method has
    a none class. `tune` says what is trained: the `head` alone, on features that are computed once; the `last` blocks
    with it; or `all`. How long and how fast a head is trained is chosen by validation data, of what was trained with a
    quarter, unless `epochs` and `lr` say; it is not at all where that would cost accuracy. `epochs=0` leaves the
    weights as they are. `abstain_by` names another score to abstain by, such as `energy` or `knn`.

    `report_` has the accuracy of the model as it came, `original_accuracy`, on the same held-out inputs as `accuracy`,
    the fraction of held-out outliers that is abstained on, `outliers_abstained`, and what was tried, `choice`. The
    model itself stays as it is. A saved classifier is loaded with `load_model(path, backbone=model)`.
    """
    parsed = parse_method(method)
    if not isinstance(model, nn.Module):
        raise ValueError(f"model is a {type(model).__name__}; give a network, an nn.Module")
    if isinstance(epochs, int | float) and epochs < 0:
        raise ValueError(f"epochs {epochs} is negative; give 0 or more, or None to have them chosen")
    tune = "head" if epochs == 0 else tune  # nothing is trained, and Laplace is over the head
    if parsed.inference_name not in ADOPTING:
        raise ValueError(f"method {method!r} starts from fresh weights; to adopt a network choose 'la+nc' or 'map+nc'")
    if isinstance(X, DataLoader):
        if y is not None:
            raise ValueError("X is a DataLoader, whose batches have the labels; leave out y")
        X, y = gather_batches(X, "X")
        if y is None:
            raise ValueError("X is a DataLoader whose batches have no labels; give batches (x, y)")
    outliers = gather_batches(outliers, "outliers")[0] if isinstance(outliers, DataLoader) else outliers
    y = validate_labels(y, len(X))
    X = as_tensor(X, "X")
    inputs = Ready.of(X)
    few = inputs.read(X[:2])
    name = find_head(model, few) if head is None else head
    outputs, labels = match_outputs(classes, y, layer_named(model, name).out_features)
    trunk, old = take_off(model, name, outputs, few)
    backbone = Backbone(type(model).__name__, trunk, inputs, head=name)
    start = Started(old) if tune == "head" else Started(old, trunk, last=tune == "last")
    adopting = Adopting(parsed.inference, epochs, lr)
    classifier = Classifier(
        replace(parsed, inference=adopting) if tune == "head" else method,
        start,
        backbone=backbone,
        tune=tune,
        kind="ready",
        synthetic=synthetic,
        coverage=coverage,
        abstain_by=abstain_by,
        epochs=epochs or None,
        batch_size=batch_size,
        lr=lr,
        validation=validation,
        device=device,
        random_state=random_state,
    ).fit(X, y, outliers)
    if tune == "head":
        classifier.network_ = builder("linear", "tables", (old.in_features,))  # which a model file can name
        classifier.report_ |= adopting.to_json()
    held_out, codes = X[classifier.held_out_], torch.from_numpy(np.searchsorted(labels, y[classifier.held_out_]))
    original = Point(nn.Sequential(deepcopy(trunk), old).eval())
    classifier.report_["original_accuracy"] = before = accuracy(
        predict(original, plain(len(labels)), inputs.read(held_out)), codes
    )
    if before < 1 / len(labels):
        warnings.warn(
            f"the model as it came is right on {before:.0%} of {len(codes)} held-out inputs, less than by chance; "
            "are classes in the order of its outputs?",
            stacklevel=2,
        )
    return classifier


def match_outputs(classes: Sequence[Any] | None, y: np.ndarray, count: int) -> tuple[list[int], np.ndarray]:
    """Which of so many outputs of the model is which label of y, these sorted."""
    labels = np.unique(y)
    named = (
        labels.tolist() if classes is None else [getattr(name, "item", lambda name=name: name)() for name in classes]
    )
    if len(named) != count:
        given = f"y {len(labels)} classes" if classes is None else f"classes {len(named)} names"
        remedy = "give inputs of every class, or classes=:" if classes is None else "give"
        raise ValueError(
            f"the model has {count} outputs, {given}; {remedy} a label for every output, None for one to leave out"
        )
    kept = [name for name in named if name is not None]
    if len(set(kept)) != len(kept) or set(kept) != set(labels.tolist()):
        raise ValueError(f"classes {kept} are not the labels of y, {labels.tolist()}; give each of them once")
    return [named.index(label) for label in labels.tolist()], labels


def gather_batches(loader: "DataLoader[Any]", what: str) -> tuple[Tensor, np.ndarray | None]:
    """All inputs of a DataLoader, and their labels where its batches are pairs (x, y) or have `labels` by name."""
    inputs, labels = list[Tensor](), list[Any]()
    for batch in loader:
        if isinstance(batch, Mapping):
            x, y = next((batch[name] for name in BATCHES if name in batch), None), batch.get("labels")
        else:
            x, y = (
                (batch[0], batch[1] if len(batch) > 1 else None) if isinstance(batch, list | tuple) else (batch, None)
            )
        if not isinstance(x, Tensor):
            raise ValueError(f"{what} is a DataLoader whose batches have no tensor of inputs; give batches (x, y)")
        inputs.append(x)
        labels.append(y)
    if not inputs:
        raise ValueError(f"{what} is a DataLoader without a batch; give at least one")
    if len(shapes := {tuple(x.shape[1:]) for x in inputs}) > 1:
        first, second, *_ = sorted(shapes)
        raise ValueError(f"{what} is a DataLoader of inputs of shapes {first} and {second}; bring them to one shape")
    if any(y is None for y in labels):
        return torch.cat(inputs), None
    arrays = [np.atleast_1d(y.numpy(force=True) if isinstance(y, Tensor) else y) for y in labels]
    return torch.cat(inputs), np.concatenate(arrays)
