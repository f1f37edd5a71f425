"""The API reference has every public name, each with an example that runs."""

import doctest
import re
from pathlib import Path

import pytest

import demur

PAGES = sorted((Path(__file__).parents[1] / "docs" / "reference").glob("*.md"))
ENTRY = re.compile(r"^\.\. auto\w+:: (\w+)\n(.*?)(?=^\.\. auto|^```)", re.DOTALL | re.MULTILINE)


def entries() -> dict[str, str]:
    return {name: text for page in PAGES for name, text in ENTRY.findall(page.read_text("utf-8"))}


def test_every_public_name_has_an_entry():
    assert set(entries()) == set(demur.__all__)


@pytest.mark.parametrize("name", demur.__all__)
def test_every_entry_has_an_example_of_its_name(name: str):
    examples = doctest.DocTestParser().get_examples(entries()[name])
    assert any(re.search(rf"\bdemur\.{name}\b|\b{name.lower()}\b", each.source) for each in examples), name


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    examples = doctest.DocTestParser().get_doctest(page.read_text("utf-8"), {}, page.stem, str(page), 0)
    said: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(examples, out=said.append)
    assert result.failed == 0, "".join(said)
    assert result.attempted or page.stem == "index"
