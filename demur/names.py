"""Looking things up by name, with an error that helps."""

import difflib
import importlib
import sys
import traceback
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

T = TypeVar("T")

# what model files and tables of results say that were written under other names, and what it is called now
OLD_NAMES = {
    "rows": "tables",
    "pictures": "images",
    "levelled": "spectrum_matched",
    "keep": "coverage",
    "kept": "coverage",
    "kept_by_class": "coverage_by_class",
    "num_draws": "num_samples",
}


def current(name: str) -> str:
    """The name of today for one that may be an older file's."""
    return OLD_NAMES.get(name, name)


def with_current_names(saved: Mapping[str, T]) -> dict[str, T]:
    return {current(name): value for name, value in saved.items()}


def choose(table: Mapping[str, T], name: str, kind: str) -> T:
    """table[name]; an unknown name raises a ValueError that names the nearest known one."""
    if isinstance(name, str) and name in table:
        return table[name]
    near = difflib.get_close_matches(str(name).lower(), table, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(f"unknown {kind} {name!r}; {hint}known: {', '.join(table)}")


def choose_or_import(table: Mapping[str, T], name: str, kind: str) -> T:
    """table[name], or what `mypackage.mymodule:name` is.

    Only for names that whoever runs the program wrote, never for those in a file of somebody else's: importing a module
    runs it.
    """
    if name in table or not is_import_path(name):
        return choose(table, name, kind)
    imported: T = import_named(name, kind)
    return imported


def is_import_path(name: str) -> bool:
    """Whether it is written as `mypackage.mymodule:name`, or has such a name in it; nothing is imported."""
    return isinstance(name, str) and ":" in name


def import_named(name: str, kind: str) -> Any:
    """What a module calls so: `mypackage.mymodule:name`, the module on sys.path or in the current folder."""
    module_name, _, attribute = name.partition(":")
    if not (all(part.isidentifier() for part in module_name.split(".")) and attribute.isidentifier()):
        raise ValueError(f"{kind} {name!r} is not written as mypackage.mymodule:name")
    module = import_module(module_name, f"{kind} {name!r}")
    if not hasattr(module, attribute):
        public = [known for known in vars(module) if not known.startswith("_")]
        near = difflib.get_close_matches(attribute, public, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else "define it there"
        raise ValueError(f"unknown {kind} {name!r}: {module_name} has no {attribute!r}; {hint}")
    return getattr(module, attribute)


def import_module(name: str, wanted: str) -> ModuleType:
    """The module; what goes wrong in it is said in a sentence, with the place."""
    top, here = name.partition(".")[0], str(Path.cwd())
    if top not in sys.modules and find_spec(top) is None:
        if not any((Path(here) / module).exists() for module in (top, f"{top}.py")):
            raise ValueError(f"{wanted} needs the module {top!r}, which is neither installed nor in {here}")
        sys.path.append(here)  # for good: who pickles what is in the module must find it again
    try:
        return importlib.import_module(name)
    except Exception as error:  # whatever a user's module may raise
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = "" if "importlib" in place.filename else f", {place.filename} line {place.lineno}"
        raise ValueError(f"{wanted} cannot be imported ({type(error).__name__}: {error}{where})") from error
