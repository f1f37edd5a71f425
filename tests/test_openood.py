"""OpenOOD's protocol on a small tree laid out as OpenOOD's: lists are read, and near and far sets are measured."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import roc_auc_score, roc_curve

from demur.data.adding import add
from demur.data.store import Store
from demur.networks import lenet, resnet18_32
from demur.paper import openood
from demur.paper.openood import BENCHMARKS, OpenOODData
from demur.paper.studies import study_named
from demur.report.openood import measure, near_and_far
from demur.study.cells import Place
from demur.study.engine import results_of
from demur.study.grid import select
from tests.test_cli import demur_command


def write_tree(root: Path) -> Path:
    """Lists of images for cifar10, a near set of 64 pixels, and far sets: grey, and of different sizes."""
    rng = np.random.default_rng(0)
    sets = {
        "train_cifar10": ("cifar10/train", 24, (32, 32, 3), range(10)),
        "val_cifar10": ("cifar10/test", 6, (32, 32, 3), range(10)),
        "test_cifar10": ("cifar10/test", 30, (32, 32, 3), range(10)),
        "test_tin": ("tin/val", 12, (64, 64, 3), [-1]),
        "test_mnist": ("mnist/test", 12, (28, 28), [-1]),
        "test_texture": ("texture", 12, None, [-1]),
        "train_tin597": ("tin597/train", 24, (64, 64, 3), [-1]),
    }
    lists = root / "benchmark_imglist" / "cifar10"
    lists.mkdir(parents=True)
    for name, (folder, count, shape, labels) in sets.items():
        lines = []
        for number in range(count):
            size = shape or (rng.integers(33, 60), rng.integers(33, 60), 3)
            path = f"{folder}/{name} {number:04}.png"
            (root / "images_classic" / folder).mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(256, size=size, dtype=np.uint8)).save(root / "images_classic" / path)
            lines.append(f"{path} {labels[number % len(labels)]}")
        (lists / f"{name}.txt").write_text("\n".join(lines) + "\n")
    return lists


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> tuple[Path, Path]:
    """The lists, and a store that all of them were added to."""
    root = tmp_path_factory.mktemp("openood")
    lists, store = write_tree(root), root / "store"
    for file in sorted(lists.iterdir()):
        assert add(Store(store), file.stem.partition("_")[2], file)
    return lists, store


def test_lists_become_splits_with_the_listed_images_and_labels(tree):
    lists, folder = tree
    store = Store(folder)
    x, y = store.images("cifar10", "train")
    first = Image.open(lists.parents[1] / "images_classic/cifar10/train/train_cifar10 0003.png")
    assert (x[3].permute(1, 2, 0).numpy() == np.asarray(first)).all()
    assert y.tolist() == [number % 10 for number in range(24)]
    assert len(store.images("cifar10", "validation")[0]) == 6
    assert len(store.images("cifar10", "test")[0]) == 30
    assert store.images("tin", "test")[0].shape == (12, 3, 64, 64)
    assert store.images("tin", "test")[1] is None
    assert store.images("mnist", "test")[0].shape == (12, 1, 28, 28)
    textures = store.images("texture", "test")[0]
    assert textures.shape == (12, 3, 32, 32)
    image = Image.open(lists.parents[1] / "images_classic/texture/test_texture 0000.png")
    scale = 32 / min(image.size)
    resized = image.resize([round(side * scale) for side in image.size], Image.Resampling.BILINEAR)
    left, top = ((side - 32) // 2 for side in resized.size)
    middle = np.asarray(resized.crop((left, top, left + 32, top + 32)), float)
    assert np.abs(textures[0].permute(1, 2, 0).numpy() - middle).mean() < 20  # but for less than a pixel of shift


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gone/a.png 1\n", "lists gone/a.png, which lies neither beside it"),
        ("a.png 1\nsomething else\n", r"line 2, is 'something else'; lines of a list are a path and a label"),
    ],
)
def test_a_list_that_leads_nowhere_is_refused(tmp_path, text, said):
    Image.new("RGB", (32, 32)).save(tmp_path / "a.png")
    (tmp_path / "train_x.txt").write_text(text)
    with pytest.raises(ValueError, match=said):
        add(Store(tmp_path / "store"), "x", tmp_path / "train_x.txt")


def test_a_listed_image_of_16_bits_is_refused(tmp_path):
    Image.new("L", (8, 8)).save(tmp_path / "a.png")
    Image.fromarray(np.full((8, 8), 300, np.uint16)).save(tmp_path / "b.png")
    (tmp_path / "train_x.txt").write_text("a.png 0\nb.png 1\n")
    with pytest.raises(ValueError, match=r"b\.png .*it has 16 bits a channel, not 8; convert it"):
        add(Store(tmp_path / "store"), "x", tmp_path / "train_x.txt")


def test_a_text_file_is_still_one(tmp_path):
    (tmp_path / "train.txt").write_text("I saw a.png 1 time\nand 2\n")
    add(Store(tmp_path / "store"), "words", tmp_path / "train.txt")
    assert Store(tmp_path / "store").texts("words", "train")[0] == ["I saw a.png 1 time", "and 2"]


def test_two_methods_run_and_near_and_far_are_scikit_learns(tree, tmp_path, monkeypatch):
    _, folder = tree
    assert openood.SETTING.network is resnet18_32
    small = replace(openood.SETTING, network=partial(lenet, channels=3, size=32, hidden=16))
    monkeypatch.setattr(openood, "SETTING", small)  # commands run in a fork of this process
    options = ("--task", "openood_cifar10", "--method", "map", "--method", "map+nc", "--seeds", "1", "--epochs", "1")
    command = ("study", "openood", *options, "--data", str(folder), "--runs", str(tmp_path / "runs"), "--device", "cpu")
    ran = demur_command(*command, "--jobs", "1", "--score", "energy")
    assert ran.returncode == 0, ran.stderr
    lines = [line.strip() for line in ran.stdout.splitlines()]
    assert {"openood_cifar10: near and far OOD", "openood_cifar10: every OOD set"} <= {*lines}
    assert any(line.split()[:3] == ["map", "max_prob", "1"] for line in lines)  # a table, not what it is made of
    study = study_named("openood")
    asked = study.of(
        select(study.cells, "openood", tasks=["openood_cifar10"], methods=["map", "map+nc"], seeds=1, epochs=1)
    )
    results = results_of(asked, Place(tmp_path / "runs", Store(folder), "cpu"), pytest.fail)
    assert [result.cell.method for result in results] == ["map", "map+nc"]
    for result in results:
        measured = measure(result)
        assert ("none_share" in measured) == (result.cell.method == "map+nc")
        assert "energy" in measured
        confidence = result.test.probs.amax(1).double().numpy()
        aurocs, fprs = {}, {}
        for name, outside in result.ood.items():
            truth = np.repeat([0, 1], [len(confidence), len(outside)])
            score = -np.concatenate([confidence, outside.probs.amax(1).double().numpy()])
            aurocs[name] = roc_auc_score(truth, score)
            fpr, tpr, _ = roc_curve(truth, score, drop_intermediate=False)
            fprs[name] = fpr[np.argmax(tpr >= 0.95)], fpr[max(0, np.argmax(tpr >= 0.95) - 1)]
        values = measured["max_prob"]
        assert values["near auroc"] == pytest.approx(aurocs["tin"])
        assert values["far auroc"] == pytest.approx(np.mean([aurocs["mnist"], aurocs["texture"]]))
        assert min(fprs["tin"]) <= values["near fpr95"] <= max(fprs["tin"])
    means, sets = near_and_far(results)
    assert any("cifar100, svhn, places365" in note for note in means.notes)
    assert [head[0] for head in sets.head[2:]] == ["tin", "mnist", "texture"]
    assert all(
        row[2] == [f"{100 * measured[row[1]][f'tin {name}']:.1f}" for name in ("auroc", "fpr95")]
        for row in sets.rows
        if row[0] == "map+nc"
    )


def test_a_store_without_any_near_set_is_told_so(tree, tmp_path):
    lists, _ = tree
    for name in ("train_cifar10", "test_cifar10", "test_mnist"):
        add(Store(tmp_path), name.partition("_")[2], lists / f"{name}.txt")
    with pytest.raises(
        ValueError, match=r"no near-OOD set of openood_cifar10 .* demur data add cifar100 benchmark_imglist"
    ):
        OpenOODData("openood_cifar10").load(Store(tmp_path))
    assert set(BENCHMARKS) == {cell.task for cell in study_named("openood").cells}
