"""Run by path: becomes the command in its arguments, which the kernel kills when the process that started it ends.

A server must not outlive the stage that started it, and a killed stage can end nothing itself. SGLang's own processes
do the same with respect to this one. Only the standard library: the interpreter is isolated.
Arguments: process id of the parent, then the command.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the process that started this one is gone")
    os.execv(command[0], command)
