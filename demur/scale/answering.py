"""A whole run: what is left to answer, and an engine that does it fragment by fragment. One machine is the default."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from demur.classifier import Classifier
from demur.scale.fragments import Fragment, Source, has_changed, list_inputs, read_fragment
from demur.scale.parts import Manifest, answer, check_still_ours, open_output, parts_in, remove_unfinished, write_part
from demur.scale.places import Location


@dataclass(frozen=True)
class Job:
    """What every worker knows: where inputs are, where answers go, what these are of, and whether an input may be
    invalid."""

    source: Source
    to: Location
    manifest: Manifest
    tolerant: bool


@dataclass(frozen=True)
class Outcome:
    """Of a fragment; `reason` is why it failed, or why the first of its invalid inputs is."""

    inputs: int
    invalid: int = 0
    reason: str = ""
    failed: bool = False


@dataclass(frozen=True)
class Summary:
    parts: int
    kept: int  # parts of earlier runs
    inputs: int  # of this run
    invalid: int
    reason: str
    changed: bool  # whether inputs were changed, added or removed meanwhile


Engine = Callable[[Job, Sequence[Fragment]], Iterable[Outcome]]


def predict_parts(
    inputs: Location,
    to: Location,
    kind: str,
    model: str,
    engine: Engine,
    *,
    strict: bool = False,
    overwrite: bool = False,
    count: Callable[[int], object] = lambda inputs: None,
) -> Summary:
    """Answer every input once, by a model of this kind and hash; called again after it was stopped, it goes on."""
    if to.within(inputs) or inputs.within(to):
        raise ValueError(f"{to.name} is where the inputs are; name another folder for the answers")
    source = list_inputs(inputs, kind)
    total = len(source.fragments)
    manifest = Manifest(model, source.fingerprint, total, strict)
    kept = open_output(to, manifest, overwrite)
    left = [fragment for fragment in source.fragments if fragment.number not in kept]
    failed, done, invalid, reason = list[str](), 0, 0, ""
    for outcome in engine(Job(source, to, manifest, not strict), left) if left else ():
        if outcome.failed:
            if strict:
                raise ValueError(outcome.reason)
            failed.append(outcome.reason)
            continue
        done, invalid, reason = done + outcome.inputs, invalid + outcome.invalid, reason or outcome.reason
        count(outcome.inputs)
    if failed:
        more = f" ({len(failed):,} of {total:,} parts failed)" if len(failed) > 1 else ""
        raise ValueError(f"{failed[0]}{more}; the others are in {to.name}, and the same command goes on from there")
    check_still_ours(to, manifest)
    missing = total - len(parts_in(to))
    if missing:
        raise ValueError(
            f"{missing:,} of {total:,} parts are not in {to.name}: workers wrote them where this machine does not see "
            "them; give a folder that all of them share, or the URL of an object store"
        )
    remove_unfinished(to)
    return Summary(total, len(kept), done, invalid, reason, has_changed(source))


def attempt(classifier: Classifier, job: Job, fragment: Fragment) -> Outcome:
    """Answer a fragment and write its part."""
    inputs = invalid = 0
    reason = ""

    def answers() -> Iterator[pa.Table]:
        nonlocal inputs, invalid, reason
        for batch in read_fragment(classifier, job.source, fragment, job.tolerant):
            inputs, invalid = inputs + len(batch.names), invalid + len(batch.wrong)
            reason = reason or next(iter(batch.wrong.values()), "")
            yield answer(classifier, batch)

    try:
        write_part(job.to, fragment.number, answers(), job.manifest)
    except (ValueError, OSError) as error:
        return Outcome(0, reason=" ".join(str(error).split()), failed=True)
    return Outcome(inputs, invalid, reason)


def on_this_machine(classifier: Classifier) -> Engine:
    def engine(job: Job, fragments: Sequence[Fragment]) -> Iterator[Outcome]:
        for fragment in fragments:
            yield attempt(classifier, job, fragment)

    return engine
