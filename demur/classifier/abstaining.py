"""The score that a classifier abstains by: which one a model can have, what it learned, and that in a model file."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor

from demur.classifier.decision import default_score
from demur.files import find_not_finite, list_tensors, read_tensors
from demur.inference import MAP, Inference
from demur.likelihoods import Likelihood
from demur.metrics import Prediction
from demur.networks import Network
from demur.posterior import Posterior
from demur.predictive import LEARNT_FROM, check_head, fit_scores
from demur.scores import SCORES, Score, score_named
from demur.training_data import Split

DTYPES = ("F64", "F32", "I64")  # of what a score learned


def resolve_score(named: str | None, likelihood: Likelihood, inference: Inference, network: Network) -> Score:
    """The score of that name, or the usual one; refused, before any training, where the model cannot have it."""
    score = score_named(default_score(likelihood) if named is None else named)
    if score.of_samples and isinstance(getattr(inference, "inference", inference), MAP):
        raise ValueError(
            f"abstain_by {score.name!r} is how far a posterior's samples differ, and 'map' has one; choose another "
            "score, or a method such as la+nc"
        )
    if "features" in score.needs:
        with torch.random.fork_rng(devices=[]):
            check_head(network(likelihood.num_outputs))
    elif score.fit is None:
        _check_values(score, None, likelihood, width=1)
    return score


def _check_values(score: Score, fitted: Mapping[str, Tensor] | None, likelihood: Likelihood, width: int) -> None:
    """Whether it gives a number an input, for two synthetic ones."""
    outputs = likelihood.num_outputs
    probs = torch.full((2, likelihood.num_classes), 1 / outputs)
    made_up = Prediction(
        probs,
        torch.full((2,), 1 / outputs) if likelihood.has_none_class else None,
        torch.zeros(2),
        logits=torch.zeros(2, outputs),
        features=torch.ones(2, width),
        logit_variance=torch.zeros(2, outputs),
    )
    values = score(made_up, fitted)
    if values is None:
        raise ValueError(
            f"abstain_by {score.name!r} needs a none class; choose a method that ends in '+nc', or another score"
        )
    if np.shape(values) != (2,):
        raise ValueError(
            f"abstain_by {score.name!r} gives values of shape {np.shape(values)} for 2 inputs; it must give (2,)"
        )


def fit_score(
    score: Score, posterior: Posterior, likelihood: Likelihood, train: Split, rows: Tensor
) -> dict[str, dict[str, Tensor]]:
    """What it learned from training inputs, by its name; {} if it learns nothing. `rows` are those of the inputs in
    the data: one that was trained with more than once counts once."""
    _, once = np.unique(rows.numpy(), return_index=True)
    chosen = torch.from_numpy(np.sort(once)).to(train.x.device)
    fitted = fit_scores([score], posterior, likelihood, Split(train.x[chosen], train.y[chosen]))
    if any(value.numel() == 0 or not value.isfinite().all() for each in fitted.values() for value in each.values()):
        raise ValueError(
            f"abstain_by {score.name!r} cannot be learned from the network's features, which hardly differ; choose "
            "another score, or train for longer (epochs)"
        )
    return fitted


# the model file -----------------------------------------------------------------------------------------------------


def restore_score(saved: str, given: str | None) -> Score:
    """The score that a file names; one of the user's own only where the user names it too: importing runs it."""
    if given is not None and given != saved:
        raise ValueError(f"it abstains by {saved!r:.80}, not by {given!r}; leave out abstain_by, or give that")
    if saved not in SCORES and given is None:
        raise ValueError(
            f"it abstains by a score of your own, {saved!r:.80}; load it in Python with abstain_by=, that name"
        )
    return score_named(saved)


def read_fitted(path: Path, score: Score, posterior: Posterior, likelihood: Likelihood) -> dict[str, dict[str, Tensor]]:
    """What a score learned, from its part of a model file: names, types and shapes are checked before it is read."""
    if (score.fit is not None) != path.exists():
        raise ValueError(f"its score is {score.name!r}, and what that learned is absent or too much; save it anew")
    if score.fit is None:
        if "features" not in score.needs:
            _check_values(score, None, likelihood, width=1)
        return {}
    width = sum(int(part.network.get_parameter("head.weight").shape[1]) for _, part in posterior.components())
    try:
        _, entries = list_tensors(path)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"what its score learned cannot be read ({error}); save it anew") from None
    if wrong := next((key for key, entry in entries.items() if entry.dtype not in DTYPES or 0 in entry.shape), None):
        raise ValueError(f"{wrong!r:.80}, of what its score learned, is empty or no number; save it anew")
    if score.shapes is not None:
        _check_shapes({key: entry.shape for key, entry in entries.items()}, score.shapes, width, likelihood.num_classes)
    _, tensors = read_tensors(path)
    if name := find_not_finite(tensors):
        raise ValueError(f"what its score learned has NaN or infinite values, in {name!r:.80}; save it anew")
    _check_values(score, tensors, likelihood, width)
    return {score.name: tensors}


def _check_shapes(
    stored: Mapping[str, tuple[int, ...]], declared: Mapping[str, tuple[str, ...]], width: int, classes: int
) -> None:
    """A dimension has one size throughout; those of features and classes are the network's, others have a limit."""
    sizes = {"features": width, "classes": classes}
    limits = {"inputs": LEARNT_FROM, "directions": width, "all directions": width, "seen classes": classes}
    if stored.keys() != declared.keys():
        raise ValueError("what its score learned has other names than it should; save it anew")
    for key, names in declared.items():
        right = len(names) == len(stored[key]) and all(
            sizes.setdefault(name, size) == size and size <= limits.get(name, size)
            for name, size in zip(names, stored[key], strict=True)
        )
        if not right:
            raise ValueError(f"{key!r}, of what its score learned, is {stored[key]}, not as its network; save it anew")
