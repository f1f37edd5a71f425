"""A model abstains by any score: through fit, decide, a file in a fresh process, evaluation, serving and export."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.metrics import roc_auc_score
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import demur
from demur.classifier.evaluation import concatenate
from demur.classifier.model_file import MANIFEST, SCORE
from demur.predictive import fit_scores, predict_scored
from demur.scores import SCORES, score_named
from demur.serving.monitor import Monitor
from demur.serving.page import histogram
from demur.training_data import Split
from tests.serving import ask, served, table
from tests.test_cli import demur_command
from tests.test_model_file import rewritten

LEARN = ("knn", "rmds", "vim", "fdbd")
GRAPHS = ("none", "max_prob", "doubt", "max_logit", "energy", "gen")
few = pytest.mark.filterwarnings("ignore:nothing will be 'unknown'", "ignore:coverage=.* needs")
tuning = pytest.mark.filterwarnings("ignore:the best prior precision", "ignore:every prior precision")
pytestmark = [few, tuning]
X, Y = table(600)
FRESH, TRUTH = table(200, seed=1)
FAR = FRESH + 40.0


def fitted(score: str, method: str = "la+nc", **more) -> demur.Classifier:
    return demur.Classifier(
        method, "mlp", epochs=8, device="cpu", abstain_by=score, validation=0.4, random_state=0, **more
    ).fit(X, Y)


@pytest.fixture(scope="module")
def models() -> dict[str, demur.Classifier]:
    return {name: fitted(name) for name in SCORES}


@parametrize_with_checks(
    [
        demur.Classifier("map", epochs=3, batch_size=32, lr=5e-3, device="cpu", abstain_by="knn"),
        demur.Classifier("map", epochs=3, batch_size=32, lr=5e-3, device="cpu", abstain_by="energy"),
    ]
)
def test_scikit_learn_checks(estimator, check):
    name = getattr(check, "func", check).__name__
    if name in ("check_classifiers_train", "check_classifiers_classes"):
        estimator.set_params(epochs=12)
    check(estimator)


@pytest.mark.parametrize("name", SCORES)
def test_the_decision_the_p_values_and_the_monitor_are_by_that_score(models, name):
    model = models[name]
    values, answers = model.outlier_score(FRESH), model.predict_all(FRESH)
    assert model.decision_.score == name
    assert (values == model.outlier_score(FRESH, name)).all()
    assert (answers.outlier_score == values).all()
    accepted = values <= model.decision_.accept[0]
    assert ((answers.decision == answers.label) == accepted).all()
    assert (accepted == (answers.p_value > 1 - 0.95 + 1e-12)).all()
    unknown = model.decision_.unknown[0]
    assert unknown is not None
    assert ((answers.decision == "unknown") == (~accepted & (values > unknown))).all()
    assert accepted.mean() > 0.85
    monitor = Monitor.of(model)
    monitor.observe(values.tolist(), (~accepted).tolist(), [str(label) for label in answers.label])
    assert monitor.report().alarm is None
    monitor.observe([float(np.inf)] * 200, [True] * 200, [str(answers.label[0])] * 200)
    assert monitor.report().alarm is not None
    drawn = histogram(model)
    assert drawn is not None
    assert sum(drawn["counts"]) == drawn["total"] == model.decision_.count


@pytest.mark.parametrize("name", LEARN)
def test_a_score_of_features_has_learned_from_the_rows_that_were_trained_with(models, name):
    model = models[name]
    rows = np.setdiff1d(np.arange(len(X)), model.held_out_)
    x, y = model.inputs(X.iloc[rows]), torch.from_numpy(np.searchsorted(model.classes_, np.array(Y)[rows]))
    score = SCORES[name]
    learned = fit_scores([score], model.posterior_, model.likelihood_, Split(x, y))
    made = predict_scored(model.posterior_, model.likelihood_, model.inputs(FRESH), [score], learned)
    np.testing.assert_allclose(model.outlier_score(FRESH), made.scores[name], rtol=1e-3, atol=1e-6)


def test_rows_that_are_trained_with_again_and_again_are_learned_from_once():
    rare = np.array([label == "low" or place % 8 == 1 for place, label in enumerate(Y)])
    x, y = X[rare], np.array(Y)[rare]
    model = demur.Classifier("map", epochs=1, balance=True, device="cpu", abstain_by="knn").fit(x, y)
    assert len(model.fitted_scores_["knn"]["neighbours"]) == len(x) - len(model.held_out_)


def test_without_a_name_the_score_is_what_it_was():
    assert demur.Classifier("map+nc", epochs=1, device="cpu").fit(X, Y).decision_.score == "none_share"
    assert demur.Classifier("map", epochs=1, device="cpu").fit(X, Y).decision_.score == "entropy"


class Headless(nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.last = nn.Linear(3, outputs)

    def forward(self, x):
        return self.last(x)


@pytest.mark.parametrize(
    ("method", "network", "score", "said"),
    [
        ("map", None, "none", "needs a none class; choose a method that ends in"),
        ("la", None, "none_share", "needs a none class"),
        ("map+nc", None, "mutual_information", "samples differ, and 'map' has one; choose another"),
        ("map", None, "logit_variance", "samples differ, and 'map' has one"),
        ("map", Headless, "knn", "no .features and .head"),
        ("map", None, "enrgy", "did you mean 'energy'"),
        ("map", None, 3, "no name of a score"),
        ("map", None, "tests.test_abstaining:a_list", "not a function of a Prediction"),
        ("map", None, "tests.test_abstaining:too_many", r"shape \(2, 2\) for 2 inputs"),
        ("map", None, "tests.test_abstaining:not_a_number", "NaN or infinite for"),
    ],
)
def test_a_score_that_a_model_cannot_have_is_refused(method, network, score, said):
    with pytest.raises(ValueError, match=said) as caught:
        demur.Classifier(method, network, epochs=1, device="cpu", abstain_by=score).fit(X, Y)
    assert "\n" not in str(caught.value)


a_list = [1]


def too_many(prediction):
    return prediction.probs.numpy()


def not_a_number(prediction):
    return np.full(len(prediction), np.nan)


def test_few_inliers_leave_nothing_unknown_and_it_is_said():
    with pytest.warns(UserWarning, match="nothing will be 'unknown', only 'unsure': score 'energy'.*99 inliers"):
        model = demur.Classifier("map", epochs=1, device="cpu", abstain_by="energy").fit(X, Y)
    assert model.decision_.unknown == (None,)
    assert "unknown" not in model.decide(FAR)


ANSWER = """
import json, sys
import numpy as np, demur
model = demur.load_model(sys.argv[1], device="cpu", abstain_by=sys.argv[3] if len(sys.argv) > 3 else None)
x = np.load(sys.argv[2])
import pandas as pd
said = model.predict_all(pd.DataFrame(x, columns=["a", "b", "c"]))
print(json.dumps([said.outlier_score.tolist(), said.decision.tolist(), said.p_value.tolist()]))
"""


@pytest.mark.parametrize("name", ["energy", "logit_variance", *LEARN])
def test_a_file_keeps_the_score(models, name, tmp_path):
    model = models[name]
    path = tmp_path / "model.demur"
    model.save(path)
    loaded = demur.load_model(path, device="cpu")
    said, again = model.predict_all(FRESH), loaded.predict_all(FRESH)
    assert (said.outlier_score == again.outlier_score).all()
    assert (said.decision == again.decision).all()
    assert loaded.get_params()["abstain_by"] == name
    loaded.save(tmp_path / "again")
    assert (tmp_path / "again" / SCORE).exists() == (name in LEARN)


def in_a_fresh_process(path: Path, *more: str) -> list:
    np.save(path.parent / "x.npy", FRESH.to_numpy())
    command = [sys.executable, "-c", ANSWER, str(path), str(path.parent / "x.npy"), *more]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=path.parent, timeout=120)
    if ran.returncode:
        return [ran.stderr.splitlines()[-1]]
    return json.loads(ran.stdout)


def test_a_fresh_process_gives_the_same(models, tmp_path):
    models["vim"].save(tmp_path / "model.demur")
    said = models["vim"].predict_all(FRESH)
    scores, decisions, p_values = in_a_fresh_process(tmp_path / "model.demur")
    np.testing.assert_array_equal(scores, said.outlier_score)
    assert decisions == said.decision.tolist()
    np.testing.assert_array_equal(p_values, said.p_value)


OWN = """
import torch
from demur.scores import Score

def least(prediction):
    return prediction.probs.amin(1).double().numpy()

def learn(training):
    return {"mean": training.features.mean(0)}

def distance(prediction, fitted):
    return (prediction.features - fitted["mean"]).norm(dim=1).double().numpy()

from_mean = Score("from_mean", "distance from the mean", distance, needs=("features",), fit=learn)
"""


@pytest.mark.parametrize("name", ["own_scores:least", "own_scores:from_mean"])
def test_a_score_of_ones_own_is_imported_only_where_its_user_names_it(name, tmp_path, monkeypatch):
    (tmp_path / "own_scores.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.delitem(sys.modules, "own_scores", raising=False)
    model = fitted(name, "map+nc")
    model.save(tmp_path / "model")
    said = model.predict_all(FRESH)
    assert in_a_fresh_process(tmp_path / "model", name)[0] == said.outlier_score.tolist()
    with pytest.raises(ValueError, match="a score of your own"):
        demur.load_model(tmp_path / "model")
    with pytest.raises(ValueError, match="not by 'energy'"):
        demur.load_model(tmp_path / "model", abstain_by="energy")

    def pretend(saved):
        saved["decision"]["score"] = "os:system"

    rewritten(tmp_path / "model", pretend)
    with pytest.raises(ValueError, match="a score of your own, 'os:system'"):
        demur.load_model(tmp_path / "model")


def change_score(folder: Path, change) -> None:
    """Changed by someone who knows how to make the hashes right."""
    import hashlib

    tensors = load_file(folder / SCORE)
    tensors = change(tensors) or tensors
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / SCORE)
    manifest, content = json.loads((folder / MANIFEST).read_text()), (folder / SCORE).read_bytes()
    manifest["parts"][SCORE] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("knn", lambda t: {"k": t["k"]}, "other names"),
        ("knn", lambda t: t.update(neighbours=t["neighbours"][:, 1:]), "neighbours"),
        ("knn", lambda t: t.update(neighbours=t["neighbours"].half()), "empty or no number"),
        ("knn", lambda t: t.update(neighbours=t["neighbours"] / 0), "NaN or infinite"),
        ("knn", lambda t: t.update(k=torch.tensor(10**6)), "damaged"),
        ("knn", lambda t: t.update(k=torch.tensor(-1)), "damaged"),
        ("rmds", lambda t: t.update(means=t["means"].repeat(9, 1)), "means"),
        ("rmds", lambda t: t.update(means=torch.zeros(10**6, 0)), "empty or no number"),
        ("rmds", lambda t: t.update(mean=t["mean"][1:]), "mean"),
        ("vim", lambda t: t.update(residual=t["residual"].T[:3]), "residual"),
        ("fdbd", lambda t: t.update(weight=t["weight"].repeat(9, 1), bias=t["bias"].repeat(9)), "weight|bias"),
    ],
)
def test_what_a_score_learned_is_checked(models, tmp_path, name, change, said):
    models[name].save(tmp_path / "model")
    change_score(tmp_path / "model", change)
    with pytest.raises(ValueError, match=said):
        demur.load_model(tmp_path / "model")


def test_a_part_that_is_absent_or_too_much_is_noticed(models, tmp_path):
    models["knn"].save(tmp_path / "model")
    content = bytearray((tmp_path / "model" / SCORE).read_bytes())
    content[-1] ^= 1
    (tmp_path / "model" / SCORE).write_bytes(content)
    with pytest.raises(ValueError, match=r"score\.safetensors is not what was saved"):
        demur.load_model(tmp_path / "model")
    for saved, claimed in (("knn", "energy"), ("energy", "knn")):
        models[saved].save(tmp_path / saved)
        rewritten(tmp_path / saved, lambda model, claimed=claimed: model["decision"].update(score=claimed))
        with pytest.raises(ValueError, match="absent or too much"):
            demur.load_model(tmp_path / saved)


def test_evaluate_measures_it_and_calibrate_goes_by_it(models, tmp_path):
    data = FRESH.assign(label=TRUTH)
    data.to_csv(tmp_path / "test.csv", index=False)
    FAR.to_csv(tmp_path / "far.csv", index=False)
    models["knn"].save(tmp_path / "model.demur")
    ran = demur_command(
        "evaluate", str(tmp_path / "model.demur"), str(tmp_path / "test.csv"), "--ood", str(tmp_path / "far.csv"),
        "--score", "knn", "--report", str(tmp_path / "report"),
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    rows = [line.split(",") for line in (tmp_path / "report" / "evaluation.csv").read_text().splitlines()]
    found = {(of, score, metric): float(value) for of, score, metric, value in rows[1:]}
    own = models["knn"]
    both = np.concatenate([own.outlier_score(FRESH), own.outlier_score(FAR)])
    expected = roc_auc_score(np.repeat([0, 1], [len(FRESH), len(FAR)]), both)
    assert found["far", "knn", "auroc"] == pytest.approx(expected)
    ran = demur_command(
        "calibrate",
        str(tmp_path / "model.demur"),
        str(tmp_path / "test.csv"),
        "-o",
        str(tmp_path / "new.demur"),
        "--coverage",
        "0.8",
    )
    assert ran.returncode == 0, ran.stderr
    scores = demur.load_model(tmp_path / "new.demur", device="cpu").outlier_score(FRESH)
    limit = demur.load_model(tmp_path / "new.demur", device="cpu").decision_.accept[0]
    assert (scores <= limit).mean() == pytest.approx(0.81, abs=0.011)


def test_fit_takes_the_name_and_serving_answers_by_it(tmp_path):
    X.assign(label=Y).to_csv(tmp_path / "train.csv", index=False)
    fit = ("fit", tmp_path / "train.csv", "-o", tmp_path / "model.demur", "--epochs", "2", "--seed", "1")
    ran = demur_command(*map(str, fit), "--method", "map", "--abstain-by", "none")
    assert ran.returncode == 2
    assert "needs a none class" in ran.stderr
    (tmp_path / "mine.py").write_text("def first(prediction):\n    return prediction.probs[:, 0].double().numpy()\n")
    own = (*fit[:3], tmp_path / "own.demur", *fit[4:], "--method", "map", "--abstain-by", "mine:first")
    assert "for Python alone: demur.load_model(" in demur_command(*map(str, own), cwd=tmp_path).stdout
    ran = demur_command(*map(str, fit), "--method", "map", "--abstain-by", "rmds")
    assert ran.returncode == 0, ran.stderr
    model = demur.load_model(tmp_path / "model.demur", device="cpu")
    assert model.decision_.score == "rmds"
    with served({"m": tmp_path / "model.demur"}) as (port, _):
        _, said, _ = ask(port, "/v1/models/m/predict", {"inputs": FRESH[:3].to_dict("records")})
    found = [each["outlier_score"] for each in said["answers"]]
    np.testing.assert_allclose(found, model.outlier_score(FRESH[:3]), rtol=1e-6)


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_have_the_scores_of_probabilities_and_logits(models, name, tmp_path):
    import onnxruntime

    from demur.classifier.export import export_onnx

    model = models[name]
    export_onnx(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    _, scores, decision = session.run(None, {"input": FRESH.to_numpy()})
    np.testing.assert_allclose(scores, model.outlier_score(FRESH), rtol=1e-4, atol=1e-4)
    assert (decision == model.decide(FRESH).astype(str)).mean() > 0.99


@pytest.mark.parametrize("name", [*LEARN, "mutual_information", "logit_variance"])
def test_other_scores_are_not_exported(models, name, tmp_path):
    from demur.classifier.export import export_onnx

    with pytest.raises(ValueError, match=f"abstains by '{name}' cannot be exported; fit one that abstains by"):
        export_onnx(models[name], tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_predictions_in_batches_keep_the_score(models):
    whole = models["knn"].prediction(FRESH)
    parts = concatenate([models["knn"].prediction(FRESH[:70]), models["knn"].prediction(FRESH[70:])])
    np.testing.assert_allclose(parts.scores["knn"], whole.scores["knn"], atol=1e-6)


def test_another_score_that_learns_is_refused_by_a_model_that_has_not_learned_it(models):
    with pytest.raises(ValueError, match=r"which this model does not hold; .*abstain_by='vim'"):
        models["knn"].outlier_score(FRESH, "vim")
    assert score_named("energy")(models["knn"].prediction(FRESH, [SCORES["energy"]])).shape == (len(FRESH),)


def test_a_network_that_is_trained_already_abstains_by_energy_as_it_is():
    network = nn.Sequential(nn.Identity(), nn.Linear(3, 2))
    network.load_state_dict({"1.weight": torch.tensor([[1.0] * 3, [-1.0] * 3]), "1.bias": torch.zeros(2)})
    x = torch.tensor(X.to_numpy(), dtype=torch.float32)
    model = demur.adopt(network, x, np.array(Y), method="map", epochs=0, abstain_by="energy", device="cpu")
    with torch.no_grad():
        expected = -network(x[:5]).logsumexp(1)
    np.testing.assert_allclose(model.outlier_score(x[:5]), expected, rtol=1e-4)
