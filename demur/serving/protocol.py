"""The Open Inference Protocol, version 2, over HTTP: health, metadata, infer, with tensors as JSON or as binary data.

A model for tables takes one tensor of numbers (N, columns), one for images UINT8 (N, channels, height, width), one for
texts BYTES (N,). It gives a decision, a label and an outlier score for each, and the probabilities of the classes.
"""

import asyncio
import json
import math
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

import demur
from demur.classifier import Classifier
from demur.classifier.kinds import Images, MixedTables, Tables, Texts
from demur.classifier.tokens import Tokens
from demur.serving.answers import Answer
from demur.serving.limits import Limits, Refused

if TYPE_CHECKING:
    from demur.serving.app import Server
    from demur.serving.hosted import Loaded

DTYPES = {
    "BOOL": "?",
    **{f"INT{bits}": f"<i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"UINT{bits}": f"<u{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
}
LENGTH = "inference-header-content-length"
OUTPUTS = ("decision", "label", "outlier_score", "probabilities")


def add(app: FastAPI, server: "Server") -> None:
    @app.get("/v2", summary="Open Inference Protocol: the server")
    async def about() -> dict[str, Any]:
        return {"name": "demur", "version": demur.__version__, "extensions": ["binary_tensor_data"]}

    @app.get("/v2/health/live", summary="Whether it runs")
    async def live() -> dict[str, bool]:
        return {"live": True}

    @app.get("/v2/health/ready", summary="Whether every model can answer")
    async def ready() -> dict[str, bool]:
        return {"ready": True}  # a server without its models does not start

    @app.get("/v2/models/{name}/ready", summary="Whether this model can answer")
    @app.get("/v2/models/{name}/versions/{version}/ready", include_in_schema=False)
    async def model_ready(name: str, version: str | None = None) -> dict[str, Any]:
        _at(server, name, version)
        return {"name": name, "ready": True}

    @app.get("/v2/models/{name}", summary="What a model takes and gives")
    @app.get("/v2/models/{name}/versions/{version}", include_in_schema=False)
    async def metadata(name: str, version: str | None = None) -> dict[str, Any]:
        loaded = _at(server, name, version)
        model = loaded.model
        return {
            "name": name,
            "versions": [loaded.version],
            "platform": "demur",
            "inputs": [
                {"name": "input", "datatype": datatype, "shape": shape} for datatype, shape in [describe_inputs(model)]
            ],
            "outputs": [
                {"name": "decision", "datatype": "BYTES", "shape": [-1]},
                {"name": "label", "datatype": "BYTES", "shape": [-1]},
                {"name": "outlier_score", "datatype": "FP64", "shape": [-1]},
                {"name": "probabilities", "datatype": "FP64", "shape": [-1, len(model.classes_)]},
            ],
        }

    @app.post("/v2/models/{name}/infer", summary="Answer a tensor of inputs")
    @app.post("/v2/models/{name}/versions/{version}/infer", include_in_schema=False)
    async def infer(name: str, request: Request, version: str | None = None) -> Response:
        loaded = _at(server, name, version)
        body = await request.body()
        given, x = await asyncio.to_thread(
            read, body, request.headers.get(LENGTH), loaded.model, server.settings.limits
        )
        outputs = asked_outputs(given)
        answers = await server.answered(request, name, loaded, x)
        return response(given, outputs, {"model_name": name, "model_version": loaded.version}, answers)


def _at(server: "Server", name: str, version: str | None) -> "Loaded":
    loaded = server.model(name).now
    if version is not None and version != loaded.version:
        raise Refused(f"model {name} has version {loaded.version}, not {version[:32]!r}; ask for that", 404)
    return loaded


def describe_inputs(model: Classifier) -> tuple[str, list[int]]:
    kind = model.preprocessing_
    if isinstance(kind, Texts | Tokens):
        return "BYTES", [-1]
    if isinstance(kind, Images):
        return "UINT8", [-1, *kind.shape]
    if isinstance(kind, MixedTables):
        return "BYTES", [-1, model.n_features_in_]  # cells as strings, "" where one is empty
    return "FP64", [-1, model.n_features_in_] if isinstance(kind, Tables) else [-1, *kind.shape]


def read(body: bytes, length: str | None, model: Classifier, limits: Limits) -> tuple[dict[str, Any], Any]:
    """The request's JSON, and its one input: an array, or a list of texts or rows, checked as those of plain JSON."""
    if length is not None and (not length.isdecimal() or int(length[:12]) > len(body)):
        raise Refused(f"the header {LENGTH} is {length[:20]!r}, and the request has {len(body)} bytes")
    end = len(body) if length is None else int(length)
    try:
        given = json.loads(body[:end])
    except (ValueError, RecursionError) as error:
        raise Refused(f"the request is no JSON ({error})") from None
    inputs = given.get("inputs") if isinstance(given, dict) else None
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
        raise Refused('the request must have "inputs", a list of one tensor: name, datatype, shape and data')
    x = tensor(inputs[0], body[end:])
    datatype, shape = describe_inputs(model)
    if list(x.shape[1:]) != shape[1:] or (x.dtype.kind == "O") != (datatype == "BYTES"):
        raise Refused(f"the input has shape {list(x.shape)}; this model takes {datatype} {shape}")
    if not 0 < len(x) <= limits.inputs:
        raise Refused(f"the input has {len(x)} entries; give 1 to {limits.inputs}")
    return given, x.tolist() if datatype == "BYTES" or isinstance(model.preprocessing_, Tables) else x


def tensor(given: Mapping[str, Any], binary: bytes) -> np.ndarray:
    datatype, shape = given.get("datatype"), given.get("shape")
    if not isinstance(shape, list) or not shape or not all(type(side) is int and 0 <= side < 2**31 for side in shape):
        raise Refused(f"shape {str(shape)[:60]} is no list of whole numbers")
    if not isinstance(datatype, str) or (datatype != "BYTES" and datatype not in DTYPES):
        raise Refused(f"datatype {str(datatype)[:60]!r} is not known; give BYTES, {', '.join(DTYPES)}")
    parameters, count = given.get("parameters"), math.prod(shape)
    if isinstance(parameters, dict) and "binary_data_size" in parameters:
        if parameters["binary_data_size"] != len(binary):
            raise Refused(f"binary_data_size is {str(parameters['binary_data_size'])[:20]}, {len(binary)} bytes follow")
        values = np.array(strings(binary), dtype=object) if datatype == "BYTES" else numbers(binary, DTYPES[datatype])
    else:
        values = flatten(given.get("data"), datatype)
    if values.size != count:
        raise Refused(f"the input has {values.size} values, its shape {shape} means {count}")
    return values.reshape(shape)


def numbers(binary: bytes, dtype: str) -> np.ndarray:
    if len(binary) % np.dtype(dtype).itemsize:
        raise Refused(f"{len(binary)} bytes are no whole number of values")
    return np.frombuffer(binary, dtype)


def strings(binary: bytes) -> list[str]:
    """Each has its length before it, four bytes, the lowest first."""
    texts, at = [], 0
    while at < len(binary):
        (size,) = struct.unpack_from("<I", binary.ljust(at + 4, b"\0"), at)
        end = at + 4 + size
        if end > len(binary):
            raise Refused("the binary data end in the middle of a string")
        texts.append(utf8(binary[at + 4 : end]))
        at = end
    return texts


def utf8(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise Refused(f"a text is not UTF-8 ({error})") from None


def flatten(data: Any, datatype: str) -> np.ndarray:
    """Data are nested by the shape, or flat; both are allowed."""
    if not isinstance(data, list):
        raise Refused("the input has no data; give a list")
    if datatype == "BYTES":
        if all(isinstance(value, list) for value in data):
            data = [cell for row in data for cell in row]
        if not all(isinstance(value, str) for value in data):
            raise Refused("the data of BYTES must be strings")
        return np.array(data, dtype=object)
    try:
        values = np.array(data)
    except (ValueError, OverflowError):
        raise Refused("the data are lists of different lengths; give them flat, or nested by the shape") from None
    if values.dtype.kind not in "iufb":
        raise Refused("the data are no numbers")
    kept = values.astype(DTYPES[datatype])
    if datatype.startswith(("INT", "UINT")) and not np.array_equal(kept, values):
        raise Refused(f"the data do not fit into {datatype}")
    return kept.reshape(-1)


def asked_outputs(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All, or those that are named, each once: a short request must not get an answer of any length."""
    asked = given.get("outputs") or [{"name": name} for name in OUTPUTS]
    names = [each.get("name") for each in asked if isinstance(each, dict)] if isinstance(asked, list) else []
    if not names or len(names) != len(asked) or any(name not in OUTPUTS for name in names):
        raise Refused(f"outputs must be a list of names: {', '.join(OUTPUTS)}")
    if len(set(names)) < len(names):
        raise Refused("outputs has a name twice; ask for each once")
    if any(isinstance(each.get("parameters"), dict) and each["parameters"].get("classification") for each in asked):
        raise Refused("the classification extension is not there; ask for the outputs label and probabilities")
    return list(asked)


def response(
    given: Mapping[str, Any], asked: Sequence[Mapping[str, Any]], head: dict[str, Any], answers: Sequence[Answer]
) -> Response:
    """The outputs that are asked for; as binary data where that is asked for."""
    every: dict[str, tuple[str, np.ndarray]] = {
        "decision": ("BYTES", np.array([str(answer.decision) for answer in answers], dtype=object)),
        "label": ("BYTES", np.array([str(answer.label) for answer in answers], dtype=object)),
        "outlier_score": ("FP64", np.array([answer.outlier_score for answer in answers], dtype=np.float64)),
        "probabilities": ("FP64", np.array([[*answer.probabilities.values()] for answer in answers], dtype=np.float64)),
    }
    by_default = _flag(given, "binary_data_output")
    outputs, tail = [], b""
    for each in asked:
        datatype, values = every[each["name"]]
        output = {"name": each["name"], "datatype": datatype, "shape": list(values.shape)}
        if _flag(each, "binary_data", by_default):
            binary = in_binary(values) if datatype == "BYTES" else values.astype("<f8").tobytes()
            output["parameters"] = {"binary_data_size": len(binary)}
            tail += binary
        else:
            output["data"] = [None if value != value else value for value in values.reshape(-1).tolist()]
        outputs.append(output)
    content = head | ({"id": given["id"]} if isinstance(given.get("id"), str) else {}) | {"outputs": outputs}
    if not tail:
        return JSONResponse(content)
    text = json.dumps(content).encode()
    return Response(text + tail, media_type="application/octet-stream", headers={LENGTH: str(len(text))})


def in_binary(values: np.ndarray) -> bytes:
    encoded = [value.encode() for value in values.tolist()]
    return b"".join(struct.pack("<I", len(each)) + each for each in encoded)


def _flag(given: Mapping[str, Any], name: str, otherwise: bool = False) -> bool:
    parameters = given.get("parameters")
    return parameters.get(name, otherwise) is True if isinstance(parameters, dict) else otherwise
