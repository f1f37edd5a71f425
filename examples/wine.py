"""Rows: two wines and a third that nobody told us about. No outliers at hand, so demur makes them up.

python examples/wine.py
"""

import numpy as np
from sklearn.datasets import load_wine
from sklearn.model_selection import StratifiedKFold

import demur


def main() -> dict[str, float]:
    x, y = load_wine(return_X_y=True)
    known, unseen = y < 2, x[y == 2]
    x, y = x[known], y[known]

    values: dict[str, list[float]] = {"accuracy": [], "without outliers": [], "accepted": [], "unseen abstained": []}
    for fold, (train, test) in enumerate(StratifiedKFold(5, shuffle=True, random_state=0).split(x, y)):
        model = demur.Classifier("la+nc", random_state=fold).fit(x[train], y[train])
        plain = demur.Classifier("la", random_state=fold).fit(x[train], y[train])
        abstained, wrongly = (np.isin(model.decide(each), ["unsure", "unknown"]).mean() for each in (unseen, x[test]))
        values["accuracy"].append(model.score(x[test], y[test]))
        values["without outliers"].append(plain.score(x[test], y[test]))
        values["accepted"].append(1 - wrongly)
        values["unseen abstained"].append(abstained)
    return {name: float(np.mean(each)) for name, each in values.items()}


if __name__ == "__main__":
    for name, value in main().items():
        print(f"{name:>18} {100 * value:5.1f} %")
