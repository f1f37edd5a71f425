"""A model to the hub and back, against a server on this machine that answers as the hub does."""

import base64
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pandas as pd
import pytest

import demur
from demur.classifier.card import model_card
from experiments.fuzz import called
from tests.serving import table

huggingface_hub = pytest.importorskip("huggingface_hub")
constants = pytest.importorskip("huggingface_hub.constants")


@dataclass
class FakeHub:
    """One repository of models: its commits, oldest first, each with its files."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    created: list[dict[str, Any]] = field(default_factory=list)
    lie: bool = False
    large: bool = True  # whether files are kept apart, as large ones are, and not by git


class Answer(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *given: object) -> None: ...

    def send(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_json(self, value: Any) -> None:
        self.send(200, json.dumps(value).encode(), Content_Type="application/json")

    def do_POST(self) -> None:
        given = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/api/repos/create":
            self.hub.created.append(json.loads(given))
            self.send_json({"url": "http://127.0.0.1/me/clouds"})
        elif self.path == "/api/validate-yaml":
            self.send_json({"errors": [], "warnings": []})
        elif self.path.startswith("/api/models/me/clouds/preupload/"):
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(given)["files"]
            ]
            self.send_json({"files": files})
        elif self.path.startswith("/api/models/me/clouds/commit/"):
            lines = [json.loads(line) for line in given.splitlines()]
            files = {
                line["value"]["path"]: base64.b64decode(line["value"]["content"])
                for line in lines
                if line["key"] == "file"
            }
            commit = f"{len(self.hub.commits) + 1:040x}"
            self.hub.commits[commit] = files
            self.send_json({"success": True, "commitOid": commit, "commitUrl": f"http://127.0.0.1/me/{commit}"})
        else:
            self.send(404)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        info = re.fullmatch(r"/api/models/me/clouds(?:/revision/(\w+))?", path)
        file = re.fullmatch(r"/me/clouds/resolve/(\w+)/(.+)", path)
        commits = self.hub.commits
        newest = next(reversed(commits), "")
        if info and (info[1] or newest) in commits:
            commit = info[1] or newest
            siblings = [
                {"rfilename": name, "size": len(content), **self.describe(content)}
                for name, content in commits[commit].items()
            ]
            self.send_json({"id": "me/clouds", "sha": commit, "siblings": siblings})
        elif file and file[2] in commits.get(file[1], {}):
            content = commits[file[1]][file[2]]
            body = content[:-1] + bytes([content[-1] ^ 1]) if self.hub.lie else content
            tag = f'"{hashlib.sha256(body).hexdigest()}"'
            self.send(200, body, ETag=tag, X_Repo_Commit=file[1])
        else:
            self.send(404, X_Error_Code="RepoNotFound")

    do_HEAD = do_GET

    def describe(self, content: bytes) -> dict[str, Any]:
        if not self.hub.large:
            return {"blobId": hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()}
        lfs = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
        return {"blobId": "0" * 40, "lfs": lfs}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    fake = FakeHub()
    http = ThreadingHTTPServer(("127.0.0.1", 0), type("AnswerForOne", (Answer,), {"hub": fake}))
    url = f"http://127.0.0.1:{http.server_port}"
    for name, value in {
        "ENDPOINT": url,
        "HUGGINGFACE_CO_URL_TEMPLATE": url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_OFFLINE": False,
        "HF_HUB_CACHE": str(tmp_path / "cache"),
        "HF_HUB_DISABLE_PROGRESS_BARS": True,
    }.items():
        monkeypatch.setattr(constants, name, value)
    thread = Thread(target=http.serve_forever)
    thread.start()
    yield fake
    http.shutdown()
    thread.join()
    http.server_close()
    huggingface_hub.close_session()


@pytest.fixture(scope="module")
def model() -> demur.Classifier:
    return demur.Classifier(epochs=5, device="cpu").fit(*table(200))


def test_there_and_back(hub: FakeHub, model: demur.Classifier) -> None:
    named = model.push_to_hub("me/clouds", private=True)
    (commit,) = hub.commits
    assert named == f"hf:me/clouds@{commit}"
    assert set(hub.commits[commit]) == {"model.demur", "README.md"}  # no code
    assert hub.created[0].get("private") or hub.created[0]["visibility"] == "private"
    x, _ = table(20, seed=3)
    for name in (named, "hf:me/clouds"):
        back = demur.load_model(name, device="cpu")
        assert back.source_ == named
        np.testing.assert_array_equal(back.predict_all(x).outlier_score, model.predict_all(x).outlier_score)


def test_a_model_of_the_hub_answers_in_parts(hub: FakeHub, model: demur.Classifier, tmp_path: Path) -> None:
    named = model.push_to_hub("me/clouds")
    rows, _ = table(20, seed=3)
    rows.to_csv(tmp_path / "rows.csv", index=False)
    assert called("predict", named, tmp_path / "rows.csv", "-o", tmp_path / "out.parquet") == (0, "")
    assert pd.read_parquet(tmp_path / "out.parquet")["label"].notna().any()


def test_a_commit_names_the_same_model_after_the_next_push(hub: FakeHub, model: demur.Classifier) -> None:
    first = model.push_to_hub("me/clouds")
    other = demur.Classifier(epochs=2, device="cpu", random_state=7).fit(*table(200))
    second = other.push_to_hub("me/clouds")
    assert demur.load_model("hf:me/clouds", device="cpu").source_ == second
    assert demur.load_model(first, device="cpu").report_["epochs"] == 5


@pytest.mark.parametrize("large", [True, False])
def test_what_arrives_otherwise_than_it_was_sent_is_refused(
    hub: FakeHub, model: demur.Classifier, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, large: bool
) -> None:
    hub.large = large
    named = model.push_to_hub("me/clouds")
    assert demur.load_model(named, device="cpu").source_ == named
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "another"))
    hub.lie = True
    with pytest.raises(ValueError, match=r"is other than the hub describes it; remove .*model\.demur"):
        demur.load_model(named, device="cpu")


def test_what_is_not_there(hub: FakeHub, model: demur.Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"hf:me/nothing could not be fetched from the hub"):
        demur.load_model("hf:me/nothing")
    hub.commits["a" * 40] = {"README.md": b""}
    with pytest.raises(ValueError, match=r"me/clouds on the hub has no model\.demur"):
        demur.load_model("hf:me/clouds")
    with pytest.raises(ValueError, match=r"'hf:clouds' is no name on the hub; give hf:me/name"):
        demur.load_model("hf:clouds")
    with pytest.raises(ValueError, match=r"'clouds' is no name on the hub; give such as 'me/name'"):
        model.push_to_hub("clouds")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match="huggingface_hub"):
        demur.load_model("hf:me/clouds")


def test_the_card_says_what_the_report_does(model: demur.Classifier) -> None:
    card, report = model_card(model, "me/clouds", "Two clouds."), model.report_
    assert card.startswith("---\nlibrary_name: demur\n")
    assert "Two clouds." in card
    assert "`high`, `low`" in card
    assert f"| coverage, held out | {100 * report['coverage']:.1f} % of {report['tuned']} inliers |" in card
    assert f"{100 * report['outliers_abstained']:.1f} % of {report['unseen_outliers']} held-out outliers" in card
    assert "| coverage asked for | 95 % of inliers" in card
    assert "## Limits" in card


def test_names_of_classes_are_no_markup() -> None:
    x, y = table(200)
    named = [{"low": "`|<img>", "high": "b"}[label] for label in y]
    card = model_card(demur.Classifier(epochs=1, device="cpu").fit(x, named), "me/clouds")
    assert "<img>" not in card
