"""`slackwater dev`: Kafka and S3 on this machine, to develop and try things with."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import humane, options
from ..output import output_for
from ..tables import Grid

if TYPE_CHECKING:
    from ...pipeline.dev.servers import ServerStatus

__all__ = ["app"]

app = typer.Typer(add_completion=False, no_args_is_help=True)

Folder = Annotated[
    Path,
    typer.Option("--folder", metavar="FOLDER", help="Where the servers keep everything.", show_default=True),
]
_FOLDER = Path(".slackwater")


def _port(name: str, usual: int) -> Any:
    return typer.Option(
        metavar="PORT",
        min=1,
        max=65535,
        show_default=False,
        help=f"Where {name} listens. Default: as last time, else {usual}, else any free port.",
    )


@app.callback(epilog=options.examples('eval "$(slackwater dev up)"', "slackwater dev down"))
def _dev() -> None:
    """Run Kafka and S3 on this machine, for development.

    They run in the background; their data lies under .slackwater/.
    """


@app.command(
    epilog=options.examples(
        "slackwater dev up",
        'eval "$(slackwater dev up)"      # and set the variables in this shell',
        "slackwater dev up --kafka-port 19092 --s3-port 19000",
    )
)
def up(
    kafka_port: Annotated[int | None, _port("Kafka", 9092)] = None,
    s3_port: Annotated[int | None, _port("S3", 9000)] = None,
    folder: Folder = _FOLDER,
    as_json: options.Json = False,
) -> None:
    """Start Kafka and S3, and print the variables that make slackwater use them.

    What runs already is left alone. Needs Java 17, and Maven for the download at the first start.
    """
    from ...pipeline.dev.servers import DevServers

    output = output_for(json=as_json)
    with output.progress() as tell:
        servers = DevServers(folder, tell=tell)
        started = servers.up(kafka_port=kafka_port, s3_port=s3_port)
    status, environment = servers.status(), servers.environment()
    for each in status:
        was = "started" if each.name in started else "was running already"
        output.note(f"{each.name} {was} on {each.address}, data in {_short(each.data)}")
    output.note(f"to use them from another shell: source {_short(str(servers.env_file))}")
    output.show(
        {
            "started": started,
            "servers": status,
            "environment": environment,
            "env_file": str(servers.env_file),
        },
        *servers.env_file.read_text(encoding="utf-8").splitlines(),
    )


@app.command(
    epilog=options.examples(
        "slackwater dev down",
        "slackwater dev down --purge --dry-run      # what would be deleted",
        "slackwater dev down --purge",
    )
)
def down(
    purge: Annotated[bool, typer.Option("--purge", help="Delete topics, objects and logs as well.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be stopped and deleted.")] = False,
    folder: Folder = _FOLDER,
    as_json: options.Json = False,
) -> None:
    """Stop Kafka and S3. Their data stays, unless it is to be purged."""
    from ...pipeline.dev.servers import DevServers

    output = output_for(json=as_json)
    with output.progress() as tell:
        servers = DevServers(folder, tell=tell)
        if dry_run:
            stopped = tuple(each.name for each in servers.status() if each.state != "stopped")
            deleted = servers.purgeable() if purge else ()
        else:
            stopped = servers.down()
            deleted = servers.purge() if purge else ()
    would = "would be " if dry_run else ""
    lines = [f"{name} {would}stopped" for name in stopped] or [
        f"no server of {folder.absolute()} runs; --folder names another"
    ]
    lines += [f"{_short(each.path)} ({humane.size(each.bytes)}) {would}deleted" for each in deleted]
    output.show({"dry_run": dry_run, "stopped": stopped, "deleted": deleted}, *lines)


@app.command(epilog=options.examples("slackwater dev status", "slackwater dev status --json"))
def status(folder: Folder = _FOLDER, as_json: options.Json = False) -> None:
    """Show whether Kafka and S3 run, where they listen, and where their data and logs are."""
    from ...pipeline.dev.servers import DevServers

    servers = DevServers(folder).status()
    headings = ("server", "state", "address", ">pid", "started", ">data", "folder")
    logs = (f"log of {each.name}: {_short(each.log)}" for each in servers if each.state != "stopped")
    output_for(json=as_json).show(servers, Grid.of(headings, map(_row, servers)), *logs)


def _row(each: "ServerStatus") -> tuple[str, ...]:
    return (
        each.name,
        each.state,
        each.address or "-",
        str(each.pid or "-"),
        humane.age(each.started_ms, humane.now_ms()) if each.started_ms else "-",
        humane.size(each.data_bytes),
        _short(each.data),
    )


def _short(path: str) -> str:
    """The path as one would type it here."""
    inside = Path(path).is_relative_to(Path.cwd())
    return str(Path(path).relative_to(Path.cwd())) if inside else path
