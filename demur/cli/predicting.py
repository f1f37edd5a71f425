"""What `demur predict` does: a csv, or parquet parts."""

import csv
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from demur.cli.outputs import check_file, check_folder, write_text_file
from demur.cli.progress import counting
from demur.cli.shared import parse_device

if TYPE_CHECKING:
    from demur.classifier import Predictor
    from demur.classifier.readers import Batch, X

HEAD = ("input", "decision", "label", "probability", "outlier_score", "p_value")
ENGINES = ("here", "ray")
SMALL = 2**20  # weights of a network, below which threads wait for each other more than they compute


def is_parts(out: str) -> bool:
    """Whether answers go to a folder of parquet parts."""
    return "://" in out or out.rstrip("/").endswith(".parquet")


def check_engine(engine: str, address: str | None, out: str | None) -> None:
    if engine not in ENGINES:
        raise ValueError(f"unknown engine {engine!r}; there are {' and '.join(ENGINES)}")
    if address is not None and engine != "ray":
        raise ValueError(f"address {address!r} is a Ray cluster's; add --engine ray")
    if engine == "ray" and (out is None or not is_parts(out)):
        raise ValueError("engine 'ray' writes a folder of parquet parts; name it with --out, as NAME.parquet or a URL")


def predict_csv(model: Path, inputs: str, out: Path | None, strict: bool, overwrite: bool, device: str) -> None:
    read = [Path(inputs)] if "://" not in inputs else []
    check_file(out, overwrite, mark=",".join(HEAD[:5]).encode(), reads=read, model=model)

    from demur.classifier import Predictor
    from demur.classifier.decision import INVALID

    classifier = Predictor.load(model, device=parse_device(device))
    _share_work(classifier)
    batches = _batches(classifier, inputs, tolerant=not strict)
    wrong, total = list[str](), 0
    with (
        nullcontext(sys.stdout) if out is None else write_text_file(out) as file,
        counting(_shown(inputs), shown=out is not None) as count,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEAD)
        for batch in batches:
            rows = _answers(classifier, batch.x) if len(batch.wrong) < len(batch.names) else iter(())
            for place, name in enumerate(batch.names):
                writer.writerow((name, *((INVALID, "", "", "", "") if place in batch.wrong else next(rows))))
            wrong += batch.wrong.values()
            total += len(batch.names)
            count(len(batch.names))
        if len(wrong) == total:
            raise ValueError(wrong[0] if wrong else f"{_shown(inputs)} holds no inputs; give at least one")
    _note_invalid(len(wrong), total, wrong[0] if wrong else "")
    if out is not None:
        print(f"wrote {out}")


def predict_parts(
    model: Path, inputs: str, out: str, engine: str, address: str | None, strict: bool, overwrite: bool, device: str
) -> None:
    from demur.classifier import Classifier, sharing
    from demur.scale import answering
    from demur.scale.parts import MANIFEST
    from demur.scale.places import locate
    from demur.scale.ray_data import hash_model, on_ray

    if str(model).startswith(sharing.PREFIX):
        model, _ = sharing.fetch_model(str(model))
    to, at = locate(out), locate(inputs)
    if to.is_local:
        check_folder(Path(to.path), overwrite, model=model, writes=[MANIFEST], marks={MANIFEST: b"\\{"})
    hashed = hash_model(model) if model.exists() else ""  # what is not there is refused in the next line
    classifier = Classifier.load(model, device="cpu" if engine == "ray" else parse_device(device))
    if hash_model(model) != hashed:
        raise ValueError(f"{model} was replaced while it was read; run the command again")
    if engine == "here":
        _share_work(classifier)
    chosen = on_ray(model, device, address) if engine == "ray" else answering.on_this_machine(classifier)
    with counting(_shown(inputs)) as count:
        done = answering.predict_parts(
            at,
            to,
            classifier.preprocessing_.kind,
            hashed,
            chosen,
            strict=strict,
            overwrite=overwrite,
            count=count,
        )
    _note_invalid(done.invalid, done.inputs, done.reason)
    if done.changed:
        changed = "files changed while they were answered, so answers may be to both; --overwrite answers anew"
        print(f"demur: note: {_shown(inputs)}: {changed}", file=sys.stderr)
    kept = f", {done.kept:,} of them by an earlier run" if done.kept else ""
    print(f"wrote {to.name}: {done.parts:,} parts{kept}; {done.inputs:,} inputs answered")


def _share_work(classifier: "Predictor") -> None:
    """Among torch's threads, where networks are large enough for that; on a busy machine others cost many times the
    processor time, and more time of the clock."""
    import torch

    _, first = next(classifier.posterior_.components())
    if classifier.encoder_ is None and sum(weight.numel() for weight in first.network.parameters()) < SMALL:
        torch.set_num_threads(1)


def _note_invalid(wrong: int, total: int, reason: str) -> None:
    if wrong:
        print(f"demur: note: {wrong} of {total} inputs are invalid; {reason}", file=sys.stderr)


def _batches(classifier: "Predictor", inputs: str, tolerant: bool) -> "Iterator[Batch]":
    """Of a path as every command reads it; of a URL, or a folder of tables or texts, its fragments one by one."""
    from demur.classifier.readers import open_for

    kind = classifier.preprocessing_.kind
    if "://" not in inputs and not (kind != "images" and Path(inputs).is_dir()):
        return open_for(classifier, Path(inputs), tolerant=tolerant).batches

    from demur.scale.fragments import list_inputs, read_fragment
    from demur.scale.places import locate

    source = list_inputs(locate(inputs), kind)
    return (b for fragment in source.fragments for b in read_fragment(classifier, source, fragment, tolerant))


def _shown(inputs: str) -> str:
    """A name for progress, without what a URL says beside its path."""
    return inputs.partition("?")[0].rstrip("/").rpartition("/")[2] or "inputs"


def _answers(classifier: "Predictor", x: "X") -> Iterator[tuple[str, ...]]:
    answers = classifier.predict_all(x)
    p_values = [""] * len(answers.label) if answers.p_value is None else [f"{value:.6g}" for value in answers.p_value]
    for decision, label, probability, score, p_value in zip(
        answers.decision, answers.label, answers.probability, answers.outlier_score, p_values, strict=True
    ):
        yield decision, label, f"{probability:.6f}", f"{score:.6g}", p_value
