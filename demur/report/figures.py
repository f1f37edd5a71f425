"""Figures, drawn without a display."""

from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from demur.inference import MAP, Inference, Laplace
from demur.likelihoods import LIKELIHOODS
from demur.predictive import predict
from demur.study.grid import setting
from demur.tasks import Split, load

# prior precisions are fixed here, since a tuned one can run to the MAP network; the Dirichlet's information does not
# vanish at confident logits as the Categorical's does, so SL needs a smaller one
TOY_COLUMNS: dict[str, tuple[Inference, str]] = {
    "OE": (MAP(), "oe"),
    "LA+NC": (Laplace(prior_precision=300.0), "nc"),
    "LA+SL": (Laplace(prior_precision=10.0), "sl"),
    "LA+ML": (Laplace(prior_precision=300.0), "ml"),
    "LA+OE": (Laplace(prior_precision=300.0), "oe"),
}
TOY_HALF_WIDTHS = {"near the data": 7.0, "zoomed out": 70.0}
PIXELS = 150


def draw_toy(path: Path) -> None:
    """Confidence in the plane around four classes, near and zoomed out, under the paper's five methods."""
    task, given = load("blobs"), setting("blobs", "la")
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    axes = figure.subplots(len(TOY_HALF_WIDTHS), len(TOY_COLUMNS), squeeze=False)
    for column, (title, (inference, likelihood_name)) in enumerate(TOY_COLUMNS.items()):
        likelihood = LIKELIHOODS[likelihood_name](task.num_classes)
        posterior = inference.fit(given.network, likelihood, task, given.recipe)
        axes[0, column].set_title(title)
        for row, half in enumerate(TOY_HALF_WIDTHS.values()):
            axis = axes[row, column]
            line = torch.linspace(-half, half, PIXELS)
            prediction = predict(posterior, likelihood, torch.cartesian_prod(line, line), batch_size=4096)
            confidence = prediction.probs.amax(1).reshape(PIXELS, PIXELS).T
            extent = (-half, half, -half, half)
            image = axis.imshow(confidence.numpy(), vmin=0, vmax=1, cmap="cividis", origin="lower", extent=extent)
            _scatter(axis, task.train, size=10 / half)
            axis.set(xticks=[], yticks=[], xlim=(-half, half), ylim=(-half, half))
    for axis, (where, half) in zip(axes[:, 0], TOY_HALF_WIDTHS.items(), strict=True):
        axis.set_ylabel(f"{where} (±{half:g})")
    figure.colorbar(image, ax=axes, label="confidence", shrink=0.95, pad=0.01)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _scatter(axis: Axes, points: Split, size: float) -> None:
    for label, colour in enumerate(("#d55e00", "#56b4e9", "#cc79a7", "#f0f0f0")):
        x = points.x[points.y == label]
        axis.scatter(x[:, 0], x[:, 1], s=size, color=colour, linewidths=0)
