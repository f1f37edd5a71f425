"""The addresses that a server answers: /v1 in plain JSON, /v2 in the Open Inference Protocol, /metrics, the page."""

import asyncio
import contextlib
import json
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.datastructures import Headers, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.types import ASGIApp

import demur
from demur.serving import page, protocol
from demur.serving.answers import Answer
from demur.serving.batching import Busy
from demur.serving.guard import Guard, error_response
from demur.serving.hosted import Hosted, Hosting, Loaded
from demur.serving.inputs import as_x
from demur.serving.instruments import Instruments
from demur.serving.keeping import Keeper
from demur.serving.limits import Limits, Refused
from demur.serving.monitor import to_json

log = logging.getLogger(__name__)

LOOKED_AT_EVERY = 1.0  # seconds, to see whether a model's file has changed
DEEPEST = "inputs are nested too deeply; give a list of inputs"


@dataclass(frozen=True)
class Settings:
    hosting: Hosting = field(default_factory=Hosting)
    limits: Limits = field(default_factory=Limits)
    token: str | None = None
    keep_inputs: Path | None = None  # a folder for abstained inputs
    watch: bool = True  # for new model files
    local: bool = False  # whether it listens to this machine alone


class Server:
    """The models of one process, and what happens to a request on its way to one."""

    def __init__(self, models: Mapping[str, Path], settings: Settings) -> None:
        self.settings, self.instruments = settings, Instruments()
        self.models = {name: Hosted(name, path, settings.hosting, self.instruments) for name, path in models.items()}
        self.keeper = Keeper(settings.keep_inputs) if settings.keep_inputs is not None else None

    def model(self, name: Any) -> Hosted:
        if name is None and len(self.models) == 1:
            return next(iter(self.models.values()))
        if not isinstance(name, str) or name not in self.models:
            given = "no model is named" if name is None else f"model {str(name)[:64]!r} is not served"
            raise Refused(f"{given}; there are {', '.join(self.models)}", 404)
        return self.models[name]

    async def answered(self, request: Request, name: str, loaded: Loaded, values: Any) -> Sequence[Answer]:
        """Of inputs as JSON has them, images as bytes, or an array; by this model, whatever is loaded meanwhile."""
        request.state.told["model"] = name

        def tensors() -> torch.Tensor:
            x = values if isinstance(values, np.ndarray) else as_x(loaded.model, values, self.settings.limits)
            return loaded.model.inputs(x, "inputs")

        x = await asyncio.to_thread(tensors)
        answers = await loaded.batcher.answered(x)
        sorts = Counter(answer.sort for answer in answers)
        request.state.told |= {"version": loaded.version, "inputs": len(answers), "decisions": dict(sorts)}
        if self.keeper is not None:
            await asyncio.to_thread(self.keeper.keep, name, loaded.model.preprocessing_.kind, values, answers)
        return answers

    async def watch(self) -> None:
        """Load models whose files have changed, for as long as the server runs."""
        while True:
            await asyncio.sleep(LOOKED_AT_EVERY)
            for hosted in self.models.values():
                if await asyncio.to_thread(hosted.changed):  # a file system that hangs is not to stop the server
                    await hosted.reload()

    async def reload(self) -> None:
        for hosted in self.models.values():
            await hosted.reload()

    async def close(self) -> None:
        for hosted in self.models.values():
            await hosted.now.batcher.close()


def create_app(models: Mapping[str, Path], settings: Settings | None = None) -> tuple[ASGIApp, Server]:
    """The app, to be run by uvicorn or any other ASGI server, and the server behind it."""
    settings = settings or Settings()
    server = Server(models, settings)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watching = asyncio.create_task(server.watch()) if settings.watch else None
        yield
        if watching is not None:
            watching.cancel()
        await server.close()

    app = FastAPI(
        title="demur",
        version=demur.__version__,
        description="Classifiers that abstain: a label, unsure or unknown.",
        lifespan=lifespan,
        docs_url=None,  # FastAPI's page loads scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
    )
    _add_plain(app, server)
    protocol.add(app, server)
    _add_pages(app, server)
    add_refusals(app)
    return Guard(app, settings.limits, settings.token, server.instruments, settings.local), server


def _add_plain(app: FastAPI, server: Server) -> None:
    body = {"requestBody": {"required": True, "content": {kind: {} for kind in ("application/json", FORM, "image/*")}}}

    @app.post("/v1/predict", openapi_extra=body, summary="Answer a list of inputs")
    async def predict(request: Request) -> JSONResponse:
        """JSON: `{"model": NAME, "inputs": [...]}`, the model only where there are several. An input is a row by column
        name or in order, a text, or an image in base64. Or images as files of a form, or one image as it is."""
        given = await _read(request, server.settings.limits)
        return await answer(request, server.model(given.get("model")), given)

    @app.post("/v1/models/{name}/predict", openapi_extra=body, summary="Answer a list of inputs by one model")
    async def predict_by(name: str, request: Request) -> JSONResponse:
        """As /v1/predict."""
        hosted = server.model(name)
        return await answer(request, hosted, await _read(request, server.settings.limits))

    async def answer(request: Request, hosted: Hosted, given: Mapping[str, Any]) -> JSONResponse:
        if "inputs" not in given:
            raise Refused('the request has no "inputs"; give {"inputs": [...]}')
        loaded = hosted.now
        answers = await server.answered(request, hosted.name, loaded, given["inputs"])
        content = {"model": hosted.name, "version": loaded.version, "answers": [each.to_json() for each in answers]}
        return JSONResponse(content)

    @app.get("/v1/models", summary="What is served, and what each model takes")
    async def models() -> list[dict[str, Any]]:
        return [described(hosted) for hosted in server.models.values()]

    @app.get("/v1/monitor", summary="Whether what arrives is like what the thresholds were calibrated with")
    async def monitor() -> dict[str, Any]:
        return {name: to_json(hosted.now.monitor.report()) for name, hosted in server.models.items()}


def described(hosted: Hosted) -> dict[str, Any]:
    loaded, model = hosted.now, hosted.now.model
    return {
        "name": hosted.name,
        "version": loaded.version,
        "since": loaded.since,
        "error": hosted.error,
        "kind": model.preprocessing_.kind,
        "takes": page.describe_inputs(model),
        "classes": [str(name) for name in model.classes_],
        "coverage": model.decision_.coverage,
        "score": model.decision_.score,
        "method": model.report_.get("method"),
        "calibration": page.histogram(model),
    }


def _add_pages(app: FastAPI, server: Server) -> None:
    @app.get("/", include_in_schema=False)
    async def root() -> HTMLResponse:
        return HTMLResponse(page.html("page"), headers=page.HEADERS)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(page.docs(app.openapi()), headers=page.HEADERS)

    @app.get("/metrics", summary="For Prometheus")
    async def metrics() -> Response:
        state = {}
        for name, hosted in server.models.items():
            report = hosted.now.monitor.report()
            state[name] = (hosted.now.batcher.waiting, report.evidence, report.alarm is not None)
        return Response(server.instruments.page(state), media_type="text/plain; version=0.0.4")


def add_refusals(app: FastAPI) -> None:
    @app.exception_handler(ValueError)  # also Refused: of readers, kinds and classifiers, one sentence
    async def refused(request: Request, error: ValueError) -> JSONResponse:
        return error_response(str(error), getattr(error, "status", 422))

    @app.exception_handler(Busy)
    async def busy(request: Request, error: Busy) -> JSONResponse:
        return error_response(str(error), 503, error.retry_after)

    @app.exception_handler(RecursionError)
    async def too_deep(request: Request, error: RecursionError) -> JSONResponse:
        return error_response(DEEPEST, 422)

    @app.exception_handler(MemoryError)
    async def no_memory(request: Request, error: MemoryError) -> JSONResponse:
        return error_response("there is not enough memory for this request; send fewer inputs", 503)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> JSONResponse:
        return error_response("the server failed on this request; its log says why", 500)

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> JSONResponse:
        message = f"{request.method} {request.url.path[:100]}: {error.detail}; see /docs"
        return error_response(message, error.status_code)


FORM = "multipart/form-data"


async def _read(request: Request, limits: Limits) -> Mapping[str, Any]:
    """What a request says: JSON, or images as they are, in a form or alone."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    body = await request.body()
    if kind == FORM:
        return await _form(request.headers, body, limits)
    if kind.startswith("image/"):
        return {"inputs": [body]}
    return await asyncio.to_thread(parsed, body)


def parsed(body: bytes) -> Mapping[str, Any]:
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:
        why = DEEPEST if isinstance(error, RecursionError) else f"the request is no JSON ({error})"
        raise Refused(f'{why}; give {{"inputs": [...]}}') from None
    if not isinstance(given, dict):
        raise Refused('the request is no JSON object; give {"inputs": [...]}')
    return given


class InMemory(MultiPartParser):
    """Bodies are short, and the server may not write."""

    spool_max_size = 2**30


async def _form(headers: Headers, body: bytes, limits: Limits) -> Mapping[str, Any]:
    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    try:
        form = await InMemory(headers, stream(), max_files=limits.inputs, max_fields=8, max_part_size=2**16).parse()
    except (MultiPartException, ValueError, KeyError, AttributeError) as error:
        reason = getattr(error, "message", None) or str(error) or type(error).__name__
        raise Refused(f"the form cannot be read ({reason}); send each image as a file of the form") from None
    files = [value for _, value in form.multi_items() if isinstance(value, UploadFile)]
    given: dict[str, Any] = {name: value for name, value in form.multi_items() if isinstance(value, str)}
    given["inputs"] = [await file.read() for file in files]
    await form.close()
    return given
