"""How figures are drawn, without a display, to be read at the width of one column of a paper."""

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from demur.inference import INFERENCES, NamedInference
from demur.likelihoods import LIKELIHOODS, NamedLikelihood
from demur.methods import split_method
from demur.metrics import BINS, Array, Prediction, calibration, confidence, ece, right
from demur.paper.further import HALF_WIDTHS, PIXELS
from demur.study.results import Result
from demur.study.run import FAR_AWAY
from demur.tasks import load

# of Okabe and Ito's colours, told apart by all kinds of sight
INSIDE, OUTSIDE, GREY = "#0072b2", "#d55e00", "#999999"
WIDTH = 3.3  # inches: one column
SMALL_PRINT: dict[Any, Any] = {
    **dict.fromkeys(("font.size", "axes.titlesize", "figure.labelsize"), 7),
    **dict.fromkeys(("axes.linewidth", "xtick.major.width", "ytick.major.width"), 0.6),
    **dict.fromkeys(("xtick.major.size", "ytick.major.size"), 2.5),
    "lines.linewidth": 1.0,
    "legend.frameon": False,
}


class Drawing(NamedTuple):
    name: str  # of its files
    caption: str
    figure: Figure


@contextmanager
def one_column_wide(height: float) -> Iterator[Figure]:
    """A figure of one column's width, in small print."""
    with rc_context(SMALL_PRINT):
        yield Figure(figsize=(WIDTH, height), layout="constrained")


def panels(figure: Figure, count: int, columns: int) -> list[Axes]:
    """Axes in rows, as many as are needed, with common scales."""
    rows = -(-count // columns)
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for axis in axes[count:]:
        axis.remove()
    for axis in axes[max(count - columns, 0) : count]:
        axis.tick_params(labelbottom=True)  # where the panel below was left out
    return list(axes[:count])


def save_figure(figure: Figure, stem: Path) -> None:
    """As PNG and SVG, the same bytes for the same data."""
    with rc_context({"svg.hashsalt": "demur"}):
        figure.savefig(stem.with_name(f"{stem.name}.svg"), metadata={"Date": None})
    figure.savefig(stem.with_name(f"{stem.name}.png"), dpi=300)


class Image(NamedTuple):
    """A drawing as a page holds it."""

    name: str
    caption: str
    svg: str  # base64


def save_drawings(drawings: Iterable[Drawing], folder: Path) -> list[Image]:
    images = []
    for name, caption, figure in drawings:
        save_figure(figure, folder / name)
        svg = base64.b64encode((folder / f"{name}.svg").read_bytes()).decode()
        images.append(Image(name, caption, svg))
    return images


# one panel ----------------------------------------------------------------------------------------------------------


def bars_by_confidence(axis: Axes, sure: Array, hit: NDArray[np.bool_]) -> None:
    """Accuracy by confidence; a bar is as dark as its bin is full."""
    count, _, accuracy = calibration(sure, hit)
    axis.plot([0, 1], [0, 1], color="black", linewidth=0.6, linestyle=":")
    for place in np.flatnonzero(count):
        alpha = 0.15 + 0.85 * (count[place] / count.max()) ** 0.5
        axis.bar((place + 0.5) / BINS, accuracy[place], width=0.9 / BINS, color=INSIDE, alpha=alpha)
    axis.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")


def acceptance(inside: Array, outside: Array) -> tuple[Array, Array]:
    """Per cent of out- and inliers at or above a threshold, at 200 thresholds from all to none."""
    sides = [np.sort(side) for side in (outside, inside)]
    thresholds = np.unique(np.concatenate([np.quantile(side, np.linspace(0, 1, 101)) for side in sides]))
    first, second = (100 * (1 - np.append(np.searchsorted(side, thresholds, "left") / len(side), 1)) for side in sides)
    return first, second


def frame_of_roc(axis: Axes, title: str) -> None:
    axis.axhline(95, color="black", linewidth=0.4)
    axis.set_title(title, pad=2)
    axis.set(xlim=(0, 100), ylim=(0, 101), xticks=(0, 50, 100), yticks=(0, 50, 95))


def _line(method: str, x: Sequence[float] | Array = (), y: Sequence[float] | Array = ()) -> Line2D:
    """A colour for a likelihood, a line's style for an inference; those of no known name are grey and dashed."""
    inference, likelihood = split_method(method)
    colour = LIKELIHOODS[likelihood].colour if likelihood in LIKELIHOODS else NamedLikelihood.colour
    dashes = INFERENCES[inference].dashes if inference in INFERENCES else NamedInference.dashes
    return Line2D(x, y, color=colour, linestyle=(0, dashes), label=method)


# a study's figures --------------------------------------------------------------------------------------------------


def draw_planes(planes: Mapping[str, Mapping[str, Prediction]]) -> Figure:
    """Confidence in the plane around the classes, near and zoomed out: a column a method."""
    train = load("blobs").training.train
    figure = Figure(figsize=(0.5 + 2.1 * len(planes), 4.5), layout="constrained")
    axes = figure.subplots(len(HALF_WIDTHS), len(planes), squeeze=False)
    for column, (method, predictions) in enumerate(planes.items()):
        axes[0, column].set_title("OE" if method == "map+oe" else method.upper())
        for axis, (where, half) in zip(axes[:, column], HALF_WIDTHS.items(), strict=True):
            sure = predictions[where].probs.amax(1).reshape(PIXELS, PIXELS).T.numpy()
            extent = (-half, half, -half, half)
            image = axis.imshow(sure, vmin=0, vmax=1, cmap="cividis", origin="lower", extent=extent)
            for label, colour in enumerate(("#d55e00", "#56b4e9", "#cc79a7", "#f0f0f0")):
                axis.scatter(*train.x[train.y == label].T, s=10 / half, color=colour, linewidths=0)
            axis.set(xticks=[], yticks=[], xlim=(-half, half), ylim=(-half, half))
    for axis, (where, half) in zip(axes[:, 0], HALF_WIDTHS.items(), strict=True):
        axis.set_ylabel(f"{where} (±{half:g})")
    figure.colorbar(image, ax=axes, label="confidence", shrink=0.95, pad=0.01)
    return figure


Confidences = Mapping[str, Mapping[str, float]]  # by task and method
FIGURE_1 = {"map+oe": ("OE", "#e69f00"), "de": ("DE", GREY), "vb": ("VB", "#56b4e9"), "la": ("LA", INSIDE)}


def draw_noise_confidence(measured: Confidences, published: Confidences) -> Figure:
    """The paper's first figure: mean confidence on uniform noise; measured as bars, published as diamonds."""
    diamond: dict[str, Any] = {"marker": "D", "color": "white", "mec": "black", "ms": 3.5, "mew": 0.8}
    with one_column_wide(height=1.9) as figure:
        axis = figure.subplots()
        for offset, (method, (_, colour)) in enumerate(FIGURE_1.items()):
            for place, task in enumerate(measured):
                x = place + 0.2 * (offset - 1.5)
                if method in measured[task]:
                    axis.bar(x, 100 * measured[task][method], width=0.18, color=colour)
                if method in published.get(task, {}):
                    axis.plot(x, 100 * published[task][method], **diamond)
        axis.set_xticks(range(len(measured)), [task.replace("_", "\n") for task in measured])
        axis.set(ylabel="mean confidence (%)", ylim=(0, 105))
        marks: list[Artist] = [Patch(color=colour, label=label) for label, colour in FIGURE_1.values()]
        marks.append(Line2D([], [], label="published", **diamond))
        figure.legend(handles=marks, loc="outside upper center", ncols=5, handlelength=1, columnspacing=1)
    return figure


BySeverity = Mapping[str, Mapping[int, Sequence[float]]]  # method to severity to a value for every corruption


def draw_shift(measured: BySeverity, published: BySeverity, label: str) -> Figure:
    """A metric by severity, a box over the corruptions; a panel for every method, so that boxes stay wide enough to
    read. The published boxes stand in grey beside the measured ones."""
    with one_column_wide(height=0.35 + 0.95 * -(-len(measured) // 3)) as figure:
        axes = panels(figure, len(measured), columns=3)
        boxes = [by_severity for methods in (measured, published) for by_severity in methods.values()]
        highest = 105 * max(max(values) for by_severity in boxes for values in by_severity.values())
        for axis, (method, by_severity) in zip(axes, measured.items(), strict=True):
            beside = published.get(method, {})
            shift = 0.19 if beside else 0.0
            _boxes(axis, by_severity, -shift, INSIDE)
            _boxes(axis, beside, shift, GREY)
            axis.set_title(method, pad=2)
            axis.set(xticks=range(1, 6), ylim=(0, highest))
            axis.yaxis.set_major_locator(MaxNLocator(5))
            axis.grid(axis="y", linewidth=0.3)
        if published:
            marks = [Patch(color=INSIDE, label="measured"), Patch(color=GREY, label="published")]
            figure.legend(handles=marks, loc="outside upper center", ncols=2, handlelength=1)
        figure.supxlabel("severity")
        figure.supylabel(f"{label} (%)")
    return figure


def _boxes(axis: Axes, by_severity: Mapping[int, Sequence[float]], shift: float, colour: str) -> None:
    for severity, values in by_severity.items():
        axis.boxplot(
            100 * np.asarray(values),
            positions=[severity + shift],
            widths=0.3,
            manage_ticks=False,
            patch_artist=True,
            boxprops={"facecolor": colour, "linewidth": 0.4},
            medianprops={"color": "black", "linewidth": 0.9},
            whiskerprops={"linewidth": 0.5},
            capprops={"linewidth": 0.5},
            flierprops={"marker": ".", "markersize": 1.5, "markeredgecolor": colour},
        )


def draw_reliability(results: Sequence[Result]) -> Figure:
    """A panel a method; ECE in brackets, in per cent."""
    with one_column_wide(height=0.35 + 1.02 * -(-len(results) // 3)) as figure:
        for axis, result in zip(panels(figure, len(results), columns=3), results, strict=True):
            bars_by_confidence(axis, confidence(result.test), right(result.test, result.y))
            axis.set_title(f"{result.cell.method} ({100 * ece(result.test, result.y):.1f})", pad=2)
            axis.set(xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
        figure.supxlabel("confidence")
        figure.supylabel("accuracy")
    return figure


def draw_scores(results: Sequence[Result]) -> Figure:
    """Confidence on the test data against that on all OOD sets together, but for the far-away one."""
    edges = np.linspace(0, 1, 41)
    with one_column_wide(height=0.55 + 0.85 * -(-len(results) // 3)) as figure:
        for axis, result in zip(panels(figure, len(results), columns=3), results, strict=True):
            outside = [confidence(prediction) for name, prediction in result.ood.items() if name != FAR_AWAY]
            for values, colour in ((confidence(result.test), INSIDE), (np.concatenate(outside), OUTSIDE)):
                fraction = 100 * np.histogram(values, edges)[0] / len(values)
                axis.stairs(fraction, edges, color=colour, fill=True, alpha=0.35)
                axis.stairs(fraction, edges, color=colour, linewidth=0.8)
            axis.set_title(result.cell.method, pad=2)
            axis.set(xlim=(0, 1), xticks=(0, 0.5, 1), yscale="symlog", ylim=(0, 100))
            axis.set_yticks((0, 1, 10, 100), ("0", "1", "10", "100"))
        marks = [Patch(color=INSIDE, alpha=0.6, label="inliers"), Patch(color=OUTSIDE, alpha=0.6, label="outliers")]
        figure.legend(handles=marks, loc="outside upper center", ncols=2, handlelength=1)
        figure.supxlabel("confidence")
        figure.supylabel("fraction of inputs (%)")
    return figure


def draw_roc(results: Sequence[Result]) -> Figure:
    """Inliers accepted against outliers accepted, a panel an OOD set, a line a method."""
    names = list(dict.fromkeys(name for result in results for name in result.ood))
    legend_rows = -(-len(results) // 4)
    with one_column_wide(height=0.4 + 0.14 * legend_rows + 1.45 * -(-len(names) // 2)) as figure:
        for axis, name in zip(panels(figure, len(names), columns=2), names, strict=True):
            for result in results:
                if name in result.ood:
                    axis.add_line(
                        _line(result.cell.method, *acceptance(confidence(result.test), confidence(result.ood[name])))
                    )
            frame_of_roc(axis, name.replace("_", " "))
        marks = [_line(result.cell.method) for result in results]
        figure.legend(handles=marks, loc="outside upper center", ncols=4, handlelength=2.2, columnspacing=1)
        figure.supxlabel("outliers accepted (%)")
        figure.supylabel("inliers accepted (%)")
    return figure
