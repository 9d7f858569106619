"""Command groups of typer: their help, subcommands, and suggestions for an unknown command."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from typer.core import TyperCommand, TyperGroup

from ..errors import NotFound, SlackwaterError, Usage
from .synonyms import SYNONYMS, commands_for

_FIRST_WORD = "slackwater.first_word"
_LOCAL_SETTINGS = Path(".slackwater/dev/env.sh")


_NEGATIVE = re.compile(r"-(\.?\d.*|inf|nan)", re.IGNORECASE | re.DOTALL)
"""Pattern of a negative number or a relative time such as -5m, which is an argument and not an option."""


class Verb(TyperCommand):
    """Command that accepts negative numbers as arguments, since no option has a number as its name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self._options_first(args) if any(map(_NEGATIVE.fullmatch, args)) else args)

    def _options_first(self, args: list[str]) -> list[str]:
        """Move options with their values to the front; `--` and the arguments follow."""
        with_value = {name for param in self.params if not getattr(param, "is_flag", False) for name in param.opts}
        options, arguments, remaining = list[str](), list[str](), list(args)
        while remaining:
            word = remaining.pop(0)
            if word == "--":
                arguments += remaining
                break
            if not word.startswith("-") or word == "-" or _NEGATIVE.fullmatch(word):
                arguments.append(word)
                continue
            options.append(word)
            if word in with_value and remaining:
                options.append(remaining.pop(0))
        return [*options, "--", *arguments]


class Group(TyperGroup):
    """Group of commands whose help truncates no line, and which suggests a command for an unknown word."""

    sections: Mapping[str, Sequence[str]] = {}
    """Command names by heading of the help. If empty, all commands are under one heading."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        names = self.list_commands(ctx)
        width = max(map(len, names), default=0)
        for title, some in (self.sections or {"Commands": names}).items():
            with formatter.section(title):
                # Align the columns of all sections.
                rows = [(name.ljust(width), _sentence(self.get_command(ctx, name))) for name in some]
                formatter.write_dl(rows)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        word = args[0]
        if not ctx.resilient_parsing and not word.startswith("-") and self.get_command(ctx, word) is None:
            path = f"slackwater {_path(ctx)}".strip()
            raise Usage(f"{path} has no verb {word!r}", hint=_hint(ctx, word, self) or f"`{path} --help` lists them")
        return super().resolve_command(ctx, args)


class VerbGroup(Group):
    """Verb that has arguments and options itself, and also subcommands."""

    allow_interspersed_args = True
    allow_extra_args = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] in self.commands:
            ctx.invoked_subcommand, ctx.args = args[0], args[1:]
            return args[1:]
        ctx.meta[_FIRST_WORD] = args[0] if args else ""
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the verb or its subcommand. If the first word is not an app, suggest a subcommand."""
        if ctx.invoked_subcommand is None:
            try:
                return super().invoke(ctx)
            except (NotFound, Usage) as error:
                if ctx.meta[_FIRST_WORD] in SYNONYMS and (
                    suggestion := _hint(ctx, ctx.meta[_FIRST_WORD], self, own=True)
                ):
                    error.hint = _join_hints(error.hint, f"you may mean {suggestion}")
                raise
        command, command_path = self.commands[ctx.invoked_subcommand], f"{ctx.info_name} {ctx.invoked_subcommand}"
        # The usage line would show this verb's arguments if the parent were this verb.
        with command.make_context(command_path, list(ctx.args), parent=ctx.parent) as inner:
            return command.invoke(inner)


def add_hint_on_local_servers(error: Exception) -> None:
    """Extend the hint of an error about an app or a store, if `dev up` wrote settings that this shell lacks."""
    from ..settings import NO_STORE

    is_missing = (isinstance(error, NotFound) and error.what == "app") or str(error) == NO_STORE
    lacks_settings = "SLACKWATER_STORE" not in os.environ and _LOCAL_SETTINGS.exists()
    if isinstance(error, SlackwaterError) and is_missing and lacks_settings:
        error.hint = _join_hints(error.hint, f"for the servers of `slackwater dev up`: source {_LOCAL_SETTINGS}")


def _join_hints(*hints: str) -> str:
    return "; or ".join(filter(None, hints))


def _path(ctx: Any) -> str:
    return str(ctx.command_path.removeprefix(ctx.find_root().command_path).strip())


def _hint(ctx: Any, word: str, group: TyperGroup, *, own: bool = False) -> str:
    """Return the commands that a word may mean; empty without a match. If there is only one, its description is added.

    With `own`, considers only subcommands of `group`.
    """
    root, path = ctx.find_root(), _path(ctx)
    if path and not own and word in root.command.list_commands(root):
        return _describe(ctx, root, word)
    matches = commands_for(word, path, group.list_commands(ctx))
    if own:
        matches = tuple(command for command in matches if f"{command} ".startswith(f"{path} "))
    if len(matches) == 1:
        return _describe(ctx, root, matches[0])
    return " or ".join(f"slackwater {command}" for command in matches)


def _describe(ctx: Any, root: Any, path: str) -> str:
    command = root.command
    for word in path.split():
        if word.startswith("-"):
            return f"slackwater {path}"
        command = command.get_command(ctx, word)
    sentence = _sentence(command).rstrip(".")
    return f"slackwater {path}: {sentence[0].lower()}{sentence[1:]}"


def _sentence(command: Any) -> str:
    first, end, _ = " ".join((command.help or "").strip().partition("\n\n")[0].split()).partition(". ")
    return f"{first}{end.strip()}"
