"""The command line: parse, call, print. Nothing is imported here, so that Ctrl-C is answered from the first moment."""

from typing import Any


def main() -> None:
    """Run the command; what is wrong with the input is said in one sentence, with exit code 2."""
    import sys

    try:
        from demur.cli.program import run

        code = run()
    except KeyboardInterrupt:
        print("demur: stopped", file=sys.stderr)
        code = 130
    sys.exit(code)


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module 'demur.cli' has no attribute {name!r}")
    from demur.cli.program import app

    return app
