"""Going on from a fitted model: the same kind of input and network, its weights, and the rows that it held out.

Inputs are read as the fitted model reads them, so that weights keep their meaning. A class is found again by its name;
the head gets a fresh row for each new one. Rows that were held out, and rows that were trained with, are known by their
hashes: a threshold must not be set by inputs that the weights were trained with, by whichever of several fits.
"""

import hashlib
import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from demur.classifier import heads, kinds
from demur.classifier.backbones import Backbone
from demur.classifier.builders import describe_network
from demur.classifier.decision import least_count
from demur.likelihoods import Likelihood
from demur.networks import HeadedNetwork, Network
from demur.posterior import Posterior
from demur.streams import generator_for

if TYPE_CHECKING:
    from demur.classifier.estimator import Classifier

AT_ONCE = 4096  # rows that are read to be hashed
PARTS = ("tuning", "calibration", "outliers")
TRAINED = "trained"
SHORT = 8  # digits of a hash of what was trained with: an input that is taken for such by chance is not held out
MOST = 2_000_000  # of these; a model file has limits
Hashes = Mapping[str, list[str]]  # of what was held out, by PARTS, and of what was trained with, inliers and outliers
Rows = tuple[Tensor, Tensor, Tensor]  # to train, to tune and to calibrate with


@dataclass(frozen=True)
class Continued:
    """A network function whose networks begin with fitted weights, wherever shapes agree.

    An ensemble's members begin with those of its members: the seed that a network is made under says which.
    """

    network: Network
    states: tuple[Mapping[str, Tensor], ...] = field(repr=False)
    head: str | None  # the layer whose outputs are the logits
    rows: tuple[tuple[int, int], ...]  # of the head: new, old

    def __call__(self, num_outputs: int) -> nn.Module:
        network = self.network(num_outputs)
        state = self.states[torch.initial_seed() % len(self.states)]
        with torch.no_grad():
            for name, slot in network.state_dict().items():
                old = state.get(name)
                if old is None:
                    continue
                if self._is_head(name) and slot.shape[1:] == old.shape[1:]:
                    for new_row, old_row in self.rows:
                        slot[new_row] = old[old_row]
                elif slot.shape == old.shape:
                    slot.copy_(old)
        return network

    def _is_head(self, name: str) -> bool:
        return self.head is not None and name.rpartition(".")[0] == self.head

    def count(self, num_outputs: int) -> tuple[int, int]:
        """Weights that are taken over, and all of them."""
        with torch.random.fork_rng(devices=[]):
            parameters = dict(self.network(num_outputs).named_parameters())
        taken = 0
        for name, value in parameters.items():
            old = self.states[0].get(name)
            if old is not None and self._is_head(name) and value.shape[1:] == old.shape[1:]:
                taken += len(self.rows) * value[0].numel()
            elif old is not None and value.shape == old.shape:
                taken += value.numel()
        return taken, sum(value.numel() for value in parameters.values())


def take_settings(model: "Classifier", before: "Classifier", X: Any) -> None:
    """What is not learned again: how inputs are read, the backbone, the network."""
    known = before.preprocessing_.kind
    given = known if known == "ready" else kinds.kind_of(X)
    if given != known:
        raise ValueError(f"X are {given}, and the model that is gone on from is for {known}; give it {known}")
    _check_settings(model, before)
    for name in ("preprocessing_", "backbone_", "encoder_", "network_", "wraps_logits_"):
        setattr(model, name, getattr(before, name))
    for name in ("n_features_in_", "feature_names_in_"):
        if hasattr(before, name):
            setattr(model, name, getattr(before, name))


def _check_settings(model: "Classifier", before: "Classifier") -> None:
    """Refuse another backbone or network than the weights are of."""
    backbone, network = before.backbone_, before.network_
    settled = {"tune": backbone is None or model.tune == before.report_.get("tune", model.tune)}
    if isinstance(model.backbone, str):
        settled["backbone"] = backbone is not None and model.backbone == backbone.name
    elif model.backbone is not None:
        settled["backbone"] = backbone is not None and _is_of(backbone, model.backbone)
    if isinstance(model.network, str):
        named = describe_network(network)
        settled["network"] = named is not None and named["name"] == model.network
    elif callable(model.network) and backbone is None:
        settled["network"] = model.network is network or model.network in getattr(network, "args", ())
    for name, same in settled.items():
        if not same:
            raise ValueError(
                f"{name} {getattr(model, name)!r:.60} is not that of the model that is gone on from; leave it as it "
                "was, or fit a new one with warm_start=False"
            )


def _is_of(backbone: Backbone, given: Any) -> bool:
    """A module is copied into the backbone that is made of it."""
    return backbone is given or (not isinstance(given, Backbone) and type(given).__name__ == backbone.name)


def continue_network(model: "Classifier", before: "Classifier", x: Tensor) -> tuple[Network, dict[str, Any]]:
    """The network function to fit with, and for the report what it begins with; `x` are a few inputs."""
    states = states_of(before.posterior_)
    new, old = [list(map(str, each.classes_)) for each in (model, before)]
    rows = [(place, old.index(name)) for place, name in enumerate(new) if name in old]
    if all(has_none(each.likelihood_) for each in (model, before)):
        rows.append((len(new), len(old)))
    head = find_head(next(iter(before.posterior_.components()))[1].network, x)
    network = Continued(model.network_, states, head, tuple(rows))
    taken, total = network.count(model.likelihood_.num_outputs)
    if not taken:
        raise ValueError("the network has no weights of the shapes that the fitted model has; fit a new model instead")
    dropped = [name for name in old if name not in new]
    if dropped:
        shown = ", ".join(dropped[:12])
        warnings.warn(
            f"the model that is gone on from has classes of which there are no inputs, {shown}: the new one does not "
            "have them; give inputs of each, such as those that it was fitted to",
            stacklevel=5,
        )
    told = {"weights": taken, "of": total, "new_classes": [name for name in new if name not in old]}
    return network, told | {"dropped_classes": dropped}


def states_of(posterior: Posterior) -> tuple[dict[str, Tensor], ...]:
    """Of every network that it lies around."""
    return tuple(part.network.state_dict() for _, part in posterior.components())


def has_none(likelihood: Likelihood) -> bool:
    return likelihood.num_outputs > likelihood.num_classes


def find_head(network: nn.Module, x: Tensor) -> str | None:
    if isinstance(network, HeadedNetwork):
        return "head"
    try:
        return heads.find_head(network, x)
    except ValueError:  # a network of one's own whose logits are made otherwise: shapes alone decide
        return None


# what was held out -------------------------------------------------------------------------------------------------


def hash_rows(x: Tensor) -> list[str]:
    """Of each input as the network takes it."""
    return [hashlib.sha256(row.tobytes()).hexdigest()[:16] for row in np.ascontiguousarray(x.numpy(force=True))]


def hash_fitted(
    trained: Sequence[Tensor | None],
    tuned: Tensor,
    calibrated: Tensor,
    outliers: Tensor | None,
    known: Hashes | None,
    first: bool,
) -> Hashes:
    """For a fit that goes on from this one. `known` is what the fits before this one had; `trained` counts outliers.

    What any of them held out, and none was trained with, stays held out. What all of them were trained with is not
    there where a fit before does not say so, or where it is very many.
    """
    seen = {each for x in trained if x is not None for each in hash_rows(x)}
    hashes = {
        part: [] if x is None else hash_rows(x) for part, x in zip(PARTS, (tuned, calibrated, outliers), strict=True)
    }
    for part, own in hashes.items():
        own += [each for each in dict.fromkeys((known or {}).get(part, ())) if each not in seen and each not in own]
    if first or (known is not None and TRAINED in known):
        every = sorted({*(each[:SHORT] for each in seen), *(known or {}).get(TRAINED, ())})
        if len(every) <= MOST:
            hashes[TRAINED] = every
    return hashes


def find_rows(hashes: list[str], known: Collection[str]) -> Tensor:
    """(N,): which are among the known ones."""
    known = frozenset(known)
    return torch.tensor([each in known for each in hashes], dtype=torch.bool)


def find_trained(hashes: list[str], known: Hashes) -> Tensor:
    """(N,): which inputs a fit before was trained with, or may have been."""
    if TRAINED not in known:
        return torch.ones(len(hashes), dtype=torch.bool)
    return find_rows([each[:SHORT] for each in hashes], known[TRAINED])


def split_rows_again(
    inputs: Any, codes: Tensor, model: "Classifier", before: "Classifier", seed: int, usual: Rows
) -> Rows | None:
    """Rows to train, to tune and to calibrate with: those are held out that were held out before, and some of new
    classes; where they are too few, also others that no fit before was trained with, as many as in the `usual` split.

    None where all rows are new to it, as far as it knows, or where it knows nothing; any rows will do then.
    """
    known = before.held_out_hashes_
    if known is None:
        warnings.warn(
            "the model that is gone on from does not say which inputs it held out; if it was trained with some of "
            "these, set the threshold by fresh inliers in the end (demur calibrate)",
            stacklevel=4,
        )
        return None
    count, hashes = len(codes), list[str]()
    for rows in torch.arange(count).split(AT_ONCE):
        hashes += hash_rows(model.preprocessing_.read(kinds.take_rows(inputs, rows)))
    tuning, calibration = (find_rows(hashes, known[part]) for part in PARTS[:2])
    trained = find_trained(hashes, known) & ~(tuning | calibration)
    if not (tuning | calibration).any() and (TRAINED not in known or not trained.any()):
        return None
    order = torch.randperm(count, generator=generator_for("held out", seed))
    old = set(map(str, before.classes_))
    for code, name in enumerate(map(str, model.classes_)):
        rows = order[codes[order] == code]
        if name not in old:
            each = min(math.ceil(model.validation * len(rows) / 2), (len(rows) - 1) // 2)
            tuning[rows[:each]], calibration[rows[each : 2 * each]] = True, True
    calibration &= ~tuning
    for part, least, wanted in ((calibration, least_count(model.coverage), usual[2]), (tuning, 1, usual[1])):
        if part.sum() < min(least, len(wanted)):
            free = order[~(tuning | calibration | trained)[order]]
            part[free[: len(wanted) - int(part.sum())]] = True
    if not tuning.any() and calibration.sum() > 1:
        tuning[calibration.nonzero()[0]] = True
        calibration &= ~tuning
    for code in range(len(model.classes_)):  # one of each class is trained with
        rows = order[codes[order] == code]
        if (tuning | calibration)[rows].all():
            tuning[rows[0]] = calibration[rows[0]] = False
    if not (tuning.any() and calibration.any()):
        raise ValueError(
            f"the {count} inputs are such as the model was trained with, and those cannot set its threshold; give "
            "all that it was fitted to, with those that it held out, or fresh ones as well"
        )
    train = ~(tuning | calibration)
    return order[train[order]], order[tuning[order]], order[calibration[order]]


def hashes_to_json(hashes: Hashes | None) -> dict[str, Any] | None:
    """The many that were trained with as one string."""
    if hashes is None:
        return None
    if TRAINED not in hashes:
        return dict(hashes)
    return {**hashes, TRAINED: "".join(hashes[TRAINED])}


def hashes_from_json(saved: Any) -> Hashes | None:
    """As saved; None in files that do not have them."""
    if saved is None:
        return None
    trained = saved.get(TRAINED, "")
    held_out = {part: saved[part] for part in PARTS}
    if {*saved} - {TRAINED} != {*PARTS} or not all(isinstance(each, str) for part in saved.values() for each in part):
        raise TypeError("what it held out is no list of hashes")
    if not isinstance(trained, str) or len(trained) % SHORT:
        raise TypeError("what it was trained with is no row of hashes")
    hashes = {part: list(each) for part, each in held_out.items()}
    if TRAINED in saved:
        hashes[TRAINED] = [trained[at : at + SHORT] for at in range(0, len(trained), SHORT)]
    return hashes
