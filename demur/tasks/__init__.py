"""What is learned, and what it is tested against."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from demur.names import choose
from demur.tasks.base import Recipe as Recipe
from demur.tasks.base import Split as Split
from demur.tasks.base import Task as Task
from demur.tasks.embedded import blobs, digits

TASKS: Mapping[str, Callable[[], Task]] = MappingProxyType({"digits": digits, "blobs": blobs})


def load(name: str) -> Task:
    """The task of that name, on the CPU."""
    return choose(TASKS, name, "task")()
