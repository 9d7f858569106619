"""What the fork server of SQL processes does on errors; it imports this module before it forks.

If the server stops while a process starts, the process finds its semaphores and pipes gone. No one needs its traceback.
"""

import sys
from types import TracebackType

_show = sys.excepthook


def _show_unless_server_is_gone(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not isinstance(error, FileNotFoundError | EOFError | ConnectionError):
        _show(kind, error, trace)


sys.excepthook = _show_unless_server_is_gone
