"""The index of ACLs decides like a loop over all of them, after any additions and removals (Kafka CVE-2024-27309)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kraftpy.metadata.acl_decisions import create_acls, delete_acls
from kraftpy.metadata.acls import CreateAcls, DeleteAcls
from kraftpy.metadata.commands import decode_command, encode_command
from kraftpy.metadata.image import Image
from kraftpy.security.acls import (
    AclBinding,
    AclFilter,
    AclIndex,
    Allowed,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    Verdict,
    address_of,
)
from kraftpy.security.principal import Principal
from kraftpy.types import Millis

ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")
NAMES = ("a", "ab", "abc", "b", "*", "a*")
HOSTS = ("*", "10.0.0.1", "::ffff:10.0.0.1", "10.0.0.2")
OPERATIONS = (
    Operation.ALL,
    Operation.READ,
    Operation.WRITE,
    Operation.DESCRIBE,
    Operation.ALTER_CONFIGS,
    Operation.DESCRIBE_CONFIGS,
)
bindings = st.builds(
    AclBinding,
    resource_type=st.sampled_from((ResourceType.TOPIC, ResourceType.GROUP)),
    name=st.sampled_from(NAMES),
    pattern_type=st.sampled_from((PatternType.LITERAL, PatternType.PREFIXED)),
    principal=st.sampled_from(("User:alice", "User:bob", "User:*")),
    host=st.sampled_from(HOSTS),
    operation=st.sampled_from(OPERATIONS),
    permission=st.sampled_from((Permission.ALLOW, Permission.DENY)),
)
questions = st.tuples(
    st.sampled_from((ALICE, BOB)),
    st.sampled_from(("10.0.0.1", "10.0.0.2")),
    st.sampled_from(OPERATIONS[1:]),
    st.sampled_from((ResourceType.TOPIC, ResourceType.GROUP)),
    st.sampled_from(("a", "ab", "abcd", "b", "c", "*")),
)
IMPLIED = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}


def slowly(
    every: list[AclBinding], who: Principal, host: str, operation: Operation, kind: ResourceType, name: str
) -> Verdict:
    """Decide by the rules of KIP-290, word for word."""
    covering = [
        each
        for each in every
        if each.resource_type == kind
        and (
            name.startswith(each.name)
            if each.pattern_type == PatternType.PREFIXED
            else each.name == name or each.name == "*"
        )
    ]
    mine = [
        each
        for each in covering
        if each.principal in (str(who), "User:*") and (each.host == "*" or each.host.removeprefix("::ffff:") == host)
    ]
    for each in mine:
        if each.permission == Permission.DENY and each.operation in (operation, Operation.ALL):
            return Verdict.DENIED
    for each in mine:
        implied = each.operation in IMPLIED.get(operation, ())
        if each.permission == Permission.ALLOW and (each.operation in (operation, Operation.ALL) or implied):
            return Verdict.ALLOWED
    return Verdict.DENIED if covering else Verdict.NO_BINDING


@settings(max_examples=300)
@given(
    steps=st.lists(st.tuples(st.booleans(), bindings), max_size=30),
    asked=st.lists(questions, min_size=1, max_size=10),
    without=st.booleans(),
)
def test_it_decides_as_a_loop_over_all_bindings(
    steps: list[tuple[bool, AclBinding]],
    asked: list[tuple[Principal, str, Operation, ResourceType, str]],
    without: bool,
) -> None:
    index, every = AclIndex(), dict[AclBinding, None]()
    for is_removal, binding in steps:
        if is_removal:
            assert index.remove(binding) == (binding in every)
            every.pop(binding, None)
        else:
            assert index.add(binding) == (binding not in every)
            every[binding] = None
    assert list(index) == list(every)
    again = AclIndex(index)
    for who, host, operation, kind, name in asked:
        expected = slowly(list(every), who, host, operation, kind, name)
        assert index.decide(who, host, operation, kind, name) is expected
        assert again.decide(who, host, operation, kind, name) is expected
        many = Allowed(index, who, host, operation, kind, without_acl=without)
        assert (name in many) == (expected is Verdict.ALLOWED or (without and expected is Verdict.NO_BINDING))


filters = st.builds(
    AclFilter,
    resource_type=st.sampled_from((ResourceType.ANY, ResourceType.TOPIC, ResourceType.GROUP)),
    name=st.sampled_from((None, *NAMES)),
    pattern_type=st.sampled_from((PatternType.ANY, PatternType.MATCH, PatternType.LITERAL, PatternType.PREFIXED)),
    principal=st.sampled_from((None, "User:alice", "User:*")),
    host=st.sampled_from((None, "*", "10.0.0.1")),
    operation=st.sampled_from((Operation.ANY, *OPERATIONS)),
    permission=st.sampled_from((Permission.ANY, Permission.ALLOW, Permission.DENY)),
)


@settings(max_examples=200)
@given(made=st.lists(bindings, max_size=20), wanted=st.lists(filters, max_size=3))
def test_what_filters_select_is_deleted_and_survives_snapshots(made: list[AclBinding], wanted: list[AclFilter]) -> None:
    image = Image()

    def carry_out(command: CreateAcls | DeleteAcls) -> object:
        read = decode_command(encode_command(command))
        assert read == command
        decision = create_acls(read, image) if isinstance(read, CreateAcls) else delete_acls(command, image)  # type: ignore[arg-type]
        for record in decision.records:
            image.replay(record, 0)
        return decision.result

    carry_out(CreateAcls(bindings=tuple(made), time_ms=Millis(0)))
    before = list(image.acls)
    assert before == list(dict.fromkeys(made))
    told = carry_out(DeleteAcls(filters=tuple(wanted), time_ms=Millis(0)))
    left = [each for each in before if not any(one.selects(each) for one in wanted)]
    assert list(image.acls) == left
    assert [list(result.bindings) for result in told] == [  # type: ignore[attr-defined]
        [each for each in before if one.selects(each)] for one in wanted
    ]
    restored = Image.from_bytes(image.capture()())
    assert list(restored.acls) == left
    assert restored.acls.bytes == image.acls.bytes
    assert (restored.acls.bytes == 0) == (not left)


@pytest.mark.parametrize(
    ("allowed", "denied", "expected"),
    [
        ([], [], Verdict.NO_BINDING),
        (["*"], [], Verdict.ALLOWED),
        (["a"], [], Verdict.ALLOWED),
        (["a"], ["*"], Verdict.DENIED),
        (["a"], ["a"], Verdict.NO_BINDING),
        (["a", "b"], ["a"], Verdict.ALLOWED),
        (["abc+"], ["ab+"], Verdict.NO_BINDING),
        (["a+"], ["ab+"], Verdict.ALLOWED),
        (["abc"], ["ab+"], Verdict.NO_BINDING),
    ],
)
def test_a_right_to_any_resource(allowed: list[str], denied: list[str], expected: Verdict) -> None:
    """KIP-679. A name that ends in + is a prefix."""
    index = AclIndex(
        AclBinding(
            resource_type=ResourceType.TOPIC,
            name=name.removesuffix("+"),
            pattern_type=PatternType.PREFIXED if name.endswith("+") else PatternType.LITERAL,
            principal="User:alice",
            operation=Operation.WRITE,
            permission=permission,
        )
        for names, permission in ((allowed, Permission.ALLOW), (denied, Permission.DENY))
        for name in names
    )
    assert index.allows_on_any(ALICE, "10.0.0.1", Operation.WRITE, ResourceType.TOPIC) is expected
    assert index.allows_on_any(BOB, "10.0.0.1", Operation.WRITE, ResourceType.TOPIC) is not Verdict.ALLOWED


def test_addresses_have_one_form() -> None:
    assert address_of("::ffff:1.2.3.4") == address_of("1.2.3.4") == "1.2.3.4"
    assert address_of("0:0:0:0:0:0:0:1") == address_of("::1")
    assert address_of("example.org") == "example.org"
