"""Every number on the pages of `demur evaluate` and `demur compare`, computed again from the models' own answers.

The pages are read as a browser reads them. What they should say is computed by scikit-learn, or by a loop that follows
the definition, from `predict_all`, `predict_proba`, `prediction_sets` and `outlier_score`.
"""

import re
from copy import copy
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    brier_score_loss,
    confusion_matrix,
    log_loss,
    precision_score,
    recall_score,
    roc_auc_score,
)

import demur
from demur.classifier.evaluation import INLIERS
from demur.scores import MEASURED
from experiments.fuzz import called

COLUMNS = ["long", "wide", "town"]
MODELS = ("nc.demur", "plain.demur")
SETS = ("far", "strangers")


def flowers(count, seed, noise=1.3):
    """Three classes that overlap, with a category and with gaps."""
    rng = np.random.default_rng(seed)
    group = rng.choice(3, count, p=[0.5, 0.3, 0.2])
    frame = pd.DataFrame(rng.normal(size=(count, 2)) * noise + 3 * np.eye(3)[group][:, :2], columns=COLUMNS[:2])
    frame["town"] = np.where(rng.random(count) < 0.7, np.array(["Ulm", "Bonn", "Hof"])[group], "Kiel")
    frame.loc[rng.random(count) < 0.1, "wide"] = np.nan
    return frame, np.array(["aster", "broom", "clover"])[group]


class Tables(HTMLParser):
    """The tables of a page by the heading above each: rows of cells, the head first."""

    def __init__(self, page):
        super().__init__()
        self.tables, self.title, self.cell, self.heading = {}, "", None, False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.heading = tag == "h2"
        if self.heading:
            self.title = ""
        elif tag == "table":
            self.tables[self.title] = []
        elif tag == "tr":
            self.tables[self.title].append([])
        elif tag in ("td", "th"):
            self.cell = []

    def handle_data(self, data):
        if self.heading:
            self.title += data
        elif self.cell is not None:
            self.cell.append(data)

    def handle_endtag(self, tag):
        self.heading = False
        if tag in ("td", "th") and self.cell is not None:
            self.tables[self.title][-1].append(self.cell)
            self.cell = None


def tables_of(path):
    """By title and by the names of a row, what stands below each column's name."""
    found = {}
    for title, (head, *rows) in Tables(path.read_text("utf-8")).tables.items():
        names = ["".join(cell) for cell in head[1:]]
        found[title] = {
            tuple(row[0]): dict(zip(names, ("".join(cell) for cell in row[1:]), strict=True)) for row in rows
        }
        assert len(found[title]) == len(rows), f"two rows of {title!r} have one name"
    return found


def number(shown):
    return float(shown.replace(",", "").replace("·", "0"))


def assert_shows(cells, expected, where):
    """All that a row shows, and no more, rounded as it is shown; nan is a dash."""
    assert set(cells) == set(expected), where
    for name, value in expected.items():
        if np.isnan(value):
            assert cells[name] == "-", (where, name)
        else:
            digits = len(cells[name].partition(".")[2])
            assert number(cells[name]) == pytest.approx(value, abs=0.5001 * 10**-digits), (where, name)


class Answers:
    """Of one model, by the public interface alone, and what follows from it."""

    def __init__(self, path, test, y, ood):
        self.model = demur.load_model(path, device="cpu")
        self.said = {name: self.model.predict_all(x) for name, x in {INLIERS: test, **ood}.items()}
        self.accepted = {of: ~np.isin(said.decision, ["unsure", "unknown"]) for of, said in self.said.items()}
        self.score = {of: said.outlier_score for of, said in self.said.items()}
        self.probs, self.sets = self.model.predict_proba(test), self.model.prediction_sets(test)
        self.inputs, self.y, self.label = {INLIERS: test, **ood}, y, self.said[INLIERS].label
        self.wrong, self.mine = self.label != y, self.accepted[INLIERS]
        self.classes = list(self.model.classes_)

    def decided(self, of):
        """Per cent that are accepted, unsure and unknown."""
        said = self.said[of].decision
        fractions = {name: 100 * np.mean(said == name) for name in ("unsure", "unknown")}
        return {"accepted": 100 * self.accepted[of].mean(), **fractions}

    def against(self, score, of):
        inside, outside = (-self.model.outlier_score(self.inputs[name], score) for name in (INLIERS, of))
        truth, both = np.repeat([1, 0], [len(inside), len(outside)]), np.concatenate([inside, outside])
        return {
            "FPR95": 100 * np.mean(outside >= np.percentile(inside, 5)),
            "AUROC": 100 * roc_auc_score(truth, both),
            "AUPR": 100 * average_precision_score(truth, both),
        }

    def aurc(self, *ood):
        """The mean, over k, of the rate of errors among the k inputs of lowest score, equal ones in any order;
        an outlier is always one, and counts as n_in / n_out inputs."""
        scores = np.concatenate([self.score[INLIERS], *(self.score[of] for of in ood)])
        wrong = np.concatenate([self.wrong, *(np.ones(len(self.score[of])) for of in ood)])
        weight = np.concatenate(
            [np.ones(len(self.y)), *(np.full(len(self.score[of]), len(self.y) / len(self.score[of])) for of in ood)]
        )
        frame = pd.DataFrame({"errors": wrong * weight, "answered": weight}).groupby(scores).transform("mean")
        frame = frame.iloc[np.argsort(scores)]
        return 100 * np.average(frame["errors"].cumsum() / frame["answered"].cumsum(), weights=frame["answered"])

    def ece(self, chosen):
        """By fifteen bins of confidence, each closed above."""
        if not chosen.any():
            return np.nan
        sure, right = self.said[INLIERS].probability[chosen], ~self.wrong[chosen]
        bins = pd.cut(pd.Series(sure), np.linspace(0, 1, 16), include_lowest=True)
        gaps = pd.Series(sure - right).groupby(bins, observed=True).sum().abs()
        return 100 * gaps.sum() / len(sure)


def resampled(pair, rng):
    """How much more the second one's risk is, with inputs drawn with replacement, the same for both."""
    several = []
    for _ in range(300):
        drawn = {name: rng.integers(len(x), size=len(x)) for name, x in pair[0].inputs.items()}
        risk = []
        for one in pair:
            other = copy(one)
            other.score = {name: one.score[name][rows] for name, rows in drawn.items()}
            other.wrong, other.y = one.wrong[drawn[INLIERS]], one.y[drawn[INLIERS]]
            risk.append(np.mean([other.aurc(of) for of in SETS]))
        several.append(risk[1] - risk[0])
    return several


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Data, two models, the page of one and the comparison of both."""
    folder = tmp_path_factory.mktemp("pages")
    frame, y = flowers(500, seed=0)
    for name, method in zip(MODELS, ("map+nc", "map"), strict=True):
        demur.Classifier(method, epochs=12, coverage=0.8, device="cpu").fit(frame, y).save(folder / name)
    test, labels = flowers(163, seed=1)
    test.assign(label=labels).to_csv(folder / "test.csv", index=False)
    (flowers(57, seed=2)[0] + {"long": 4.0, "wide": -2.0, "town": ""}).to_csv(folder / "far.csv", index=False)
    flowers(41, seed=3)[0].assign(town="Atlantis").to_csv(folder / "strangers.csv", index=False)
    ood = [part for name in SETS for part in ("--ood", folder / f"{name}.csv")]
    data = (folder / "test.csv", *ood, "--report")
    for name in MODELS:
        assert called("evaluate", folder / name, *data, folder / f"{name}.d") == (0, "")
    assert called("compare", *(folder / name for name in MODELS), *data, folder / "both.d") == (0, "")
    return folder


@pytest.fixture(scope="module")
def answers(place):
    test = pd.read_csv(place / "test.csv")
    ood = {name: pd.read_csv(place / f"{name}.csv") for name in SETS}
    y = test.pop("label").to_numpy()
    return {name: Answers(place / name, test, y, ood) for name in MODELS}


@pytest.mark.parametrize("name", MODELS)
def test_every_number_on_the_page_of_a_model(place, answers, name):
    page, one = tables_of(place / f"{name}.d" / "index.html"), answers[name]
    y, label, accepted = one.y, one.label, one.mine
    assert 0 < accepted.mean() < 1
    assert 0 < one.wrong[accepted].mean() < one.wrong.mean()
    ((of, row),) = page.pop("Inliers").items()
    assert of == (INLIERS,)
    expected = {
        "inputs": len(y),
        "accuracy (%)": 100 * accuracy_score(y, label),
        "ECE (%)": one.ece(np.ones(len(y), bool)),
        "Brier score": brier_score_loss(y, one.probs, labels=one.classes),
        "NLL": log_loss(y, one.probs, labels=one.classes),
        "accuracy of accepted (%)": 100 * accuracy_score(y[accepted], label[accepted]),
        "ECE of accepted (%)": one.ece(accepted),
        "AURC (%)": one.aurc(),
    }
    assert_shows(row, expected, "Inliers")

    decisions = page.pop("Decisions, per cent")
    assert set(decisions) == {(of,) for of in one.said}
    for (of,), row in decisions.items():
        assert_shows(row, {"inputs": len(one.inputs[of]), **one.decided(of)}, of)

    scores = [score for score in MEASURED if name == MODELS[0] or not score.startswith("none")]
    by_score = page.pop("Outliers by score, per cent")
    assert set(by_score) == {(of, score) for of in SETS for score in scores}
    for (of, score), row in by_score.items():
        assert_shows(row, one.against(score, of), (of, score))

    rows = page.pop("Answers")
    assert set(rows) == {(f"class {name}",) for name in one.classes} | {(of,) for of in SETS}
    columns = [*one.classes, "unsure", "unknown"]
    matrix = confusion_matrix(y, one.said[INLIERS].decision.astype(str), labels=columns)
    counted = {f"class {name}": matrix[code] for code, name in enumerate(one.classes)}
    counted |= {of: [np.sum(one.said[of].decision == answer) for answer in columns] for of in SETS}
    for (of,), row in rows.items():
        total = {"inputs": sum(counted[of])}
        assert_shows(row, total | dict(zip(columns, counted[of], strict=True)), of)

    by_class = page.pop("Classes, per cent")
    assert set(by_class) == {(name,) for name in one.classes}
    everywhere = {"labels": one.classes, "average": None, "zero_division": np.nan}
    values = zip(
        one.classes,
        recall_score(y, label, **everywhere),
        recall_score(y[accepted], label[accepted], **everywhere),
        precision_score(y[accepted], label[accepted], **everywhere),
        strict=True,
    )
    for of, recall, recall_of_accepted, precision in values:
        decided = one.said[INLIERS].decision[y == of]
        expected = {
            "inputs": np.sum(y == of),
            "accuracy": 100 * recall,
            "accepted": 100 * accepted[y == of].mean(),
            "unsure": 100 * np.mean(decided == "unsure"),
            "unknown": 100 * np.mean(decided == "unknown"),
            "accuracy of accepted": 100 * recall_of_accepted,
            "precision of accepted": 100 * precision,
        }
        assert_shows(by_class[of,], expected, of)

    sets = page.pop("Prediction sets")
    holds = np.array([of in each for of, each in zip(y, one.sets, strict=True)])
    sizes = np.array([len(each) for each in one.sets])
    for (of,), row in sets.items():
        chosen = np.ones(len(y), bool) if of == "all" else y == of
        expected = {
            "inputs": chosen.sum(),
            "label is in the set (%)": 100 * holds[chosen].mean(),
            "labels in a set": sizes[chosen].mean(),
        }
        assert_shows(row, expected, of)
    assert len(sets) == 1 + len(one.classes)
    assert not page  # there is no table that is not computed again


def test_every_number_on_the_page_of_several_models(place, answers):
    page = tables_of(place / "both.d" / "index.html")
    rows = page.pop("Models, best first, per cent")
    risk = {name: np.mean([answers[name].aurc(of) for of in SETS]) for name in MODELS}
    assert [name for (name,) in rows] == sorted(risk, key=risk.__getitem__)
    first, second = (name for (name,) in rows)
    shown = {name: dict(rows[name,]) for name in MODELS}
    assert shown[first].pop("more than the first") == "-"
    low, high = map(float, shown[second].pop("more than the first").split(" to "))
    again = resampled([answers[first], answers[second]], np.random.default_rng(1))
    np.testing.assert_allclose((low, high), np.quantile(again, [0.025, 0.975]), atol=0.15 * (high - low))
    for place_of, name in enumerate((first, second), 1):
        one = answers[name]
        expected = {
            "rank": place_of,
            "AURC with outliers": risk[name],
            "accuracy": 100 * accuracy_score(one.y, one.label),
            **one.decided(INLIERS),
            "accuracy of accepted": 100 * accuracy_score(one.y[one.mine], one.label[one.mine]),
            "ECE": one.ece(np.ones(len(one.y), bool)),
            "AURC of inliers": one.aurc(),
        }
        assert_shows(shown[name], expected, name)

    rows = page.pop("Outliers, per cent")
    assert set(rows) == {(of, name) for of in SETS for name in MODELS}
    for (of, name), row in rows.items():
        one, decided = answers[name], answers[name].decided(of)
        separation = one.against(one.model.decision_.score, of)
        expected = {
            "inputs": len(one.inputs[of]),
            "abstained on": 100 - decided["accepted"],
            "unsure": decided["unsure"],
            "unknown": decided["unknown"],
            **{metric: separation[metric] for metric in ("FPR95", "AUROC")},
        }
        assert_shows(row, expected, (of, name))
    rows = page.pop("Classes, per cent")
    assert set(rows) == {(of, name) for of in answers[first].classes for name in MODELS}
    for (of, name), row in rows.items():
        one = answers[name]
        mine = one.y == of
        expected = {
            "inputs": mine.sum(),
            "accuracy": 100 * np.mean(~one.wrong[mine]),
            "accepted": 100 * one.mine[mine].mean(),
            "accuracy of accepted": 100 * np.mean(~one.wrong[mine & one.mine]),
        }
        assert_shows(row, expected, (of, name))
    assert not page


@pytest.mark.parametrize("name", MODELS)
def test_every_number_beside_a_single_input(place, answers, name):
    """Of the outliers that are accepted those of lowest score, of the inliers abstained on those of highest."""
    one, said = answers[name], cards_of(place / f"{name}.d" / "index.html")
    chosen = {f"Accepted outliers: {of}": (of, one.accepted[of], 1) for of in SETS}
    chosen |= {"Inliers abstained on": (INLIERS, ~one.accepted[INLIERS], -1)}
    assert set(said) == {title for title, (_, able, _) in chosen.items() if able.any()}
    for title, shown in said.items():
        of, able, sign = chosen[title]
        rows = [row for row in np.argsort(sign * one.score[of], kind="stable") if able[row]][:12]
        assert [row for row, *_ in shown] == rows
        for row, caption, cells in shown:
            x = one.inputs[of].iloc[row]
            best = f"{one.said[of].label[row]} {100 * one.said[of].probability[row]:.0f} %"
            answer = one.said[of].decision[row]
            truth = f"; is {one.y[row]}" if of == INLIERS else ""
            guess = best if answer == one.said[of].label[row] else f"{answer}; best guess {best}"
            assert caption == f"{guess}{truth}; score {one.score[of][row]:.3g}"
            assert cells == {name: cell if isinstance(cell, str) else number_of(cell) for name, cell in x.items()}


def number_of(cell):
    return "(missing)" if np.isnan(cell) else f"{cell:.4g}"


def cards_of(path):
    """By title: the place of each input in its file, what is said of it, and its cells."""
    found = {}
    for title, _, section in (part.partition("</h2>") for part in path.read_text("utf-8").split("<h2>")[1:]):
        for card in section.split('<div class="card">')[1:]:
            ((caption, name),) = re.findall(r"<p>(.*?)</p><small>row (.*?)</small>", card)
            cells = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", card))
            found.setdefault(title, []).append((int(name) - 1, caption, cells))
    return found


def test_the_words_above_the_tables(place, answers):
    """The threshold, the coverage that it was chosen for, and how many inliers it was chosen by."""
    one = answers[MODELS[0]].model
    page = " ".join(re.sub(r"<[^>]+>", " ", (place / f"{MODELS[0]}.d" / "index.html").read_text("utf-8")).split())
    assert f"scores above {one.decision_.accept[0]:.4g} by none_share (the probability of no class, as a" in page
    known = one.report_["calibrated"]
    assert f"accepts 80.0 % of inliers like the {known:,} that" in page
    assert (
        f"With {known:,} that calibrated, one model may well be {200 * binom.std(known, 0.9) / known:.1f} points off"
        in page
    )
    assert "163 inliers" in re.sub(r"<[^>]+>", " ", (place / "both.d" / "index.html").read_text("utf-8"))
