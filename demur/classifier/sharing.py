"""A model on the Hugging Face hub: one model file, as `save` writes it, and a model card. Nothing in it is code.

hf:me/name            the newest commit
hf:me/name@REVISION   a commit, a tag or a branch; only a commit's hash always names the same bytes
"""

import hashlib
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demur.classifier.card import model_card
from demur.classifier.extras import import_extra
from demur.errors import first_line
from demur.files import hash_file

if TYPE_CHECKING:
    from demur.classifier.estimator import Classifier

PREFIX, FILE, CARD = "hf:", "model.demur", "README.md"
NAME = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+?)(@(?P<revision>[\w./-]+))?", re.ASCII)
TIMEOUT = 30.0  # seconds without an answer


def push_model(model: "Classifier", repo: str, private: bool, notes: str, endpoint: str | None = None) -> str:
    """Upload file and card as one commit; the name by which exactly this model is loaded."""
    if NAME.fullmatch(repo) is None or "@" in repo:
        raise ValueError(f"repo {repo!r} is no name on the hub; give such as 'me/name'")
    hub, errors = import_extra("huggingface_hub", "hub"), import_extra("huggingface_hub.errors", "hub")
    api = hub.HfApi(endpoint=endpoint)
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / FILE)
        card = model_card(model, repo, notes).encode()
        operations = [
            hub.CommitOperationAdd(FILE, (Path(folder) / FILE).read_bytes()),
            hub.CommitOperationAdd(CARD, card),
        ]
        try:
            api.create_repo(repo, private=private, exist_ok=True)
            done = api.create_commit(repo, operations, commit_message="Upload a model of demur")
        except (errors.HTTPError, OSError) as error:
            raise ValueError(
                f"{repo} could not be written on the hub ({first_line(error)}); check its name and your token"
            ) from error
    return f"{PREFIX}{repo}@{done.oid}"


def fetch_model(named: str, endpoint: str | None = None) -> tuple[Path, str]:
    """The file of a model on the hub, in the hub's cache on this machine, and its name with the commit in it."""
    parsed = NAME.fullmatch(named.removeprefix(PREFIX))
    if parsed is None:
        raise ValueError(f"model {named!r} is no name on the hub; give hf:me/name or hf:me/name@REVISION")
    hub, errors = import_extra("huggingface_hub", "hub"), import_extra("huggingface_hub.errors", "hub")
    repo = parsed["repo"]
    try:
        info = hub.HfApi(endpoint=endpoint).model_info(
            repo, revision=parsed["revision"], files_metadata=True, timeout=TIMEOUT
        )
        stored = next((file for file in info.siblings or () if file.rfilename == FILE), None)
        if stored is None:
            raise ValueError(f"{repo} on the hub has no {FILE}; give a model that push_to_hub wrote")
        file = Path(hub.hf_hub_download(repo, FILE, revision=info.sha, endpoint=endpoint))
    except (errors.HTTPError, OSError) as error:
        raise ValueError(f"{named} could not be fetched from the hub ({first_line(error)}); try again later") from error
    _check_hash(file, stored, named)
    return file, f"{PREFIX}{repo}@{info.sha}"


def _check_hash(file: Path, stored: Any, named: str) -> None:
    """As the hub describes it: by SHA-256, or as git does where it keeps the file itself. The model file's own hashes
    are checked when it is read."""
    by_git = stored.lfs is None
    if (hash_by_git(file) if by_git else hash_file(file)) != (stored.blob_id if by_git else stored.lfs.sha256):
        raise ValueError(f"{named} is other than the hub describes it; remove {file}, and load it again")


def hash_by_git(file: Path) -> str:
    with file.open("rb") as stream:
        head = b"blob %d\0" % file.stat().st_size
        return hashlib.file_digest(stream, lambda: hashlib.sha1(head)).hexdigest()
