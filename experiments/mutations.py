"""Small changes of source code, each of which a test should notice: what experiments/mutants.py tries, one by one."""

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "demur"


@dataclass(frozen=True)
class Mutant:
    """One change: the lines that it touches, before and after, as one; and the whole module with it.

    `lines` are the first and last of its statement, None where that is executed when the module is imported.
    """

    module: str
    line: int
    kind: str
    before: str
    after: str
    source: str
    lines: tuple[int, int] | None

    @property
    def key(self) -> str:
        return f"{self.module}:{self.line} {self.before} -> {self.after}"


# what can be changed -----------------------------------------------------------------------------------------------

PAIRS = (("<", "<="), (">", ">="), ("==", "!="), ("is", "is not"), ("in", "not in"))
TURNED = dict(PAIRS) | {there: back for back, there in PAIRS}
WRITTEN = dict(
    zip(("Lt", "LtE", "Gt", "GtE", "Eq", "NotEq", "Is", "IsNot", "In", "NotIn"), sum(PAIRS, ()), strict=True)
)
ARITHMETIC = {"Add": "-", "Sub": "+", "Mult": "/", "Div": "*", "FloorDiv": "*", "Mod": "//", "Pow": "*", "BitAnd": "|"}
OPPOSITES = {"min": "max", "amin": "amax", "minimum": "maximum", "clamp_min": "clamp_max"} | {
    "floor": "ceil",
    "any": "all",
}
OPPOSITES |= {there: back for back, there in OPPOSITES.items()}
DROPPED = {"sqrt", "exp", "log", "square", "abs", "clone", "cumsum", "sort", "mean", "log_softmax", "removeprefix"}
COMMUTE = {"minimum", "maximum", "min", "max", "dot", "isinstance"}
UNSEEN = (None, "stacklevel", "strict", "device", "force")  # of these arguments only a GPU, or nobody, takes notice


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST, str]]:
    """Kind, what is replaced, and by what source."""
    text = ast.unparse
    match node:
        case ast.Compare(left=left, ops=ops, comparators=terms):
            signs = [WRITTEN[type(op).__name__] for op in ops]
            for at, sign in enumerate(signs):
                turned = [*signs[:at], TURNED[sign], *signs[at + 1 :]]
                pairs = zip(turned, map(text, terms), strict=True)
                yield "comparison", node, " ".join([text(left), *(word for pair in pairs for word in pair)])
        case ast.BinOp(left=left, op=op, right=right) if type(op).__name__ in ARITHMETIC:
            yield "arithmetic", node, f"(({text(left)}) {ARITHMETIC[type(op).__name__]} ({text(right)}))"
        case ast.AugAssign(target=target, op=op, value=value):
            if type(op).__name__ in ARITHMETIC:
                yield "arithmetic", node, f"{text(target)} {ARITHMETIC[type(op).__name__]}= {text(value)}"
            yield "dropped statement", node, "pass"
        case ast.BoolOp(op=op, values=values):
            other = " or " if isinstance(op, ast.And) else " and "
            yield "boolean", node, f"({other.join(f'({text(value)})' for value in values)})"
        case ast.Constant(value=bool(value)):
            yield "constant", node, str(not value)
        case ast.Constant(value=int(value)):
            yield "constant", node, str(value + 1)
            yield "constant", node, f"({value - 1})"
        case ast.Constant(value=float(value)):
            yield "constant", node, str(0.5 * value or 1.0)
            yield "constant", node, str(2 * value or -1.0)
        case ast.UnaryOp(op=ast.Not() | ast.Invert() | ast.USub(), operand=operand):
            yield "dropped sign", node, f"({text(operand)})"
        case ast.Expr(value=ast.Call()):
            yield "dropped statement", node, "pass"
        case ast.Raise():
            yield "dropped statement", node, "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "dropped statement", node, "pass"
        case ast.Return(value=ast.expr()):
            yield "return None", node, "return None"
        case ast.Break():
            yield "break", node, "continue"
        case ast.Continue():
            yield "continue", node, "break"
        case ast.Slice(lower=lower, upper=upper):
            for bound in (lower, upper):
                if bound is not None:
                    yield "slice bound", bound, "None"
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        yield "negated condition", node.test, f"(not ({text(node.test)}))"
    if isinstance(node, ast.comprehension):
        for test in node.ifs:
            yield "negated condition", test, f"(not ({text(test)}))"
    if isinstance(node, ast.Call):
        yield from changed_calls(node)


def changed_calls(node: ast.Call) -> Iterator[tuple[str, ast.AST, str]]:
    text, args = ast.unparse, [ast.unparse(arg) for arg in node.args]
    keywords = [ast.unparse(keyword) for keyword in node.keywords]
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in OPPOSITES:
        other = text(node.func)[: -len(name)] + OPPOSITES[name]
        yield "opposite", node, f"{other}({', '.join([*args, *keywords])})"
    if name in DROPPED and isinstance(node.func, ast.Attribute) and text(node.func.value) not in ("math", "np"):
        yield "dropped call", node, text(node.func.value)
    if len(args) > 1 and name not in COMMUTE and not any(isinstance(arg, ast.Starred) for arg in node.args[:2]):
        yield "swapped arguments", node, f"{text(node.func)}({', '.join([args[1], args[0], *args[2:], *keywords])})"
    for index, keyword in enumerate(node.keywords):
        if keyword.arg not in UNSEEN:
            kept = [*args, *keywords[:index], *keywords[index + 1 :]]
            yield "dropped argument", node, f"{text(node.func)}({', '.join(kept)})"


def is_left_alone(node: ast.AST) -> bool:
    """What a mutant of would say nothing about the code: types, messages, logs."""
    if isinstance(node, ast.Import | ast.ImportFrom | ast.Assert | ast.JoinedStr):
        return True
    if isinstance(node, ast.keyword):
        return node.arg in UNSEEN
    if isinstance(node, ast.FunctionDef):
        return node.name in ("__repr__", "__str__")
    return isinstance(node, ast.Expr) and ast.unparse(node).startswith(("logger.", "warnings.filterwarnings("))


def sites(tree: ast.AST) -> Iterator[tuple[ast.AST, ast.stmt | None, tuple[int, int] | None]]:
    """Every node that may be changed, with the lines whose execution would execute it."""

    def walk(node: ast.AST, lines: tuple[int, int] | None, inside: bool) -> Iterator:
        for name, field in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "bases"):
                continue
            for child in field if isinstance(field, list) else [field]:
                if not isinstance(child, ast.AST) or is_left_alone(child):
                    continue
                its, within = lines, inside
                if isinstance(child, ast.FunctionDef):
                    its, within = (child.body[0].lineno, child.end_lineno or child.lineno), True
                elif isinstance(child, ast.stmt) and inside:
                    body = getattr(child, "body", None)
                    its = (child.lineno, max(child.lineno, body[0].lineno - 1) if body else child.end_lineno)
                yield child, its
                yield from walk(child, its, within)

    yield from walk(tree, None, False)


def mutants_of(module: str) -> list[Mutant]:
    """All of a module's, in the order of its source; some may not compile, or be no change at all."""
    source = (PACKAGE / f"{module}.py").read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: dict[str, Mutant] = {}
    for node, lines in sites(ast.parse(source)):
        for kind, target, replacement in changes(node):
            begin = starts[target.lineno - 1] + target.col_offset
            end = starts[target.end_lineno - 1] + target.end_col_offset
            mutated = source[:begin] + replacement.encode() + source[end:]
            first, last = starts[target.lineno - 1], starts[target.end_lineno]
            before = " ".join(source[first:last].decode().split())
            after = " ".join(mutated[first : last + len(mutated) - len(source)].decode().split())
            mutant = Mutant(module, target.lineno, kind, before, after, mutated.decode(), lines)
            found.setdefault(mutant.key, mutant)
    return list(found.values())


def drawn(module: str, count: int, seed: int) -> list[Mutant]:
    every = mutants_of(module)
    random.Random(f"{seed} {module}").shuffle(every)
    original = ast.dump(ast.parse((PACKAGE / f"{module}.py").read_bytes()))
    chosen: list[Mutant] = []
    for mutant in every:
        try:
            changed = ast.dump(compile(mutant.source, module, "exec", ast.PyCF_ONLY_AST)) != original
            compile(mutant.source, module, "exec")
        except SyntaxError:  # such as `continue` outside a loop
            continue
        if changed:
            chosen.append(mutant)
        if len(chosen) == count:
            break
    return sorted(chosen, key=lambda mutant: mutant.line)
