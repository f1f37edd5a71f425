"""The command line: parse, call, print. Everything heavy is imported where it is used, so that --help is quick."""

import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO, cast

import typer
from typer.core import TyperCommand

import demur

if TYPE_CHECKING:
    from rich.console import Console

    from demur.classifier import Classifier
    from demur.inputs import Inputs, X
    from demur.tasks import Store, Task
    from demur.training import EpochReport

app = typer.Typer(
    help="Classifiers that know when they do not know: Bayesian neural networks that have been shown outliers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="The data sets: what is there, and how to get the rest.", no_args_is_help=True)
app.add_typer(data_app, name="data")

TaskName = Annotated[str, typer.Argument(metavar="TASK", help="digits, blobs, fashion_mnist, cifar10, sst, ...")]
Data = Annotated[
    Path | None, typer.Option("--data", help="Folder of data sets; else DEMUR_DATA, else the user's cache.")
]
OutliersName = Annotated[str | None, typer.Option("--outliers", help="To train with; a+b mixes in equal parts.")]
ModelPath = Annotated[Path, typer.Argument(help="What `demur fit` wrote.")]
LabelColumn = Annotated[str | None, typer.Option(help="The label's column; else label, class, target or y.")]
DeviceName = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...; auto takes a GPU where there is one.")]
Seed = Annotated[int, typer.Option(min=0, help="Of initialisation, batches and draws.")]


USAGE_ERROR = cast(type[typer.BadParameter], typer.BadParameter.__base__)  # of whichever click typer brings along


def main() -> None:
    """Run the command; what is wrong with the input is said in one sentence, with exit code 2."""
    try:
        sys.exit(app(prog_name="demur", standalone_mode=False))
    except USAGE_ERROR as error:
        command = error.ctx.command_path if error.ctx else "demur"
        if said := error.format_message().rstrip("."):  # without a command, help has been printed
            print(f"demur: {said}; see {command} --help", file=sys.stderr)
        sys.exit(2)
    except typer.Abort:
        print("demur: stopped", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (ValueError, FloatingPointError, OSError, MemoryError, RuntimeError) as error:
        import torch

        if isinstance(error, RuntimeError) and not isinstance(error, torch.OutOfMemoryError):
            raise
        said = str(error) or "there is not enough memory"
        if isinstance(error, OSError) and error.filename is not None:
            said = f"{error.filename} cannot be read or written ({error.strerror}); name another place"
        print(f"demur: {' '.join(said.split())}", file=sys.stderr)
        sys.exit(2)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"demur {demur.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say how things are computed.")] = False,
) -> None:
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(message)s")
    warnings.showwarning = lambda message, *_: print(f"demur: note: {message}", file=sys.stderr)


def _console() -> "Console":
    """As wide as the terminal; piped, wide enough for any table."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 120)


@contextmanager
def _progress(console: "Console", what: str) -> Iterator[Callable[[str], None]]:
    """A line that moves on a terminal, and nothing where output is piped."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from demur.training import observed

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[said]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        line = bar.add_task(what, total=None, said="")

        def after_epoch(report: "EpochReport") -> None:
            said = f"epoch {report.epoch}/{report.epochs}, loss {report.loss:.3f}"
            bar.update(line, total=report.epochs, completed=report.epoch, said=said)

        with observed(after_epoch):
            yield lambda description: bar.update(line, description=description, completed=0, said="")


@app.command()
def run(
    task: TaskName,
    method: Annotated[str, typer.Argument(help="inference+likelihood: map, map+oe, de, la+nc, vb+sl, ...")],
    seed: Seed = 0,
    epochs: Annotated[int | None, typer.Option(min=1, help="Instead of the recipe's.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Train on so many inputs; test on a sixth as many of each set.")
    ] = None,
    outliers: OutliersName = None,
    exclude_overlap: Annotated[bool, typer.Option(help="Leave out outliers of the task's own classes.")] = False,
    data: Data = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures there.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write the posterior there (safetensors).")] = None,
    load: Annotated[Path | None, typer.Option(help="Take this posterior instead of fitting one.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...; auto takes a GPU where there is one.")] = "auto",
) -> None:
    """Fit one method to one task and print its figures."""
    from demur.method import parse_method
    from demur.report.tables import sheet
    from demur.study import run as study

    parse_method(method)
    for path in (json_file, save):
        _check_writable(path)
    console = _console()
    began, started = time.time(), time.perf_counter()
    with _progress(console, f"{task} {method}"):
        loaded = _load(task, data, outliers, limit, exclude_overlap).to(_device(device))
        row = study.run(loaded, method, seed=seed, epochs=epochs, save_to=save, load_from=load)
    duration = time.perf_counter() - started
    console.print(sheet(row, f"{task} {method}, seed {seed}, {row.epochs} epochs, {duration:.0f} s: per cent"))
    if json_file is not None:
        record = row.as_json() | {"demur": demur.__version__, "time": began, "duration": duration}
        json_file.write_text(json.dumps(record, indent=2, allow_nan=False) + "\n", "utf-8")


@app.command()
def toy(out: Annotated[Path, typer.Argument(help="A PNG, SVG or PDF file.")]) -> None:
    """Draw the paper's toy figure: confidence near and far from four classes in the plane."""
    from demur.report.figures import draw_toy

    if out.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ValueError(f"file name {str(out)!r} does not end in .png, .svg or .pdf; rename it")
    _check_writable(out)
    with _progress(_console(), "toy figure"):
        draw_toy(out)
    print(f"wrote {out}")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figure, and for every number.")] = Path("demo"),
) -> None:
    """The paper in miniature: its thirteen methods on real digits, and the toy figure. Under four minutes."""
    import torch

    from demur.report.figures import draw_toy
    from demur.report.tables import BY_MAX_PROB, lines_of, table
    from demur.study.grid import PAPER_ROWS
    from demur.study.run import run as run_method
    from demur.tasks import load

    torch.set_num_threads(1)  # more would mostly wait for each other over networks this small
    console = _console()
    out.mkdir(parents=True, exist_ok=True)
    digits, rows = load("digits"), []
    with _progress(console, "digits") as describe:
        for number, method in enumerate(PAPER_ROWS, start=1):
            describe(f"digits {method} ({number} of {len(PAPER_ROWS)})")
            rows.append(run_method(digits, method))
            (out / "digits.json").write_text(json.dumps([row.as_json() for row in rows], indent=2) + "\n", "utf-8")
        describe("toy figure")
        draw_toy(out / "toy.png")
    console.print(table(rows, "digits, seed 0: accuracy and ECE inside, FPR95 on sets of outliers; per cent"))
    plain, (best, fpr95) = rows[0], min(lines_of(rows), key=lambda line: line[0].mean_over_ood(line[1]))
    by_score = "" if fpr95 == BY_MAX_PROB else " by none_share"
    print(
        f"""
What to look at
- mean FPR95, the share of outliers taken for digits when 95 % of the digits are kept:
  {100 * plain.mean_fpr95:.1f} for {plain.method}, {100 * best.mean_over_ood(fpr95):.1f} for {best.method}{by_score}, \
at accuracies of {100 * plain.metrics["accuracy"]:.1f} and {100 * best.metrics["accuracy"]:.1f}.
- far away, which is noise 5000 times as bright as any digit: seeing outliers does not
  cure a point estimate (map+oe); averaging over weights helps some, a none class more,
  though not in every network (README, Which to use). The mean above leaves it out.
- {out / "toy.png"}: outlier exposure alone is sure of itself far from the data; there the
  Laplace methods are not.
- {out / "digits.json"}: every figure, under every score."""
    )


class _WithStudies(TyperCommand):
    """Names every study where help is asked for, and not before: to know them takes torch."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from demur.study.grid import STUDIES

        name = next(param for param in self.params if param.name == "name")
        name.help = f"{', '.join(STUDIES)}."  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)


@app.command(cls=_WithStudies)
def study(
    name: Annotated[str, typer.Argument()],
    task: Annotated[list[str] | None, typer.Option(help="Only this task; may be repeated.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Only this method; may be repeated.")] = None,
    convention: Annotated[str | None, typer.Option(help="corrected or published only.")] = None,
    outliers: Annotated[
        list[str] | None, typer.Option(help="Only cells trained with these, or with the usual; may be repeated.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many training seeds, from 0.")] = 1,
    epochs: Annotated[int | None, typer.Option(min=1, help="Instead of the recipe's.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Train on so many inputs; test on a sixth as many.")] = None,
    runs: Annotated[Path, typer.Option(help="Folder of results; what is there is not made again.")] = Path("runs"),
    engine: Annotated[str, typer.Option(help="local or ray.")] = "local",
    address: Annotated[str | None, typer.Option(help="Of a Ray cluster; else one here, or a new one.")] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Local processes at a time; by default one a GPU, else one a core.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Of a process; the last bits of results depend on it.")] = 1,
    dry_run: Annotated[bool, typer.Option(help="Say what would be done.")] = False,
    keep_posteriors: Annotated[bool, typer.Option(help="Keep the weights of every cell.")] = True,
    markdown: Annotated[Path | None, typer.Option(help="Write the table there, as Markdown.")] = None,
    data: Data = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, ...; auto takes a GPU where there is one.")] = "auto",
) -> None:
    """Run a whole table of the paper; stopped, it goes on where it was."""
    from demur.report import tables
    from demur.study.cluster import cluster
    from demur.study.conventions import resolve
    from demur.study.engine import Place, is_answered, networks_of, one_by_one, results_of, run_cells, seconds_left
    from demur.study.grid import select
    from demur.study.processes import most_jobs, processes
    from demur.study.run import row_of
    from demur.tasks import IMAGES, TEXTS
    from demur.tasks.catalogue import CATALOGUE
    from demur.tasks.made import parts_of

    if engine not in ("local", "ray"):
        raise ValueError(f"unknown engine {engine!r}; known: local, ray")
    if engine == "local" and address is not None:
        raise ValueError(f"address {address!r} is for the engine ray; add --engine ray")
    if engine == "ray" and jobs is not None:
        raise ValueError(f"jobs {jobs} is for the engine local; a Ray cluster takes what it has room for")
    _check_writable(markdown)
    cells = select(
        name,
        tasks=task,
        methods=method,
        convention=convention,
        outliers=outliers,
        seeds=seeds,
        epochs=epochs,
        limit=limit,
    )
    place = Place(runs, _store(data), device if engine == "ray" else _device(device), keep_posteriors, threads)
    jobs = jobs or most_jobs(place)
    workers = one_by_one if jobs == 1 else partial(processes, jobs=jobs)
    if engine == "ray":
        workers = partial(cluster, address=address)
    done = {cell for cell in cells if is_answered(cell, place.folder(cell))}
    networks = len(networks_of(cells, place.store))
    print(f"{len(cells)} cells, {len(done)} done, {networks} networks in all; {seconds_left(cells, place, jobs)}")
    if dry_run:
        for cell in cells:
            state = "done" if cell in done else "to do"
            shown = f" with {cell.outliers}" if cell.outliers else ""
            print(f"  {cell.task} {cell.method}{shown} {cell.convention} seed {cell.seed}: {state}")
        of_cells = [resolve(cell, place.store).data for cell in cells if cell not in done]
        needed = dict.fromkeys(each for data in of_cells for each in (data.name, *parts_of(data.outliers)))
        if lacking := [each for each in needed if each in CATALOGUE and not place.store.has(each, "train")]:
            print(f"not here yet, to train with: {', '.join(lacking)}; demur data get {' '.join(lacking)}")
        return
    tasks = list(dict.fromkeys(cell.task for cell in cells if cell not in done))
    if tasks and all(each in (*IMAGES, *TEXTS) and not place.store.has(each, "train") for each in tasks):
        place.store.shards(tasks[0], "train")  # says how to get it, before anything is begun
    console = _console()
    with _progress(console, name) as describe:

        def after(number: int, total: int, step: str) -> None:
            describe(f"{name}: {number} of {total}; {step}")
            if not console.is_terminal:
                print(f"step {number} of {total}: {step}", file=sys.stderr, flush=True)

        failures = run_cells(cells, place, after, workers)
    results = results_of(cells, place)
    rows = [row_of(result) for result in results]
    for group in tables.grouped(rows):
        console.print(tables.table(group, f"{group[0].task}, {group[0].convention}: per cent"))
    if markdown is not None:
        markdown.write_text(tables.markdown(rows, [r.record for r in results]), "utf-8")
    if results:
        print(f"the cells are in {runs}; tables beside the paper's, figures and a page: demur report {runs}")
    for failure in failures:
        print(f"demur: {failure.cell.task} {failure.cell.method} failed: {failure.reason}", file=sys.stderr)
    if failures:
        raise typer.Exit(1)


@app.command()
def report(
    sources: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders of runs, or with the results.csv and cells.csv of a report; by default runs."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for tables, figures and index.html.")] = Path("report"),
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes at a time; by default one a core.")] = None,
) -> None:
    """Set every measured figure beside the published one: tables, figures, RESULTS.md, and one page that shows all.

    Several folders become one report; where two have the same cell, the later named wins.
    """
    from demur.report.measured import gather
    from demur.report.page import write_report

    console = _console()
    with _progress(console, "report") as describe:
        cells = gather(
            sources or [Path("runs")],
            jobs or os.cpu_count() or 1,
            lambda number, total: describe(f"measured {number} of {total} cells"),
        )
        describe(f"tables and figures of {len(cells)} cells")
        out.mkdir(parents=True, exist_ok=True)
        write_report(cells, out)
    print(f"wrote {out / 'index.html'} and {out / 'RESULTS.md'} from {len(cells)} cells")


@app.command()
def pack(
    out: Annotated[Path, typer.Argument(help="Folder for the packed files.")],
    runs: Annotated[Path, typer.Option(help="Folder of results.")] = Path("runs"),
) -> None:
    """Put the predictions of a study into a few files of at most 15 MiB, to move it to another machine."""
    from demur.study.results import pack as pack_predictions

    for path in pack_predictions(runs, out):
        print(path)


@app.command()
def unpack(
    files: Annotated[list[Path], typer.Argument(help="All files of a pack.")],
    runs: Annotated[Path, typer.Option(help="Folder of results.")] = Path("runs"),
) -> None:
    """Put packed predictions back into a folder of results; what is there stays."""
    from demur.study.results import unpack as unpack_predictions

    for folder in unpack_predictions(files, runs):
        print(folder)


@app.command()
def audit(
    task: TaskName,
    outliers: OutliersName = None,
    figure: Annotated[Path | None, typer.Option(help="Draw how sharp the sets of pictures are there.")] = None,
    data: Data = None,
) -> None:
    """Look for what makes a task easier than it seems: duplicates, shared classes, sharpness, typography."""
    from demur.audit import audit as audit_task
    from demur.sharpness import draw_sharpness

    _check_writable(figure)
    loaded = _load(task, data, outliers)
    if figure is not None:
        draw_sharpness(loaded, figure)
    for line in audit_task(loaded, _store(data)).lines():
        print(line)


@app.command()
def bench(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Rows; all where none is named.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures there.")] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw how cost grows (the row `growth`) there.")] = None,
    laplace_python: Annotated[str | None, typer.Option(help="Python of an environment with laplace-torch.")] = None,
    small: Annotated[bool, typer.Option("--small", help="Try every row in seconds; the figures mean nothing.")] = False,
    device: DeviceName = "auto",
) -> None:
    """Measure training, curvature, prediction and metrics beside what else there is, in turns; medians and ratios."""
    from dataclasses import asdict

    from demur.bench import cpu, gpu
    from demur.bench.frame import Conditions, run_rows
    from demur.bench.growth import draw_growth, measure_growth
    from demur.bench.render import lines
    from demur.names import choose
    from demur.study.engine import circumstances

    for path in (json_file, figure):
        _check_writable(path)
    rows = {row.name: row for row in (*cpu.ROWS, *gpu.ROWS)}
    for name in names or ():
        choose({**rows, "growth": None}, name, "row")
    chosen = [row for name, row in rows.items() if not names or name in names]
    outcomes = []
    for outcome in run_rows(chosen, Conditions(_device(device), small, laplace_python)):
        outcomes.append(outcome)
        print(*lines(outcome, judge=not small), sep="\n", flush=True)
    grown = []
    if not names or "growth" in names:
        print("growth: time and memory as sizes double four times; slope 1 is linear, 0 constant")
        for line in measure_growth(small):
            grown.append(line)
            print("  {}: slope of time {:.2f}, of memory {:.2f}".format(line.name, *line.slopes), flush=True)
    if figure is not None and grown:
        draw_growth(grown, figure)
    if json_file is not None:
        record = {"rows": [o.as_json() for o in outcomes], "growth": [asdict(line) for line in grown]}
        json_file.write_text(json.dumps(record | circumstances(_device(device)), indent=2) + "\n", "utf-8")


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
    console = _console()
    with _progress(console, f"reading {inputs.name}") as describe:
        given = open_inputs(inputs, labelled=True, label=label, size=_size(size))
        inliers = given.gathered()
        classes = sorted(set(inliers.y or ()))
        if len(classes) > len(inliers.names) / 2:
            raise ValueError(
                f"{inputs} has {len(classes)} labels in {len(inliers.names)} inputs; name the right column"
            )
        shown = None if outliers is None else read_outliers(outliers, given, inliers.x, _store(data))
        describe(f"{inputs.name} {method}")
        if quick and epochs is None:
            epochs = max(1, _usual_epochs(given.kind, inliers.x) // 5)
        classifier = Classifier(method, keep=keep, epochs=epochs, device=_device(device), random_state=seed)
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

    _check_writable(out)
    classifier = Classifier.load(model, device=_device(device))
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

    place = _device(device)
    classifier = Classifier.load(model, device=place)
    inside = _open_for(classifier, inputs, labelled=True, label=label)
    names = [path.stem for path in ood or ()]
    outside = {
        name if names.count(name) == 1 else str(path): _open_for(classifier, path)
        for name, path in zip(names, ood or (), strict=True)
    }
    with _counting(inputs.name) as count:
        found = evaluation.evaluate(model.name, classifier, inside, outside, place, count)
    _console().print(evaluation.sheet(found))
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
    _check_writable(out)
    checked = export_onnx(Classifier.load(model, device="cpu"), out)
    print(f"wrote {out}, {out.stat().st_size / 2**20:.1f} MiB: {checked}")


@data_app.command("list")
def list_data(data: Data = None) -> None:
    """What there is, where, how large, and under which licence."""
    from rich.table import Table

    store = _store(data)
    drawn = Table("name", "splits", "MiB", "where", "licence", box=None, pad_edge=False)
    for holding in store.describe():
        splits = ", ".join(f"{split} {count:,}" for split, count in holding.splits.items()) or "-"
        drawn.add_row(holding.name, splits, f"{holding.bytes / 2**20:.1f}", holding.where, holding.licence)
    _console().print(f"data sets in {store.root}:", drawn)


@data_app.command("get")
def get_data(names: Annotated[list[str], typer.Argument(help="Names of data sets.")], data: Data = None) -> None:
    """Fetch data sets from the Hugging Face hub; what was begun is continued."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn

    from demur.names import choose
    from demur.tasks.catalogue import CATALOGUE
    from demur.tasks.hub import get

    store = _store(data)
    for name in names:
        choose(CATALOGUE, name, "data set")
    with Progress(TextColumn("{task.description}"), BarColumn(), DownloadColumn()) as bar:
        lines: dict[str, TaskID] = {}

        def show(file: str, done: int, total: int) -> None:
            if file not in lines:
                lines[file] = bar.add_task(file, total=total)
            bar.update(lines[file], completed=done)

        for name in names:
            for path in get(store, name, progress=show):
                bar.print(path)


@data_app.command("add")
def add_data(
    name: Annotated[str, typer.Argument(help="What to call it; a known name makes it part of the tasks that use it.")],
    path: Annotated[
        Path, typer.Argument(help="Class folders, npz, csv, txt, or the original MNIST, CIFAR, SVHN files.")
    ],
    split: Annotated[str | None, typer.Option(help="train, validation or test, where the files do not say.")] = None,
    data: Data = None,
) -> None:
    """Take in files that you already have."""
    from demur.tasks.formats import add

    for written in add(_store(data), name, path, split):
        print(written)


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


def _check_writable(path: Path | None) -> None:
    """Before anything is computed that would be lost."""
    if path is None:
        return
    folder = path.absolute().parent
    if not folder.is_dir():
        raise ValueError(f"the folder of {path} does not exist; create it first")
    if (path.exists() and not path.is_file()) or not os.access(path if path.exists() else folder, os.W_OK):
        raise ValueError(f"{path} cannot be written to; name another file")


def _load(
    task: str,
    data: Path | None = None,
    outliers: str | None = None,
    limit: int | None = None,
    exclude_overlap: bool = False,
) -> "Task":
    from demur.tasks import load

    return load(task, store=_store(data), outliers=outliers, limit=limit, exclude_overlap=exclude_overlap)


def _store(data: Path | None) -> "Store":
    """--data, then DEMUR_DATA, then the user's cache; decoded pictures go beside the data, if it may be written to."""
    from demur.tasks import Store

    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "demur"
    named = data or os.environ.get("DEMUR_DATA")
    if named is None:
        return Store(home / "data")
    root = Path(named)
    if not root.is_dir():
        raise ValueError(f"the data folder {root} does not exist; create it, or name another with --data")
    writable = os.access(root, os.W_OK) and root.stat().st_mode & 0o200
    return Store(root, None if writable else home / "decoded")


def _device(name: str) -> str:
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError):
        raise ValueError(f"device {name!r} is not available here; try cpu or auto") from None
    return name
