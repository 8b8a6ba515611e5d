"""Every codec: what it writes, what it reads of others, and that nothing makes it allocate beyond its bound."""

from __future__ import annotations

import gzip
import random
import tracemalloc
import warnings
import zlib

import aiokafka.codec
import cramjam
import lz4.frame
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kraftpy.protocol.compression import XERIAL_MAGIC, Compression, compress, decompress
from kraftpy.protocol.errors import ErrorCode, KafkaError

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.codec

CODECS = [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD]
ARROW_NAMES = {Compression.GZIP: "gzip", Compression.SNAPPY: "snappy", Compression.LZ4: "lz4", Compression.ZSTD: "zstd"}
TEXT = b"".join(b"line %d of a text that packs well\n" % number for number in range(9000))
MIB = 1024 * 1024

each_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)


def expand(codec: Compression, data: bytes | bytearray, max_bytes: int) -> bytes | None:
    """Return the result of `decompress`, or None if it reports corrupt data; any other failure fails the test."""
    try:
        return decompress(codec, data, max_bytes)
    except KafkaError as error:
        if error.code != ErrorCode.CORRUPT_MESSAGE:
            raise
        return None


@given(data=st.binary(max_size=4000), repeat=st.integers(0, 60), codec=st.sampled_from(Compression))
@settings(deadline=None)
def test_what_was_compressed_comes_back(data: bytes, repeat: int, codec: Compression) -> None:
    whole = data * repeat
    assert decompress(codec, memoryview(compress(codec, memoryview(whole))), len(whole)) == whole


@each_codec
@pytest.mark.parametrize("level", [None, 1, 9])
def test_levels_are_accepted(codec: Compression, level: int | None) -> None:
    assert decompress(codec, compress(codec, TEXT, level), len(TEXT)) == TEXT


@each_codec
@pytest.mark.parametrize("data", [TEXT, b"", b"x", bytes(MIB), random.Random(1).randbytes(200_000)])
def test_other_implementations_read_ours(codec: Compression, data: bytes) -> None:
    packed = compress(codec, data)
    readers = {
        Compression.GZIP: (aiokafka.codec.gzip_decode, kafka.codec.gzip_decode, gzip.decompress),
        Compression.SNAPPY: (aiokafka.codec.snappy_decode,),
        Compression.LZ4: (aiokafka.codec.lz4_decode, kafka.codec.lz4_decode, lz4.frame.decompress),
        Compression.ZSTD: (aiokafka.codec.zstd_decode, cramjam.zstd.decompress),
    }
    for read in readers[codec]:
        assert bytes(read(packed)) == data
    if codec != Compression.SNAPPY:  # Arrow's is the raw form
        assert pa.Codec(ARROW_NAMES[codec]).decompress(packed, len(data), asbytes=True) == data


@each_codec
@pytest.mark.parametrize("data", [TEXT, b"x", bytes(MIB), random.Random(2).randbytes(200_000)])
def test_we_read_what_other_implementations_write(codec: Compression, data: bytes) -> None:
    writers = {
        Compression.GZIP: (aiokafka.codec.gzip_encode, kafka.codec.gzip_encode, gzip.compress),
        Compression.SNAPPY: (aiokafka.codec.snappy_encode, cramjam.snappy.compress_raw),
        Compression.LZ4: (aiokafka.codec.lz4_encode, kafka.codec.lz4_encode, lz4.frame.compress),
        Compression.ZSTD: (aiokafka.codec.zstd_encode, cramjam.zstd.compress),
    }
    packed = [bytes(write(data)) for write in writers[codec]]
    packed.append(pa.Codec(ARROW_NAMES[codec]).compress(data, asbytes=True))
    for one in packed:
        assert decompress(codec, one, len(data)) == data


def test_snappy_is_written_in_xerial_blocks_of_32_kib() -> None:
    packed = compress(Compression.SNAPPY, TEXT)
    assert packed[:16] == XERIAL_MAGIC + b"\0\0\0\1\0\0\0\1"
    size = int.from_bytes(packed[16:20], "big")
    assert bytes(cramjam.snappy.decompress_raw(packed[20 : 20 + size])) == TEXT[: 32 * 1024]


def test_lz4_is_written_as_frames_of_independent_64_kib_blocks_as_the_java_client_requires() -> None:
    info = lz4.frame.get_frame_info(compress(Compression.LZ4, TEXT))
    assert not info["block_linked"]
    assert info["block_size_id"] == lz4.frame.BLOCKSIZE_MAX64KB
    assert not info["content_checksum"]


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD], ids=lambda codec: codec.name)
def test_members_and_frames_may_follow_each_other(codec: Compression) -> None:
    packed = compress(codec, b"first") + compress(codec, b"") + compress(codec, TEXT)
    assert decompress(codec, packed, MIB) == b"first" + TEXT


def test_a_skippable_zstd_frame_is_skipped() -> None:
    packed = b"\x53\x2a\x4d\x18\x03\0\0\0abc" + compress(Compression.ZSTD, TEXT)
    assert decompress(Compression.ZSTD, packed, MIB) == TEXT


@pytest.mark.parametrize("codec", Compression, ids=lambda codec: codec.name)
def test_the_bound_is_exact(codec: Compression) -> None:
    packed = compress(codec, TEXT)
    assert decompress(codec, packed, len(TEXT)) == TEXT
    with pytest.raises(KafkaError, match="expand") as caught:
        decompress(codec, packed, len(TEXT) - 1)
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


@each_codec
def test_a_bomb_costs_its_bound_and_no_more(codec: Compression) -> None:
    bomb = compress(codec, bytes(256 * MIB))
    decompress(codec, compress(codec, TEXT), MIB)  # imports what it imports
    tracemalloc.start()
    try:
        with pytest.raises(KafkaError, match="expand"):
            decompress(codec, bomb, MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * MIB


def test_a_zstd_bomb_of_repeated_bytes_is_refused_from_its_block_headers() -> None:
    blocks = b"".join((131072 << 3 | 1 << 1).to_bytes(3, "little") + b"\0" for _ in range(100_000))
    bomb = b"\x28\xb5\x2f\xfd\x00\x58" + blocks + b"\x01\0\0"
    with pytest.raises(KafkaError, match="expand"):
        decompress(Compression.ZSTD, bomb, MIB)


@pytest.mark.parametrize("claimed", [b"\xff\xff\xff\xff\x0f", b"\x80\x80\x80\x10", b"\xff\xff\xff\xff\xff\x01"])
def test_a_snappy_length_is_not_believed_beyond_what_the_block_can_hold(claimed: bytes) -> None:
    with pytest.raises(KafkaError) as caught:
        decompress(Compression.SNAPPY, claimed + b"abc", 1 << 40)
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


@each_codec
def test_cut_short_anywhere_it_is_corrupt(codec: Compression) -> None:
    data = random.Random(3).randbytes(300) * 3
    packed = compress(codec, data)
    whole_blocks = {16} if codec == Compression.SNAPPY else set()  # xerial has no end mark
    for size in set(range(len(packed))) - whole_blocks:
        with pytest.raises(KafkaError) as caught:
            decompress(codec, packed[:size], MIB)
        assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


@each_codec
def test_damage_is_corrupt_or_decodes_within_the_bound(codec: Compression) -> None:
    rng = random.Random(4)
    sources = [compress(codec, TEXT[:2000]), compress(codec, rng.randbytes(500)), compress(codec, bytes(100_000))]
    for _ in range(3000):
        packed = bytearray(rng.choice(sources))
        for _ in range(rng.randint(1, 4)):
            packed[rng.randrange(len(packed))] = rng.randrange(256)
        assert len(expand(codec, packed, MIB) or b"") <= MIB


@each_codec
@given(data=st.binary(max_size=200))
@settings(deadline=None)
def test_garbage_is_corrupt(codec: Compression, data: bytes) -> None:
    prefix = {Compression.GZIP: b"\x1f\x8b\x08", Compression.SNAPPY: XERIAL_MAGIC, Compression.LZ4: b"\x04\x22\x4d\x18"}
    for garbage in (data, prefix.get(codec, b"\x28\xb5\x2f\xfd") + data):
        expand(codec, garbage, 4096)


def test_gzip_is_a_gzip_member_not_a_zlib_stream() -> None:
    assert compress(Compression.GZIP, b"x")[:2] == b"\x1f\x8b"
    with pytest.raises(KafkaError):
        decompress(Compression.GZIP, zlib.compress(b"x"), 10)
