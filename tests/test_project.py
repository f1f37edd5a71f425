"""What stands around the code says the same as the code: versions, checks, pages of the project."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import demur
from demur.classifier.model_file import FORMAT

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
YAML = [
    WORKFLOW,
    *sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")),
    ROOT / ".pre-commit-config.yaml",
    ROOT / "CITATION.cff",
]
PYTHONS = ["3.11", "3.12", "3.13"]


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


def commands(target: str) -> list[str]:
    """What `make TARGET` runs, as it would be typed."""
    lines = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert lines
    return [line.strip().replace("$(BIN)/", "") for line in lines.group(1).splitlines()]


@pytest.mark.parametrize("path", YAML, ids=lambda path: path.name)
def test_yaml_is_read(path: Path):
    assert isinstance(read(path), dict)


def test_hooks_are_the_checks_of_make_test():
    hooks = read(ROOT / ".pre-commit-config.yaml")["repos"][0]["hooks"]
    assert [hook["entry"].replace(".venv/bin/", "") for hook in hooks] == commands("test")
    assert len({hook["id"] for hook in hooks}) == len(hooks)
    assert not any(hook["pass_filenames"] for hook in hooks)


@pytest.mark.skipif(not shutil.which("make"), reason="there is no make")
def test_an_installation_is_announced(tmp_path: Path):
    """It takes minutes, and pip is quiet."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    command = ["make", "--no-print-directory", "demo", "PYTHON=false"]  # with which no environment can be made
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode
    assert "installing demur" in done.stdout.splitlines()[0]


def test_the_workflow_runs_the_checks_everywhere():
    jobs = read(WORKFLOW)["jobs"]
    run = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in jobs.items()}
    assert set(commands("test")) <= {*run["checks"], *run["tests"]}
    assert set(commands("docs")) <= set(run["checks"])
    matrix = jobs["tests"]["strategy"]["matrix"]
    assert matrix["python"] == PYTHONS
    assert {system.split("-")[0] for system in matrix["system"]} == {"ubuntu", "macos", "windows"}
    resolutions = {each["resolution"] for each in jobs["versions"]["strategy"]["matrix"]["include"]}
    assert resolutions == {"lowest-direct", "highest"}


def test_pythons_are_the_same_everywhere():
    listed = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if ":: 3.1" in name]
    assert listed == PYTHONS
    assert PROJECT["requires-python"] == ">=3.11,<3.14"
    assert f"{PYTHONS[0]} to {PYTHONS[-1]}" in (ROOT / "docs" / "policy.md").read_text("utf-8")


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=lambda p: p.name)
def test_an_issue_template_asks_something(path: Path):
    form = read(path)
    assert {"name", "description", "body"} <= set(form)
    ids = [field["id"] for field in form["body"]]
    assert len(set(ids)) == len(ids)
    assert all(field["type"] in ("textarea", "input") and field["attributes"]["label"] for field in form["body"])


def test_what_is_cited_is_this_version():
    cited = read(ROOT / "CITATION.cff")
    assert cited["version"] == demur.__version__
    assert cited["license"] == PROJECT["license"]
    assert cited["preferred-citation"]["url"] == PROJECT["urls"]["Paper"]


def test_the_policy_says_which_format_is_written():
    assert f"{FORMAT[0]}.{FORMAT[1]} today" in (ROOT / "docs" / "policy.md").read_text("utf-8")


def test_experiments_are_run_as_modules():
    """They import one another, which a file that is run by its path cannot."""
    modules = [*(ROOT / "experiments").glob("*.py")]
    texts = [*ROOT.glob("*.md"), ROOT / "Makefile", *(ROOT / "docs").rglob("*.md"), *modules]
    named = {name for path in texts for name in re.findall(r"python -m experiments\.(\w+)", path.read_text("utf-8"))}
    assert len(named) > 10
    assert named <= {path.stem for path in modules}
    assert not [path for path in texts if re.search(r"python \S*experiments/", path.read_text("utf-8"))]
    help_text = subprocess.run(
        [sys.executable, "-m", "experiments.paper_runs", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert "--minutes" in help_text
