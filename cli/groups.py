"""Groups of commands: what their help lists, and what is said about a word that is no command of them."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from typer.core import TyperCommand, TyperGroup

from ..errors import NotFound, Usage
from .synonyms import SYNONYMS, meant

_FIRST = "slackwater.first_word"
"""Where a context keeps the first word behind a verb."""


_BELOW_ZERO = re.compile(r"-(\.?\d.*|inf|nan)", re.IGNORECASE | re.DOTALL)
"""A word of a command line that is a number, or a time before now, and no option."""


class Verb(TyperCommand):
    """A verb that takes numbers below zero for what they are: no option is called so."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put such numbers behind the options, where they are arguments."""
        return super().parse_args(ctx, self._sorted(args) if any(map(_BELOW_ZERO.fullmatch, args)) else args)

    def _sorted(self, args: list[str]) -> list[str]:
        """Return the same words, options with their values first, and arguments behind `--`."""
        with_value = {name for param in self.params if not getattr(param, "is_flag", False) for name in param.opts}
        options, arguments, rest = list[str](), list[str](), list(args)
        while rest:
            word = rest.pop(0)
            if word == "--":
                arguments += rest
                break
            if not word.startswith("-") or word == "-" or _BELOW_ZERO.fullmatch(word):
                arguments.append(word)
                continue
            options.append(word)
            if word in with_value and rest:
                options.append(rest.pop(0))
        return [*options, "--", *arguments]


class Group(TyperGroup):
    """Commands under a name. Its help cuts no line, and a word that is no command leads to the right one."""

    sections: Mapping[str, Sequence[str]] = {}
    """The headings of its help, and the commands under each; empty for one heading."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the first sentence of each command, whole."""
        names = self.list_commands(ctx)
        width = max(map(len, names), default=0)
        for title, some in (self.sections or {"Commands": names}).items():
            with formatter.section(title):
                # All columns begin at the same place.
                rows = [(name.ljust(width), _sentence(self.get_command(ctx, name))) for name in some]
                formatter.write_dl(rows)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command of the first word. Raises `Usage` for another word, with what may be meant."""
        word = args[0]
        if not ctx.resilient_parsing and not word.startswith("-") and self.get_command(ctx, word) is None:
            path = f"slackwater {_path(ctx)}".strip()
            raise Usage(f"{path} has no verb {word!r}", hint=_hint(ctx, word, self) or f"`{path} --help` lists them")
        return super().resolve_command(ctx, args)


class Either(Group):
    """A verb with arguments and options, unless the first word is one of its own verbs."""

    allow_interspersed_args = True
    allow_extra_args = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the first word as a verb, or all words as arguments and options."""
        if args and args[0] in self.commands:
            ctx.invoked_subcommand, ctx.args = args[0], args[1:]
            return args[1:]
        ctx.meta[_FIRST] = args[0] if args else ""
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the verb, or the one of its own. What fails because of a word that is no app may mean another verb."""
        if ctx.invoked_subcommand is None:
            try:
                return super().invoke(ctx)
            except (NotFound, Usage) as error:
                if ctx.meta[_FIRST] in SYNONYMS and (found := _hint(ctx, ctx.meta[_FIRST], self, own=True)):
                    error.hint = "; or ".join(filter(None, (error.hint, f"you may mean {found}")))
                raise
        command, words = self.commands[ctx.invoked_subcommand], f"{ctx.info_name} {ctx.invoked_subcommand}"
        # Not below this verb, whose arguments its usage would show.
        with command.make_context(words, list(ctx.args), parent=ctx.parent) as inner:
            return command.invoke(inner)


def _path(ctx: Any) -> str:
    """The words that lead to a group; empty for all verbs."""
    return str(ctx.command_path.removeprefix(ctx.find_root().command_path).strip())


def _hint(ctx: Any, word: str, group: TyperGroup, *, own: bool = False) -> str:
    """Commands that a word may mean, one with what it does; empty where nothing comes near. `own` are the group's."""
    root, path = ctx.find_root(), _path(ctx)
    if path and not own and word in root.command.list_commands(root):
        return _described(ctx, root, word)
    found = meant(word, path, group.list_commands(ctx))
    if own:
        found = tuple(each for each in found if f"{each} ".startswith(f"{path} "))
    if len(found) == 1:
        return _described(ctx, root, found[0])
    return " or ".join(f"slackwater {command}" for command in found)


def _described(ctx: Any, root: Any, words: str) -> str:
    command = root.command
    for word in words.split():
        if word.startswith("-"):
            return f"slackwater {words}"
        command = command.get_command(ctx, word)
    sentence = _sentence(command).rstrip(".")
    return f"slackwater {words}: {sentence[0].lower()}{sentence[1:]}"


def _sentence(command: Any) -> str:
    """The first sentence of a command's help, in one line."""
    first, end, _ = " ".join((command.help or "").strip().partition("\n\n")[0].split()).partition(". ")
    return f"{first}{end.strip()}"
