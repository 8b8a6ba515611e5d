"""The API table, the declarations and the error codes, held against each other and against `kio`."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys
from typing import Any

import pytest
from kio.schema.errors import ErrorCode as KioError
from kio.schema.index import api_key_map, schema_name_map
from wire_samples import is_of_kafka_4_4

from kraftpy.protocol import frames, messages
from kraftpy.protocol.apis import API_VERSIONS, APIS, Api, ApiKey, request_header_version, response_header_version
from kraftpy.protocol.errors import ErrorCode, KafkaError
from kraftpy.protocol.schema import REQUIRED, Message, Struct, fields, parse_versions

SPOKEN = [0, 1, 2, 3, *range(8, 52)]
SPOKEN += [55, 57, 60, 61, 64, 65, 66, 68, 69, 71, 72, *range(74, 82), *range(83, 95)]
MODULES = [name for _, name, _ in pkgutil.iter_modules(messages.__path__)]

each_api = pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)


def classes(api: Api) -> list[Any]:
    module = importlib.import_module(f"kraftpy.protocol.messages.{api.name}")
    return [each for each in vars(module).values() if isinstance(each, type) and issubclass(each, Struct)]


def test_the_table_is_what_is_spoken() -> None:
    assert list(APIS) == SPOKEN
    assert sorted(api.name for api in APIS.values()) == sorted(MODULES)
    assert API_VERSIONS[ApiKey.PRODUCE] == (0, 13)
    assert 4 in APIS[ApiKey.FETCH]
    assert 3 not in APIS[ApiKey.FETCH]


@each_api
def test_request_and_response_are_declared_as_the_table_says(api: Api) -> None:
    for kind in (api.request, api.response):
        assert issubclass(kind, Message)
        assert kind.api_key == api.key
        assert kind.versions == (api.first, api.last)
        for version in range(api.first, api.last + 1):
            assert (version in kind.flexible) == (version >= api.flexible)


@each_api
def test_kio_knows_every_version_and_we_know_all_of_its(api: Api) -> None:
    theirs = set(schema_name_map[api_key_map[api.key]]) if api.key in api_key_map else set()
    ours = {version for version in range(api.first, api.last + 1) if not is_of_kafka_4_4(api.request, version)}
    ours -= {0, 1, 2} if api.key == ApiKey.PRODUCE else set()
    theirs -= {6} if api.key == ApiKey.INIT_PRODUCER_ID else set()  # not stable yet, and not advertised by Kafka 4.3
    assert ours == theirs


@each_api
def test_headers_are_flexible_when_the_message_is(api: Api) -> None:
    for version in range(api.first, api.last + 1):
        flexible = version in api.request.flexible
        assert request_header_version(api.key, version) == 1 + flexible
        assert response_header_version(api.key, version) == (flexible and api.key != ApiKey.API_VERSIONS)


@pytest.mark.parametrize("name", MODULES)
def test_every_module_says_what_it_is_and_where_to_read(name: str) -> None:
    module = importlib.import_module(f"kraftpy.protocol.messages.{name}")
    assert module.__doc__
    assert "KIP-" in module.__doc__


@each_api
def test_every_struct_is_documented_and_used(api: Api) -> None:
    used = {api.request, api.response}
    for kind in classes(api):
        assert inspect.getdoc(kind), kind
        if kind.__module__.endswith(f".{api.name}"):
            used |= {field.struct for field in fields(kind) if field.struct}
    assert used == set(classes(api))


@each_api
def test_what_some_version_lacks_has_a_default(api: Api) -> None:
    for kind in (api.request, api.response):
        for field in fields(kind):
            always = field.versions.first <= api.first and field.versions.last >= api.last
            assert always or field.default is not REQUIRED, (kind, field.name)
            assert field.tag is None or field.versions.first >= api.flexible


def test_error_codes_are_those_of_kio() -> None:
    of_kafka_4_4 = (134, 135, 136)
    ours = {code.name.lower(): (int(code), code.retriable) for code in ErrorCode if code not in of_kafka_4_4}
    assert ours == {code.name: (int(code), code.retriable) for code in KioError}


def test_every_error_code_has_a_meaning_in_one_line() -> None:
    meanings = [code.meaning for code in ErrorCode]
    assert len(set(meanings)) == len(meanings)
    assert all(meaning.endswith(".") and "\n" not in meaning for meaning in meanings[2:])
    assert meanings[1] == "NONE"  # as Kafka has it


def test_an_error_code_from_the_wire() -> None:
    assert ErrorCode.of(27) is ErrorCode.REBALANCE_IN_PROGRESS
    assert ErrorCode.of(9999) is ErrorCode.UNKNOWN_SERVER_ERROR
    assert str(KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)) == f"UNKNOWN_MEMBER_ID: {ErrorCode.UNKNOWN_MEMBER_ID.meaning}"
    assert str(KafkaError(ErrorCode.INVALID_CONFIG, "x=1")) == "INVALID_CONFIG: x=1"


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [("3+", [3, 99], [2]), ("2-4", [2, 4], [1, 5]), ("8", [8], [7, 9]), ("none", [], [0, 9])],
)
def test_version_ranges(text: str, inside: list[int], outside: list[int]) -> None:
    versions = parse_versions(text)
    assert all(version in versions for version in inside)
    assert not any(version in versions for version in outside)


def test_a_starting_server_imports_no_message() -> None:
    show = f"import sys, {frames.__name__}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True, timeout=60)
    assert not {"dataclasses", "inspect", "asyncio", "kraftpy.protocol.codegen"} & set(done.stdout.split())
    assert "kraftpy.protocol.messages." not in done.stdout
