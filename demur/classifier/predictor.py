"""A fitted classifier, which answers. What it is fitted with, and scikit-learn, are not imported for that: the start of
`demur predict` would take twice as long."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from demur.classifier import keeping, kinds
from demur.classifier.backbones import Backbone
from demur.classifier.conformal import Calibration, benjamini_hochberg
from demur.classifier.decision import Decision, class_probs, post_hoc, score_of
from demur.classifier.features import Encoder
from demur.classifier.held_out import Hashes
from demur.classifier.parameters import device_of
from demur.likelihoods import Likelihood
from demur.metrics import Array, Prediction
from demur.networks import Network
from demur.posterior import Posterior
from demur.predictive import predict_scored
from demur.scores import Score, score_named


@dataclass(frozen=True)
class Answers:
    """The answers for N inputs.

    `decision` is a label, "unsure" or "unknown". `label` is the most probable class whatever the decision, and
    `probability` its probability, given that it is one of the classes. `outlier_score` is what the model abstains by.
    `p_value` is that of "this is an inlier"; a model that was saved before there were p-values has none.
    """

    decision: np.ndarray
    label: np.ndarray
    probability: Array
    outlier_score: Array
    p_value: Array | None = None


class Predictor:
    """What `Classifier` is beside `fit`. Of the parameters that it was fitted with, answers need the device alone."""

    classes_: np.ndarray
    posterior_: Posterior
    likelihood_: Likelihood
    preprocessing_: kinds.Preprocessing
    encoder_: Encoder | None
    decision_: Decision
    calibration_: Calibration | None
    backbone_: Backbone | None
    network_: Network
    wraps_logits_: bool
    fitted_scores_: dict[str, dict[str, Tensor]]
    held_out_hashes_: Hashes | None
    report_: dict[str, Any]
    source_: str
    n_features_in_: int
    feature_names_in_: np.ndarray

    def __init__(self, *, device: str = "auto", abstain_by: str | None = None, **_: Any) -> None:
        self.device, self.abstain_by = device, abstain_by

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each input; it never abstains, `decide` does."""
        best = self.prediction(X).probs.argmax(1)
        return self.classes_[best.numpy()]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes, in the order of `classes_`, given that it is one of them; rows sum to one.

        With a none class they have been divided by 1 - its probability, which `outlier_score(X, "none")` tells.
        """
        return class_probs(self.prediction(X))

    def outlier_score(self, X: Any, score: str | None = None) -> Array:
        """High for outliers: the score that is abstained by, one of `demur.SCORES` by name, or `mymodule:myscore`."""
        self._check_is_fitted()
        scores = self.scores_named([] if score is None else [score])
        return score_of(self.prediction(X, scores), score or self.decision_.score, own=score is not None)

    def scores_named(self, names: Sequence[str]) -> list[Score]:
        """Scores that can be computed with this model: the one that it abstains by, and all that learn nothing."""
        return [score_named(name) if name in self.fitted_scores_ else post_hoc(name) for name in names]

    def decide(self, X: Any) -> np.ndarray:
        """For each input its label, "unsure" or "unknown": (N,) of objects."""
        return self.predict_all(X).decision

    def predict_all(self, X: Any) -> Answers:
        """Decision, label, probability, outlier score and p-value of each input, in one pass."""
        prediction = self.prediction(X)
        probs = class_probs(prediction)
        answers = self.decision_.answers(prediction, self.classes_)
        label = self.classes_[probs.argmax(1)]
        p_value = None if self.calibration_ is None else self.calibration_.p_values(prediction, self.decision_)
        return Answers(answers, label, probs.max(1), score_of(prediction, self.decision_.score), p_value)

    def p_value(self, X: Any) -> Array:
        """The p-value of "this is an inlier" for each input; an inlier's is at most t with probability t at most."""
        return self._calibration().p_values(self.prediction(X), self.decision_)

    def screen(self, X: Any, fdr: float = 0.1) -> NDArray[np.bool_]:
        """Which of a batch to call outliers, so that the expected fraction of inliers among these is `fdr` at most."""
        return benjamini_hochberg(self.p_value(X), fdr)

    def prediction_sets(self, X: Any, level: float = 0.9, *, by_class: bool = False) -> list[np.ndarray]:
        """For each input the labels that it may have; an inlier's own is among them with probability `level` at least,
        with `by_class` whatever its class is."""
        sets = self._calibration().label_sets(self.prediction(X), level, by_class)
        return [self.classes_[each] for each in sets]

    def _calibration(self) -> Calibration:
        self._check_is_fitted()
        if self.calibration_ is None:
            raise ValueError("this model was saved without calibration scores, by an older demur; fit it again")
        return self.calibration_

    def inputs(self, X: Any, what: str = "X") -> Tensor:
        """X as the network takes it, (N, ...); refused where it is not like what was fitted to."""
        return self.preprocessing_.read(self._validate(X, self.preprocessing_.kind, what, fitting=False), what)

    def prediction(self, X: Any, scores: Sequence[Score] = ()) -> Prediction:
        """What all answers follow from, for `demur.metrics`: probabilities of the classes and of none; with the values
        of `scores`, such as need logits or features."""
        self._check_is_fitted()
        return self.predict_tensor(self.inputs(X), scores)

    def predict_tensor(self, x: Tensor, scores: Sequence[Score] = ()) -> Prediction:
        """The prediction of a tensor that `inputs` returned; safe to call from any number of threads."""
        return self._average(x if self.encoder_ is None else self.encoder_(x, device_of(self.device)), scores)

    def _average(self, x: Tensor, scores: Sequence[Score] = ()) -> Prediction:
        own = [score_named(self.decision_.score)] if hasattr(self, "decision_") else []
        every = {score.name: score for score in (*own, *scores)}.values()
        return predict_scored(
            self.posterior_, self.likelihood_, x.to(device_of(self.device)), every, self.fitted_scores_
        )

    def _validate(self, X: Any, kind: str, what: str = "X", fitting: bool = True) -> Any:
        """Check X and return it as something to take rows from; tables pass scikit-learn's own checks."""
        if kind in kinds.CHECKS:
            return kinds.CHECKS[kind](X, what)
        return kinds.table_of(self, X, what, None if fitting else self.preprocessing_)

    def __sklearn_tags__(self) -> Any:
        """For scikit-learn's checks, of tables that are not as readers give them."""
        from demur.classifier.estimator import Classifier

        return Classifier().__sklearn_tags__()

    def _check_is_fitted(self) -> None:
        if not hasattr(self, "posterior_"):
            from sklearn.utils.validation import check_is_fitted  # here, since a fitted one does without

            check_is_fitted(self)

    @classmethod
    def load(
        cls,
        path: str | Path,
        network: Network | None = None,
        *,
        backbone: nn.Module | Backbone | None = None,
        device: str = "auto",
        abstain_by: str | None = None,
    ) -> Self:
        """Read a model back, also `hf:me/name@COMMIT`; `network`, `backbone` or `abstain_by` where it has your own."""
        return keeping.load(cls, path, network, backbone, device, abstain_by)
