"""A call of `breakpoint()` compiled into a user's function, so that any debugger stops within it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from ...errors import Refused
from ..api.stage import Stage


def stop_in(stage: Stage) -> tuple[str, ...]:
    """Have a stage's function, and the function of its state where it has one, stop before their first line.

    They are changed for the rest of this process.

    Returns:
        Their names.

    Raises:
        Refused: A function's source cannot be read.
    """
    updates = stage.state.function if stage.state is not None else None
    functions = [stage.transform, *([updates] if updates is not None else [])]
    return tuple(_stop_in(function) for function in functions)


def _stop_in(function: Callable[..., Any]) -> str:
    if not isinstance(function, FunctionType):
        raise Refused(
            f"{function!r} is not a function with a source, so nothing can stop in it",
            hint="declare it with def, or write breakpoint() where it calls code of yours",
        )
    code = function.__code__
    name, line = code.co_name, code.co_firstlineno
    try:
        tree = ast.parse(Path(code.co_filename).read_bytes())
    except (OSError, SyntaxError) as error:
        raise Refused(f"the source of {name!r} cannot be read from {code.co_filename}: {error}") from error
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == name and line in (node.lineno, _first_line(node)):
            # On the line of its `def`: a debugger that stops at the next line stops before the function's first.
            call = ast.Expr(ast.Call(ast.Name("breakpoint", ast.Load()), [], []))
            node.body.insert(0, ast.fix_missing_locations(ast.copy_location(call, node)))
            call.end_lineno, call.end_col_offset = node.lineno, node.col_offset
    stopping = next((each for each in _codes(_compiled(tree, code)) if _is_same(each, code)), None)
    if stopping is None or "breakpoint" not in stopping.co_names:
        raise Refused(
            f"{name!r} is not found at line {line} of {code.co_filename}, so nothing can stop in it",
            hint="has the file changed meanwhile? of a lambda, make a function",
        )
    function.__code__ = stopping
    return name


def _first_line(node: ast.FunctionDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _compiled(tree: ast.Module, code: CodeType) -> CodeType:
    return compile(ast.fix_missing_locations(tree), code.co_filename, "exec", dont_inherit=True)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


def _is_same(one: CodeType, other: CodeType) -> bool:
    return (one.co_qualname, one.co_firstlineno, one.co_freevars) == (
        other.co_qualname,
        other.co_firstlineno,
        other.co_freevars,
    )
