"""Tables for people: per cent, best of each column in bold."""

from collections.abc import Sequence

from rich.table import Table

from demur.study.run import Row

COLUMNS = {
    "accuracy": (lambda row: row.metrics["accuracy"], max),
    "ECE": (lambda row: row.metrics["ece"], min),
    "mean FPR95": (lambda row: row.mean_fpr95, min),
}


def table(rows: Sequence[Row], title: str) -> Table:
    """One line a method: accuracy and ECE inside, FPR95 on every OOD set (inliers positive, max-probability score)."""
    columns = dict(COLUMNS)
    for name in rows[0].ood:
        columns[name.replace("_", " ")] = (lambda row, name=name: row.ood[name]["fpr95"], min)
    drawn = Table(title=title, title_justify="left", pad_edge=False)
    drawn.add_column("method", no_wrap=True)
    for name in columns:
        drawn.add_column(name, justify="right")
    best = {name: choose(value(row) for row in rows) for name, (value, choose) in columns.items()}
    for row in rows:
        cells = []
        for name, (value, _) in columns.items():
            text = f"{100 * value(row):.1f}"
            cells.append(f"[bold]{text}[/bold]" if value(row) == best[name] and len(rows) > 1 else text)
        drawn.add_row(row.method, *cells)
    return drawn
