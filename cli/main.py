"""The `slackwater` command and its verbs."""

import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from . import terminal
from .error_boundary import UsageError, guard, print_usage
from .options import examples
from .verbs import VERBS


class _Verbs(TyperGroup):
    """A group that imports its verbs on demand and runs them inside the error boundary."""

    _words: tuple[str, ...] = ()

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in VERBS:
            # typer names the nearest of the verbs it knows.
            for verb in VERBS:
                self.get_command(ctx, verb)
        elif cmd_name not in self.commands:
            verb_app: typer.Typer = getattr(import_module(f".verbs.{VERBS[cmd_name]}", __package__), cmd_name)
            # Plain help: rich's boxes cost 0.2 s, half of what `--help` may take.
            verb_app.rich_markup_mode = None
            self.commands[cmd_name] = get_command(verb_app)
            self.commands[cmd_name].name = cmd_name
        return self.commands.get(cmd_name)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        words = tuple(args)
        try:
            return super().make_context(info_name, args, parent, **extra)
        except UsageError as error:
            print_usage(error, words)
            raise typer.Exit(2) from None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        self._words = tuple(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with guard(self._words, debug=bool(ctx.params.get("debug"))):
            return super().invoke(ctx)


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


def _print_version(asked: bool) -> None:
    if asked:
        from .. import __version__

        terminal.print_parts([f"slackwater {__version__}"])
        raise typer.Exit


@app.callback()
def _root(
    debug: Annotated[
        bool,
        typer.Option("--debug", envvar="SLACKWATER_DEBUG", help="Show the traceback of an error."),
    ] = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Snapshot, query, bisect and clone the state of streaming apps on Spark."""


def main() -> None:
    """Run the command line of this process and exit with its code."""
    terminal.handle_everything()
    try:
        app(prog_name="slackwater")
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        # The last lines may still be in the buffer when the reader has gone.
        try:
            terminal.flush()
        except BrokenPipeError:
            terminal.silence()


if __name__ == "__main__":
    main()
