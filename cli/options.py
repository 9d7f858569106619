"""Options and arguments that several verbs share, so that they are spelled and explained once."""

import math
import shlex
from typing import Annotated

import typer

__all__ = ["App", "Json", "Kafka", "Ref", "Store", "examples", "finite", "said"]

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


def finite(seconds: float) -> float:
    """What an option in seconds is given, unless that is `inf` or `nan`: nothing waits for so long."""
    if not math.isfinite(seconds):
        raise typer.BadParameter(f"{seconds} is not a number of seconds.")
    return seconds


def said(store: str | None) -> str:
    """The `--store` that a command to type next needs because this one was given it; else nothing."""
    return f" --store {shlex.quote(store)}" if store else ""


def examples(*lines: str) -> str:
    """An epilog for a verb's help. The mark in its first line keeps the help formatter from refilling it."""
    return "\n".join(("\b", "Example:" if len(lines) == 1 else "Examples:", *(f"  {line}" for line in lines)))
