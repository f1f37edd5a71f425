"""Outlier classes that are also classes of the task: a network shown them learns that a cat is no cat."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path


def overlapping_classes(
    outlier_classes: Sequence[str], task_classes: Sequence[str], known: Mapping[str, Sequence[str]] | None = None
) -> list[int]:
    """The indices of the outlier classes that show a class of the task.

    A name may list synonyms, separated by commas. `known` gives, for a class of the task, the outlier classes that
    somebody found to show it, by the first of their synonyms; where it is given, it alone decides. Otherwise words do:
    two names overlap where one ends in the other ("Egyptian cat", "bullfrog"). Words do not know that a poodle is a dog
    or a car an automobile, and take a ladybird for a bird: a class too many left out costs little, one too few more.
    """
    if known is not None:
        listed = {synonyms(name)[0] for names in known.values() for name in names}
        return [index for index, name in enumerate(outlier_classes) if synonyms(name)[0] in listed]
    words = {word for name in task_classes for word in synonyms(name)}
    return [
        index
        for index, name in enumerate(outlier_classes)
        if any(same(word, other) for word in synonyms(name) for other in words)
    ]


def synonyms(name: str) -> list[str]:
    """The names in "tabby, tabby cat" or "T-shirt/top", in lower case and single words apart by one space."""
    return [" ".join(re.findall(r"[^\W_]+", part.lower())) for part in re.split("[,/]", name)]


def same(a: str, b: str) -> bool:
    # a digit or letter is the end of too many words
    return a == b or (min(len(a), len(b)) > 2 and (a.endswith(b) or b.endswith(a)))


def read_class_names(folder: Path) -> list[str]:
    """The names in the folder's classes.json (`wnids_sorted`, the order of labels, and `words`); empty without one."""
    file = folder / "classes.json"
    if not file.exists():
        return []
    content = json.loads(file.read_text("utf-8"))
    return [content["words"][wnid] for wnid in content["wnids_sorted"]]


def read_known_overlap(folder: Path, task: str) -> dict[str, list[str]] | None:
    """The clear cases of the folder's TASK_overlap.json, by class of the task; None where nobody made such a list."""
    file = folder / f"{task}_overlap.json"
    if not file.exists():
        return None
    clear = json.loads(file.read_text("utf-8"))["clear"]
    return {name: [entry["name"] for entry in entries] for name, entries in clear.items()}
