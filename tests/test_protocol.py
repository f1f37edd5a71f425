"""The Open Inference Protocol: tensors as JSON and as binary data, as an independent client sends them."""

import base64
import gzip
import json
import zlib
from pathlib import Path

import numpy as np
import pytest

from demur.serving.protocol import strings
from tests.serving import ask, save_models, served


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory):
    with served(save_models(tmp_path_factory.mktemp("models"))) as (port, _):
        yield port


def test_the_protocol_gives_the_same_answers_as_json_and_as_binary_data(port):
    x = np.array([[2.0, 2.1, 1.9], [-2.0, -1.9, -2.2]])
    _, plain, _ = ask(port, "/v1/models/table/predict", {"inputs": x.tolist()})
    tensor = {"name": "input", "datatype": "FP64", "shape": [2, 3]}
    status, in_json, _ = ask(port, "/v2/models/table/infer", {"id": "7", "inputs": [{**tensor, "data": x.tolist()}]})
    assert status == 200, in_json
    assert in_json["id"] == "7"
    outputs = {output["name"]: output for output in in_json["outputs"]}
    assert outputs["decision"]["data"] == [answer["decision"] for answer in plain["answers"]]
    given = {**tensor, "parameters": {"binary_data_size": x.nbytes}}
    head = json.dumps({"inputs": [given], "parameters": {"binary_data_output": True}}).encode()
    length = {"Inference-Header-Content-Length": str(len(head))}
    status, raw, headers = ask(port, "/v2/models/table/infer", head + x.tobytes(), length)
    assert status == 200, raw
    start = int(headers["inference-header-content-length"])
    sizes = {each["name"]: each["parameters"]["binary_data_size"] for each in json.loads(raw[:start])["outputs"]}
    assert start + sum(sizes.values()) == len(raw)
    at = start + sizes["decision"] + sizes["label"]
    scores = np.frombuffer(raw[at : at + sizes["outlier_score"]])
    np.testing.assert_allclose(scores, [answer["outlier_score"] for answer in plain["answers"]], atol=1e-6)
    _, texts, _ = ask(
        port,
        "/v2/models/text/infer",
        {"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1], "data": ["wave tide"]}]},
    )
    assert texts["outputs"][1]["data"] == ["sea"]


@pytest.mark.parametrize("name", ["table", "image", "text"])
def test_what_tritonclient_sends_is_answered(port, name):
    """Its requests, byte for byte; it sends and asks for binary data unless told otherwise."""
    kept = json.loads((Path(__file__).parent / "data" / "triton_requests.json").read_text())["requests"][name]
    every, two = ((base64.b64decode(each["body"]), each["json_bytes"]) for each in kept.values())
    for compress in (bytes, gzip.compress, zlib.compress):
        encoding = {gzip.compress: {"content-encoding": "gzip"}, zlib.compress: {"content-encoding": "deflate"}}
        head = {"Inference-Header-Content-Length": str(every[1]), **encoding.get(compress, {})}
        status, raw, headers = ask(port, f"/v2/models/{name}/infer", compress(every[0]), head)
        assert status == 200, raw
        start = int(headers["inference-header-content-length"])
        said = json.loads(raw[:start])
        assert said["id"] == "7"
        arrays = {}
        for output in said["outputs"]:
            part, start = raw[start:][: output["parameters"]["binary_data_size"]], start
            start += len(part)
            values = strings(part) if output["datatype"] == "BYTES" else np.frombuffer(part, "<f8")
            arrays[output["name"]] = np.reshape(values, output["shape"])
        assert start == len(raw)
        assert arrays["probabilities"].shape == (len(arrays["label"]), 2)
        expected = {"table": ["high", "low"], "image": ["above", "below"], "text": ["sea", "kitchen"]}[name]
        assert arrays["label"][:2].tolist() == expected
    status, raw, headers = ask(
        port, f"/v2/models/{name}/infer", two[0], {"Inference-Header-Content-Length": str(two[1])}
    )
    first, second = json.loads(raw[: int(headers["inference-header-content-length"])])["outputs"]
    assert (status, first["name"], second["name"]) == (200, "label", "outlier_score")
    np.testing.assert_allclose(second["data"], arrays["outlier_score"], atol=1e-5)
    asked = json.loads(two[0][: two[1]]) | {"outputs": [{"name": "probabilities", "parameters": {"classification": 1}}]}
    text = json.dumps(asked).encode()
    status, said, _ = ask(
        port,
        f"/v2/models/{name}/infer",
        text + two[0][two[1] :],
        {"Inference-Header-Content-Length": str(len(text))},
    )
    assert (status, "classification extension is not there" in said["error"]) == (422, True)


@pytest.mark.parametrize(
    ("body", "encoding", "status"),
    [
        (gzip.compress(b" " * 2**24), "gzip", 413),
        (gzip.compress(b"{}")[:-4], "gzip", 422),
        (gzip.compress(b"{}") + b"more", "gzip", 422),
        (b"{}", "gzip", 422),
        (b"{}", "br", 415),
        (b"{}", "gzip, gzip", 415),
    ],
    ids=["too large", "cut", "more behind it", "not compressed", "brotli", "twice"],  # gzip writes the time
)
def test_what_cannot_be_decompressed_or_is_too_much_is_refused(port, body, encoding, status):
    found, said, _ = ask(port, "/v1/models/table/predict", body, {"content-encoding": encoding})
    assert (found, list(said)) == (status, ["error"])
