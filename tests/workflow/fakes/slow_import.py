"""A module that takes long to import, and says in the current directory that it began."""

import time
from pathlib import Path

Path("importing").touch()
time.sleep(60)
