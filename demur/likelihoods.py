"""One formula for five likelihoods: inliers and outliers differ only in a density, a label and a weight.

    log p(D, D_out | f) = sum_in log p_in(y | f(x)) + w * sum_out log p_out(l | f(x_out))

Every label is a point of the simplex: a class is a corner, "no idea" is the centre. A likelihood is a value; nothing in
demur branches on its name.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F


class LabelModel(Protocol):
    """A density of labels given logits."""

    def log_prob(self, logits: Tensor, label: Tensor) -> Tensor:
        """(..., C) and a broadcastable label of the simplex to (...), in nats."""
        ...

    def fisher_root(self, logits: Tensor) -> Tensor:
        """S with S S' = the Fisher information about the logits: (..., C) to (..., C, C)."""
        ...


def _centred_root(probs: Tensor, scale: Tensor) -> Tensor:
    """(I - p 1') diag(scale): adding a constant to all logits changes nothing, so S' 1 = 0."""
    return torch.diag_embed(scale) - probs.unsqueeze(-1) * scale.unsqueeze(-2)


@dataclass(frozen=True)
class Categorical:
    """Cross-entropy with a label of the simplex; a corner gives the ordinary one."""

    def log_prob(self, logits: Tensor, label: Tensor) -> Tensor:
        return (label * F.log_softmax(logits.float(), -1)).sum(-1)

    def fisher_root(self, logits: Tensor) -> Tensor:
        probs = logits.float().softmax(-1)
        return _centred_root(probs, probs.sqrt())


@dataclass(frozen=True)
class Dirichlet:
    """The label itself is drawn from Dirichlet(precision * softmax(logits)); it must lie inside the simplex."""

    precision: float

    def __post_init__(self) -> None:
        if not self.precision > 0:
            raise ValueError(f"precision {self.precision} of a Dirichlet is not positive; the paper uses 100 and 1")

    def log_prob(self, logits: Tensor, label: Tensor) -> Tensor:
        log_alpha = math.log(self.precision) + F.log_softmax(logits.float(), -1)
        alpha = log_alpha.exp()
        # lgamma(alpha) = lgamma(1 + alpha) - log(alpha), which stays finite, gradient too, as alpha vanishes
        log_norm = math.lgamma(self.precision) - (torch.lgamma(1 + alpha) - log_alpha).sum(-1)
        return log_norm + ((alpha - 1) * label.log()).sum(-1)

    def fisher_root(self, logits: Tensor) -> Tensor:
        probs = logits.float().softmax(-1)
        alpha = (self.precision * probs).clamp_min(1e-18)
        # alpha * trigamma * alpha tends to 1 as alpha vanishes, while alpha**2 underflows and trigamma overflows
        return _centred_root(probs, (alpha * torch.polygamma(1, alpha) * alpha).sqrt())


@dataclass(frozen=True)
class Outliers:
    """How outliers enter a likelihood: the density of their label, the label itself, and the weight w of the term."""

    model: LabelModel
    label: tuple[float, ...]
    weight: float = 1.0

    def __post_init__(self) -> None:
        if min(self.label) < 0 or abs(sum(self.label) - 1) > 1e-6:
            raise ValueError(f"label {self.label} is not a point of the simplex; its entries must be >= 0 and sum to 1")
        if not self.weight > 0:
            raise ValueError(f"weight {self.weight} of the outliers is not positive; use plain() to ignore them")


@dataclass(frozen=True)
class Likelihood:
    """Densities of labels inside and outside, and what follows: head size, objective, curvature, probabilities.

    The outputs are the classes, and one more where the outliers' label has one more entry: the none class.
    """

    num_classes: int
    inside: LabelModel
    outside: Outliers | None = None
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        if self.num_classes < 2:
            raise ValueError(f"num_classes {self.num_classes} is too small; a classifier needs at least 2")
        if not 0 <= self.smoothing < 1 / self.num_outputs:
            raise ValueError(
                f"smoothing {self.smoothing} is not in [0, 1/{self.num_outputs}), so it would hide the label"
            )
        if self.num_outputs - self.num_classes not in (0, 1):
            raise ValueError(
                f"the outliers' label has {self.num_outputs} entries; {self.num_classes} classes need as many or 1 more"
            )
        flat = torch.zeros(self.num_outputs)
        if self.outside and not self.outside.model.log_prob(flat, torch.tensor(self.outside.label)).isfinite():
            raise ValueError(f"{self.outside.model} has no density at the outliers' label {self.outside.label}")
        if not self.inside.log_prob(flat, self._label(torch.tensor(0))).isfinite():
            raise ValueError(
                f"smoothing {self.smoothing} leaves labels on the simplex's edge, where {self.inside} has no density; "
                "try 1e-6"
            )

    @property
    def num_outputs(self) -> int:
        """The size of the head, and of a label."""
        return self.num_classes if self.outside is None else len(self.outside.label)

    @property
    def has_none_class(self) -> bool:
        return self.num_outputs > self.num_classes

    def log_prob(self, logits_in: Tensor, y_in: Tensor, logits_out: Tensor | None = None) -> Tensor:
        """Nats per inlier, a scalar: N times it is the log-likelihood of N inliers and N effective outliers.

        Logits are (..., B, C), with leading sample dimensions averaged; y_in is (B,) of class indices.
        """
        value = self.inside.log_prob(logits_in, self._label(y_in)).mean()
        if self.outside is not None:
            logits_out = self._given(logits_out)
            label = _label_on(logits_out.device, self.outside.label)
            value = value + self.outside.weight * self.outside.model.log_prob(logits_out, label).mean()
        return value

    def fisher_root(self, logits: Tensor, *, outliers: bool = False) -> Tensor:
        """S with S S' = the information about the logits of inliers, or of outliers, the weight in it: (B, C, C)."""
        if not outliers:
            return self.inside.fisher_root(logits)
        if self.outside is None:
            raise ValueError("outliers have no likelihood here; use none_class or another that is trained with them")
        return math.sqrt(self.outside.weight) * self.outside.model.fisher_root(logits)

    def fisher(self, logits_in: Tensor, logits_out: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Information about each input's logits, (B, C, C), inside and outside; the latter times the weight."""
        root_in = self.fisher_root(logits_in)
        if self.outside is None:
            return root_in @ root_in.mT, None
        root_out = self.fisher_root(self._given(logits_out), outliers=True)
        return root_in @ root_in.mT, root_out @ root_out.mT

    def probs(self, logits: Tensor) -> tuple[Tensor, Tensor | None]:
        """Class probabilities (..., K) and the none class's (...), or None; together they sum to one."""
        if logits.shape[-1] != self.num_outputs:
            raise ValueError(f"{logits.shape[-1]} logits do not fit this likelihood of {self.num_outputs} outputs")
        probs = logits.softmax(-1)
        return probs[..., : self.num_classes], probs[..., self.num_classes] if self.has_none_class else None

    def _label(self, y: Tensor) -> Tensor:
        corners = F.one_hot(y, self.num_outputs).float()
        return corners * (1 - self.num_outputs * self.smoothing) + self.smoothing

    def _given(self, logits_out: Tensor | None) -> Tensor:
        if logits_out is None:
            raise ValueError("logits_out is missing; this likelihood is trained with outliers")
        return logits_out


@cache
def _label_on(device: torch.device, label: tuple[float, ...]) -> Tensor:
    # made once: a copy from the host in every step would make a GPU wait
    with torch.inference_mode(False):  # whoever asks first, others may train with it
        return torch.tensor(label, dtype=torch.float32, device=device)


def plain(num_classes: int) -> Likelihood:
    """The ordinary classifier, which has never seen an outlier."""
    return Likelihood(num_classes, Categorical())


def none_class(num_classes: int, weight: float = 1.0) -> Likelihood:
    """Outliers are one more class."""
    corner = (0.0,) * num_classes + (1.0,)
    return Likelihood(num_classes, Categorical(), Outliers(Categorical(), corner, weight))


def soft_labels(num_classes: int, precision: float = 100.0, smoothing: float = 1e-6, weight: float = 1.0) -> Likelihood:
    """All labels are Dirichlet-distributed points of the simplex, the outliers' at its centre."""
    model = Dirichlet(precision)
    return Likelihood(num_classes, model, Outliers(model, _centre(num_classes), weight), smoothing)


def mixed_labels(num_classes: int, precision: float = 1.0, weight: float = 1.0) -> Likelihood:
    """Categorical inside, Dirichlet at the centre outside."""
    return Likelihood(num_classes, Categorical(), Outliers(Dirichlet(precision), _centre(num_classes), weight))


def outlier_exposure(num_classes: int, weight: float = 0.5) -> Likelihood:
    """Cross-entropy of outliers with the uniform label: the mean over all labels an outlier might have been given.

    weight = num_classes is the data set in which every outlier appears once with each label.
    """
    return Likelihood(num_classes, Categorical(), Outliers(Categorical(), _centre(num_classes), weight))


def _centre(num_classes: int) -> tuple[float, ...]:
    return (1 / num_classes,) * num_classes


@dataclass(frozen=True)
class NamedLikelihood:
    """A likelihood under its short name in methods, and how it is printed and drawn."""

    title: str
    of: Callable[[int], Likelihood]  # of the number of classes
    colour: str = "#666666"

    def __call__(self, num_classes: int) -> Likelihood:
        return self.of(num_classes)


# Okabe and Ito's colours, told apart by all kinds of sight
LIKELIHOODS: Mapping[str, NamedLikelihood] = MappingProxyType(
    {
        "plain": NamedLikelihood("no outliers", plain, "#000000"),
        "nc": NamedLikelihood("none class", none_class, "#d55e00"),
        "sl": NamedLikelihood("soft labels", soft_labels, "#56b4e9"),
        "ml": NamedLikelihood("mixed labels", mixed_labels, "#009e73"),
        "oe": NamedLikelihood("outlier exposure", outlier_exposure, "#e69f00"),
    }
)
