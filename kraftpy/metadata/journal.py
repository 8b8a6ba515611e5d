"""The journal of metadata commands: entries with an index and a term, one snapshot before them, and the vote.

It is the durable storage of a Raft log, for a single node and for a quorum alike.

    journal = Journal(directory); loaded = journal.load()     # once, blocking
    index = journal.append(term, data)                        # any number, never touches the disk
    durable_index = journal.sync()                            # blocking: what may now be applied and answered
    journal.save_snapshot(index, term, data)                  # blocking: entries up to `index` are no longer kept

`append`, `truncate_from` and `note_vote` are for the owner's event loop and may overlap a `sync` or a `save_snapshot`
of applied state, which run in a thread, one at a time. Many appends therefore share one sync, and the loop never waits
for the disk.

Safety:
* Every record carries a checksum over its position in the file and its content, and the number of bytes that were known
  to be synced when it was written. A bad record is truncated as a torn tail only if nothing shows that its position was
  synced: no later record, not the file's header, not the vote file of a clean stop. Otherwise the start is refused with
  `CorruptJournalError`.
* The file only grows (dropping conflicting entries appends a marker), until it is replaced by one with the entries
  after a snapshot, once that snapshot is safe. The next start completes a replacement that a crash interrupted.
* Snapshot and vote are replaced atomically and checked when read.
* After a failed write or sync, the journal refuses all writes, since the disk's contents are unknown.

Left out: several files for one journal (it is bounded by snapshots), and a lock against a second process.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import xxhash

from kraftpy.frozen import frozen
from kraftpy.metadata.codec import CodecError, pack, unpack
from kraftpy.ports import Directory, File

JOURNAL, SNAPSHOT, VOTE = "journal", "snapshot", "vote"
MAX_ENTRY_BYTES = 64 << 20

_FILE = struct.Struct("<8sQQQQ")  # magic, base index, base term, bytes synced when it was made, checksum
_FILE_MAGIC = b"KRAFTPYJ"
_RECORD = struct.Struct("<4sB3xIQQQQ")  # magic, kind, data bytes, index, term, bytes known to be synced, checksum
_RECORD_MAGIC = b"\xd7KJ\x01"
_SNAPSHOT = struct.Struct("<8sQQQQ")  # magic, index, term, data bytes, checksum
_SNAPSHOT_MAGIC = b"KRAFTPYS"
_CHECKSUM = struct.Struct("<Q")
_CHECKSUM_BYTES = _CHECKSUM.size


class JournalError(Exception):
    """The journal cannot be used; the message is for the broker's operator."""


class CorruptJournalError(JournalError):
    """The disk does not hold what was written, so its contents must not be used."""


@frozen
class Entry:
    """One command at its index in the log."""

    index: int
    term: int
    data: bytes


@frozen
class Snapshot:
    """The state after every entry up to and including `index`."""

    index: int
    term: int
    data: bytes


class Loaded(NamedTuple):
    """The journal's content at start: the snapshot, if any, and the entries after it."""

    snapshot: Snapshot | None
    entries: list[Entry]


class _Kind(IntEnum):
    ENTRY = 1
    TRUNCATE = 2
    """Entries from its index on were dropped."""


@dataclass(frozen=True, slots=True)
class _Record:
    kind: _Kind
    index: int
    term: int
    data: bytes


class _Scan(NamedTuple):
    """A journal file as read: where its valid records end, and the resulting entries."""

    base_index: int
    base_term: int
    entries: list[Entry]
    end: int


class Journal:
    """One node's log of commands in one directory. Indexes start at 1; an index or term of 0 is before everything."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._file: File | None = None
        self._end = 0  # bytes of the file that hold records
        self._unwritten: deque[_Record] = deque()  # appended by the loop, taken by the thread: both ends are atomic
        self._failed = False
        self._base_index = 0
        self._durable_index = 0
        self._last_index = 0
        self._term_starts: list[int] = [0]  # where each run of one term begins, by index,
        self._terms: list[int] = [0]  # and that term
        self._vote = _Vote(term=0, voted_for=None, base_index=0, length=0)
        self._newest_vote: tuple[int, str | None] = (0, None)  # the loop's
        self._unwritten_votes: deque[tuple[int, str | None]] = deque()  # as `_unwritten`
        self._is_writing = False
        self._cut = 0  # the last index that the lowest unwritten truncation leaves,
        self._cuts_made = self._cuts_written = 0  # while these differ

    # -- what it holds

    @property
    def last_index(self) -> int:
        """The newest entry's index, durable or not; the snapshot's if there is no entry after it."""
        return self._last_index

    @property
    def last_term(self) -> int:
        """The term of the entry at `last_index`."""
        return self._terms[-1]

    @property
    def first_index(self) -> int:
        """The oldest index that is still an entry of its own."""
        return self._base_index + 1

    @property
    def durable_index(self) -> int:
        """The newest entry that survives a power loss."""
        if self._cuts_made != self._cuts_written:
            return min(self._durable_index, self._cut)
        return self._durable_index

    @property
    def size_bytes(self) -> int:
        """The bytes of the file that hold records."""
        return self._end

    @property
    def is_dirty(self) -> bool:
        """True if something is waiting for a sync or being synced. Call on the loop."""
        return self._is_writing or bool(self._unwritten) or bool(self._unwritten_votes)

    @property
    def term(self) -> int:
        """The newest durable term of this node's votes, not of its entries."""
        return self._vote.term

    @property
    def voted_for(self) -> str | None:
        """The candidate that this node voted for in `term`."""
        return self._vote.voted_for

    def term_at(self, index: int) -> int | None:
        """Return the term of an entry, or of the snapshot's last one; None for an index that is not in the journal."""
        if not self._base_index <= index <= self._last_index:
            return None
        return self._terms[bisect_right(self._term_starts, index) - 1]

    # -- start and stop

    def load(self) -> Loaded:
        """Read and check everything, truncate a torn tail, and complete an interrupted replacement. Call this first.

        Raises `CorruptJournalError`, and then has changed nothing.
        """
        names = self._directory.names()
        self._vote = self._read_vote() if VOTE in names else self._vote
        self._newest_vote = (self._vote.term, self._vote.voted_for)
        snapshot = self._read_snapshot() if SNAPSHOT in names else None
        if JOURNAL not in names:
            if snapshot or VOTE in names:
                raise self._corrupt(JOURNAL, "it is missing, but the files beside it are there")
            self._replace_file(0, 0, ())
            return Loaded(None, [])
        scan = self._scan(self._directory.read(JOURNAL))
        if scan.base_index > (snapshot.index if snapshot else 0):
            found = f"ends at entry {snapshot.index}" if snapshot else "is missing"
            raise self._corrupt(SNAPSHOT, f"the journal starts after entry {scan.base_index}, but the snapshot {found}")
        self._open_at(scan)
        if snapshot and snapshot.index > scan.base_index:
            entries = _after(snapshot.index, snapshot.term, scan)
            self._replace_file(snapshot.index, snapshot.term, entries)
            return Loaded(snapshot, entries)
        return Loaded(snapshot, scan.entries)

    def close(self) -> None:
        """Sync pending writes and record the file's length, so that the next start detects a loss. Blocking."""
        if self._file is None:
            return
        if not self._failed:
            self.sync()
            self._write_vote(self._vote._replace(base_index=self._base_index, length=self._end))
        self._file.close()
        self._file = None

    @property
    def has_failed(self) -> bool:
        """True if a write or sync has failed, so that all writes are refused. Callable from any thread."""
        return self._failed

    # -- writing, on the loop

    def append(self, term: int, data: bytes) -> int:
        """Append an entry and return its index. It is durable once `sync` has returned that index."""
        self._check_usable()
        if term < self.last_term:
            raise ValueError(f"an entry of term {term} cannot follow one of term {self.last_term}")
        if len(data) > MAX_ENTRY_BYTES:
            raise ValueError(f"a metadata command of {len(data)} bytes is too large; {MAX_ENTRY_BYTES} are allowed")
        self._last_index += 1
        self._note_term(self._last_index, term)
        self._unwritten.append(_Record(_Kind.ENTRY, self._last_index, term, data))
        return self._last_index

    def truncate_from(self, index: int) -> None:
        """Drop the entry at `index` and all later ones, which conflict with a new leader's log."""
        self._check_usable()
        if not self._base_index < index <= self._last_index:
            raise ValueError(f"there is no entry {index} to drop: they are {self.first_index} to {self._last_index}")
        is_first = self._cuts_made == self._cuts_written
        self._cut = index - 1 if is_first else min(self._cut, index - 1)
        self._cuts_made += 1
        self._last_index = index - 1
        while self._term_starts[-1] >= index:
            del self._term_starts[-1], self._terms[-1]
        self._unwritten.append(_Record(_Kind.TRUNCATE, index, 0, b""))

    def note_vote(self, term: int, voted_for: str | None) -> None:
        """Record a term and this node's vote for the next `sync`; no peer may learn of them before."""
        self._check_usable()
        self._check_vote(term, voted_for)
        self._newest_vote = (term, voted_for)
        self._unwritten_votes.append(self._newest_vote)

    # -- writing, in a thread

    def sync(self) -> int:
        """Write and sync everything recorded before the call; return the index that is then durable. Blocking."""
        self._check_usable()
        with self._writing():
            self._sync_votes()
            if self._unwritten:
                self._sync_entries()
        return self._durable_index

    def _sync_votes(self) -> None:
        vote = None
        for _ in range(len(self._unwritten_votes)):
            vote = self._unwritten_votes.popleft()
        if vote is not None:
            self._write_vote(self._vote._replace(term=vote[0], voted_for=vote[1]))

    def _sync_entries(self) -> None:
        assert self._file is not None
        synced, end = self._end, self._end
        parts = []
        durable, cuts = self._durable_index, 0
        for _ in range(len(self._unwritten)):
            record = self._unwritten.popleft()
            parts.append(_encode(record, end, synced))
            end += len(parts[-1])
            if record.kind is _Kind.ENTRY:
                durable = record.index
            else:
                durable = min(durable, record.index - 1)
                cuts += 1
        self._file.write(synced, b"".join(parts))
        self._file.sync()
        self._end = end
        self._durable_index = durable
        self._cuts_written += cuts

    def save_snapshot(self, index: int, term: int, data: bytes) -> None:
        """Replace the entries up to `index` by the state after them. Blocking.

        With a durable entry's index and term, this may overlap `append`. Otherwise it is a leader's snapshot, which
        also replaces the log, including unsynced entries; then nothing may overlap.
        """
        self._check_usable()
        if index <= self._base_index:
            raise ValueError(f"the snapshot of entry {index} is not newer than that of entry {self._base_index}")
        ours = index <= self.durable_index and self.term_at(index) == term
        with self._writing():
            self._directory.replace(SNAPSHOT, _encode_snapshot(index, term, data))
            entries: list[Entry] = []
            if ours:
                if index < self._durable_index:
                    entries = _after(index, term, self._scan(self._directory.read(JOURNAL)))
                self._replace_file(index, term, entries, keep_newer=True)
            else:
                self._unwritten.clear()
                self._cuts_written = self._cuts_made
                self._replace_file(index, term, entries)

    # -- the journal file

    def _check_usable(self) -> None:
        if self._failed:
            raise JournalError(f"the metadata journal in {self._directory.path} failed earlier; restart the broker")
        if self._file is None:
            raise JournalError("the metadata journal is not open")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Mark the journal as failed if the block fails: a partly written or unsynced file must not be continued."""
        self._is_writing = True
        try:
            yield
        except BaseException:
            self._failed = True
            raise
        finally:
            self._is_writing = False

    def _check_vote(self, term: int, voted_for: str | None) -> None:
        old_term, old_vote = self._newest_vote
        if term < old_term or (term == old_term and old_vote is not None and voted_for != old_vote):
            raise ValueError(f"the vote of term {old_term} for {old_vote} cannot become term {term}, {voted_for}")

    def _note_term(self, index: int, term: int) -> None:
        if term != self._terms[-1]:
            self._term_starts.append(index)
            self._terms.append(term)

    def _replace_file(
        self, base_index: int, base_term: int, entries: Sequence[Entry], *, keep_newer: bool = False
    ) -> None:
        """Replace the file by one with these entries; `keep_newer` keeps those appended meanwhile."""
        parts, end = [bytes(_FILE.size)], _FILE.size
        for entry in entries:
            parts.append(_encode(_Record(_Kind.ENTRY, entry.index, entry.term, entry.data), end, 0))
            end += len(parts[-1])
        parts[0] = _file_header(base_index, base_term, end)
        self._directory.replace(JOURNAL, b"".join(parts))
        if keep_newer:
            self._reopen(end)
            self._base_index = base_index
        else:
            self._open_at(_Scan(base_index, base_term, list(entries), end))

    def _open_at(self, scan: _Scan) -> None:
        """Continue after the valid records: truncate the rest, and sync them if they were not durable."""
        self._reopen(scan.end)
        self._base_index = scan.base_index
        self._last_index = self._durable_index = scan.entries[-1].index if scan.entries else scan.base_index
        self._term_starts, self._terms = [scan.base_index], [scan.base_term]
        for entry in scan.entries:
            self._note_term(entry.index, entry.term)

    def _reopen(self, end: int) -> None:
        if self._file is not None:
            self._file.close()
        self._file = self._directory.open(JOURNAL)
        if self._file.size() > end:
            self._file.truncate(end)
        self._file.sync()
        self._end = end

    def _scan(self, data: bytes) -> _Scan:
        """Check a whole journal file. Raises `CorruptJournalError` for damage that a crash does not explain."""
        if len(data) < _FILE.size:
            raise self._corrupt(JOURNAL, f"it has {len(data)} bytes, less than its header")
        magic, base_index, base_term, synced, checksum = _FILE.unpack_from(data)
        if magic != _FILE_MAGIC or checksum != xxhash.xxh3_64_intdigest(data[: _FILE.size - _CHECKSUM_BYTES]):
            raise self._corrupt(JOURNAL, "its header is damaged")
        if self._vote.base_index == base_index:
            synced = max(synced, self._vote.length)
        entries: list[Entry] = []
        end, terms = _FILE.size, [base_term]
        for record, record_end, _ in _records(data, _FILE.size):
            last_index = base_index + len(entries)
            if record.kind is _Kind.ENTRY and record.index == last_index + 1 and record.term >= terms[-1]:
                entries.append(Entry(index=record.index, term=record.term, data=record.data))
                terms.append(record.term)
            elif record.kind is _Kind.TRUNCATE and base_index < record.index <= last_index:
                del entries[record.index - base_index - 1 :], terms[record.index - base_index :]
            else:
                raise self._corrupt(JOURNAL, f"at byte {end}, {record.kind.name} {record.index} follows {last_index}")
            end = record_end
        if end < len(data):
            synced = max([synced, *(told for _, _, told in _later_records(data, end + 1))])
        if end < synced:
            raise self._corrupt(
                JOURNAL,
                f"the record at byte {end} (entry {base_index + len(entries) + 1}) is damaged or missing, "
                f"and it was safely on the disk: {synced} bytes had been synced",
            )
        return _Scan(base_index, base_term, entries, end)

    # -- snapshot and vote

    def _read_snapshot(self) -> Snapshot:
        data = self._directory.read(SNAPSHOT)
        if len(data) < _SNAPSHOT.size:
            raise self._corrupt(SNAPSHOT, f"it has {len(data)} bytes, less than its header")
        magic, index, term, length, _ = _SNAPSHOT.unpack_from(data)
        body = data[_SNAPSHOT.size :]
        if magic != _SNAPSHOT_MAGIC or length != len(body) or data != _encode_snapshot(index, term, body):
            raise self._corrupt(SNAPSHOT, "its checksum does not match")
        return Snapshot(index=index, term=term, data=body)

    def _read_vote(self) -> _Vote:
        data = self._directory.read(VOTE)
        body, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
        if checksum != _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body)):
            raise self._corrupt(VOTE, "its checksum does not match")
        try:
            return _Vote(*unpack(body))
        except (CodecError, TypeError) as error:
            raise self._corrupt(VOTE, str(error)) from error

    def _write_vote(self, vote: _Vote) -> None:
        body = pack(list(vote))
        self._directory.replace(VOTE, body + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body)))
        self._vote = vote

    def _corrupt(self, name: str, what: str) -> CorruptJournalError:
        return CorruptJournalError(
            f"{self._directory.path}/{name} cannot be trusted: {what}. The broker does not start on damaged metadata; "
            "restore the directory from a copy, or from another node of the quorum"
        )


class _Vote(NamedTuple):
    """The vote file: the vote, and how long the journal that starts after `base_index` was at the last clean stop."""

    term: int
    voted_for: str | None
    base_index: int
    length: int


def _after(index: int, term: int, scan: _Scan) -> list[Entry]:
    """Return the entries to keep with a snapshot of `index`: those after it, if the log matches it there."""
    place = index - scan.base_index - 1
    if place >= len(scan.entries) or scan.entries[place].term != term:
        return []
    return scan.entries[place + 1 :]


def _encode(record: _Record, position: int, synced: int) -> bytes:
    """Encode a record for `position`; its checksum is valid only there."""
    head = _RECORD.pack(_RECORD_MAGIC, record.kind, len(record.data), record.index, record.term, synced, 0)
    body = head[:-_CHECKSUM_BYTES]
    checksum = xxhash.xxh3_64_intdigest(body + record.data, seed=position)
    return body + _CHECKSUM.pack(checksum) + record.data


def _file_header(base_index: int, base_term: int, synced: int) -> bytes:
    body = _FILE.pack(_FILE_MAGIC, base_index, base_term, synced, 0)[:-_CHECKSUM_BYTES]
    return body + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body))


def _encode_snapshot(index: int, term: int, data: bytes) -> bytes:
    body = _SNAPSHOT.pack(_SNAPSHOT_MAGIC, index, term, len(data), 0)[:-_CHECKSUM_BYTES]
    return body + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body + data)) + data


def _records(data: bytes, position: int) -> Iterator[tuple[_Record, int, int]]:
    """Yield consecutive valid records: the record, its end, and the length of the file it states as synced."""
    while (found := _record_at(data, position)) is not None:
        yield found
        position = found[1]


def _later_records(data: bytes, position: int) -> Iterator[tuple[_Record, int, int]]:
    """Yield valid records anywhere after `position`: those that may follow a damaged one."""
    while (position := data.find(_RECORD_MAGIC, position)) >= 0:
        if (found := _record_at(data, position)) is not None:
            yield found
        position += 1


def _record_at(data: bytes, position: int) -> tuple[_Record, int, int] | None:
    if len(data) - position < _RECORD.size:
        return None
    magic, kind, length, index, term, synced, _ = _RECORD.unpack_from(data, position)
    end = position + _RECORD.size + length
    if magic != _RECORD_MAGIC or kind not in (_Kind.ENTRY, _Kind.TRUNCATE) or end > len(data):
        return None
    record = _Record(_Kind(kind), index, term, data[end - length : end])
    return (record, end, synced) if data[position:end] == _encode(record, position, synced) else None
