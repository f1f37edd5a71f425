"""Does a printed value lie where one more network of ours might? For tasks and methods with several training seeds."""

import numpy as np

from demur.paper.analysis import CORRECTED, Analysis
from demur.paper.published import DEFAULT_OUTLIERS, MEAN, OOD_SETS, Row, measured_as, printed_values
from demur.paper.statistics import Known
from demur.report.sheet import Code, Link, Section, Sheet, Strong, Text
from demur.study.measuring import per_cent
from demur.tasks import IMAGES  # the paper's texts are rows of unknown words

SEEDS = 3
Compared = dict[tuple[str, Row], dict[str, tuple[Known, float]]]  # by task and row, by set: ours, and what is printed


def compared(analysis: Analysis) -> Compared:
    """FPR95 of the paper's rows, set by set, where ours has so many seeds; corrected convention."""
    rows: Compared = {}
    for entry in printed_values():
        usual = entry.task in IMAGES and entry.outliers == DEFAULT_OUTLIERS[entry.task]
        if usual and entry.metric == "fpr95" and entry.row.score == "max_prob":
            ours = analysis.views[CORRECTED].known(entry.task, entry.row.method, measured_as(entry), "fpr95")
            if ours is not None and len(ours.by_seed) >= SEEDS and not ours.collapsed:
                rows.setdefault((entry.task, entry.row), {})[entry.set] = ours, entry.value
    return rows


def is_within(ours: Known, printed: float) -> bool:
    return abs(ours.value - printed) <= ours.of_one_more


def seeds_section(analysis: Analysis) -> Section | None:
    """How many lie within, by task and method; None where no method has several seeds."""
    rows = compared(analysis)
    if not rows:
        return None
    tasks = list(dict.fromkeys(task for task, _ in rows))
    methods = list(dict.fromkeys(row for _, row in rows))

    def count(task: str, row: Row) -> str:
        sets = rows.get((task, row), {})
        inside = sum(is_within(*pair) for pair in sets.values())
        return f"{inside} of {len(sets)}" if sets else "–"

    intro: Text = (
        "FPR95 by the maximum probability, where a method has at least three training seeds in the corrected "
        "convention: how many of the values that the paper prints, set by set and in the mean, lie within the 95 % "
        "interval of one more network of ours. Set by set: ",
        *[part for task in tasks for part in (", ", Link(task, f"tables/seeds-{task}.md"))][1:],
        ".",
    )
    lines: list[list[Text]] = [[Code(row.method), *(count(task, row) for task in tasks)] for row in methods]
    return Section("Within the spread over seeds", [intro, Sheet(["method", *tasks], lines)])


def seeds_tables(analysis: Analysis) -> list[Sheet]:
    """A line a method, for each task."""
    rows = compared(analysis)
    return [
        _table(task, {row: sets for (of_task, row), sets in rows.items() if of_task == task})
        for task in dict.fromkeys(task for task, _ in rows)
    ]


def _table(task: str, rows: dict[Row, dict[str, tuple[Known, float]]]) -> Sheet:
    sets = [name for name in (*OOD_SETS[task], MEAN) if any(name in of for of in rows.values())]
    lines: list[list[Text]] = [
        [Code(row.method), *(_cell(*of[name]) if name in of else "–" for name in sets)] for row, of in rows.items()
    ]
    return Sheet(
        ["method", *(name.replace("_", " ") for name in sets)],
        lines,
        title=f"FPR95 over training seeds, {task}",
        notes=[
            "In per cent: mean ± standard deviation over at least three training seeds, corrected convention; below, "
            "the printed value, which is of one network, and whether it lies within the 95 % interval of one more "
            "network of ours, over test points and training. Bold lies outside",
        ],
        name=f"seeds-{task}",
    )


def _cell(ours: Known, printed: float) -> Text:
    values = [*ours.by_seed.values()]
    spread = f"{per_cent(float(np.mean(values)))} ±{per_cent(float(np.std(values, ddof=1)))}"
    inside = is_within(ours, printed)
    said = f"{per_cent(printed)} within" if inside else Strong(f"{per_cent(printed)} outside")
    return [spread, said]
