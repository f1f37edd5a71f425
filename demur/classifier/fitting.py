"""The parts of a fit: the outliers that it shows, its data, its recipe and inference, and what it reports."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from demur.classifier.decision import Decision
from demur.classifier.held_out import FEWEST, Hashes, split_outliers
from demur.inference import Inference, KroneckerLaplace, Laplace
from demur.methods import Method
from demur.metrics import Prediction
from demur.networks import Network
from demur.outliers.sharpness import LEAK, auroc_by_sharpness
from demur.outliers.synthetic import BY_DEFAULT
from demur.outliers.values import Given, Leaf, SpectrumMatched, Synthetic, build, given, leaves, mix, parse
from demur.posterior import Posterior
from demur.scores import Score
from demur.streams import generator_for
from demur.training_data import Augment, OutlierSource, Recipe, Split, TrainingData

if TYPE_CHECKING:
    from demur.classifier.estimator import Classifier

NO_OUTLIERS = "none"
MIDDLE = 64  # pixels of an image by which sharpness is told


@dataclass(frozen=True)
class ShownOutliers:
    """What a fit trains with as outliers, and how the report calls them: see `outliers_in`."""

    name: str = NO_OUTLIERS
    source: OutlierSource | None = None
    given: Tensor | None = None  # of the caller's, those that are trained with
    unseen: Tensor | None = None  # held out, to measure abstention on


@dataclass(frozen=True)
class FitData:
    """What a fit works with, as the network takes it."""

    train: Split
    tuning: Split
    calibration: Split
    outliers: OutlierSource | None
    unseen: Tensor | None  # outliers that were held out
    rows: Tensor  # of X, for each training input: those of rare classes may be trained with several times

    @property
    def num_trained(self) -> int:
        """Inputs that are trained with, each counted once."""
        return len(self.rows.unique())

    @property
    def num_held_out(self) -> int:
        return len(self.tuning) + len(self.calibration) + (0 if self.unseen is None else len(self.unseen))

    def training(self, augment: Augment | None) -> TrainingData:
        """The part of it that inference may see."""
        return TrainingData(self.train, self.tuning, self.outliers, augment)


@dataclass(frozen=True)
class Plan:
    """What is settled before training."""

    inference: Inference
    network: Network
    recipe: Recipe
    score: Score  # that the model will abstain by
    continued: Mapping[str, Any] | None  # for the report: what the network of a continued model begins with


def gather_outliers(
    model: "Classifier", outliers: Any, inliers: Tensor, held_out: Tensor, seed: int, known: Hashes | None
) -> ShownOutliers:
    """The outliers that were given to fit, or that are made from the inliers.

    `held_out` are inliers that are not trained with, to make unseen outliers from; `known` are the hashes of what
    earlier fits held out.
    """
    synthetic = parse(model.synthetic) if isinstance(model.synthetic, str) else model.synthetic
    if model.likelihood_.outside is None:
        if outliers is not None or synthetic is not None:
            named = getattr(model.method, "name", model.method)
            raise ValueError(
                f"outliers were given, but method {named!r} does not train with them; choose one with '+nc', "
                "'+sl', '+ml' or '+oe', or leave them out"
            )
        return ShownOutliers()
    if isinstance(outliers, str):
        raise ValueError(
            f"outliers {outliers!r} is a name; give inputs like X, or Classifier(synthetic={outliers!r}) to have "
            "some made from X"
        )
    kind, groups = model.preprocessing_.synthetic_kind, getattr(model.preprocessing_, "groups", ())
    # whatever else is shown, a category or a gap that was never seen is to count against an input
    unseen_cells = [Synthetic("unseen")] if any(group.unseen for group in groups) else []
    if outliers is None:
        shown = mix(synthetic or parse(BY_DEFAULT[kind]), *unseen_cells)
        if any(isinstance(leaf, Given | SpectrumMatched) for leaf in leaves(shown)):
            raise ValueError(f"synthetic {str(shown)!r} goes beside real outliers, and there are none; give some")
        source = build(shown, kind, inliers, groups=groups)
        if kind == "texts":
            warnings.warn(
                "outliers of texts are made from their own words; real ones do better: any other texts at all, "
                "as fit(X, y, outliers=texts)",
                stacklevel=5,
            )
        held_out_source = build(shown, kind, held_out, groups=groups)
        unseen = held_out_source.epoch(generator_for("unseen outliers", seed))
        return ShownOutliers(str(shown), source, unseen=unseen)
    x = model.inputs(outliers, "outliers")
    trained, held_out_outliers = split_outliers(x, model.validation, seed, known)
    shown = mix(given(), *(leaves(synthetic) if synthetic else ()), *unseen_cells)
    if kind == "images" and not any(isinstance(leaf, SpectrumMatched) for leaf in leaves(shown)):
        warn_if_sharpness_tells(inliers, trained)
    source = build(shown, kind, inliers, given=trained, groups=groups)
    return ShownOutliers(f"{len(x)} {shown}", source, trained, held_out_outliers)


def outliers_in(report: Mapping[str, Any]) -> tuple[int, list[Leaf]]:
    """How many outliers were given to the fit of this report, and what was shown: none where nothing was."""
    count, _, name = str(report.get("outliers", NO_OUTLIERS)).rpartition(" ")
    return int(count or 0), [] if name == NO_OUTLIERS else list(leaves(parse(name)))


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
        stacklevel=6,
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
            stacklevel=6,
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
