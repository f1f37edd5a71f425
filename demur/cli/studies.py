"""Commands that fit and test: run, toy, demo, study; and audit, which looks at a task before."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

import demur
from demur.cli.outputs import FIGURES, Overwrite, check_distinct, check_file, check_folder, write_whole
from demur.cli.progress import progress
from demur.cli.shared import Data, OwnMetrics, OwnScores, Seed, make_console, open_store, parse_device

if TYPE_CHECKING:
    from demur.study.grid import Setting
    from demur.tasks import Task

app = typer.Typer()

TaskName = Annotated[str, typer.Argument(metavar="TASK", help="digits, blobs, fashion_mnist, cifar10, sst, ...")]
RUN = rb'\{\s*"demur": "[^"]*",\s*"task": '  # the beginning of what --json writes
OutliersName = Annotated[str | None, typer.Option("--outliers", help="To train with; a+b mixes in equal parts.")]


@app.command(rich_help_panel="Research")
def run(
    task: TaskName,
    method: Annotated[str, typer.Argument(help="inference+likelihood: map, map+oe, de, la+nc, vb+sl, ...")],
    network: Annotated[
        str | None, typer.Option(help="mypackage.mymodule:name, from a head size to a network; else the task's own.")
    ] = None,
    seed: Seed = 0,
    epochs: Annotated[int | None, typer.Option(min=1, help="Instead of the recipe's.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Train on so many inputs; test on a sixth as many of each set.")
    ] = None,
    outliers: OutliersName = None,
    exclude_overlap: Annotated[bool, typer.Option(help="Leave out outliers of the task's own classes.")] = False,
    score: OwnScores = None,
    metric: OwnMetrics = None,
    data: Data = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all values there.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write the posterior there (safetensors).")] = None,
    load: Annotated[Path | None, typer.Option(help="Take this posterior instead of fitting one.")] = None,
    overwrite: Overwrite = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...; auto takes a GPU where there is one.")] = "auto",
) -> None:
    """Fit one method to one task and print its values."""
    check_distinct(json_file, save)
    check_file(json_file, overwrite, mark=RUN, reads=[load] if load else [])
    check_file(save, overwrite, reads=[load] if load else [])

    from demur.inference.base import networks_in
    from demur.measures import measures_with
    from demur.methods import parse_method
    from demur.report.tables import sheet
    from demur.study.run import run as run_method

    measures = measures_with(metric or (), score or ())
    parsed, given = parse_method(method), _setting(task, method, network)
    networks = 0 if load else networks_in(parsed.inference)
    console = make_console()
    began, started = time.time(), time.perf_counter()
    with progress(console, f"{task} {method}", networks):
        loaded = load_task_named(task, data, outliers, limit, exclude_overlap).to(parse_device(device))
        row = run_method(
            loaded,
            parsed,
            given,
            seed=seed,
            epochs=epochs,
            save_to=save,
            load_from=load,
            measures=measures,
        )
    duration = time.perf_counter() - started
    title = f"{task} {method}, seed {seed}, {row.epochs} epoch{'s' * (row.epochs != 1)}, {duration:.0f} s: per cent"
    console.print(sheet(row, title, score or ()))
    if json_file is not None:
        record = {"demur": demur.__version__} | row.as_json() | {"time": began, "duration": duration}
        write_whole(json_file, json.dumps(record, indent=2, allow_nan=False) + "\n")


def _setting(task: str, method: str, network: str | None) -> "Setting":
    """The paper's, where it knows the task; else a network of one's own."""
    from dataclasses import replace

    from demur.names import choose_or_import, import_named
    from demur.paper.grid import SETTINGS, setting
    from demur.study.grid import Setting
    from demur.tasks import TASKS

    choose_or_import(TASKS, task, "task")
    if network is None and task not in SETTINGS:
        raise ValueError(f"task {task!r} has no network of its own; name one: --network mypackage.mymodule:name")
    if network is None:
        return setting(task, method)
    own = import_named(network, "network")
    return replace(setting(task, method), network=own) if task in SETTINGS else Setting(own)


@app.command(rich_help_panel="Research")
def toy(out: Annotated[Path, typer.Argument(help="A PNG, SVG or PDF file.")], overwrite: Overwrite = False) -> None:
    """Draw the paper's toy figure: confidence near and far from four classes in the plane."""
    check_file(out, overwrite, suffixes=FIGURES)

    from demur.paper.toy import toy_planes
    from demur.report.figures import draw_planes

    with progress(make_console(), "toy figure"):
        planes = toy_planes()
    out.parent.mkdir(parents=True, exist_ok=True)
    draw_planes(planes).savefig(out, dpi=150)
    print(f"wrote {out}")


@app.command(rich_help_panel="Research")
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the figure, and for every number.")] = Path("demo"),
    overwrite: Overwrite = False,
) -> None:
    """The paper in miniature: its thirteen methods on real digits, and the toy figure. Under four minutes."""
    own = {"digits.json": rb'\[\s*\{\s*"task": "digits"'}
    check_folder(out, overwrite, writes=("digits.json", "toy.png"), marks=own)

    import torch

    from demur.methods import parse_method
    from demur.paper.grid import PAPER_ROWS, setting
    from demur.paper.toy import toy_planes
    from demur.report.figures import draw_planes
    from demur.report.tables import lines_of, table
    from demur.scores import USUAL_SCORE
    from demur.study.run import run as run_method
    from demur.tasks import load

    torch.set_num_threads(1)  # more would mostly wait for each other over networks this small
    console = make_console()
    out.mkdir(parents=True, exist_ok=True)
    digits, rows = load("digits"), []
    with progress(console, "digits") as describe:
        for number, method in enumerate(PAPER_ROWS, start=1):
            describe(f"digits {method} ({number} of {len(PAPER_ROWS)})")
            rows.append(run_method(digits, parse_method(method), setting("digits", method)))
            write_whole(out / "digits.json", json.dumps([row.as_json() for row in rows], indent=2) + "\n")
        describe("toy figure")
        draw_planes(toy_planes()).savefig(out / "toy.png", dpi=150)
    console.print(table(rows, "digits, seed 0: accuracy and ECE inside, FPR95 on sets of outliers; per cent"))
    plain, (best, score) = rows[0], min(lines_of(rows), key=lambda line: line[0].mean_fpr95(line[1]))
    by_score = "" if score == USUAL_SCORE else f" by {score}"
    print(
        f"""
What to look at
- mean FPR95, the fraction of outliers accepted as digits when 95 % of the digits are:
  {100 * plain.mean_fpr95():.1f} for {plain.method}, {100 * best.mean_fpr95(score):.1f} for {best.method}{by_score}, \
at accuracies of {100 * plain.metrics["accuracy"]:.1f} and {100 * best.metrics["accuracy"]:.1f}.
- far away, which is noise 5000 times as bright as any digit: training with outliers does
  not cure a point estimate (map+oe); averaging over weights helps somewhat, a none class
  more, though not in every network (docs/concepts/unknown.md). No mean counts it.
- {out / "toy.png"}: outlier exposure alone is sure of itself far from the data; there the
  Laplace methods are not.
- {out / "digits.json"}: every value, under every score."""
    )


class _WithStudies(TyperCommand):
    """Names every study where help is asked for, and not before: to know them takes torch."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from demur.paper.studies import NAMES

        name = next(param for param in self.params if param.name == "name")
        own = "or one's own: a Python file, or mypackage.mymodule:name"
        name.help = f"{', '.join(NAMES)}; {own}."  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)


@app.command(cls=_WithStudies, rich_help_panel="Research")
def study(
    name: Annotated[str, typer.Argument()],
    task: Annotated[list[str] | None, typer.Option(help="Only this task; may be repeated.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Only this method; may be repeated.")] = None,
    convention: Annotated[str | None, typer.Option(help="corrected or published only.")] = None,
    outliers: Annotated[
        list[str] | None, typer.Option(help="Only cells trained with these, or with the usual; may be repeated.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="How many training seeds, from 0; else as many as the study has.")
    ] = None,
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
    score: Annotated[
        list[str] | None,
        typer.Option(help="Keep values of this one, too: energy, knn, vim, ..., mymodule:name; may be repeated."),
    ] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the table there, as Markdown.")] = None,
    overwrite: Overwrite = False,
    data: Data = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, ...; auto takes a GPU where there is one.")] = "auto",
) -> None:
    """Run a table of the paper, or a grid of your own; the same command continues a stopped run."""
    from demur.cli import studying

    studying.check_engine(engine, address, jobs)
    check_file(markdown, overwrite, mark=rb"## \w+, \w+: per cent; .* threads?\n")
    check_folder(runs, overwrite)
    selected = studying.select_study(
        name,
        score or (),
        tasks=task,
        methods=method,
        convention=convention,
        outliers=outliers,
        seeds=seeds,
        epochs=epochs,
        limit=limit,
    )
    place = studying.place_of(runs, data, device, engine, keep_posteriors, threads)
    place, workers = studying.choose_engine(place, engine, address, jobs)
    pending = studying.Pending.of(selected, place)
    print(pending.count())
    if dry_run:
        pending.print_cells()
        return
    pending.check_data()
    failures = studying.run_study(name, pending, workers)
    if not studying.show_results(pending, failures, markdown):
        raise typer.Exit(1)


@app.command(rich_help_panel="Research")
def audit(
    task: TaskName,
    outliers: OutliersName = None,
    figure: Annotated[Path | None, typer.Option(help="Draw how sharp the sets of images are there.")] = None,
    overwrite: Overwrite = False,
    data: Data = None,
) -> None:
    """Look for what makes a task easier than it seems: duplicates, shared classes, sharpness, typography."""
    check_file(figure, overwrite, suffixes=FIGURES)

    from demur.audit import audit as audit_task
    from demur.report.sharpness import draw_sharpness

    loaded = load_task_named(task, data, outliers)
    if figure is not None:
        draw_sharpness(loaded, figure)
    for line in audit_task(loaded, open_store(data)).lines():
        print(line)


def load_task_named(
    task: str,
    data: Path | None = None,
    outliers: str | None = None,
    limit: int | None = None,
    exclude_overlap: bool = False,
) -> "Task":
    from demur.names import choose_or_import
    from demur.study.fits import OwnData
    from demur.tasks import TASKS, load

    make = choose_or_import(TASKS, task, "task")
    if task not in TASKS:
        if outliers is not None or exclude_overlap:
            raise ValueError(f"task {task!r} brings its own outliers; leave --outliers and --exclude-overlap out")
        return OwnData(task, make, limit).load(open_store(data))
    return load(task, store=open_store(data), outliers=outliers, limit=limit, exclude_overlap=exclude_overlap)
