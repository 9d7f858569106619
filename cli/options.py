"""Options and arguments of verbs: builders, the options that several verbs share, and parsers of values."""

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import typer

from ..common.arguments import Param, param_of, union_members, unwrap_annotated
from ..common.validation import find_program_file
from ..errors import Usage

A = TypeVar("A")
Repeated = list[str] | None


def argument(metavar: str, explanation: str, default: Any = ...) -> Any:
    """Return a positional argument; it is required unless it has a default."""
    return typer.Argument(default, metavar=metavar, help=explanation, show_default=False)


def flag(name: str, explanation: str, *short: str) -> Any:
    return typer.Option(False, name, *short, help=explanation)


def option(metavar: str | None, explanation: str, default: Any = None, *, name: str = "", **more: Any) -> Any:
    """Return an option with a value. `name` overrides the parameter's name. `more` is passed to `typer.Option`."""
    names, is_shown = [name] if name else [], default not in (None, ..., "")
    return typer.Option(default, *names, metavar=metavar, help=explanation, show_default=is_shown, **more)


def option_for(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a declared parameter as a typer option. Returns other parameters unchanged."""
    if (param := param_of(parameter)) is None:
        return parameter
    kind, default = unwrap_annotated(parameter.annotation), parameter.default
    name = _option_name(parameter, param)
    if kind is bool:
        return parameter.replace(annotation=bool, default=flag(name, param.help))
    if (unit_ms := _unit_ms(parameter, param)) and default is not None:
        span_option = duration_option(param.help, round(default * unit_ms), name=name, bare_seconds=unit_ms > 1)
        return parameter.replace(annotation=int, default=span_option)
    if unit_ms:
        return parameter.replace(annotation=int | None, default=duration_option(param.help, name=name))
    limits = {word: param.limits[limit] for limit, word in (("ge", "min"), ("le", "max")) if limit in param.limits}
    explanation = param.help
    if _is_repeated(parameter, param):
        item: Any = str if param.pair else get_args(kind)[0]
        kind, default, explanation = list[item] | None, None, f"{explanation} May be repeated."
    elif str in union_members(kind):
        kind = str | None if default is None else str
    return parameter.replace(annotation=kind, default=option(param.metavar, explanation, default, name=name, **limits))


def convert_value(parameter: inspect.Parameter, value: Any) -> Any:
    if (param := param_of(parameter)) is None:
        return value
    if param.pair:
        return parse_pairs(_option_name(parameter, param), value, param.metavar or "", param.pair)
    if _is_repeated(parameter, param):
        return tuple(value) if value else parameter.default
    return value / unit_ms if (unit_ms := _unit_ms(parameter, param)) > 1 else value


def _is_repeated(parameter: inspect.Parameter, param: Param) -> bool:
    return bool(param.pair) or get_origin(unwrap_annotated(parameter.annotation)) is Sequence


def _unit_ms(parameter: inspect.Parameter, param: Param) -> int:
    """Return the milliseconds in one unit of a parameter that is a time span; 0 for other parameters."""
    unit = parameter.name.rpartition("_")[2] if param.metavar is None else ""
    return {"s": 1_000, "ms": 1}.get(unit, 0)


def _option_name(parameter: inspect.Parameter, param: Param) -> str:
    name = parameter.name.rpartition("_")[0] if _unit_ms(parameter, param) else parameter.name
    name = name.removesuffix("s") if _is_repeated(parameter, param) else name
    return param.option or f"--{name.replace('_', '-')}"


STORE = option(
    "ROOT", "Store root: s3://…, gs://…, az://… or a folder. Default: SLACKWATER_STORE, then slackwater.toml."
)
KAFKA = option("HOST:PORT", "Kafka brokers, comma-separated. Default: SLACKWATER_KAFKA, then slackwater.toml.")
JSON = flag("--json", "Print JSON; errors as one JSON object on stderr.")
LOG_FORMAT = option(None, "Log lines as text or as JSON objects.", "text", envvar="SLACKWATER_LOG_FORMAT")
MESSAGE = option("TEXT", "Reason, kept in the log of operations.", "")
DRY_RUN = flag("--dry-run", "Check everything and show what would change; change nothing.")
STAGE = argument("APP/STAGE", "A stage of an app.")
APP = argument("APP", "Name of the app.")
REF = argument("REF", "A moment: app, app@snapshot, app@2026-11-21T07:12, app@-5m, app@~3, app/stage@v42.")
TABLE = argument("APP/TABLE", "A table of an app.")
TABLE_AT = argument("APP/TABLE[@MOMENT]", "A table, now or at a moment: @-5m, @snapshot, @2026-11-21T07:12, @v42.")
KEY = argument(
    "KEY",
    "Values of the key columns, in order. \\N is null, bytes are hexadecimal, a struct is JSON. "
    "Text that begins with '-' goes behind --.",
)
FORGOTTEN_KEY = option("TABLE=KEY", "A key of a table. A key of several columns is a JSON array. May be repeated.")
CONF = option("KEY=VALUE", "Spark config; highest precedence. May be repeated.")
PY_FILES = option("FILES", "Python files and zips that the program imports, comma-separated. May be repeated.")


def program_option(explanation: str, more_about_default: str | None = "") -> Any:
    """Return the option for a program's file.

    `more_about_default` ends the sentence about the default; None if there is no default.
    """
    default = "" if more_about_default is None else f" Default: [programs] of slackwater.toml{more_about_default}."
    return option("FILE", f"{explanation}{default}", callback=_check_files)


def programs_option(explanation: str) -> Any:
    text = f"{explanation} May be repeated. Default: [programs] of slackwater.toml."
    return option("FILE", text, name="--code", callback=_check_files)


def _check_files(value: A) -> A:
    files: list[Any] = value if isinstance(value, list) else [value] if value is not None else []
    for file in files:
        find_program_file(file)
    return value


def duration_option(
    explanation: str, default: int | None = None, *, name: str = "", min_ms: int = 0, bare_seconds: bool = False
) -> Any:
    """Return an option whose value is a time span of at least `min_ms`, parsed to milliseconds.

    With `bare_seconds`, a number without a unit is accepted as seconds. The help shows the format of spans.
    """

    def parsed(text: str | int) -> int:
        if isinstance(text, int):  # the default
            return text
        from ..common.durations import format_ms, parse_ms

        try:
            span_ms = parse_ms("", text, bare_seconds=bare_seconds)
        except Usage as error:
            raise typer.BadParameter(f"{error.message}.") from None
        if span_ms < min_ms:
            raise typer.BadParameter(f"{text!r} is too short; expected {format_ms(min_ms)} or more.")
        return span_ms

    also = ", or seconds" if bare_seconds else ""
    return typer.Option(
        default,
        *filter(None, [name]),
        metavar="SPAN",
        parser=parsed,
        show_default=False,
        help=f"{explanation} (30s, 1.5h, '7 days'{also})",
    )


def parse_pairs(option: str, values: Repeated, shape: str, example: str) -> dict[str, str]:
    """Parse options of the form `NAME=OTHER` into a dict. If the form is `NAME[=OTHER]`, a name alone maps to itself.

    Raises `Usage` for another form or a repeated name.
    """
    pairs_by_name: dict[str, str] = {}
    for pair in values or ():
        name, equals, other = pair.partition("=")
        if not equals and "[=" in shape:
            name, equals, other = pair, "=", pair
        if not (name and equals and other):
            raise Usage(f"{option} {pair!r} is not {shape}", hint=f"for example {option} {example}")
        if pairs_by_name.setdefault(name, other) != other:
            raise Usage(f"{option} names {name!r} twice: as {pairs_by_name[name]!r} and as {other!r}")
    return pairs_by_name


KeyArguments = Sequence[str] | Mapping[str, Sequence[tuple[str | None, ...]]]


def parse_keys(where: str, key_words: Sequence[str], keys: Sequence[str], files: Sequence[Path] | None) -> KeyArguments:
    """Return keys in the form that the client takes, from `--key` options or from `APP/TABLE KEY`.

    Raises `Usage` if keys are given in both ways, for a table without a key, and for a key without a table. Also raises
    `Usage` for a ref with a moment, because the verb covers all versions.
    """
    app, at, _ = where.partition("@")
    app, _, table = app.partition("/")
    if at:
        raise Usage(f"this covers all versions of an app; expected APP or APP/TABLE KEY, found {where}")
    if bool(table) != bool(key_words):
        example = f"{app}/{key_words[0]} {' '.join(key_words[1:]) or 'KEY'}" if key_words else f"{where} KEY"
        raise Usage(f"{where!r} {'names no table for the key' if key_words else 'has no key'}", hint=f"write {example}")
    if not key_words:
        return [*keys]
    if keys or files:
        raise Usage(
            "keys are given twice: as APP/TABLE KEY, and by an option",
            hint=f"give all of them by options: {app} --key {table}=KEY",
        )
    return [f"{table}={key_words[0]}"] if len(key_words) == 1 else {table: [parse_key_words([*key_words])]}


def parse_key_words(key: list[str]) -> tuple[str | None, ...]:
    """Parse the words of a key argument; None stands for null."""
    from ..snapshot.query.key_text import parse_value

    return tuple(map(parse_value, key))


_WIDTH = 76
"""Maximum number of characters in a line of an example. The indented line then fits 80 columns."""
_WORD = re.compile(r"""(?:[^\s'"]|'[^']*'|"[^"]*")+""")


def examples(*lines: str) -> str:
    """Return the examples at the end of a verb's help.

    A backspace in the first line keeps the help formatter from refilling the text. An example that is too long for a
    line gets its comment above it and is broken with backslashes.
    """
    fitting = (f"  {part}" for line in lines for part in _wrap(line))
    return "\n".join(("\b", "Example:" if len(lines) == 1 else "Examples:", *fitting))


def _wrap(line: str) -> Iterator[str]:
    if len(line) <= _WIDTH:
        yield line
        return
    command, _, comment = line.partition("  #")
    if comment:
        yield f"#{comment}"
    part = ""
    for word in _WORD.findall(command):
        if part and len(part) + len(word) + 3 > _WIDTH:
            yield f"{part} \\"
            part = "   "
        part = f"{part} {word}" if part else word
    yield part
