"""Classifiers that know when they do not know: Bayesian neural networks that have been shown outliers.

The public names are those of __init__.pyi, each imported when it is first used: `demur --help` need not wait for torch.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    alias.asname: (statement.module, alias.name)
    for statement in ast.parse(Path(__file__).with_suffix(".pyi").read_text("utf-8")).body
    if isinstance(statement, ast.ImportFrom)
    for alias in statement.names
}
__all__ = sorted(name for name in _HOMES if name)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'demur' has no attribute {name!r}")
    module, original = _HOMES[name]
    return getattr(import_module(str(module)), original)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
