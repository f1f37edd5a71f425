"""README's code runs as it is written, its numbers are those of results.csv, and it stays one screen of reading."""

import re
from base64 import b64encode
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from PIL import Image
from sklearn.datasets import load_digits

from demur.cli.program import run
from demur.measures import value_name
from demur.paper.published import printed_values
from tests.serving import ask, served

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text("utf-8")
TASKS = {
    "MNIST": "mnist",
    "Fashion-MNIST": "fashion_mnist",
    "CIFAR-10": "cifar10",
    "CIFAR-100": "cifar100",
    "SST": "sst",
    "TREC": "trec",
}
COMPARED = ("mnist", "fashion_mnist", "cifar10")  # the paper's other means are of other sets or texts
ROW = re.compile(r"^\| `(?P<method>[\w+]+)`(?: by `(?P<score>\w+)`)?[^|]*\|(?P<cells>.+)\|$", re.MULTILINE)
HEAD = re.compile(r"^\| method \|(?P<columns>.+)\|$", re.MULTILINE)
SHELL = re.search(r"From the shell:\n\n```\n(.*?)```", TEXT, re.DOTALL).group(1)
CELL = re.compile(r" (?P<mean>[\d.]+)(?: ± (?P<spread>[\d.]+))?(?: \((?P<printed>[\d.]+)\))? | – ")


@pytest.fixture(scope="module")
def results() -> pd.DataFrame:
    table = pd.read_csv(ROOT / "results" / "results.csv", low_memory=False)
    usual = table["outliers"].isna() & table["epochs"].isna() & table["limit"].isna()
    return table[usual & (table["convention"] == "corrected") & (table["set"] == "mean")]


def test_the_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL):
        exec(block, names)
    assert (tmp_path / "wine.demur").is_file()
    assert len(names["prediction"].none) == len(names["task"].testing.ood["letters"])


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """On 8-pixel digits, three epochs instead of as many as suit the data."""
    monkeypatch.chdir(tmp_path)
    digits = load_digits()
    images = (digits.images * 15.9).astype(np.uint8)
    for folder, chosen in {"images": slice(0, 300), "test": slice(300, 360), "new": slice(360, 380)}.items():
        for number, (image, y) in enumerate(zip(images[chosen], digits.target[chosen], strict=True)):
            save(tmp_path / folder / str(y % 3) / f"{number}.png", image)
    for folder in ("others", "strange"):
        for number, image in enumerate(images[400:460]):
            save(tmp_path / folder / f"{number}.png", image.T[::-1])
    commands = [line.split("#")[0].split()[1:] for line in SHELL.splitlines() if line.startswith("demur ")]
    assert [command[0] for command in commands] == ["fit", "predict", "evaluate", "serve"]
    commands[0] += ["--epochs", "3", "--device", "cpu"]
    for command in commands[:-1]:
        monkeypatch.setattr("sys.argv", ["demur", *command])
        assert run() == 0, command
    assert len((tmp_path / "answers.csv").read_text("utf-8").splitlines()) == 21
    assert (tmp_path / "report" / "index.html").is_file()
    with served({Path(commands[-1][1]).stem: tmp_path / commands[-1][1]}) as (port, _):
        status, said, _ = ask(
            port, "/v1/predict", {"inputs": [b64encode(next(tmp_path.glob("new/*/*.png")).read_bytes()).decode()]}
        )
    assert status == 200
    assert said["answers"][0]["decision"] in ("0", "1", "2", "unsure", "unknown")


def save(path: Path, image: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)


def test_what_make_is_asked_for_is_there():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert {"demo", "test", "docs"} <= set(re.findall(r"\bmake (\w+)(?:    #|`)", TEXT)) <= targets


def test_the_numbers_are_those_of_the_tables(results: pd.DataFrame):
    columns = {name.strip().split(",")[0]: name.strip() for name in HEAD.search(TEXT)["columns"].split("|")}
    assert [*columns] == [*TASKS]
    seeds = {task: int(re.search(r"(\d+) seed", columns[name])[1]) for name, task in TASKS.items()}
    rows = list(ROW.finditer(TEXT))
    assert len(rows) >= 10
    for row in rows:
        score = f"{row['score']}_" if row["score"] else ""
        for task, text in zip(TASKS.values(), row["cells"].split("|"), strict=True):
            cell = CELL.fullmatch(text)
            of = results[(results["task"] == task) & (results["method"] == row["method"])]
            values = 100 * of.loc[of["metric"] == f"{score}fpr95", "value"]
            if cell["mean"] is None:
                assert values.empty, (row[0], task)
                continue
            assert len(values) in (1, seeds[task]), (row[0], task)
            assert cell["mean"] == f"{values.mean():.1f}", (row[0], task)
            assert cell["spread"] == (f"{values.std():.1f}" if len(values) > 1 else None)
            assert (cell["printed"] is None) == (bool(row["score"]) or task not in COMPARED)


def test_the_page_on_methods_has_the_numbers_of_the_tables(results: pd.DataFrame):
    page = " ".join((ROOT / "docs" / "which-method.md").read_text("utf-8").split())
    section = page[page.index("## At full length") : page.index("All thirty of the paper's methods")]
    named = {
        "cifar10": (("la+nc", "none_share"), ("map", ""), ("map", "knn"), ("map", "vim"), ("map+nc", "none_share")),
        "cifar100": (("map+nc", "none_share"), ("la+nc", "none_share")),
    }
    for task, rows in named.items():
        for method, score in rows:
            of = results[(results["task"] == task) & (results["method"] == method)]
            values = 100 * of.loc[of["metric"] == value_name("fpr95", score or "max_prob"), "value"]
            assert len(values) == (3 if task == "cifar10" else 1)
            said = f"{values.mean():.1f}" + (f" ± {values.std():.1f}" if len(values) > 1 else "")
            assert said in section, (task, method, score)


def test_the_printed_values_are_the_papers():
    printed = {
        (one.task, one.row.method): one.value
        for one in printed_values()
        if (one.table, one.set, one.row.score) == ("ood_summary", "mean", "max_prob")
    }
    for row in ROW.finditer(TEXT):
        for task, text in zip(TASKS.values(), row["cells"].split("|"), strict=True):
            if (cell := CELL.fullmatch(text))["printed"]:
                assert float(cell["printed"]) == pytest.approx(100 * printed[task, row["method"]], abs=0.051)


def test_what_it_cites_is_what_the_citation_file_cites():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))["preferred-citation"]
    bibtex = re.search(r"```bibtex\n(.*?)```", TEXT, re.DOTALL).group(1).replace("{B}", "B")
    assert cited["title"] in bibtex
    assert cited["collection-title"] in bibtex
    assert all(f"{author['family-names']}, {author['given-names']}" in bibtex for author in cited["authors"])


def test_files_that_it_links_to_are_there():
    for target in re.findall(r"\]\(([^)#]+)", TEXT):
        assert (ROOT / target).exists(), target


def test_it_is_read_in_two_minutes():
    assert TEXT.count("\n") <= 120
