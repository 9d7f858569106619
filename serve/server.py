"""One instance: listens, serves until it is told to stop."""

import sys

import uvicorn

from ..client import Client
from .service import Options, Service
from .tokens import Doorkeeper
from .web import application


def serve(client: Client, host: str, port: int, options: Options) -> None:
    """Serve until SIGINT or SIGTERM."""
    # A thread that looks something up holds the interpreter for at most so long while an answer waits to be sent.
    sys.setswitchinterval(0.001)
    app = application(Service(client, options), Doorkeeper())
    config = uvicorn.Config(app, host=host, port=port, log_level="warning", access_log=False, loop="uvloop", http="httptools", ws="none", server_header=False)
    uvicorn.Server(config).run()
