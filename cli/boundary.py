"""The error boundary: whatever escapes a verb becomes one sentence, the next step and an exit code.

0 done, 1 failed, 2 usage, 130 interrupted, 141 when the reader of our output went away.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer

from ..store.errors import SlackwaterError, Usage
from .output import output_for, print_traceback

__all__ = ["guard", "silence_stdout"]

# typer exports one of the usage errors; their common base is what parsing raises.
_UsageError: Any = typer.BadParameter.__mro__[1]

_INTERRUPTED = 130
_PIPE_CLOSED = 141


@contextmanager
def guard(args: Sequence[str], *, debug: bool = False) -> Iterator[None]:
    """Run a verb's body. `args` are the words of the command line; `--json` among them makes errors JSON.

    Raises:
        typer.Exit: with the code that fits; nothing else leaves but what typer itself prints.
    """
    output = output_for(json="--json" in args)
    try:
        yield
        sys.stdout.flush()
    except SlackwaterError as error:
        output.error(error)
        if debug:
            print_traceback()
        raise typer.Exit(2 if isinstance(error, Usage) else 1) from None
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPTED) from None
    except BrokenPipeError:
        silence_stdout()
        raise typer.Exit(_PIPE_CLOSED) from None
    except _UsageError as error:
        if "--json" not in args:
            raise
        output.error(Usage(error.format_message()))
        raise typer.Exit(2) from None
    except (typer.Exit, typer.Abort):
        raise
    except Exception as error:
        output.bug(error)
        if debug:
            print_traceback()
        raise typer.Exit(1) from None


def silence_stdout() -> None:
    """Let the interpreter's last flush go nowhere instead of complaining about the closed pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
