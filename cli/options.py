"""Options and arguments that several verbs share, so that they are spelled and explained once."""

import shlex
from typing import Annotated, Any

import typer

from ..errors import Usage

__all__ = ["App", "Json", "Kafka", "Ref", "Store", "examples", "said", "span"]

Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="ROOT",
        show_default=False,
        help="Store root: s3://bucket/prefix or a folder. Else SLACKWATER_STORE, else slackwater.toml.",
    ),
]
Kafka = Annotated[
    str | None,
    typer.Option(
        "--kafka",
        metavar="HOST:PORT",
        show_default=False,
        help="Kafka brokers, comma-separated. Else SLACKWATER_KAFKA, else slackwater.toml.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines; errors as one JSON object on stderr.")]
App = Annotated[str, typer.Argument(metavar="APP", help="Name of the app.", show_default=False)]
Ref = Annotated[
    str,
    typer.Argument(
        metavar="REF",
        show_default=False,
        help="A moment: app, app@name, app@2026-11-21T07:12, app@-5m, app@~3, app/stage@v42.",
    ),
]


def span(explanation: str, *names: str, least_ms: int = 0, bare_seconds: bool = False) -> Any:
    """An option that takes a span of time, for an argument in milliseconds.

    Args:
        explanation: what its help says; how a span is written is added.
        names: those of the option, where they are not its argument's.
        least_ms: the shortest that could work.
        bare_seconds: whether a number alone is taken, as seconds.
    """

    def parsed(text: str | int) -> int:
        if isinstance(text, int):  # the default
            return text
        from ..durations import format_ms, parse_ms

        try:
            span_ms = parse_ms("", text, bare_seconds=bare_seconds)
        except Usage as error:
            raise typer.BadParameter(f"{error.message}.") from None
        if span_ms < least_ms:
            raise typer.BadParameter(f"{text!r} is too short; expected {format_ms(least_ms)} or more.")
        return span_ms

    also = ", or seconds" if bare_seconds else ""
    return typer.Option(
        *names,
        metavar="SPAN",
        parser=parsed,
        show_default=False,
        help=f"{explanation} (30s, 1.5h, '7 days'{also})",
    )


def said(store: str | None) -> str:
    """The `--store` that a command to type next needs because this one was given it; else nothing."""
    return f" --store {shlex.quote(store)}" if store else ""


def examples(*lines: str) -> str:
    """An epilog for a verb's help. The mark in its first line keeps the help formatter from refilling it."""
    return "\n".join(("\b", "Example:" if len(lines) == 1 else "Examples:", *(f"  {line}" for line in lines)))
