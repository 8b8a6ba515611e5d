"""The part of a flush that blocks, as an object a thread can run on its own.

Order: segments, then the indexes made from them, then producer snapshots and leader epochs, then the directory's names.
Only when all of it is done may the recovery point move. The job owns its handles: it opened them on the loop, so a
segment that is renamed or deleted meanwhile is synced all the same and no file is created by mistake. Indexes go to
temporary files; the loop renames them when it takes the job back, if the segment still is what they were made from.
"""

from __future__ import annotations

from typing import NamedTuple

from kraftpy.log import layout
from kraftpy.log.index import OffsetIndex, TimeIndex
from kraftpy.log.segment import Segment
from kraftpy.ports import Directory, File


class IndexWrite(NamedTuple):
    """A sealed segment's index entries, and the temporary files they go to."""

    segment: Segment
    offset_index: OffsetIndex
    time_index: TimeIndex
    index_file: File
    time_index_file: File


class FlushJob:
    """What one flush has to do."""

    __slots__ = (
        "directory",
        "end_offset",
        "epochs",
        "epochs_version",
        "indexes",
        "is_done",
        "logs",
        "snapshots",
        "sync_directory",
    )

    def __init__(self, directory: Directory, end_offset: int, epochs_version: int) -> None:
        self.directory = directory
        self.end_offset = end_offset
        self.epochs_version = epochs_version
        self.logs: list[File] = []
        self.indexes: list[IndexWrite] = []
        self.snapshots: dict[int, bytes] = {}
        self.epochs: bytes | None = None
        self.sync_directory = False
        self.is_done = False

    def run(self) -> None:
        """Sync everything, and close the handles. Blocks; for a thread. Raises OSError as the disk does."""
        try:
            for log in self.logs:
                log.sync()
            for write in self.indexes:
                for file, data in (
                    (write.index_file, write.offset_index.encode()),
                    (write.time_index_file, write.time_index.encode()),
                ):
                    file.truncate(0)  # of an earlier try
                    file.write(0, data)
                    file.sync()
            for offset, data in self.snapshots.items():
                self.directory.replace(layout.file_name(offset, layout.SNAPSHOT), data)
            if self.epochs is not None:
                self.directory.replace(layout.LEADER_EPOCHS, self.epochs)
            if self.sync_directory or self.indexes:
                self.directory.sync()
            self.is_done = True
        finally:
            self.close()

    def cut_at(self, end_offset: int) -> None:
        """The log was truncated while the job runs: it promises less."""
        self.end_offset = min(self.end_offset, end_offset)

    def doubtful_snapshots(self) -> list[int]:
        """Offsets of snapshots it may write although what they describe has been truncated."""
        return [offset for offset in self.snapshots if offset > self.end_offset]

    def close(self) -> None:
        """Close the handles."""
        for log in self.logs:
            log.close()
        for write in self.indexes:
            write.index_file.close()
            write.time_index_file.close()
