"""Images: digits 0 to 7, trained beside patches of a photograph; then 8 and 9, letters and a flower are shown.

python examples/digits.py    # half a minute on a CPU; no download; draws decisions.png
"""

from pathlib import Path

import numpy as np

import demur
from demur.report.decisions import draw_decisions

KNOWN, SHOWN = 8, 8  # classes to learn, and images of each group to draw


def main(epochs: int | None = None, figure: Path = Path("decisions.png")) -> dict[str, float]:
    task = demur.load_task("digits")
    train, test, ood = task.training.train, task.testing.test, task.testing.ood
    outliers = task.training.outliers.epoch(None)
    model = demur.Classifier("la+nc", epochs=epochs, device="cpu")
    model.fit(train.x[train.y < KNOWN], train.y[train.y < KNOWN], outliers)

    groups = {
        "digits 0 to 7": test.x[test.y < KNOWN],
        "digits 8 and 9": test.x[test.y >= KNOWN],
        "letters": ood["letters"],
        "a flower": ood["flower"],
    }
    decisions = {name: model.decide(x) for name, x in groups.items()}
    draw_decisions({name: (x[:SHOWN], decisions[name][:SHOWN]) for name, x in groups.items()}).savefig(figure, dpi=150)
    return {name: float(np.isin(each, ["unsure", "unknown"]).mean()) for name, each in decisions.items()}


if __name__ == "__main__":
    for name, value in main().items():
        print(f"{name:>14} {100 * value:5.1f} % abstained")
