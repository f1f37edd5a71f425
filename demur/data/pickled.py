"""A pickle's content, read from its instructions: nothing in it is imported or called."""

import pickletools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ARRAY = "numpy.core.multiarray _reconstruct"  # what makes an array


@dataclass
class Described:
    """What a pickle would have made by a call: the function's name, its arguments, and the state given afterwards."""

    name: str
    arguments: tuple[Any, ...]
    state: Any = None


def read_pickled_dict(path: Path) -> dict[str, Any]:
    """A dict of plain values and of arrays, which come as `Described`.

    Any instruction that such files do not need is refused.
    """
    mark = object()
    stack: list[Any] = []
    memo: dict[Any, Any] = {}

    def pop_to_mark() -> list[Any]:
        start = len(stack) - 1 - stack[::-1].index(mark)
        items = stack[start + 1 :]
        del stack[start:]
        return items

    for opcode, argument, position in pickletools.genops(path.read_bytes()):
        match opcode.name:
            case "PROTO" | "STOP":
                pass
            case "MARK":
                stack.append(mark)
            case "NONE" | "INT" | "BININT" | "BININT1" | "BININT2" | "SHORT_BINSTRING" | "BINSTRING":
                stack.append(argument)
            case "NEWFALSE" | "NEWTRUE":
                stack.append(opcode.name == "NEWTRUE")
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_LIST":
                stack.append([])
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                count = int(opcode.name[-1])
                stack[-count:] = [tuple(stack[-count:])]
            case "TUPLE":
                stack.append(tuple(pop_to_mark()))
            case "APPENDS":
                items = pop_to_mark()
                stack[-1].extend(items)
            case "SETITEMS":
                items = pop_to_mark()
                stack[-1].update(zip(items[::2], items[1::2], strict=True))
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "GLOBAL" if argument in (ARRAY, "numpy ndarray", "numpy dtype"):
                stack.append(argument)
            case "REDUCE":
                arguments = stack.pop()
                stack.append(Described(stack.pop(), arguments))
            case "BUILD":
                state = stack.pop()
                stack[-1].state = state
            case _:
                raise ValueError(f"instruction {opcode.name} {argument or ''} at byte {position} is refused")
    return stack.pop()
