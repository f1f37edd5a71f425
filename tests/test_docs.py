"""Pages are short enough to read, links lead somewhere, code compiles. Tutorials are run by test_tutorials.py."""

import ast
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
OTHERS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "results/RESULTS.md")]
LONGEST = 1500
# each with the reason why it is longer
LONGER = {
    "claims.md": "made by `demur report`: each test of each claim, to look things up in",
}
BLOCK = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def anchors(page: Path) -> set[str]:
    """As GitHub and MyST make them from headings, those of included pages among them."""
    text = page.read_text("utf-8")
    included = [page.parent / name for name in re.findall(r"^```{include} (.+)$", text, re.MULTILINE)]
    titles = re.findall(r"^#{1,6} (.+)$", BLOCK.sub("", text), re.MULTILINE)
    return set().union(*map(anchors, included)) | {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles
    }


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_is_short(page: Path):
    words = len(page.read_text("utf-8").split())
    assert words <= LONGEST or page.relative_to(DOCS).as_posix() in LONGER


def test_longer_pages_are_there_and_longer():
    assert all(len((DOCS / name).read_text("utf-8").split()) > LONGEST for name in LONGER)


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=name_of)
def test_links_lead_somewhere(page: Path):
    for link in LINK.findall(BLOCK.sub("", page.read_text("utf-8"))):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_pages_that_the_code_names_are_there():
    files = [
        file for folder in ("demur", "experiments", "benchmarks", "examples") for file in (ROOT / folder).rglob("*.py")
    ]
    named = {name for file in files for name in re.findall(r"\bdocs/[\w/-]+\.md\b", file.read_text("utf-8"))}
    assert named
    assert not {name for name in named if not (ROOT / name).is_file()}


def test_every_page_is_in_a_table_of_contents():
    listed = set()
    for page in PAGES:
        for tree in re.findall(r"```{toctree}\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
            names = [line for line in tree.splitlines() if line and not line.startswith(":")]
            listed |= {(page.parent / f"{name}.md").resolve() for name in names}
    assert {page.resolve() for page in PAGES} - listed == {DOCS / "index.md", DOCS / "matrix.md"}


def blocks() -> list[tuple[str, str]]:
    """Where each begins, and its code."""
    return [
        (f"{name_of(page)}:{text[: match.start()].count(chr(10)) + 2}", match.group(1))
        for page in [*PAGES, *OTHERS]
        for text in [page.read_text("utf-8")]
        for match in re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    ]


@pytest.mark.parametrize(("place", "code"), blocks(), ids=[place for place, _ in blocks()])
def test_code_compiles(place: str, code: str):
    ast.parse(code, place)


WINE = "import demur, numpy as np\nfrom sklearn.datasets import load_wine\nx, y = load_wine(return_X_y=True)\n"
# what a page takes as given, for each block that can run without a download; empty where it needs nothing
GIVEN = {
    ("tables.md", 0): WINE
    + "import pandas as pd\nframe = pd.DataFrame(x).rename(columns=str).assign(grower=y % 2 == 0)",
    ("how-to/calibration.md", 0): "",
    ("how-to/export.md", 0): WINE
    + "import onnxruntime\nfrom demur.classifier.export import export_onnx\nfrom pathlib import Path\nrows = x[:5]\n"
    + "export_onnx(demur.Classifier().fit(x, y), Path('wine.onnx'))",
    ("how-to/extend.md", 2): "",
    ("how-to/network.md", 1): WINE
    + "import torch\nmodel, x, outliers = torch.nn.Linear(13, 2), x[y < 2], x[y == 2]\n"
    + "y = np.array(['cat', 'dog'])[y[y < 2]]",
    ("how-to/outliers.md", 0): "",
    ("how-to/outliers.md", 1): "from sklearn.datasets import load_digits\nx, y = load_digits(return_X_y=True)",
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("name", "number"), GIVEN, ids=[f"{name}:{number}" for name, number in GIVEN])
def test_code_runs(name: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With two epochs, where the page leaves them open."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    own = [code for place, code in blocks() if place.startswith(f"docs/{name}:")][number]
    code = f"{GIVEN[name, number]}\n{own}"
    exec(code if "epochs" in code else code.replace("Classifier(", "Classifier(epochs=2, "), {"__name__": "page"})


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_start_page_prints_what_it_shows(tmp_path: Path):
    text = (DOCS / "index.md").read_text("utf-8")
    assert runpy.run_path(str(DOCS / "run.py"))["run_page"](text, tmp_path) == text


def test_the_figure_of_which_method_is_that_of_its_table(tmp_path: Path):
    """And the table has the values of the page that says how they were measured."""
    drawn = runpy.run_path(str(DOCS / "which_method.py"))
    rows = drawn["read_table"]((DOCS / "which-method.md").read_text("utf-8"))
    assert len(rows) == 5
    assert rows["two wines: a third wine"] == {"`la`, none shown": 23, "`la+nc`, synthetic": 54}
    measured = [line for line in (DOCS / "how-to" / "outliers.md").read_text("utf-8").splitlines() if "|" in line]
    for place, values in rows.items():
        line = next(line for line in measured if f" {place.partition(': ')[2]} |" in line)
        numbers = [int(number) for number in re.findall(r"\| (\d+)", line)]
        assert numbers == [*values.values()]
    axes = drawn["draw"](rows).axes[0]
    shown = sorted(x for dots in axes.collections for x, _ in dots.get_offsets())
    assert shown == sorted(value for values in rows.values() for value in values.values())


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_parts_of_ones_own_are_used_as_the_page_says(tmp_path: Path):
    page = (DOCS / "how-to" / "extend.md").read_text("utf-8")
    margin, by_margin, mine, grid = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "margin.py").write_text(margin, "utf-8")
    (tmp_path / "by_margin.py").write_text(by_margin.replace("Classifier(", "Classifier(epochs=2, "), "utf-8")
    (tmp_path / "mine.py").write_text(mine, "utf-8")
    (tmp_path / "grid.py").write_text(grid.replace("epochs=20", "epochs=1").replace("seeds=3", "seeds=1"), "utf-8")
    commands = re.findall(r"^demur (?:run|study) [^#\n]*", page, re.MULTILINE)
    study = re.findall(r"`(demur study grid.py [^`]*)`", page)
    assert (len(commands), len(study)) == (4, 1)
    for command in [*(f"-m {one} --epochs 1" for one in commands), f"-m {study[0]} --jobs 1", "by_margin.py"]:
        done = subprocess.run([sys.executable, *command.split()], cwd=tmp_path, capture_output=True, encoding="utf-8")
        assert done.returncode == 0, done.stderr
        assert "failed" not in done.stdout + done.stderr
