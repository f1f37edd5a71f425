"""What `demur fit` says of a model when it is done."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from demur.classifier import Classifier
    from demur.classifier.readers import Inputs


def describe_fit(classifier: "Classifier", given: "Inputs", count: int, outliers: str | None) -> dict[str, str]:
    from demur.classifier.readers import join_names

    report = classifier.report_
    shape = f" of {given.shape[1]}x{given.shape[2]}, {'grey' if given.shape[0] == 1 else 'RGB'}" if given.shape else ""
    abstained = "on outliers: not measured, none could be held out"
    if report["outliers_abstained"] is not None:
        unseen = f"{report['unseen_outliers']:,} outliers that it was not shown"
        abstained = f"on {100 * report['outliers_abstained']:.1f} % of {unseen}"
    what = "rows" if given.kind == "tables" else given.kind
    start = f" on {report['backbone']} (tuned: {report['tune']})" if "backbone" in report else ""
    weights = {}
    if continued := report.get("continued"):
        new = f"; new: {join_names(continued['new_classes'])}" * bool(continued["new_classes"])
        weights["weights"] = f"{continued['weights']:,} of {continued['of']:,} taken over{new}"
    seconds = f"{report['seconds']:.0f} s{_pretrained(report, given)}"
    return {
        "inputs": f"{count:,} {what}{shape}; {report['tuned'] + report['calibrated']:,} held out",
        "classes": f"{len(classifier.classes_)}: {join_names(classifier.classes_.tolist())}",
        "outliers": _shown(report, what, outliers),
        "accuracy": f"{100 * report['accuracy']:.1f} % of those held out",
        "accepted": f"{100 * report['coverage']:.1f} % of the {report['tuned']:,} that the threshold was not chosen by",
        "abstained": abstained,
        "training": f"{report['method']}{start}, {report['epochs']} epochs, {seconds}",
        **weights,
    }


def _pretrained(report: Mapping[str, Any], given: "Inputs") -> str:
    """What to start from instead of scratch: texts and photographs mostly do better, and in less time."""
    from demur.classifier.backbones import installed_backbone
    from demur.classifier.builders import LARGE

    if "backbone" in report or "continued" in report or given.kind not in ("images", "texts"):
        return ""
    is_small = given.shape is not None and (given.shape[0] != 3 or min(given.shape[1:]) < LARGE)
    name = None if is_small else installed_backbone(given.kind)
    return "" if name is None else f"; quicker, and mostly better: --backbone {name}"


def _shown(report: Mapping[str, Any], what: str, outliers: str | None) -> str:
    """What the model was shown as belonging to none of its classes, in one line."""
    from demur.classifier.fitting import outliers_in
    from demur.outliers.values import Given, SpectrumMatched

    count, kinds = outliers_in(report)
    if not kinds:
        return f"none; {report['method']} does not train with any"
    synthetic = [str(kind) for kind in kinds if not isinstance(kind, Given | SpectrumMatched)]
    sorts = [f"{what} of {outliers}"] if count else []
    sorts += ["the same as sharp as yours"] if any(isinstance(kind, SpectrumMatched) for kind in kinds) else []
    often = "once" if report.get("tune") == "head" else "anew in every epoch"  # what is frozen sees each input once
    sorts += [f"{', '.join(synthetic)}, made from yours {often}"] if synthetic else []
    return f"{report['outliers_shown']:,}: {'; '.join(sorts)}"
