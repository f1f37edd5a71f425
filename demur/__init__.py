"""Classifiers that know when they do not know: Bayesian neural networks trained with outliers.

Public names are imported when they are first used: `demur --help` need not wait for torch. Type checkers read the same
names in __init__.pyi; a test compares the two.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_NAMES = {  # by module; `a as b` is its name there and here
    "classifier": "Answers, Backbone, Classifier, adopt, load_model",
    "inference": "INFERENCES, MAP, CyclicalSGHMC, Ensemble, Flipout, IdentityLaplace, Inference, "
    "KroneckerLaplace, Laplace, VariationalBayes",
    "inference.fisher": "diagonal_fisher",
    "likelihoods": "LIKELIHOODS, Categorical, Dirichlet, LabelModel, Likelihood, Outliers, "
    "mixed_labels, none_class, outlier_exposure, plain, soft_labels",
    "measures": "ood_metrics",
    "methods": "METHODS, Method, parse_method",
    "metrics": "METRICS, Prediction",
    "networks": "gru, lenet, mlp, resnet18_32, wide_resnet",
    "outliers.values": "given, mix, natural, spectrum_matched, synthetic",
    "posterior": "Gaussian, Mixture, Point, Posterior",
    "posterior_file": "load as load_posterior, save as save_posterior",
    "predictive": "predict",
    "scores": "SCORES, Score",
    "tasks": "Recipe, Split, Store, Task, load as load_task",
    "tasks.base": "TestData",
    "training_data": "Fixed, OutlierSource, TrainingData",
}
_HOMES = {
    name.rpartition(" ")[2]: (f"demur.{module}", name.partition(" ")[0])
    for module, names in _NAMES.items()
    for name in names.split(", ")
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'demur' has no attribute {name!r}")
    module, original = _HOMES[name]
    return getattr(import_module(module), original)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
