"""The command line, called in this process."""

import io
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from unittest import mock

from demur.cli import main


def called(*arguments: object, printed: list[str] | None = None) -> tuple[int, str]:
    """The exit code of the command line and what it said on the error stream; a traceback has the code 1."""
    out, said = io.StringIO(), io.StringIO()
    command = ["demur", *map(str, arguments)]
    quiet = mock.patch("demur.cli.progress.FIRST_LINE", 1e6)  # however slow the machine
    with mock.patch.object(sys, "argv", command), quiet, redirect_stdout(out), redirect_stderr(said):
        try:
            main()
        except SystemExit as end:
            return int(end.code or 0), said.getvalue()
        except BaseException:
            return 1, traceback.format_exc()
        finally:
            if printed is not None:
                printed.append(out.getvalue())
    return 0, said.getvalue()
