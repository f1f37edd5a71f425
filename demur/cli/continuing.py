"""`demur fit --from MODEL`: the settings of the model before, its weights, and inputs that were reviewed since."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from demur.classifier import Classifier
    from demur.classifier.readers import Batch, X

FIXED = {"backbone": "--backbone", "tune": "--tune", "size": "--size"}  # what a network that exists has already


def check_continuing(context: typer.Context, before: Path | None, reviewed: Path | None, out: Path) -> None:
    if before is None:
        if reviewed is not None:
            raise ValueError(f"reviewed {reviewed} is learned by a model that exists; add --from MODEL")
        return
    for name, option in FIXED.items():
        if is_given(context, name):
            raise ValueError(f"{option} is {before}'s to say; leave it out, or fit a new model without --from")
    if out.exists() and before.exists() and (out.samefile(before) or before.resolve() in out.resolve().parents):
        raise ValueError(f"{out} is the model to go on from, which stays as it is; name another")


def is_given(context: typer.Context, name: str) -> bool:
    """Whether the option stands on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def load_before(path: Path, device: str) -> "Classifier":
    from demur.classifier import Classifier

    return Classifier.load(path, device=device).set_params(warm_start=True)


def weights_of(before: "Classifier | None") -> str:
    """For checkpoints: training that began with others is not gone on with."""
    from demur.classifier.continuing import states_of
    from demur.provenance import digest

    return "" if before is None else digest(states_of(before.posterior_))


def with_settings(before: "Classifier", context: typer.Context, settings: Mapping[str, Any]) -> "Classifier":
    """The model before, with what the command line says in place of its own settings."""
    names = {"random_state": "seed"}
    given = {name: value for name, value in settings.items() if is_given(context, names.get(name, name))}
    # these also follow from --quick, --outliers and what was reviewed
    given |= {name: settings[name] for name in ("epochs", "synthetic") if settings[name] is not None}
    return before.set_params(**given)


def add_reviewed(
    before: "Classifier", path: Path, reviewed: Path, inliers: "Batch", outliers: "X | None"
) -> tuple["X", list[str], "X | None", str]:
    """Inputs, labels and outliers with those that were reviewed, and what these are in words."""
    from demur.serving.review import read_reviewed

    labelled = read_reviewed(reviewed, before, path.name.removesuffix(".demur"))
    kind, names = before.preprocessing_.kind, [*getattr(before, "feature_names_in_", ())]
    x, y = inliers.x, list(inliers.y or ())
    if labelled.x is not None:
        x, y = join(kind, names, x, labelled.x), [*y, *labelled.y]
    if labelled.junk is not None:
        outliers = labelled.junk if outliers is None else join(kind, names, outliers, labelled.junk)
    return x, y, outliers, str(labelled)


def join(kind: str, names: list[str], first: "X", second: "X") -> "X":
    import numpy as np
    import pandas as pd

    from demur.classifier.tables import frame_of

    if kind == "texts":
        return [*first, *second]
    if kind != "tables":
        return np.concatenate([first, second])
    frames = [frame_of(part, names) for part in (first, second)]
    if not names:
        return np.concatenate([frame.to_numpy() for frame in frames])
    if any(frame.dtypes.eq(object).any() for frame in frames):  # a column may be numbers here and words there
        frames = [frame.astype(object) for frame in frames]
    return pd.concat(frames, ignore_index=True)


def beside_junk(before: "Classifier", synthetic: str | None) -> str:
    """Synthetic outliers to show beside a few that are junk; without them these would be all that is shown."""
    from demur.outliers.synthetic import BY_DEFAULT

    return str(synthetic or before.synthetic or BY_DEFAULT[before.preprocessing_.synthetic_kind])


def tell_of_outliers(before: "Classifier", path: Path) -> None:
    """A model file has none of the outliers that it was fitted with."""
    from demur.classifier.fitting import outliers_in

    count, _ = outliers_in(before.report_)
    if count:
        shown = f"{path} was fitted with outliers ({before.report_['outliers']}), which it does not keep"
        print(f"demur: note: {shown}; give them again with --outliers", file=sys.stderr)
