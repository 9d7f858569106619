"""Runs a server and ends it with us: a script of its own, between this process and the server.

It prints the server's process id, and then waits for a byte from standard input, which lets the server live on by
itself. When that pipe breaks before, because whoever started the server has died in whatever way, the server is killed.
A JVM cannot watch its parent itself, and `prctl(PR_SET_PDEATHSIG)` exists on Linux only and looks at the parent's
thread; a pipe works everywhere. As the server's parent, this process can never signal a stranger that got the same id.

Only the standard library's lightest modules: it starts with `python -I -S`.
"""

import os
import subprocess
import sys
import threading


def main() -> None:
    """Run the command in our arguments until it ends, and exit as it does."""
    server = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=sys.stderr)
    sys.stdout.write(f"{server.pid}\n")
    sys.stdout.flush()
    threading.Thread(target=_obey, args=(server,), daemon=True).start()
    code = server.wait()
    # Not sys.exit: the other thread may be in the middle of a read, which must not hold us up.
    os._exit(code if code >= 0 else 128 - code)


def _obey(server: "subprocess.Popen[bytes]") -> None:
    if os.read(0, 1):
        os._exit(0)
    server.kill()


if __name__ == "__main__":
    main()
