"""What determines a posterior, and the name of the folder that it lies in."""

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from typing import Any, Literal, Protocol

from torch import Tensor

from demur.inference import Inference
from demur.likelihoods import Likelihood
from demur.methods import Method
from demur.networks import Network
from demur.outliers.values import sets_of
from demur.tasks import Store, Task, shorten
from demur.tasks import load as load_task
from demur.training_data import Recipe

# of a field that came later: it is described only where it is not the default, so that folders keep their names
LATER = {"later": True}


class DataSource(Protocol):
    """A task that is not loaded yet: a frozen dataclass of all that determines it."""

    def __hash__(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def limit(self) -> int | None: ...

    @property
    def set_names(self) -> tuple[str, ...]:
        """The data sets of a store that training takes, by name."""
        ...

    def for_parts(self) -> "DataSource":
        """What the parts of a posterior are fitted to."""
        ...

    def load(self, store: Store) -> Task: ...


@dataclass(frozen=True)
class Data:
    """One of demur's tasks, and the options it is loaded with."""

    name: str
    outliers: str | None = None
    limit: int | None = None
    validation: Literal["train", "test"] = "train"
    inside: str = "normalised"
    outside: str = "normalised"
    augment: bool = True
    tested: str | None = field(default=None, metadata=LATER)  # how OOD texts are read, if not as `outside`
    min_count: int = field(default=2, metadata=LATER)  # how often a word must occur in training to be known

    @property
    def set_names(self) -> tuple[str, ...]:
        return (self.name, *sets_of(self.outliers))

    def for_parts(self) -> "Data":
        return replace(self, validation="train")  # only Laplace looks at validation data, so others share theirs

    def load(self, store: Store) -> Task:
        task = load_task(
            self.name,
            store=store,
            outliers=self.outliers,
            limit=self.limit,
            validation=self.validation,
            inside=self.inside,
            outside=self.outside,
            tested=self.tested,
            min_count=self.min_count,
        )
        return task if self.augment else replace(task, training=replace(task.training, augment=None))


@dataclass(frozen=True)
class OwnData:
    """A task that a function makes; with a `limit`, so many training inputs of it and a sixth as many others."""

    name: str
    make: Callable[[], Task]
    limit: int | None = None

    @property
    def set_names(self) -> tuple[str, ...]:
        return ()

    def for_parts(self) -> "OwnData":
        return self

    def load(self, store: Store) -> Task:
        task = self.make()
        if not isinstance(task, Task):
            raise ValueError(f"task {self.name!r} is made by {self.make!r}, which returns no Task but {task!r:.60}")
        return shorten(task, self.limit)


@dataclass(frozen=True)
class Fit:
    """All that determines a posterior, and its method, whose name is for people."""

    method: Method
    data: DataSource
    network: Network
    likelihood: Callable[[int], Likelihood]  # of the number of classes
    inference: Inference
    recipe: Recipe


Inputs = tuple[Tensor, Mapping[str, Tensor]]  # labels, none where there are no classes, and sets by name
Further = Callable[[DataSource, Store], Inputs]  # inputs to predict beside a task's own sets


def describe_fit(fit: Fit) -> dict[str, Any]:
    """As JSON; of the method its name alone, since what it consists of stands beside it."""
    described = {f.name: describe(getattr(fit, f.name)) for f in fields(fit) if f.name != "method"}
    return {"is": "Fit", "method": fit.method.name, **described}


def folder_name(fit: Fit) -> str:
    """Readable in front, and behind it the hash of all that determines the posterior."""
    determines = describe_fit(fit)
    method = determines.pop("method").replace(":", ".")  # a folder's name has no colon on Windows
    hashed = hashlib.sha256(json.dumps(determines, sort_keys=True).encode()).hexdigest()
    return f"{fit.data.name}-{method}-{fit.recipe.seed}-{hashed[:16]}"


def describe(value: Any) -> Any:
    """A value as JSON that determines it: dataclasses and functions by name, with all their arguments."""
    if is_dataclass(value) and not isinstance(value, type):
        described = (f for f in fields(value) if not (f.metadata == LATER and getattr(value, f.name) == f.default))
        return {"is": _name_of(type(value))} | {f.name: describe(getattr(value, f.name)) for f in described}
    if callable(value):
        called = value if isinstance(value, partial) else partial(value)
        defaults = {
            name: parameter.default
            for name, parameter in inspect.signature(called).parameters.items()
            if parameter.default is not parameter.empty
        }
        arguments = {name: describe(default) for name, default in (defaults | called.keywords).items()}
        given = {"arguments": describe(called.args)} if called.args else {}
        return {"is": _name_of(called.func)} | given | arguments
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if value is None or isinstance(value, str | int | float):
        return value
    raise ValueError(
        f"a study cannot tell {type(value).__name__} values apart ({value!r:.60}); give numbers, text, functions that "
        "have a name, or frozen dataclasses of these"
    )


def _name_of(named: Any) -> str:
    """demur's own by their name alone, others with the module that they are imported from."""
    name, module = getattr(named, "__qualname__", "<"), getattr(named, "__module__", "")
    if "<" in name:
        raise ValueError(
            f"{named!r:.60} has no name to import it by; define it at the top level of a module, "
            "so that workers can import it and cells can be told apart"
        )
    return named.__name__ if module.partition(".")[0] == "demur" else f"{module}:{name}"
