"""What disagrees with the paper in the published convention, counted by cause, and all of it line by line."""

from demur.paper.agreement import LIMIT
from demur.paper.analysis import Analysis
from demur.paper.causes import CAUSES, OPEN, Cause, Disagreement
from demur.report.compare import METRIC_TITLES
from demur.report.sheet import Code, Link, Section, Sheet, Strong, Text
from demur.study.measuring import with_sign

POINTS = f"{100 * LIMIT:.0f} points"
TITLE = f"All that differs by more than {POINTS}, published convention"


def by_cause(analysis: Analysis) -> Section | None:
    """How many disagreements each cause may explain, and what is known of it; None where there are none."""
    differing = analysis.disagreements
    if not differing:
        return None
    tasks = list(dict.fromkeys(one.printed.task for one, _ in differing))
    applying = [cause for cause in (*CAUSES, OPEN) if any(other == cause for _, other in differing)]

    def count(task: str | None, cause: Cause | None) -> str:
        here = [one for one, other in differing if task in (None, one.printed.task) and cause in (None, other)]
        return str(len(here)) if here else "–"

    rows: list[list[Text]] = [[cause.title, *(count(task, cause) for task in (*tasks, None))] for cause in applying]
    rows.append([Strong("all"), *(count(task, None) for task in (*tasks, None))])
    intro = (
        f"The values that differ by more than {POINTS} in the published convention. Each is counted once, at the "
        "first cause that applies to it. That a cause applies does not show that it explains the whole difference. "
        f"A table lists every one of them: {TITLE}."
    )
    notes = [(Strong((cause.title, ".")), f" {cause.known}") for cause in applying]
    experiments = ("The experiments: ", Link("where and why values differ", "../docs/reproduction/causes.md"), ".")
    sheet = Sheet(["cause", *tasks, "all"], rows, notes=notes)
    return Section("Causes of disagreement", [intro, sheet], file_note=experiments)


def line_by_line(analysis: Analysis) -> Sheet | None:
    """A line for the methods that go together, on a set, by cause; None where nothing disagrees."""
    groups: dict[tuple[str, str, str, str], dict[str, list[Disagreement]]] = {}
    for one, cause in analysis.disagreements:
        entry = one.printed
        place = entry.task, one.group, entry.set.replace("_", " "), cause.title
        groups.setdefault(place, {}).setdefault(METRIC_TITLES[entry.metric], []).append(one)
    tasks = list(dict.fromkeys(task for task, *_ in groups))
    ordered = sorted(groups.items(), key=lambda group: tasks.index(group[0][0]))
    rows: list[list[Text]] = [[*place, _by_metric(metrics)] for place, metrics in ordered]
    if not rows:
        return None
    return Sheet(
        ["task", "methods", "set", "cause", "measured less printed"],
        rows,
        names=4,
        title=TITLE,
        notes=(
            "In points of per cent. What several tables print is here once. What is known of each cause: RESULTS.md",
            "A mean is over the task's OOD sets; test is what is measured on test data",
        ),
        name="disagreements",
        written=True,
    )


def _by_metric(metrics: dict[str, list[Disagreement]]) -> Text:
    lines: list[Text] = []
    for metric, several in metrics.items():
        differences = {one.printed.row.label: with_sign(one.difference) for one in several}
        listed = [part for label, difference in differences.items() for part in (", ", Code(label), f" {difference}")]
        lines.append((f"{metric}: ", *listed[1:]))
    return lines
