"""A table as text, Markdown, LaTeX or HTML, and documents from templates; in per cent."""

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from demur.report.compare import Entry, ReportTable
from demur.report.marks import Bullets, Section, Sheet, as_html, as_markdown

_SPECIAL = {
    **{char: f"\\{char}" for char in "%_&#"},
    "±": r"$\pm$",
    "–": "--",
    "−": "$-$",
    "†": r"\dag{}",
    "‡": r"\ddag{}",
}


def _wrapped(parts: Sequence[str]) -> list[str]:
    return [piece for part in parts for piece in wrap(part, 12)]


_templates = Environment(
    loader=PackageLoader("demur.report"),
    autoescape=lambda name: name is not None and name.endswith(".html"),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_templates.filters |= {
    "marked": as_markdown,
    "marked_html": lambda text: Markup(as_html(text)),
    "tex": lambda text: text.translate(str.maketrans(_SPECIAL)),
    "wrapped": _wrapped,
}
_templates.tests["sheet"] = lambda block: isinstance(block, Sheet)
_templates.tests["bullets"] = lambda block: isinstance(block, Bullets)


def rendered(template: str, **values: Any) -> str:
    return _templates.get_template(template).render(**values)


def markdown(table: ReportTable) -> str:
    return rendered("table.md", table=table)


def latex(table: ReportTable) -> str:
    """A table environment that needs no package."""
    return rendered("table.tex", table=table)


def section_markdown(section: Section) -> str:
    return rendered("section.md", section=section)


def text(table: ReportTable, width: int = 120) -> str:
    """For a terminal; a table that is wider goes on below. The best of a group has a star."""

    def stacked(entry: Entry) -> list[str]:
        return [f"{entry.text}{'*' * entry.best} {entry.half}".rstrip(), *entry.below]

    labels = ["method", *(line.row.label for line in table.lines)]
    margin = max(map(len, labels))
    rows = [list(map(_wrapped, table.headings)), *([*map(stacked, line.entries)] for line in table.lines)]
    widths = [max(len(piece) for row in rows for piece in row[column]) for column in range(len(table.columns))]
    said = [table.title, "=" * len(table.title)]
    for page in _pages(widths, width - margin):
        said.append("")
        for number, (label, row) in enumerate(zip(labels, rows, strict=True)):
            if number and table.lines[number - 1].first:
                said.append("-" * (margin + sum(2 + widths[column] for column in page)))
            for line in range(max(len(row[column]) for column in page)):
                pieces = ("".join(row[column][line : line + 1]).rjust(2 + widths[column]) for column in page)
                said.append(((label if line == 0 else "").ljust(margin) + "".join(pieces)).rstrip())
    return "\n".join([*said, "", *table.legend(best="* is")]) + "\n"


def _pages(widths: Sequence[int], room: int) -> Iterator[list[int]]:
    page: list[int] = []
    for column, size in enumerate(widths):
        if page and sum(2 + widths[other] for other in page) + 2 + size > room:
            yield page
            page = []
        page.append(column)
    yield page
