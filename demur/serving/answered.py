"""What `demur predict` wrote, read back for the monitor."""

import csv
import itertools
import math
from collections.abc import Iterator
from pathlib import Path

from demur.classifier.decision import INVALID, UNKNOWN, UNSURE

NEEDED = ("decision", "label", "outlier_score")
Answered = tuple[list[float | None], list[bool], list[str]]  # scores, whether abstained on, labels


def read_answers(path: Path, at_a_time: int = 4096) -> Iterator[Answered]:
    """Some answers at a time, in the order of the file; inputs that were invalid are left out."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file, strict=True)
            missing = [name for name in NEEDED if name not in (rows.fieldnames or ())]
            if missing:
                raise ValueError(f"{path} has no column {missing[0]!r}; give a csv that demur predict wrote")
            while part := list(itertools.islice(rows, at_a_time)):
                if any(None in row or None in row.values() for row in part):  # more or fewer than there are columns
                    raise ValueError(
                        f"{path} has rows of more or fewer cells than columns; give it as demur predict wrote it"
                    )
                valid = [row for row in part if row["decision"] != INVALID]
                # a quote that is not closed would hide the rows up to the next
                odd = next((row for row in valid if row["decision"] not in (row["label"], UNSURE, UNKNOWN)), None)
                if odd is not None:
                    raise ValueError(
                        f"{path} has the decision {odd['decision']!r} beside the label {odd['label']!r}, which is no "
                        "answer; is a quote not closed? give it as demur predict wrote it"
                    )
                yield (
                    [_score(row["outlier_score"], path) for row in valid],
                    [row["decision"] in (UNSURE, UNKNOWN) for row in valid],
                    [str(row["label"]) for row in valid],
                )
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read as csv ({error}); give one that demur predict wrote") from None


def _score(text: str | None, path: Path) -> float | None:
    try:
        score = float(text or "")
    except ValueError:
        raise ValueError(f"{path} has {text!r} as an outlier score, which is no number; write it anew") from None
    return None if math.isnan(score) else score
