"""The cleaner's map of keys: what it knows, and that its memory is what it says."""

from __future__ import annotations

import tracemalloc

import pytest

from kraftpy.log.key_map import ENTRY_BYTES, WHOLE_KEY_BYTES, KeyMap, short_key


@pytest.mark.parametrize("count", [100, 5_461, 5_462, 21_846, 43_690, 43_691, 60_000])
def test_it_takes_no_more_memory_than_it_was_given(count: int) -> None:
    """These are the longest keys it holds whole; the interpreter's dict grows at sizes such as 5,461."""
    budget = count * ENTRY_BYTES
    tracemalloc.start()
    try:
        keys = KeyMap(budget)
        assert keys.capacity == count
        first = 0
        while True:
            batch = [b"%0*d" % (WHOLE_KEY_BYTES, number) for number in range(first, first + 50)]
            taken = keys.put(batch, range(first, first + 50))
            first += taken
            if taken < 50:
                break
        keys.freeze()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(keys) == count
    assert peak < budget + 20_000


def test_a_full_map_still_learns_of_keys_it_knows() -> None:
    keys = KeyMap(2 * ENTRY_BYTES)
    assert keys.put([b"a", b"b", b"a", None, b"b", b"c", b"a"], range(7)) == 5, "c is one too many"
    keys.freeze()
    assert keys.is_superseded(b"a", 1)
    assert not keys.is_superseded(b"a", 2)
    assert not keys.is_superseded(b"c", 0)
    assert keys.kept_offsets(0, 10) == {2, 4}
    assert keys.count_kept(0, 4) == 1


def test_the_load_factor_leaves_room_and_one_key_always_fits() -> None:
    assert KeyMap(100 * ENTRY_BYTES, 0.9).capacity == 90
    assert KeyMap(0).capacity == 1


def test_a_long_key_s_digest_is_no_short_key() -> None:
    assert len(short_key(b"x" * 41)) == WHOLE_KEY_BYTES + 1
    assert short_key(b"x" * 41) != short_key(b"x" * 42)
