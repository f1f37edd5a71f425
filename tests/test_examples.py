"""What the documentation shows runs as it is written; the data sets' examples on a small scale."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_first_ten_minutes():
    text = (ROOT / "docs" / "first-ten-minutes.md").read_text("utf-8")
    names: dict = {}
    exec(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0], names)
    assert (names["same"].decide(names["x"]) == names["answers"].decision).all()
    assert names["model"].report_["outliers"] == "columns+box"


@pytest.mark.filterwarnings("ignore:the best prior precision")
@pytest.mark.parametrize(
    ("name", "small"),
    [("fashion", {"count": 200}), ("trec", {"backbone": None}), ("trec", {"backbone": "wordllama"})],
)
def test_the_examples_of_data_sets(name, small, data_root, tmp_path):
    if small.get("backbone"):
        pytest.importorskip(small["backbone"])
    store = tmp_path / "data"  # so that decoded images are kept there
    store.mkdir()
    for folder in data_root.iterdir():
        (store / folder.name).symlink_to(folder)
    figures = runpy.run_path(str(ROOT / "examples" / f"{name}.py"))["main"](store, epochs=1, tested=50, **small)
    assert {"accuracy", "accepted"} < set(figures)
    assert all(0 <= value <= 1 for value in figures.values())
    assert (tmp_path / f"{name}.demur").is_file()


@pytest.mark.filterwarnings("ignore:the best prior precision", "ignore:every prior precision")
def test_the_example_that_draws(tmp_path: Path):
    abstained = runpy.run_path(str(ROOT / "examples" / "digits.py"))["main"](epochs=2, figure=tmp_path / "drawn.png")
    assert all(0 <= value <= 1 for value in abstained.values())
    assert (tmp_path / "drawn.png").stat().st_size > 10_000
