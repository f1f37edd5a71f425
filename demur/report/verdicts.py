"""claims.md: the verdict on every claim, in both conventions and by the paper's own figures, and what it rests on."""

from collections.abc import Sequence
from typing import Any

from demur.paper.claims import CLAIMS, SECONDS
from demur.paper.grid import CONVENTIONS
from demur.paper.statistics import NO, UNCLEAR, YES, Known, combine_outcomes
from demur.paper.verdicts import WAITING, Made, Verdict, examine, waiting
from demur.paper.views import own_view, printed_view
from demur.report.sheet import Code, Sheet, Strong, Text, render
from demur.study.table import Measured

COLUMNS = (*CONVENTIONS, "printed")
MANY = 4  # values of a line that are all shown


def verdicts(cells: Sequence[Measured]) -> list[tuple[str, list[Verdict]]]:
    """By the title of a claim: in each convention and, where the paper prints values, by these."""
    views = [own_view(cells, convention) for convention in CONVENTIONS]
    return [
        (claim.title, [examine(claim, view) for view in (*views, *[printed_view()] * claim.is_printed)])
        for claim in CLAIMS
    ]


def summary(cells: Sequence[Measured]) -> Sheet | None:
    """A line a claim; None where none can be tested."""
    found = verdicts(cells)
    if all(one.text == WAITING for _, columns in found for one in columns[: len(CONVENTIONS)]):
        return None
    rows: list[list[Text]] = [
        [f"{number}. {title}", *(one.text for one in columns), *["–"] * (len(COLUMNS) - len(columns))]
        for number, (title, columns) in enumerate(found, 1)
    ]
    return Sheet(["claim", *COLUMNS], rows, written=True)


def claims_document(cells: Sequence[Measured]) -> str | None:
    """Markdown, from values alone; None where no claim can be tested."""
    views = {convention: own_view(cells, convention) for convention in CONVENTIONS}
    if (first := summary(cells)) is None:
        return None
    claims: list[dict[str, Any]] = [
        {"claim": claim, "sheet": _lines(columns), "seeds": _seeds(columns), "waiting": waiting(claim, views)}
        for claim, (_, columns) in zip(CLAIMS, verdicts(cells), strict=True)
    ]
    devices = ", ".join(sorted({one.record.device for one in cells}))
    return render("claims.md", summary=first, claims=claims, devices=devices)


def _seeds(columns: Sequence[Verdict]) -> str:
    """How many networks of a method the tests of a task compare."""
    said = []
    for convention, column in zip(CONVENTIONS, columns, strict=False):
        counts = (f"{task} {' to '.join(map(str, sorted({*ends})))}" for task, ends in column.seeds.items())
        said += [f"{convention}: {', '.join(counts)}"] * bool(column.seeds)
    return "; ".join(said)


def _lines(columns: Sequence[Verdict]) -> Sheet:
    """A line for each quantity on each task."""
    lines = dict.fromkeys(made.test.line for column in columns for made in column.made)
    rows: list[list[Text]] = [
        [line, *(_show_line([made for made in column.made if made.test.line == line]) for column in columns)]
        for line in lines
    ]
    return Sheet(["", *COLUMNS[: len(columns)]], rows, written=True)


def _show_line(line: Sequence[Made]) -> Text:
    if not line:
        return "–"
    # what few others are compared with is said once
    is_one = len({made.test.one for made in line}) < len({made.test.other for made in line})
    groups: dict[tuple[str, str], list[Made]] = {}
    for made in line:
        groups.setdefault((made.test.one if is_one else made.test.other, made.test.rule), []).append(made)
    return [_group(fixed, rule, some, is_one) for (fixed, rule), some in groups.items()]


def _group(fixed: str, rule: str, some: Sequence[Made], is_one: bool) -> Text:
    """How many say yes, and every value where there are few, or else those that do not."""
    outcomes = [made.outcome for made in some]
    by_kind: dict[str, list[Text]] = {YES: [], NO: [], UNCLEAR: []}
    for made in some:
        method, known = (made.test.other, made.other) if is_one else (made.test.one, made.one)
        by_kind[made.outcome] += [", ", Code(method), " ", _value(known, made, made.outcome == UNCLEAR)]
    reference = _value(some[0].one if is_one else some[0].other, some[0], UNCLEAR in outcomes)
    compared = (Code(fixed), f" {reference} {rule}") if is_one else (f"{rule} ", Code(fixed), f" {reference}")
    counted = combine_outcomes(outcomes) if some[0].test.counts else "beside"
    said: list[Text] = [Strong(counted), f" {outcomes.count(YES)} of {len(some)}: ", *compared]
    for kind, listed in by_kind.items():
        if listed and (kind != YES or len(some) <= MANY):
            said += [" " if kind == YES and is_one else f"; {kind}: ", *listed[1:]]
    return tuple(said)


def _value(known: Known, made: Made, with_half: bool) -> str:
    return f"{known.value:.0f} s" if made.test.quantity in SECONDS else known.text(with_half)
