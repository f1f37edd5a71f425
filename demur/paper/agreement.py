"""Every value that the paper prints beside what was measured: how many there are, and how many agree."""

from collections.abc import Sequence

import pandas as pd

from demur.measures import value_name
from demur.paper.grid import CONVENTIONS
from demur.paper.published import TITLES, measured_as, printed_values
from demur.paper.views import own_view, place
from demur.study.table import Measured

LIMIT = 0.04  # two values agree where they differ by no more


def compare_printed(cells: Sequence[Measured]) -> pd.DataFrame:
    """A line a printed value: where it stands, what it is, and ours in each convention, nan where there is none."""
    views = {convention: own_view(cells, convention) for convention in CONVENTIONS}
    lines = []
    for entry in printed_values():
        at, metric = place(entry.task, entry.row.method, entry.outliers), value_name(entry.metric, entry.row.score)
        looked_up = {name: view.look(at, measured_as(entry), metric) for name, view in views.items()}
        values = {name: known and known.value for name, known in looked_up.items()}
        lines.append(
            {"table": entry.table, "task": entry.task, "metric": entry.metric, "printed": entry.value, **values}
        )
    return pd.DataFrame(lines).astype(dict.fromkeys(CONVENTIONS, float))


def agrees(ours: float, printed: float) -> bool:
    return round(abs(ours - printed), 3) <= LIMIT


def coverage(lines: pd.DataFrame) -> pd.DataFrame:
    """By table and task, and in all: how many are measured in each convention, and how many there are."""
    whole = _with_totals(lines, "task", "table")
    counted = whole.groupby(["table", "task"], sort=False)[[*CONVENTIONS, "printed"]].count()
    order = [*TITLES, "all"]
    return counted.sort_index(level="table", key=lambda names: names.map(order.index), sort_remaining=False)


def agreement(lines: pd.DataFrame, convention: str) -> pd.DataFrame:
    """By task and metric: how many values are compared, and the fraction that agrees."""
    measured = lines[lines[convention].notna()]
    near = (measured[convention] - measured["printed"]).abs().round(3) <= LIMIT
    whole = _with_totals(measured.assign(near=near), "metric", "task")
    return whole.groupby(["task", "metric"], sort=False)["near"].agg(["count", "mean"])


def _with_totals(lines: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Every line again with `all` in these columns, in each and in all of them."""
    for column in columns:
        lines = pd.concat([lines, lines.assign(**{column: "all"})])
    return lines
