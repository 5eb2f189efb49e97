"""Imported first by the process that workers are forked from, before the slow imports: it must not outlive its parent.

That process looks for its parent's end only once its imports are done. Importing this has the effect, which is why
nothing else imports it.
"""

from __future__ import annotations

import ctypes
import signal
import sys

PR_SET_PDEATHSIG = 1
"""``linux/prctl.h``: the signal that this process gets when its parent ends. Children do not inherit it."""

if sys.platform == "linux":
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
