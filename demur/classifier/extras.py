"""Packages that only some people need."""

import importlib
import importlib.util
from typing import Any


def import_extra(module: str, extra: str) -> Any:
    """The module, or a sentence that says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if importlib.util.find_spec(module.partition(".")[0]) is not None:
            raise ValueError(f"the package {module} is installed, but does not import ({error}); mend it") from None
        raise ValueError(
            f"the package {module} is needed, and is not installed; install it with: pip install 'demur[{extra}]'"
        ) from None
