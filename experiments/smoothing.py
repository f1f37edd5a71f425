"""Which smoothing of soft labels did the paper use? The published convention at four of them, as a study.

    demur study experiments/smoothing.py --dry-run
    demur study experiments/smoothing.py --runs runs/smoothing

Printed, of `la+sl`: confidence on MNIST's test images 99.1, mean FPR95 of Fashion-MNIST 5.0.
"""

from functools import partial
from itertools import product

from demur.likelihoods import soft_labels
from demur.paper.conventions import resolve
from demur.study.grid import Cell, Study

sl_1e6 = partial(soft_labels, smoothing=1e-6)
sl_1e8 = partial(soft_labels, smoothing=1e-8)
sl_1e10 = partial(soft_labels, smoothing=1e-10)
sl_1e30 = partial(soft_labels, smoothing=1e-30)

grid = Study(
    "smoothing",
    tuple(
        Cell(task, f"{inference}+experiments.smoothing:{likelihood}", convention="published")
        for task, inference, likelihood in product(
            ("mnist", "fashion_mnist"), ("la", "vb"), ("sl_1e6", "sl_1e8", "sl_1e10", "sl_1e30")
        )
    ),
    resolve,
)
