"""The house: imports go one way only, and importing the package is cheap."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

from sklearn.datasets import load_wine

import demur

PACKAGE = Path(demur.__file__).parent
LEVELS = (
    ("names", "streams", "errors", "files", "provenance", "distributed", "kernels"),
    ("fused",),
    ("checkpoint", "likelihoods", "networks", "posterior", "metrics", "feature_scores", "graphs", "training_data"),
    ("scores",),
    ("watching",),
    ("training", "predictive", "posterior_file", "bootstrap", "measures"),
    ("inference", "data", "outliers"),
    ("methods", "tasks"),
    ("audit",),
    ("classifier", "study"),
    ("paper", "serving", "scale"),
    ("report",),
    ("cli",),
    ("__main__",),
)


def level_of(module: str) -> int:
    part = module.split(".")[1]
    return next(level for level, parts in enumerate(LEVELS) if part in parts)


def imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names if node.module == "demur"}
    return {name for name in found if name.startswith("demur.")}


def test_imports_go_down_the_levels():
    for file in PACKAGE.rglob("*.py"):
        module = "demur." + ".".join(file.relative_to(PACKAGE).with_suffix("").parts)
        if module == "demur.__init__":
            continue
        own = module.split(".")[1]
        for imported in imports(file):
            other = imported.split(".")[1]
            assert own == other or level_of(imported) < level_of(module), f"{module} imports {imported}"


def test_every_public_name_is_there_and_known_to_type_checkers():
    stated = ast.parse((PACKAGE / "__init__.pyi").read_text("utf-8"))
    homes = {
        alias.asname: (statement.module, alias.name)
        for statement in stated.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert sorted(homes) == demur.__all__
    for name, (module, original) in homes.items():
        assert getattr(demur, name) is getattr(importlib.import_module(module), original)
    assert {"Laplace", "none_class", "predict", "load_task", "__version__"} <= set(dir(demur))


def test_the_command_line_does_not_wait_for_torch():
    code = "import sys, demur.cli.program; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_prediction_waits_for_nothing_that_only_a_fit_needs(tmp_path):
    """scikit-learn and SciPy would take as long as torch."""
    x, y = load_wine(return_X_y=True, as_frame=True)
    demur.Classifier(epochs=1, device="cpu").fit(x, y).save(tmp_path / "wine.demur")
    x[:2].to_csv(tmp_path / "two.csv", index=False)
    code = (
        "import sys; from demur.cli.program import run; assert run() == 0; "
        "sys.exit(', '.join({'sklearn', 'scipy', 'matplotlib'} & {*sys.modules}) or 0)"
    )
    command = [sys.executable, "-c", code, "predict", tmp_path / "wine.demur", tmp_path / "two.csv"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, encoding="utf-8")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 3


def test_the_library_neither_prints_nor_reads_the_environment():
    for file in PACKAGE.rglob("*.py"):
        if file.parent.name == "cli":
            continue
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "print", file
            assert not (isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")), file


def test_text_is_read_and_written_as_utf8_whatever_the_system_prefers():
    """Windows would take its own code page. Names without a mode, as `Image.open`, are no files of text."""
    for file in PACKAGE.rglob("*.py"):
        for call in ast.walk(ast.parse(file.read_text("utf-8"))):
            if not isinstance(call, ast.Call) or any(given.arg == "encoding" for given in call.keywords):
                continue
            name = ast.unparse(call.func).rpartition(".")[2]
            needed = {"read_text": 1, "write_text": 2}.get(name, 0)
            assert len(call.args) >= needed, f"{file}, line {call.lineno}: encoding"
            modes = [given.value for given in call.args if name == "open" and isinstance(given, ast.Constant)]
            builtin = isinstance(call.func, ast.Name) and name == "open"
            assert not (builtin or modes) or any("b" in str(mode) for mode in modes), f"{file}, line {call.lineno}"
            texts = any(given.arg == "text" for given in call.keywords)
            assert not (texts and name in ("run", "Popen")), f"{file}, line {call.lineno}: encoding"


WITHOUT_FCNTL = """
import builtins, importlib, pkgutil, sys, types
calls = []
def locking(descriptor, mode, count):
    calls.append((mode, count))
    if calls == [("try", 1)]:
        raise OSError("somebody else has it")
msvcrt = types.SimpleNamespace(LK_NBLCK="try", LK_UNLCK="release", locking=locking)
def imported(name, importer=None, *others, known=builtins.__import__):
    if (importer or {}).get("__name__", "").startswith("demur."):  # as on Windows
        if name == "fcntl":
            raise ImportError(name)
        if name == "msvcrt":
            return msvcrt
    return known(name, importer, *others)
builtins.__import__ = imported
import demur
for module in pkgutil.walk_packages(demur.__path__, "demur."):
    if module.name not in ("demur.__main__", "demur.kernels"):  # the latter is for Triton
        importlib.import_module(module.name)
from pathlib import Path
from demur.files import locked
try:
    with locked(Path(sys.argv[1])):
        assert calls == [("try", 1)] * 2, calls
        raise KeyError
except KeyError:
    assert calls[2:] == [("release", 1)], calls
"""


def test_without_fcntl_every_module_imports_and_locks_are_taken_and_given_back(tmp_path: Path):
    subprocess.run([sys.executable, "-W", "ignore", "-c", WITHOUT_FCNTL, str(tmp_path)], check=True)
