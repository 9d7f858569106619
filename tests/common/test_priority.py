"""Priority of processes and threads, in processes of their own, because it cannot be raised again."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, threading
from slackwater.common import runtime
before = os.getpriority(os.PRIO_PROCESS, 0)
thread = threading.Thread(target=runtime.lower_priority)
thread.start()
thread.join()
of_main = os.getpriority(os.PRIO_PROCESS, 0)
runtime.lower_priority()
print(of_main - before, os.getpriority(os.PRIO_PROCESS, 0))
"""


@pytest.mark.parametrize("nice", [0, 15])
def test_a_priority_is_lowered_for_one_thread_and_never_raised(nice: int) -> None:
    expected = max(10, os.getpriority(os.PRIO_PROCESS, 0) + nice)
    command = ["nice", "-n", str(nice), sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", str(min(19, expected))]
