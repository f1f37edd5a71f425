"""Tutorials run from top to bottom, with their short settings, and draw the figures that they show."""

import re
import runpy
from pathlib import Path

import pytest

TUTORIALS = Path(__file__).parents[1] / "docs" / "tutorials"
RUN = runpy.run_path(str(TUTORIALS.parent / "run.py"))
PAGES = sorted(TUTORIALS.glob("*.md"))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_a_tutorial(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.path", [str(tmp_path), *__import__("sys").path])
    text = page.read_text("utf-8")
    again = RUN["run_page"](RUN["shorten"](text), tmp_path)
    shown = set(re.findall(r"\(figures/([\w-]+\.png)\)", text))
    assert shown <= {figure.name for figure in tmp_path.glob("*.png")}
    assert shown
    assert again.count("\n```text\n") == text.count("\n```text\n")


@pytest.mark.parametrize("figure", sorted(TUTORIALS.glob("figures/*.png")), ids=lambda figure: figure.name)
def test_a_figure_is_small_and_shown(figure: Path):
    assert figure.stat().st_size < 150_000
    assert any(f"figures/{figure.name}" in page.read_text("utf-8") for page in PAGES)
