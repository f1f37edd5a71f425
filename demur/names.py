"""Looking things up by name, with an error that helps."""

import difflib
from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def choose(table: Mapping[str, T], name: str, kind: str) -> T:
    """table[name]; an unknown name raises a ValueError that names the nearest known one."""
    if name in table:
        return table[name]
    near = difflib.get_close_matches(name.lower(), table, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(f"unknown {kind} {name!r}; {hint}known: {', '.join(table)}")
