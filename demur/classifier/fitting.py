"""Which rows a fit holds out, what outliers it shows, its recipe and inference, and what it reports."""

import math
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from demur.classifier.continuing import TRAINED, Hashes, find_rows, find_trained, hash_rows
from demur.classifier.decision import Decision, least_count
from demur.inference import Inference, KroneckerLaplace, Laplace
from demur.methods import Method
from demur.metrics import Prediction
from demur.networks import Network
from demur.outliers.sharpness import LEAK, auroc_by_sharpness
from demur.outliers.synthetic import BY_DEFAULT
from demur.outliers.values import Given, SpectrumMatched, Synthetic, build, leaves, mix, parse
from demur.outliers.values import given as given_ones
from demur.posterior import Posterior
from demur.streams import generator_for
from demur.training_data import OutlierSource, Recipe

if TYPE_CHECKING:
    from demur.classifier.estimator import Classifier

STEADY = 5  # times as many inliers as the guarantee needs
TUNING = 19  # inliers that a prior can be tuned with, where there are few
UNSEEN = 1_000  # outliers to measure with, at most
FEWEST = 20  # outliers of which some can be held out
MIDDLE = 64  # pixels of an image by which sharpness is told


def split_rows(
    labels: Tensor, fraction: float, coverage: float, seed: int, by_class: bool = False, gaps: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows to train, to tune and to calibrate with, at random; one of each class is trained with whatever happens.

    `gaps`, (N, columns), are the empty cells of a table. One row with a gap in each column that has any is trained with
    as well: a gap that only calibrating rows have would look like an outlier's, and set the limit. For the same reason
    more rows calibrate, a fifth at most, so that the limit is not the score of the oddest.
    """
    count, classes = len(labels), labels.unique()
    order = torch.randperm(count, generator=generator_for("held out", seed))
    to_train = [labels == code for code in classes]
    if gaps is not None:
        to_train += [column for column in gaps.T if column.any()]
    first = torch.tensor([int(rows[order].nonzero()[0]) for rows in to_train])
    free = torch.ones(count, dtype=torch.bool).index_fill_(0, first, False)
    each = math.ceil(fraction * count / 2)
    # answers are not spread evenly over the classes, so half as many again
    least = math.ceil(1.5 * len(classes) * least_count(coverage)) if by_class else least_count(coverage)
    calibration = min(max(each, least), count // 3)
    if gaps is not None:
        calibration = max(calibration, min(STEADY * least, count // 5))
    tuning = min(max(each, min(TUNING, count // 10)), count // 3)
    held_out = order[free][: tuning + calibration]
    if len(held_out) < 2:
        raise ValueError(
            f"{count} inputs (n_samples={count}) are too few for {len(classes)} classes: some must be held out; "
            f"give at least {len(classes) + 2}"
        )
    calibration = max(1, min(calibration, len(held_out) - 1))
    train = order[~torch.isin(order, held_out)]
    return train, held_out[calibration:], held_out[:calibration]


def split_outliers(
    outliers: Tensor, fraction: float, seed: int, known: Hashes | None = None
) -> tuple[Tensor, Tensor | None]:
    """Outliers to train with, and some to measure with; None of the latter where there are few.

    Those that the fits before this held out, which are `known`, are held out again, and none that one was trained with.
    """
    order = torch.randperm(len(outliers), generator=generator_for("held out outliers", seed))
    if known is not None:
        hashes = hash_rows(outliers)
        again = find_rows(hashes, known["outliers"])
        if again.any() and not again.all():
            return outliers[~again], outliers[again]
        if TRAINED in known:
            order = order[~find_trained(hashes, known)[order]]
    if min(len(outliers), len(order)) < FEWEST:
        return outliers, None
    count = min(UNSEEN, math.ceil(fraction * len(outliers)), len(order))
    measured = torch.zeros(len(outliers), dtype=torch.bool).index_fill_(0, order[:count], True)
    if measured.all():
        return outliers, None
    return outliers[~measured], outliers[measured]


def gather_outliers(
    model: "Classifier", outliers: Any, inliers: Tensor, held_out: Tensor, seed: int, known: Hashes | None = None
) -> tuple[str, OutlierSource | None, Tensor | None, Tensor | None]:
    """Training outliers by name and source, held-out ones of the same sort to measure abstention on, and those of the
    given ones that are trained with.

    `known` is what the fits before this held out.
    """
    synthetic = parse(model.synthetic) if isinstance(model.synthetic, str) else model.synthetic
    if model.likelihood_.outside is None:
        if outliers is not None or synthetic is not None:
            named = getattr(model.method, "name", model.method)
            raise ValueError(
                f"outliers were given, but method {named!r} does not train with them; choose one with '+nc', "
                "'+sl', '+ml' or '+oe', or leave them out"
            )
        return "none", None, None, None
    if isinstance(outliers, str):
        raise ValueError(
            f"outliers {outliers!r} is a name; give inputs like X, or Classifier(synthetic={outliers!r}) to have "
            "some made from X"
        )
    kind, groups = model.preprocessing_.synthetic_kind, getattr(model.preprocessing_, "groups", ())
    # whatever else is shown, a category or a gap that was never seen is to count against an input
    unseen_too = [Synthetic("unseen")] if any(group.unseen for group in groups) else []
    if outliers is None:
        shown = mix(synthetic or parse(BY_DEFAULT[kind]), *unseen_too)
        if any(isinstance(leaf, Given | SpectrumMatched) for leaf in leaves(shown)):
            raise ValueError(f"synthetic {str(shown)!r} goes beside real outliers, and there are none; give some")
        source = build(shown, kind, inliers, groups=groups)
        if kind == "texts":
            warnings.warn(
                "outliers of texts are made from their own words; real ones do better: any other texts at all, "
                "as fit(X, y, outliers=texts)",
                stacklevel=4,
            )
        held_out_source = build(shown, kind, held_out, groups=groups)
        return str(shown), source, held_out_source.epoch(generator_for("unseen outliers", seed)), None
    given = model.inputs(outliers, "outliers")
    trained, unseen = split_outliers(given, model.validation, seed, known)
    shown = mix(given_ones(), *(leaves(synthetic) if synthetic else ()), *unseen_too)
    if kind == "images" and not any(isinstance(leaf, SpectrumMatched) for leaf in leaves(shown)):
        warn_if_sharpness_tells(inliers, trained)
    return f"{len(given)} {shown}", build(shown, kind, inliers, given=trained, groups=groups), unseen, trained


def resolve_recipe(model: "Classifier", count: int, seed: int) -> Recipe:
    """What goes with the kind and the amount of data, and in its place what the estimator was given."""
    default = model.backbone_.recipe(model.tune, count) if model.backbone_ else model.preprocessing_.recipe(count)
    given = {name: getattr(model, name) for name in ("epochs", "batch_size", "lr")}
    settings = {name: value for name, value in given.items() if value is not None}
    numbers = {name: value.item() if isinstance(value, np.generic) else value for name, value in settings.items()}
    return replace(default, seed=seed, **numbers)


def resolve_inference(
    method: Method, network: Network, num_outputs: int, by_name: bool, pretrained: bool = False
) -> Inference:
    """The method's inference; Laplace is restricted to the head where the trunk is pretrained or recurrent.

    A recurrent trunk has no fast curvature. A `Method` value that asks for all layers of one is refused; one that asks
    for all layers of a pretrained trunk is obeyed.
    """
    if not isinstance(method.inference, Laplace | KroneckerLaplace) or method.inference.over == "head":
        return method.inference
    if pretrained:
        return replace(method.inference, over="head") if by_name else method.inference
    with torch.random.fork_rng(devices=[]):
        recurrent = any(isinstance(module, nn.RNNBase) for module in network(num_outputs).modules())
    if recurrent and not by_name:
        raise ValueError("Laplace over 'all' layers of a recurrent network would take hours; give Laplace(over='head')")
    return replace(method.inference, over="head") if recurrent else method.inference


def measure_held_out(
    decision: Decision,
    classes: np.ndarray,
    tuned: tuple[Prediction, Tensor],
    calibrated: tuple[Prediction, Tensor],
    unseen: Prediction | None,
) -> dict[str, Any]:
    """Accuracy and coverage on held-out inliers, and the fraction of held-out outliers that is abstained on."""
    hits = [(prediction.probs.argmax(1) == y).numpy(force=True) for prediction, y in (tuned, calibrated)]
    accepted = decision.accepts(tuned[0])  # of those that the limits were not chosen by
    y = tuned[1].numpy(force=True)
    report: dict[str, Any] = {
        "accuracy": float(np.concatenate(hits).mean()),
        "coverage": float(accepted.mean()),
        "coverage_by_class": {
            str(name): float(accepted[y == code].mean()) for code, name in enumerate(classes) if (y == code).any()
        },
        "guaranteed": decision.guaranteed,
        "unseen_outliers": 0,
        "outliers_abstained": None,
    }
    if unseen is not None:
        report["unseen_outliers"] = len(unseen)
        report["outliers_abstained"] = abstained = float(1 - decision.accepts(unseen).mean())
        _warn_of_chance(abstained, len(unseen), 1 - decision.coverage)
    return report


def _warn_of_chance(abstained: float, count: int, by_chance: float) -> None:
    """Warn unless the fraction is clearly, by two standard errors, more than that of the inliers."""
    if abstained > by_chance + 2 * math.sqrt(by_chance * (1 - by_chance) / count):
        return
    warnings.warn(
        f"the model abstains on {abstained:.0%} of {count} outliers that it was not shown, hardly more than on inliers "
        f"({by_chance:.0%}): it cannot tell them apart; train for longer (epochs), or show it more or other outliers",
        stacklevel=5,
    )


def warn_if_sharpness_tells(inliers: Tensor, outliers: Tensor) -> None:
    """A network that can tell outliers by their sharpness may learn nothing else of them."""
    if min(len(inliers), len(outliers)) < FEWEST:
        return
    auroc = auroc_by_sharpness(*(_middle(images) for images in (inliers, outliers)))
    if auroc > LEAK:
        warnings.warn(
            f"sharpness alone tells the outliers from the inliers (AUROC {auroc:.3f}); see whether the model does "
            "better with spectrum-matched ones as well: synthetic='spectrum_matched', or --synthetic in the shell",
            stacklevel=5,
        )


def _middle(images: Tensor) -> Tensor:
    """Of large images, enough to see how sharp they are."""
    height, width = images.shape[2:]
    top, left = (max(0, side - MIDDLE) // 2 for side in (height, width))
    return images[:, :, top : top + MIDDLE, left : left + MIDDLE]


def describe_prior(posterior: Posterior) -> dict[str, Any]:
    """The prior precision that Laplace chose, and the curve that it was chosen by."""
    tunings = [tuning for _, part in posterior.components() if (tuning := getattr(part, "tuning", None)) is not None]
    if not tunings:
        return {}
    precisions = [tuning.chosen for tuning in tunings]
    curves = [
        {"precision, nll, accuracy": [list(row) for row in tuning.rows], "map": list(tuning.at_map)}
        for tuning in tunings
    ]
    one = len(tunings) == 1
    return {"prior_precision": precisions[0] if one else precisions, "tuning": curves[0] if one else curves}
