"""``report``: everything measured, as one HTML file and pictures."""

from __future__ import annotations

from pydantic import Field

from specflow.config.base import Section


class ReportParams(Section):
    """Gather everything measured in one HTML file and pictures."""

    title: str = Field(default="specflow report", description="Heading of the report.")
