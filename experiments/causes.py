"""Train a row as in the study but for one thing, and see what that changes: what explains a difference from the paper?

    python -m experiments.causes DATA cifar10 map+oe --outliers tiny_imagenet32_spectrum_matched
    python -m experiments.causes DATA cifar10 map+nc --photographs 10000 --epochs 30
    python -m experiments.causes DATA cifar10 map+oe --kinds 12 --width 1 --limit 10000 --epochs 10

Each run prints a line of JSON: what was changed, accuracy and ECE as published, and FPR95 by OOD set (by max
probability; with a none class by its share as well), in per cent.
"""

import argparse
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from demur.measures import ood_metrics
from demur.metrics import METRICS
from demur.networks import Network
from demur.paper.conventions import resolve
from demur.paper.grid import CONVENTIONS, SETTINGS, WIDE_RESNET, Cell
from demur.predictive import predict
from demur.study.cells import load_data
from demur.study.run import FAR_AWAY
from demur.tasks import Store, load
from demur.tasks.images import CroppedOrResized
from demur.training_data import Fixed

WIDE = [task for task, settings in SETTINGS.items() if settings is WIDE_RESNET]


class Apart(nn.Module):
    """Inliers and outliers are normalised each by their own statistics in training, as two batches would be."""

    def __init__(self, network: Network, outputs: int) -> None:
        super().__init__()
        self.network = network(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.network(part) for part in x.chunk(2)]) if self.training else self.network(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("task")
    parser.add_argument("method")
    parser.add_argument("--convention", choices=CONVENTIONS, default="published")
    parser.add_argument(
        "--augmentation", choices=("on", "inliers", "off"), default="on", help="inliers: of these alone"
    )
    parser.add_argument("--outliers", help="others to train with, such as tiny_imagenet32_spectrum_matched")
    parser.add_argument("--photographs", type=int, help="so many of the training outliers, drawn at random")
    parser.add_argument("--kinds", type=int, help="training outliers of so many of their classes, drawn at random")
    parser.add_argument("--overlap", choices=("on", "off"), default="on", help="off: no outliers of the task's classes")
    parser.add_argument("--width", type=int, help="of a wide residual network; the paper's is 4")
    parser.add_argument("--dropout", type=float, help="of a wide residual network; the paper's is 0.3")
    parser.add_argument("--passes", type=int, choices=(1, 2), default=1, help="2: inliers and outliers one by one")
    parser.add_argument("--crops", choices=("on", "off"), default="on", help="of photographs larger than the inliers")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()

    store = Store(given.data)
    cell = Cell(
        given.task, given.method, given.seed, given.convention, given.outliers, epochs=given.epochs, limit=given.limit
    )
    fit = resolve(cell, store)
    for name in ("width", "dropout"):
        if (value := getattr(given, name)) is not None:
            if given.task not in WIDE:
                parser.error(f"--{name} {value}: the network of {given.task} has none; leave it out")
            fit = replace(fit, network=partial(fit.network, **{name: value}))
    if given.passes == 2:
        fit = replace(fit, network=partial(Apart, fit.network))
    task = load_data(fit.data, store, given.device)
    if given.overlap == "off":
        if given.kinds:
            parser.error(f"--overlap off: not with --kinds {given.kinds}; leave one out")
        if not fit.data.augment:
            parser.error(f"--overlap off: not for {given.task} in the published convention; try --convention corrected")
        task = load(given.task, store=store, outliers=given.outliers, limit=given.limit, exclude_overlap=True).to(
            given.device
        )
    if given.augmentation == "inliers" and task.training.augment is None:
        parser.error(f"--augmentation inliers: {given.task} is not augmented in this convention; leave it out")
    if given.augmentation == "off":
        task = replace(task, training=replace(task.training, augment=None))
    if given.augmentation == "inliers" and (augment := task.training.augment):
        task = replace(
            task,
            training=replace(
                task.training, augment=lambda x, draw: torch.cat([augment(x[: len(x) // 2], draw), x[len(x) // 2 :]])
            ),
        )
    rows = torch.randperm(task.training.outliers.shape[0], generator=torch.Generator().manual_seed(0))
    if given.kinds:
        _, kinds = store.images(task.trained_with, "train")
        if kinds is None or given.kinds > kinds.max() + 1:
            parser.error(f"--kinds {given.kinds}: {task.trained_with} has fewer kinds; ask for fewer")
        some = torch.randperm(int(kinds.max()) + 1, generator=torch.Generator().manual_seed(0))[: given.kinds]
        rows = rows[torch.isin(kinds[rows], some)]
    if given.photographs:
        if given.photographs > len(rows):
            parser.error(f"--photographs {given.photographs}: there are {len(rows)}; ask for fewer")
        rows = rows[: given.photographs]
    if (given.kinds or given.photographs) and given.outliers:
        parser.error(f"--outliers {given.outliers}: not with --kinds or --photographs; leave one out")
    if given.kinds or given.photographs:
        kept = {name: images[rows.to(given.device)] for name, images in vars(task.training.outliers).items()}
        task = replace(task, training=replace(task.training, outliers=replace(task.training.outliers, **kept)))
    if given.crops == "off":
        if not isinstance(task.training.outliers, CroppedOrResized):
            parser.error(f"--crops off: the outliers of {given.task} are never cropped; leave it out")
        task = replace(task, training=replace(task.training, outliers=Fixed(task.training.outliers.resized)))
    likelihood = fit.likelihood(task.num_classes)
    posterior = fit.inference.fit(fit.network, likelihood, task.training, fit.recipe)
    test = predict(posterior, likelihood, task.testing.test.x)
    ood = {name: ood_metrics(test, predict(posterior, likelihood, x)) for name, x in task.testing.ood.items()}
    figures = {name: METRICS[name](test, task.testing.test.y.cpu()) for name in ("accuracy_with_none", "ece_published")}
    for metric in ("fpr95", "none_share_fpr95"):
        figures |= {f"{metric} {name}": one[metric] for name, one in ood.items() if name != FAR_AWAY and metric in one}
    said = {name: value for name, value in vars(given).items() if name not in ("data", "device") and value is not None}
    print(json.dumps({**said, **{name: round(100 * value, 2) for name, value in figures.items()}}), flush=True)


if __name__ == "__main__":
    main()
