"""Set-up of the fork server that starts SQL processes; it imports this module before it forks.

If the server stops while a process starts, the process fails because its semaphores and pipes are gone. This module
suppresses the useless traceback of that failure.
"""

import sys
from types import TracebackType

_show = sys.excepthook


def _show_unless_server_is_gone(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not isinstance(error, FileNotFoundError | EOFError | ConnectionError):
        _show(kind, error, trace)


sys.excepthook = _show_unless_server_is_gone
