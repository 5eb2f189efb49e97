"""Loading and saving a model without the progress bar of transformers: commands and stages show progress of theirs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def load_causal_model(path: Path | None, **options: Any) -> Any:
    """``AutoModelForCausalLM.from_pretrained(path, **options)``."""
    from transformers import AutoModelForCausalLM

    with without_bars():
        return AutoModelForCausalLM.from_pretrained(path, **options)


@contextmanager
def without_bars() -> Iterator[None]:
    """Afterwards the bars are as whoever runs this process wants them."""
    from transformers.utils import logging

    if not logging.is_progress_bar_enabled():
        yield
        return
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()
