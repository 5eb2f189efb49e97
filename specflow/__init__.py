"""specflow: from prompts and a target model to a drafter that makes serving faster, measured."""

__version__ = "0.1.0"
