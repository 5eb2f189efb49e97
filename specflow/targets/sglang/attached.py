"""Run by path: stays beside the command in its arguments, and ends it with all its children when its own parent ends.

A server must not outlive the stage that started it, and a killed stage can end nothing itself: the kernel tells this
process, which then kills its process group. It ends as the command does. Only the standard library: the interpreter is
isolated. Arguments: process id of the parent, then the command.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys

PR_SET_PDEATHSIG = 1
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def kill_group(number: int, frame: object) -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)


def told_of_its_parents_end(number: signal.Signals) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def as_usual() -> None:
    for number in PASSED_ON:
        signal.signal(number, signal.SIG_DFL)
    told_of_its_parents_end(signal.SIGKILL)


if __name__ == "__main__":
    parent, command = int(sys.argv[1]), sys.argv[2:]
    for number in PASSED_ON:
        signal.signal(number, signal.SIG_IGN)  # they go to the group: the command decides what to do with them
    signal.signal(signal.SIGUSR1, kill_group)
    told_of_its_parents_end(signal.SIGUSR1)
    if os.getppid() != parent:
        sys.exit("the process that started this one is gone")
    code = subprocess.Popen(command, preexec_fn=as_usual).wait()
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)
