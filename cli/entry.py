"""Entry point of the `slackwater` command. Ctrl-C while it starts ends it without a traceback."""

import signal
import sys


def main() -> None:
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # otherwise the signal is ignored, as in a shell's background
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .main import INTERRUPTED
    from .main import main as run

    try:
        signal.signal(signal.SIGINT, handler)
        run()
    except KeyboardInterrupt:  # before a verb handles it
        sys.exit(INTERRUPTED)
