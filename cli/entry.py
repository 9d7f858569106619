"""Entry point of the `slackwater` command. Ctrl-C during the import of modules ends it without a traceback."""

import signal


def main() -> None:
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # otherwise the signal is ignored, as in a shell's background
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .main import main as run

    signal.signal(signal.SIGINT, handler)
    run()
