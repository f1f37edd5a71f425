"""Outcomes as text, a few lines a row."""

from collections.abc import Iterator

from benchmarks.frame import Outcome, Verdict


def lines(outcome: Outcome, judge: bool = True) -> Iterator[str]:
    """The row's name and work, then a line a contestant: time and, if they are to be judged, what targets came to."""
    row = outcome.row
    if outcome.skipped:
        yield f"{row.name}: {row.work}: skipped ({outcome.skipped})"
        return
    yield f"{row.name}: {row.work}"
    width = max(map(len, outcome.seconds))
    for name, seconds in outcome.seconds.items():
        said = [f"  {name:{width}}  {duration(seconds):>8} {row.unit}".rstrip()]
        if name != outcome.ours:
            said.append(f"{seconds / outcome.seconds[outcome.ours]:.2f}x ours")
        if name in outcome.peak:
            said.append(f"{outcome.peak[name] / 2**20:.0f} MiB")
        if name in outcome.agreement:
            said.append(f"differs by {outcome.agreement[name]:.0e}")
        if name == outcome.ours and judge:
            said += [f"{share:.0%} of the {limit}" for limit, share in outcome.shares.items()]
        rival = None if name == outcome.ours else name
        said += [judged(verdict) for verdict in outcome.verdicts() if judge and verdict.target.rival == rival]
        yield ", ".join(said)


def judged(verdict: Verdict) -> str:
    target, met = verdict.target, "met" if verdict.met else "MISSED"
    if target.rival is None:
        return f"target {duration(target.value)}: {met}"
    what = "" if target.of == "time" else f"memory {verdict.value:.2f}x ours, "
    return f"{what}target {target.value:.3g}x: {met}"


def duration(seconds: float) -> str:
    """Three digits, in a unit that suits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"
