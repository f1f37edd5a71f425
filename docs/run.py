"""Runs tutorials: the code of a page, from top to bottom, in a folder of its own.

    python docs/run.py                 # all of them; writes what they print, and their figures, anew
    python docs/run.py tables texts    # some

A comment of a page, `% short: epochs=20 -> epochs=2`, says what the tests put in place of what, to be quick.

A block of Python is run in the names of those above it, and a `$` line of a console block as a command. What is printed
stands below it, in a block of `text`. A file with the ending .png that the code saves is a figure of the page.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

TUTORIALS = Path(__file__).parent / "tutorials"
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```\n(?:\n```text\n.*?^```\n)?", re.DOTALL | re.MULTILINE)


def run_page(text: str, folder: Path) -> str:
    """The page with what its blocks print now; files that they write are in the folder."""
    names: dict[str, Any] = {"__name__": "tutorial"}

    def run_block(match: re.Match[str]) -> str:
        language, code = match.groups()
        printed = run_python(code, names) if language == "python" else run_commands(code)
        shown = f"\n```text\n{printed.rstrip()}\n```\n" if printed.strip() else ""
        return f"```{language}\n{code}```\n{shown}"

    with chdir(folder):
        return BLOCK.sub(run_block, text)


def shorten(text: str) -> str:
    """The page with the settings of its tests."""
    for old, new in re.findall(r"^% short: (.*) -> (.*)\n", text, re.MULTILINE):
        if old not in text.replace(f"% short: {old}", ""):
            raise ValueError(f"the page does not have {old!r}, which its tests are to replace")
        text = text.replace(old, new)
    return text


def run_python(code: str, names: dict[str, Any]) -> str:
    with redirect_stdout(StringIO()) as printed:
        exec(compile(code, "<tutorial>", "exec"), names)
    return printed.getvalue()


def run_commands(code: str) -> str:
    printed = ""
    for line in code.replace("\\\n", " ").splitlines():
        arguments = shlex.split(line.removeprefix("$ "), comments=True)
        if arguments[0] == "demur":
            arguments = [sys.executable, "-m", *arguments]
        printed += subprocess.run(arguments, check=True, capture_output=True, encoding="utf-8", env=_plain()).stdout
    return printed


def _plain() -> dict[str, str]:
    return {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}


def main(names: list[str]) -> None:
    figures = TUTORIALS / "figures"
    figures.mkdir(exist_ok=True)
    for page in [TUTORIALS / f"{name}.md" for name in names] or sorted(TUTORIALS.glob("*.md")):
        with TemporaryDirectory() as folder:
            page.write_text(run_page(page.read_text("utf-8"), Path(folder)), "utf-8")
            for figure in Path(folder).glob("*.png"):
                shutil.copy(figure, figures)


if __name__ == "__main__":
    main(sys.argv[1:])
