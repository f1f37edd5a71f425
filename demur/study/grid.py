"""Any grid of tasks, methods and training seeds: its cells, and what each of them is fitted with."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from demur.inference import Inference
from demur.methods import Method, parse_method
from demur.names import choose, choose_or_import, is_import_path
from demur.networks import Network
from demur.study.fits import Data, DataSource, Fit, Further, OwnData, describe
from demur.tasks import TASKS, Store, Task, default_outliers
from demur.training_data import Recipe

AS_IT_IS = "corrected"  # the convention that changes nothing
USUAL = "usual"  # the task's own outliers
WORD = re.compile(r"\w[\w.-]*")  # what becomes part of a folder's name
FILES_OF_A_CELL = ("posterior", "predictions", "checkpoint")


def can_be_further(kind: str) -> bool:
    """Whether further inputs may be called so: their predictions lie in a file of that name beside the others."""
    return re.fullmatch(r"\w+", kind) is not None and kind.lower() not in FILES_OF_A_CELL


@dataclass(frozen=True)
class Setting:
    """What a method is fitted with; `inference` replaces the method's own where a task needs another."""

    network: Network
    recipe: Recipe = field(default_factory=Recipe)
    inference: Inference | None = None


# by the names of an inference and a likelihood, or of an inference alone; () is for all others
Settings = Mapping[tuple[str, ...], Setting]


def setting_of(method: Method, settings: Settings) -> Setting:
    names = method.inference_name, method.likelihood_name
    return next(settings[key] for key in (names, names[:1], ()) if key in settings)


@dataclass(frozen=True)
class Cell:
    """One entry of a table: a method on a task, under a convention. None means the task's own.

    `further` names inputs to predict beside the task's own sets, each kind once and sorted; the network is the same
    without.
    """

    task: str
    method: str
    seed: int = 0
    convention: str = AS_IT_IS
    outliers: str | None = None
    epochs: int | None = None
    limit: int | None = None
    further: tuple[str, ...] = ()


@dataclass(frozen=True)
class Study:
    """Cells, and what to make of each: all that an engine needs to know.

    `further` has the functions that make further inputs, by kind. `scores` names those whose values cells keep, beside
    the ones that can be computed from stored predictions.
    """

    name: str
    cells: tuple[Cell, ...]
    resolve: Callable[[Cell, Store], Fit]
    further: Mapping[str, Further] = field(default_factory=dict)
    scores: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for kind in self.further:
            if not can_be_further(kind):
                taken = ", ".join(FILES_OF_A_CELL)
                raise ValueError(f"further inputs {kind!r} cannot name a file; use one word, but none of {taken}")

    def of(self, cells: Iterable[Cell]) -> "Study":
        """The same, of other cells."""
        return replace(self, cells=tuple(cells))


def fit_of(cell: Cell, method: Method, given: Setting, data: DataSource) -> Fit:
    recipe = replace(given.recipe, seed=cell.seed, epochs=cell.epochs or given.recipe.epochs)
    return Fit(method, data, given.network, method.likelihood, given.inference or method.inference, recipe)


def data_of_task(cell: Cell, method: Method, store: Store) -> Data:
    """One of demur's tasks, with the outliers that the store has."""
    outliers = cell.outliers
    if not method.uses_outliers:
        outliers = None  # where none are looked at, the network is the same whatever they are
    elif outliers is None:
        outliers = default_outliers(cell.task, store)
    return Data(cell.task, outliers, cell.limit)


# a grid of one's own ------------------------------------------------------------------------------------------------

MakeTask = Callable[[], Task]
OneSetting = Network | Setting | Settings


def study(
    tasks: Mapping[str, MakeTask] | Sequence[str],
    networks: OneSetting | Mapping[str, OneSetting],
    methods: Sequence[str | Method],
    *,
    recipe: Recipe | None = None,
    seeds: int = 1,
    name: str = "study",
) -> Study:
    """Every method on every task, with training seeds from 0.

    `tasks` are functions without arguments that make a `Task`, by name, or names of demur's own tasks. `networks` is a
    network for all tasks, or one for each by its name; a `Setting` is a network with a recipe of its own. To compare
    networks on one task, name the task twice. Functions are defined at the top level of a module, since cells are named
    by them and other processes import them.
    """
    if seeds < 1:
        raise ValueError(f"seeds {seeds} is not positive; a study needs at least 1 training seed")
    if not tasks or not methods:
        raise ValueError(f"a study of {len(tasks)} tasks and {len(methods)} methods has no cells; name some")
    named_tasks = tasks if isinstance(tasks, Mapping) else dict(_task_named(task) for task in tasks)
    for task in named_tasks:
        if not WORD.fullmatch(task):
            raise ValueError(f"task {task!r} cannot name a folder; use letters, digits, '_', '-' and '.'")
    parsed = [parse_method(method) if isinstance(method, str) else method for method in methods]
    named = {method.name: method for method in parsed}
    if len(named) < len(parsed):
        raise ValueError(
            f"two of the methods {', '.join(method.name for method in parsed)} have one name; name them apart"
        )
    by_task = {task: _settings(networks, task, recipe or Recipe()) for task in named_tasks}
    describe([list(named_tasks.values()), [list(settings.values()) for settings in by_task.values()]])  # all have names
    cells = tuple(Cell(task, method, seed) for seed in range(seeds) for task in named_tasks for method in named)
    return Study(name, cells, partial(_resolve, named_tasks, by_task, named))


def _task_named(task: str) -> tuple[str, MakeTask | None]:
    """None where demur's own `load` makes it."""
    make = choose_or_import(TASKS, task, "task")
    return (task.rpartition(":")[2], make) if is_import_path(task) else (task, None)


def _settings(networks: Any, task: str, recipe: Recipe) -> Settings:
    given = networks
    if isinstance(networks, Mapping) and all(isinstance(key, str) for key in networks):
        given = choose(networks, task, "task with a network")
    if isinstance(given, Mapping):
        return given
    return {(): given if isinstance(given, Setting) else Setting(given, recipe)}


def _resolve(
    tasks: Mapping[str, MakeTask | None],
    settings: Mapping[str, Settings],
    methods: Mapping[str, Method],
    cell: Cell,
    store: Store,
) -> Fit:
    method, make = choose(methods, cell.method, "method"), choose(tasks, cell.task, "task")
    data = data_of_task(cell, method, store) if make is None else OwnData(cell.task, make, cell.limit)
    return fit_of(cell, method, setting_of(method, settings[cell.task]), data)


def select(
    cells: Sequence[Cell],
    study: str,
    *,
    tasks: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    convention: str | None = None,
    outliers: Sequence[str] | None = None,
    seeds: int | None = None,
    epochs: int | None = None,
    limit: int | None = None,
) -> list[Cell]:
    """Some cells of a study, or all; for as many training seeds as it has, or so many.

    `usual` are a task's own outliers.
    """
    options = {
        "task": (tasks, [cell.task for cell in cells]),
        "method": (methods, [cell.method for cell in cells]),
        "convention": ([convention] if convention else [], [cell.convention for cell in cells]),
        "outliers": (outliers, [cell.outliers or USUAL for cell in cells]),
    }
    for kind, (names, known) in options.items():
        for each in names or ():
            choose(dict.fromkeys(known), each, f"{kind} of study {study!r}")
    selected = [
        cell
        for cell in cells
        if (not tasks or cell.task in tasks)
        and (not methods or cell.method in methods)
        and convention in (None, cell.convention)
        and (not outliers or (cell.outliers or USUAL) in outliers)
    ]
    if not selected:
        raise ValueError(
            f"study {study!r} has no cell of these tasks, methods, convention and outliers; see them with --dry-run"
        )
    if seeds is not None:
        bare = dict.fromkeys(replace(cell, seed=0) for cell in selected)
        selected = [replace(cell, seed=seed) for seed in range(seeds) for cell in bare]
    return [replace(cell, epochs=epochs, limit=limit) for cell in selected]
