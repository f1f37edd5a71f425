"""Commands for data and models of one's own: fit, predict, evaluate, export."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from demur.cli.shared import Data, DeviceName, Seed, check_writable, device_named, make_console, open_store, progress

if TYPE_CHECKING:
    from demur.classifier import Classifier
    from demur.inputs import Inputs, X

app = typer.Typer()

ModelPath = Annotated[Path, typer.Argument(help="What `demur fit` wrote.")]
LabelColumn = Annotated[str | None, typer.Option(help="The label's column; else label, class, target or y.")]


@app.command()
def fit(
    inputs: Annotated[
        Path, typer.Argument(metavar="DATA", help="A folder of class folders of pictures, a csv, jsonl or npz file.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The model: a folder, or one file if it ends in .demur.")],
    outliers: Annotated[
        str | None,
        typer.Option(help="Path like DATA, data set, or made up: columns, box; smooth, patches, halves; words; a+b."),
    ] = None,
    made: Annotated[
        str | None,
        typer.Option(help="Beside those of --outliers: made-up ones, or levelled, the same as sharp as DATA; a+b."),
    ] = None,
    method: Annotated[str, typer.Option(help="inference+likelihood: la+nc, map+oe, de+nc, vb+sl, ...")] = "la+nc",
    label: LabelColumn = None,
    size: Annotated[str | None, typer.Option(help="Of pictures: 32, or HEIGHTxWIDTH; else the most common.")] = None,
    keep: Annotated[float, typer.Option(help="Share of the inliers that is to get a label.")] = 0.95,
    epochs: Annotated[int | None, typer.Option(min=1, help="Else what suits the amount of data.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A fifth of the usual epochs, for a first look.")] = False,
    seed: Seed = 0,
    device: DeviceName = "auto",
    data: Data = None,
) -> None:
    """Fit a classifier that refuses what it does not know to your own data."""
    from demur.classifier import Classifier
    from demur.inputs import open_inputs, read_outliers
    from demur.method import parse_method

    parse_method(method)
    _check_new_model(out)
    console = make_console()
    with progress(console, f"reading {inputs.name}") as describe:
        given = open_inputs(inputs, labelled=True, label=label, size=_size(size))
        inliers = given.gathered()
        classes = sorted(set(inliers.y or ()))
        if len(classes) > len(inliers.names) / 2:
            raise ValueError(
                f"{inputs} has {len(classes)} labels in {len(inliers.names)} inputs; name the right column"
            )
        shown = None if outliers is None else read_outliers(outliers, given, inliers.x, open_store(data))
        describe(f"{inputs.name} {method}")
        if quick and epochs is None:
            epochs = max(1, _usual_epochs(given.kind, inliers.x) // 5)
        classifier = Classifier(method, keep=keep, epochs=epochs, device=device_named(device), random_state=seed)
        classifier.fit(inliers.x, inliers.y, shown, made)
    classifier.save(out)
    for name, said in _said_of_fit(classifier, given, len(inliers.names), outliers).items():
        print(f"{name:<9} {said}")
    if given.kind == "pictures" and not (shown is None or isinstance(shown, str)):
        _say_if_sharpness_tells(inliers.x, shown, made)
    print(f"wrote {out}")


@app.command()
def predict(
    model: ModelPath,
    inputs: Annotated[
        Path,
        typer.Argument(
            metavar="INPUT", help="A picture or a folder of them, csv, jsonl, txt, npz; - for standard input."
        ),
    ],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A csv file; else it is printed.")] = None,
    device: DeviceName = "auto",
) -> None:
    """Say of every input which class it is, or that it is `unsure` or `unknown`: a csv, one row an input."""
    import csv

    from demur.classifier import Classifier

    check_writable(out)
    classifier = Classifier.load(model, device=device_named(device))
    given = _open_for(classifier, inputs)
    with _whole_or_not_at_all(out) as file, _counting(inputs.name, shown=out is not None) as count:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("input", "decision", "label", "probability", "outlier_score"))
        for batch in given.batches:
            said = classifier.predict_all(batch.x)
            columns = (batch.names, said.decision, said.label, said.probability, said.outlier_score)
            for name, decision, label, probability, score in zip(*columns, strict=True):
                writer.writerow((name, decision, label, f"{probability:.6f}", f"{score:.6g}"))
            count(len(batch.names))
    if out is not None:
        print(f"wrote {out}")


@app.command()
def evaluate(
    model: ModelPath,
    inputs: Annotated[Path, typer.Argument(metavar="DATA", help="Labelled, as for fit, but not what was fitted to.")],
    ood: Annotated[list[Path] | None, typer.Option(help="Inputs that belong to no class; may be repeated.")] = None,
    report: Annotated[Path | None, typer.Option(help="Folder for index.html, its figures, and every number.")] = None,
    label: LabelColumn = None,
    device: DeviceName = "auto",
) -> None:
    """Measure a model on data that it has not seen: accuracy, calibration, and what it does with outliers."""
    from demur.classifier import Classifier
    from demur.report import evaluation

    place = device_named(device)
    classifier = Classifier.load(model, device=place)
    inside = _open_for(classifier, inputs, labelled=True, label=label)
    names = [path.stem for path in ood or ()]
    outside = {
        name if names.count(name) == 1 else str(path): _open_for(classifier, path)
        for name, path in zip(names, ood or (), strict=True)
    }
    with _counting(inputs.name) as count:
        found = evaluation.evaluate(model.name, classifier, inside, outside, place, count)
    make_console().print(evaluation.sheet(found))
    if shortfall := evaluation.shortfall(found):
        print(f"demur: note: {shortfall}", file=sys.stderr)
    if report is not None:
        evaluation.write_evaluation(found, report)
        print(f"wrote {report / 'index.html'}")


@app.command()
def export(
    model: ModelPath,
    out: Annotated[Path | None, typer.Argument(metavar="FILE", help="By default the model's name and .onnx.")] = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="As ONNX, the one format there is.")] = False,
) -> None:
    """Write a model as one graph that onnxruntime runs without demur, and check that it gives the same answers."""
    from demur.classifier import Classifier
    from demur.export import export_onnx

    if not onnx:
        raise ValueError("no format is named; add --onnx")
    out = out or model.absolute().with_suffix(".onnx")
    check_writable(out)
    checked = export_onnx(Classifier.load(model, device="cpu"), out)
    print(f"wrote {out}, {out.stat().st_size / 2**20:.1f} MiB: {checked}")


def _check_new_model(out: Path) -> None:
    """A model may be written over, anything else not."""
    is_model = (out / "manifest.json").is_file() or (out.is_file() and out.suffix == ".demur")
    if out.exists() and not is_model and not (out.is_dir() and not any(out.iterdir())):
        raise ValueError(f"{out} is there already and is no model; give a new name")
    if not out.absolute().parent.is_dir():
        raise ValueError(f"the folder of {out} does not exist; create it first")


def _size(named: str | None) -> tuple[int, int] | None:
    if named is None:
        return None
    height, _, width = named.lower().partition("x")
    if not (height.isdecimal() and (width or height).isdecimal()) or min(int(height), int(width or height)) < 4:
        raise ValueError(f"size {named!r} is not that of a picture; give 32, or 32x48 for height and width")
    return int(height), int(width or height)


def _usual_epochs(kind: str, x: "X") -> int:
    import numpy as np

    from demur.classifier.preprocessing import KINDS

    return KINDS[kind].of(np.asarray(x) if kind == "rows" else x).recipe(len(x)).epochs


def _say_if_sharpness_tells(inliers: "X", outliers: "X", made: str | None) -> None:
    from demur.audit import LEAK
    from demur.classifier.preprocessing import grey_values
    from demur.sharpness import auroc_by_sharpness
    from demur.tasks.made import LEVELLED

    pictures = [grey_values(x, "X") for x in (inliers, outliers)]
    if min(map(len, pictures)) < 20:
        return
    auroc = auroc_by_sharpness(*pictures)
    if auroc > LEAK:
        advice = "" if LEVELLED in (made or "") else f"; see whether it does better with --made {LEVELLED} as well"
        print(f"sharpness alone tells these outliers from the inputs, AUROC {100 * auroc:.1f} %{advice}")


def _said_of_fit(classifier: "Classifier", given: "Inputs", count: int, outliers: str | None) -> dict[str, str]:
    from demur.inputs import listed

    found = classifier.report_
    shape = f" of {given.shape[1]}x{given.shape[2]}, {'grey' if given.shape[0] == 1 else 'RGB'}" if given.shape else ""
    shown = found["outliers"] if outliers in (None, found["outliers"]) else f"{outliers}, {found['outliers']}"
    return {
        "inputs": f"{count:,} {given.kind}{shape}; {found['tuned'] + found['calibrated']:,} held out",
        "classes": f"{len(classifier.classes_)}: {listed(classifier.classes_.tolist())}",
        "outliers": shown + ", made up" * (outliers is None and classifier.likelihood_.outside is not None),
        "accuracy": f"{100 * found['accuracy']:.1f} % of those held out",
        "kept": f"{100 * found['kept']:.1f} % of the {found['tuned']:,} that the threshold was not chosen by",
        "training": f"{found['method']}, {found['epochs']} epochs, {found['seconds']:.0f} s",
    }


def _open_for(classifier: "Classifier", path: Path, labelled: bool = False, label: str | None = None) -> "Inputs":
    """Inputs as the model was fitted to: its columns, its size of pictures."""
    from demur.classifier.preprocessing import Pictures
    from demur.inputs import open_inputs, unnamed

    fitted = classifier.preprocessing_
    channels, *size = fitted.shape if isinstance(fitted, Pictures) else (None,)
    if isinstance(fitted, Pictures) and path.suffix.lower() in (".csv", ".tsv", ".jsonl", ".txt"):
        raise ValueError(f"{path} holds no pictures, and the model is for pictures; give it what it was fitted to")
    columns = tuple(getattr(classifier, "feature_names_in_", ()))
    given = open_inputs(
        path,
        labelled=labelled,
        label=label,
        columns=columns,
        channels=channels,
        size=(size[0], size[1]) if size else None,
    )
    if given.kind != fitted.kind:
        raise ValueError(f"{path} holds {given.kind}, the model is for {fitted.kind}; give it what it was fitted to")
    return given if columns else unnamed(given)


@contextmanager
def _whole_or_not_at_all(out: Path | None) -> Iterator[TextIO]:
    """Standard output, or a file that gets its name once it is whole."""
    if out is None:
        yield sys.stdout
        return
    unfinished = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        with unfinished.open("w", encoding="utf-8", newline="") as file:
            yield file
        os.replace(unfinished, out)
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def _counting(what: str, shown: bool = True) -> Iterator[Callable[[int], None]]:
    """How many inputs are done, on a terminal."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}: {task.completed:,.0f} inputs"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal)) as bar:
        line = bar.add_task(what, total=None)
        yield lambda done: bar.advance(line, done)
