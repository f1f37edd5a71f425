"""`Classifier`: fit, predict and decide on numpy, torch or pandas, by the same loop and average as everything else."""

from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, Self

import numpy as np
import pandas as pd
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from demur.classifier import keeping, kinds, sharing
from demur.classifier.abstaining import fit_score, resolve_score
from demur.classifier.augmentation import augmentation
from demur.classifier.backbones import Backbone, resolve_backbone, suggest_backbone
from demur.classifier.builders import logits_of, wrap_logits
from demur.classifier.conformal import calibration_of, measure_sets
from demur.classifier.continuing import check_settings, continue_network
from demur.classifier.decision import calibrate_decision
from demur.classifier.fitting import (
    FitData,
    Plan,
    ShownOutliers,
    describe_prior,
    gather_outliers,
    measure_held_out,
    resolve_inference,
    resolve_recipe,
)
from demur.classifier.frozen import encode_data, start_tuned
from demur.classifier.held_out import Rows, hash_fitted, split_rows, split_rows_again
from demur.classifier.labels import balance_rows, encode_labels
from demur.classifier.limits import curve_to_json, end_of_limit, fit_within_limit, seconds_until, watch_recipe
from demur.classifier.parameters import check_parameters, device_of
from demur.classifier.predictor import Predictor
from demur.classifier.tables import find_gaps
from demur.inference import KroneckerLaplace, Laplace
from demur.methods import Method, parse_method
from demur.names import choose
from demur.networks import Network
from demur.outliers.values import Shown
from demur.scores import Score
from demur.training_data import Augment, Split, TrainingData

SETTLED = (  # what a fit that continues a model takes over from it
    *("preprocessing_", "n_features_in_", "feature_names_in_"),
    *("backbone_", "encoder_", "network_", "wraps_logits_"),
)


class Classifier(Predictor, ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A classifier that can abstain: a Bayesian neural network trained with outliers, as a scikit-learn estimator.

    :param method: a name such as `la+nc`, or a `demur.Method` for other hyperparameters.
    :param network: a function from the head size to an `nn.Module`; or a name: `mlp`, `lenet`, `convnet`,
        `wide_resnet`, `gru`; None goes with the kind of data.
    :param backbone: a pretrained network to start from: `efficientnet-lite0`, `minilm`, `wordllama`, `timm:NAME`,
        `hf:NAME`, an `nn.Module` or a `demur.Backbone`.
    :param tune: what is trained: a new `head` alone, on features that are computed once; the `last` blocks of the
        backbone as well; or `all` of it.
    :param cache: a folder in which features are kept for the next fit.
    :param kind: what X is: `tables`, `images`, `texts`, or `ready` for arrays that the network takes as they are;
        `auto` looks at X.
    :param synthetic: outliers that are made from X, in addition to those that `fit` gets, or alone. For tables
        `columns` and `box`; for images `smooth`, `uniform`, `patches` and `halves`, and `spectrum_matched` for those
        that `fit` gets, made as sharp as X; for texts `words`. `a+b` is a mix; `demur.mix` and others are values
        instead of names.
    :param augment: how images, outliers too, are varied in training: `auto`, `light` (moved, and mirrored if they are
        large and in colour), `strong`, `off`, or a function of a batch and a generator.
    :param balance: whether rare classes are trained with as often as frequent ones; thresholds are those of the data.
    :param coverage: the fraction of inliers that is to get a label.
    :param by_class: whether every class has a threshold of its own, so that the guarantee holds for the inputs of each
        predicted class; more is held out for it.
    :param abstain_by: the score to abstain by, of `demur.SCORES` or as `mymodule:myscore`; None is `none_share` where
        the method has a none class, else `entropy`.
    :param epochs: like `batch_size` and `lr`, None is what suits the kind and the amount of data.
    :param patience: training ends after so many epochs without a better likelihood of the validation data.
    :param time_limit: training ends after so many seconds, or after "10m".
    :param warm_start: whether a second `fit`, or one of a loaded model, starts from the fitted weights, also for new
        classes. Inputs are read as before, and those that were held out are held out again.
    :param validation: the fraction of inliers that is held out, at the least enough for the guarantee: half to tune a
        prior, half to calibrate the threshold.
    :param device: `auto` takes a GPU where there is one.
    :param random_state: the seed of initial weights, batches and samples.

    After fit: `classes_`, `posterior_`, `likelihood_`, `preprocessing_`, `decision_`; `held_out_`, the rows of X that
    were not trained with; `report_`, a dict of what was measured on them and on held-out outliers; for tables also
    `n_features_in_` and, from a data frame, `feature_names_in_`. A fit that fails leaves the estimator as it was.
    """

    def __init__(
        self,
        method: str | Method = "la+nc",
        network: str | Network | None = None,
        *,
        backbone: str | nn.Module | Backbone | None = None,
        tune: str = "head",
        cache: str | Path | None = None,
        kind: str = "auto",
        synthetic: str | Shown | None = None,
        augment: str | Augment = "auto",
        balance: bool = False,
        coverage: float = 0.95,
        by_class: bool = False,
        abstain_by: str | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        patience: int | str | None = "auto",
        time_limit: float | str | None = None,
        warm_start: bool = False,
        validation: float = 0.1,
        device: str = "auto",
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.method = method
        self.network = network
        self.backbone = backbone
        self.tune = tune
        self.cache = cache
        self.kind = kind
        self.synthetic = synthetic
        self.augment = augment
        self.balance = balance
        self.coverage = coverage
        self.by_class = by_class
        self.abstain_by = abstain_by
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.patience = patience
        self.time_limit = time_limit
        self.warm_start = warm_start
        self.validation = validation
        self.device = device
        self.random_state = random_state

    def __sklearn_tags__(self) -> Tags:
        tags = ClassifierMixin.__sklearn_tags__(self)  # what answers has none of its own
        tags.input_tags.allow_nan = True  # of tables: gaps in columns that have some in training
        return tags

    # learning ------------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, outliers: Any = None) -> Self:
        """Learn the classes of X, and what belongs to none from `outliers`: inputs like X, or None.

        Real outliers, of any sort that is easy to come by, do best. Without any, a method that trains with outliers
        makes them from X, by default or as `synthetic` says.
        """
        fresh = type(self)(**self.get_params(deep=False))
        fresh._fit(X, y, outliers, self if self.warm_start and hasattr(self, "posterior_") else None)
        own = {name: value for name, value in vars(self).items() if not name.endswith("_")}
        # at once, and only now: who predicts meanwhile has the old model or the new
        self.__dict__ = own | {name: value for name, value in vars(fresh).items() if name.endswith("_")}
        return self

    def _fit(self, X: Any, y: Any, outliers: Any, previous: "Classifier | None") -> None:
        """Fit this estimator, which is fresh, or have it continue the fitted model `previous`."""
        started = perf_counter()
        check_parameters(self.get_params(deep=False))
        ends = end_of_limit(self.time_limit, started)
        method = parse_method(self.method) if isinstance(self.method, str) else self.method
        kind = self._settle_kind(X, previous)
        inputs = self._validate(X, kind, fitting=previous is None)
        self.classes_, codes = encode_labels(y, len(inputs))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        rows = self._split(inputs, codes, seed, previous)
        if previous is None:
            train = kinds.take_rows(inputs, rows.train)
            self.preprocessing_ = self.backbone_.inputs if self.backbone_ else kinds.learn_preprocessing(train, kind)
        self.likelihood_ = method.likelihood(len(self.classes_))
        data, shown = self._read(inputs, codes, rows, outliers, seed, previous, ends)
        frozen = self.encoder_ is not None
        training = data.training(augmentation(self.augment, kind, data.train.x.shape, frozen))
        plan = self._plan(method, training, data.num_trained, seed, previous)
        training, network = training.to(device_of(self.device)), plan.network
        if previous is None and self.backbone_ and self.tune != "head" and not callable(self.network):
            network = start_tuned(
                self.backbone_, self.tune, self.likelihood_, training, seed, self.cache, seconds_until(ends)
            )
        self.posterior_, curves = fit_within_limit(
            plan.inference,
            network,
            self.likelihood_,
            training,
            plan.recipe,
            seconds_left=seconds_until(ends),
            num_predicted=data.num_held_out + (0 if plan.score.fit is None else len(data.train)),
            hint=suggest_backbone(kind) if self.backbone_ is None else "tune='head', " * (self.tune != "head"),
        )
        self.fitted_scores_ = fit_score(plan.score, self.posterior_, self.likelihood_, training.train, data.rows)
        measured = self._calibrate(plan.score, data)
        self.report_ = {
            "method": method.name,
            **({"continued": plan.continued} if plan.continued else {}),
            **({"backbone": self.backbone_.name, "tune": self.tune} if self.backbone_ else {}),
            "trained": data.num_trained,
            "tuned": len(data.tuning),
            "calibrated": len(data.calibration),
            **measured,
            **describe_prior(self.posterior_),
            **({"laplace_over": plan.inference.over} if isinstance(plan.inference, Laplace | KroneckerLaplace) else {}),
            "outliers": shown.name,
            "outliers_shown": 0 if shown.source is None else shown.source.shape[0],
            "epochs": plan.recipe.epochs,
            **curve_to_json(curves),
            "seconds": perf_counter() - started,
        }

    def _settle_kind(self, X: Any, previous: "Classifier | None") -> str:
        """What X is, and the backbone for it; a continued model reads inputs, and has a network, as before."""
        self.encoder_ = None
        if previous is not None:
            check_settings(self, previous, X)
            for name in SETTLED:
                if hasattr(previous, name):
                    setattr(self, name, getattr(previous, name))
            return self.preprocessing_.kind
        kind = kinds.kind_of(X) if self.kind == "auto" else self.kind
        choose(kinds.KINDS, kind, "kind of data")
        self.backbone_ = None if self.backbone is None else resolve_backbone(self.backbone, kind, self.tune)
        return kind

    def _split(self, inputs: Any, codes: Tensor, seed: int, previous: "Classifier | None") -> Rows:
        """Rows to train, to tune and to calibrate with."""
        gaps = find_gaps(inputs) if isinstance(inputs, pd.DataFrame) else None
        # a pretrained network learns from few inputs, so that more of them can set a limit that varies little
        steady = self.backbone_ is not None and self.backbone_.head is None
        rows = split_rows(codes, self.validation, self.coverage, seed, self.by_class, gaps, steady)
        if previous is not None:
            rows = split_rows_again(
                previous,
                inputs,
                codes,
                self.classes_,
                rows,
                coverage=self.coverage,
                validation=self.validation,
                seed=seed,
            )
        self.held_out_ = torch.cat([rows.tuning, rows.calibration]).numpy()
        return rows

    def _read(
        self,
        inputs: Any,
        codes: Tensor,
        rows: Rows,
        outliers: Any,
        seed: int,
        previous: "Classifier | None",
        ends: float | None,
    ) -> tuple[FitData, ShownOutliers]:
        """In- and outliers as the network takes them, or as a frozen backbone's features, if need be in time."""
        trained_rows = balance_rows(rows.train, codes) if self.balance else rows.train
        train, tuning, calibration = (
            Split(self.preprocessing_.read(kinds.take_rows(inputs, part)), codes[part])
            for part in (trained_rows, rows.tuning, rows.calibration)
        )
        known = None if previous is None else previous.held_out_hashes_
        shown = gather_outliers(self, outliers, train.x, tuning.x, seed, known)
        unseen = None if outliers is None else shown.unseen  # synthetic ones are made anew in every fit
        self.held_out_hashes_ = hash_fitted([train.x, shown.given], tuning.x, calibration.x, unseen, previous)
        data = FitData(train, tuning, calibration, shown.source, shown.unseen, trained_rows)
        if self.backbone_ and self.tune == "head":
            device, left = device_of(self.device), seconds_until(ends)
            self.encoder_, data = encode_data(
                data, self.backbone_, device, self.cache, self.encoder_, seconds_left=left
            )
        return data, replace(shown, source=data.outliers)

    def _plan(
        self, method: Method, training: TrainingData, count: int, seed: int, previous: "Classifier | None"
    ) -> Plan:
        """What is trained, how, and by which score the model will abstain; `count` inputs are trained with."""
        few = training.train.x[:2]
        if previous is None:
            self.network_, self.wraps_logits_ = self._network(few)
            network, continued = self.network_, None
        else:
            network, continued = continue_network(previous, self.likelihood_, self.classes_, few)
        recipe = watch_recipe(resolve_recipe(self, count, seed), self.patience, training)
        inference = resolve_inference(
            method,
            self.network_,
            self.likelihood_.num_outputs,
            by_name=isinstance(self.method, str),
            pretrained=self.backbone_ is not None and self.tune != "head",
        )
        score = resolve_score(self.abstain_by, self.likelihood_, inference, self.network_)
        return Plan(inference, network, recipe, score, continued)

    def _network(self, x: Tensor) -> tuple[Network, bool]:
        """The function that builds the network, and whether its networks return objects with `.logits`."""
        if self.backbone_ is not None and not callable(self.network):
            return self.backbone_.network(self.tune, self.network), False
        if self.network is None or isinstance(self.network, str):
            return self.preprocessing_.network(self.network), False
        with torch.random.fork_rng(devices=[]):
            _, wraps = logits_of(self.network(self.likelihood_.num_outputs), x)
        return (wrap_logits(self.network) if wraps else self.network), wraps

    def _calibrate(self, score: Score, data: FitData) -> dict[str, Any]:
        """Set the threshold by the calibration inputs, and measure by what else was held out."""
        on_calibration = self._average(data.calibration.x, [score])
        self.decision_ = calibrate_decision(on_calibration, score.name, float(self.coverage), self.by_class)
        self.calibration_ = calibration_of(on_calibration, data.calibration.y, self.decision_)
        on_tuning = self._average(data.tuning.x)
        measured = measure_held_out(
            self.decision_,
            self.classes_,
            (on_tuning, data.tuning.y),
            (on_calibration, data.calibration.y),
            None if data.unseen is None else self._average(data.unseen),
        )
        sets = measure_sets(self.calibration_, self.classes_, on_tuning, data.tuning.y)
        return {**measured, "prediction_sets": sets}

    # the model file ------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the model to a folder, or to one file if the name ends in `.demur`."""
        check_is_fitted(self)
        keeping.save(self, path)

    def push_to_hub(self, repo: str, *, private: bool = False, notes: str = "") -> str:
        """Upload the model and a card to `me/name` on the Hugging Face hub; returns the name that `load` takes."""
        check_is_fitted(self)
        return sharing.push_model(self, repo, private, notes)
