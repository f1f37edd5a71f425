"""Downloads, against a server on this machine that answers as the hub does and that can be told to fail."""

import hashlib
import io
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from demur.data import hub
from demur.data.catalogue import CATALOGUE, HubFiles
from demur.data.store import Store, image_column

pytest.importorskip("huggingface_hub")

COMMIT = "1234567890abcdef1234567890abcdef12345678"


@dataclass
class FakeHub:
    """One repository; `cuts` are the numbers of bytes after which the next transfers break off."""

    files: dict[str, bytes] = field(default_factory=dict)
    repo: str = ""
    cuts: list[int] = field(default_factory=list)
    ranges: bool = True
    lie: bool = False
    transfers: list[tuple[str, int, int]] = field(default_factory=list)  # file, first byte, bytes sent
    url: str = ""


class Answer(BaseHTTPRequestHandler):
    hub: FakeHub

    def log_message(self, *given: object) -> None: ...

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        listing = re.fullmatch(r"/api/datasets/([\w-]+/[\w-]+)/revision/[\w%]+", path)
        resolve = re.fullmatch(r"/datasets/([\w-]+/[\w-]+)/resolve/(\w+)/(.+)", path)
        if listing and listing[1] == self.hub.repo:
            self.list_files()
        elif resolve and resolve[1] == self.hub.repo and resolve[2] == COMMIT and resolve[3] in self.hub.files:
            # As on the hub, the file itself lies behind a redirection.
            self.send_response(302)
            self.send_header("Location", f"/cdn/{resolve[3]}")
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif path.startswith("/cdn/"):
            self.send_file(path.removeprefix("/cdn/"))
        else:
            self.send_error(404)

    def list_files(self) -> None:
        siblings = [
            {
                "rfilename": name,
                "size": len(content),
                "blobId": "0" * 40,
                "lfs": {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130},
            }
            for name, content in self.hub.files.items()
        ]
        body = json.dumps({"id": self.hub.repo, "sha": COMMIT, "siblings": siblings}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_file(self, name: str) -> None:
        whole = self.hub.files[name][::-1] if self.hub.lie else self.hub.files[name]
        start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-")) if self.hub.ranges else 0
        body = whole[start:]
        sent = self.hub.cuts.pop(0) if self.hub.cuts else len(body)
        self.hub.transfers.append((name, start, min(sent, len(body))))
        self.send_response(206 if self.hub.ranges else 200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha256(whole).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        if self.hub.ranges:
            self.send_header("Content-Range", f"bytes {start}-{len(whole) - 1}/{len(whole)}")
        self.end_headers()
        self.wfile.write(body[:sent])
        self.close_connection = True


@pytest.fixture
def server() -> Iterator[FakeHub]:
    fake = FakeHub()
    http = ThreadingHTTPServer(("127.0.0.1", 0), type("AnswerForOne", (Answer,), {"hub": fake}))
    fake.url = f"http://127.0.0.1:{http.server_port}"
    thread = Thread(target=http.serve_forever)
    thread.start()
    yield fake
    http.shutdown()
    thread.join()
    http.server_close()


def parquet(columns: dict, names: dict[str, list[str]] | None = None) -> bytes:
    """A file as the hub has it, with the names of classes in its metadata."""
    table, out = pa.table(columns), io.BytesIO()
    if names:
        features = {column: {"names": given, "_type": "ClassLabel"} for column, given in names.items()}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, out)
    return out.getvalue()


def png(pixels: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def random_images(count: int, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


@pytest.fixture
def kmnist(server: FakeHub) -> np.ndarray:
    """60 images on the server, in two files, beside files of no concern."""
    pixels = random_images(60, (28, 28))
    halves = [(pixels[:30], list(range(10)) * 3), (pixels[30:], [7] * 30)]
    server.repo = "tanganke/kmnist"
    server.files = {"README.md": b"kmnist", "kmnist/train-00000-of-00001.parquet": b"not asked for"}
    for index, (some, labels) in enumerate(halves):
        columns = {"image": image_column(map(png, some)), "label": labels, "other": ["x"] * len(some)}
        server.files[f"kmnist/test-0000{index}-of-00002.parquet"] = parquet(columns)
    return pixels


def check_kmnist(store: Store, pixels: np.ndarray) -> None:
    images, labels = store.images("kmnist", "test")
    np.testing.assert_array_equal(images[:, 0].numpy(), pixels)
    assert labels is not None
    assert labels.tolist() == list(range(10)) * 3 + [7] * 30


def leftovers(store: Store) -> list[Path]:
    return [
        path for path in store.root.rglob("*") if path.is_file() and (".part" in path.name or ".download" in str(path))
    ]


def test_a_set_is_brought_to_the_stores_layout(server: FakeHub, kmnist: np.ndarray, tmp_path: Path) -> None:
    store, seen = Store(tmp_path), []
    paths = hub.get(store, "kmnist", endpoint=server.url, progress=lambda *given: seen.append(given))
    assert [path.name for path in paths] == ["test-00000-of-00002.parquet", "test-00001-of-00002.parquet"]
    check_kmnist(store, kmnist)
    checksums = json.loads((tmp_path / "kmnist/checksums.json").read_text())
    assert checksums[paths[1].name] == {
        "sha256": hashlib.sha256(paths[1].read_bytes()).hexdigest(),
        "source": f"tanganke/kmnist@{COMMIT}",
    }
    sizes = {name: len(content) for name, content in server.files.items()}
    assert {name for name, _, _ in seen} == {f"kmnist/test-0000{index}-of-00002.parquet" for index in (0, 1)}
    assert all(done <= total == sizes[name] for name, done, total in seen)
    assert leftovers(store) == []


def test_a_cut_transfer_is_continued_at_once(server: FakeHub, kmnist: np.ndarray, tmp_path: Path) -> None:
    server.cuts = [10_000, 5_000]
    hub.get(Store(tmp_path), "kmnist", endpoint=server.url)
    first = [(start, sent) for name, start, sent in server.transfers if "test-00000" in name]
    assert [start for start, _ in first] == [0, 10_000, 15_000]
    assert sum(sent for _, sent in first) == len(server.files["kmnist/test-00000-of-00002.parquet"])
    check_kmnist(Store(tmp_path), kmnist)


def test_a_failed_download_is_continued_by_the_next_call(server: FakeHub, kmnist: np.ndarray, tmp_path: Path) -> None:
    store = Store(tmp_path)
    whole = len(server.files["kmnist/test-00000-of-00002.parquet"])
    server.cuts = [whole, 7_000, 0]  # the first file arrives, the second breaks off, and nothing more comes
    with pytest.raises(ValueError, match=r"stopped at 7,000 of [\d,]+ bytes \(.*\); give the same command again"):
        hub.get(store, "kmnist", endpoint=server.url)
    assert not store.has("kmnist", "test")
    server.transfers.clear()
    hub.get(store, "kmnist", endpoint=server.url)
    assert [(name, start) for name, start, _ in server.transfers] == [("kmnist/test-00001-of-00002.parquet", 7_000)]
    check_kmnist(store, kmnist)
    assert leftovers(store) == []


def test_a_server_without_ranges_sends_all_again(server: FakeHub, kmnist: np.ndarray, tmp_path: Path) -> None:
    server.cuts = [9_000, 0]
    with pytest.raises(ValueError, match="stopped at 9,000"):
        hub.get(Store(tmp_path), "kmnist", endpoint=server.url)
    server.ranges = False
    hub.get(Store(tmp_path), "kmnist", endpoint=server.url)
    check_kmnist(Store(tmp_path), kmnist)


def test_what_does_not_match_its_checksum_is_thrown_away(server: FakeHub, kmnist: np.ndarray, tmp_path: Path) -> None:
    server.lie = True
    with pytest.raises(ValueError, match="other than the hub describes it and was deleted"):
        hub.get(Store(tmp_path), "kmnist", endpoint=server.url)
    assert leftovers(Store(tmp_path)) == []
    assert not Store(tmp_path).has("kmnist", "test")


def test_classes_numbered_otherwise_are_matched_by_name(server: FakeHub, tmp_path: Path) -> None:
    ours = CATALOGUE["trec"].classes
    theirs = sorted(ours, key=lambda name: name[::-1])
    columns = {"text": ["How far ?"] * 50, "coarse_label": [0] * 50, "fine_label": list(range(50))}
    server.repo = "CogComp/trec"
    server.files = {"default/test/0000.parquet": parquet(columns, {"fine_label": theirs})}
    hub.get(Store(tmp_path), "trec", ["test"], endpoint=server.url)
    _, labels = Store(tmp_path).texts("trec", "test")
    assert labels is not None
    assert [ours[label] for label in labels.tolist()] == theirs

    server.files = {"default/test/0000.parquet": parquet(columns)}
    with pytest.raises(ValueError, match="does not name its classes as the catalogue does"):
        hub.get(Store(tmp_path), "trec", ["test"], endpoint=server.url)


def test_texts_from_structs_trimmed_limited_and_without_headings(
    server: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.repo = "wmt/wmt16"
    server.files = {
        "de-en/test-00000-of-00001.parquet": parquet(
            {"translation": [{"de": "Ja", "en": "Yes\n"}, {"de": "Nein", "en": "No"}]}
        )
    }
    hub.get(Store(tmp_path), "wmt16", endpoint=server.url)
    assert Store(tmp_path).texts("wmt16", "test") == (["Yes", "No"], None)

    server.repo = "Salesforce/wikitext"
    lines = ["", " = Robert = \n", " Robert is <unk> . \n", " = = Career = = \n", " x = y in 2 = 2 .\n"]
    server.files = {"wikitext-2-v1/train-00000-of-00001.parquet": parquet({"text": lines})}
    hub.get(Store(tmp_path), "wikitext2", endpoint=server.url)
    assert Store(tmp_path).texts("wikitext2", "train")[0] == ["Robert is <unk> .", "x = y in 2 = 2 ."]

    data = CATALOGUE["multi30k"]
    assert data.hub is not None
    monkeypatch.setitem(CATALOGUE, "multi30k", replace(data, hub=replace(data.hub, rows=5)))  # type: ignore[arg-type]
    server.repo = "bentrevett/multi30k"
    server.files = {f"default/train/000{n}.parquet": parquet({"en": [f"{n}{m}" for m in "abc"]}) for n in range(3)}
    hub.get(Store(tmp_path), "multi30k", endpoint=server.url)
    assert Store(tmp_path).texts("multi30k", "test")[0] == ["0a", "0b", "0c", "1a", "1b"]


def test_larger_images_are_averaged_down(server: FakeHub, tmp_path: Path) -> None:
    pixels = random_images(3, (64, 64, 3))
    server.repo = "zh-plus/tiny-imagenet"
    columns = {"image": image_column(map(png, pixels)), "label": [0, 199, 5]}
    server.files = {"data/train-00000-of-00001-1359597a978bc4fa.parquet": parquet(columns)}
    hub.get(Store(tmp_path), "tiny_imagenet32", endpoint=server.url)
    images, _ = Store(tmp_path).images("tiny_imagenet32", "train")
    means = pixels.reshape(3, 32, 2, 32, 2, 3).mean((2, 4)).transpose(0, 3, 1, 2)
    assert np.abs(images.numpy() - means).max() <= 1  # rounded once in each direction


def test_what_the_hub_does_not_have(server: FakeHub, kmnist: np.ndarray, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown data set 'kmnits'; did you mean 'kmnist'"):
        hub.get(Store(tmp_path), "kmnits", endpoint=server.url)
    with pytest.raises(
        ValueError, match="'brown' is not on the hub; add a copy of yours with: demur data add brown PATH"
    ):
        hub.get(Store(tmp_path), "brown", endpoint=server.url)
    with pytest.raises(ValueError, match="unknown split of kmnist 'tset'; did you mean 'test'"):
        hub.get(Store(tmp_path), "kmnist", ["tset"], endpoint=server.url)
    with pytest.raises(ValueError, match=r"ylecun/mnist could not be found on the hub \(.*404"):
        hub.get(Store(tmp_path), "mnist", endpoint=server.url)
    server.files = {"kmnist/test-00000-of-00001.parquet": parquet({"picture": ["x"]})}
    with pytest.raises(ValueError, match="has no column 'image' any more but picture"):
        hub.get(Store(tmp_path), "kmnist", endpoint=server.url)
    server.files = {"README.md": b""}
    with pytest.raises(ValueError, match=r"has no file kmnist/test-\*\.parquet any more"):
        hub.get(Store(tmp_path), "kmnist", endpoint=server.url)


def test_no_server_and_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"could not be found on the hub \(.*\); try again later"):
        hub.get(Store(tmp_path), "mnist", endpoint="http://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match=r"pip install 'demur\[hub\]'"):
        hub.get(Store(tmp_path), "mnist")


def test_every_entry_of_the_catalogue_is_complete() -> None:
    for name, data in CATALOGUE.items():
        if data.hub:
            assert isinstance(data.hub, HubFiles)
            assert data.hub.files, name
            assert data.hub.text or data.hub.image, name
