"""A fitted classifier as one ONNX graph, posterior samples folded in: raw inputs to probabilities, score and decision.

| kind | input of the graph |
|---|---|
| tables | float64 (N, columns), as they are before standardising |
| tables with categories, dates or gaps | float64 (N, columns): codes, as `preprocessing_.codes` gives them, see below |
| images | uint8 (N, channels, height, width), or float32 in [0, 1] where the model was fitted to such |
| texts | int64 (N, width): numbers of words, as `preprocessing_.read` gives them, padded with 0 |

Outputs: `probabilities` (N, K) as of predict_proba, `outlier_score` (N,), `decision` (N,) of strings. The names of the
classes and the threshold are in the graph's metadata. So are the `columns` of a table with categories, dates or gaps:
the code of a number is itself, of a date its days since 1970 in UTC, of an empty cell NaN. The code of a category is
its place among the column's `entries`; of one that is not there, that of "(rare)" if it is among the column's `rare` or
the column is `open`, else that of "(unseen)"; of an empty cell that of "(missing)", where there is one.
"""

import json
import math
import os
import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from demur.classifier import Classifier
from demur.classifier.decision import UNKNOWN, UNSURE, class_probs, score_of
from demur.classifier.extras import import_extra
from demur.classifier.features import Encoder
from demur.classifier.kinds import Images, MixedTables, Preprocessing, Tables, Texts
from demur.classifier.tables import FARTHEST, Category, Column, features
from demur.classifier.tokens import Tokens
from demur.classifier.trunks import TextTrunk
from demur.metrics import spread
from demur.networks import LastState, as_input
from demur.posterior import Gaussian, Point, Posterior
from demur.predictive import predict_scored
from demur.scores import GEN_LARGEST, GEN_POWER, score_named
from demur.streams import generator_for

OUTPUTS = ("probabilities", "outlier_score", "decision")
CODE = "decision_code"  # a class, or one past them for unsure, two for unknown
TOLERANCE = 1e-4
CHECKED = 256  # random inputs
LARGEST = 2**31 - 2**24  # bytes of weights; an ONNX file is a protocol buffer, which ends at 2 GiB


def export_onnx(classifier: Classifier, path: Path) -> str:
    """Write the graph, whole or not at all, and say how well it agrees with demur on random inputs."""
    onnx, runtime = import_extra("onnx", "onnx"), import_extra("onnxruntime", "onnx")
    graph = Graph(classifier).eval()
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    dynamic = {name: {0: "batch"} for name in ("input", *OUTPUTS[:2], CODE)}
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of tracing, whose result is checked below
            torch.onnx.export(
                graph,
                (example(classifier.preprocessing_, 2),),
                str(unfinished),
                input_names=["input"],
                output_names=[*OUTPUTS[:2], CODE],
                dynamic_axes=dynamic,
                dynamo=False,  # the newer exporter needs one more package
            )
        model = onnx.load(unfinished)
        name_decisions(onnx, model, [*map(str, classifier.classes_), UNSURE, UNKNOWN])
        about: dict[str, Any] = {
            "classes": [*map(str, classifier.classes_)],
            "accept": classifier.decision_.accept,
            "kind": classifier.preprocessing_.kind,
            **of_columns(classifier),
        }
        onnx.helper.set_model_props(model, {"demur": json.dumps(about)})
        model.producer_name = "demur"  # by which a later export knows that it may replace this one
        onnx.checker.check_model(model)
        onnx.save(model, unfinished)
        agreement = check(classifier, runtime.InferenceSession(unfinished, providers=["CPUExecutionProvider"]))
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return agreement


class Graph(nn.Module):
    """What the exported graph computes."""

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.read = Reading(classifier.preprocessing_, classifier.encoder_)
        self.average = Average(classifier.posterior_)
        self.likelihood = classifier.likelihood_
        decision = classifier.decision_
        if decision.score not in SCORES:
            raise ValueError(
                f"a model that abstains by {decision.score!r} cannot be exported; fit one that abstains by "
                f"{', '.join([*SCORES][:-1])} or {[*SCORES][-1]}"
            )
        self.score = SCORES[decision.score]
        self.accept = torch.tensor(decision.accept)
        self.unknown = torch.tensor([math.inf if limit is None else limit for limit in decision.unknown])

    def forward(self, raw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        every, logits = self.average(self.read(raw))
        probs = every[:, : self.likelihood.num_classes]
        none = every[:, self.likelihood.num_classes] if self.likelihood.has_none_class else None
        best, score = probs.argmax(1), self.score(probs, none, logits).float()
        group = best if len(self.accept) > 1 else torch.zeros_like(best)
        unknown = ~(score <= self.unknown[group])
        code = torch.where(score <= self.accept[group], best, self.likelihood.num_classes + unknown.long())
        total = probs.sum(1, keepdim=True)
        return torch.where(total > 0, probs / total, 1 / self.likelihood.num_classes), score, code


def entropy(probs: Tensor) -> Tensor:
    return -(probs * probs.clamp_min(1e-38).log()).sum(1)  # there is no xlogy in ONNX


def doubt(probs: Tensor, none: Any, logits: Tensor) -> Tensor:
    total, classes = probs.sum(1, keepdim=True), probs.shape[1]
    undecided = entropy(torch.where(total > 0, probs / total, 1 / classes)) / math.log(classes)
    return undecided if none is None else undecided + none / (none + probs.amax(1))


def generalised_entropy(probs: Tensor, none: Any, logits: Tensor) -> Tensor:
    classes = probs.shape[1]
    every = logits.double().softmax(1)  # float32 has no 1 - p left
    spread_out = spread(every[:, :classes], None if none is None else every[:, classes])
    largest = spread_out.topk(min(GEN_LARGEST, classes), dim=1).values
    return (largest * (1 - largest).clamp_min(0)).pow(GEN_POWER).sum(1)


# of the probabilities of the classes and of none, and the mean of all logits
SCORES: dict[str, Callable[[Tensor, Any, Tensor], Tensor]] = {
    "none_share": lambda probs, none, logits: none / (none + probs.amax(1)),
    "max_prob": lambda probs, none, logits: -probs.amax(1),
    "none": lambda probs, none, logits: none,
    "entropy": lambda probs, none, logits: entropy(spread(probs, none)),
    "doubt": doubt,
    "max_logit": lambda probs, none, logits: -logits[:, : probs.shape[1]].amax(1),
    "energy": lambda probs, none, logits: -logits[:, : probs.shape[1]].logsumexp(1),
    "gen": generalised_entropy,
}


class Reading(nn.Module):
    """Raw inputs as the network takes them, or as a frozen backbone's features."""

    def __init__(self, preprocessing: Preprocessing, encoder: Encoder | None = None) -> None:
        super().__init__()
        self.trunk = None if encoder is None else freeze(encoder.trunk)
        self.scaling = None if encoder is None else encoder.scaling
        self.table = preprocessing if isinstance(preprocessing, Tables) else None
        self.columns = preprocessing.columns if isinstance(preprocessing, MixedTables) else ()

    def forward(self, raw: Tensor) -> Tensor:
        if self.columns:
            return features(self.columns, raw)
        if self.trunk is not None and self.scaling is not None:
            return self.scaling(self.trunk(as_input(raw)))
        if self.table is None:
            return as_input(raw)
        return (
            ((raw - raw.new_tensor(self.table.mean)) / raw.new_tensor(self.table.scale))
            .clamp(-FARTHEST, FARTHEST)
            .float()
        )


class Average(nn.Module):
    """Probabilities and logits of all outputs, averaged over every sample of the posterior, each with weights of its
    own."""

    def __init__(self, posterior: Posterior) -> None:
        super().__init__()
        components = list(posterior.components())
        size = sum(sampled_bytes(component) for _, component in components)
        if size > LARGEST:
            raise ValueError(
                f"this model's {posterior.num_samples} networks have {size / 2**30:.1f} GiB of weights, and an ONNX "
                "file holds 2; fit a smaller network, or a method with fewer samples"
            )
        self.weights = [share / component.num_samples for share, component in components]
        self.trunks = nn.ModuleList(trunk(component) for _, component in components)
        self.samples = nn.ModuleList(
            nn.ModuleList(sample_network(component, sample) for sample in range(component.num_samples))
            for _, component in components
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        total, mean = torch.zeros(()), torch.zeros(())
        for weight, trunk, samples in zip(self.weights, self.trunks, self.samples, strict=True):
            shared = trunk(x)
            for network in samples:  # type: ignore[attr-defined]
                logits = network(shared)
                total, mean = total + weight * logits.softmax(-1), mean + weight * logits
        return total, mean


def trunk(component: Point | Gaussian) -> nn.Module:
    return freeze(component.network.get_submodule("features")) if component.over_head else nn.Identity()


def sample_network(component: Point | Gaussian, sample: int) -> nn.Module:
    """The sample-th network, or its head where the samples share their trunk."""
    return freeze(component.network_at(sample) if isinstance(component, Gaussian) else component.network)


def freeze(network: nn.Module) -> nn.Module:
    """A copy that a graph can be made of."""
    copied = deepcopy(network).requires_grad_(False)
    for module in copied.modules():
        if isinstance(module, LastState):
            module.forward = MethodType(last_state, module)  # type: ignore[method-assign]
        if isinstance(module, TextTrunk):
            module.trims = False
    return copied


def last_state(network: LastState, tokens: Tensor) -> Tensor:
    """As LastState gives it, without packing: what stands behind the end of a text does not change the state there."""
    width, lengths = tokens.shape[1], (tokens != 0).sum(1, keepdim=True).clamp_min(1)
    columns = width - lengths + torch.arange(width)
    states, _ = network.gru(network.embedding(tokens.gather(1, columns.clamp_max(width - 1))))
    return states.gather(1, (lengths - 1).unsqueeze(2).expand(-1, 1, states.shape[2])).squeeze(1)


def sampled_bytes(component: Point | Gaussian) -> int:
    whole, head = (
        sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())
        for module in (component.network, component.network.get_submodule("head" if component.over_head else ""))
    )
    return (whole - head if component.over_head else 0) + component.num_samples * head


def name_decisions(onnx: Any, model: Any, names: list[str]) -> None:
    """Replace the output of codes by one of strings."""
    text = onnx.TensorProto.STRING
    model.graph.initializer.append(
        onnx.helper.make_tensor("decisions", text, [len(names)], [name.encode() for name in names])
    )
    model.graph.node.append(onnx.helper.make_node("Gather", ["decisions", CODE], [OUTPUTS[2]]))
    model.graph.output.pop()
    model.graph.output.append(onnx.helper.make_tensor_value_info(OUTPUTS[2], text, ["batch"]))


def example(preprocessing: Preprocessing, count: int) -> Tensor:
    """Random inputs of the graph, in and around what the model was fitted to."""
    generator = generator_for("example")
    if isinstance(preprocessing, Tables):
        noise = torch.randn(count, len(preprocessing.mean), generator=generator, dtype=torch.float64)
        return noise.new_tensor(preprocessing.mean) + 2 * noise.new_tensor(preprocessing.scale) * noise
    if isinstance(preprocessing, MixedTables):
        return torch.stack([example_codes(column, count, generator) for column in preprocessing.columns], 1)
    if isinstance(preprocessing, Images):
        pixels = torch.randint(256, (count, *preprocessing.shape), generator=generator, dtype=torch.uint8)
        return pixels if preprocessing.whole else as_input(pixels)
    if isinstance(preprocessing, Texts):
        words = torch.randint(1, len(preprocessing.words), (count, preprocessing.width), generator=generator)
        start = torch.randint(preprocessing.width, (count, 1), generator=generator)
        return words.where(torch.arange(preprocessing.width) >= start, 0)
    if isinstance(preprocessing, Tokens):
        tokens = torch.randint(1, 1000, (count, preprocessing.width), generator=generator)
        length = torch.randint(1, preprocessing.width + 1, (count, 1), generator=generator)
        return tokens.where(torch.arange(preprocessing.width) < length, 0)
    raise ValueError(f"a model of {preprocessing.kind} inputs cannot be exported; fit one to tables, images or texts")


def example_codes(column: Column, count: int, generator: torch.Generator) -> Tensor:
    if isinstance(column, Category):
        return torch.randint(len(column.entries), (count,), generator=generator).double()
    values = column.mean + 2 * column.scale * torch.randn(count, generator=generator, dtype=torch.float64)
    return values.masked_fill(torch.rand(count, generator=generator) < 0.2, math.nan)


def of_columns(classifier: Classifier) -> dict[str, Any]:
    """How to make codes of a table's cells, for the graph's metadata."""
    if not isinstance(classifier.preprocessing_, MixedTables):
        return {}
    columns = classifier.preprocessing_.columns
    names = getattr(classifier, "feature_names_in_", range(len(columns)))
    entries = [{"entries": column.entries} if isinstance(column, Category) else {} for column in columns]
    described = zip(names, columns, entries, strict=True)
    return {"columns": [{"name": str(name), **asdict(column), **more} for name, column, more in described]}


def check(classifier: Classifier, session: Any) -> str:
    """Compare with demur on random inputs; a graph that differs is refused."""
    count = CHECKED if classifier.backbone_ is None else CHECKED // 16  # a backbone takes its time
    raw, preprocessing = example(classifier.preprocessing_, count), classifier.preprocessing_
    if isinstance(preprocessing, MixedTables):
        x = features(preprocessing.columns, raw)
    else:
        x = raw if isinstance(preprocessing, Texts | Tokens) else preprocessing.read(raw)
    if classifier.encoder_ is not None:
        x = classifier.encoder_(x, torch.device("cpu"))
    scores = [score_named(classifier.decision_.score)]
    prediction = predict_scored(classifier.posterior_, classifier.likelihood_, x, scores, {})
    score = score_of(prediction, classifier.decision_.score)
    decision = classifier.decision_.answers(prediction, classifier.classes_).astype(str)
    exported = session.run(list(OUTPUTS), {"input": raw.numpy()})
    size = np.maximum(1, np.abs(score))  # of logits far from all data float32 has fewer places
    apart = max(np.abs(exported[0] - class_probs(prediction)).max(), (np.abs(exported[1] - score) / size).max())
    limits = [limit for limit in (*classifier.decision_.accept, *classifier.decision_.unknown) if limit is not None]
    clear = np.abs(score[:, None] - limits).min(1) > TOLERANCE * size
    if not apart <= TOLERANCE or (exported[2] != decision)[clear].any():
        raise ValueError(f"the exported graph differs from the model by {apart:.1g}; this network cannot be exported")
    return f"{count} random inputs give the same to {apart:.0e}"
