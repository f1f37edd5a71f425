"""What the repository says of its results follows from the tables that it holds."""

import re
from pathlib import Path

import pytest

from demur.names import OLD_NAMES
from demur.paper.measuring import values_of
from demur.report.page import write_report
from demur.study.table import CELLS, RESULTS, gather

ROOT = Path(__file__).parent.parent
STORED = ROOT / "results"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("results")
    write_report(gather([STORED], values_of), out)
    return out


@pytest.mark.parametrize("name", [RESULTS, CELLS, "RESULTS.md"])
def test_the_stored_report_is_made_from_the_stored_tables_byte_for_byte(made: Path, name: str) -> None:
    assert (made / name).read_bytes() == (STORED / name).read_bytes()


def test_so_is_every_table(made: Path) -> None:
    """The stored ones are those in Markdown; `make results` leaves others beside them, which are not stored."""
    made_now = {path.name: path.read_bytes() for path in (made / "tables").glob("*.md")}
    assert made_now == {path.name: path.read_bytes() for path in (STORED / "tables").glob("*.md")}


def test_so_are_the_claims(made: Path) -> None:
    assert (made / "claims.md").read_bytes() == (ROOT / "docs" / "claims.md").read_bytes()


def test_what_stands_in_short_is_what_the_sections_say() -> None:
    text = (STORED / "RESULTS.md").read_text("utf-8")
    short, rest = text.split("\n## In short\n")[1].split("\n## Coverage\n")
    printed, corrected, published = re.findall(r"[\d,]{5,}", rest.split("| table |")[0])
    assert f"Of the {printed} values in the paper's tables, {corrected} are measured in the corrected" in short
    assert f"and {published} in the published one" in short
    shares = re.search(r"\| published \| all \|(.*)\|", rest)[1].split(" | ")
    assert all(share.strip() in short for share in shares)
    verdicts = re.findall(r"^\| (\d+)\. [^|]* \| ([a-z ]+?) *[(|]", rest, re.MULTILINE)
    assert len(verdicts) == 13
    listed = dict(re.findall(r"(\w[a-z ]*): ([\d, ]+)[;.]", short))
    assert {number: verdict for verdict, numbers in listed.items() for number in numbers.split(", ")} == dict(verdicts)


def test_outliers_have_the_names_of_today() -> None:
    """Cells of before are stored under names of before."""
    old = [name for name, new in OLD_NAMES.items() if new == "spectrum_matched"]
    pages = [STORED / "RESULTS.md", *(STORED / "tables").glob("*.md")]
    assert not [page for page in pages for name in old if f"_{name}" in page.read_text("utf-8")]


def test_every_figure_of_the_stored_report_is_there() -> None:
    text = (STORED / "RESULTS.md").read_text("utf-8")
    shown = [part.split(")")[0] for part in text.split("](figures/")[1:]]
    assert shown
    assert all((STORED / "figures" / name).exists() for name in shown)


def test_the_page_has_the_sections_that_the_document_has(made: Path) -> None:
    document, page = ((made / name).read_text("utf-8") for name in ("RESULTS.md", "index.html"))
    for title in ("Coverage", "Agreement with the paper", "Recommendation"):
        assert f"\n## {title}\n" in document
        section = page.split(f">{title}</h2>")[1].split("<h2")[0]
        assert "**" not in section
        assert "`" not in section
        written = document.split(f"\n## {title}\n")[1].split("\n## ")[0]
        rows = [line for line in written.splitlines() if line.startswith("| ") and "---" not in line]
        assert section.count("<tr>") == len(rows)
        shown = "".join(re.findall(r"<table>.*?</table>", section, re.DOTALL))
        assert sorted(re.findall(r"\d+\.\d", shown)) == sorted(re.findall(r"\d+\.\d", "".join(rows)))
