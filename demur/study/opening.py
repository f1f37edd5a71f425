"""A study that somebody wrote down: in a Python file, or in a module."""

import sys
from pathlib import Path

from demur.names import import_module, import_named, is_import_path
from demur.study.grid import Study


def is_own(name: str) -> bool:
    """Whether it is the name of a file, or of something in a module."""
    return _file_in(name) is not None or is_import_path(name)


def open_study(name: str) -> Study:
    """`grids/mine.py`, `grids/mine.py:large` where there are several, or `mypackage.mymodule:large`."""
    file = _file_in(name)
    if file is None:
        named = import_named(name, "study")
        if not isinstance(named, Study):
            raise ValueError(f"{name!r} is not a study but {named!r:.60}; make one with demur.study.study(...)")
        return named
    path, attribute = file
    if not path.is_file():
        raise ValueError(f"the file {path} does not exist; name a Python file with a study in it")
    if not path.stem.isidentifier():
        raise ValueError(
            f"{path} cannot be imported, because of its name; rename it, as {path.stem.replace('-', '_')}.py"
        )
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # for good: the workers are told of it, and import what the study names
    module = import_module(path.stem, f"study {name!r}")
    if module.__file__ is None or not Path(module.__file__).samefile(path):
        raise ValueError(f"{path} has the name of a module that is installed, {module.__file__}; rename it")
    studies = {each: value for each, value in vars(module).items() if isinstance(value, Study)}
    if (attribute and attribute not in studies) or not studies:
        which = f"called {attribute!r}" if attribute else "in it"
        raise ValueError(f"{path} has no study {which}; write there: {attribute or 'grid'} = demur.study.study(...)")
    if not attribute and len({id(value) for value in studies.values()}) > 1:
        raise ValueError(f"{path} has several studies; name one, as {path}:{next(iter(studies))}")
    return studies[attribute or next(iter(studies))]


def _file_in(name: str) -> tuple[Path, str] | None:
    """A colon may also follow the letter of a drive."""
    if name.endswith(".py"):
        return Path(name), ""
    path, _, attribute = name.rpartition(":")
    return (Path(path), attribute) if path.endswith(".py") else None
