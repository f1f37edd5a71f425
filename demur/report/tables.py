"""Tables of runs for the terminal, and in Markdown: per cent, the best of each column in bold."""

from collections.abc import Callable, Sequence

from rich.console import Group

from demur.measures import value_name
from demur.report.sheet import Code, Sheet, Strong, Text, terminal
from demur.report.sheet import markdown as as_markdown
from demur.scores import USUAL_SCORE
from demur.study.measuring import per_cent
from demur.study.records import Record
from demur.study.run import Row

# a column: its value of a row and a score, and which of several is best
Read = Callable[[Row, str], float]
COLUMNS: dict[str, tuple[Read, Callable[..., float]]] = {
    "acc.": (lambda row, _: row.metrics["accuracy"], max),
    "ECE": (lambda row, _: row.metrics["ece"], min),
    "mean FPR95": (lambda row, score: row.mean_fpr95(score), min),
}
BY_DEFAULT = (USUAL_SCORE, "none_share")


def on(name: str) -> Read:
    return lambda row, score: row.ood[name][value_name("fpr95", score)]


def lines_of(rows: Sequence[Row], scores: Sequence[str] = ()) -> list[tuple[Row, str]]:
    """A line a method, by max probability, with a none class another by `none_share`, and one for each of `scores`."""
    return [
        (row, score)
        for row in rows
        for score in (*BY_DEFAULT, *scores)
        if all(value_name("fpr95", score) in values for values in row.ood.values())
    ]


def table(rows: Sequence[Row], title: str, scores: Sequence[str] = ()) -> Group:
    """Accuracy and ECE inside, FPR95 on every OOD set (inliers positive)."""
    columns = COLUMNS | {name.replace("_", " "): (on(name), min) for name in rows[0].ood}
    lines = lines_of(rows, scores)
    best = {name: choose(read(*line) for line in lines) for name, (read, choose) in columns.items()}

    def cell(name: str, row: Row, score: str) -> Text:
        value = columns[name][0](row, score)
        return Strong(per_cent(value)) if value == best[name] and len(rows) > 1 else per_cent(value)

    labels = [row.method + "*" * row.collapsed if score == USUAL_SCORE else f"  by {score}" for row, score in lines]
    shown = [[label, *(cell(name, *line) for name in columns)] for label, line in zip(labels, lines, strict=True)]
    return Group(terminal(Sheet(["method", *columns], shown, title=title)), *remarks(rows))


def sheet(row: Row, title: str, scores: Sequence[str] = ()) -> Group:
    """Everything of note about one method: a line for the inliers, and one for every OOD set; `scores` are own ones."""
    inside = "  ".join(f"{name} {value:.3f}" for name, value in row.metrics.items())
    shown = {
        "FPR95": "fpr95",
        "AUROC": "auroc",
        "AUPR": "aupr",
        "confidence": "mmc",
        "FPR95 by none mass": value_name("fpr95", "none"),
        **{f"by {name}": value_name("fpr95", name) for name in ("none_share", *scores)},
    }
    shown = {name: key for name, key in shown.items() if all(key in values for values in row.ood.values())}
    rows = [[name, *(per_cent(values[key]) for key in shown.values())] for name, values in row.ood.items()]
    rows.append(["mean but far_away", *(per_cent(row.mean_over_ood(key)) for key in shown.values())])
    result = Sheet(["OOD set", *shown], rows, title=title + "*" * row.collapsed, ruled=[len(rows) - 1])
    return Group(terminal(result), f"inliers, as fractions: {inside}", *remarks([row]))


def remarks(rows: Sequence[Row]) -> list[str]:
    """What a reader of the table must know."""
    lines = [f"{name}: {note}" for name, note in rows[0].notes.items()]
    if rows[0].missing:
        lines.append(f"not measured, since the data is missing: {', '.join(rows[0].missing)}")
    if any(row.collapsed for row in rows):
        lines.append("* collapsed: no more accurate than always answering the most frequent class")
    return lines


def group_rows(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows of one task and convention together."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.task, row.convention), []).append(row)
    return list(groups.values())


def markdown(rows: Sequence[Row], records: Sequence[Record]) -> str:
    """Accuracy, ECE, mean FPR95 and seconds, one line a method; a table a task and convention."""
    of = {id(row): record for row, record in zip(rows, records, strict=True)}
    parts = []
    for group in group_rows(rows):
        first = of[id(group[0])]
        lines = [
            [
                Code(row.method),
                str(row.seed),
                *(per_cent(read(row, USUAL_SCORE)) for read, _ in COLUMNS.values()),
                f"{of[id(row)].seconds['fit']:.1f}",
            ]
            for row in group
        ]
        title = f"{group[0].task}, {group[0].convention}: per cent; {first.device}, {first.threads} thread"
        head = ["method", "seed", "accuracy", "ECE", "mean FPR95", "seconds to fit"]
        text = as_markdown(Sheet(head, lines, notes=remarks(group)))
        parts.append(f"## {title}{'s' * (first.threads > 1)}\n\n{text}")
    return "\n".join(parts)
