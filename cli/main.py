"""The `slackwater` command: finds the verb, and prints any error as one sentence with an exit code.

Exit codes: 0 done, 1 failed, 2 usage, 130 interrupted, 141 if the process that reads the output has ended.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from keyword import iskeyword
from typing import Any

import typer
from typer.main import get_command

from ..errors import Usage
from . import quick, terminal
from .groups import Group, add_hint_on_local_servers
from .options import examples
from .verbs import SECTIONS, VERBS

# typer exports only one of the usage errors. Parsing raises errors of their common base class.
UsageError: Any = typer.BadParameter.__mro__[1]
INTERRUPTED = 130
_PIPE_CLOSED = 141


def _print_usage(error: Any, args: Sequence[str]) -> None:
    if "--json" in args:
        terminal.Printer(as_json=True).show_error(Usage(error.format_message()))
        return
    context = error.ctx
    # This error carries the help text; typer does not export its class.
    if type(error).__name__ == "NoArgsIsHelpError":
        terminal.print_blocks(context.get_help().splitlines(), stderr=True)
        return
    if context is not None:
        option = context.help_option_names[0]
        usage = (*context.get_usage().splitlines(), f"Try '{context.command_path} {option}' for help.", "")
        terminal.print_blocks(usage, stderr=True)
    terminal.print_error("error", error.format_message())


class _Verbs(Group):
    """Group that imports its verbs on demand, prints their errors, and sets the exit code."""

    sections = SECTIONS

    _args: tuple[str, ...] = ()
    """Words of the command line. If --json is among them, errors are printed as JSON."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in VERBS and cmd_name not in self.commands:
            module = import_module(f".verbs.{VERBS[cmd_name]}", __package__)
            function = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name.replace("-", "_")
            verb_app: typer.Typer = getattr(module, function)
            # Plain help, because rich's boxes take 0.2 s, half of the time of `--help`.
            verb_app.rich_markup_mode = None
            self.commands[cmd_name] = get_command(verb_app)
            self.commands[cmd_name].name = cmd_name
        return self.commands.get(cmd_name)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        self._args = tuple(args)
        try:
            return super().make_context(info_name, args, parent, **extra)
        except UsageError as error:
            _print_usage(error, self._args)
            raise typer.Exit(2) from None

    def invoke(self, ctx: Any) -> Any:
        """Run a verb. Raises only errors that typer prints itself, and `typer.Exit` with the exit code."""
        try:
            result = super().invoke(ctx)
            terminal.flush()
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            terminal.silence_stdout()
            raise typer.Exit(_PIPE_CLOSED) from None
        except UsageError as error:
            _print_usage(error, self._args)
            raise typer.Exit(2) from None
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:
            add_hint_on_local_servers(error)
            terminal.Printer(as_json="--json" in self._args).show_error(error)
            if ctx.params.get("debug"):
                terminal.print_traceback(error)
            raise typer.Exit(2 if isinstance(error, Usage) else 1) from None
        finally:
            terminal.set_log_format("text")
        return result


app = typer.Typer(
    cls=_Verbs,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "slackwater run flights.py",
        "slackwater snapshot take flights before-deploy",
        'slackwater query flights@-5m "SELECT * FROM carriers ORDER BY delay DESC"',
        'slackwater bisect flights --where "SELECT * FROM carriers WHERE worst > 3000"',
        "slackwater clone flights@before-deploy flights-staging",
    ),
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        from .. import __version__

        terminal.print_blocks([f"slackwater {__version__}"])
        raise typer.Exit


_DEBUG = typer.Option(False, "--debug", envvar="SLACKWATER_DEBUG", help="Show the traceback of an error.")
_VERSION = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit.")


@app.callback()
def _root(debug: bool = _DEBUG, version: bool = _VERSION) -> None:
    """Snapshot, query, bisect and clone the state of streaming apps on Spark."""


def main() -> None:
    terminal.install_handlers()
    quick.tune_for_one_verb()
    quick.install_fast_params()
    try:
        _run()
    except SystemExit as ended:
        quick.exit_without_teardown(ended.code)
        raise


def _run() -> None:
    try:
        app(prog_name="slackwater")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    finally:
        # The last lines may still be in the buffer when the reader has ended.
        try:
            terminal.flush()
        except BrokenPipeError:
            terminal.silence_stdout()


if __name__ == "__main__":
    main()
