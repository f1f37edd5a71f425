"""What older cells were made with that is made otherwise now, told from their records."""

from collections.abc import Collection, Iterator

from demur.study.table import Measured
from demur.tasks import TEXTS


def outdated_reasons(run: Measured, sets: Collection[str]) -> Iterator[str]:
    """Reasons why its values on these sets, or on means over them, are not those of today's convention."""
    fit = run.record.fit
    inference, data = (fit.get(name, {}) for name in ("inference", "data"))
    inference = inference.get("laplace", inference)
    tuned = inference.get("is") == "Laplace" and inference.get("prior_precision") is None
    if "svhn" in run.sets and run.data("svhn") is None and any(_counts_svhn(name) for name in sets):
        yield "SVHN's test images were cut by another rule than the published ones"
    if run.cell.convention == "corrected" and tuned and "criterion" not in inference:
        yield "Laplace's prior precision was tuned by the Brier score"
    if fit.get("likelihood", {}).get("is") == "exposure_shared_among_classes":
        yield "outlier exposure had the weight 0.5 / K"
    if run.cell.convention == "published" and run.cell.task in TEXTS and "tested" not in data:
        yield "OOD texts were read word by word, and Laplace had a network of its own"
    elif run.cell.convention == "published" and run.cell.task in TEXTS and "min_count" not in data:
        yield "words that occur once in training were unknown, which the published code knew"


def _counts_svhn(name: str) -> bool:
    return name == "svhn" or (name.startswith("mean") and "svhn" not in name)
