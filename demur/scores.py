"""Scores: from predictions to one number an input, high for outliers.

Those in `MEASURED` are computed from probabilities alone, and every result has them. The others are computed where they
are asked for: a score names what else of a prediction it `needs`, and what it learns from training inputs, `fit`.

Logits and features are means over the posterior's samples (`demur.feature_scores` says more). So `max_logit` is the
largest expected logit and `energy` the free energy of expected logits; of a single network they are the usual ones.
`max_prob` is minus the maximum softmax probability (MSP), of averaged probabilities. With a none class, logits are
those of the classes: a large logit of "none" must not pass for an inlier's.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from inspect import Parameter, signature
from types import MappingProxyType
from typing import Any

import numpy as np
from torch import Tensor

from demur.feature_scores import SHAPES, Fitted, Training, fdbd, fit_fdbd, fit_knn, fit_rmds, fit_vim, knn, rmds, vim
from demur.metrics import Array, Prediction, confidence, double, entropy, spread
from demur.names import choose_or_import

USUAL_SCORE = "max_prob"  # whose metrics have no name in front
PARTS = ("logits", "features", "logit_variance")  # of a prediction, filled where a score asks


# of probabilities ---------------------------------------------------------------------------------------------------


def max_prob_score(prediction: Prediction) -> Array:
    """Minus the confidence: the largest class probability."""
    return -confidence(prediction)


def none_score(prediction: Prediction) -> Array | None:
    """The probability of the none class; None where there is no such class."""
    return None if prediction.none is None else double(prediction.none)


def none_share_score(prediction: Prediction) -> Array | None:
    """Of the probability of "none" and of the best class, how much is the former's; above one half it is the larger."""
    if prediction.none is None:
        return None
    none, best = double(prediction.none), double(prediction.probs).max(1)
    return none / (none + best)


def entropy_score(prediction: Prediction) -> Array:
    """Entropy of the averaged probabilities."""
    return double(entropy(spread(prediction.probs.double(), prediction.none)))


def mutual_information_score(prediction: Prediction) -> Array:
    """What the samples disagree about: entropy of the average minus average entropy."""
    information = entropy_score(prediction) - double(prediction.expected_entropy)
    return np.where(information < 1e-6, 0.0, information)  # a point has none; float32 would rank its rounding errors


def doubt_score(prediction: Prediction) -> Array:
    """Both kinds of doubt, each up to one: that it is none of the classes, and which of them it is.

    The first is `none_share`, zero without a none class; the second the entropy of the classes given that it is one of
    them, over that of all classes alike.
    """
    probs = double(prediction.probs)
    total = probs.sum(1, keepdims=True)
    given = np.divide(probs, total, out=np.full_like(probs, 1 / probs.shape[1]), where=total > 0)
    undecided = -(given * np.log(np.maximum(given, np.finfo(np.float64).tiny))).sum(1) / math.log(probs.shape[1])
    none = none_share_score(prediction)
    return undecided if none is None else none + undecided


# of logits ----------------------------------------------------------------------------------------------------------


def _class_logits(prediction: Prediction) -> Tensor:
    assert prediction.logits is not None
    return prediction.logits[:, : prediction.probs.shape[1]].double()


def max_logit_score(prediction: Prediction) -> Array:
    """Minus the largest logit (Hendrycks et al., 2022)."""
    return -double(_class_logits(prediction).amax(1))


def energy_score(prediction: Prediction) -> Array:
    """Minus the logsumexp of the logits (Liu et al., 2020)."""
    return -double(_class_logits(prediction).logsumexp(1))


GEN_POWER, GEN_LARGEST = 0.1, 100  # the paper's


def gen_score(prediction: Prediction) -> Array:
    """Generalised entropy (Liu et al., 2023): the sum of (p (1 - p)) ** 0.1 over the 100 most probable classes."""
    assert prediction.logits is not None
    classes = prediction.probs.shape[1]
    probs = prediction.logits.double().softmax(1)
    none = probs[:, classes] if probs.shape[1] > classes else None
    largest = spread(probs[:, :classes], none).topk(min(GEN_LARGEST, classes), dim=1).values
    return double((largest * (1 - largest).clamp_min(0)).pow(GEN_POWER).sum(1))


def logit_variance_score(prediction: Prediction) -> Array:
    """The variance of a class's logit over the posterior's samples, averaged over the classes; zero of a point."""
    assert prediction.logit_variance is not None
    return double(prediction.logit_variance[:, : prediction.probs.shape[1]].mean(1))


# of features --------------------------------------------------------------------------------------------------------


def _features(prediction: Prediction) -> Tensor:
    assert prediction.features is not None
    return prediction.features


# the table ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Score:
    """A number for each input that is high for outliers.

    :param of: a function of (prediction, fitted) to (N,); None where it needs a none class and there is none.
    :param needs: parts of the prediction beyond probabilities: `logits`, `features`, `logit_variance`.
    :param fit: learns plain tensors from training inputs, which `of` gets as `fitted`.
    :param colour: for drawings.
    :param bounded: whether reports give intervals of what is computed with it.
    :param of_samples: whether it is how far samples differ, and so zero of a single network.
    :param shapes: names of the dimensions of what was learned, by which a model file is checked.
    :param meaning: in words, what it is high for.
    :param turning: of the number of classes, the value above which "none" is the better answer.
    """

    name: str
    title: str
    of: Callable[[Prediction, Fitted | None], Array | None]
    needs: tuple[str, ...] = ()
    fit: Callable[[Training], Fitted] | None = None
    colour: str = "#666666"
    bounded: bool = True
    of_samples: bool = False
    shapes: Mapping[str, tuple[str, ...]] | None = None
    meaning: str = ""
    turning: Callable[[int], float] | None = None

    def __post_init__(self) -> None:
        if unknown := set(self.needs) - set(PARTS):
            raise ValueError(
                f"score {self.name!r} needs {min(unknown)!r} of a prediction; it can have {', '.join(PARTS)}"
            )

    def __call__(self, prediction: Prediction, fitted: Fitted | None = None) -> Array | None:
        """Its values: those that the prediction has already, or from the formula."""
        if self.name in prediction.scores:
            return prediction.scores[self.name]
        lacking = [part for part in self.needs if getattr(prediction, part) is None]
        if lacking or (self.fit is not None and fitted is None):
            what = " and ".join(lacking) or "what it learns from training inputs"
            raise ValueError(f"score {self.name!r} needs {what}; predict with predict_scored, which takes scores")
        return self.of(prediction, fitted)


def _of_probs(score: Callable[[Prediction], Array | None]) -> Callable[[Prediction, Fitted | None], Array | None]:
    return lambda prediction, fitted: score(prediction)


def _of_features(score: Callable[[Tensor, Fitted], Tensor]) -> Callable[[Prediction, Fitted | None], Array]:
    return lambda prediction, fitted: double(score(_features(prediction), fitted or {}))


_LOGITS, _FEATURES = ("logits",), ("features",)
SCORES: Mapping[str, Score] = MappingProxyType(
    {
        score.name: score
        for score in (
            Score(
                USUAL_SCORE,
                "max. probability",
                _of_probs(max_prob_score),
                colour="#0072b2",
                meaning="how far the best class's probability is below 1",
            ),
            Score(
                "none",
                "probability of none",
                _of_probs(none_score),
                colour="#009e73",
                meaning="the probability of no class",
                turning=lambda classes: 0.5,
            ),
            Score(
                "none_share",
                "none's share",
                _of_probs(none_share_score),
                colour="#d55e00",
                meaning="the probability of no class, as a fraction of it and the best class's",
                turning=lambda classes: 0.5,
            ),
            Score(
                "entropy",
                "entropy",
                _of_probs(entropy_score),
                colour="#e69f00",
                bounded=False,
                meaning="how evenly the probability is spread over the classes",
                turning=lambda classes: 0.5 * math.log(classes),
            ),
            Score(
                "mutual_information",
                "mutual information",
                _of_probs(mutual_information_score),
                colour="#999999",
                bounded=False,
                of_samples=True,
                meaning="how much the networks of the posterior disagree",
            ),
            Score(
                "doubt",
                "both kinds of doubt",
                _of_probs(doubt_score),
                colour="#cc79a7",
                meaning="how evenly it is spread over the classes, and none_share added",
            ),
            Score("max_logit", "max. logit", _of_probs(max_logit_score), _LOGITS),
            Score("energy", "energy", _of_probs(energy_score), _LOGITS, colour="#56b4e9"),
            Score("gen", "generalised entropy", _of_probs(gen_score), _LOGITS),
            Score(
                "logit_variance",
                "variance of logits",
                _of_probs(logit_variance_score),
                ("logit_variance",),
                of_samples=True,
            ),
            Score("knn", "nearest neighbours", _of_features(knn), _FEATURES, fit_knn, "#117733", shapes=SHAPES["knn"]),
            Score("rmds", "relative Mahalanobis", _of_features(rmds), _FEATURES, fit_rmds, shapes=SHAPES["rmds"]),
            Score(
                "vim",
                "virtual logit",
                lambda prediction, fitted: double(vim(_features(prediction), _class_logits(prediction), fitted or {})),
                ("logits", "features"),
                fit_vim,
                "#882255",
                shapes=SHAPES["vim"],
            ),
            Score("fdbd", "distance to boundaries", _of_features(fdbd), _FEATURES, fit_fdbd, shapes=SHAPES["fdbd"]),
        )
    }
)
MEASURED: Mapping[str, Score] = MappingProxyType(
    {name: SCORES[name] for name in (USUAL_SCORE, "none", "none_share", "entropy", "mutual_information")}
)


def score_named(name: str) -> Score:
    """One of `SCORES`, or `mypackage.mymodule:name`: a `Score`, or a function of a `Prediction`, or as `Score.of`."""
    score: Any = choose_or_import(SCORES, name, "score")
    if isinstance(score, Score):
        return replace(score, name=name)
    if not callable(score):
        raise ValueError(f"score {name!r} is {score!r:.60}, not a function of a Prediction")
    return Score(name, name, score if _takes_two(score) else _of_probs(score))


def _takes_two(function: Callable[..., Any]) -> bool:
    positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    given = [one for one in signature(function).parameters.values() if one.kind in positional]
    return sum(one.default is Parameter.empty for one in given) == 2
