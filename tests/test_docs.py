"""Pages are short enough to read, links lead somewhere, code compiles. Tutorials are run by test_tutorials.py."""

import ast
import re
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
