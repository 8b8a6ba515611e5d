"""Files that people write: byte order marks are dropped, encodings with wide letters refused, wherever one is read."""

from __future__ import annotations

import codecs
import json
import os
from pathlib import Path

import pytest

from kraftpy.broker.metadata.secret import SecretError, configured_secret
from kraftpy.cli import container, reassign
from kraftpy.cli.output import Failure
from kraftpy.cli.server import read_text
from kraftpy.config import BrokerConfig, ConfigError, load
from kraftpy.config.texts import text_of
from kraftpy.types import TopicPartition

MARK = codecs.BOM_UTF8
SECRET = "a secret long enough to be one"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", ""),
        (MARK, ""),
        (MARK + b"node.id=7\n", "node.id=7\n"),
        (MARK + b"a=1\n" + MARK + b"b=2\r\n" + MARK + b"c=3", "a=1\nb=2\r\nc=3"),
        ("a=b\ufeffc".encode(), "a=b\ufeffc"),
        ("name=é".encode(), "name=é"),
    ],
)
def test_a_byte_order_mark_begins_no_line(data: bytes, text: str) -> None:
    assert text_of(data, "x") == text
    assert text_of(data, "x", or_latin_1=True) == text


@pytest.mark.parametrize("or_latin_1", [False, True])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_wide_encodings_are_refused_with_the_remedy(encoding: str, mark: str, or_latin_1: bool) -> None:
    data = f"{mark}node.id=7\n".encode(encoding)
    told = rf"is encoded in {encoding[:6].upper()}" if mark else "has NUL bytes, as text in UTF-16 has"
    with pytest.raises(ConfigError, match=rf"^node\.properties {told}: save it as UTF-8$"):
        text_of(data, "node.properties", or_latin_1=or_latin_1)


def test_java_s_latin_1_is_read_where_java_writes() -> None:
    assert text_of("name=é".encode("latin-1"), "x", or_latin_1=True) == "name=é"
    with pytest.raises(ConfigError, match=r"^plan\.json is not UTF-8: .* at byte 5$"):
        text_of("name=é".encode("latin-1"), "plan.json")


def test_a_server_s_properties(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_bytes(MARK + b"node.id=7\n")
    assert load(read_text(file)).config.node_id == 7
    file.write_text("node.id=7\n", encoding="utf-16")
    with pytest.raises(ConfigError, match=f"^{file} is encoded in UTF-16: save it as UTF-8$"):
        read_text(file)


def test_the_properties_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "server.properties"
    monkeypatch.setattr(container, "PROPERTIES", file)
    monkeypatch.setattr(os, "environ", {})
    file.write_bytes(MARK + b"node.id=7\n")
    assert container.configure().node_id == 7
    file.write_bytes(b"node.id=7\n# caf\xe9\n")
    assert container.configure().node_id == 7
    file.write_text("node.id=7\n", encoding="utf-16")
    with pytest.raises(ConfigError, match="is encoded in UTF-16"):
        container.configure()


@pytest.mark.parametrize("in_container", [False, True])
def test_files_that_values_refer_to(in_container: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values, single = tmp_path / "values.properties", tmp_path / "secret"
    values.write_bytes(MARK + b"id=7\n")
    single.write_bytes(MARK + SECRET.encode() + b"\n")
    text = f"node.id=${{file:{values}:id}}\nkraftpy.quorum.secret=${{dir:{tmp_path}:secret}}\n"

    def read() -> BrokerConfig:
        if not in_container:
            return load(text, read_file=lambda path: read_text(Path(path))).config
        monkeypatch.setattr(container, "PROPERTIES", tmp_path / "server.properties")
        monkeypatch.setattr(os, "environ", {})
        container.PROPERTIES.write_text(text)
        return container.configure()

    config = read()
    assert (config.node_id, config.kraftpy_quorum_secret) == (7, SECRET)
    single.write_text(SECRET, encoding="utf-16")
    with pytest.raises(
        ConfigError, match=rf"^kraftpy\.quorum\.secret: .* cannot be read: {single} is encoded in UTF-16"
    ):
        read()


def test_the_file_of_the_secret(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    config = BrokerConfig.of({"kraftpy.quorum.secret.file": str(file)})
    file.write_bytes(MARK + SECRET.encode())
    assert configured_secret(config) == SECRET
    for data in (SECRET.encode("utf-16"), b"not UTF-8 \xe9\xe9\xe9\xe9\xe9\xe9"):
        file.write_bytes(data)
        with pytest.raises(SecretError, match=r"^kraftpy\.quorum\.secret\.file cannot be read: .*UTF-8"):
            configured_secret(config)


def test_a_plan_of_moves(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    text = json.dumps({"version": 1, "partitions": [{"topic": "a", "partition": 1, "replicas": [1, 2]}]})
    file.write_bytes(MARK + text.encode())
    assert list(reassign._read(file)) == [TopicPartition("a", 1)]
    file.write_text(text, encoding="utf-16")
    with pytest.raises(Failure, match="is encoded in UTF-16: save it as UTF-8"):
        reassign._read(file)
