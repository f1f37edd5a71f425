"""Abstained inputs get labels in a page, and a model goes on with them."""

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pandas as pd
import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait
from starlette.testclient import TestClient

import demur
from demur.cli.program import run
from demur.serving.app import Settings
from demur.serving.keeping import Keeper
from demur.serving.review import Review, read_reviewed, shown
from demur.serving.review_page import classes_of, create_review
from tests.serving import ask, images, inputs_for, save_models, served, table, texts
from tests.test_page import browser  # noqa: F401 (a fixture)
from tests.test_serving_commands import answer

THIRD = np.array([900.0, -900.0, 900.0])
COMMAND = [sys.executable, "-m", "demur"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return save_models(tmp_path_factory.mktemp("models"))


@pytest.fixture
def called(monkeypatch, capsys):
    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["demur", *map(str, arguments)])
        code = run()
        out, error = capsys.readouterr()
        return code, out, error

    return call


def kept(folder: Path, models: dict[str, Path], **inputs: list) -> Path:
    """What a server keeps of these inputs, by model."""
    with served(models, Settings(keep_inputs=folder)) as (port, _):
        for name, values in inputs.items():
            for value in values:
                assert ask(port, f"/v1/models/{name}/predict", {"inputs": [value]})[0] == 200
    return folder


def rows(count: int) -> list[dict[str, float]]:
    return [dict(zip("abc", (THIRD + number).tolist(), strict=True)) for number in range(count)]


@pytest.fixture
def folder(models, tmp_path: Path) -> Path:
    """Twelve rows that the table model abstained on."""
    return kept(tmp_path / "kept", {"table": models["table"]}, table=rows(12))


@pytest.fixture
def page(folder: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`demur review`: the address that it prints."""
    command = [*COMMAND, "review", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        said = process.stdout.readline()
        assert "12 of 12 inputs wait at http://127.0.0.1:" in said
        yield said.split()[-1], process
        if process.poll() is None:
            process.kill()


def test_a_verdict_is_a_file_beside_the_input_which_stays_as_it_is(folder):
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    review = Review(folder)
    first, second, third = review.ids()[:3]
    review.judge(first, "class", " high ")
    review.judge(second, "class", "third")
    review.judge(third, "junk")
    assert {name: (folder / name).read_bytes() for name in before} == before
    assert sorted(set(os.listdir(folder)) - set(before)) == [f"reviewed-{id}.json" for id in (first, second, third)]
    assert review.record(first)["given"] == "high"
    assert review.counts() == {"known": 1, "new": 1, "junk": 1, "waiting": 9}
    review.judge(third, None)
    assert review.counts() == {"known": 1, "new": 1, "waiting": 10}
    (folder / f"abstained-{second}.json").unlink()  # as the server does in the end
    assert review.counts() == {"known": 1, "new": 1, "waiting": 10}


@pytest.mark.parametrize(
    ("verdict", "given", "said"),
    [
        ("good", None, "'good' is not known"),
        ("class", "", "is no name"),
        ("class", 3, "is no name"),
        ("class", "a\nb", "is no name"),
        ("class", "x" * 201, "is no name"),
        ("class", "unsure", "an answer of demur's own"),
    ],
)
def test_what_is_no_verdict_is_refused_and_not_written(folder, verdict, given, said):
    review = Review(folder)
    with pytest.raises(ValueError, match=said):
        review.judge(review.ids()[0], verdict, given)
    assert not list(folder.glob("reviewed-*"))


@pytest.mark.parametrize(
    "text", ["", "[1]", "{", '{"input": 1}', '{"input": [1], "model": "m", "probabilities": {"a": "b"}}']
)
def test_files_that_cannot_be_read_are_counted_and_left_alone(folder, text):
    id = Review(folder).ids()[0]
    (folder / f"abstained-{id}.json").write_text(text)
    (folder / "abstained-notes.json").write_text("mine")
    review = Review(folder)
    assert review.counts() == {"unreadable": 1, "waiting": 11}
    with pytest.raises(ValueError, match="is no abstained input"):
        review.judge(id, "junk")
    assert (folder / f"abstained-{id}.json").read_text() == text


def test_a_name_beside_another_verdict_is_no_class(folder):
    """It is no file of demur's; the page had failed for every input."""
    review = Review(folder)
    record = review.judge(review.ids()[0], "junk")
    (folder / f"reviewed-{review.ids()[0]}.json").write_text(json.dumps(record | {"given": [3.5]}))
    assert review.record(review.ids()[0])["given"] is None
    assert sorted(classes_of(review.record(review.ids()[0]))) == ["high", "low"]


@pytest.mark.parametrize("damage", ["a folder", "a link to nothing", "bytes", "a list of kinds"])
def test_a_verdict_that_cannot_be_read_is_not_left_out_without_a_word(folder, models, damage):
    review = Review(folder)
    for id in review.ids()[:3]:
        review.judge(id, "class", "third")
    file = folder / f"reviewed-{review.ids()[0]}.json"
    record = json.loads(file.read_text())
    file.unlink()
    if damage == "a folder":
        file.mkdir()
    elif damage == "a link to nothing":
        file.symlink_to(folder / "nothing")
    else:
        file.write_text("{" if damage == "bytes" else json.dumps(record | {"kind": ["tables"]}))
    assert review.counts() == {"unreadable": 1, "new": 2, "waiting": 9}
    with pytest.raises(ValueError, match=file.name):
        read_reviewed(folder, demur.load_model(models["table"], device="cpu"))


def test_many_verdicts_at_once_are_all_written(folder):
    review, ids = Review(folder), Review(folder).ids()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: review.judge(ids[n % 12], "class", f"name {n % 3}"), range(120)))
    assert review.counts() == {"new": 12}
    assert not list(folder.glob("*.part"))


def test_the_page_is_for_whoever_has_its_address(page, folder):
    address, _ = page
    port, token = urlsplit(address).port, {"authorization": f"Bearer {urlsplit(address).fragment}"}
    id = Review(folder).ids()[0]
    status, html, headers = ask(port, "/")
    assert status == 200
    assert "default-src 'none'" in headers["content-security-policy"]
    assert b"http" not in html
    for path, body in (("/v1/review", None), (f"/v1/review/{id}", None), (f"/v1/review/{id}", {"verdict": "junk"})):
        assert ask(port, path, body)[0] == 401
        assert ask(port, path, body, {"authorization": "Bearer wrong"})[0] == 401
    assert not list(folder.glob("reviewed-*"))
    assert ask(port, f"/v1/review/{id}", {"verdict": "junk"}, token)[0] == 200
    assert len(list(folder.glob("reviewed-*"))) == 1
    for odd in ("..%2f..%2fpasswd", "0" * 20, "x"):
        assert ask(port, f"/v1/review/{odd}", {"verdict": "junk"}, token)[0] in (404, 405)
    for body in (b"{", b"[]", b'{"verdict": "class", "given": ["a"]}', b'{"verdict": {}}'):
        status, said, _ = ask(port, f"/v1/review/{id}", body, token)
        assert (status, "error" in said) == (422, True)


def test_inputs_are_reviewed_by_keyboard(page, folder, browser, tmp_path):  # noqa: F811
    """Known, new and junk, one taken back, at both widths; then the command says what was done."""
    address, process = page
    size = {"width": 390, "height": 900, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get_log("browser")
    browser.get("about:blank")
    browser.get(address)

    def until(number: int) -> None:
        said = f"{number} of 12 reviewed"
        WebDriverWait(browser, 20).until(lambda found: found.find_element(By.ID, "count").text == said)

    def press(*keys: str) -> None:
        webdriver.ActionChains(browser).send_keys(*keys).perform()

    until(0)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    assert browser.find_element(By.CSS_SELECTOR, "#given table").text.splitlines()[0].split() == ["a", "900"]
    best = browser.find_element(By.CSS_SELECTOR, "#choices .name").text
    press(Keys.ENTER)
    until(1)
    press("2")
    until(2)
    press("n", "third", Keys.ENTER)
    WebDriverWait(browser, 20).until(lambda found: "new class" in found.find_element(By.ID, "fresh").text)
    until(2)
    press(Keys.ENTER)
    until(3)
    press("j")
    until(4)
    press("u")
    until(3)
    for number in range(4, 12):  # the class is known by now, so it is asked for once
        press("n", "third", Keys.ENTER)
        until(number)
    size["width"] = 1200
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size | {"mobile": False})
    press("j")
    until(12)
    assert "2 of known classes, 9 of new ones, 1 junk" in browser.find_element(By.ID, "end").text
    assert browser.get_log("browser") == []
    sent = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = {urlsplit(e["params"]["request"]["url"]) for e in sent if e["method"] == "Network.requestWillBeSent"}
    asked = {at for at in asked if at.path.startswith("/v1/review")}
    assert {at.netloc for at in asked} == {urlsplit(address).netloc}
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=30)
    assert "2 of known classes, 9 of new ones, 1 junk; 0 wait" in out
    assert "Traceback" not in error
    found = [Review(folder).record(id) for id in Review(folder).ids()]
    assert found[0]["given"] == best
    assert found[1]["given"] != best
    assert [each["verdict"] for each in found] == ["class"] * 11 + ["junk"]


def test_every_kind_is_shown_and_read_back(models, tmp_path):
    """Images, texts and rows as a server keeps them, in whatever form they were sent."""
    folder = tmp_path / "kept"
    text = ["zebra quartz violin", {"text": "tax form nine"}]
    image = [inputs_for("image")[0], {"image": inputs_for("image")[1]}]
    keeper = Keeper(folder)
    for name, values in (("table", [rows(1)[0], [1, 2, 3]]), ("text", text), ("image", image)):
        kind = demur.load_model(models[name], device="cpu").preprocessing_.kind
        keeper.keep(name, kind, values, [answer("unknown")] * 2)
    review = Review(folder)
    looks = [sorted(shown(review.record(id))) for id in review.ids()]
    assert looks == [["cells"]] * 2 + [["text"]] * 2 + [["image"]] * 2
    for number, id in enumerate(review.ids()):
        review.judge(id, "junk" if number % 2 else "class", "new")
    for name, make in (("table", table), ("text", texts), ("image", images)):
        model = demur.load_model(models[name], device="cpu")
        found = read_reviewed(folder, model, name)
        assert list(found.y) == ["new"]
        assert found.num_junk == 1
        assert len(model.inputs(found.x)) == len(model.inputs(found.junk)) == 1
        assert model.inputs(found.x).shape[1:] == model.inputs(make(2)[0]).shape[1:]
    with pytest.raises(ValueError, match="inputs of several models, image, table, text, none of them 'other'"):
        read_reviewed(folder, model, "other")


def test_a_model_goes_on_with_what_was_reviewed(called, models, folder, tmp_path):
    """The loop: abstained, labelled as a new class, learned; old classes stay."""
    x, y = table(200)
    x.assign(label=y).to_csv(tmp_path / "data.csv", index=False)
    new, old = tmp_path / "table2.demur", models["table"]
    before = old.read_bytes()
    command = ["fit", tmp_path / "data.csv", "--from", old, "--reviewed", folder, "-o", new, "--epochs", 20]
    code, _, error = called(*command)
    assert (code, "no reviewed inputs" in error) == (2, True)
    review = Review(folder)
    for number, id in enumerate(review.ids()):
        review.judge(id, *(("class", "third") if number < 10 else ("junk", None)))
    code, out, error = called(*command)
    assert code == 0, error
    assert "10 of classes (10 third), 2 junk" in out
    assert "taken over; new: third" in out
    assert f"rows of {folder}" in out
    assert old.read_bytes() == before
    model = demur.load_model(new, device="cpu")
    assert model.classes_.tolist() == ["high", "low", "third"]
    assert set(model.decide(pd.DataFrame(rows(40)[20:]))) == {"third"}
    unseen, expected = table(200, seed=3)
    assert np.mean(model.predict(unseen) == np.array(expected)) > 0.97
    assert "box" in model.report_["outliers"]  # two that are junk are not all that it is shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["review", "{folder}/nothing"], "is no folder"),
        (["review", "{empty}"], "has no abstained inputs"),
        (["fit", "{data}", "-o", "{new}", "--reviewed", "{folder}"], "add --from MODEL"),
        (["fit", "{data}", "-o", "{new}", "--from", "{new}"], "does not exist"),
        (["fit", "{data}", "-o", "{model}", "--from", "{model}"], "which stays as it is"),
        (["fit", "{data}", "-o", "{new}", "--from", "{model}", "--backbone", "minilm"], "leave it out"),
        (["fit", "{data}", "-o", "{new}", "--from", "{text}"], "the model is for texts"),
        (["fit", "{data}", "-o", "{new}", "--from", "{model}", "--method", "la+xx"], "la+xx"),
    ],
)
def test_what_is_wrong_is_one_sentence(called, models, folder, tmp_path, arguments, said):
    x, y = table(60)
    x.assign(label=y).to_csv(tmp_path / "data.csv", index=False)
    (tmp_path / "empty").mkdir()
    places = {"model": models["table"], "text": models["text"], "folder": folder, "data": tmp_path / "data.csv"}
    places |= {"new": tmp_path / "new.demur", "empty": tmp_path / "empty"}
    before = models["table"].read_bytes()
    code, _, error = called(*(argument.format(**places) for argument in arguments))
    assert code == 2, error
    assert said in error
    assert len(error.strip().splitlines()) == 1
    assert models["table"].read_bytes() == before


def test_settings_are_the_models_unless_they_are_given(called, models, tmp_path):
    x, y = table(200)
    x.assign(label=y).to_csv(tmp_path / "data.csv", index=False)
    before = tmp_path / "before.demur"
    demur.Classifier("map+oe", coverage=0.9, epochs=3, device="cpu", random_state=5).fit(x, y).save(before)
    command = ["fit", tmp_path / "data.csv", "--from", before, "-o"]
    assert called(*command, tmp_path / "same.demur")[0] == 0
    assert called(*command, tmp_path / "other.demur", "--coverage", 0.8, "--method", "la+nc", "--quick")[0] == 0
    same, other = (demur.load_model(tmp_path / f"{name}.demur", device="cpu") for name in ("same", "other"))
    assert (same.report_["method"], same.coverage, same.epochs, same.random_state) == ("map+oe", 0.9, 3, 5)
    assert (other.report_["method"], other.coverage, other.random_state) == ("la+nc", 0.8, 5)
    assert other.report_["continued"]["weights"] == same.report_["continued"]["weights"]  # and a fresh none class


def test_inputs_that_are_odd_or_gone_do_not_stop_the_page(folder: Path):
    """A verdict on a row with NaN, as JSON of Python has it, is written and said to be; what cannot be read is told."""
    review = Review(folder)
    first, second, third, fourth, *_ = review.ids()
    record = json.loads((folder / f"abstained-{first}.json").read_text())
    record["input"]["a"], record["outlier_score"] = math.nan, math.inf
    (folder / f"abstained-{first}.json").write_text(json.dumps(record))
    (folder / f"abstained-{second}.json").write_text(json.dumps(record | {"kind": "texts", "input": "half \ud83d"}))
    (folder / f"abstained-{third}.json").unlink()
    (folder / f"abstained-{third}.json").symlink_to(folder / "nothing")
    (folder / f"abstained-{fourth}.json").unlink()
    (folder / f"abstained-{fourth}.json").mkdir()
    client = TestClient(create_review(review, "secret"), headers={"authorization": "Bearer secret"})
    sorts = {each["id"]: each["sort"] for each in client.get("/v1/review").json()["inputs"]}
    assert sorts[third] == sorts[fourth] == "unreadable"
    assert client.get(f"/v1/review/{second}").json()["text"] == "half ?"
    assert client.get(f"/v1/review/{third}").status_code == 404
    for id in (first, second):
        answered = client.post(f"/v1/review/{id}", json={"verdict": "class", "given": "other"})
        assert (answered.status_code, answered.json()["given"]) == (200, "other")
        assert review.record(id)["given"] == "other"


def test_a_verdict_that_is_damaged_is_not_left_out_in_silence(folder: Path, models):
    first, second, *_ = Review(folder).ids()
    for id in (first, second):
        Review(folder).judge(id, "junk")
    (folder / f"reviewed-{second}.json").write_text("{")
    with pytest.raises(ValueError, match=f"reviewed-{second}.json is no abstained input"):
        read_reviewed(folder, demur.load_model(models["table"], device="cpu"))
