"""Draw the pictures in `docs/images`: the terminal output of verbs, from a run of the flights example.

    .venv/bin/python docs/pictures.py        # `make test` or `make demo` makes .venv

Every output is real: each command runs on its own terminal (a pty), and its output is drawn. The servers and their data
are in a temporary folder, which is deleted afterwards.
"""

import fcntl
import io
import json
import os
import pty
import re
import shlex
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

IMAGES = Path(__file__).parent / "images"
EXAMPLES = Path(__file__).parent.parent / "examples"
COLUMNS = 118
PATIENCE_S = 600.0

CALM, FAULT_FROM, EVENTS = 40_000, 60_000, 90_000
FEED = (sys.executable, str(EXAMPLES / "feed.py"))
RUN = ("slackwater", "run", str(EXAMPLES / "flights.py"), "--max-records", "5000")
WORST = "SELECT carrier, worst FROM carriers ORDER BY worst DESC LIMIT 3"
TOO_LATE = "SELECT carrier FROM carriers WHERE worst > 24 * 60"

TOUR = re.compile(r"carrier +flights|[a-z]+ v\d+ is the first bad|flights\[\d\]@\d+ is|record ")
"""First lines of the paragraphs in the picture of the tour."""

console = Console(stderr=True, highlight=False)


def on_terminal(command: tuple[str, ...]) -> str:
    """Run a command on a terminal. Returns everything that it writes to stdout, with control sequences."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    # The progress bar goes to stderr and erases itself in the end.
    with subprocess.Popen(command, stdout=its, stderr=subprocess.DEVNULL, env=environment) as process:
        os.close(its)
        written = bytearray()
        while piece := _read(ours):
            written += piece
    os.close(ours)
    if process.returncode:
        raise SystemExit(f"{shlex.join(command)} failed with exit code {process.returncode}")
    return written.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # on Linux, this error means that the other side was closed
        return b""


def shot(*command: str) -> Text:
    """Run a command, and return it as a user types it, with its output."""
    console.print(f"  {shlex.join(command)}")
    typed = " ".join(f'"{word}"' if re.search(r"[\s*>]", word) else word for word in command)
    return Text.assemble(("$ ", "bold green"), (typed, "bold"), "\n", Text.from_ansi(on_terminal(command).rstrip()))


def draw(name: str, *shots: Text) -> None:
    """Draw several shots as one SVG."""
    paper = Console(record=True, width=COLUMNS, file=io.StringIO(), highlight=False)
    paper.print(Text("\n\n").join(shots), soft_wrap=True)
    drawn = paper.export_svg(title="slackwater", unique_id=name)
    # A picture in a README may not load anything, not even the font that rich would like to use.
    drawn = re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)
    (IMAGES / f"{name}.svg").write_text(drawn, encoding="utf-8")


def tour() -> Text:
    """Run `slackwater tour`; return the paragraphs that `TOUR` matches, with their commands."""
    written = Text.from_ansi(on_terminal(("slackwater", "tour", "--no-page")))
    shown, command = Text(), Text()
    for paragraph in Text("\n").join(written.split("\n")).split("\n\n"):
        lines = [line for line in paragraph.split("\n") if line.plain.strip()]
        typed = [number for number, line in enumerate(lines) if line.plain.startswith("$ slackwater")]
        if typed:
            command = Text("\n").join([*lines[: typed[0] + 1], Text()])
            lines = lines[typed[0] + 1 :]
        if lines and TOUR.match(lines[0].plain):
            shown.append_text(command).append_text(Text("\n").join([*lines, Text("\n")]))
            command = Text()
    shown.rstrip()
    return shown


def called(*command: str) -> Any:
    """Run a verb with `--json`, and return its document."""
    return json.loads(subprocess.run([*command, "--json"], stdout=subprocess.PIPE, check=True).stdout)


def feed(*words: str) -> None:
    """Send flights to the topic."""
    console.print(f"  feed {shlex.join(words)}")
    subprocess.run([*FEED, *words], stdout=subprocess.DEVNULL, check=True)


def flights_seen() -> int:
    """Return the number of flights that are counted in the totals by carrier."""
    found = subprocess.run(
        ["slackwater", "query", "flights", "SELECT sum(flights)::BIGINT AS n FROM carriers", "--json"],
        capture_output=True,
    )
    return int(json.loads(found.stdout)["rows"][0]["n"] or 0) if found.returncode == 0 else 0


def inputs() -> list[dict[str, Any]]:
    """Return the progress of each stage's inputs; empty before the app's first commit."""
    found = [app for app in called("slackwater", "status") if app["app"] == "flights"]
    return [source for app in found for stage in app["stages"] for source in stage["inputs"]]


def flights_sent() -> int:
    """Return the number of flights in the topic."""
    return sum(sum(source["ends"] or ()) for source in inputs() if source["topic"] == "flights")


def caught_up() -> bool:
    """Return True if every stage of the app has read all of its input."""
    found = inputs()
    return bool(found) and all(source["lag"] == 0 for source in found)


def wait_until(what: str, done: Callable[[], bool]) -> None:
    """Wait until `done` returns true. Exits after a deadline."""
    console.print(f"  waiting until {what}")
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        if time.monotonic() > deadline:
            raise SystemExit(f"gave up waiting until {what}")
        time.sleep(0.5)


@contextmanager
def running(*command: str) -> Iterator[None]:
    """Run a command in the background. At the end, it is interrupted as by Ctrl-C."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)


@contextmanager
def servers() -> Iterator[None]:
    """Start a broker and an object store, and set the environment variables that name them."""
    with tempfile.TemporaryDirectory(prefix="slackwater-pictures-") as folder:
        os.environ.update(called("slackwater", "dev", "up", "--folder", folder)["environment"])
        try:
            yield
        finally:
            subprocess.run(["slackwater", "dev", "down", "--folder", folder], stdout=subprocess.DEVNULL, check=True)


def main() -> None:
    """Draw the tour, then run the demo once and draw it. With the argument `tour`, draw only the tour."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    IMAGES.mkdir(exist_ok=True)
    draw("tour", tour())
    if sys.argv[1:] == ["tour"]:
        return
    with servers():
        feed("--end", str(CALM))
        with running(*RUN):
            wait_until("nothing is left to read", caught_up)
            with running(*FEED, "--start", str(CALM), "--end", str(FAULT_FROM), "--rate", "1000"):
                wait_until("more flights come", lambda: flights_seen() > CALM)
                taken = shot("slackwater", "snapshot", "take", "flights", "before-release")
                wait_until("all of them are there", lambda: flights_sent() >= FAULT_FROM)
            wait_until("nothing is left to read", caught_up)
            feed("--start", str(FAULT_FROM), "--end", str(EVENTS), "--fault-from", str(FAULT_FROM))
            wait_until("nothing is left to read", caught_up)
        now_and_then = (shot("slackwater", "query", ref, WORST) for ref in ("flights", "flights@before-release"))
        draw("snapshot", taken, *now_and_then)
        feed("--topic", "flights-corrected", "--end", str(EVENTS))
        clone = ("flights@before-release", "flights-staging", "--topic", "flights=flights-corrected")
        cloned = shot("slackwater", "clone", *clone)
        console.print("  running the clone")
        subprocess.run([*RUN, "--app", "flights-staging", "--until-caught-up"], stdout=subprocess.DEVNULL, check=True)
        draw("clone", cloned, shot("slackwater", "query", "flights-staging", WORST))


if __name__ == "__main__":
    main()
