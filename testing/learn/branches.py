"""Branches of a program: the outcomes (true and false) of each condition in its functions, reported at run time.

`instrument` rewrites a program so that each condition passes through `note_outcomes`: of Python (`if`, `while`,
ternaries, comprehensions, cases, handlers of errors), of Arrow and numpy (`filter`, `if_else`, `where`) and of Spark
(`where`, `filter`, `when`). A reached branch is an empty file in a folder, which also Spark's workers write; for
conditions that Spark evaluates, it is a property of the driver's JVM.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import pyarrow as pa

_MASKS = ("where", "filter", "if_else", "when")
"""Methods and functions with a condition for each row."""
_NOTE = "_note_outcomes"
"""Name of the inserted function. A name with two underscores would be mangled within a class."""
_reached: set[tuple[str, str]] = set()
"""Branches that this process has reported, by folder. Spark calls the function once per row."""


@dataclass(frozen=True, slots=True, order=True)
class Branch:
    """An outcome of a condition."""

    line: int
    column: int
    outcome: bool
    text: str
    """Source of the condition, on one line."""

    @property
    def name(self) -> str:
        return f"{self.line}-{self.column}-{int(self.outcome)}"

    def __str__(self) -> str:
        return f"line {self.line}, {'true' if self.outcome else 'false'}: {self.text}"


@dataclass(frozen=True, slots=True)
class InstrumentedProgram:
    """A program whose conditions report their outcomes."""

    file: Path
    tree: ast.Module
    branches: frozenset[Branch]

    def compiled(self, folder: Path) -> CodeType:
        """Return the program's code; when it runs, it reports the branches that it reaches in an existing folder."""
        start = ast.parse(
            f"from slackwater.testing.learn.branches import reporter\n{_NOTE} = reporter({str(folder)!r})\n"
        ).body
        after = next((at for at, node in enumerate(self.tree.body) if not _is_preface(node)), len(self.tree.body))
        body = [*self.tree.body[:after], *start, *self.tree.body[after:]]
        return compile(ast.fix_missing_locations(ast.Module(body, [])), self.file, "exec", dont_inherit=True)

    def reached(self, folder: Path) -> frozenset[Branch]:
        """Return the branches reported in a folder."""
        names = {path.name for path in folder.iterdir()} | _reached_in_spark(folder, self.branches)
        return frozenset(branch for branch in self.branches if branch.name in names)


def instrument(source: bytes, file: Path) -> InstrumentedProgram:
    """Return a program whose conditions report their outcomes. Raises `SyntaxError`, which names the file."""
    tree, rewriter = ast.parse(source, file), _Rewriter()
    rewriter.visit(tree)
    return InstrumentedProgram(file, tree, frozenset(rewriter.branches))


def reporter(folder: str) -> Any:
    """Return the function to which a program passes the values of its conditions."""
    return partial(note_outcomes, folder)


def note_outcomes(folder: str, name: str, kind: str, value: Any) -> Any:
    """Report the outcomes of a condition, and return the condition.

    `kind` is "test" for a single condition, and "mask" for a condition of rows. A condition of Spark is replaced by one
    that reports its outcomes when Spark evaluates it; null counts as false.
    """
    if kind == "test":
        _note(folder, name, [bool(value)])
        return value
    if isinstance(value, pa.Array | pa.ChunkedArray) and pa.types.is_boolean(value.type):
        _note(folder, name, set(value.fill_null(False).to_pylist()))
        return value
    if isinstance(value, np.ndarray | np.generic | bool) and np.asarray(value).dtype == np.bool_:
        _note(folder, name, set(np.asarray(value).ravel().tolist()))
        return value
    from pyspark import SparkContext
    from pyspark.sql import Column
    from pyspark.sql import functions as F

    # In a worker, a text is no condition of Spark, but for example one of DuckDB.
    if isinstance(value, str) and SparkContext._active_spark_context is not None:
        value = F.expr(value)
    if not isinstance(value, Column):
        return value
    # A function of Python would compute the condition also for rows that an earlier condition excludes, for which it
    # may fail. Spark keeps a call of Java, which is nondeterministic, at its place, and both equal results.
    place = F.concat(F.lit(_property(folder, name)), F.when(value, "-1").otherwise("-0"))
    told = F.java_method(F.lit("java.lang.System"), F.lit("setProperty"), place, F.lit(""))
    return F.when(told.isNull(), value).otherwise(value)


def _reached_in_spark(folder: Path, branches: Iterable[Branch]) -> set[str]:
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None:
        return set()
    jvm: Any = context._jvm
    get = jvm.java.lang.System.getProperty
    return {name for branch in branches if get(_property(folder, name := branch.name)) is not None}


def _property(folder: Path | str, name: str) -> str:
    return f"{folder}/{name}"


def _note(folder: str, name: str, outcomes: Iterable[bool]) -> None:
    for outcome in outcomes:
        branch = f"{name}-{int(outcome)}"
        if (folder, branch) not in _reached and Path(folder).is_dir():
            (Path(folder) / branch).touch()
            _reached.add((folder, branch))


def _is_preface(node: ast.stmt) -> bool:
    is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_docstring or (isinstance(node, ast.ImportFrom) and node.module == "__future__")


class _Rewriter(ast.NodeTransformer):
    """Wraps each condition within a function in a call of `note_outcomes`."""

    def __init__(self) -> None:
        self.branches: set[Branch] = set()
        self._depth = 0

    def _visit_function(self, node: Any) -> Any:
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _visit_function  # noqa: N815  names of `ast`

    def _visit_test(self, node: Any) -> Any:
        self.generic_visit(node)
        node.test = self._noted(node.test, "test")
        return node

    visit_If = visit_While = visit_IfExp = _visit_test  # noqa: N815

    def visit_comprehension(self, node: ast.comprehension) -> Any:
        self.generic_visit(node)
        node.ifs = [self._noted(test, "test") for test in node.ifs]
        return node

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> Any:
        return self._visit_block(node, node, "the error is handled")

    def visit_match_case(self, node: ast.match_case) -> Any:
        return self._visit_block(node, node.pattern, f"case {ast.unparse(node.pattern)}")

    def _visit_block(self, node: Any, place: ast.AST, text: str) -> Any:
        """Report that a block begins, which has no condition to report."""
        self.generic_visit(node)
        reached = ast.copy_location(ast.Constant(True), place)
        node.body.insert(0, ast.Expr(self._noted(reached, "test", outcomes=(True,), text=text)))
        return node

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr in _MASKS:
            # pc.filter(values, mask) has the condition second.
            is_function = node.func.attr == "filter" and len(node.args) > 1
            at = 1 if is_function else 0
            if at < len(node.args) and not isinstance(node.args[at], ast.Starred | ast.Lambda):
                node.args[at] = self._noted(node.args[at], "mask")
        return node

    def _noted(
        self, test: ast.expr, kind: str, *, outcomes: tuple[bool, ...] = (False, True), text: str = ""
    ) -> ast.expr:
        is_constant = isinstance(test, ast.Constant) and kind == "test" and not text
        if not self._depth or is_constant:
            return test
        line, column = test.lineno, test.col_offset
        # As an expression: a statement that is a text would be shown as a docstring.
        shown = text or " ".join(ast.unparse(_Plain().visit(ast.parse(ast.unparse(test), mode="eval"))).split())
        self.branches |= {Branch(line, column, outcome, shown) for outcome in outcomes}
        arguments = [ast.Constant(f"{line}-{column}"), ast.Constant(kind), test]
        return ast.copy_location(ast.Call(ast.Name(_NOTE, ast.Load()), arguments, []), test)


class _Plain(ast.NodeTransformer):
    """Removes calls of `note_outcomes` from an expression, for display."""

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        return node.args[-1] if isinstance(node.func, ast.Name) and node.func.id == _NOTE else node
