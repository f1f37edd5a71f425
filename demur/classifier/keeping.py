"""A fitted classifier to a model file and back."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import nn

import demur
from demur.checkpoint import state_of
from demur.classifier import backbone_file, kinds, sharing
from demur.classifier.abstaining import read_fitted, restore_score
from demur.classifier.backbones import Backbone
from demur.classifier.builders import describe_network
from demur.classifier.conformal import calibration_from_json
from demur.classifier.held_out import hashes_from_json, hashes_to_json
from demur.classifier.model_file import SCORE, read_model, write_model
from demur.classifier.parameters import device_of
from demur.classifier.saved import (
    check_size,
    check_types,
    decision_from_json,
    labels_from_json,
    labels_to_json,
    likelihood_from_json,
    likelihood_to_json,
    parameters_to_json,
    restored_network,
    telling_damage,
)
from demur.names import current, with_current_names
from demur.networks import Network
from demur.posterior_file import load as load_posterior

if TYPE_CHECKING:
    from demur.classifier.estimator import Classifier
    from demur.classifier.predictor import Predictor

Loaded = TypeVar("Loaded", bound="Predictor")


def save(model: "Classifier", path: str | Path) -> None:
    write_model(
        path,
        {
            "parameters": parameters_to_json(_parameters(model)),
            "classes": labels_to_json(model.classes_),
            "columns": [str(name) for name in getattr(model, "feature_names_in_", [])],
            "likelihood": likelihood_to_json(model.likelihood_),
            "preprocessing": kinds.to_json(model.preprocessing_),
            "network": describe_network(model.network_),
            "backbone": model.backbone_ and backbone_file.to_json(model.backbone_, model.encoder_, model.tune),
            "wraps_logits": model.wraps_logits_,
            "decision": asdict(model.decision_),
            "calibration": model.calibration_ and asdict(model.calibration_),
            "held_out": hashes_to_json(model.held_out_hashes_),
            "report": model.report_,
            "versions": {"demur": demur.__version__, "torch": torch.__version__},
        },
        model.posterior_,
        None if model.encoder_ is None else state_of(model.encoder_.trunk),
        model.fitted_scores_.get(model.decision_.score),
    )


def _parameters(model: "Classifier") -> dict[str, Any]:
    """Of the fit; whether the next one is to go on from it is not a file's to say."""
    given = model.get_params() | {"method": model.report_["method"], "cache": None}
    return {name: value for name, value in given.items() if name != "warm_start"}


def load(
    kind: type[Loaded],
    path: str | Path,
    network: Network | None,
    backbone: nn.Module | Backbone | None,
    device: str,
    abstain_by: str | None,
) -> Loaded:
    source = str(path)
    if source.startswith(sharing.PREFIX):
        path, source = sharing.fetch_model(source)
    with read_model(path) as (saved, posterior, weights), telling_damage(path):
        given = {"kind": "auto", "network": None} | with_current_names(saved["parameters"])
        settings = {"kind": current(given["kind"]), "network": network or given["network"], "device": device}
        model = kind(**given | settings)
        model.classes_ = labels_from_json(saved["classes"])
        model.likelihood_ = likelihood_from_json(saved["likelihood"])
        model.preprocessing_ = kinds.from_json(saved["preprocessing"])
        if columns := len(getattr(model.preprocessing_, "columns", ())):
            model.n_features_in_ = columns
        if saved["columns"]:
            model.feature_names_in_ = np.array([*map(str, saved["columns"])], dtype=object)
        model.backbone_, model.encoder_ = backbone_file.from_json(
            saved.get("backbone"), model.preprocessing_, backbone, weights, posterior
        )
        own = network is not None or backbone is not None
        if model.backbone_ is not None and model.encoder_ is None:
            network = model.backbone_.network(saved["backbone"]["tune"], None)
        model.network_, model.wraps_logits_ = restored_network(saved, network, path), saved["wraps_logits"]
        model.decision_ = decision_from_json(saved, len(model.classes_))
        score = restore_score(model.decision_.score, abstain_by)
        model.abstain_by = model.abstain_by and score.name
        model.calibration_ = calibration_from_json(saved, model.decision_, len(model.classes_))
        model.held_out_hashes_ = hashes_from_json(saved.get("held_out"))
        model.report_ = with_current_names(saved["report"])
        check_types(model.preprocessing_, model.decision_, *filter(None, [model.calibration_]))
        named = len(model.classes_), len(saved["columns"]) or columns
        if named != (model.likelihood_.num_classes, columns):
            raise ValueError(f"{path} is damaged: it has other classes or columns than its network; save it anew")
        build = partial(model.network_, model.likelihood_.num_outputs)
        if not own:
            if columns and saved["network"]["arguments"].get("inputs") != _inputs(model.preprocessing_):
                raise ValueError(
                    f"{path} is damaged: its columns give other inputs than its network takes; save it anew"
                )
            check_size(build, posterior)
        model.posterior_ = load_posterior(posterior, build, device_of(model.device))
        model.fitted_scores_ = read_fitted(posterior.with_name(SCORE), score, model.posterior_, model.likelihood_)
        model.source_ = source
    return model


def _inputs(table: kinds.Preprocessing) -> int:
    """How many numbers a row of the table becomes."""
    network = describe_network(table.network("mlp"))
    assert network is not None
    return int(network["arguments"]["inputs"])
