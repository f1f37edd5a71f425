"""The house: imports go one way only, and importing the package is cheap."""

import ast
import subprocess
import sys
from pathlib import Path

import demur

PACKAGE = Path(demur.__file__).parent
LEVELS = (
    ("names", "streams", "files", "provenance"),
    ("checkpoint", "likelihoods", "networks", "posterior", "metrics", "graphs", "training_data"),
    ("training", "predictive", "posterior_file", "bootstrap"),
    ("inference", "data", "outliers"),
    ("methods", "tasks"),
    ("audit",),
    ("classifier", "study"),
    ("paper",),
    ("report",),
    ("cli",),
    ("__main__",),
)


def level_of(module: str) -> int:
    part = module.split(".")[1]
    return next(level for level, parts in enumerate(LEVELS) if part in parts)


def imports(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
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


def test_every_public_name_is_there():
    for name in demur.__all__:
        assert getattr(demur, name) is not None
    assert {"Laplace", "none_class", "predict", "load_task"} <= set(dir(demur))


def test_the_command_line_does_not_wait_for_torch():
    code = "import sys, demur.cli.program; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_library_neither_prints_nor_reads_the_environment():
    for file in PACKAGE.rglob("*.py"):
        if file.parent.name in ("cli", "study"):
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "print", file
            assert not (isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")), file
