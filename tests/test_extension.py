"""A module of a user's, with one of each kind, goes wherever demur's own go."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import demur
from demur.classifier.export import export_onnx
from demur.measures import measures_with, ood_metrics
from demur.methods import METHODS, method_rank, parse_method, split_method
from demur.metrics import METRICS, Metric, metric_named
from demur.names import choose, choose_or_import
from demur.predictive import predict
from demur.scores import MEASURED, Score, score_named
from demur.tasks import Store
from tests.conftest import make_task
from tests.test_cli import demur_command
from tests.test_images import write as write_images

MODULE = '''
"""One of each kind."""

from dataclasses import dataclass
from functools import partial

import numpy as np

import demur
from demur.metrics import Metric
from demur.scores import Score
from demur.study import study
from tests.conftest import make_task


def hedged(num_classes):
    """Outlier exposure, and its label a none class as well."""
    label = (0.5 / num_classes,) * num_classes + (0.5,)
    return demur.Likelihood(num_classes, demur.Categorical(), demur.Outliers(demur.Categorical(), label))


@dataclass(frozen=True)
class Twice:
    """Two networks."""

    def parts(self, recipe):
        return demur.Ensemble(members=2).parts(recipe)

    def fit(self, network, likelihood, data, recipe, parts=()):
        return demur.Ensemble(members=2).fit(network, likelihood, data, recipe, parts)


def farther(inliers, generator):
    """Outliers, for any kind of data that is numbers."""
    return 3 * inliers.flip(-1)


def least(prediction):
    return prediction.probs.amin(1).double().numpy()


runner_up = Score(
    "runner_up",
    "runner-up",
    lambda prediction, fitted: prediction.probs.topk(2).values[:, 1].double().numpy(),
    bounded=False,
)


def learn_mean(training):
    return {"mean": training.features.mean(0)}


def distance(prediction, fitted):
    return (prediction.features - fitted["mean"]).norm(dim=1).double().numpy()


from_mean = Score("from_mean", "distance from the mean", distance, needs=("features",), fit=learn_mean)


def second(prediction, y):
    """Whether the right class is among the first two."""
    return float((prediction.probs.topk(2).indices == y[:, None]).any(1).double().mean())


top_two = Metric("top two", second, higher_is_better=True)


def clouds():
    return make_task()


network = partial(demur.mlp, inputs=4, hidden=(8,))
grid = study(
    ["mine:clouds"],
    network,
    ["la+mine:hedged", "mine:Twice+nc", "mine:Twice"],
    recipe=demur.Recipe(epochs=1, batch_size=32),
)
'''
# a study of one of demur's tasks, with outliers of one's own
IMAGES = """
import mine
from dataclasses import replace
from functools import partial

pixels = partial(mine.demur.mlp, inputs=784, hidden=(8,))
plain = mine.study(["mnist"], pixels, ["map+nc"], recipe=mine.demur.Recipe(epochs=1, batch_size=32))
grid = replace(plain, cells=tuple(replace(cell, outliers="mine:farther") for cell in plain.cells))
"""
pytestmark = pytest.mark.filterwarnings("ignore:the best prior precision", "ignore:every prior precision")


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the module, which is the current one, as it is on the command line."""
    (tmp_path / "mine.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    return tmp_path


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize("name", ["map+mine:hedged", "mine:Twice", "mine:Twice+nc", "mine:Twice+mine:hedged"])
def test_a_method_is_parsed_fitted_and_predicted_with(name: str):
    method, task = parse_method(name), make_task()
    assert method.name == name
    likelihood = method.likelihood(task.num_classes)
    network = choose_or_import({}, "mine:network", "network")
    posterior = method.inference.fit(network, likelihood, task.training, demur.Recipe(epochs=1))
    prediction = predict(posterior, likelihood, task.testing.test.x)
    total = prediction.probs.sum(1) + (0 if prediction.none is None else prediction.none)
    torch.testing.assert_close(total, torch.ones(len(total)))


@pytest.mark.usefixtures("mine")
def test_scores_and_metrics_are_taken_as_records_or_as_functions():
    own = measures_with(["mine:second", "mine:top_two"], ["mine:least", "mine:runner_up"])
    assert list(own.metrics) == [*METRICS, "mine:second", "mine:top_two"]
    assert list(own.scores) == [*MEASURED, "mine:least", "mine:runner_up"]
    assert isinstance(own.metrics["mine:second"], Metric)
    assert isinstance(own.scores["mine:least"], Score)
    assert own.metrics["mine:top_two"].title == "top two"
    probs = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1]])
    prediction = demur.Prediction(probs, None, torch.zeros(2))
    assert own.metrics["mine:second"](prediction, torch.tensor([1, 2])) == 0.5
    assert {"mine:least_fpr95", "mine:runner_up_auroc_out"} <= ood_metrics(prediction, prediction, own.scores).keys()


@pytest.mark.usefixtures("mine")
def test_run():
    asked = ("run", "mine:clouds", "la+mine:hedged", "--epochs", "1", "--json", "out.json")
    own = ("--network", "mine:network", "--score", "mine:least", "--metric", "mine:top_two")
    done = demur_command(*asked, *own)
    assert done.returncode == 0, done.stderr
    assert "by mine:least" in done.stdout
    record = json.loads(Path("out.json").read_text())
    assert record["method"] == "la+mine:hedged"
    assert 0 <= record["metrics"]["mine:top_two"] <= 1
    assert 0 <= record["ood"]["around"]["mine:least_fpr95"] <= 1
    without = demur_command(*asked)
    assert (without.returncode, without.stderr.count("\n")) == (2, 1)
    assert "--network mypackage.mymodule:name" in without.stderr


@pytest.mark.usefixtures("mine")
def test_a_study_in_other_processes_and_its_report():
    done = demur_command("study", "mine.py", "--runs", "runs", "--jobs", "2")
    assert done.returncode == 0, done.stderr
    own = ("--score", "mine:least", "--score", "mine:runner_up", "--metric", "mine:second")
    reported = demur_command("report", "runs", "--out", "out", "--jobs", "2", *own)
    assert reported.returncode == 0, reported.stderr
    with Path("out/results.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["method"] for row in rows} == {"la+mine:hedged", "mine:Twice+nc", "mine:Twice"}
    bounded = {row["metric"]: bool(row["low"]) for row in rows if row["set"] == "around"}
    assert (bounded["mine:least_fpr95"], bounded["mine:runner_up_fpr95"]) == (True, False)
    assert all(row["value"] for row in rows if row["metric"] == "mine:second")
    again = demur_command("study", "mine:grid", "--runs", "runs", "--dry-run")
    assert again.stdout.startswith("3 cells, 3 done")


@pytest.mark.usefixtures("mine")
def test_a_report_needs_nothing_of_the_module_that_methods_came_from():
    done = demur_command("study", "mine.py", "--runs", "runs", "--jobs", "1")
    assert done.returncode == 0, done.stderr
    Path("mine.py").unlink()
    reported = demur_command("report", "runs", "--out", "out", "--jobs", "1")
    assert reported.returncode == 0, reported.stderr


@pytest.mark.usefixtures("mine")
def test_a_classifier_of_ones_own_parts_is_saved_evaluated_and_exported():
    task = make_task(count=300)
    x, y = task.training.train.x.numpy(), task.training.train.y.numpy()
    own = {"method": "mine:Twice+mine:hedged", "synthetic": "mine:farther"}
    model = demur.Classifier(**own, epochs=2, random_state=0).fit(x, y)
    assert {name: model.report_[name] for name in ("method", "outliers")} == dict(
        zip(("method", "outliers"), own.values(), strict=True)
    )
    model.save("model.demur")
    same = demur.load_model("model.demur")
    assert (same.decide(x) == model.decide(x)).all()
    np.testing.assert_allclose(same.outlier_score(x, "mine:least"), same.prediction(x).probs.amin(1), rtol=1e-6)
    with Path("test.csv").open("w") as file:
        writer = csv.writer(file)
        writer.writerow(["a", "b", "c", "d", "label"])
        writer.writerows([*row, label] for row, label in zip(x.tolist(), y.tolist(), strict=True))
    np.savetxt("others.csv", 3 * x, delimiter=",", header="a,b,c,d", comments="")
    asked = (
        "fit",
        "test.csv",
        "-o",
        "fitted",
        "--method",
        own["method"],
        "--outliers",
        own["synthetic"],
        "--epochs",
        "1",
    )
    fitted = demur_command(*asked)
    assert fitted.returncode == 0, fitted.stderr
    assert "mine:farther" in fitted.stdout
    predicted = demur_command("predict", "fitted", "others.csv")
    assert predicted.returncode == 0, predicted.stderr
    assert len(predicted.stdout.splitlines()) == len(x) + 1
    evaluated = ("evaluate", "model.demur", "test.csv", "--ood", "others.csv", "--score")
    own = ("--score", "energy", "--metric", "mine:second", "--metric", "mine:top_two", "--report", "page")
    done = demur_command(*evaluated, "mine:least", *own)
    assert done.returncode == 0, done.stderr
    assert "mine:least" in done.stdout
    assert "energy" in done.stdout
    with Path("page/evaluation.csv").open(encoding="utf-8") as file:
        values = {(row["set"], row["metric"]): float(row["value"]) for row in csv.DictReader(file)}
    ranks = (-same.predict_proba(x)).argsort(1)
    among_two = float((ranks[:, :2] == np.searchsorted(same.classes_, y)[:, None]).any(1).mean())
    assert values["inliers", "mine:second"] == values["inliers", "mine:top_two"] == pytest.approx(among_two)
    assert "top two (%)" in Path("page/index.html").read_text("utf-8")
    refused = demur_command(*evaluated, "knn")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "learns from training inputs" in refused.stderr
    pytest.importorskip("onnxruntime")
    export_onnx(same, Path("model.onnx"))


@pytest.mark.usefixtures("mine")
def test_outliers_of_ones_own_are_shown_in_a_study_and_name_files_that_windows_allows(mine: Path):
    store = Store(mine / "store")
    for name in ("mnist", "fashion_mnist"):
        write_images(store, name, "train", 70, 10)
        write_images(store, name, "test", 40, 10)
    task = demur.load_task("mnist", store=store, outliers="mine:farther")
    assert torch.equal(task.training.shown.epoch(torch.Generator()), 3 * task.training.train.x.flip(-1))
    (mine / "images.py").write_text(IMAGES)
    done = demur_command("study", "images:grid", "--runs", "runs", "--data", "store", "--jobs", "1")
    assert done.returncode == 0, done.stderr
    reported = demur_command("report", "runs", "--out", "out", "--jobs", "1")
    assert reported.returncode == 0, reported.stderr
    assert Path("out/tables/measured-mnist-mine.farther.md").exists()
    assert not [path for folder in ("runs", "out") for path in Path(folder).rglob("*:*")]


# errors -------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("la+nowhere:hedged", "needs the module 'nowhere', which is neither installed nor in"),
        ("la+mine:hegded", "mine has no 'hegded'; did you mean 'hedged'"),
        ("la+mine:zzz", "mine has no 'zzz'; define it there"),
        ("la+mine:", "not written as mypackage.mymodule:name"),
        ("mine:hedged:x+nc", "not written as mypackage.mymodule:name"),
        ("lx+mine:hedged", "unknown inference 'lx'; did you mean"),
        ("la+mine:clouds", "likelihood 'mine:clouds' is not a function from a number of classes"),
        ("la+mine:network", "likelihood 'mine:network' is not a function from a number of classes"),
        ("mine:clouds+nc", "which has not both fit"),
        ("mine:hedged+nc", "cannot be made without arguments"),
        ("la+mine.sub:hedged", "cannot be imported .ModuleNotFoundError"),
    ],
)
def test_what_cannot_be_found_is_said_in_a_sentence(name: str, says: str):
    with pytest.raises(ValueError, match=says):
        parse_method(name)


def test_an_error_in_the_module_is_told_with_its_place(mine: Path):
    (mine / "faulty.py").write_text("x = 1\ny = x / 0\n")
    with pytest.raises(ValueError, match=r"ZeroDivisionError: division by zero, .*faulty.py line 2"):
        score_named("faulty:x")


@pytest.mark.usefixtures("mine")
def test_what_is_no_score_or_metric_is_refused():
    for named, kind in ((score_named, "score"), (metric_named, "metric")):
        with pytest.raises(ValueError, match=f"{kind} 'mine:__doc__' is .*, not a function"):
            named("mine:__doc__")


def test_names_in_files_import_nothing(mine: Path):
    """`choose`, which reads model files, knows its table alone; so do records, whose methods need not be there."""
    (mine / "evil.py").write_text("raise SystemExit(3)")
    with pytest.raises(ValueError, match="unknown kind of data 'evil:x'"):
        choose({"tables": 1}, "evil:x", "kind of data")
    assert split_method("la+evil:x") == ("la", "evil:x")
    assert "evil" not in sys.modules


def test_methods_of_ones_own_come_after_demurs():
    assert sorted(["mine:Twice", "vb", "la+mine:hedged", "map"], key=method_rank) == [
        "map",
        "vb",
        "la+mine:hedged",
        "mine:Twice",
    ]
    assert sorted({*METHODS}, key=method_rank) == list(METHODS)


def test_the_package_is_a_program():
    done = subprocess.run([sys.executable, "-m", "demur", "--version"], capture_output=True, text=True, check=False)
    assert done.stdout == f"demur {demur.__version__}\n"


@pytest.mark.usefixtures("mine")
def test_a_score_that_learns_from_features_goes_through_run_study_report_and_packs():
    own = ("--score", "mine:from_mean", "--score", "knn")
    done = demur_command("run", "mine:clouds", "map", "--epochs", "1", "--network", "mine:network", *own, "--json", "a")
    assert done.returncode == 0, done.stderr
    assert 0 <= json.loads(Path("a").read_text())["ood"]["around"]["mine:from_mean_fpr95"] <= 1

    asked = ("study", "mine.py", "--runs", "runs", "--jobs", "2", "--method", "mine:Twice", *own)
    done = demur_command(*asked)
    assert done.returncode == 0, done.stderr
    assert "by mine:from_mean" in done.stdout
    assert demur_command(*asked, "--dry-run").stdout.startswith("1 cell, 1 done")
    Path("mine.py").rename("elsewhere.py")  # what is stored is reported without the module
    reported = demur_command("report", "runs", "--out", "out", "--jobs", "1")
    assert reported.returncode == 0, reported.stderr
    with Path("out/results.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {"mine:from_mean_fpr95", "knn_auroc"} <= {row["metric"] for row in rows}
    lacking = demur_command("report", "runs", "--out", "out", "--overwrite", "--jobs", "1", "--score", "vim")
    assert (lacking.returncode, "Traceback" in lacking.stderr) == (2, False)
    assert "has no values of score 'vim'; make them with: demur study ... --score vim" in lacking.stderr
    packed = demur_command("pack", "packed", "--runs", "runs")
    assert packed.returncode == 0, packed.stderr
    unpacked = demur_command("unpack", *map(str, Path("packed").iterdir()), "--runs", "again")
    assert unpacked.returncode == 0, unpacked.stderr
    assert sorted(path.name for path in Path("again").glob("*/score-*")) == [
        "score-knn.safetensors",
        "score-mine.from_mean.safetensors",
    ]
