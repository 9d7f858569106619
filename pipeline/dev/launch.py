"""Script that runs a server as its child, and kills the server when the process that started the script ends.

The script prints the server's process id and then waits for a byte from standard input, which releases the server. The
pipe of standard input breaks if the process that started the script has died in any way; then the script kills the
server. A pipe works on every system: a JVM cannot watch its parent, and `prctl(PR_SET_PDEATHSIG)` exists only on Linux
and watches the parent's thread. The script is the server's parent, so it never signals an unrelated process with a
reused id.

Imports only small modules of the standard library: it starts with `python -I -S`.
"""

import os
import subprocess
import sys
import threading


def main() -> None:
    server = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=sys.stderr)
    sys.stdout.write(f"{server.pid}\n")
    sys.stdout.flush()
    threading.Thread(target=_wait_for_release, args=(server,), daemon=True).start()
    code = server.wait()
    # Not sys.exit, which would wait for the read in the other thread.
    os._exit(code if code >= 0 else 128 - code)


def _wait_for_release(server: "subprocess.Popen[bytes]") -> None:
    if os.read(0, 1):
        os._exit(0)
    server.kill()


if __name__ == "__main__":
    main()
