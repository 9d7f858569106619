"""`slackwater tour`: a recorded app for trying slackwater without Java, Kafka and network."""

import json
import os
import subprocess
import sys
import urllib.request
import webbrowser
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...client.show import formats
from ...client.show.document import Title
from ...client.show.shown import Result
from ...common import runtime
from ...common.extras import require_extras
from ...errors import Refused
from ..options import flag, option
from ..session import Session, verb
from ..terminal import is_terminal
from ..tour import recording
from ..tour.recording import TourStep

_PATIENCE_S = 30.0


@verb("slackwater tour", "slackwater tour --folder flights --no-page", store=False)
def tour(
    session: Session,
    folder: Path | None = option("FOLDER", "New folder for the recorded store. Default: a temporary one."),
    no_page: bool = flag("--no-page", "Do not open the web page at the end."),
) -> None:
    """Try slackwater on a recorded app, without Java and Kafka.

    Unpacks the store of an app over New York's flights of January 2013: about 200 versions, a snapshot, a clone, and a
    fault in the input. Runs a few commands there, down to the bad input record, and opens the page of `slackwater
    serve`. Keeps the folder, so that you can go on by hand.
    """
    began_s = runtime.monotonic()
    with session.progress() as progress:
        progress("unpacking the recorded store")
        folder = recording.unpack(folder)
    environment = _environment()
    steps = [_run(session, folder, environment, step) for step in recording.STEPS]
    summary = f"the tour took {runtime.monotonic() - began_s:.0f} s; the store stays. Next steps:"
    following = [f"  {command}" for command in (f"cd {folder}", *recording.NEXT)]
    session.show(Result({"folder": folder, "steps": steps}, "", summary, *following))
    if not no_page and not session.as_json:
        _open_page(session, folder, environment)


def _environment() -> dict[str, str]:
    """Return this process's environment without settings, so that the settings in the tour's folder apply."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SLACKWATER_")}


def _slackwater(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "slackwater.cli.main", *arguments]


def _run(session: Session, folder: Path, environment: Mapping[str, str], step: TourStep) -> dict[str, Any]:
    """Run a command of the tour and show it; returns the command, and its result as JSON with --json."""
    command = f"slackwater {' '.join(map(formats.quote_word, step.words))}"
    how: Any = {"cwd": folder, "env": environment, "check": False}
    if session.as_json:
        done = subprocess.run(_slackwater(*step.words, "--json"), stdout=subprocess.PIPE, **how)
    else:
        session.show(Result(None, "", step.text, Title(f"$ {command}")))
        # On a terminal, the command itself draws there.
        done = subprocess.run(_slackwater(*step.words), stdout=None if is_terminal() else subprocess.PIPE, **how)
        if done.stdout:
            session.show(Result(None, *done.stdout.decode().splitlines()))
    if done.returncode != step.exit_code:
        raise Refused(
            f"`{command}` failed in {folder}: exit code {done.returncode}", hint=f"cd {folder} && {command} --debug"
        )
    return {"command": command, "result": json.loads(done.stdout) if session.as_json else None}


def _open_page(session: Session, folder: Path, environment: Mapping[str, str]) -> None:
    """Serve the store and open its page, until Ctrl-C. Only on a terminal, and if serving is installed."""
    if not (sys.stdin.isatty() and is_terminal()):
        return
    try:
        require_extras("serve", "the page")
    except Refused as error:
        session.note(f"no page: {error.message}; {error.hint}")
        return
    from ...pipeline.dev.jvm_server import choose_port

    port = choose_port()
    url = f"http://127.0.0.1:{port}/#/flights"
    log, command = folder / "serve.log", _slackwater("serve", "--port", str(port))
    # A server that Ctrl-C ends while it starts its processes prints their tracebacks.
    with log.open("wb") as lines, subprocess.Popen(command, cwd=folder, env=environment, stderr=lines) as server:
        try:
            if not _answers(server, url):
                session.note(f"no page: the server does not answer; its output is in {log}")
                server.terminate()
                return
            session.show(Result(None, "", f"the page: {url}   (Ctrl-C ends it)"))
            webbrowser.open(url)
            server.wait()
        except KeyboardInterrupt:  # which the server gets, too
            server.wait()


def _answers(server: subprocess.Popen[bytes], url: str) -> bool:
    """Wait until the server answers. Returns False if it ends first, or takes too long."""
    deadline_s = runtime.monotonic() + _PATIENCE_S
    while server.poll() is None and runtime.monotonic() < deadline_s:
        with suppress(OSError), urllib.request.urlopen(url, timeout=5):  # noqa: S310  our own server
            return True
        runtime.sleep(0.1)
    return False
