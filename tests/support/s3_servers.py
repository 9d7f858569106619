"""S3 servers for tests: moto, which is written in Python, and versitygw."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from slackwater.pipeline.dev.jvm_server import HOST, SupervisedProcess, choose_port, is_port_open, last_log_lines

from tests.programs.go import built, is_built

BUCKET = "slackwater-tests"
ACCESS_KEY = "tests"
SECRET_KEY = "tests-secret"

_START_PATIENCE_S = 180.0


@contextmanager
def moto(folder: Path) -> Iterator[str]:
    """Run a moto server that writes its log into the folder; yield its endpoint."""
    port, program = choose_port(), Path(__file__).parents[1] / "programs" / "moto_server.py"
    with running_server([sys.executable, str(program), "-H", HOST, "-p", str(port)], folder, port) as endpoint:
        yield endpoint


@contextmanager
def versitygw(
    folder: Path, access_key: str = ACCESS_KEY, secret_key: str = SECRET_KEY, users: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Run a versitygw server with its objects and its log in the folder; yield its endpoint.

    `users` are further access keys with their secret keys; they may do what a bucket's policy allows. If versitygw was
    not built, the test is skipped.
    """
    port, objects = choose_port(), folder / "objects"
    objects.mkdir()
    listen = ("--port", f"{HOST}:{port}", "--access", access_key, "--secret", secret_key, "--keep-alive")
    accounts = ("--iam-dir", str(folder)) if users else ()
    program = str(built("versitygw"))
    command = [program, *listen, *accounts, "posix", *_metadata(folder, objects), str(objects)]
    with running_server(command, folder, port) as endpoint:
        admin = [program, "admin", "--access", access_key, "--secret", secret_key, "--endpoint-url", endpoint]
        for user, secret in (users or {}).items():
            words = [*admin, "create-user", "--access", user, "--secret", secret, "--role", "user"]
            subprocess.run(words, check=True, capture_output=True)
        yield endpoint


@contextmanager
def signed(folder: Path, access_key: str, secret_key: str) -> Iterator[str]:
    """Run versitygw, which checks signatures, or moto if versitygw was not built. Yields its endpoint."""
    if is_built("versitygw"):
        with versitygw(folder, access_key, secret_key) as endpoint:
            yield endpoint
    else:
        with moto(folder) as endpoint:
            yield endpoint


def _metadata(folder: Path, objects: Path) -> tuple[str, ...]:
    """Return the option for metadata.

    They are kept in extended attributes if the file system has them, otherwise in files.
    """
    try:
        os.setxattr(objects, "user.slackwater", b"")
    except (AttributeError, OSError):
        beside = folder / "metadata"
        beside.mkdir()
        return ("--sidecar", str(beside))
    return ()


@contextmanager
def running_server(command: Sequence[str], folder: Path, port: int) -> Iterator[str]:
    """Run a server that listens on the port, with its log in the folder. Yields its endpoint."""
    log = folder / "server.log"
    # It ends when this process does, however that happens.
    server = SupervisedProcess(command, folder=folder, log=log)
    try:
        deadline = time.monotonic() + _START_PATIENCE_S
        while not is_port_open(port):
            if server.poll_exit_code(0.05) is not None or time.monotonic() > deadline:
                pytest.fail(f"{Path(command[0]).name} on port {port} did not start:\n{last_log_lines(log, 0, 20)}")
        yield f"http://{HOST}:{port}"
    finally:
        server.kill()
