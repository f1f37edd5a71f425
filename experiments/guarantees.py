"""What is promised of inliers, measured: coverage, p-values, false discoveries and prediction sets.

    python -m experiments.guarantees FOLDER              FOLDER holds taxis.csv and penguins.csv of mwaskom/seaborn-data
    python -m experiments.guarantees FOLDER --of digits --repetitions 50

`digits` and `taxis` fit one network; each repetition divides its held-out inliers anew into those that calibrate and
those that are tested. `recalibrated` sets the threshold of one network anew, by digits that are noisier than those it
was fitted to, and asks about others that are as noisy. `penguins` fits a network in every repetition, on two thirds of
the rows, by which also the rows that never calibrate count: one of each class, and one with a gap in each column that
has any. Means and standard errors in per cent, as docs/guarantees.md has them.
"""

import argparse
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import demur
from demur.classifier.conformal import Calibration, benjamini_hochberg, calibration_of
from demur.classifier.decision import Decision, calibrate_decision, score_of
from demur.classifier.readers import Batch, Inputs
from demur.metrics import Prediction
from demur.serving.recalibration import recalibrate
from experiments.tables import TABLES, read, shuffle

COVERAGE = LEVEL = 0.9
FDR = 0.1
EPOCHS = 50  # of each of many fits: the promises are of any network
NOISES = (1.0, 3.0)  # deviations, of pixels from 0 to 16
LIMITS = (0.05, 0.1, 0.5)
OUTLIERS = 4  # one outlier in a batch to so many inliers
Row = dict[str, float]


@dataclass(frozen=True)
class HeldOut:
    """Predictions of inliers that were not trained with, their labels, and predictions of outliers."""

    inliers: Prediction
    y: torch.Tensor
    outliers: Prediction


def pick(prediction: Prediction, rows: np.ndarray) -> Prediction:
    none = None if prediction.none is None else prediction.none[rows]
    return Prediction(prediction.probs[rows], none, prediction.expected_entropy[rows])


def held_out_digits() -> HeldOut:
    """0 to 7, of which 700 are trained with; 8 and 9 are the outliers."""
    x, y = load_digits(return_X_y=True)
    train, test = train_test_split(np.flatnonzero(y < 8), train_size=700, stratify=y[y < 8], random_state=0)
    model = demur.Classifier(device="cpu").fit(x[train], y[train])
    return HeldOut(model.prediction(x[test]), torch.from_numpy(y[test]), model.prediction(x[y >= 8]))


def held_out_taxis(folder: Path) -> HeldOut:
    """2,500 rides are trained with; the outliers are the others with every column shuffled."""
    x, y = read(folder, TABLES["taxis"])
    train, test = train_test_split(np.arange(len(y)), train_size=2500, stratify=y, random_state=0)
    model = demur.Classifier(device="cpu").fit(x.iloc[train], y[train])
    codes = torch.from_numpy(np.searchsorted(model.classes_, y[test]))
    outliers = shuffle(x.iloc[test], np.random.default_rng(0))
    return HeldOut(model.prediction(x.iloc[test]), codes, model.prediction(outliers))


def measure(
    calibration: Calibration, decision: Decision, inliers: Prediction, y: torch.Tensor, outliers: Prediction
) -> Row:
    """Fractions of one repetition."""
    p_inside, p_outside = (calibration.p_values(each, decision) for each in (inliers, outliers))
    called = benjamini_hochberg(np.concatenate([p_inside, p_outside]), FDR)
    holds = {by: calibration.label_sets(inliers, LEVEL, by)[np.arange(len(y)), y] for by in (False, True)}
    return {
        "accepted": decision.accepts(inliers).mean(),
        **{f"p-values at most {limit}": (p_inside <= limit + 1e-12).mean() for limit in LIMITS},
        "false discoveries": called[: len(y)].sum() / max(1, called.sum()),
        "outliers discovered": called[len(y) :].mean(),
        "label in the set": holds[False].mean(),
        **{f"label in the set, class {code}": holds[True][y == code].mean() for code in sorted(set(y.tolist()))},
    }


def divide_anew(held_out: HeldOut, calibrate: int, repetitions: int) -> Iterator[Row]:
    for repetition in range(repetitions):
        rng = np.random.default_rng(repetition)
        order = rng.permutation(len(held_out.y))
        known, fresh = order[:calibrate], order[calibrate:]
        some = rng.permutation(len(held_out.outliers))[: len(fresh) // OUTLIERS]
        calibrating = pick(held_out.inliers, known)
        decision = calibrate_decision(calibrating, "none_share", COVERAGE)
        calibration = calibration_of(calibrating, held_out.y[known], decision)
        inliers, outliers = pick(held_out.inliers, fresh), pick(held_out.outliers, some)
        yield measure(calibration, decision, inliers, held_out.y[fresh], outliers)


def fit_anew(folder: Path, repetitions: int) -> Iterator[Row]:
    x, y = read(folder, TABLES["penguins"])
    for repetition in range(repetitions):
        rng = np.random.default_rng(repetition)
        train, test = train_test_split(np.arange(len(y)), train_size=2 / 3, random_state=repetition)
        model = demur.Classifier("map+nc", coverage=COVERAGE, epochs=EPOCHS, device="cpu", random_state=repetition)
        model.fit(x.iloc[train], y[train])
        codes = torch.from_numpy(np.searchsorted(model.classes_, y[test]))
        some = shuffle(x.iloc[test], rng).iloc[: len(test) // OUTLIERS]
        assert model.calibration_ is not None
        row = measure(
            model.calibration_, model.decision_, model.prediction(x.iloc[test]), codes, model.prediction(some)
        )
        if repetition % 20 == 19:
            print(f"{repetition + 1} of {repetitions} fits", flush=True)
        yield row


def recalibrate_anew(repetitions: int) -> Iterator[Row]:
    """Digits 0 to 7 with noise, 300 to calibrate and the other 443 to test; the old threshold has seen clean ones."""
    x, y = load_digits(return_X_y=True)
    train, held_out = train_test_split(np.flatnonzero(y < 8), train_size=700, stratify=y[y < 8], random_state=0)
    model = demur.Classifier(coverage=COVERAGE, device="cpu").fit(x[train], y[train])
    for repetition in range(repetitions):
        row: Row = {}
        for noise in NOISES:
            rng = np.random.default_rng(repetition)
            noisy = np.clip(x[held_out] + rng.normal(0, noise, x[held_out].shape), 0, 16)
            order = rng.permutation(len(noisy))
            known, fresh = noisy[order[:300]], model.prediction(noisy[order[300:]])
            given = Inputs("tables", iter([Batch([str(number) for number in range(len(known))], known)]))
            new, _ = recalibrate(model, given, None, lambda count: None)
            assert new.calibration_ is not None
            p_values = new.calibration_.p_values(fresh, new.decision_)
            scores, accept = score_of(fresh, new.decision_.score), new.decision_.thresholds(fresh)[0]
            row |= {
                f"noise {noise:g}: accepted before": model.decision_.accepts(fresh).mean(),
                f"noise {noise:g}: accepted": new.decision_.accepts(fresh).mean(),
                f"noise {noise:g}: at the threshold": (scores == accept).mean(),
                **{f"noise {noise:g}: p at most {limit}": (p_values <= limit + 1e-12).mean() for limit in LIMITS},
            }
        yield row


SIMULATIONS: Mapping[str, Callable[[Path, int], Iterator[Row]]] = MappingProxyType(
    {
        "digits": lambda folder, count: divide_anew(held_out_digits(), 300, count),
        "taxis": lambda folder, count: divide_anew(held_out_taxis(folder), 1000, count),
        "penguins": fit_anew,
        "recalibrated": lambda folder, count: recalibrate_anew(count),
    }
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--of", choices=[*SIMULATIONS], action="append")
    parser.add_argument("--repetitions", type=int, default=200)
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in given.of or SIMULATIONS:
        rows = pd.DataFrame(SIMULATIONS[name](given.folder, given.repetitions))
        means = 100 * rows.mean()
        errors = 100 * rows.std() / np.sqrt(rows.notna().sum())
        print(f"\n{name}, {len(rows)} repetitions: mean and standard error in per cent")
        print("\n".join(f"{what:28} {means[what]:6.1f} ± {errors[what]:.1f}" for what in rows), flush=True)


if __name__ == "__main__":
    main()
