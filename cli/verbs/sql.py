"""`slackwater sql`: a shell for SQL over the state of an app, which moves in time."""

from contextlib import closing

import typer

from .. import options
from ..session import Session, verb


@verb(
    "slackwater sql flights",
    "slackwater sql flights@before-deploy",
    "slackwater sql flights < report.sql",
    'echo "AT -5m; SELECT count(*) FROM carriers;" | slackwater sql flights --json',
    kafka=True,
)
def sql(
    session: Session,
    ref: options.Ref,
    limit: int = options.option("N", "Print this many rows of each result; 0 for all.", 50, min=0),
) -> None:
    """Type SQL over the tables of an app, statement after statement, each up to its `;`.

    AT -5m; asks what follows at that moment, AT now; at the newest again. Tab completes tables, columns and snapshots;
    what was typed is there again the next time. An error ends nothing. Where standard input is no terminal, its
    statements are carried out, and the exit code is 1 if one failed.
    """
    from .. import terminal
    from ..sql import shell

    with closing(session.settings.open_cache()) as cache:
        opened = shell.Shell(session, cache, ref, limit)
        stream = typer.get_binary_stream("stdin")
        if stream.isatty() and (terminal.is_terminal() or terminal.is_terminal(stderr=True)):
            from ..sql.prompt import prompter

            opened.run(shell.typed(prompter(opened)))
        elif opened.run(shell.read(stream)):
            raise typer.Exit(1)
