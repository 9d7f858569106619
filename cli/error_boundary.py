"""The error boundary: whatever escapes a verb becomes one sentence, the next step and an exit code.

0 done, 1 failed, 2 usage, 130 interrupted, 141 when the reader of our output went away.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer

from ..errors import Usage
from . import terminal
from .output import output_for

# typer exports one of the usage errors; their common base is what parsing raises.
UsageError: Any = typer.BadParameter.__mro__[1]
# The one that brings the help instead of a sentence; typer does not export it.
_NO_WORDS = "NoArgsIsHelpError"

_INTERRUPTED = 130
_PIPE_CLOSED = 141


@contextmanager
def guard(args: Sequence[str], *, debug: bool = False) -> Iterator[None]:
    """Run a verb's body. `args` are the words of the command line; `--json` among them makes errors JSON.

    Raises `typer.Exit` with the code that fits; nothing else leaves but what typer itself prints.
    """
    output = output_for(json="--json" in args)
    try:
        yield
        terminal.flush()
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPTED) from None
    except BrokenPipeError:
        terminal.silence()
        raise typer.Exit(_PIPE_CLOSED) from None
    except UsageError as error:
        print_usage(error, args)
        raise typer.Exit(2) from None
    except (typer.Exit, typer.Abort):
        raise
    except Exception as error:
        output.failure(error)
        if debug:
            terminal.print_traceback(error)
        raise typer.Exit(2 if isinstance(error, Usage) else 1) from None


def print_usage(error: Any, args: Sequence[str]) -> None:
    """What typer found wrong with the words of a command line, in which these words may be repeated."""
    if "--json" in args:
        output_for(json=True).failure(Usage(error.format_message()))
        return
    context = error.ctx
    if type(error).__name__ == _NO_WORDS:
        terminal.print_parts(context.get_help().splitlines(), stderr=True)
        return
    if context is not None:
        option = context.help_option_names[0]
        usage = (*context.get_usage().splitlines(), f"Try '{context.command_path} {option}' for help.", "")
        terminal.print_parts(usage, stderr=True)
    terminal.print_failure("error", error.format_message())
