"""A table as text, Markdown or LaTeX; in per cent."""

from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap

from demur.paper.published import SHIFT_SETS, Column
from demur.report.compare import Entry, ReportTable
from demur.study.measuring import TEST, per_cent

LEGEND = "In per cent: measured ± half its 95 % bootstrap interval over test points"
BEST = "the best of its group of rows, to the digit shown"
SEVERITIES = {name: f"severity {severity}" for severity, name in SHIFT_SETS.items()}
METRIC_TITLES = {
    "accuracy": "accuracy",
    "accuracy_with_none": "accuracy, none is wrong",
    "ece": "ECE",
    "ece_published": "ECE below 14/15",
    "fpr95": "FPR95",
    "auroc": "AUROC",
    "aupr_published": "AUPR",
    "mmc": "confidence",
}


def heading(column: Column, table: ReportTable) -> list[str]:
    """Task, metric, set and the metric's convention, each where the table has several."""
    several_tasks, several_metrics, several_conventions = (
        len({getattr(other, name) for other in table.columns}) > 1 for name in ("task", "metric", "convention")
    )
    metric = METRIC_TITLES[column.metric]
    if column.set == TEST:
        what = ["test" if column.metric == "mmc" else metric]
    elif column.over:
        what = [f"mean {metric}, {len(column.over)} set{'s' * (len(column.over) != 1)}"]
    elif column.set in SEVERITIES:
        what = [SEVERITIES[column.set], metric]
    else:
        what = [metric, column.set] if several_metrics else [column.set]
    parts = [*[column.task] * several_tasks, *what, *[column.convention] * several_conventions]
    return [part.replace("_", " ") for part in parts]


def legend(table: ReportTable, best: str) -> list[str]:
    """How to read the table, and what to know about it; `best` says how the best are marked."""
    conventions = {column.convention for column in table.columns}
    alike = [f"All columns are computed in the {conventions.pop()} convention"] if len(conventions) == 1 else []
    printed = any(entry.published is not None for line in table.lines for entry in line.entries)
    marked = any(entry.best for line in table.lines for entry in line.entries)
    said = [LEGEND + "; below, published and difference" * printed, *[f"{best} {BEST}"] * marked]
    return [*said, *alike, *table.remarks]


def measured_text(entry: Entry) -> str:
    """The measured figure alone, with its marks."""
    measured = entry.measured
    if measured is None:
        return "–"
    return per_cent(measured.value) + "†" * measured.partial + "‡" * measured.collapsed


def half_width(entry: Entry) -> str:
    return "" if entry.measured is None else f"±{per_cent((entry.measured.high - entry.measured.low) / 2)}"


def seeds_text(entry: Entry) -> str:
    """The interval over training seeds."""
    if entry.measured is None or entry.measured.training is None:
        return ""
    low, high = entry.measured.training
    return f"({per_cent(low)}–{per_cent(high)})"


def published_text(entry: Entry) -> str:
    if entry.published is None:
        return ""
    difference = "" if entry.difference is None else f" {100 * entry.difference:+.1f}".replace("-", "−")
    return per_cent(entry.published.value) + difference


def _stacked(entry: Entry, first: str) -> list[str]:
    return [first, *(text for text in (seeds_text(entry), published_text(entry)) if text)]


def _wrapped(parts: Sequence[str]) -> list[str]:
    return [piece for part in parts for piece in wrap(part, 12)]


# text ---------------------------------------------------------------------------------------------------------------


def text(table: ReportTable, width: int = 120) -> str:
    """For a terminal; a table that is wider goes on below. The best of a group has a star."""
    labels = [line.row.label for line in table.lines]
    margin = max(len(label) for label in ("method", *labels))
    headings = [_wrapped(heading(column, table)) for column in table.columns]
    cells = [
        [
            _stacked(entry, f"{measured_text(entry)}{'*' * entry.best} {half_width(entry)}".rstrip())
            for entry in line.entries
        ]
        for line in table.lines
    ]
    widths = [
        max(len(piece) for piece in (*title, *(piece for row in cells for piece in row[place])))
        for place, title in enumerate(headings)
    ]
    said = [table.title, "=" * len(table.title)]
    for places in _pages(widths, width - margin):
        wide = [widths[place] for place in places]
        said += ["", *_rows(["method"], [headings[place] for place in places], margin, wide)]
        rule = "-" * (margin + sum(2 + size for size in wide))
        for line, row in zip(table.lines, cells, strict=True):
            said += [rule] * line.first
            said += _rows([line.row.label], [row[place] for place in places], margin, wide)
    return "\n".join([*said, "", *legend(table, best="* is")]) + "\n"


def _pages(widths: Sequence[int], room: int) -> Iterator[list[int]]:
    page: list[int] = []
    for place, size in enumerate(widths):
        if page and sum(2 + widths[other] for other in page) + 2 + size > room:
            yield page
            page = []
        page.append(place)
    yield page


def _rows(label: list[str], cells: Sequence[list[str]], margin: int, widths: Sequence[int]) -> Iterator[str]:
    """Cells of several lines, each cell's lines from the top."""
    for line in range(max(map(len, cells))):
        pieces = (cell[line] if line < len(cell) else "" for cell in cells)
        first = label[line] if line < len(label) else ""
        yield (
            first.ljust(margin) + "".join("  " + piece.rjust(size) for piece, size in zip(pieces, widths, strict=True))
        ).rstrip()


# Markdown -----------------------------------------------------------------------------------------------------------


def markdown(table: ReportTable) -> str:
    def cell(entry: Entry) -> str:
        first = f"**{measured_text(entry)}**" if entry.best else measured_text(entry)
        return "<br>".join(_stacked(entry, f"{first} {half_width(entry)}".rstrip()))

    rows = [["method", *("<br>".join(heading(column, table)) for column in table.columns)]]
    rows += [["---", *("--:" for _ in table.columns)]]
    rows += [[f"`{line.row.label}`", *map(cell, line.entries)] for line in table.lines]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    remarks = [f"- {remark}" for remark in legend(table, best="In bold")]
    return "\n".join([f"### {table.title}", "", *lines, "", *remarks]) + "\n"


# LaTeX --------------------------------------------------------------------------------------------------------------

_SPECIAL = str.maketrans(
    {
        "%": r"\%",
        "_": r"\_",
        "&": r"\&",
        "#": r"\#",
        "±": r"$\pm$",
        "–": "--",
        "−": "$-$",
        "†": r"\dag{}",
        "‡": r"\ddag{}",
    }
)


def latex(table: ReportTable) -> str:
    """A table environment that needs no package."""

    def escape(piece: str) -> str:
        return piece.translate(_SPECIAL)

    def stack(pieces: Sequence[str], line: str) -> str:
        """In line with the rest of the row by its top or bottom line."""
        return rf"\begin{{tabular}}[{line}]{{@{{}}r@{{}}}}" + r" \\ ".join(pieces) + r"\end{tabular}"

    def cell(entry: Entry) -> str:
        first = escape(measured_text(entry))
        first = rf"\textbf{{{first}}}" if entry.best else first
        smaller = [rf"\scriptsize {escape(piece)}" for piece in (seeds_text(entry), published_text(entry)) if piece]
        return stack([rf"{first} {{\scriptsize {escape(half_width(entry))}}}", *smaller], "t")

    def row(cells: Iterable[str]) -> str:
        return " & ".join(cells) + r" \\"

    body = [
        row(["method", *(stack([*map(escape, _wrapped(heading(column, table)))], "b") for column in table.columns)])
    ]
    for line in table.lines:
        body += [r"\hline"] * line.first + [row([escape(line.row.label), *map(cell, line.entries)])]
    caption = escape(" ".join(f"{sentence}." for sentence in (table.title, *legend(table, best="In bold"))))
    return "\n".join(
        [
            r"\begin{table}",
            rf"\caption{{{caption}}}",
            rf"\label{{tab:{table.name}}}",
            rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
            r"\hline",
            *body,
            r"\hline",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )
