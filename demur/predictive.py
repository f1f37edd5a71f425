"""The only Monte-Carlo average."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from demur.feature_scores import Fitted, Training
from demur.likelihoods import Likelihood
from demur.metrics import Prediction, entropy, spread
from demur.networks import has_head, mixed_precision, own_input
from demur.posterior import Posterior
from demur.scores import Score
from demur.streams import generator_for
from demur.training_data import Split

BLOCK = 8192  # inputs whose sums, and trunk's outputs, are held at a time
HELD = 2**14  # logits that are averaged at a time, if there are so many
LEARNT_FROM = 50_000  # training inputs, at most, that a score learns from


@torch.inference_mode()
def predict(
    posterior: Posterior,
    likelihood: Likelihood,
    x: Tensor,
    batch_size: int | None = None,
    *,
    parts: Collection[str] = (),
) -> Prediction:
    """Class probabilities averaged over the posterior; (N, ...) to (N, K).

    `parts` names what else of the prediction is to be filled: `logits`, `features`, `logit_variance`.
    """
    if len(x) == 0:
        raise ValueError("x is empty; predict needs at least one input")
    if "features" in parts:
        for _, component in posterior.components():
            check_head(component.network)
    # a CPU is fastest while what passes between layers stays in its cache
    values, most = (2**24, 4096) if x.is_cuda else (2**17, 1024)
    batch_size = batch_size or min(most, max(64, values // x[0].numel()))
    blocks = [_predict_block(posterior, likelihood, block, batch_size, parts) for block in x.split(BLOCK)]
    joined = {name: torch.cat([block[name] for block in blocks]) for name in blocks[0]}
    return Prediction(
        joined["probs"],
        joined["none"] if likelihood.has_none_class else None,
        joined["expected_entropy"],
        logits=joined.get("logits"),
        features=joined.get("features"),
        logit_variance=joined.get("logit_variance"),
    )


class Average:
    """Weighted sums over samples, in float64, of what follows from the logits of `count` inputs."""

    def __init__(self, likelihood: Likelihood, count: int, parts: Collection[str], device: torch.device) -> None:
        self._likelihood, self._parts = likelihood, parts
        self.probs = torch.zeros(count, likelihood.num_classes, dtype=torch.float64, device=device)
        self.none, self.expected_entropy = torch.zeros_like(self.probs[:, 0]), torch.zeros_like(self.probs[:, 0])
        self.mean = torch.zeros(count, likelihood.num_outputs, dtype=torch.float64, device=device)
        self.square = torch.zeros_like(self.mean)
        self._held: dict[int, list[Tensor]] = {}
        self._size = 0

    def add(self, rows: slice, logits: Tensor, weight: float) -> None:
        """Logits (B, C) or (samples, B, C); few are held until they are many, for each operation has its price."""
        self._held.setdefault(rows.start, []).append(logits.float().reshape(-1, *logits.shape[-2:]))
        self._size += logits.numel()
        if self._size >= HELD:
            self.flush(weight)

    def flush(self, weight: float) -> None:
        """Every sample that is held counts `weight`."""
        for start, held in self._held.items():
            logits = held[0] if len(held) == 1 else torch.cat(held)
            rows = slice(start, start + logits.shape[1])
            in_class, in_none = self._likelihood.probs(logits)
            self.probs[rows] += weight * in_class.sum(0, dtype=torch.float64)
            own_entropy = entropy(spread(in_class, in_none))
            self.expected_entropy[rows] += weight * own_entropy.sum(0, dtype=torch.float64)
            if in_none is not None:
                self.none[rows] += weight * in_none.sum(0, dtype=torch.float64)
            if self._parts:
                self.mean[rows] += weight * logits.sum(0, dtype=torch.float64)
                self.square[rows] += weight * logits.double().square().sum(0)
        self._held, self._size = {}, 0


def _predict_block(
    posterior: Posterior, likelihood: Likelihood, x: Tensor, batch_size: int, parts: Collection[str]
) -> dict[str, Tensor]:
    average, features = Average(likelihood, len(x), parts, x.device), list[Tensor]()
    batches = [slice(start, start + batch_size) for start in range(0, len(x), batch_size)]
    for share, component in posterior.components():
        if component.network.training:
            raise ValueError(
                "the posterior's network is in training mode; call .eval(), or batch norm and dropout act up"
            )
        # what all samples share is kept; inputs, which are larger, are made ready anew
        with mixed_precision(component.network, x.device):
            shared = {b.start: component.trunk(own_input(x[b])) for b in batches} if component.over_head else {}
        weight = share / component.num_samples
        own = dict[int, Tensor]()  # features, summed over the component's samples
        for network in component.networks():
            for rows in batches:
                if component.over_head:
                    logits = network(shared[rows.start])
                else:
                    with mixed_precision(component.network, x.device):
                        if "features" in parts:
                            given = network.features(own_input(x[rows]))  # type: ignore[attr-defined]
                            logits = network.head(given.float())  # type: ignore[attr-defined]
                            own[rows.start] = own.get(rows.start, 0) + given.double()
                        else:
                            logits = network(own_input(x[rows]))
                average.add(rows, logits, weight)
        average.flush(weight)
        if "features" in parts:
            total = torch.cat([shared[b.start].double() if component.over_head else own[b.start] for b in batches])
            features.append(total / (1 if component.over_head else component.num_samples))
    means = {"probs": average.probs, "none": average.none, "expected_entropy": average.expected_entropy}
    if "logits" in parts:
        means["logits"] = average.mean
    if "logit_variance" in parts:
        means["logit_variance"] = (average.square - average.mean.square()).clamp_min(0)
    if features:
        means["features"] = torch.cat(features, 1)
    return {name: value.float().cpu() for name, value in means.items()}


def predict_scored(
    posterior: Posterior,
    likelihood: Likelihood,
    x: Tensor,
    scores: Iterable[Score],
    fitted: Mapping[str, Fitted],
) -> Prediction:
    """A prediction with the values of these scores; the logits and features that they needed are let go."""
    every = list(scores)
    parts = {part for score in every for part in score.needs}
    prediction = predict(posterior, likelihood, x, parts=parts)
    values = {score.name: score(prediction, fitted.get(score.name)) for score in every}
    return replace(
        prediction,
        logits=None,
        features=None,
        logit_variance=None,
        scores={name: value for name, value in values.items() if value is not None},
    )


def fit_scores(
    scores: Iterable[Score], posterior: Posterior, likelihood: Likelihood, train: Split
) -> dict[str, dict[str, Tensor]]:
    """What those scores that learn from training inputs have learned, by name: plain tensors, on the CPU.

    They see the inputs as they are, not augmented, and at most 50,000 of them.
    """
    learning = {score.name: score.fit for score in scores if score.fit is not None}
    if not learning:
        return {}
    rows = torch.randperm(len(train), generator=generator_for("learnt from"))[:LEARNT_FROM].sort().values
    rows = rows.to(train.x.device)
    prediction = predict(posterior, likelihood, train.x[rows], parts=("logits", "features"))
    assert prediction.logits is not None
    assert prediction.features is not None
    weight, bias = _heads(posterior)
    classes = likelihood.num_classes
    training = Training(
        prediction.features,
        prediction.logits[:, :classes],
        train.y[rows].cpu(),
        weight[:classes].cpu(),
        bias[:classes].cpu(),
    )
    return {name: {key: value.contiguous() for key, value in fit(training).items()} for name, fit in learning.items()}


def _heads(posterior: Posterior) -> tuple[Tensor, Tensor]:
    """Of all networks side by side, each times its share of the probability."""
    weights, biases = [], []
    for share, component in posterior.components():
        head = component.network.get_submodule("head")
        assert isinstance(head, nn.Linear)
        weights.append(share * head.weight.detach())
        biases.append(share * (head.weight.new_zeros(len(head.weight)) if head.bias is None else head.bias.detach()))
    return torch.cat(weights, 1), torch.stack(biases).sum(0)


def check_head(network: nn.Module) -> None:
    """Refuse a network whose features cannot be told apart."""
    if not has_head(network):
        raise ValueError(
            f"the network ({type(network).__name__}) has no .features and .head (nn.Linear) with forward = "
            "head(features(x)); a score of features needs them"
        )
