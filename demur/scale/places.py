"""A path or a URL: a file system of Arrow's and a path in it."""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

KNOWN = "give a path, or a URL that begins with s3://, gs://, abfs://, hdfs:// or file://"


def is_url(named: str) -> bool:
    return "://" in named


@dataclass(frozen=True)
class Location:
    """`name` is what it is called in messages: without the keys that a URL can hold."""

    files: fs.FileSystem
    path: str
    name: str

    @property
    def is_local(self) -> bool:
        return isinstance(self.files, fs.LocalFileSystem)

    def within(self, other: "Location") -> bool:
        """Whether this is the other, or lies in it."""
        return self.files.equals(other.files) and f"{self.path}/".startswith(f"{other.path}/")


def locate(named: str) -> Location:
    if not is_url(named):
        return Location(fs.LocalFileSystem(), Path(named).resolve().as_posix(), named)
    scheme = urlsplit(named).scheme
    try:
        files, path = fs.FileSystem.from_uri(named)
    except (pa.ArrowException, OSError, ValueError) as error:
        # Arrow's own message would show the URL, and its keys
        raise ValueError(f"a URL of {scheme}:// cannot be opened ({type(error).__name__}); {KNOWN}") from None
    if isinstance(files, fs.LocalFileSystem):  # links are followed, as in a path
        path = Path(path).resolve().as_posix()
    return Location(files, path.rstrip("/"), f"{scheme}://{path}")
