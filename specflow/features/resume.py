"""What an earlier, interrupted capture finished."""

from __future__ import annotations

from specflow.features.making import NOTES, Notes
from specflow.features.shard import DamagedShard, verify_shard
from specflow.features.store import FeatureWriter


class NotUsable(Exception):
    """A shard that is there and must be made again; the message says why."""


def finished_notes(writer: FeatureWriter, number: int, digest: str) -> Notes:
    """The notes of a shard that is there, whole and of the task with this ``digest``.

    Raises :class:`NotUsable` after removing one that is damaged or of another task.
    """
    try:
        verify_shard(writer.shard(number))
        notes: Notes = writer.extra(number, NOTES)
    except DamagedShard as damage:
        reason = f"shard {number} is damaged ({damage})"
    else:
        if notes["plan"] == digest:
            return notes
        reason = f"shard {number} is of another plan"
    writer.remove(number)
    raise NotUsable(reason)
