"""The command line as a user has it: a process, its files, its exit code."""

import gc
import json
import os
import shlex
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile

import pytest

import demur
from demur.metrics import METRICS


def demur_command(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess:
    """The command in a process of its own; where processes can be forked, one that has loaded torch already."""
    if hasattr(os, "fork"):
        return in_fork(partial(call_main, arguments), cwd)
    code = "import torch; torch.set_num_threads(1); from demur.cli import main; main()"
    command = [sys.executable, "-W", "ignore", "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


def call_main(arguments: tuple[str, ...]) -> None:
    from demur.cli import main

    sys.argv = ["demur", *arguments]
    main()


def in_fork(work: Callable[[], object], cwd: Path | None = None) -> subprocess.CompletedProcess:
    """What a copy of this process prints while it works, and the code it exits with, as subprocess.run tells it."""
    with TemporaryFile() as out, TemporaryFile() as error:
        child = os.fork()
        if child == 0:
            gc.freeze()  # garbage may own threads, which a copy has not: freeing it would wait for them for ever
            code = 1
            try:
                os.chdir(cwd or ".")
                for stream, number in ((os.open(os.devnull, os.O_RDONLY), 0), (out.fileno(), 1), (error.fileno(), 2)):
                    os.dup2(stream, number)
                sys.stdin, sys.stdout, sys.stderr = (
                    os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False) for number in range(3)
                )
                warnings.resetwarnings()
                warnings.simplefilter("ignore")
                work()
                code = 0
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
            except BaseException:
                traceback.print_exc()
            finally:
                with suppress(OSError, ValueError):
                    sys.stdout.flush()
                with suppress(OSError, ValueError):
                    sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        said = []
        for file in (out, error):
            file.seek(0)
            said.append(file.read().decode())
    return subprocess.CompletedProcess([], os.waitstatus_to_exitcode(status), *said)


def test_the_same_seed_gives_the_same_bytes_but_for_time(tmp_path):
    records = []
    for name in ("a.json", "b.json"):
        done = demur_command("run", "digits", "la+nc", "--epochs", "2", "--json", name, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "mean" in done.stdout
        assert "\r" not in done.stdout + done.stderr  # quiet when piped
        record = json.loads((tmp_path / name).read_text())
        assert record.pop("duration") > 0
        assert record.pop("time") > 0
        records.append(json.dumps(record))
    assert records[0] == records[1]
    record = json.loads(records[0])
    assert (record["task"], record["method"], record["seed"], record["convention"]) == (
        "digits",
        "la+nc",
        0,
        "corrected",
    )
    assert set(METRICS) <= set(record["metrics"])
    assert list(record["ood"]) == ["flower", "letters", "uniform", "smooth", "far_away"]
    for figures in record["ood"].values():
        names = {"fpr95", "auroc", "aupr", "mmc", "none_fpr95", "entropy_fpr95", "fpr95_out", "none_auroc_out"}
        assert names <= set(figures)
        assert all(0 <= value <= 1 for value in figures.values())


def test_a_saved_posterior_gives_the_same_figures(tmp_path):
    fit = demur_command("run", "digits", "vb+nc", "--epochs", "1", "--save", "p", "--json", "a", cwd=tmp_path)
    again = demur_command("run", "digits", "vb+nc", "--epochs", "1", "--load", "p", "--json", "b", cwd=tmp_path)
    assert (fit.returncode, again.returncode) == (0, 0), fit.stderr + again.stderr
    first, second = (json.loads((tmp_path / name).read_text()) for name in "ab")
    assert first["ood"] == second["ood"]
    wrong = demur_command("run", "digits", "vb", "--load", "p", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "not vb on digits" in wrong.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "digts", "la"], "unknown task 'digts'; did you mean 'digits'"),
        (["run", "digits", "la+cn"], "unknown method 'la+cn'; did you mean 'la+nc'"),
        (["run", "digits", "la", "--epoch", "3"], "No such option: --epoch"),
        (["run", "digits", "la", "--epochs", "0"], "--epochs"),
        (["run", "digits", "la", "--outliers", "dogs"], "brings its own outliers"),
        (["run", "digits", "la", "--json", "/nowhere/x.json"], "the folder of /nowhere/x.json does not exist"),
        (["run", "digits", "la", "--load", __file__], "is not a posterior saved by demur"),
        (["run", "digits", "la", "--load", "absent"], "does not exist"),
        (["run", "digits", "la", "--device", "abacus"], "device 'abacus' is not available"),
        (["run", "mnist", "la", "--data", "/nowhere"], "the data folder /nowhere does not exist"),
        (["toy", "x.bmp"], "does not end in .png"),
        (["data", "get", "mnits"], "unknown data set 'mnits'; did you mean 'mnist'"),
        (["audit", "nothing"], "unknown task 'nothing'"),
        (["frobnicate"], "No such command 'frobnicate'"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_two(arguments, says):
    done = demur_command(*arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_version_and_help():
    assert demur_command("--version").stdout == f"demur {demur.__version__}\n"
    bare = demur_command()
    assert (bare.returncode, bare.stderr) == (2, "")
    assert "Usage: demur" in bare.stdout
    said = demur_command("--help").stdout
    panels = [said.index(panel) for panel in ("Your data", "fit ", "A model in use", "serve ", "Research", "study ")]
    assert panels == sorted(panels)


def test_toy_draws_what_its_study_predicts(tmp_path):
    from demur.paper.grid import TOY_ROWS
    from demur.paper.toy import toy_planes
    from demur.report.figures import draw_planes

    planes = toy_planes(epochs=2)
    assert tuple(planes) == TOY_ROWS
    draw_planes(planes).savefig(tmp_path / "toy.png")
    assert (tmp_path / "toy.png").read_bytes()[:4] == b"\x89PNG"


def in_shell(line: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess:
    """A command line of a shell, in which `demur` is this one."""
    code = "import torch; torch.set_num_threads(1); from demur.cli import main; main()"
    demur = f'demur() {{ {shlex.quote(sys.executable)} -c {shlex.quote(code)} "$@"; }}; set -o pipefail; '
    kept = {name: value for name, value in os.environ.items() if name not in ("HOME", *environment)}
    return subprocess.run(
        ["bash", "-c", demur + line], capture_output=True, text=True, check=False, cwd=cwd, env={**kept, **environment}
    )


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """A folder with a model and rows to predict."""
    folder = tmp_path_factory.mktemp("rows")
    lines = [f"{number % 7},{number % 3},{'ab'[number % 2]}" for number in range(60)]
    (folder / "rows.csv").write_text("x,y,label\n" + "\n".join(lines) + "\n")
    done = in_shell("demur fit rows.csv -o model --epochs 1 --method map", folder, HOME=str(folder))
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("demur predict model rows.csv >&-", 0, ""),
        ("demur predict model rows.csv <&- 2>&-", 0, ""),
        ("demur predict model - <&-", 2, "standard input cannot be read as csv"),
        ("demur predict model rows.csv > /dev/full", 2, "the output cannot be read or written (No space left"),
        ("demur predict model rows.csv | head -1; true", 0, ""),
        ("demur predict model - < rows.csv", 0, ""),
        ("cat rows.csv | demur predict model -", 0, ""),
        ("rm -f p.csv; mkfifo p.csv; cat rows.csv > p.csv & demur predict model p.csv", 0, ""),
    ],
)
def test_streams_may_be_closed_full_or_broken(rows, line, code, says):
    done = in_shell(line, rows, HOME=str(rows))
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == bool(says)


def test_there_may_be_no_home_and_no_name_of_the_user(rows):
    """HOME is not set, and the password database does not know us."""
    nobody = (
        "import pwd\ndef unknown(uid): raise KeyError(f'getpwuid(): uid not found: {uid}')\npwd.getpwuid = unknown\n"
    )
    (rows / "sitecustomize.py").write_text(nobody)
    path = os.pathsep.join([str(rows), *sys.path[1:], os.getcwd()])
    fitted = in_shell("demur fit rows.csv -o nameless --epochs 1 --outliers rows.csv", rows, PYTHONPATH=path)
    assert fitted.returncode == 0, fitted.stderr
    assert (rows / "nameless" / "manifest.json").is_file()
    listed = in_shell("demur data list", rows, PYTHONPATH=path)
    assert listed.returncode == 2
    assert listed.stderr == (
        "demur: there is no home folder to keep data in; name a folder with --data or DEMUR_DATA\n"
    )


def test_ctrl_c_while_modules_are_loaded_is_one_line(tmp_path):
    """Whichever module is being loaded: importing typer, and later torch, is stopped as by Ctrl-C."""
    for name in ("typer", "torch"):
        stop = f"""
import sys
from importlib.abc import MetaPathFinder

class Stop(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {name!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Stop())
sys.argv = ["demur", "run", "digits", "map"]
from demur.cli import main
main()
"""
        done = subprocess.run([sys.executable, "-c", stop], capture_output=True, text=True, check=False, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (130, "demur: stopped\n"), name


def test_too_little_memory_is_one_sentence_and_a_bug_is_not_hidden(monkeypatch, capsys):
    from demur.cli import program

    def failing(error):
        def app(**_):
            raise error

        return app

    for error in (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), MemoryError()):
        monkeypatch.setattr(program, "app", failing(error))
        assert program.run() == 2
        assert capsys.readouterr().err == "demur: there is not enough memory; give less data, or smaller inputs\n"
    monkeypatch.setattr(program, "app", failing(RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        program.run()


def test_what_is_piped_is_utf8_whatever_the_system_prefers(tmp_path):
    lines = [f"{number % 7},{number % 3},{'äб'[number % 2]}" for number in range(60)]
    (tmp_path / "rows.csv").write_text("u,v,label\n" + "\n".join(lines) + "\n", "utf-8")
    line = "demur fit rows.csv -o model --epochs 1 --method map > said && demur predict model rows.csv > answers"
    done = in_shell(line, tmp_path, HOME=str(tmp_path), PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "2: ä, б" in (tmp_path / "said").read_text("utf-8")
    assert {line.split(",")[2] for line in (tmp_path / "answers").read_text("utf-8").splitlines()[1:]} <= {"ä", "б"}
