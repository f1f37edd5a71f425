"""Commands for a model in use: serve, monitor, calibrate, review."""

import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from demur.cli.models import LabelColumn, ModelPath
from demur.cli.outputs import check_file
from demur.cli.progress import counting
from demur.cli.shared import DeviceName, Samples, parse_device

if TYPE_CHECKING:
    from demur.serving.app import Settings
    from demur.serving.monitor import Report

app = typer.Typer()

Level = Annotated[float, typer.Option(help="Probability of a false alarm, at most.")]
EXTRA = "pip install 'demur[serve]'"
ENGINES = ("here", "ray")
LOCAL = ("127.0.0.1", "localhost", "::1")


@app.command(rich_help_panel="A model in use")
def serve(
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL...", help="What `demur fit` wrote: PATH, or NAME=PATH to name it.")
    ],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all, with --token-file.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    token_file: Annotated[Path | None, typer.Option(help="Its first line is asked of every client.")] = None,
    keep_inputs: Annotated[
        Path | None, typer.Option(help="Folder for the last 1,000 inputs that were abstained on; else none is kept.")
    ] = None,
    level: Level = 0.01,
    memory: Annotated[int, typer.Option(min=0, help="MiB of a model's samples to keep, not to draw anew.")] = 512,
    samples: Samples = None,
    threads: Annotated[int, typer.Option(min=1, help="For each batch; more help large networks only.")] = 1,
    batch: Annotated[int, typer.Option(min=1, help="Inputs that are answered together, at most.")] = 64,
    queue: Annotated[int, typer.Option(min=1, help="Inputs that wait, at most; beyond, requests get 503.")] = 512,
    max_body: Annotated[int, typer.Option(min=1, help="MiB of a request.")] = 8,
    max_inputs: Annotated[int, typer.Option(min=1, help="Inputs of a request.")] = 256,
    device: DeviceName = "auto",
    engine: Annotated[str, typer.Option(help="here, or ray for replicas on Ray Serve.")] = "here",
    replicas: Annotated[int | None, typer.Option(min=1, help="Servers behind Ray's proxy; 1 by default.")] = None,
    address: Annotated[str | None, typer.Option(help="Of a Ray cluster; else one here, or a new one.")] = None,
) -> None:
    """Answer over HTTP: a page at /, plain JSON at /v1/predict, Open Inference Protocol at /v2, /metrics, /docs.

    Models are loaded anew when their files change, or on SIGHUP. Ctrl-C finishes what was accepted.
    """
    _check_engine(engine, replicas, address)
    _check_installed()
    import torch

    from demur.serving.app import Settings, create_app
    from demur.serving.batching import Batching
    from demur.serving.guard import log_json_lines
    from demur.serving.hosted import Hosting, named_models
    from demur.serving.limits import Limits
    from demur.serving.running import bound, run

    torch.set_num_threads(threads)
    token = None if token_file is None else _token(token_file)
    settings = Settings(
        Hosting(
            parse_device(device) if engine == "here" else device,
            memory * 2**20,
            Batching(most=batch, room=queue),
            level,
            samples,
        ),
        Limits(body=max_body * 2**20, inputs=max_inputs),
        token,
        keep_inputs,
        local=host in LOCAL,
    )
    named = named_models(models)
    if engine == "ray":
        _serve_on_ray(named, settings, host, port, replicas or 1, address, threads)
        return
    with bound(host, port) as listening:
        web, server = create_app(named, settings)
        log_json_lines()
        _tell(named, "", host, listening.getsockname()[1], settings)
        run(web, server, listening)


def _check_installed() -> None:
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise ValueError(f"serving needs {error.name}, which is not installed; {EXTRA}") from None


def _check_engine(engine: str, replicas: int | None, address: str | None) -> None:
    if engine not in ENGINES:
        raise ValueError(f"unknown engine {engine!r}; there are {' and '.join(ENGINES)}")
    for name, value in (("replicas", replicas), ("address", address)):
        if value is not None and engine != "ray":
            raise ValueError(f"{name} {value!r} is for Ray; add --engine ray")


def _serve_on_ray(
    models: Mapping[str, Path],
    settings: "Settings",
    host: str,
    port: int,
    replicas: int,
    address: str | None,
    threads: int,
) -> None:
    from demur.classifier import Classifier
    from demur.serving.replicas import served_on_ray
    from demur.serving.running import bound

    for path in models.values():
        Classifier.load(path, device="cpu")  # what is wrong with a file is said here, not in a replica's log
    with bound(host, port) as free:
        port = free.getsockname()[1]
    with served_on_ray(models, settings, (host, port), replicas, address, threads):
        _tell(models, f" by {replicas} replica{'s' * (replicas > 1)}", host, port, settings)
        _wait_for_signal()


def _wait_for_signal() -> None:
    """Until SIGINT or SIGTERM; the handlers stay, so that a second one does not end what follows halfway."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    while not stop.is_set():
        time.sleep(0.2)


def _tell(models: Mapping[str, Path], by: str, host: str, port: int, settings: "Settings") -> None:
    if settings.token is None and host not in LOCAL:
        print(f"demur: note: whoever reaches {host} can ask; --token-file keeps others out", file=sys.stderr)
    at = f"[{host}]" if ":" in host else host
    print(f"serving {', '.join(models)}{by} at http://{at}:{port}", flush=True)


def _token(file: Path) -> str:
    try:
        first = file.read_text("utf-8").partition("\n")[0].strip()
    except UnicodeDecodeError:
        first = ""
    if len(first) < 8 or not first.isascii():
        raise ValueError(f"{file} has no token of 8 or more letters and digits in its first line; write one")
    return first


@app.command(rich_help_panel="A model in use")
def monitor(
    model: ModelPath,
    answers: Annotated[
        Path, typer.Argument(metavar="ANSWERS", help="What `demur predict` wrote, in order of arrival.")
    ],
    level: Level = 0.01,
) -> None:
    """Test whether inputs are still like those that set the threshold; exit code 1 if they are not.

    The test may be repeated whenever there are more answers: false alarms stay below the level, however often.
    """
    from demur.classifier import Classifier
    from demur.serving.answered import read_answers
    from demur.serving.monitor import Monitor

    watched = Monitor.of(Classifier.load(model, device="cpu"), level)
    with counting(answers.name) as count:
        for scores, abstained, labels in read_answers(answers):
            watched.observe(scores, abstained, labels)
            count(len(scores))
    report = watched.report()
    print("\n".join(f"{name:<9} {text}" for name, text in _describe(report).items()))
    if report.alarm is not None:
        raise typer.Exit(1)


def _describe(report: "Report") -> dict[str, str]:
    against = "scores and abstentions" if report.by_score else "abstentions"
    return {
        "verdict": report.said,
        "evidence": f"{report.evidence:.3g}; an alarm is {1 / report.level:g}, at level {report.level:g}",
        "against": f"{report.calibrated_with:,} inliers of calibration, by {against}",
    }


@app.command(rich_help_panel="A model in use")
def calibrate(
    model: ModelPath,
    inputs: Annotated[Path, typer.Argument(metavar="DATA", help="Fresh inliers, as for fit, labels not needed.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The new model; the old one stays as it is.")],
    coverage: Annotated[float | None, typer.Option(help="Fraction of inliers to accept; else the model's.")] = None,
    label: LabelColumn = None,
    device: DeviceName = "auto",
) -> None:
    """Set a new threshold by inliers that the model has not seen, and say what changes."""
    from demur.classifier.model_file import check_target

    check_target(out)
    check_file(out, overwrite=None, reads=[inputs], model=model)

    from demur.classifier import Classifier
    from demur.cli.models import _open_for
    from demur.serving.recalibration import recalibrate

    old = Classifier.load(model, device=parse_device(device))
    given = _open_for(old, inputs, labelled=False, label=label)
    with counting(inputs.name) as count:
        new, change = recalibrate(old, given, coverage, count)
    new.save(out)
    for name, text in change.lines():
        print(f"{name:<9} {text}")
    print(f"wrote {out}")


@app.command(rich_help_panel="A model in use")
def review(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What `demur serve --keep-inputs` named.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8001,
) -> None:
    """Label abstained inputs in a page: a known class, a new one, or junk; then `demur fit --from MODEL` learns them.

    The page is served on this machine alone. Each label is a file beside its input; Ctrl-C ends.
    """
    _check_installed()
    import secrets

    from demur.serving.review import Review
    from demur.serving.review_page import create_review
    from demur.serving.running import bound, run_plain

    inputs, token = Review(folder), secrets.token_urlsafe(16)
    with bound(LOCAL[0], port) as listening:
        at = f"http://{LOCAL[0]}:{listening.getsockname()[1]}/#{token}"
        print(f"{inputs.counts()['waiting']:,} of {len(inputs.ids()):,} inputs wait at {at}", flush=True)
        try:
            run_plain(create_review(inputs, token), listening)
        finally:
            counts = inputs.counts()
            kinds = f"{counts['known']:,} of known classes, {counts['new']:,} of new ones, {counts['junk']:,} junk"
            print(f"reviewed  {kinds}; {counts['waiting']:,} wait")
