"""What a fit makes of a pretrained backbone's features: all it sees of inputs, or a head to start tuning from."""

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from demur.classifier.backbones import Backbone, suggest_quicker
from demur.classifier.builders import builder
from demur.classifier.features import BATCH, Encoder, Features, Scaling
from demur.classifier.fitting import FitData
from demur.classifier.heads import Started
from demur.classifier.limits import LONG
from demur.distributed import as_the_first_says
from demur.inference import MAP
from demur.likelihoods import Likelihood
from demur.posterior import Point
from demur.streams import generator_for
from demur.training import observed
from demur.training_data import Fixed, Split, TrainingData

FEWEST_ENCODED = 2_000  # outliers that are worth encoding, however few inliers there are
SHARE = 0.75  # of what is left of a time limit, the fraction that features may take
TO_START = 1_000  # inliers, and as many outliers, that a head is trained with before the backbone is tuned
SHARE_TO_START = 0.1  # of what is left of a time limit


def encode_data(
    data: FitData,
    backbone: Backbone,
    device: torch.device,
    cache: str | Path | None,
    encoder: Encoder | None,
    *,
    seconds_left: float | None = None,
) -> tuple[Encoder, FitData]:
    """The data as a frozen backbone's features, scaled by those of the training inputs; of outliers no more than are
    worth their time.

    The head of an adopted network is trained already, and takes features as they are. A model that is continued has an
    `encoder`. Where `seconds_left` are too few for all, some of the training inputs and of the outliers are left out.
    """
    begun = time.perf_counter()
    trunk = backbone.trunk if encoder is None else encoder.trunk
    compute = Features(trunk, device, None if cache is None else Path(cache))
    held_out = [Split(compute(split.x), split.y) for split in (data.tuning, data.calibration)]
    train = data.train.x
    pool, unseen = train[:0], train[:0] if data.unseen is None else data.unseen
    if data.outliers is not None:
        pool = data.outliers.epoch(generator_for("features"))
        most = max(FEWEST_ENCODED, len(data.train))
        pool = pool[torch.randperm(len(pool), generator=generator_for("features"))[:most]]
    order = _one_of_each_first(data.train.y)
    orders = order, torch.arange(len(pool)), torch.arange(len(unseen))
    left = None if seconds_left is None else seconds_left - (time.perf_counter() - begun)
    share = _share_in_time(
        compute, list(zip((train, pool, unseen), orders, strict=True)), left, suggest_quicker(backbone)
    )
    rows = torch.arange(len(order))
    if share < 1:
        counts = [max(BATCH, len(data.train.y.unique()), math.floor(share * len(each))) for each in orders]
        rows = order[: counts[0]].sort().values
        train, pool, unseen = train[rows], pool[: counts[1]], unseen[: counts[2]]
    first = compute(train)
    if encoder is None:
        width = first.shape[1]
        scaling = Scaling.of(first) if backbone.head is None else Scaling((0.0,) * width, (1.0,) * width)
        encoder = Encoder(trunk, scaling)
    scale = encoder.scaling
    tuning, calibration = (Split(scale(split.x), split.y) for split in held_out)
    outliers = None if data.outliers is None else Fixed(scale(compute(pool)))
    measured = None if data.unseen is None else scale(compute(unseen))
    trained = Split(scale(first), data.train.y[rows])
    return encoder, FitData(trained, tuning, calibration, outliers, measured, data.rows[rows])


def _one_of_each_first(y: Tensor) -> Tensor:
    """An order of the rows: one of each class, then the others as they come."""
    first = torch.zeros(len(y), dtype=torch.bool)
    for code in y.unique():
        first[(y == code).nonzero()[0]] = True
    return torch.cat([first.nonzero()[:, 0], (~first).nonzero()[:, 0]])


def _share_in_time(
    compute: Features, inputs: Sequence[tuple[Tensor, Tensor]], seconds_left: float | None, hint: str
) -> float:
    """The share of each set of inputs that there is time for, in the order beside it; said where it is not all."""
    # of each input that is yet to be computed, what share of its set goes up to it
    upto = torch.cat([(order.argsort()[compute.missing(x)] + 1) / len(x) for x, order in inputs if len(x)])
    upto = upto.sort().values
    expected = len(upto) * compute.pace
    if seconds_left is None:
        if expected > LONG:
            kept = "" if compute.cache else "; with cache=FOLDER the next fit need not compute them again"
            warnings.warn(
                f"the backbone's features of {len(upto):,} inputs will take about {expected / 60:.0f} minutes here; "
                f"quicker: {hint}time_limit='5m', or fewer inputs and outliers{kept}",
                stacklevel=5,
            )
        return 1.0
    there_is_time_for = int(max(0.0, SHARE * seconds_left) / compute.pace) if compute.pace else len(upto)
    share = float(upto[there_is_time_for]) if there_is_time_for < len(upto) else 1.0
    share = as_the_first_says(share)[0]
    if share < 1:
        again = ", or the same again: features are kept" if compute.cache else ""
        warnings.warn(
            f"there is time for the features of {share:.0%} of the inputs and outliers, and the model learns from "
            f"these alone; give more time (time_limit){again}",
            stacklevel=5,
        )
    return share


def start_tuned(
    backbone: Backbone,
    tune: str,
    likelihood: Likelihood,
    data: TrainingData,
    seed: int,
    cache: str | Path | None,
    seconds_left: float | None = None,
) -> Started:
    """The network to tune, under a head that was trained on features of the frozen backbone.

    A fresh head would first have the backbone learn from errors that are the head's own, and forget.
    """
    compute = Features(backbone.trunk, data.device, None if cache is None else Path(cache))
    order = _one_of_each_first(data.train.y.cpu())
    first = compute(data.train.x[order[:BATCH]])
    width, most = first.shape[1], TO_START
    if seconds_left is not None and compute.pace:
        most = min(most, int(SHARE_TO_START * max(0.0, seconds_left) / (2 * compute.pace)))
    most = max(BATCH, int(as_the_first_says(most)[0]))
    rows = order[:most].to(data.device)
    features, source = compute(data.train.x[rows]), None
    scaling = Scaling.of(features)
    if likelihood.outside is not None and data.outliers is not None:
        pool = data.outliers.epoch(generator_for("features", device=data.device))
        some = torch.randperm(len(pool), generator=generator_for("features"))[:most].to(data.device)
        source = Fixed(scaling(compute(pool[some])))
    on_features = TrainingData(Split(scaling(features), data.train.y[rows].cpu()), outliers=source)
    recipe = replace(backbone.recipe("head", len(rows)), seed=seed)
    with observed(lambda report: None):  # it is no network of the fit's
        posterior = MAP().fit(builder("linear", "tables", (width,)), likelihood, on_features, recipe)
    assert isinstance(posterior, Point)
    trained = posterior.network.get_submodule("head")
    assert isinstance(trained, nn.Linear)
    head = nn.Linear(width, trained.out_features)
    mean, scale = torch.tensor(scaling.mean), torch.tensor(scaling.scale)
    with torch.no_grad():  # on features as they come
        head.weight.copy_(trained.weight / scale)
        head.bias.copy_(trained.bias - head.weight @ mean)
    return Started(head, backbone.trunk, last=tune == "last")
