"""Classes of the training outliers that are also the task's."""

from dataclasses import dataclass

import torch

from demur.data.store import Store
from demur.outliers.overlap import overlapping_classes, read_class_names, read_known_overlap
from demur.tasks.base import Task


@dataclass(frozen=True)
class Overlap:
    """Outlier classes that are also the task's. `listed`: by a list somebody checked, not by words."""

    outliers: str
    classes: tuple[str, ...]
    num_classes: int
    shown: int
    count: int
    listed: bool

    def lines(self) -> list[str]:
        if not self.num_classes:
            return [f"the classes of {self.outliers} have no names here: whether they are the task's cannot be known"]
        lines = [
            f"{len(self.classes)} of {self.num_classes} classes of {self.outliers} are also the task's, "
            f"{self.shown:,} of {self.count:,} training outliers: {', '.join(self.classes) or 'none'}"
        ]
        if self.shown:
            lines.append("the network is taught to doubt these inliers; leave such classes out with --exclude-overlap")
        if not self.listed:
            lines.append("found by words, which do not know that a poodle is a dog: there may be more")
        return lines


def class_overlap(task: Task, store: Store, outliers: str) -> Overlap:
    names = read_class_names(store.root / outliers) or store.classes(outliers, "train")
    known = read_known_overlap(store.root / outliers, task.name)
    shared = overlapping_classes(names, task.classes, known)
    images, labels = store.images(outliers, "train")
    shown = 0 if labels is None else int(torch.isin(labels, torch.tensor(shared, dtype=torch.long)).sum())
    first_names = tuple(names[index].split(",")[0] for index in shared)
    return Overlap(outliers, first_names, len(names), shown, len(images), known is not None)
