"""The Dockerfile, as far as it can be held to its word without Docker: paths, user, command, health check."""

import fnmatch
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

import demur
from demur.cli.program import app
from tests.serving import ask, table

ROOT = Path(__file__).parents[1]
LINES = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
STEPS = [tuple(line.split(None, 1)) for line in LINES if line and not line.startswith("#")]
FINAL = STEPS[max(place for place, (word, _) in enumerate(STEPS) if word == "FROM") :]


def said(word: str) -> str:
    (text,) = [text for each, text in FINAL if each == word]
    return text


def test_what_is_copied_is_there_and_sent_to_the_daemon():
    wanted = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for word, text in STEPS:
        if word == "COPY" and "--from" not in text:
            for source in shlex.split(text)[:-1]:
                assert (ROOT / source).exists()
                assert any(fnmatch.fnmatch(source, each[1:]) for each in wanted), source


def test_the_package_is_built_from_what_is_copied():
    """What pyproject.toml names beside the code."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    copied = " ".join(text for word, text in STEPS if word == "COPY").split()
    assert {project["readme"], *project["license-files"], "constraints.txt", "demur"} <= set(copied)
    assert "serve" in project["optional-dependencies"]
    assert any('"/src[serve]"' in text and "-c /src/constraints.txt" in text for word, text in STEPS if word == "RUN")
    python = next(text for word, text in STEPS if word == "FROM").split()[0].removeprefix("python:").partition("-")[0]
    assert python in {each.rpartition(" ")[2] for each in project["classifiers"] if "Python :: 3." in each}


def test_the_command_is_one_and_the_user_has_no_rights():
    user, group = said("USER").split(":")
    assert int(user) > 0
    assert int(group) > 0
    program, command, *options = json.loads(said("ENTRYPOINT")) + json.loads(said("CMD"))
    assert (program, command) == ("demur", "serve")
    parsed = typer.main.get_command(app).commands["serve"].make_context("serve", options)
    assert parsed.params["models"] == ["/models/model.demur"]
    assert parsed.params["host"] == "0.0.0.0"
    assert str(parsed.params["port"]) == said("EXPOSE")
    assert f":{said('EXPOSE')}/" in said("HEALTHCHECK")


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that any user may read; pytest's own are for one."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.mark.filterwarnings("ignore:coverage=.* needs")
def test_it_serves_without_rights_writes_nothing_and_is_healthy(place):
    """By another user where tests run as root and others may run this Python; its temporary folder is left empty."""
    demur.Classifier("map+nc", epochs=2, device="cpu").fit(*table(60)).save(place / "model.demur")
    os.chmod(place / "model.demur", 0o444)
    (place / "tmp").mkdir()
    (place / "token").write_text("correct-horse\n")
    user = int(said("USER").split(":")[0])
    parents = Path(os.path.realpath(sys.executable)).parents
    drops = os.geteuid() == 0 and all(
        parent.stat().st_mode & 0o001 for parent in (*parents, *Path(sys.executable).parents)
    )
    os.chmod(place / "tmp", 0o1777)
    environment = {"PATH": os.environ["PATH"], "TMPDIR": str(place / "tmp"), "HOME": str(place / "tmp")}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    _, *options = json.loads(said("ENTRYPOINT"))
    options[options.index("8000")] = "0"
    command = [
        sys.executable,
        "-m",
        "demur",
        *options,
        str(place / "model.demur"),
        "--token-file",
        str(place / "token"),
    ]
    who = {"user": user, "group": user, "extra_groups": []} if drops else {}
    with open(place / "log", "w") as log:
        server = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=place, env=environment, **who
        )
    try:
        first = server.stdout.readline()
        assert first, (place / "log").read_text()
        port = int(first.rsplit(":", 1)[1])
        probe = [part.replace("8000", str(port)) for part in json.loads(said("HEALTHCHECK").partition("CMD ")[2])]
        deadline = time.monotonic() + 30
        while subprocess.run([sys.executable, *probe[1:]], capture_output=True).returncode:
            assert time.monotonic() < deadline
        token = {"authorization": "Bearer correct-horse"}
        assert ask(port, "/v1/predict", {"inputs": [[2, 2, 2]]}, token)[0] == 200
        assert sorted(path.name for path in place.iterdir()) == ["log", "model.demur", "tmp", "token"]
        assert not list((place / "tmp").iterdir())
    finally:
        server.terminate()
        server.wait(30)
        server.stdout.close()
    assert subprocess.run([sys.executable, *probe[1:]], capture_output=True).returncode  # of a server that has gone
