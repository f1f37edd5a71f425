"""What makes a task easier than it seems: shared inputs and classes, giveaways of sharpness and of typography."""

from dataclasses import dataclass

import torch

from demur.audit.duplicates import Duplicates as Duplicates
from demur.audit.duplicates import image_duplicates as image_duplicates
from demur.audit.duplicates import inputs as inputs
from demur.audit.duplicates import text_duplicates
from demur.audit.outliers import OutlierAudit as OutlierAudit
from demur.audit.outliers import audit_outliers as audit_outliers
from demur.audit.overlap import Overlap as Overlap
from demur.audit.overlap import class_overlap
from demur.audit.typography import Leak as Leak
from demur.audit.typography import leak_table, leaks, raw_features, token_features
from demur.data.store import Store
from demur.names import choose
from demur.outliers.sharpness import LEAK, Sharpness, sharpness, sharpness_table
from demur.outliers.values import SpectrumMatched, leaves, mix, natural, parse, sets_of, spectrum_matched
from demur.tasks.base import Task
from demur.tasks.text import TOKENIZERS, Vocabulary, load_split, ood_texts, training_and_validation


@dataclass(frozen=True)
class Audit:
    task: str
    outliers: str
    duplicates: tuple[Duplicates, ...]
    overlaps: tuple[Overlap, ...] = ()
    leaks: tuple[Leak, ...] = ()
    sharpness: tuple[Sharpness, ...] = ()

    def lines(self) -> list[str]:
        """The findings in sentences, and what has many numbers as a table before them."""
        lines = [f"{self.task}, trained with the outliers {self.outliers}", ""]
        lines += leak_table(self.leaks) + sharpness_table(self.sharpness)
        lines += [row.line() for row in self.duplicates]
        lines += [line for row in self.overlaps for line in row.lines()]
        lines += [leak.line() for leak in self.leaks if leak.flagged]
        if self.leaks and not any(leak.flagged for leak in self.leaks if leak.stage == "tokens"):
            lines.append(
                f"the network can tell no set from the inliers by one feature with an AUROC above {100 * LEAK:.0f}"
            )
        if any(row.set == "outliers" and row.auroc > LEAK for row in self.sharpness):
            line = "sharpness alone tells the training outliers from the inliers, and a network may learn little else"
            shown = parse(self.outliers)
            if self.overlaps and not any(isinstance(leaf, SpectrumMatched) for leaf in leaves(shown)):
                mixed = mix(shown, spectrum_matched(natural(self.overlaps[0].outliers)))
                line += f"; see whether it does better if some are as sharp as the inliers: --outliers {mixed}"
            lines.append(line)
        return lines


def audit(task: Task, store: Store, *, inside: str = "normalised") -> Audit:
    """Everything that can be found out about `task`, made from `store`, and the outliers that it is trained with.

    `inside` is the tokenizer that a text task's labelled sets were made with.
    """
    outliers = task.trained_with
    if task.training.train.x.dtype == torch.uint8:
        parts = [part for part in sets_of(outliers) if store.has(part, "train")]
        overlaps = tuple(class_overlap(task, store, part) for part in parts)
        return Audit(task.name, outliers, image_duplicates(task), overlaps, sharpness=sharpness(inputs(task)))
    if task.training.train.x.is_floating_point():
        raise ValueError(f"task {task.name!r} has neither images nor texts; there is nothing to audit in it")
    train_texts = training_and_validation(store, task.name)[0][0]
    if len(train_texts) != len(task.training.train):
        raise ValueError(
            f"task {task.name!r} has {len(task.training.train)} of {len(train_texts)} sentences; load it without limit"
        )
    raw = {"train": train_texts, "test": load_split(store, task.name, "test")[0], **ood_texts(store)}
    sources = [store.texts(part, "train")[0] for part in sets_of(outliers) if store.has(part, "train")]
    if sources:
        raw["outliers"] = [text for texts in sources for text in texts]
    vocabulary = Vocabulary.of(map(choose(TOKENIZERS, inside, "tokenizer"), train_texts))
    return Audit(
        task.name,
        outliers,
        text_duplicates(task),
        leaks=(*leaks("raw", raw_features(raw)), *leaks("tokens", token_features(inputs(task), vocabulary))),
    )
