"""One parse of a GGUF file instead of three: what the package ``gguf`` reads is kept while a model is loaded.

transformers asks for the file's metadata for the tokenizer's class, for the configuration and for the weights, and
for the table of tensor names once per module of the model. Both are pure functions of their arguments. Should
transformers come to read the file in another way, nothing here is called, and loading is only slower.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

NAMES = ("GGUFReader", "get_tensor_name_map")
"""Public functions of the package that transformers looks up at every call."""


@contextmanager
def parsed_once() -> Iterator[None]:
    """Within the block, equal calls of ``gguf.GGUFReader`` and ``gguf.get_tensor_name_map`` share one result."""
    import gguf

    original = {name: getattr(gguf, name) for name in NAMES if hasattr(gguf, name)}
    quicker: dict[str, Any] = original | ({"GGUFReader": _plain_reader()} if "GGUFReader" in original else {})
    try:
        for name, function in quicker.items():
            setattr(gguf, name, functools.cache(function))
        yield
    finally:
        for name, function in original.items():
            setattr(gguf, name, function)


def _plain_reader() -> Any:
    """A reader that slices the mapped file as a plain array: a slice of ``numpy.memmap`` costs three times as much."""
    import numpy as np
    from gguf import GGUFReader

    class PlainReader(GGUFReader):
        @property
        def data(self) -> Any:
            return self._plain

        @data.setter
        def data(self, mapped: Any) -> None:
            self._plain = mapped.view(np.ndarray) if isinstance(mapped, np.memmap) else mapped

    return PlainReader
