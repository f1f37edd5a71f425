"""The scikit-learn front: a classifier for your own data that says "unsure" and "unknown" where it should.

Names are imported when they are first used: a model that only answers does without scikit-learn.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from demur.classifier.adoption import adopt as adopt
    from demur.classifier.backbones import Backbone as Backbone
    from demur.classifier.estimator import Classifier as Classifier
    from demur.classifier.predictor import Answers as Answers
    from demur.classifier.predictor import Predictor as Predictor

    load_model = Classifier.load

_HOMES = {
    "Answers": "predictor",
    "Backbone": "backbones",
    "Classifier": "estimator",
    "Predictor": "predictor",
    "adopt": "adoption",
}


def __getattr__(name: str) -> Any:
    if name == "load_model":
        from demur.classifier.estimator import Classifier

        value: Any = Classifier.load
    elif name in _HOMES:
        value = getattr(import_module(f"demur.classifier.{_HOMES[name]}"), name)
    else:
        raise AttributeError(f"module 'demur.classifier' has no attribute {name!r}")
    globals()[name] = value
    return value
