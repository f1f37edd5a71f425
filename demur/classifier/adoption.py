"""A network that is trained already, taught what it does not know."""

import warnings
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from demur.classifier.builders import Logits, logits_of
from demur.classifier.estimator import Classifier
from demur.classifier.kinds import Ready
from demur.classifier.labels import validate_labels
from demur.likelihoods import plain
from demur.methods import parse_method
from demur.metrics import accuracy
from demur.outliers.values import Shown
from demur.posterior import Point
from demur.predictive import predict

ADOPTING = ("map", "la")  # the inferences that go on from given weights; the others start anew


@dataclass(frozen=True)
class Copies:
    """A network function that hands out copies of one trained network."""

    model: nn.Module

    def __call__(self, num_outputs: int) -> nn.Module:
        return deepcopy(self.model)


def adopt(
    model: nn.Module,
    X: Any,
    y: Any,
    outliers: Any = None,
    *,
    method: str = "la+nc",
    classes: Any = None,
    head: str | None = None,
    synthetic: str | Shown | None = None,
    epochs: int = 3,
    batch_size: int | None = None,
    lr: float = 1e-4,
    coverage: float = 0.95,
    validation: float = 0.1,
    device: str = "auto",
    random_state: int | np.random.RandomState | None = 0,
) -> Classifier:
    """A classifier that goes on from a trained network: a few epochs with outliers, Laplace, a calibrated threshold.

    X are inputs as the model takes them: float arrays, uint8 images (scaled to [0, 1]) or token numbers. Best are
    inliers that the model was not trained with: on its own training data thresholds come out too strict. `classes` are
    the labels in the order of the model's outputs, the sorted labels of y if None. `head` names the last affine layer,
    which is otherwise found; it gets one more output if the method has a none class. `report_` has the accuracy of the
    model as it came, `original_accuracy`, on the same held-out inputs as `accuracy`. The model itself stays as it is.
    """
    parsed = parse_method(method)
    if parsed.inference_name not in ADOPTING:
        raise ValueError(f"method {method!r} starts from fresh weights; to adopt a network choose 'la+nc' or 'map+nc'")
    y = validate_labels(y, len(X))
    labels = np.unique(y)
    outputs = labels if classes is None else np.asarray(classes)
    if sorted(outputs.tolist()) != labels.tolist():
        raise ValueError(
            f"classes {outputs.tolist()} are not the labels of y, {labels.tolist()}; give each of them once"
        )
    few = Ready.of(X).read(X)[:2]
    name = head or find_head(model, few)
    order = torch.from_numpy(np.argsort(outputs))
    likelihood = parsed.likelihood(len(labels))
    classifier = Classifier(
        method,
        Copies(with_outputs(model, name, order, likelihood.num_outputs)),
        kind="ready",
        synthetic=synthetic,
        coverage=coverage,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        validation=validation,
        device=device,
        random_state=random_state,
    ).fit(X, y, outliers)
    original = with_outputs(model, name, order, len(labels))
    if classifier.wraps_logits_:
        original = Logits(original)
    held_out = classifier.preprocessing_.read(X)[classifier.held_out_]
    codes = torch.from_numpy(np.searchsorted(labels, y[classifier.held_out_]))
    made = predict(Point(original.cpu().eval()), plain(len(labels)), held_out)
    classifier.report_["original_accuracy"] = before = accuracy(made, codes)
    if before < 1 / len(labels):
        warnings.warn(
            f"the model as it came is right on {before:.0%} of {len(codes)} held-out inputs, less than by chance; "
            "are classes in the order of its outputs?",
            stacklevel=2,
        )
    return classifier


def find_head(model: nn.Module, x: Tensor) -> str:
    """The name of the affine layer whose output is the model's own, tried on a few inputs."""
    model = deepcopy(model).cpu().eval()
    given: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda _, __, output, name=name: given.update({name: output}))
    output, _ = logits_of(model, x)
    names = [name for name, value in given.items() if value.shape == output.shape and torch.equal(value, output)]
    if not names:
        raise ValueError(
            f"no affine layer of the model ({type(model).__name__}) gives its output as it is; name the one that gives "
            "the logits, head='...', and let the model return these"
        )
    return names[-1]


def with_outputs(model: nn.Module, head: str, order: Tensor, num_outputs: int) -> nn.Module:
    """A copy whose outputs are in that order, and as many as asked for: a new one starts at logit 0 everywhere."""
    model = deepcopy(model)
    old = dict(model.named_modules()).get(head)
    if not isinstance(old, nn.Linear):
        raise ValueError(
            f"head {head!r} is not an affine layer (nn.Linear) of the model; leave it out to have it found"
        )
    if old.out_features != len(order):
        raise ValueError(
            f"the model has {old.out_features} outputs, y {len(order)} classes; give inputs of every class"
        )
    new = nn.Linear(old.in_features, num_outputs, old.bias is not None, old.weight.device, old.weight.dtype)
    with torch.no_grad():
        for grown, grown_from in zip(new.parameters(), old.parameters(), strict=True):
            grown.zero_()[: len(order)] = grown_from[order.to(old.weight.device)]
    if old is model:
        return new
    parent, _, attribute = head.rpartition(".")
    setattr(model.get_submodule(parent), attribute, new)
    return model
