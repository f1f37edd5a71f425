"""The model file: a folder, or one zip whose name ends in .demur, of three to five parts.

    manifest.json           the format's version, and every other part's length and SHA-256
    model.json              what is not a tensor: classes, likelihood, preprocessing, thresholds, metrics, versions
    posterior.safetensors   weights and posterior
    backbone.safetensors    the weights of a frozen backbone, where there is one
    score.safetensors       what the score learned that is abstained by, where it learns

Nothing in it is code, and reading runs none. Every part is checked against the manifest before it is used, so damage is
noticed; a hash is no signature, so whoever can rewrite the whole file can make a valid one. It is written whole or not
at all.
"""

import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from demur.files import hash_file
from demur.posterior import Posterior
from demur.posterior_file import save as save_posterior

FORMAT = (1, 5)  # a new minor version adds, and older ones are read; a new major version breaks
MANIFEST, MODEL, POSTERIOR = "manifest.json", "model.json", "posterior.safetensors"
PARTS = (MODEL, POSTERIOR)
BACKBONE, SCORE = "backbone.safetensors", "score.safetensors"
LONGEST_MANIFEST, LONGEST_MODEL = 2**16, 2**26  # bytes
SUFFIX = ".demur"


def _are_parts(names: Iterable[str]) -> bool:
    """Whether these are a model's, each once."""
    ordered = sorted(names)
    more = [name for name in (BACKBONE, SCORE) if name in ordered]
    return ordered == sorted((MANIFEST, *PARTS, *more))


def check_target(path: str | Path) -> None:
    """Refuse a path that holds anything but a model, or that no model can be written to."""
    path = Path(path)
    if os.path.ismount(path) or (path.is_dir() and path.samefile(Path.cwd())):
        raise ValueError(f"{path} is a mount point or the current folder, which cannot be replaced; name one inside it")
    if path.is_dir():
        names = sorted(entry.name for entry in path.iterdir())
        if names and not (_are_parts(names) and _is_manifest(path / MANIFEST)):
            raise ValueError(f"{path} is a folder of something else; give a new name, or one that ends in {SUFFIX}")
    elif path.exists() and not (path.suffix == SUFFIX and _is_zipped_model(path)):
        raise ValueError(f"{path} is a file that is no model; give a new name, or remove it first")
    above = next(parent for parent in Path(os.path.realpath(path)).parents if parent.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise ValueError(f"{path} cannot be written: {above} is no folder that you may write to; give another name")


def _is_manifest(file: Path) -> bool:
    try:
        return _version(json.loads(file.read_bytes()[: LONGEST_MANIFEST + 1])["demur"]) is not None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return False


def _is_zipped_model(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return _are_parts(archive.namelist())
    except (zipfile.BadZipFile, OSError):
        return False


def write_model(
    path: str | Path,
    model: Mapping[str, Any],
    posterior: Posterior,
    backbone: Mapping[str, Tensor] | None = None,
    score: Mapping[str, Tensor] | None = None,
) -> None:
    """A folder, or a zip if the name ends in .demur. A model that is there stays until the new one is whole."""
    check_target(path)
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as beside:
        folder = Path(beside) / "new"
        folder.mkdir()
        (folder / MODEL).write_text(json.dumps(model, indent=1, allow_nan=False), "utf-8")
        save_posterior(posterior, folder / POSTERIOR)
        more = {name: part for name, part in ((BACKBONE, backbone), (SCORE, score)) if part is not None}
        for name, part in more.items():
            save_file({key: value.cpu().contiguous() for key, value in part.items()}, folder / name)
        present = (*PARTS, *more)
        for name in present[1:]:
            shutil.copymode(folder / MODEL, folder / name)  # which is written for its owner alone
        parts = {
            name: {"bytes": (folder / name).stat().st_size, "sha256": hash_file(folder / name)} for name in present
        }
        version = ".".join(map(str, FORMAT))
        (folder / MANIFEST).write_text(json.dumps({"demur": version, "parts": parts}, indent=1), "utf-8")
        if path.suffix == SUFFIX and not path.is_dir():
            zipped = Path(beside) / "zipped"
            with zipfile.ZipFile(zipped, "w", zipfile.ZIP_STORED) as archive:
                for name in (MANIFEST, *present):
                    archive.write(folder / name, name)
            os.replace(zipped, path)
        elif path.exists():
            _swap(folder, path, Path(beside) / "old")
        else:
            os.replace(folder, path)


def _swap(new: Path, path: Path, old: Path) -> None:
    try:
        os.replace(path, old)
        os.replace(new, path)
    except BaseException:  # an interrupt, too: the old one goes back
        if old.exists():
            os.replace(old, path)
        raise


@contextmanager
def read_model(path: str | Path) -> Iterator[tuple[dict[str, Any], Path, Path]]:
    """What model.json says, and where posterior and backbone lie while the block lasts; every part has been checked.

    There need not be a backbone. What a score learned lies beside them.
    """
    path = Path(path)
    if path.is_dir():
        before = _bytes_of(path / MANIFEST)
        yield _check_parts(path, path), path / POSTERIOR, path / BACKBONE
        if _bytes_of(path / MANIFEST) != before:
            raise ValueError(f"{path} was replaced by another model while it was read; load it again")
    elif path.is_file():
        with tempfile.TemporaryDirectory() as folder:
            _unzip(path, Path(folder))
            yield _check_parts(Path(folder), path), Path(folder) / POSTERIOR, Path(folder) / BACKBONE
    else:
        raise ValueError(f"model {path} does not exist; give the folder or the {SUFFIX} file that was saved")


def _unzip(path: Path, folder: Path) -> None:
    """The parts, into a folder of our own, under names of our own."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            if not _are_parts(entry.filename for entry in entries):
                raise _damage_error(path, f"its parts are not {MANIFEST}, {' and '.join(PARTS)}")
            for entry in entries:
                # stored, not compressed: what comes out is never more than what went in
                if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > path.stat().st_size:
                    raise _damage_error(path, f"{entry.filename} is compressed")
                with archive.open(entry) as source, (folder / entry.filename).open("wb") as target:
                    shutil.copyfileobj(source, target)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, UnicodeDecodeError, OSError) as error:
        raise _damage_error(path, str(error)) from None


def _check_parts(folder: Path, path: Path) -> dict[str, Any]:
    present = sorted(part.name for part in folder.iterdir())
    if not _are_parts(present):
        raise _damage_error(path, f"its parts are not {MANIFEST}, {' and '.join(PARTS)}")
    if any(not (folder / name).is_file() or (folder / name).is_symlink() for name in present):
        raise _damage_error(path, "a part is not a plain file")
    manifest = _read_json(folder / MANIFEST, LONGEST_MANIFEST, path)
    if set(manifest) != {"demur", "parts"} or not isinstance(manifest["parts"], dict):
        raise _damage_error(path, f"{MANIFEST} is not a manifest")
    _check_version(manifest["demur"], path)
    if {MANIFEST, *manifest["parts"]} != set(present):
        raise _damage_error(path, f"{MANIFEST} lists other parts")
    for name in manifest["parts"]:
        if manifest["parts"][name] != _describe_part(folder / name):
            raise _damage_error(path, f"{name} is not what was saved")
    return _read_json(folder / MODEL, LONGEST_MODEL, path)


def _describe_part(file: Path) -> dict[str, Any]:
    """As the manifest has it."""
    return {"bytes": file.stat().st_size, "sha256": hash_file(file)}


def _version(text: Any) -> tuple[int, int] | None:
    try:
        major, minor = map(int, text.split("."))
    except (AttributeError, ValueError):
        return None
    return major, minor


def _check_version(text: Any, path: Path) -> None:
    version = _version(text)
    if version is None:
        raise _damage_error(path, f"its format is {text!r}")
    if version[0] != FORMAT[0] or version[1] > FORMAT[1]:
        reads = f"{FORMAT[0]}.0 to {FORMAT[0]}.{FORMAT[1]}"
        raise ValueError(f"{path} has format {text}, this demur reads {reads}; use the demur that saved it")


def _read_json(file: Path, longest: int, path: Path) -> dict[str, Any]:
    if file.stat().st_size > longest:
        raise _damage_error(path, f"{file.name} has more than {longest} bytes")
    try:
        value = json.loads(file.read_bytes().decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _damage_error(path, f"{file.name}: {error}") from None
    if not isinstance(value, dict):
        raise _damage_error(path, f"{file.name} is not an object")
    return value


def _bytes_of(file: Path) -> bytes | None:
    return file.read_bytes()[: LONGEST_MANIFEST + 1] if file.is_file() else None


def _damage_error(path: Path, why: str) -> ValueError:
    return ValueError(f"{path} is not a model saved by demur, or it is damaged ({why}); save it anew")
