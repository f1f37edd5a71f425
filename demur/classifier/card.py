"""A model card: what the report of a fit says, in Markdown."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import demur

if TYPE_CHECKING:
    from demur.classifier.estimator import Classifier

HEAD = """---
library_name: demur
tags: [demur, out-of-distribution-detection, selective-classification, uncertainty]
---
"""
LIMITS = """## Limits

- Coverage is a promise about inputs like the training data, on average over calibration sets. Shifted inputs have none.
- Outliers unlike those that were held out can be accepted. The fraction above says nothing about them.
- The values above come from held-out parts of the training data, not from a test set.
- A hash is no signature: load a model only from people whom you trust, and name the commit.
"""


def model_card(model: "Classifier", repo: str, notes: str = "") -> str:
    """Data, classes, coverage, outliers and limits; `notes` of yours come first."""
    rows = "\n".join(f"| {name} | {value} |" for name, value in _rows(model))
    classes = ", ".join(f"`{_plain(name)}`" for name in model.classes_)
    return f"""{HEAD}
# {repo}

{notes or "A classifier that answers with a label, `unsure` or `unknown`."}

```python
import demur

model = demur.load_model("hf:{repo}")  # hf:{repo}@COMMIT for exactly this one
model.decide(inputs)
```

## Classes

{classes}

## What was measured

| | |
|---|---|
{rows}

{LIMITS}"""


def _rows(model: "Classifier") -> Iterator[tuple[str, str]]:
    report, kind = model.report_, model.preprocessing_
    yield "inputs", f"{kind.kind}{_shape(kind)}"
    counts = [report.get(name) for name in ("trained", "tuned", "calibrated")]
    if None not in counts:
        yield "rows to train, to tune, to calibrate", ", ".join(f"{count:,}" for count in counts)
    yield (
        "method",
        f"{report.get('method', 'not known')}" + (f" on {report['backbone']}" if "backbone" in report else ""),
    )
    yield "outliers in training", _plain(report.get("outliers", "not known"))
    if report.get("accuracy") is not None:
        yield "accuracy, held out", f"{100 * report['accuracy']:.1f} %"
    asked = f"{100 * model.decision_.coverage:g} % of inliers, by the score `{model.decision_.score}`"
    yield "coverage asked for", asked
    if report.get("coverage") is not None:
        yield "coverage, held out", f"{100 * report['coverage']:.1f} % of {report.get('tuned', 0):,} inliers"
    if report.get("outliers_abstained") is not None:
        unseen = f"{report['unseen_outliers']:,} held-out outliers of the same sort"
        yield "abstained on", f"{100 * report['outliers_abstained']:.1f} % of {unseen}"
    else:
        yield "abstained on", "not measured: no outliers were held out"
    yield "demur", demur.__version__


def _shape(kind: Any) -> str:
    if not hasattr(kind, "shape"):
        return ""
    return f" of {kind.shape[1]}x{kind.shape[2]}, {'grey' if kind.shape[0] == 1 else 'RGB'}"


def _plain(name: Any) -> str:
    """Without what would be Markdown or HTML."""
    return "".join(" " if letter in "`|<>\n\r" else letter for letter in str(name))
