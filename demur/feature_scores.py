"""Post-hoc scores of features: each learns plain tensors from training features, and is high far from them.

Features are what the linear head is given. Those of a posterior are means over its samples. Where it has several
networks, their features lie side by side, because a unit of one network has nothing to do with that unit of another.
The head is then the networks' heads side by side as well, each times its network's weight: features times head is the
mean of the logits, exactly where all samples of a network share its trunk.

With a none class, a head's rows are those of the classes alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn import functional as F

Fitted = Mapping[str, Tensor]
NEIGHBOURS = 50  # the k of k nearest neighbours: OpenOOD's for 50,000 training inputs
ROWS = 1024  # inputs compared with all training features at a time

SHAPES: Mapping[str, Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {  # of what each learns: the names of the dimensions, alike where they are of one size
        "knn": {"neighbours": ("inputs", "features"), "k": ()},
        "rmds": {
            "within": ("features", "directions"),
            "means": ("seen classes", "directions"),
            "all": ("features", "all directions"),
            "mean": ("all directions",),
        },
        "vim": {"origin": ("features",), "residual": ("features", "directions"), "scale": ()},
        "fdbd": {"mean": ("features",), "weight": ("classes", "features"), "bias": ("classes",)},
    }
)


@dataclass(frozen=True)
class Training:
    """What a score may learn from: training inputs' features (N, D), mean logits (N, K) and labels, and the head."""

    features: Tensor
    logits: Tensor
    y: Tensor
    weight: Tensor  # (K, D)
    bias: Tensor  # (K,)


# distance to the k-th nearest neighbour, all of length one (Sun et al., 2022) ----------------------------------------


def fit_knn(training: Training) -> Fitted:
    """With fewer than 1,000 inputs k is a twentieth of them."""
    count = len(training.features)
    k = max(1, min(NEIGHBOURS, count // 20))
    return {"neighbours": F.normalize(training.features.double(), dim=1).float(), "k": torch.tensor(k)}


def knn(features: Tensor, fitted: Fitted) -> Tensor:
    neighbours = F.normalize(fitted["neighbours"].double(), dim=1)
    k = int(fitted["k"])
    similar = [
        (F.normalize(rows.double(), dim=1) @ neighbours.T).topk(k, dim=1).values[:, -1] for rows in features.split(ROWS)
    ]
    return (2 - 2 * torch.cat(similar)).clamp_min(0).sqrt()


# relative Mahalanobis distance (Ren et al., 2021) ---------------------------------------------------------------------


def fit_rmds(training: Training) -> Fitted:
    """Class means under the covariance within classes, and the mean of all under that of all."""
    x, y = training.features.double(), training.y
    means = torch.stack([x[y == label].mean(0) for label in y.unique()])
    within = x - means[torch.searchsorted(y.unique(), y)]
    overall = x.mean(0)
    whiten_within, whiten_all = _whitening(within), _whitening(x - overall)
    return {
        "within": whiten_within,
        "means": means @ whiten_within,
        "all": whiten_all,
        "mean": overall @ whiten_all,
    }


def rmds(features: Tensor, fitted: Fitted) -> Tensor:
    """The least of the squared distances to classes, less that to all data."""
    x = features.double()
    to_all = (x @ fitted["all"] - fitted["mean"]).square().sum(1)
    within = x @ fitted["within"]
    to_classes = torch.stack([(within - mean).square().sum(1) for mean in fitted["means"]], 1)
    return to_classes.amin(1) - to_all


def _whitening(centred: Tensor) -> Tensor:
    """L (D, R) with L L' = the covariance's pseudo-inverse: units that never fire have no variance."""
    values, vectors = torch.linalg.eigh(centred.T @ centred / len(centred))
    nonzero = values > values.abs().amax() * len(values) * torch.finfo(values.dtype).eps
    return vectors[:, nonzero] / values[nonzero].sqrt()


# virtual-logit matching (Wang et al., 2022) ---------------------------------------------------------------------------


def fit_vim(training: Training) -> Fitted:
    """The directions of least variance around the point that the head maps to zero; a scale from their norm to logits.

    As many directions are left out as the paper's code leaves out: 1,000 of 2,048 or more, 512 of 768 or more, else
    half of them.
    """
    x, width = training.features.double(), training.features.shape[1]
    origin = -torch.linalg.pinv(training.weight.double()) @ training.bias.double()
    principal = 1000 if width >= 2048 else 512 if width >= 768 else width // 2
    _, vectors = torch.linalg.eigh((x - origin).T @ (x - origin) / len(x))
    residual = vectors[:, : width - principal].contiguous()  # eigenvalues ascend
    norm = torch.linalg.vector_norm((x - origin) @ residual, dim=1)
    scale = training.logits.double().amax(1).mean() / norm.mean()
    return {"origin": origin, "residual": residual, "scale": scale}


def vim(features: Tensor, logits: Tensor, fitted: Fitted) -> Tensor:
    """The virtual logit less the logsumexp of the logits: in the order of the virtual class's probability."""
    norm = torch.linalg.vector_norm((features.double() - fitted["origin"]) @ fitted["residual"], dim=1)
    return fitted["scale"] * norm - logits.double().logsumexp(1)


# fast decision-boundary distance (Liu and Qin, 2024) ------------------------------------------------------------------


def fit_fdbd(training: Training) -> Fitted:
    return {
        "mean": training.features.double().mean(0),
        "weight": training.weight.double(),
        "bias": training.bias.double(),
    }


def fdbd(features: Tensor, fitted: Fitted) -> Tensor:
    """Minus the mean distance to the boundaries with other classes, over the distance to the mean of all features."""
    x, weight = features.double(), fitted["weight"]
    logits = x @ weight.T + fitted["bias"]
    best = logits.argmax(1)
    gap = logits.gather(1, best[:, None]) - logits
    apart = torch.cdist(weight, weight, compute_mode="donot_use_mm_for_euclid_dist")[best]
    distance = torch.where(apart > 0, gap / apart.clamp_min(1e-300), 0.0).sum(1) / (len(weight) - 1)
    return -distance / torch.linalg.vector_norm(x - fitted["mean"], dim=1).clamp_min(1e-12)
