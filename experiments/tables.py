"""Tables as they come, beside gradient boosting: accuracy over folds, and what is abstained on.

    python -m experiments.tables FOLDER                  FOLDER holds penguins.csv, titanic.csv and taxis.csv
    python -m experiments.tables FOLDER --table taxis --folds 2 --method map+nc

The files are those of GitHub's mwaskom/seaborn-data. Both sides have their default settings; the seed is the fold.
Each fold is printed as it ends, and two tables at the end, as docs/tables.md has them.
"""

import argparse
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold

import demur

SHIFT = 3  # standard deviations of the training rows


@dataclass(frozen=True)
class Table:
    """What is predicted, which columns would give it away, and the class that is left out of training once a fold."""

    file: str
    target: str
    without: tuple[str, ...] = ()
    held_out: str | None = None


TABLES: Mapping[str, Table] = MappingProxyType(
    {
        "penguins": Table("penguins", "species", held_out="Chinstrap"),
        "survived": Table("titanic", "survived", ("alive",)),
        "class": Table("titanic", "class", ("pclass",), "Second"),
        "taxis": Table("taxis", "pickup_borough", ("pickup_zone",), "Queens"),
    }
)


def read(folder: Path, table: Table) -> tuple[pd.DataFrame, np.ndarray]:
    """Columns, and labels as strings; rows without a label are left out."""
    frame = pd.read_csv(folder / f"{table.file}.csv").dropna(subset=[table.target])
    frame = frame.reset_index(drop=True)
    return frame.drop(columns=[table.target, *table.without]), frame[table.target].astype(str).to_numpy()


def for_boosting(frame: pd.DataFrame) -> pd.DataFrame:
    """Dates as days, words as categories of every value that the table has."""
    columns = {}
    for name, cells in frame.items():
        if cells.dtype.kind in "iuf":
            columns[name] = cells.astype(float)
        elif name in ("pickup", "dropoff"):
            columns[name] = (pd.to_datetime(cells) - pd.Timestamp(0)) / pd.Timedelta(days=1)
        else:
            columns[name] = cells.map(str, na_action="ignore").astype("category")
    return pd.DataFrame(columns)


def shuffle(frame: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    return pd.DataFrame({name: cells.to_numpy()[rng.permutation(len(frame))] for name, cells in frame.items()})


def shift(frame: pd.DataFrame, train: pd.DataFrame) -> pd.DataFrame:
    numbers = train.select_dtypes("number").columns
    return frame.assign(**{name: frame[name] + SHIFT * train[name].std() for name in numbers})


def unseen(frame: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """One of the columns of words has a word in each row that no other row has."""
    changed = frame.astype(object).reset_index(drop=True)
    dates = ("pickup", "dropoff")
    words = [name for name in frame if frame[name].dtype.kind not in "iuf" and name not in dates]
    for row, place in enumerate(rng.integers(len(words), size=len(frame))):
        changed.loc[row, words[place]] = "new word"
    return changed.astype({name: frame[name].dtype for name in frame if name not in words})


def one_fold(
    x: pd.DataFrame, y: np.ndarray, train: np.ndarray, test: np.ndarray, fold: int, table: Table, method: str
) -> dict[str, float]:
    """Fractions, by name."""
    rng = np.random.default_rng(fold)
    model = demur.Classifier(method, device="cpu", random_state=fold).fit(x.iloc[train], y[train])
    trees = for_boosting(x)
    boosting = HistGradientBoostingClassifier(categorical_features="from_dtype", random_state=fold)
    boosting.fit(trees.iloc[train], y[train])
    inside = model.predict_all(x.iloc[test])
    accepted = np.isin(inside.decision, model.classes_)
    right = inside.label == y[test]
    row = {
        "demur": right.mean(),
        "boosting": boosting.score(trees.iloc[test], y[test]),
        "accepted": accepted.mean(),
        "right of accepted": right[accepted].mean(),
    }
    others = {
        "shuffled": shuffle(x.iloc[test], rng),
        "shifted": shift(x.iloc[test], x.iloc[train]),
        "unseen": unseen(x.iloc[test], rng),
    }
    for name, rows in others.items():
        row |= abstention(model, inside.outlier_score, rows, name)
    if table.held_out is not None:
        keeps = y[train] != table.held_out
        kept, known, new = train[keeps], test[y[test] != table.held_out], y == table.held_out
        model = demur.Classifier(method, device="cpu", random_state=fold).fit(x.iloc[kept], y[kept])
        row |= abstention(model, model.outlier_score(x.iloc[known]), x[new], "held out")
        boosting.fit(trees.iloc[kept], y[kept])
        unsure = [1 - boosting.predict_proba(trees.iloc[rows]).max(1) for rows in (known, np.flatnonzero(new))]
        row["held out, AUROC of boosting"] = auroc(*unsure)
    return {name: float(value) for name, value in row.items()}


def abstention(model: demur.Classifier, inside: np.ndarray, rows: pd.DataFrame, name: str) -> dict[str, float]:
    answers = model.predict_all(rows)
    abstained = ~np.isin(answers.decision, model.classes_)
    return {name: abstained.mean(), f"{name}, AUROC": auroc(inside, answers.outlier_score)}


def auroc(inside: np.ndarray, outside: np.ndarray) -> float:
    return float(roc_auc_score(np.repeat([0, 1], [len(inside), len(outside)]), np.concatenate([inside, outside])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--table", choices=[*TABLES], action="append")
    parser.add_argument("--folds", type=int, default=5, help="how many of the five")
    parser.add_argument("--method", default="la+nc")
    parser.add_argument("--csv", type=Path, help="where to write the values of every fold")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = []
    for name in given.table or TABLES:
        table = TABLES[name]
        x, y = read(given.folder, table)
        folds = StratifiedKFold(5, shuffle=True, random_state=0).split(x, y)
        for fold, (train, test) in zip(range(given.folds), folds, strict=False):
            values = one_fold(x, y, train, test, fold, table, given.method)
            rows.append({"table": name, "fold": fold, **values})
            print(name, fold, " ".join(f"{key}={100 * value:.1f}" for key, value in values.items()), flush=True)
            if given.csv:
                pd.DataFrame(rows).to_csv(given.csv, index=False)
    every = pd.DataFrame(rows)
    every["difference"] = every["demur"] - every["boosting"]
    means, spread = (getattr(every.groupby("table", sort=False), of)(numeric_only=True) for of in ("mean", "std"))
    means["difference, standard deviation"] = spread["difference"]
    print((100 * means.drop(columns="fold")).round(1).T.to_string(na_rep=""))


if __name__ == "__main__":
    main()
