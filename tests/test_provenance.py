"""What a result was made from is said truly: the code's own commit or none, and the very data."""

import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from demur.outliers.noise import Mixed
from demur.outliers.synthetic import FromInliers, smooth_noise, uniform_noise
from demur.provenance import PACKAGE, commit_of, describe_code, digest
from demur.training_data import Fixed, Split


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    return subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with a package of demur's name in it, committed."""
    package = tmp_path / "project" / "demur"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package.parent / "pyproject.toml").write_text('[project]\nname = "demur"\n')
    git(package.parent, "init", "--quiet")
    git(package.parent, "add", ".")
    git(package.parent, "commit", "--quiet", "-m", "first")
    return package.parent


def test_in_its_own_checkout_the_commit_is_known_and_whether_it_was_changed(project: Path):
    package, head = project / "demur", git(project, "rev-parse", "HEAD").strip()
    assert commit_of(package) == head
    (project / "notes.txt").write_text("of no concern")
    assert commit_of(package) == head
    (package / "new.py").write_text("")
    assert commit_of(package) == f"{head}-dirty"


def test_another_repository_is_not_taken_for_its_own(project: Path, tmp_path: Path):
    ignored = project / ".venv" / "site-packages" / "demur"  # an environment in somebody's repository
    shutil.copytree(project / "demur", ignored)
    assert commit_of(ignored) is None
    git(project, "add", "--force", ".venv")
    git(project, "commit", "--quiet", "-m", "second")
    assert commit_of(ignored) is None  # even where it is committed, as a copy
    (project / "pyproject.toml").write_text('[project]\nname = "theirs"\n')
    assert commit_of(project / "demur") is None
    shutil.copytree(project / "demur", tmp_path / "copied" / "demur")
    assert commit_of(tmp_path / "copied" / "demur") is None


def test_without_git_the_source_is_still_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    shutil.copytree(PACKAGE, tmp_path / "demur")
    known = describe_code(tmp_path / "demur")
    assert known["commit"] is None
    assert known["source"] == describe_code()["source"]
    shutil.copytree(PACKAGE, tmp_path / "changed" / "demur")
    with (tmp_path / "changed" / "demur" / "metrics.py").open("a") as file:
        file.write("\n")
    assert describe_code(tmp_path / "changed" / "demur")["source"] != known["source"]


@dataclass(frozen=True)
class Held:
    value: object


def test_a_digest_is_of_bytes_shapes_types_and_names():
    x = torch.arange(6)
    values = [
        x,
        x.view(2, 3),
        x.float(),
        x.int(),
        x.roll(1),
        x[:0],
        {"a": x},
        {"b": x},
        (x, x),
        [(x,), x],
        Held(x),
        Held(None),
        Held("None"),
        Held(x.roll(1)),
        Split(x, x),
        Split(x, x.roll(1)),
        Fixed(x),
        FromInliers(x, smooth_noise),
        FromInliers(torch.zeros(3, 2), uniform_noise),
        FromInliers(torch.zeros(2, 3), uniform_noise),
        Mixed((Fixed(x), FromInliers(torch.zeros(3, 2), uniform_noise))),
        torch.relu,
        None,
    ]
    assert len({digest(value) for value in values}) == len(values)


def test_equal_values_have_equal_digests():
    x = torch.arange(12.0).view(3, 4)
    assert digest(x.t().contiguous().t()) == digest(x)  # whatever the layout in memory
    assert digest({"a": x, "b": x}) == digest({"b": x.clone(), "a": x})
    split = Split(x, torch.arange(3))
    assert digest(replace(split)) == digest(split)
    assert digest(x.numpy()) == digest(x)
