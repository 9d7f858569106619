"""Record the store that `slackwater tour` unpacks: an app over a month of flights, a snapshot, a fault, and a clone.

    .venv/bin/python -m docs.record_tour        # `make test` or `make demo` makes .venv; takes a few minutes

Runs `examples/flights.py` on a broker, with few records per batch, so that there are about 200 versions. The feeder
sends United's delays in seconds from flight `FAULT_FROM` on. The clone reads the same flights without the fault. The
store names neither this machine nor its user.
"""

import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slackwater.cli.tour.recording import ARCHIVE, PROGRAM, SETTINGS, SNAPSHOT, STAGING

from .pictures import EXAMPLES, caught_up, console, feed, flights_seen, running, servers, wait_until

SNAPSHOT_AFTER, FAULT_FROM, FLIGHTS = 12_000, 18_000, 27_004
"""Flights in the totals when the snapshot is taken; the first flight with the fault; all flights of January."""
RUN = ("slackwater", "run", PROGRAM, "--max-records", "400")
MAX_BYTES = 3_000_000
HOST = USER = "recorded"
FOLDER = Path("/tmp/slackwater-tour")  # noqa: S108  manifests name the program's path: a plain one
SETTINGS_TEXT = """\
# The store that `slackwater tour` unpacked. Run slackwater in this folder.
store = "store"
cache = "cache"
"""
ARCHIVING = """\
[retention.flights]
input = { flights = "30d" }
"""
"""Settings of the archive. Repartition topics are left out: their records would be half of the archive's bytes."""


@contextmanager
def recording() -> Iterator[Path]:
    """Yield a working folder that has only the program. Processes see the user and host names defined above."""
    with tempfile.TemporaryDirectory() as modules:
        (Path(modules) / "sitecustomize.py").write_text(f"import socket\nsocket.gethostname = lambda: {HOST!r}\n")
        os.environ |= {"PYTHONPATH": modules, "LOGNAME": USER, "SLACKWATER_STORE": str(FOLDER / "store")}
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir()
        shutil.copy(EXAMPLES / PROGRAM, FOLDER)
        (FOLDER / SETTINGS).write_text(f"{SETTINGS_TEXT}{ARCHIVING}")
        os.chdir(FOLDER)
        yield FOLDER
        os.chdir("/")
        shutil.rmtree(FOLDER)


def record() -> None:
    """Run the app, and its clone."""
    feed("--end", str(FAULT_FROM))
    with running(*RUN):
        wait_until("the first flights are in the totals", lambda: flights_seen() >= SNAPSHOT_AFTER)
        subprocess.run(["slackwater", "snapshot", "take", "flights", SNAPSHOT], check=True)
        wait_until("nothing is left to read", caught_up)
        feed("--start", str(FAULT_FROM), "--end", str(FLIGHTS), "--fault-from", str(FAULT_FROM))
        wait_until("nothing is left to read", caught_up)
    feed("--topic", "flights-corrected", "--end", str(FLIGHTS))
    source = (f"flights@{SNAPSHOT}", STAGING, "--topic", "flights=flights-corrected")
    subprocess.run(["slackwater", "clone", *source], check=True)
    subprocess.run([*RUN[:-1], "10000", "--app", STAGING, "--until-caught-up"], check=True)
    for app in ("flights", STAGING):
        console.print(f"  {app}: {len([*Path('store', app).glob('stages/*/manifests/*')])} versions")
        subprocess.run(["slackwater", "verify", app, "--deep"], stdout=subprocess.DEVNULL, check=True)


def pack(folder: Path) -> None:
    """Write the folder as the archive of the package. Raises an error if a file names this machine or its user."""
    host = socket.gethostname()
    secrets = {f'@{host}"', f'"{host}:', f'"{Path.home()}', f'"{Path(sys.prefix).parent}'}
    (folder / SETTINGS).write_text(SETTINGS_TEXT)
    stored = (path for path in (folder / "store").rglob("*") if path.is_file())
    files = [folder / SETTINGS, folder / PROGRAM, *sorted(stored)]
    for path in files:
        if named := [secret for secret in secrets if secret.encode() in path.read_bytes()]:
            raise SystemExit(f"{path} names this machine: {', '.join(named)}")
    with tarfile.open(ARCHIVE, "w:xz", preset=9) as archive:
        for path in files:
            entry = tarfile.TarInfo(str(path.relative_to(folder)))
            entry.size = path.stat().st_size
            with path.open("rb") as content:
                archive.addfile(entry, content)
    size = ARCHIVE.stat().st_size
    console.print(f"  {ARCHIVE}: {len(files):,} files, {size:,} bytes")
    if size > MAX_BYTES:
        raise SystemExit(f"the archive has {size:,} bytes; at most {MAX_BYTES:,} may be in the wheel")


def main() -> None:
    """Record the store, and write the archive."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with servers(), recording() as folder:
        record()
        pack(folder)


if __name__ == "__main__":
    main()
