"""Trunks of pretrained networks: modules from inputs to features (N, width), each rebuilt from a few numbers and names.

A function of `ARCHITECTURES` builds one with fresh weights, from packages that are installed. A model file names the
function and its arguments, which are checked here; the weights lie beside them.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from demur.classifier.extras import import_extra
from demur.names import choose
from demur.networks import CONVOLUTIONS

MOST_LAYERS, MOST_UNITS = 1_000, 2**24
FOREIGN = (ValueError, KeyError, IndexError, TypeError, AttributeError, RuntimeError, ArithmeticError, AssertionError)


class ImageTrunk(nn.Module):
    """Normalises images in [0, 1] as the model was trained with, and averages what it gives over the image."""

    mean: Tensor
    scale: Tensor

    def __init__(self, model: nn.Module, mean: Sequence[float], scale: Sequence[float]) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(1, -1, 1, 1))
        self.register_buffer("scale", torch.tensor(scale, dtype=torch.float32).view(1, -1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        extract = getattr(self.model, "extract_features", self.model)
        return pool(extract((x - self.mean) / self.scale))


class TextTrunk(nn.Module):
    """Tokens plus one, 0 being padding on the right, to the mean of the states of a transformer's last layer."""

    def __init__(self, model: nn.Module, before: Sequence[int], behind: Sequence[int]) -> None:
        super().__init__()
        self.model, self.before, self.behind = model, tuple(before), tuple(behind)
        self.trims = True  # a graph cannot: its shapes do not depend on what is in a batch

    def forward(self, tokens: Tensor) -> Tensor:
        if self.trims:
            tokens = tokens[:, : max(1, int((tokens != 0).sum(1).max()))]
        lengths = (tokens != 0).sum(1, keepdim=True)
        places = torch.arange(tokens.shape[1] + len(self.behind), device=tokens.device)
        ids = nn.functional.pad(tokens - 1, (0, len(self.behind))).clamp_min(0)
        for offset, token in enumerate(self.behind):
            ids = torch.where(places == lengths + offset, token, ids)
        mask = places < lengths + len(self.behind)
        for token in reversed(self.before):
            ids = nn.functional.pad(ids, (1, 0), value=token)
            mask = nn.functional.pad(mask, (1, 0), value=True)
        states = self.model(input_ids=torch.where(mask, ids, 0), attention_mask=mask.long()).last_hidden_state
        return (states * mask.unsqueeze(2)).sum(1) / mask.sum(1, keepdim=True)


class WordMean(nn.Module):
    """The mean of fixed vectors of tokens; they stay half as precise as they came, which is all there is to them."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, dtype=torch.float16)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = (tokens != 0).unsqueeze(2)
        vectors = self.embedding((tokens - 1).clamp_min(0)).float()
        return (vectors * mask).sum(1) / mask.sum(1).clamp_min(1)


def pool(output: Any) -> Tensor:
    """Features (N, width) of whatever a model returned: a tensor, or an object as those of transformers."""
    if not isinstance(output, Tensor):
        pooler = getattr(output, "pooler_output", None)
        # convolutional models pool by an average, which is theirs; of transformers' poolers many are untrained
        is_average = isinstance(pooler, Tensor) and pooler.dim() == 4
        output = pooler if is_average else getattr(output, "last_hidden_state", None)
    if not isinstance(output, Tensor) or output.dim() not in (2, 3, 4):
        raise ValueError(
            f"the backbone returned a {type(output).__name__}; it must return features (N, width), a map of them "
            "(N, width, H, W), states (N, places, width), or an object with `.last_hidden_state`"
        )
    return {2: output, 3: output.mean(1), 4: output.flatten(2).mean(2)}[output.dim()] if output.dim() != 2 else output


# the architectures -------------------------------------------------------------------------------------------------


def efficientnet_lite(variant: str, mean: Sequence[float], scale: Sequence[float]) -> nn.Module:
    model = import_extra("efficientnet_lite_pytorch", "efficientnet").EfficientNet.from_name(variant)
    del model._fc  # the head for ImageNet's classes
    return ImageTrunk(model, mean, scale).to(memory_format=CONVOLUTIONS)  # type: ignore[call-overload]


def timm_images(name: str, mean: Sequence[float], scale: Sequence[float]) -> nn.Module:
    if not name.replace("_", "").replace(".", "").isalnum():  # others name places to load code or weights from
        raise ValueError(f"{name!r} is no name of a timm model; give one such as resnet18")
    model = import_extra("timm", "timm").create_model(name, pretrained=False, num_classes=0)
    return ImageTrunk(model, mean, scale)


def hf_images(config: Mapping[str, Any], mean: Sequence[float], scale: Sequence[float]) -> nn.Module:
    return ImageTrunk(from_config(config), mean, scale)


def hf_texts(config: Mapping[str, Any], before: Sequence[int], behind: Sequence[int]) -> nn.Module:
    return TextTrunk(from_config(config), before, behind)


ARCHITECTURES: Mapping[str, Callable[..., nn.Module]] = MappingProxyType(
    {
        "efficientnet_lite": efficientnet_lite,
        "timm_images": timm_images,
        "hf_images": hf_images,
        "hf_texts": hf_texts,
        "word_mean": WordMean,
    }
)


def from_config(config: Mapping[str, Any]) -> nn.Module:
    """A model of transformers', by its configuration alone: nothing is fetched, and no code but the package's runs."""
    transformers = import_extra("transformers", "hf")
    kind = choose(dict(transformers.CONFIG_MAPPING.items()), config["model_type"], "model type of transformers")
    usual = kind().to_dict()
    if odd := [name for name, value in config.items() if name not in usual or name[0] == "_" or not _is_plain(value)]:
        raise ValueError(f"{odd[0]} is no number or name that {config['model_type']} is built by")
    configuration = kind(**{name: value for name, value in config.items() if name != "model_type"})
    return transformers.AutoModel.from_config(configuration, attn_implementation="eager", trust_remote_code=False)


UNSAVED = ("transformers_version", "architectures", "dtype", "return_dict", "problem_type")


def plain_config(config: Any) -> dict[str, Any]:
    """Of a configuration of transformers' the numbers and names that say how the model is built."""
    usual = type(config)().to_dict()
    return {
        name: value
        for name, value in config.to_dict().items()
        if name in usual and name[0] != "_" and name not in UNSAVED and _is_plain(value)
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(item) and not isinstance(item, list | tuple) for item in value)
    return value is None or isinstance(value, bool | int | float | str)


def from_description(architecture: str, arguments: Mapping[str, Any]) -> nn.Module:
    """What a model file names, once it is of a size that can be built."""
    build = choose(ARCHITECTURES, architecture, "architecture of a backbone")
    _check("backbone", arguments)
    try:
        return build(**arguments).eval()
    except FOREIGN as error:
        if isinstance(error, ValueError) and "pip install" in str(error):
            raise
        raise ValueError(f"the backbone {architecture!r} cannot be built ({error}); save the model anew") from None


def _check(name: str, value: Any) -> None:
    """Refuse what would take long, or much memory, to build."""
    if isinstance(value, Mapping):
        if len(value) > MOST_LAYERS:
            raise ValueError(f"the backbone's {name} has {len(value)} entries; at most {MOST_LAYERS} are read")
        for key, item in value.items():
            _check(str(key), item)
    elif isinstance(value, list | tuple):
        if len(value) > MOST_LAYERS or any(isinstance(item, list | tuple | Mapping) for item in value):
            raise ValueError(f"the backbone's {name} is no short list of numbers; save the model anew")
        for item in value:
            _check(name, item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        most = MOST_LAYERS if any(part in name for part in ("layer", "depth", "block", "stage")) else MOST_UNITS
        if not -MOST_UNITS <= value <= most:
            raise ValueError(f"the backbone's {name} {value!r} is not a number up to {most}; save the model anew")
    elif isinstance(value, str) and len(value) > MOST_LAYERS:
        raise ValueError(f"the backbone's {name} has {len(value)} characters; at most {MOST_LAYERS} are read")


def unfreeze(trunk: nn.Module, last: bool) -> nn.Module:
    """The trunk with all its parameters to be trained, or those of its last blocks alone.

    The blocks are the longest row of modules in it, and its last quarter is trained with whatever comes behind.
    """
    parameters = dict(trunk.named_parameters())
    trains = [value.is_floating_point() and value.dtype == torch.float32 for value in parameters.values()]
    if last:
        rows = [
            [f"{name}.{child}." for child, part in module.named_children() if next(part.parameters(), None) is not None]
            for name, module in trunk.named_modules()
            if isinstance(module, nn.ModuleList | nn.Sequential)
        ]
        blocks = max(rows, key=len, default=[])
        if len(blocks) < 2:
            raise ValueError("tune 'last' needs a backbone with a row of blocks, and there is none; choose 'all'")
        first = blocks[-max(1, len(blocks) // 4)]
        start = next(at for at, each in enumerate(parameters) if each.startswith(first))
        trains = [able and at >= start for at, able in enumerate(trains)]
    for parameter, train in zip(parameters.values(), trains, strict=True):
        parameter.requires_grad_(train)
    return trunk


class Tuned(nn.Module):
    """A trunk in training, of which the parts that are not trained stay as in prediction: batch norm and dropout."""

    def __init__(self, trunk: nn.Module) -> None:
        super().__init__()
        self.trunk = trunk

    def forward(self, x: Tensor) -> Tensor:
        return self.trunk(x)

    def train(self, mode: bool = True) -> "Tuned":
        super().train(mode)
        for module in self.trunk.modules():
            own = list(module.parameters())
            if own and not any(parameter.requires_grad for parameter in own):
                module.eval()
        return self
