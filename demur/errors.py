"""What goes wrong, in one sentence."""


def first_line(error: BaseException) -> str:
    """Of what an error says, without the full stop at its end; its type where it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
