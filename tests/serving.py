"""Small models of each kind, and a server around them, for the tests of serving."""

import asyncio
import base64
import http.client
import io
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

import demur
from demur.serving.app import Server, Settings, create_app
from demur.serving.running import bound, web_server

CENTRES = {"low": -2.0, "high": 2.0}


def table(count: int, seed: int = 0) -> tuple[pd.DataFrame, list[str]]:
    """Two clouds in three columns."""
    rng = np.random.default_rng(seed)
    labels = ["low", "high"] * (count // 2)
    x = rng.normal(size=(len(labels), 3)) + np.array([[CENTRES[label]] for label in labels])
    return pd.DataFrame(x, columns=["a", "b", "c"]), labels


def categories(count: int, seed: int = 0) -> tuple[pd.DataFrame, list[str]]:
    """Twelve different rows, each many times."""
    rng = np.random.default_rng(seed)
    first, second, third = (rng.choice(names, count) for names in (["x", "y", "z"], ["u", "v"], ["p", "q"]))
    labels = np.where((first == "x") ^ (rng.random(count) < 0.1), "one", "two")
    return pd.DataFrame({"first": first, "second": second, "third": third}), labels.tolist()


def images(count: int, seed: int = 0) -> tuple[np.ndarray, list[str]]:
    """Dark above or dark below, with noise."""
    rng = np.random.default_rng(seed)
    labels = ["above", "below"] * (count // 2)
    x = np.full((len(labels), 1, 16, 16), 40)
    for row, label in enumerate(labels):
        x[row, :, slice(0, 8) if label == "above" else slice(8, 16)] = 200
    return np.clip(x + rng.integers(-30, 30, x.shape), 0, 255).astype(np.uint8), labels


def texts(count: int, seed: int = 0) -> tuple[list[str], list[str]]:
    rng = np.random.default_rng(seed)
    words = {
        "sea": ["wave", "salt", "ship", "sand", "tide", "gull"],
        "kitchen": ["oven", "salt", "bread", "spoon", "plate", "soup"],
    }
    labels = ["sea", "kitchen"] * (count // 2)
    return [" ".join(rng.choice(words[label], 6)) for label in labels], labels


def save_models(folder: Path) -> dict[str, Path]:
    """One of each kind, fitted in seconds."""
    kinds: dict[str, tuple[Any, int]] = {"table": (table, 60), "image": (images, 6), "text": (texts, 4)}
    for name, (make, epochs) in kinds.items():
        x, y = make(200)
        outliers = [" ".join(text.split()[::-1]) + " rain" for text in x] if name == "text" else None
        demur.Classifier(epochs=epochs, device="cpu").fit(x, y, outliers).save(folder / f"{name}.demur")
    return {name: folder / f"{name}.demur" for name in kinds}


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def inputs_for(name: str) -> list[Any]:
    """Two inliers, as JSON has them."""
    if name == "table":
        return [{"a": 2.0, "b": 2.1, "c": 1.9, "more": 0}, [-2.0, -1.9, -2.2]]
    if name == "text":
        return ["wave ship tide gull sand salt", {"text": "oven bread soup plate spoon salt"}]
    return [base64.b64encode(png(image[0])).decode() for image in images(2)[0]]


@contextmanager
def served(models: Mapping[str, Path], settings: Settings | None = None) -> Iterator[tuple[int, Server]]:
    """A server in a thread of its own: its port, and what is behind it. It is stopped gracefully."""
    app, server = create_app(models, settings)
    web, listening = web_server(app), bound("127.0.0.1", 0)
    thread = threading.Thread(target=lambda: asyncio.run(web.serve(sockets=[listening])))
    thread.start()
    try:
        yield listening.getsockname()[1], server
    finally:
        web.should_exit = True
        thread.join(30)
        listening.close()
        assert not thread.is_alive()


def ask(
    port: int, path: str, body: Any = None, headers: Mapping[str, str] | None = None
) -> tuple[int, Any, Mapping[str, str]]:
    """Status, JSON (or text) and headers of an answer; a body that is not bytes is sent as JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request("GET" if body is None else "POST", path, data, dict(headers or {}))
        answer = connection.getresponse()
        raw = answer.read()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, json.loads(raw) if "json" in found.get("content-type", "") else raw, found
    finally:
        connection.close()


def raw_socket(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=30)
