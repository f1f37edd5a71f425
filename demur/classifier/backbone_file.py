"""A backbone in a model file: how it is built, by names and numbers, and its weights."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from demur.checkpoint import put_state, state_of
from demur.classifier import trunks
from demur.classifier.backbones import TUNED, Backbone
from demur.classifier.features import Encoder, Scaling
from demur.classifier.heads import Headless
from demur.classifier.kinds import Images, Preprocessing, Ready
from demur.classifier.saved import check_size, check_types
from demur.classifier.tokens import Tokens
from demur.files import find_not_finite, list_tensors, read_tensors


def to_json(backbone: Backbone, encoder: Encoder | None, tune: str) -> dict[str, Any]:
    return {
        "name": backbone.name,
        "architecture": backbone.architecture,
        "arguments": dict(backbone.arguments),
        "tune": tune,
        "scaling": encoder and asdict(encoder.scaling),
        "head": backbone.head,
    }


def from_json(
    saved: Mapping[str, Any] | None,
    inputs: Preprocessing,
    own: Backbone | nn.Module | None,
    weights: Path,
    posterior: Path,
) -> tuple[Backbone | None, Encoder | None]:
    """The backbone that the file describes, or the caller's, and how it encodes inputs, where it was frozen.

    The weights of one that was tuned are the posterior's.
    """
    if saved is None:
        return None, None
    adopted = isinstance(saved.get("head"), str)
    if not isinstance(inputs, Ready if adopted else Images | Tokens) or saved["tune"] not in TUNED:
        raise TypeError("its backbone reads no such inputs")
    frozen = saved["tune"] == "head"
    backbone = _built(saved, inputs, own, weights if frozen else posterior)
    if not frozen:
        return backbone, None
    _fill(backbone.trunk, weights)
    scaling = Scaling(tuple(saved["scaling"]["mean"]), tuple(saved["scaling"]["scale"]))
    check_types(scaling)
    if not len(scaling.mean) == len(scaling.scale) == backbone.width or 0 in scaling.scale:
        raise ValueError("its backbone has other features than it was scaled by; save it anew")
    return backbone, Encoder(backbone.trunk, scaling)


def _built(
    saved: Mapping[str, Any], inputs: Images | Tokens | Ready, own: Backbone | nn.Module | None, weights: Path
) -> Backbone:
    if isinstance(inputs, Ready):
        if not isinstance(own, nn.Module):
            raise ValueError(f"it was adopted from a model of your own, {saved['name']}; load it with backbone=, that")
        if not isinstance(dict(own.named_modules()).get(saved["head"]), nn.Linear):
            raise ValueError(f"the backbone has no affine layer {saved['head']!r}; give the model that was adopted")
        return Backbone(saved["name"], Headless(own, saved["head"]).cpu().float().eval(), inputs, head=saved["head"])
    if own is not None:
        return replace(own if isinstance(own, Backbone) else Backbone.of(own), inputs=inputs)
    if saved["architecture"] is None:
        raise ValueError(
            f"it was fitted with a backbone of your own, {saved['name']}; load it with backbone=, the same"
        )
    check_size(lambda: trunks.from_description(saved["architecture"], saved["arguments"]), weights)
    trunk = trunks.from_description(saved["architecture"], saved["arguments"])
    return Backbone(str(saved["name"]), trunk, inputs, saved["architecture"], saved["arguments"])


def _fill(trunk: nn.Module, weights: Path) -> None:
    """Put the file's weights into the trunk, which must have the same names and shapes, and be finite."""
    slots = {name: tuple(slot.shape) for name, slot in state_of(trunk).items()}
    try:
        _, entries = list_tensors(weights)
        if {name: entry.shape for name, entry in entries.items()} != slots:
            raise ValueError("its backbone has other weights than were saved; give the one it was fitted with")
        _, state = read_tensors(weights)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"the weights of its backbone cannot be read ({error}); save it anew") from None
    if name := find_not_finite(state):
        raise ValueError(f"its backbone has NaN or infinite weights, in {name}; save it anew")
    with torch.no_grad():
        put_state(trunk, state)
