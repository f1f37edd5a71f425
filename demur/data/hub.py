"""Data sets from the Hugging Face hub, brought to the store's layout.

`huggingface_hub` finds the files and signs the requests. The transfer is ours, because its own forgets what was begun
when the process ends.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image

from demur.data.catalogue import CATALOGUE, DataSet, HubFiles
from demur.data.store import Store, class_names, image_column, open_parquet, with_class_names
from demur.errors import first_line
from demur.files import hash_file
from demur.names import choose

Progress = Callable[[str, int, int], None]  # file, bytes so far, bytes in all
TIMEOUT = 30.0  # seconds without a byte


@dataclass(frozen=True)
class RemoteFile:
    path: str
    url: str
    size: int
    sha256: str | None  # the hub gives none for small files


def get(
    store: Store,
    name: str,
    splits: Sequence[str] | None = None,
    endpoint: str | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Download a data set of the catalogue, all splits or some; called again after a failure, it continues."""
    data = choose(CATALOGUE, name, "data set")
    if data.hub is None:
        raise ValueError(f"data set {name!r} is not on the hub; add a copy of yours with: demur data add {name} PATH")
    patterns = {split: choose(data.hub.files, split, f"split of {name}") for split in splits or data.hub.files}
    commit, remote = list_files(data.hub, endpoint)
    written: list[Path] = []
    for split, pattern in patterns.items():
        files = [file for file in remote if fnmatchcase(file.path, pattern)]
        if not files:
            raise ValueError(
                f"{data.hub.repo} on the hub has no file {pattern} any more; "
                f"add a copy of yours with: demur data add {name} PATH"
            )
        # The commit is in the name: what was begun of one version is never completed with another.
        folder = store.root / ".download" / f"{name}-{commit[:12]}"
        fetched = [fetch(file, folder / file.path.replace("/", "-"), progress) for file in files]
        written += store.write(name, split, convert_files(fetched, data, data.hub), f"{data.hub.repo}@{commit}")
        for path in fetched:
            path.unlink()
        if not any(folder.iterdir()):
            folder.rmdir()
    return written


def list_files(hub: HubFiles, endpoint: str | None) -> tuple[str, list[RemoteFile]]:
    """The repository's commit and its files, sorted by path."""
    try:
        from huggingface_hub import HfApi, hf_hub_url
        from huggingface_hub.errors import HTTPError  # base of all failures of the HTTP library in use
    except ImportError as error:
        raise ValueError("the package huggingface_hub is not installed; pip install 'demur[hub]'") from error
    try:
        info = HfApi(endpoint=endpoint).dataset_info(
            hub.repo, revision=hub.revision, files_metadata=True, timeout=TIMEOUT
        )
    except (HTTPError, OSError) as error:
        raise ValueError(f"{hub.repo} could not be found on the hub ({first_line(error)}); try again later") from error
    if info.sha is None or info.siblings is None:
        raise ValueError(f"{hub.repo} on the hub has no list of files; try again later")
    files = [
        RemoteFile(
            file.rfilename,
            hf_hub_url(hub.repo, file.rfilename, repo_type="dataset", revision=info.sha, endpoint=endpoint),
            file.size or 0,
            file.lfs.sha256 if file.lfs else None,
        )
        for file in info.siblings
    ]
    return info.sha, sorted(files, key=lambda file: file.path)


def fetch(file: RemoteFile, path: Path, progress: Progress | None) -> Path:
    """Download to `path`, which exists only once it is whole; tries again as long as a try brings something."""
    from huggingface_hub.errors import HTTPError

    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.touch()
    while (offset := part.stat().st_size) < file.size:
        try:
            transfer(file, part, offset, progress)
        except (HTTPError, OSError) as error:
            if part.stat().st_size <= offset:
                raise ValueError(
                    f"the download of {file.path} stopped at {offset:,} of {file.size:,} bytes ({first_line(error)}); "
                    f"give the same command again and it continues"
                ) from error
    if part.stat().st_size != file.size or file.sha256 not in (None, hash_file(part)):
        part.unlink()
        raise ValueError(f"{file.path} arrived other than the hub describes it and was deleted; get it again")
    return part.rename(path)


def transfer(file: RemoteFile, part: Path, offset: int, progress: Progress | None) -> None:
    """Append what is missing."""
    from huggingface_hub import get_session, hf_raise_for_status
    from huggingface_hub.utils import build_hf_headers

    headers = {**build_hf_headers(), "Range": f"bytes={offset}-", "Accept-Encoding": "identity"}
    with get_session().stream("GET", file.url, headers=headers, timeout=TIMEOUT, follow_redirects=True) as response:
        hf_raise_for_status(response)
        ranged = response.status_code == 206  # a server may send the whole file nevertheless
        with part.open("ab" if ranged else "wb") as out:
            for chunk in response.iter_bytes():
                out.write(chunk)
                if progress:
                    progress(file.path, out.tell(), file.size)


def convert_files(paths: list[Path], data: DataSet, hub: HubFiles) -> Iterator[pa.Table]:
    """Each file in the store's layout."""
    left = hub.rows
    for path in paths:
        if left == 0:
            return
        table = convert(open_parquet(path).read(), data, hub)[:left]
        left = None if left is None else left - len(table)
        yield table


def convert(table: pa.Table, data: DataSet, hub: HubFiles) -> pa.Table:
    columns = {}
    if hub.image:
        images = pc.struct_field(pick(table, hub.image, hub), "bytes")
        columns["image"] = image_column(resize_images(images, data) if hub.resize else images.to_pylist())
    if hub.text:
        columns["text"] = pc.utf8_trim_whitespace(pick(table, hub.text, hub))
    if hub.label:
        columns["label"] = pc.cast(pick(table, hub.label, hub), pa.int64())
    if hub.label and hub.match_names:
        names = class_names(table.schema, hub.label)
        if sorted(names) != sorted(data.classes):
            raise ValueError(
                f"{hub.repo} on the hub does not name its classes as the catalogue does; add a copy of yours"
            )
        indices = np.array([data.classes.index(name) for name in names])
        columns["label"] = pa.array(indices[columns["label"].to_numpy()])
    ready = with_class_names(pa.table(columns), data.classes if hub.label else ())
    return ready.filter(pc.invert(pc.match_substring_regex(ready["text"], hub.skip))) if hub.skip else ready


def pick(table: pa.Table, path: str, hub: HubFiles) -> pa.ChunkedArray:
    """A column, or with a dot a field of one."""
    name, *fields = path.split(".")
    if name not in table.column_names:
        columns = ", ".join(table.column_names)
        raise ValueError(f"{hub.repo} on the hub has no column {name!r} any more but {columns}; add a copy of yours")
    return pc.struct_field(table[name], fields) if fields else table[name]


def resize_images(images: pa.ChunkedArray, data: DataSet) -> Iterator[bytes]:
    """Each image at the catalogue's size, every pixel the mean of those it covers."""
    assert data.shape is not None
    _, height, width = data.shape
    for encoded in images.to_pylist():
        out = io.BytesIO()
        image = Image.open(io.BytesIO(encoded)).convert("RGB")
        image.resize((width, height), Image.Resampling.BOX).save(out, "PNG")
        yield out.getvalue()
