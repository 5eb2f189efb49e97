"""Forms of a row. Each module has one adapter; importing this package registers all of them."""

from specflow.data.inputs.forms import messages, pairs, sharegpt, text
from specflow.data.inputs.forms.registry import adapter, detect, form_names

__all__ = ["adapter", "detect", "form_names", "messages", "pairs", "sharegpt", "text"]
