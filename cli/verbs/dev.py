"""Verbs about this machine: doctor; dev, for Kafka and S3 in development."""

from pathlib import Path
from typing import Any

from ...client.show import formats
from ...client.show.document import TableBlock, Title
from ...client.show.shown import Result
from ...common import instants
from ...common.whole_file import check_folder_name
from .. import terminal
from ..options import DRY_RUN, argument, flag, option
from ..session import Session, group, verb

dev = group(
    "Run Kafka and S3 on this machine, for development.\n\nThey run in the background and keep "
    "their data under .slackwater/.",
    'eval "$(slackwater dev up)"',
    "slackwater dev down",
)

_FOLDER = option("FOLDER", "Folder for data, logs and settings.", Path(".slackwater"), name="--folder")


def _port(name: str, usual: int) -> Any:
    where = f"Port of {name}. Default: the port used last, else {usual}, else a free port."
    return option("PORT", where, min=1, max=65535)


@verb("slackwater doctor", "slackwater doctor java spark dev", "slackwater doctor --write", kafka=True)
def doctor(
    session: Session,
    needs: list[str] = argument("NEED", "Fail without these: java, spark, dev, store, kafka, or an extra.", []),
    write: bool = flag("--write", "Also put and delete an object, to test rights."),
) -> None:
    """Show what slackwater uses here, what is missing, what to type.

    Examines Java, Spark, store, Kafka and extras. Fails if a NEED, a configured server, or the Java of an installed
    Spark is missing.
    """
    from ...client.status import examination

    session.show(examination(session.settings, needs, writes=write))


@verb(
    "slackwater dev up",
    'eval "$(slackwater dev up)"      # and set the variables in this shell',
    "slackwater dev up --kafka-port 19092 --s3-port 19000",
    parent=dev,
    store=False,
)
def up(
    session: Session,
    kafka_port: int | None = _port("Kafka", 9092),
    s3_port: int | None = _port("S3", 9000),
    folder: Path = _FOLDER,
) -> None:
    """Start Kafka and S3 for development and print the environment to use them.

    Running servers stay. The first start downloads them (74 MB).
    """
    from ...pipeline.dev.servers import DevServers

    check_folder_name(folder, "--folder")
    with session.progress() as progress:
        servers = DevServers(folder, report=progress)
        started = servers.up(kafka_port=kafka_port, s3_port=s3_port)
    status = servers.status()
    for server in status:
        was = "started" if server.name in started else "was running already"
        session.note(f"{server.name} {was} on {server.address}, data in {_short(server.data)}")
    lines = [*servers.env_file.read_text(encoding="utf-8").splitlines()]
    data = {"started": started, "servers": status, "environment": servers.environment()}
    result = Result(data | {"env_file": str(servers.env_file)}, *lines)
    source = f"source {_short(str(servers.env_file))}"
    if terminal.is_terminal() and not session.as_json:
        # On a terminal nothing evaluates the lines, so tell the user what to do with them.
        session.note("")
        result.blocks = (Title(f"To use them, type these lines, or just: {source}"), *lines)
    else:
        session.note(f"to use them from another shell: {source}")
    session.show(result)


@verb(
    "slackwater dev down",
    "slackwater dev down --purge --dry-run      # what would be deleted",
    "slackwater dev down --purge",
    parent=dev,
    store=False,
)
def down(
    session: Session,
    purge: bool = flag("--purge", "Also delete topics, objects and logs."),
    dry_run: bool = DRY_RUN,
    folder: Path = _FOLDER,
) -> None:
    """Stop the development servers; their data stays unless --purge is given."""
    from ...pipeline.dev.servers import DevServers

    with session.progress() as progress:
        servers = DevServers(folder, report=progress)
        if dry_run:
            stopped = tuple(item.name for item in servers.status() if item.state != "stopped")
            deleted = servers.list_purgeable() if purge else ()
        else:
            stopped = servers.down()
            deleted = servers.purge() if purge else ()
    would = "would be " if dry_run else ""
    none = f"no development server of {folder.absolute()} is running; --folder names another folder"
    lines = [f"{name} {would}stopped" for name in stopped] or [none]
    lines += [f"{_short(item.path)} ({formats.size(item.bytes)}) {would}deleted" for item in deleted]
    session.show(Result({"dry_run": dry_run, "stopped": stopped, "deleted": deleted}, *lines))


@verb("slackwater dev status", "slackwater dev status --json", parent=dev, store=False)
def status(session: Session, folder: Path = _FOLDER) -> None:
    """Show the state, address, data and logs of the development servers."""
    from ...pipeline.dev.servers import DevServers

    servers = DevServers(folder).status()
    logs = (f"log of {server.name}: {_short(server.log)}" for server in servers if server.state != "stopped")
    ages = ((server, instants.format_age(server.started_ms) if server.started_ms else "-") for server in servers)
    size = formats.size
    rows = (
        (s.name, s.state, s.address or "-", str(s.pid or "-"), age, size(s.data_bytes), _short(s.data))
        for s, age in ages
    )
    table = TableBlock.from_rows(("server", "state", "address", ">pid", "started", ">data", "folder"), rows)
    session.show(Result(servers, table, *logs))


def _short(path: str) -> str:
    inside = Path(path).is_relative_to(Path.cwd())
    return str(Path(path).relative_to(Path.cwd())) if inside else path
