"""Pages: at / of a server, at /docs, and to review inputs; each in one piece, which asks nobody but its server."""

from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from demur.classifier import Classifier
from demur.classifier.kinds import Images, MixedTables, Tables

TEMPLATES = Path(__file__).parent / "templates"
BARS = 40
HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


@cache
def html(name: str) -> str:
    """The page of that name, with the style that all share."""
    style = (TEMPLATES / "style.css").read_text("utf-8")
    return (TEMPLATES / f"{name}.html").read_text("utf-8").replace("/* style.css */", style)


def docs(schema: dict[str, Any]) -> str:
    """What can be asked, from the app's own description."""
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["pieces"] = lambda text: text.split("`")  # every second is code
    return environment.from_string((TEMPLATES / "docs.html").read_text("utf-8")).render(schema=schema)


def describe_inputs(model: Classifier) -> dict[str, Any]:
    """What an input of this model looks like, for people and programs that ask."""
    kind = model.preprocessing_
    if isinstance(kind, Images):
        return {"shape": list(kind.shape)}
    if isinstance(kind, Tables | MixedTables):
        names = getattr(model, "feature_names_in_", range(1, model.n_features_in_ + 1))
        return {"columns": [str(name) for name in names], "numbers": isinstance(kind, Tables)}
    return {}


def histogram(model: Classifier) -> dict[str, Any] | None:
    """How the scores of the inliers lie that the threshold was set with; None in files that do not have them."""
    if model.calibration_ is None:
        return None
    groups = {tuple(group) for group in model.calibration_.scores}
    scores = np.concatenate([np.asarray(group, dtype=np.float64) for group in groups])
    limits = [limit for limit in (*model.decision_.accept, *model.decision_.unknown) if limit is not None]
    highest = max(scores.max(), *limits)
    counts, edges = np.histogram(scores, BARS, (min(0.0, scores.min()), highest or 1.0))
    return {"counts": counts.tolist(), "low": float(edges[0]), "high": float(edges[-1]), "total": len(scores)}
