"""claims.md: the verdict on every claim, in both conventions and by the paper's own values, and what it rests on."""

from collections.abc import Sequence
from typing import Any

from demur.paper.analysis import Analysis
from demur.paper.claims import QUANTITIES
from demur.paper.grid import CONVENTIONS
from demur.paper.statistics import NO, UNCLEAR, YES, Known, combine_outcomes
from demur.paper.verdicts import VERDICTS, WAITING, Finding, Verdict, waiting
from demur.report.sheet import Code, Sheet, Strong, Text, render

COLUMNS = (*CONVENTIONS, "printed")
MANY = 4  # values of a line that are all shown


def summary(analysis: Analysis) -> Sheet | None:
    """A line a claim; None where none can be tested."""
    if all(one.word == WAITING for _, columns in analysis.verdicts for one in columns[: len(CONVENTIONS)]):
        return None
    rows: list[list[Text]] = [
        [f"{number}. {claim.title}", *(one.text for one in columns), *["–"] * (len(COLUMNS) - len(columns))]
        for number, (claim, columns) in enumerate(analysis.verdicts, 1)
    ]
    return Sheet(["claim", *COLUMNS], rows, written=True)


def by_verdict(analysis: Analysis) -> dict[str, list[tuple[int, str, str]]]:
    """Number, title and tests of the claims, by their verdict in the corrected convention; nothing where none can be
    tested."""
    groups: dict[str, list[tuple[int, str, str]]] = {}
    for number, (claim, (corrected, *_)) in enumerate(analysis.verdicts, 1):
        groups.setdefault(corrected.word, []).append((number, claim.title, corrected.tests + corrected.dagger))
    order = (*VERDICTS.values(), WAITING)
    return {} if [*groups] == [WAITING] else {verdict: groups[verdict] for verdict in order if verdict in groups}


def claims_document(analysis: Analysis) -> str | None:
    """Markdown, from values alone; None where no claim can be tested."""
    if (first := summary(analysis)) is None:
        return None
    claims: list[dict[str, Any]] = [
        {"claim": claim, "sheet": _lines(columns), "seeds": _seeds(columns), "waiting": waiting(claim, analysis.views)}
        for claim, columns in analysis.verdicts
    ]
    devices = ", ".join(sorted({one.record.device for one in analysis.cells}))
    short = by_verdict(analysis)
    return render("claims.md", summary=first, claims=claims, devices=devices, short=short)


def _seeds(columns: Sequence[Verdict]) -> str:
    """How many networks of a method the tests of a task compare."""
    lines = []
    for convention, column in zip(CONVENTIONS, columns, strict=False):
        counts = (f"{task} {' to '.join(map(str, sorted({*ends})))}" for task, ends in column.seeds.items())
        lines += [f"{convention}: {', '.join(counts)}"] * bool(column.seeds)
    return "; ".join(lines)


def _lines(columns: Sequence[Verdict]) -> Sheet:
    """A line for each quantity on each task."""
    lines = dict.fromkeys(finding.test.line for column in columns for finding in column.findings)
    rows: list[list[Text]] = [
        [
            line,
            *(_show_line([finding for finding in column.findings if finding.test.line == line]) for column in columns),
        ]
        for line in lines
    ]
    return Sheet(["", *COLUMNS[: len(columns)]], rows, written=True)


def _show_line(line: Sequence[Finding]) -> Text:
    if not line:
        return "–"
    # what few others are compared with is said once
    is_one = len({finding.test.one for finding in line}) < len({finding.test.other for finding in line})
    groups: dict[tuple[str, str, float], list[Finding]] = {}
    for result in line:
        fixed, known = (result.test.one, result.one) if is_one else (result.test.other, result.other)
        # a mean is over the tasks that both methods have, so beside another method it may have another value
        groups.setdefault((fixed, result.test.rule, known.value), []).append(result)
    return [_group(fixed, rule, findings, is_one) for (fixed, rule, _), findings in groups.items()]


def _group(fixed: str, rule: str, results: Sequence[Finding], is_one: bool) -> Text:
    """How many say yes, and every value where there are few, or else those that do not."""
    outcomes = [finding.outcome for finding in results]
    by_kind: dict[str, list[Text]] = {YES: [], NO: [], UNCLEAR: []}
    for result in results:
        method, known = (result.test.other, result.other) if is_one else (result.test.one, result.one)
        by_kind[result.outcome] += [", ", Code(method), " ", _value(known, result, result.outcome == UNCLEAR)]
    reference = _value(results[0].one if is_one else results[0].other, results[0], UNCLEAR in outcomes)
    compared = (Code(fixed), f" {reference} {rule}") if is_one else (f"{rule} ", Code(fixed), f" {reference}")
    counted = combine_outcomes(outcomes) if results[0].test.counts else "beside"
    parts: list[Text] = [Strong(counted), f" {outcomes.count(YES)} of {len(results)}: ", *compared]
    for kind, listed in by_kind.items():
        if listed and (kind != YES or len(results) <= MANY):
            parts += [" " if kind == YES and is_one else f"; {kind}: ", *listed[1:]]
    return tuple(parts)


def _value(known: Known, result: Finding, with_half: bool) -> str:
    return f"{known.value:.0f} s" if QUANTITIES[result.test.quantity].is_time else known.text(with_half)
