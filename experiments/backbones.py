"""What a pretrained backbone is worth on images or texts of your own: frozen, tuned, and without it.

    python -m experiments.backbones TRAIN TEST --outliers FOLDER --ood FOLDER FOLDER --backbone efficientnet-lite0 \
        --tune head last scratch --seeds 0 1 2 --cache FEATURES --results rows.jsonl

TRAIN and TEST are what `demur fit` reads: folders of class folders, or files of texts. A fit is one line of the
results, and is not repeated. It has the accuracy, the coverage, the fraction of each OOD set abstained on at the
model's own threshold (`abstained`) and where 95 % of the test inliers are accepted (`at_95`), and seconds. `--tune` may
also be `regression`: scikit-learn's logistic regression on the same features, its C chosen by cross-validation.
`--limit N` takes N inputs of each at random, always the same; `--coarse` takes labels up to their first colon.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from demur import Classifier
from demur.checkpoint import checkpointed
from demur.classifier.backbones import Backbone, resolve_backbone
from demur.classifier.decision import score_of
from demur.classifier.features import compute_features
from demur.classifier.readers import open_inputs
from demur.classifier.tokens import Tokens
from demur.metrics import Prediction
from demur.predictive import predict_scored

CPU = torch.device("cpu")
STRENGTHS = [0.001, 0.01, 0.1, 1.0]


def main() -> None:
    given = arguments()
    torch.set_num_threads(given.threads)
    backbone = resolve_backbone(given.backbone, None, "head")
    if given.tokens and isinstance(backbone.inputs, Tokens):
        backbone = replace(backbone, inputs=replace(backbone.inputs, width=given.tokens))
    for tune in given.tune:
        for seed in given.seeds:
            asked = {"train": given.train.name, "tune": tune, "seed": seed, **dict(given.note)}
            if measured(given.results, asked):
                continue
            row = asked | (regression(given, backbone) if tune == "regression" else fit(given, backbone, tune, seed))
            with given.results.open("a") as file:
                print(json.dumps(row), file=file)
            print(json.dumps(row), flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--outliers", type=Path, required=True)
    parser.add_argument("--ood", type=Path, nargs="+", required=True)
    parser.add_argument("--backbone", required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--tune", nargs="+", default=["head"], choices=["head", "last", "all", "scratch", "regression"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--cache", type=Path, help="folder of features")
    parser.add_argument("--checkpoint", type=Path, help="folder of unfinished training")
    parser.add_argument("--label")
    parser.add_argument("--coarse", action="store_true")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--size", type=int, default=64, help="of images, from scratch")
    parser.add_argument("--tokens", type=int, help="of a text, at most")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--lr", type=float)
    parser.add_argument("--time-limit")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--note", nargs="*", default=[], type=lambda pair: tuple(pair.split("=", 1)))
    return parser.parse_args()


def measured(results: Path, asked: dict[str, Any]) -> bool:
    rows = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    return any(asked.items() <= row.items() for row in rows)


class Sets:
    """What is learned from and tested with."""

    def __init__(self, given: argparse.Namespace, size: int | None) -> None:
        def read(path: Path, labelled: bool = False) -> tuple[Any, Any]:
            shape, channels = (None, None) if size is None else ((size, size), 3)
            label = given.label if labelled else None
            batch = open_inputs(path, labelled=labelled, label=label, size=shape, channels=channels).gather()
            rows = np.sort(np.random.default_rng(0).permutation(len(batch.names))[: given.limit]).tolist()
            x = [batch.x[row] for row in rows] if isinstance(batch.x, list) else np.asarray(batch.x)[rows]
            y = [batch.y[row].split(":")[0] if given.coarse else batch.y[row] for row in rows] if batch.y else None
            return x, None if y is None else np.array(y)

        self.x, self.y = read(given.train, labelled=True)
        self.test, self.truth = read(given.test, labelled=True)
        self.outliers, _ = read(given.outliers)
        self.ood = {path.stem: read(path)[0] for path in given.ood}


def side(backbone: Backbone) -> int | None:
    return None if isinstance(backbone.inputs, Tokens) else backbone.inputs.shape[1]


def fit(given: argparse.Namespace, backbone: Backbone, tune: str, seed: int) -> dict[str, Any]:
    scratch = tune == "scratch"
    sets = Sets(given, given.size if scratch and side(backbone) else side(backbone))
    model = Classifier(
        backbone=None if scratch else backbone,
        tune="head" if scratch else tune,
        cache=given.cache,
        epochs=given.epochs,
        lr=given.lr,
        time_limit=None if tune == "head" else given.time_limit,
        random_state=seed,
        device="cpu",
    )
    started = time.perf_counter()
    if given.checkpoint is None:
        model.fit(sets.x, sets.y, sets.outliers)
    else:
        given.checkpoint.mkdir(parents=True, exist_ok=True)
        with checkpointed(given.checkpoint):
            model.fit(sets.x, sets.y, sets.outliers)
    seconds = time.perf_counter() - started

    def predict(x: Any) -> Prediction:
        if model.encoder_ is None:
            return model.prediction(x)
        features = compute_features(model.encoder_.trunk, model.inputs(x), CPU, given.cache)
        return predict_scored(model.posterior_, model.likelihood_, model.encoder_.scaling(features), (), {})

    inside = predict(sets.test)
    right = model.classes_[inside.probs.argmax(1).numpy()] == sets.truth
    accepted = model.decision_.accepts(inside)
    limit = np.quantile(score_of(inside, model.decision_.score), 0.95)
    outside = {name: predict(x) for name, x in sets.ood.items()}
    return {
        "accuracy": per_cent(right),
        "coverage": per_cent(accepted),
        "accuracy_accepted": per_cent(right[accepted]),
        "abstained": {name: per_cent(~model.decision_.accepts(each)) for name, each in outside.items()},
        "at_95": {name: per_cent(score_of(each, model.decision_.score) > limit) for name, each in outside.items()},
        "seconds": round(seconds, 1),
        "epochs": model.report_["epochs"],
        "counts": {"train": len(sets.x), "test": len(sets.test), "outliers": len(sets.outliers)}
        | {name: len(x) for name, x in sets.ood.items()},
    }


def regression(given: argparse.Namespace, backbone: Backbone) -> dict[str, Any]:
    sets = Sets(given, side(backbone))
    x, test = (
        compute_features(backbone.trunk, backbone.inputs.read(each), CPU, given.cache).numpy()
        for each in (sets.x, sets.test)
    )
    regressions = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    model = GridSearchCV(regressions, {"logisticregression__C": STRENGTHS}).fit(x, sets.y)
    return {"accuracy": per_cent(model.predict(test) == sets.truth), **model.best_params_}


def per_cent(hits: Any) -> float:
    return round(100 * float(np.mean(hits)), 1)


if __name__ == "__main__":
    main()
