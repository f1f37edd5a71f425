"""One trial of the fuzz: a command, what of its files is damaged, how it is called, and what it said."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from experiments.damage import Damage
from experiments.simple_readers import Read, read_simply
from experiments.whole import INPUTS, KINDS, PHOTOS


@dataclass(frozen=True)
class Case:
    """A command, what of its files is damaged and how, and by which of the whole files it is given."""

    command: str
    what: str
    how: str
    damaged: str
    damage: Damage


@dataclass(frozen=True)
class Trial:
    """The folder of a run, what is given there, and where the whole things are; then how it ended."""

    folder: Path
    whole: Path
    given: Path
    case: Case
    code: int = 0
    said: str = ""
    printed: str = ""

    @property
    def out(self) -> Path:
        suffix = Path(self.case.damaged).suffix if self.case.command == "outliers" else ""
        of_outliers = {".csv": ".csv", ".npz": ".csv", ".jsonl": ".txt", ".txt": ".txt"}.get(suffix, "")
        return self.folder / ("out.csv" if self.case.command == "predict" else f"out{of_outliers}")

    @property
    def outs(self) -> set[Path]:
        """All that may be written."""
        return {self.folder / name for name in (self.out.name, "out.onnx", "out.html")}


Arguments = Callable[[Trial], tuple[object, ...]]
Judge = Callable[[Trial], bool]


def is_mixed(trial: Trial) -> bool:
    return trial.case.damaged.split(".")[0] == "mixed"


def whole_model(trial: Trial) -> Path:
    """Of the damaged model, or for the damaged input."""
    name = trial.case.damaged
    return trial.whole / (name.removesuffix(".demur") if "model" in trial.case.what else KINDS[name])


def of_kind(trial: Trial) -> Path:
    """The whole model for the damaged input, or the damaged one."""
    return trial.given if "model" in trial.case.what else whole_model(trial)


def input_for(trial: Trial) -> Path:
    """The damaged input, or a whole one for the damaged model."""
    return trial.whole / INPUTS[whole_model(trial).name] if "model" in trial.case.what else trial.given


def read_for(trial: Trial, path: Path) -> Read:
    """As a second reader reads it for that model."""
    shape = PHOTOS if whole_model(trial).name == "vit" else (1, 12, 12)
    return read_simply(path, mixed=is_mixed(trial), shape=shape)


def whole_read(path: Path, mixed: bool) -> Read:
    """Of an input in which nothing is wrong."""
    read = read_simply(path, mixed=mixed)
    assert not read.wrong
    return read
