"""The package's parsed source code, for tests of rules about it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = (
    "common",
    "store",
    "chandy_lamport",
    "state",
    "snapshot",
    "pipeline",
    "operations",
    "client",
    "serve",
    "cli",
    "testing",
)


def modules(*parts: str, matching: str = "") -> Iterator[tuple[Path, ast.Module]]:
    """Yield the path from the root, and the syntax tree, of each module in these parts of the package (default: all).

    If `matching` is given, only modules whose text contains this pattern are parsed, because parsing takes much longer.
    """
    for path in sorted(path for part in parts or PARTS for path in (ROOT / part).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if re.search(matching, text):
            yield path.relative_to(ROOT), ast.parse(text)


def calls(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the last part of the name, and the line, of every call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            yield name, node.lineno
