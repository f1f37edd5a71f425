"""The page of `demur review`: what it asks for, and whom it answers: whoever has the address that was printed."""

import base64
import io
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse
from PIL import Image
from starlette.types import ASGIApp

import demur
from demur.classifier.readers.images import open_image
from demur.serving import page
from demur.serving.app import add_refusals, parsed
from demur.serving.guard import Guard, error_response
from demur.serving.instruments import Instruments
from demur.serving.limits import Limits, Refused
from demur.serving.review import Record, Review, known_classes, shown, sort_of

SIDE = 512  # pixels of an image that is shown, at most


def create_review(review: Review, token: str) -> ASGIApp:
    """The app, behind the token: its page is open, and says nothing without it."""
    app = FastAPI(title="demur review", version=demur.__version__, docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/")
    def root() -> HTMLResponse:
        return HTMLResponse(page.html("review"), headers=page.HEADERS)

    @app.get("/v1/review")
    def overview() -> dict[str, Any]:
        inputs, classes = list[dict[str, str]](), dict[str, set[str]]()
        for id, record in review.records():
            inputs.append({"id": id, "sort": sort_of(record)})
            if record is not None:
                classes.setdefault(record["model"], set()).update(classes_of(record))
        named = {model: sorted(names) for model, names in classes.items()}
        return {"folder": str(review.folder), "inputs": inputs, "classes": named}

    @app.get("/v1/review/{id}")
    def look(id: str) -> dict[str, Any]:
        return told(id, review.record(id))

    @app.post("/v1/review/{id}")
    async def judge(id: str, request: Request) -> dict[str, Any]:
        given = parsed(await request.body())
        return told(id, review.judge(id, given.get("verdict"), given.get("given")))

    @app.exception_handler(OSError)
    async def unwritten(request: Request, error: OSError) -> JSONResponse:
        return error_response(f"the verdict cannot be written to {review.folder} ({error.strerror or error})", 507)

    add_refusals(app)
    return Guard(app, Limits(), token, Instruments())


def classes_of(record: Record) -> list[str]:
    """Those that the model knows, and the one that was given."""
    return [*known_classes(record), *([record["given"]] if record["given"] else [])]


def told(id: str, record: Record) -> dict[str, Any]:
    ranked = known_classes(record)
    names = ("model", "decision", "outlier_score", "time", "verdict", "given")
    return {
        "id": id,
        "sort": sort_of(record),
        "classes": [{"name": name, "probability": record["probabilities"].get(name)} for name in ranked],
        **{name: record.get(name) for name in names},
        **as_shown(record),
    }


def as_shown(record: Record) -> dict[str, Any]:
    """As `shown` gives it, an image as one that every browser draws."""
    fields = dict(shown(record))
    if "text" in fields:  # half a character, which JSON can hold and UTF-8 cannot
        return {"text": fields["text"].encode("utf-8", "replace").decode()}
    if "image" not in fields:
        return fields
    try:
        with open_image(io.BytesIO(base64.b64decode(fields.pop("image"))), "the image") as image:
            size = image.size
            if size[0] * size[1] > Limits().pixels:
                raise Refused(f"the image has {size[0]}x{size[1]} pixels; it is too large to be shown")
            image.thumbnail((SIDE, SIDE))
            written = io.BytesIO()
            image.convert("RGB" if image.mode not in ("L", "1") else "L").save(written, "PNG")
    except (ValueError, OSError, Image.DecompressionBombError) as error:
        return {"text": f"This image cannot be shown: {error}."}
    source = base64.b64encode(written.getvalue()).decode()
    return {"image": f"data:image/png;base64,{source}", "size": list(size)}
