"""Tests in ``interpreted`` need Triton's interpreter, chosen before triton is imported: they run by themselves."""

from __future__ import annotations

import os

collect_ignore = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["interpreted"]
