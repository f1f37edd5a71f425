"""Tables for people: per cent, best of each column in bold."""

from collections.abc import Callable, Sequence

from rich import box
from rich.console import Group
from rich.table import Table

from demur.study.records import Record
from demur.study.run import Row

# a column: how to read it off a row, FPR95 by the name it has for the score, and which of several is best
Read = Callable[[Row, str], float]
COLUMNS: dict[str, tuple[Read, Callable[..., float]]] = {
    "acc.": (lambda row, _: row.metrics["accuracy"], max),
    "ECE": (lambda row, _: row.metrics["ece"], min),
    "mean FPR95": (lambda row, fpr95: row.mean_over_ood(fpr95), min),
}
BY_MAX_PROB, BY_NONE_SHARE = "fpr95", "none_share_fpr95"


def on(name: str) -> Read:
    return lambda row, fpr95: row.ood[name][fpr95]


def lines_of(rows: Sequence[Row]) -> list[tuple[Row, str]]:
    """A line a method, by max probability, and with a none class another by `none_share`."""
    return [
        (row, fpr95)
        for row in rows
        for fpr95 in (BY_MAX_PROB, BY_NONE_SHARE)
        if all(fpr95 in figures for figures in row.ood.values())
    ]


def table(rows: Sequence[Row], title: str) -> Group:
    """Accuracy and ECE inside, FPR95 on every OOD set (inliers positive)."""
    columns = COLUMNS | {name.replace("_", " "): (on(name), min) for name in rows[0].ood}
    drawn = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    drawn.add_column("method", no_wrap=True)
    for name in columns:
        drawn.add_column(name, justify="right")
    lines = lines_of(rows)
    best = {name: choose(read(*line) for line in lines) for name, (read, choose) in columns.items()}
    for row, fpr95 in lines:
        cells = []
        for name, (read, _) in columns.items():
            text = f"{100 * read(row, fpr95):.1f}"
            cells.append(f"[bold]{text}[/bold]" if read(row, fpr95) == best[name] and len(rows) > 1 else text)
        label = row.method + ("*" if row.collapsed else "")
        drawn.add_row(label if fpr95 == BY_MAX_PROB else "  by none_share", *cells)
    return Group(drawn, *remarks(rows))


def sheet(row: Row, title: str, scores: Sequence[str] = ()) -> Group:
    """Everything of note about one method: a line for the inliers, and one for every OOD set; `scores` are own ones."""
    inside = "  ".join(f"{name} {value:.3f}" for name, value in row.metrics.items())
    shown = {
        "FPR95": "fpr95",
        "AUROC": "auroc",
        "AUPR": "aupr",
        "confidence": "mmc",
        "FPR95 by none mass": "none_fpr95",
        "by none_share": BY_NONE_SHARE,
        **{f"by {name}": f"{name}_fpr95" for name in scores},
    }
    shown = {name: key for name, key in shown.items() if all(key in figures for figures in row.ood.values())}
    title += "*" if row.collapsed else ""
    drawn = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    drawn.add_column("OOD set", no_wrap=True)
    for name in shown:
        drawn.add_column(name, justify="right")
    for name, figures in row.ood.items():
        drawn.add_row(name, *(f"{100 * figures[key]:.1f}" for key in shown.values()))
    drawn.add_section()
    means = (f"{100 * row.mean_over_ood(key):.1f}" for key in shown.values())
    drawn.add_row("mean but far_away", *means)
    return Group(drawn, f"inliers, as fractions: {inside}", *remarks([row]))


def remarks(rows: Sequence[Row]) -> list[str]:
    """What a reader of the table must know."""
    said = [f"{name}: {note}" for name, note in rows[0].notes.items()]
    if rows[0].missing:
        said.append(f"not measured, since the data is missing: {', '.join(rows[0].missing)}")
    if any(row.collapsed for row in rows):
        said.append("* collapsed: no more accurate than always answering the most frequent class")
    return said


def grouped(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows of one task and convention together."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.task, row.convention), []).append(row)
    return list(groups.values())


def markdown(rows: Sequence[Row], records: Sequence[Record]) -> str:
    """Accuracy, ECE, mean FPR95 and seconds, one line a method; a table a task and convention."""
    seconds = {id(row): record.seconds["fit"] for row, record in zip(rows, records, strict=True)}
    lines = []
    for group in grouped(rows):
        record = records[rows.index(group[0])]
        where = f"{record.device}, {record.threads} thread{'s' * (record.threads > 1)}"
        lines += [f"## {group[0].task}, {group[0].convention}: per cent; {where}", "", *remarks(group)]
        lines += ["| method | seed | accuracy | ECE | mean FPR95 | seconds to fit |", "|---|---|---|---|---|---|"]
        for row in group:
            cells = " | ".join(f"{100 * read(row, BY_MAX_PROB):.1f}" for read, _ in COLUMNS.values())
            lines.append(f"| `{row.method}` | {row.seed} | {cells} | {seconds[id(row)]:.1f} |")
        lines.append("")
    return "\n".join(lines)
