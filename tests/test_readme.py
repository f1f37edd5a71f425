"""README's code runs as it is written, its numbers are those of results.csv, and it stays one screen of reading."""

import re
from pathlib import Path

import pandas as pd
import pytest

from demur.paper.published import printed_values

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text("utf-8")
TASKS = {"MNIST": "mnist", "Fashion-MNIST": "fashion_mnist"}
ROW = re.compile(r"^\| `(?P<method>[\w+]+)`(?P<by> by the score `none_share`)?[^|]*\|(?P<cells>.+)\|$", re.MULTILINE)
CELL = re.compile(r"(?P<mean>[\d.]+) ± (?P<spread>[\d.]+)(?: \((?P<printed>[\d.]+)\))?")


@pytest.fixture(scope="module")
def results() -> pd.DataFrame:
    table = pd.read_csv(ROOT / "results" / "results.csv", low_memory=False)
    usual = table["outliers"].isna() & table["epochs"].isna() & table["limit"].isna()
    return table[usual & (table["convention"] == "corrected") & (table["set"] == "mean")]


def test_the_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(block, names)
    assert (tmp_path / "wine.demur").is_file()
    assert len(names["prediction"].none) == len(names["task"].testing.ood["letters"])


def test_the_numbers_are_those_of_the_tables(results: pd.DataFrame):
    rows = list(ROW.finditer(TEXT))
    assert len(rows) >= 7
    for row in rows:
        metric = "none_share_fpr95" if row["by"] else "fpr95"
        cells = list(CELL.finditer(row["cells"]))
        assert len(cells) == len(TASKS)
        for task, cell in zip(TASKS.values(), cells, strict=True):
            of = results[(results["task"] == task) & (results["method"] == row["method"])]
            values = 100 * of.loc[of["metric"] == metric, "value"]
            assert len(values) == 3
            assert (cell["mean"], cell["spread"]) == (f"{values.mean():.1f}", f"{values.std():.1f}")
            assert (cell["printed"] is None) == bool(row["by"])


def test_the_printed_values_are_the_papers():
    printed = {
        (one.task, one.row.method): one.value
        for one in printed_values()
        if (one.table, one.set, one.row.score) == ("ood_summary", "mean", "max_prob")
    }
    for row in ROW.finditer(TEXT):
        for task, cell in zip(TASKS.values(), CELL.finditer(row["cells"]), strict=True):
            if cell["printed"]:
                assert float(cell["printed"]) == pytest.approx(100 * printed[task, row["method"]], abs=0.051)


def test_files_that_it_links_to_are_there():
    for target in re.findall(r"\]\(([^)#]+)", TEXT):
        assert (ROOT / target).exists(), target


def test_it_is_read_in_two_minutes():
    assert TEXT.count("\n") <= 120
