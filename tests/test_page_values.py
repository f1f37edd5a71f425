"""Values that pages of the documentation take from results.csv are those that are there."""

import re
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def results() -> pd.DataFrame:
    """Of the corrected convention at full length, trained with a task's own outliers."""
    table = pd.read_csv(ROOT / "results" / "results.csv", low_memory=False)
    return table[table[["outliers", "epochs", "limit"]].isna().all(axis=1) & (table["convention"] == "corrected")]


def read(name: str) -> str:
    return " ".join((ROOT / "docs" / name).read_text("utf-8").split())


def test_how_many_methods_have_one_seed(results: pd.DataFrame):
    one, methods = re.search(r"(\d+) of CIFAR-10's (\d+) methods have one training seed", read("adopt.md")).groups()
    seeds = results[results["task"] == "cifar10"].groupby("method")["seed"].nunique()
    assert (int(one), int(methods)) == ((seeds == 1).sum(), len(seeds))


def test_what_is_not_measured_is_said(results: pd.DataFrame):
    text = read("adopt.md")
    assert "SVHN is not measured" in text
    assert "svhn" not in set(results["task"])
    seeds = results[results["task"] == "cifar100"].groupby("method")["seed"].nunique()
    assert f"CIFAR-100 has {len(seeds)} methods, each with one (corrected convention)" in text
    assert set(seeds) == {1}


def test_how_much_far_away_noise_gets_a_label(results: pd.DataFrame):
    cells = re.search(r"natural images, by training seed \| (.*?) \|(?: \||$| shuffled)", read("concepts/unknown.md"))[
        1
    ]
    of = results[(results["method"] == "la+nc") & (results["set"] == "far_away")]
    of = of[of["metric"] == "none_share_fpr95"].sort_values("seed")
    for task, cell in zip(("mnist", "fashion_mnist", "cifar10"), cells.split(" | "), strict=True):
        values = [f"{100 * value:.0f}" for value in of.loc[of["task"] == task, "value"]]
        assert cell == f"{', '.join(values)} %"


def test_the_row_that_is_reproduced(results: pd.DataFrame):
    text = read("reproduction/row.md")
    of = results[(results["task"] == "cifar10") & (results["method"] == "la+nc")].sort_values("seed")
    accuracy = of.loc[(of["metric"] == "accuracy") & (of["set"] == "test"), "value"].mean()
    fpr95 = [100 * value for value in of.loc[(of["metric"] == "fpr95") & (of["set"] == "mean"), "value"]]
    assert f"an accuracy of {100 * accuracy:.1f} % and a mean FPR95 of {sum(fpr95) / len(fpr95):.1f} %" in text
    first, second, third = (f"{value:.1f}" for value in fpr95)
    assert f"({first}, {second} and {third} %; corrected convention, NVIDIA H200)" in text
