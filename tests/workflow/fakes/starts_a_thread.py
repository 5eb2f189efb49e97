"""A module whose import leaves a thread running, from which nothing may be forked."""

import threading

threading.Thread(target=threading.Event().wait, daemon=True).start()
