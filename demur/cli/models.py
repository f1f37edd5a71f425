"""Commands for data and models of one's own: fit, predict, evaluate, export."""

import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from demur.cli import continuing
from demur.cli.fitted import describe_fit
from demur.cli.outputs import Overwrite, check_file, check_folder
from demur.cli.progress import counting, progress
from demur.cli.shared import (
    Data,
    DeviceName,
    OwnMetrics,
    Samples,
    Seed,
    check_size,
    features_folder,
    make_console,
    open_store,
    parse_device,
    parse_size,
)
from demur.cli.training import join_processes, own_gpu, resume_training

if TYPE_CHECKING:
    from demur.classifier import Classifier
    from demur.classifier.readers import Inputs, X

app = typer.Typer()

ModelPath = Annotated[Path, typer.Argument(help="What `demur fit` wrote.")]
MADE_BY_DEMUR = rb"\x08.\x12\x05demur"  # the beginning of an ONNX file: version, and the producer's name
LabelColumn = Annotated[str | None, typer.Option(help="The label's column; else label, class, target or y.")]


@app.command(rich_help_panel="Your data")
def fit(
    context: typer.Context,
    inputs: Annotated[
        Path,
        typer.Argument(metavar="DATA", help="A folder of class folders of images, a csv, parquet, jsonl or npz file."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The model: a folder, or one file if it ends in .demur.")],
    outliers: Annotated[
        str | None,
        typer.Option(help="Path like DATA, or a data set; none: they are made from DATA."),
    ] = None,
    synthetic: Annotated[
        str | None,
        typer.Option(help="Beside these: columns, box; smooth, uniform, patches, halves, spectrum_matched; words."),
    ] = None,
    method: Annotated[str, typer.Option(help="inference+likelihood: la+nc, map+oe, de+nc, vb+sl, ...")] = "la+nc",
    backbone: Annotated[
        str | None,
        typer.Option(help="Pretrained: efficientnet-lite0, timm:NAME; minilm, wordllama; hf:NAME or hf:FOLDER."),
    ] = None,
    tune: Annotated[str, typer.Option(help="What of the backbone is trained: head, last (blocks) or all.")] = "head",
    label: LabelColumn = None,
    size: Annotated[str | None, typer.Option(help="Of images: 32, or HEIGHTxWIDTH; else the most common.")] = None,
    coverage: Annotated[float, typer.Option(help="Fraction of the inliers that is to get a label.")] = 0.95,
    abstain_by: Annotated[
        str | None, typer.Option(help="Score to abstain by: energy, knn, ...; else none_share, or entropy.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Else what suits the amount of data.")] = None,
    time_limit: Annotated[str | None, typer.Option(help="As well as it can in 90s, 10m or 2h.")] = None,
    augment: Annotated[str, typer.Option(help="Of images in training: auto, off, light, strong.")] = "auto",
    balance: Annotated[
        bool, typer.Option("--balance", help="Train with rare classes as often as with others.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A fifth of the usual epochs, for a first look.")] = False,
    before: Annotated[
        Path | None, typer.Option("--from", help="Go on from this model: its weights, and its settings unless given.")
    ] = None,
    reviewed: Annotated[
        Path | None, typer.Option(help="What `demur review` labelled, beside DATA; with --from.")
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Folder to keep unfinished training in; the same command goes on from it, and removes it."),
    ] = None,
    seed: Seed = 0,
    device: DeviceName = "auto",
    data: Data = None,
) -> None:
    """Fit a classifier that abstains where it does not know, to your own data."""
    begun = perf_counter()
    with join_processes():
        _check_new_model(out, checkpoint)
        continuing.check_continuing(context, before, reviewed, out)
        if not 0 < coverage < 1:
            raise ValueError(f"coverage {coverage} is not between 0 and 1; it is a fraction of the inliers")
        shape = parse_size(size)

        from demur.classifier import Classifier
        from demur.classifier.backbones import resolve_backbone
        from demur.classifier.features import observe_features
        from demur.classifier.kinds import Images
        from demur.classifier.limits import counted_from, parse_duration
        from demur.classifier.readers import open_inputs, read_outliers
        from demur.distributed import is_first
        from demur.inference.base import networks_in
        from demur.methods import parse_method

        if backbone is None and before is None and continuing.is_given(context, "tune"):
            raise ValueError(f"tune {tune!r} says what of a backbone is trained; add --backbone, or leave it out")
        if backbone is not None and size is not None:
            raise ValueError(f"size {size!r} is the backbone's to say; leave out one of --size and --backbone")
        parse_duration(time_limit)
        place, console = own_gpu(parse_device(device)), make_console()
        old = None if before is None else continuing.load_before(before, place)
        if old is not None and not continuing.is_given(context, "method"):
            method = str(old.method)
        networks = networks_in(parse_method(method).inference)
        with (
            resume_training(checkpoint, continuing.weights_of(old)),
            progress(console, f"reading {inputs.name}", networks) as describe,
        ):
            pretrained = None if backbone is None else resolve_backbone(backbone, None, tune)
            if old is not None:
                given = _open_for(old, inputs, labelled=True, label=label)
            elif pretrained is not None and isinstance(pretrained.inputs, Images):
                channels, *taken = pretrained.inputs.shape
                given = open_inputs(inputs, labelled=True, label=label, size=(taken[0], taken[1]), channels=channels)
            else:
                given = open_inputs(inputs, labelled=True, label=label, size=shape, mixed=None)
                check_size(given, size)
            inliers = given.gather()
            classes = sorted(set(inliers.y or ()))
            if len(classes) > len(inliers.names) / 2:
                raise ValueError(
                    f"{inputs} has {len(classes)} labels in {len(inliers.names)} inputs; name the right column"
                )
            shown = None if outliers is None else read_outliers(outliers, given, inliers.x, lambda: open_store(data))
            describe(f"{inputs.name} {method}")
            if quick and epochs is None:
                backbone_there = pretrained if old is None else old.backbone_
                usual = (
                    backbone_there.recipe(old.tune if old else tune, len(inliers.names)).epochs
                    if backbone_there
                    else None
                )
                epochs = max(1, (usual or _usual_epochs(given.kind, inliers.x)) // 5)
            if isinstance(shown, str):  # made from DATA: a name
                synthetic, shown = f"{shown}+{synthetic}" if synthetic else shown, None
            x, y, sources = inliers.x, inliers.y, dict[str, str]()
            if old is not None and before is not None:
                if outliers is None:
                    continuing.tell_of_outliers(old, before)
                if reviewed is not None:
                    real = shown
                    x, y, shown, sources["reviewed"] = continuing.add_reviewed(old, before, reviewed, inliers, real)
                    if real is None and shown is not None:
                        outliers, synthetic = str(reviewed), continuing.beside_junk(old, synthetic)
            settings: dict[str, Any] = {
                "method": method,
                "synthetic": synthetic,
                "augment": augment,
                "balance": balance,
                "coverage": coverage,
                "abstain_by": abstain_by,
                "epochs": epochs,
                "time_limit": time_limit,
                "random_state": seed,
            }
            uses_features = old.encoder_ is not None if old is not None else pretrained is not None
            cache = features_folder() if uses_features else None
            classifier = (
                Classifier(backbone=pretrained, tune=tune, cache=cache, device=place, **settings)
                if old is None
                else continuing.with_settings(old, context, settings).set_params(cache=cache)
            )
            title = f"{inputs.name} {method}"
            with (
                counted_from(begun),
                observe_features(
                    lambda done, total: describe(f"{title}: features {done:,}/{total:,}" if done < total else title)
                ),
            ):
                classifier.fit(x, y, shown)
            if is_first():
                classifier.save(out)
        for name, value in (describe_fit(classifier, given, len(y or ()), outliers) | sources).items():
            print(f"{name:<9} {value}")
        own = classifier.decision_.score if ":" in classifier.decision_.score else None
        print(
            f"wrote {out}" + (f", for Python alone: demur.load_model({str(out)!r}, abstain_by={own!r})" if own else "")
        )


@app.command(rich_help_panel="Your data")
def predict(
    model: ModelPath,
    inputs: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="An image, csv, parquet, jsonl, txt or npz; a folder of such; s3://... or another URL of an object "
            "store; - for standard input.",
        ),
    ],
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            "-o",
            help="A csv file; or, for parquet parts that a stopped run goes on from, NAME.parquet or a URL; else "
            "answers are printed.",
        ),
    ] = None,
    engine: Annotated[str, typer.Option(help="here, or ray: on a Ray cluster, as parquet parts.")] = "here",
    address: Annotated[
        str | None, typer.Option(help="HOST:PORT of the Ray cluster, or auto; else one is made.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first input that cannot be read; of a csv, write nothing.")
    ] = False,
    overwrite: Overwrite = False,
    device: DeviceName = "auto",
) -> None:
    """Answer every input with a class, `unsure` or `unknown`: a csv, one row an input.

    `p_value` is small for outliers; of inliers a fraction t at most has one of t or less. An input that cannot be read
    is `invalid`.
    """
    from demur.cli import predicting

    predicting.check_engine(engine, address, out)
    if engine == "ray" or (out is not None and predicting.is_parts(out)):
        predicting.predict_parts(model, inputs, str(out), engine, address, strict, overwrite, device)
    else:
        predicting.predict_csv(model, inputs, None if out is None else Path(out), strict, overwrite, device)


@app.command(rich_help_panel="Your data")
def evaluate(
    model: ModelPath,
    inputs: Annotated[Path, typer.Argument(metavar="DATA", help="Labelled, as for fit, but not what was fitted to.")],
    ood: Annotated[list[Path] | None, typer.Option(help="Inputs that belong to no class; may be repeated.")] = None,
    report: Annotated[Path | None, typer.Option(help="Folder for index.html, its figures, and every number.")] = None,
    score: Annotated[list[str] | None, typer.Option(help="Measure this too, as energy; may be repeated.")] = None,
    metric: OwnMetrics = None,
    label: LabelColumn = None,
    overwrite: Overwrite = False,
    device: DeviceName = "auto",
) -> None:
    """Measure a model on data that it has not seen: accuracy, calibration, and what it does with outliers."""
    named = _set_names(ood or ())
    if report is not None:
        own = {"evaluation.csv": b"set,score,metric,value\n"}
        writes = ("index.html", "evaluation.csv", "figures")
        check_folder(report, overwrite, writes=writes, marks=own, reads=[inputs, *named.values()], model=model)

    from demur.classifier import Classifier, evaluation
    from demur.report.evaluation import sheet, write_evaluation

    place = parse_device(device)
    classifier = Classifier.load(model, device=place)
    inside = _open_for(classifier, inputs, labelled=True, label=label)
    outside = {name: _open_for(classifier, path) for name, path in named.items()}
    with counting(inputs.name) as count:
        evaluated = evaluation.evaluate(model.name, classifier, inside, outside, count, score or (), metric or ())
    make_console().print(sheet(evaluated))
    if shortfall := evaluation.shortfall(evaluated):
        print(f"demur: note: {shortfall}", file=sys.stderr)
    if report is not None:
        write_evaluation(evaluated, report)
        print(f"wrote {report / 'index.html'}")


@app.command(rich_help_panel="Your data")
def compare(
    paths: Annotated[
        list[Path], typer.Argument(metavar="MODEL... DATA", help="Models, then labelled data, as for fit.")
    ],
    ood: Annotated[list[Path] | None, typer.Option(help="Inputs that belong to no class; may be repeated.")] = None,
    report: Annotated[Path | None, typer.Option(help="Folder for index.html, its figures, and every number.")] = None,
    label: LabelColumn = None,
    overwrite: Overwrite = False,
    device: DeviceName = "auto",
) -> None:
    """Rank several models on data that none of them has seen, outliers included, on one page."""
    *models, inputs = paths
    if len(models) < 2:
        raise ValueError(f"{len(models)} model and the data {inputs} are given; give two models or more, then the data")
    named, by_name = _set_names(ood or ()), _model_names(models)
    if report is not None:
        own = {"comparison.csv": b"model,set,score,metric,value\n"}
        writes = ("index.html", "comparison.csv", "figures")
        for model in models:
            check_folder(report, overwrite, writes=writes, marks=own, reads=[inputs, *named.values()], model=model)

    from demur.classifier import Classifier, evaluation
    from demur.classifier.comparison import rank_models
    from demur.report.comparison import sheet, write_comparison

    place, evaluations = parse_device(device), []
    for name, model in by_name.items():
        classifier = Classifier.load(model, device=place)
        inside = _open_for(classifier, inputs, labelled=True, label=label)
        outside = {of: _open_for(classifier, path) for of, path in named.items()}
        with counting(name) as count:
            evaluations.append(evaluation.evaluate(name, classifier, inside, outside, count))
    places = rank_models(evaluations)
    make_console().print(sheet(places))
    if report is not None:
        write_comparison(places, inputs.name, report)
        print(f"wrote {report / 'index.html'}")


@app.command(rich_help_panel="Your data")
def export(
    model: ModelPath,
    out: Annotated[Path | None, typer.Argument(metavar="FILE", help="By default the model's name and .onnx.")] = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="As ONNX, the one format there is.")] = False,
    samples: Samples = None,
    overwrite: Overwrite = False,
) -> None:
    """Write a model as one ONNX graph that runs without demur, and check that it gives the same answers."""
    if not onnx:
        raise ValueError("no format is named; add --onnx")
    named = model.absolute()
    out = out or named.with_name(f"{named.name.removesuffix('.demur')}.onnx")
    check_file(out, overwrite, mark=MADE_BY_DEMUR, model=model, suffixes=(".onnx",))

    from demur.classifier import Classifier
    from demur.classifier.export import export_onnx
    from demur.posterior import fewer_samples

    classifier = Classifier.load(model, device="cpu")
    if samples is not None:
        classifier.posterior_ = fewer_samples(classifier.posterior_, samples)
    checked = export_onnx(classifier, out)
    print(f"wrote {out}, {out.stat().st_size / 2**20:.1f} MiB: {checked}")


def _check_new_model(out: Path, checkpoint: Path | None) -> None:
    """A model may be written over, anything else not."""
    from demur.classifier.model_file import check_target

    check_target(out)
    if not os.path.lexists(out):
        check_file(out, overwrite=False)
    if checkpoint is not None:
        check_folder(checkpoint, overwrite=False)
        if out.resolve() in (checkpoint.resolve(), *checkpoint.resolve().parents):
            raise ValueError(f"checkpoint {checkpoint} is where the model is to be; name another folder")


def _set_names(paths: Sequence[Path]) -> dict[str, Path]:
    """Sets of outliers by names of their own: the file's, or its path where that would be another's too."""
    from demur.classifier.evaluation import CLASS, INLIERS

    stems = Counter([INLIERS, *(path.absolute().stem for path in paths)])
    named: dict[str, Path] = {}
    for path in paths:
        if path.resolve() in [other.resolve() for other in named.values()]:
            raise ValueError(f"{path} is given twice as --ood; give it once")
        name = path.absolute().stem
        name = str(path) if stems[name] > 1 else name
        while name in (INLIERS, *named) or name.startswith(CLASS):
            name = f"outliers {name}"
        named[name] = path
    return named


def _model_names(models: Sequence[Path]) -> dict[str, Path]:
    """By file name, or by path where that would be another's too."""
    counts = Counter(model.name for model in models)
    named = {str(model) if counts[model.name] > 1 else model.name: model for model in models}
    if len(named) < len(models):
        raise ValueError("a model is given twice; give each once")
    return named


def _usual_epochs(kind: str, x: "X") -> int:
    from demur.classifier.kinds import KINDS, recipe_for_tables

    return (recipe_for_tables(len(x)) if kind == "tables" else KINDS[kind].of(x).recipe(len(x))).epochs


def _open_for(
    classifier: "Classifier", path: Path, labelled: bool = False, label: str | None = None, tolerant: bool = False
) -> "Inputs":
    from demur.classifier.readers import open_for

    return open_for(classifier, path, labelled, label, tolerant)
