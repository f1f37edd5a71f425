"""Does a printed value lie where one more network of ours might? For tasks and methods with several training seeds."""

from itertools import product

import numpy as np

from demur.paper.analysis import CORRECTED, Analysis
from demur.paper.grid import PAPER_ROWS
from demur.paper.published import LEFT_OUT, OOD_SETS, mean_but
from demur.paper.statistics import Known
from demur.paper.views import LUCK, printed_view
from demur.report.sheet import Code, Link, Section, Sheet, Strong, Text
from demur.study.measuring import per_cent
from demur.tasks import IMAGES  # the paper's texts are rows of unknown words

SEEDS = 3
Compared = dict[tuple[str, str], dict[str, tuple[Known, float]]]  # by task and method, by set: ours, and the printed


def compared(analysis: Analysis) -> Compared:
    """FPR95 of the paper's rows, set by set but without uniform noise, where ours has so many seeds; corrected."""
    rows: Compared = {}
    printed = printed_view()
    for task, method in product(IMAGES, PAPER_ROWS):
        for name in sets_of(task):
            ours = analysis.views[CORRECTED].known(task, method, name, "fpr95")
            theirs = printed.known(task, method, name, "fpr95")
            if ours and theirs and len(ours.by_seed) >= SEEDS and not ours.collapsed:
                rows.setdefault((task, method), {})[name] = ours, theirs.value
    return rows


def sets_of(task: str) -> list[str]:
    """One network's luck on uniform noise would decide the mean, too."""
    return [*(name for name in OOD_SETS[task] if name != LUCK), mean_but(LUCK, *LEFT_OUT.get(task, ()))]


def is_within(ours: Known, printed: float) -> bool:
    return abs(ours.value - printed) <= ours.of_one_more


def seeds_section(analysis: Analysis) -> Section | None:
    """How many lie within, by task and method; None where no method has several seeds."""
    rows = compared(analysis)
    if not rows:
        return None
    tasks = list(dict.fromkeys(task for task, _ in rows))
    methods = list(dict.fromkeys(method for _, method in rows))

    def count(task: str, method: str) -> str:
        sets = rows.get((task, method), {})
        inside = sum(is_within(*pair) for pair in sets.values())
        return f"{inside} of {len(sets)}" if sets else "–"

    intro: Text = (
        "FPR95 by the maximum probability, where a method has at least three training seeds in the corrected "
        "convention: how many of the values that the paper prints, set by set and in the mean, lie within the 95 % "
        "interval of one more network of ours. Uniform noise is left out: what one network accepts of it says little "
        "of the next. Set by set: ",
        *[part for task in tasks for part in (", ", Link(task, f"tables/seeds-{task}.md"))][1:],
        ".",
    )
    lines: list[list[Text]] = [[Code(method), *(count(task, method) for task in tasks)] for method in methods]
    return Section("Within the spread over seeds", [intro, Sheet(["method", *tasks], lines)])


def seeds_tables(analysis: Analysis) -> list[Sheet]:
    """A line a method, for each task."""
    rows = compared(analysis)
    return [
        _table(task, {method: sets for (of_task, method), sets in rows.items() if of_task == task})
        for task in dict.fromkeys(task for task, _ in rows)
    ]


def _table(task: str, rows: dict[str, dict[str, tuple[Known, float]]]) -> Sheet:
    sets = [name for name in sets_of(task) if any(name in of for of in rows.values())]
    lines: list[list[Text]] = [
        [Code(method), *(_cell(*of[name]) if name in of else "–" for name in sets)] for method, of in rows.items()
    ]
    return Sheet(
        ["method", *(name.replace("_", " ") for name in sets)],
        lines,
        title=f"FPR95 over training seeds, {task}",
        notes=[
            "In per cent: mean ± standard deviation over at least three training seeds, corrected convention; below, "
            "the printed value, which is of one network, and whether it lies within the 95 % interval of one more "
            "network of ours, over test points and training. Bold lies outside",
            "Uniform noise is left out, of the mean, too",
        ],
        name=f"seeds-{task}",
    )


def _cell(ours: Known, printed: float) -> Text:
    values = [*ours.by_seed.values()]
    spread = f"{per_cent(float(np.mean(values)))} ±{per_cent(float(np.std(values, ddof=1)))}"
    inside = is_within(ours, printed)
    said = f"{per_cent(printed)} within" if inside else Strong(f"{per_cent(printed)} outside")
    return [spread, said]
