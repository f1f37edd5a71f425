"""How far sharpness alone tells a task's outliers from its inliers: `python tests/sharpness.py DATA [--task cifar10]`.

A logistic regression sees nothing of a picture but its power at each radial frequency, in logarithms. It learns to tell
training outliers from half the test pictures and is tried on the other half and on every OOD set, with the
outliers as they are and levelled. Each line: AUROC, inliers against the set, and FPR95, in per cent.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from demur.metrics import Separation
from demur.study.run import FAR_AWAY
from demur.tasks import Store, load
from demur.tasks.base import as_input
from demur.tasks.made import LEVELLED
from demur.tasks.outliers import cosines


def log_power(x: Tensor) -> np.ndarray:
    """By radial frequency, brightness left out: (N, C, H, W) to (N, frequencies)."""
    down, across = (cosines(size) for size in x.shape[2:])
    power = (down @ as_input(x) @ across.mT).square().mean(1).flatten(1)
    radius = torch.cartesian_prod(*(torch.arange(float(size)) for size in x.shape[2:])).norm(dim=1).round().long()
    of_each = [power[:, radius == each].mean(1) for each in radius.unique()[1:]]
    return torch.stack(of_each, 1).clamp_min(1e-9).log().numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--task", default="cifar10")
    given = parser.parse_args()
    store, usual = Store(given.data), load(given.task, store=Store(given.data))
    for outliers in (usual.trained_with, f"{usual.trained_with}_{LEVELLED}"):
        task = load(given.task, store=store, outliers=outliers)
        inside = log_power(task.test.x)
        half = len(inside) // 2
        outside = log_power(task.outliers.epoch(torch.Generator().manual_seed(0))[: 2 * half])
        seen = np.concatenate([inside[:half], outside[:half]])
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        model.fit(seen, np.repeat([0, 1], half))

        print(f"{outliers}: AUROC, FPR95")
        tried = {name: log_power(x) for name, x in task.ood_test.items() if name != FAR_AWAY}
        for name, features in {outliers: outside[half:], **tried}.items():
            found = Separation(-model.decision_function(inside[half:]), -model.decision_function(features))
            print(f"  {name:40} {100 * found.auroc:5.1f} {100 * found.fpr95:5.1f}")


if __name__ == "__main__":
    main()
