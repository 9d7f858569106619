"""Verbs and options that the program's messages name exist."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from slackwater.operations.maintenance.doctor import names_to_request

from tests.documents.test_help import VERBS

ROOT = Path(__file__).parents[2]
NOT_OURS = {"tests", "docs", "bench", "examples", "deploy", "build"}
"""Folders that contain no messages of the program."""

RAISED_BY = {
    "operations/from_spark/adopt/": ("adopt",),
    "operations/attach/": ("attach",),
    "operations/program_changes.py": ("migrate",),
    "operations/repair/reset.py": ("reset",),
    "operations/repair/rewind_plan.py": ("rewind",),
    "operations/erasure/": ("forget",),
    "operations/exchange/iceberg/": ("export",),
    "operations/exchange/initialise.py": ("init",),
    "operations/staging/refresh.py": ("clone refresh",),
    "operations/staging/promote": ("promote",),
    "operations/staging/trial": ("trial",),
    "operations/staging/": ("clone",),
    **{
        f"operations/disaster_recovery/{file}": ("recover",) for file in ("recover", "drill", "fence", "mirror_offsets")
    },
    "operations/disaster_recovery/": ("replicate",),
    "operations/maintenance/removal.py": ("app rm", "clone rm", "clone refresh"),
    "snapshot/bisect/": ("bisect",),
    "snapshot/change/switch.py": ("promote",),
    **{f"snapshot/change/{file}": ("migrate",) for file in ("migrat", "fill")},
    "operations/repair/records/": ("repair",),
    "snapshot/change/edit": ("edit",),
    "snapshot/gc/": ("gc",),
    "snapshot/query/export.py": ("export",),
    "snapshot/query/row_source.py": ("init",),
    "snapshot/take/snapshots.py": ("app rm", "clone rm", "clone refresh", "snapshot rm"),
    "snapshot/take/taking.py": ("snapshot take",),
}
"""Verbs that show the messages of a file or folder. An option without a verb belongs to one of these verbs."""

OTHERS = {
    "--bootstrap-server",
    "--add",
    "--allow-principal",
    "--operation",
    "--topic",
    "--group",
    "--cluster",
    "--catalog",
}
"""Options of `kafka-acls` and `pyiceberg`."""

COMMAND = re.compile(r"\bslackwater ((?:[a-z]+ )*[a-z]+(?:-not|-tests)?)\b((?:(?! and | then | or )[^`\n;,#])*)")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]")
CLAUSE = re.compile(r"[;:.,(]\s")


EVERYWHERE = {"--help", "--debug", "--version"}
"""Options of `slackwater` itself."""


class Text(NamedTuple):
    """A text in the program's source."""

    file: str
    line: int
    words: str
    is_hint: bool


def texts() -> Iterator[Text]:
    """Yield every string in the program's source except docstrings, with `X` for inserted values."""
    for path in sorted(ROOT.rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        if file.split("/")[0] in NOT_OURS or file.startswith("."):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        parts, hints = set[ast.AST](), set[ast.AST]()
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                parts |= {part for each in node.values for part in ast.walk(each)}
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                parts.add(node.value)
            if isinstance(node, ast.keyword) and node.arg == "hint":
                hints |= set(ast.walk(node.value))
            if isinstance(node, ast.Assign) and any(
                isinstance(to, ast.Name) and to.id == "hint" for to in node.targets
            ):
                hints |= set(ast.walk(node.value))
        for node in ast.walk(tree):
            # A single word is an argument of another program.
            if node not in parts and " " in (words := spoken(node)):
                yield Text(file, getattr(node, "lineno", 0), words, node in hints)


def spoken(node: ast.AST) -> str:
    """Return a string literal, with `X` for inserted values; empty for other nodes."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(each.value) if isinstance(each, ast.Constant) else "X" for each in node.values)
    return ""


@cache
def options(verb: str) -> frozenset[str]:
    """Return the long options of a verb."""
    parameters: Any = VERBS[f"slackwater {verb}"].params
    return frozenset(name for each in parameters for name in (*each.opts, *each.secondary_opts)) | EVERYWHERE


EVERY = {word.removeprefix("slackwater ") for word in VERBS}
GROUPS = {verb.split()[0] for verb in EVERY if " " in verb}


def verb_of(words: str) -> str:
    """Return the longest verb that begins these words; empty if there is none."""
    each = words.split()
    return next((verb for end in (2, 1) if (verb := " ".join(each[:end])) in EVERY), "")


def wrong(text: Text) -> Iterator[str]:
    """Yield names in a text that do not exist."""
    rest = text.words
    for found in COMMAND.finditer(text.words):
        rest = rest.replace(found[0], " ")
        if not (verb := verb_of(found[1])):
            if found[1] not in GROUPS and re.search(r"`slackwater |: slackwater ", text.words):
                yield f"there is no verb {found[1]!r}"
            continue
        if verb == "doctor":
            needs = found[1].split()[1:]
            yield from (f"doctor examines no {name!r}" for name in needs if name not in names_to_request())
        yield from (f"{verb} has no {name}" for name in OPTION.findall(found[2]) if name not in options(verb))
    for name in OPTION.findall(rest):
        if name not in OTHERS and not any(name in options(verb) for verb in EVERY):
            yield f"no verb has {name}"
    verbs = next((verbs for where, verbs in RAISED_BY.items() if text.file.startswith(where)), ())
    for clause in CLAUSE.split(rest) if text.is_hint and verbs else ():
        said = [verb for word in re.findall(r"[a-z]+", clause) if (verb := verb_of(word))]
        for name in OPTION.findall(clause):
            known = name in OTHERS or all(name in options(verb) for verb in verbs)
            if not (known or any(name in options(verb) for verb in said)):
                yield f"{name} is not an option of {', '.join(verbs)}"


@pytest.mark.parametrize(
    ("file", "words", "expected"),
    [
        ("x.py", "see `slackwater clone rm NAME --force`", ["clone rm has no --force"]),
        ("x.py", "see `slackwater app rm NAME --force`", []),
        ("x.py", "run it: slackwater snapshot make shop", ["there is no verb 'snapshot make shop'"]),
        ("x.py", "see `slackwater doctor java spark`", []),
        ("x.py", "see `slackwater doctor run`", ["doctor examines no 'run'"]),
        ("x.py", "give --nowhere", ["no verb has --nowhere"]),
        (
            "operations/maintenance/removal.py",
            "say --force",
            ["--force is not an option of app rm, clone rm, clone refresh"],
        ),
        ("operations/staging/promote_plan.py", "run both with --accept-loss, then again", []),
    ],
)  # fmt: skip
def test_the_check_finds_names_that_do_not_exist(file: str, words: str, expected: list[str]) -> None:
    assert list(wrong(Text(file, 1, words, is_hint=True))) == expected


def test_every_command_in_a_message_exists() -> None:
    every = list(texts())
    assert sum(each.is_hint for each in every) > 500
    assert sum("slackwater " in each.words for each in every) > 200
    found = [f"{each.file}:{each.line}: {what}: {each.words[:150]!r}" for each in every for what in wrong(each)]
    assert found == []
