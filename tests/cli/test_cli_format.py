"""`kraftpy format`: what it writes, and Kafka's messages for mistakes. No node is started here."""

from __future__ import annotations

import base64
import hashlib
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kraftpy.broker.runtime import OsDirectory
from kraftpy.broker.storage.bootstrap import read_bootstrap
from kraftpy.broker.storage.first_voters import read_first_voters
from kraftpy.cli import cli
from kraftpy.cli.format import parse_scram
from kraftpy.config import ConfigError
from kraftpy.log.layout import read_meta_properties
from kraftpy.metadata.credentials import Credentials
from kraftpy.metadata.voters import VoterSet
from kraftpy.security.failures import AuthenticationFailed
from kraftpy.security.scram import MECHANISMS, ScramClient, ScramServer, salted_password

CLUSTER_ID = "7mHQeQOJRqGJbGzBfx3-tw"
SALT = base64.b64encode(b"0123456789abcdef").decode()


def write(directory: Path, roles: str = "broker,controller") -> Path:
    path = directory / "server.properties"
    quorum = "controller.quorum.bootstrap.servers=127.0.0.1:9093\n" if roles == "broker" else ""
    listeners = "PLAINTEXT://127.0.0.1:9092" + ("" if roles == "broker" else ",CONTROLLER://127.0.0.1:9093")
    path.write_text(
        f"node.id=7\nprocess.roles={roles}\n{quorum}listeners={listeners}\n"
        f"log.dirs={directory}/first,{directory}/second\n"
    )
    return path


def kraftpy_format(path: Path, *arguments: str, cluster_id: str = CLUSTER_ID) -> Result:
    return CliRunner().invoke(cli, ["format", str(path), "--cluster-id", cluster_id, *arguments])


def credentials_in(directory: Path) -> Credentials:
    return Credentials(read_bootstrap(OsDirectory(directory / "first").child("metadata")))


def lets_in(credentials: Credentials, mechanism: str, name: str, password: str) -> bool:
    """Return whether a client with this password passes the whole exchange."""
    chosen = MECHANISMS[mechanism]
    server = ScramServer(chosen, lambda asked: credentials.of(asked, chosen.code), b"secret", "of-the-server")
    client = ScramClient(chosen, name, "of-the-client")
    salt, iterations = client.challenged(server.first(client.first()))
    try:
        client.verify(server.final(client.final(salted_password(chosen, password, salt, iterations))))
    except AuthenticationFailed:
        return False
    return True


def test_a_new_node_has_the_cluster_s_id_and_its_users(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of bob, in a file\n")
    done = kraftpy_format(
        write(tmp_path),
        "--add-scram",
        "SCRAM-SHA-512=[name=alice,password=of alice]",
        "--add-scram",
        f"SCRAM-SHA-256=[name=bob,iterations=8192,password-file={secret}]",
    )
    assert done.exit_code == 0, done.output
    assert f"Formatted {tmp_path}/first" in done.output
    assert f"Formatted {tmp_path}/second" in done.output
    for name in ("first", "second"):
        properties = read_meta_properties(OsDirectory(tmp_path / name))
        assert properties is not None
        assert (properties["cluster.id"], properties["node.id"]) == (CLUSTER_ID, "7")
    found = credentials_in(tmp_path)
    assert [found.iterations(name) for name in found.users()] == [{2: 4096}, {1: 8192}]
    assert lets_in(found, "SCRAM-SHA-512", "alice", "of alice")
    assert not lets_in(found, "SCRAM-SHA-512", "alice", "of bob")
    assert lets_in(found, "SCRAM-SHA-256", "bob", "of bob, in a file")
    for path in tmp_path.rglob("*"):
        if path.parent != tmp_path:
            assert path.stat().st_mode & 0o077 == 0, path


def test_what_is_formatted_is_left_alone(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert kraftpy_format(path).exit_code == 0
    before = (tmp_path / "first" / "meta.properties").read_bytes()
    again = kraftpy_format(path, "--add-scram", "SCRAM-SHA-256=[name=a,password=b]")
    assert again.exit_code == 1
    assert (
        "is already formatted. Use --ignore-formatted to ignore this directory and format the others." in again.output
    )
    assert kraftpy_format(path, "--ignore-formatted").exit_code == 0
    other = kraftpy_format(path, "--ignore-formatted", cluster_id="another")
    assert other.exit_code == 1
    assert f"belongs to cluster {CLUSTER_ID}, not to another" in other.output
    assert (tmp_path / "first" / "meta.properties").read_bytes() == before
    assert credentials_in(tmp_path).users() == []


def test_each_process_of_a_host_has_directories_of_its_own(tmp_path: Path) -> None:
    path = write(tmp_path)
    several = ("--processes", "2", "--port-step", "10")
    result = kraftpy_format(path, *several, "--add-scram", "SCRAM-SHA-256=[name=alice,password=a]")
    assert result.output.splitlines() == [
        f"Formatted {tmp_path}/{name}/node-{node}" for node in (7, 8) for name in ("first", "second")
    ]
    for node in (7, 8):
        properties = read_meta_properties(OsDirectory(tmp_path / "second" / f"node-{node}"))
        assert properties is not None
        assert (properties["cluster.id"], properties["node.id"]) == (CLUSTER_ID, str(node))
    first, second = (OsDirectory(tmp_path / "first" / f"node-{node}").child("metadata") for node in (7, 8))
    assert len(read_bootstrap(first)) == 1
    assert not read_bootstrap(second)
    result = kraftpy_format(path)
    assert result.exit_code != 0
    assert "holds the data of several processes" in result.output
    one = tmp_path / "one"
    one.mkdir()
    assert kraftpy_format(write(one)).exit_code == 0
    assert "holds the data of a single process" in kraftpy_format(write(one), *several).output


def test_a_broker_apart_is_told_that_users_have_no_effect(tmp_path: Path) -> None:
    done = kraftpy_format(write(tmp_path, "broker"), "--add-scram", "SCRAM-SHA-256=[name=a,password=b]")
    assert done.exit_code == 0, done.output
    assert "this node is not a controller" in done.output
    assert not (tmp_path / "first" / "metadata").exists()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_salted_password_is_as_good_as_the_password(mechanism: str) -> None:
    chosen = MECHANISMS[mechanism]
    salted = hashlib.pbkdf2_hmac(chosen.hash, b"secret", b"0123456789abcdef", 5000)
    text = base64.b64encode(salted).decode()
    given = f'{mechanism}=[name="alice",iterations=5000,salt="{SALT}",saltedpassword="{text}"]'
    assert parse_scram(given) == parse_scram(f"{mechanism}=[name=alice,iterations=5000,salt={SALT},password=secret]")
    assert lets_in(Credentials((parse_scram(given),)), mechanism, "alice", "secret")


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("SCRAM-SHA-256", "Failed to find equals sign in SCRAM argument"),
        ("SCRAM-SHA-1=[name=a,password=b]", "The add-scram mechanism SCRAM-SHA-1 is not supported."),
        ("SCRAM-SHA-256=name=a,password=b]", "Expected configuration string to start with ["),
        ("SCRAM-SHA-256=[name=a,password=b", "Expected configuration string to end with ]"),
        ("SCRAM-SHA-256=[name,password=b]", "No equals sign found in SCRAM component"),
        ("SCRAM-SHA-256=[]", "No equals sign found in SCRAM component"),
        ("SCRAM-SHA-256=[password=b]", "You must supply 'name' to add-scram"),
        ("SCRAM-SHA-256=[name=a]", "You must supply one of 'password' or 'saltedpassword' to add-scram"),
        ("SCRAM-SHA-256=[name=a,saltedpassword=bXk=]", "You must supply 'salt' with 'saltedpassword' to add-scram"),
        ("SCRAM-SHA-256=[name=a,salt=*,password=b]", "Failed to decode given salt"),
        (f"SCRAM-SHA-256=[name=a,salt={SALT},saltedpassword=*]", "Failed to decode given saltedPassword"),
        ("SCRAM-SHA-256=[name=a,iterations=many,password=b]", "Failed to parse iterations count: many"),
        (
            "SCRAM-SHA-256=[name=a,iterations=4095,password=b]",
            "The 'iterations' value must be >= 4096 for add-scram using SCRAM_SHA_256",
        ),
        (
            "SCRAM-SHA-512=[name=a,iterations=16385,password=b]",
            "The 'iterations' value must be <= 16384 for add-scram using SCRAM_SHA_512",
        ),
        ("SCRAM-SHA-256=[name=a,color=red,password=b]", "Unknown SCRAM configurations: color"),
        ("SCRAM-SHA-256=[name=a,password=]", "The password given to add-scram is empty"),
        ("SCRAM-SHA-256=[name=a,password=b,password-file=c]", "one of 'password' and 'password-file'"),
        ("SCRAM-SHA-256=[name=a,password-file=/none/such]", "/none/such: No such file or directory"),
    ],
)
def test_mistakes_have_kafka_s_messages_and_nothing_is_written(tmp_path: Path, argument: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_scram(argument)
    assert message in str(refused.value)
    done = kraftpy_format(write(tmp_path), "--add-scram", argument)
    assert done.exit_code == 1
    assert message in done.output
    assert not (tmp_path / "first").exists()


# -- the first voters of a quorum (KIP-853)

FIRST = "7@127.0.0.1:9093:JEXY6aqzQY-32P5TStzaFg,8@[::1]:9093:MvDxzVmcRsaTz33bUuRU6A"


def write_controller(directory: Path, **settings: str) -> Path:
    """Write the file of node 7, which is to find the quorum at an address."""
    given = {
        "node.id": "7",
        "process.roles": "broker,controller",
        "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
        "controller.quorum.bootstrap.servers": "127.0.0.1:9093",
        "log.dirs": f"{directory}/first,{directory}/second",
        **{name.replace("_", "."): text for name, text in settings.items()},
    }
    path = directory / "server.properties"
    path.write_text("".join(f"{name}={text}\n" for name, text in given.items()))
    return path


def first_voters_in(directory: Path) -> VoterSet | None:
    return read_first_voters(OsDirectory(directory / "first").child("metadata"))


def directory_ids(directory: Path) -> list[str]:
    read = [read_meta_properties(OsDirectory(directory / name)) for name in ("first", "second")]
    return [properties["directory.id"] for properties in read if properties is not None]


def test_a_standalone_controller_is_the_only_voter(tmp_path: Path) -> None:
    done = kraftpy_format(write_controller(tmp_path), "--standalone")
    assert done.exit_code == 0, done.output
    first, second = directory_ids(tmp_path)
    assert first != second
    own = base64.urlsafe_b64decode(first + "==")
    assert first_voters_in(tmp_path) == VoterSet({7: "127.0.0.1:9093"}, {7: own})
    assert not (tmp_path / "second" / "metadata").exists()


@pytest.mark.parametrize(
    ("listeners", "advertised", "host"),
    [
        ("CONTROLLER://:9093", None, socket.gethostname()),
        ("CONTROLLER://0.0.0.0:9093", None, socket.gethostname()),
        ("CONTROLLER://:9093", "PLAINTEXT://a:1,CONTROLLER://quorum-7:9193", "quorum-7:9193"),
        ("CONTROLLER://[::1]:9093", None, "[::1]"),
    ],
)
def test_the_address_of_a_standalone_controller(
    tmp_path: Path, listeners: str, advertised: str | None, host: str
) -> None:
    settings = {"listeners": f"PLAINTEXT://127.0.0.1:9092,{listeners}"}
    if advertised is not None:
        settings["advertised.listeners"] = advertised
    done = kraftpy_format(write_controller(tmp_path, **settings), "-s")
    assert done.exit_code == 0, done.output
    found = first_voters_in(tmp_path)
    assert found is not None
    assert found.addresses == {7: host if host.endswith("9193") else f"{host}:9093"}


def test_initial_controllers_give_their_directories_their_ids(tmp_path: Path) -> None:
    done = kraftpy_format(write_controller(tmp_path), "--initial-controllers", FIRST)
    assert done.exit_code == 0, done.output
    assert directory_ids(tmp_path)[0] == "JEXY6aqzQY-32P5TStzaFg"
    found = first_voters_in(tmp_path)
    assert found is not None
    assert found.addresses == {7: "127.0.0.1:9093", 8: "[::1]:9093"}
    assert found.directories[8] == base64.urlsafe_b64decode("MvDxzVmcRsaTz33bUuRU6A==")


def test_without_initial_controllers_a_node_knows_no_voters(tmp_path: Path) -> None:
    assert kraftpy_format(write_controller(tmp_path), "--no-initial-controllers").exit_code == 0
    assert first_voters_in(tmp_path) == VoterSet({})


def test_a_broker_keeps_no_voters(tmp_path: Path) -> None:
    path = write_controller(tmp_path, process_roles="broker", listeners="PLAINTEXT://127.0.0.1:9092")
    done = kraftpy_format(path, "--initial-controllers", FIRST)
    assert done.exit_code == 0, done.output
    assert "--initial-controllers has no effect: this node is not a controller" in done.output
    assert directory_ids(tmp_path)[0] != "JEXY6aqzQY-32P5TStzaFg"
    assert not (tmp_path / "first" / "metadata").exists()


def test_a_node_of_configured_voters_is_formatted_as_before(tmp_path: Path) -> None:
    path = write_controller(tmp_path, controller_quorum_voters="7@127.0.0.1:9093")
    for arguments in ((), ("-N", "-g")):
        assert kraftpy_format(path, *arguments).exit_code == 0
        assert first_voters_in(tmp_path) is None


NEITHER = (
    "Because controller.quorum.voters is not set on this controller, you must specify one of the following: "
    "--standalone, --initial-controllers, or --no-initial-controllers."
)
BOTH = (
    "You cannot specify controller.quorum.voters and format the node with --initial-controllers or --standalone. If "
    "you want to use dynamic quorum, please remove controller.quorum.voters and specify "
    "controller.quorum.bootstrap.servers instead."
)
VOTERS = {"controller_quorum_voters": "7@127.0.0.1:9093"}
BROKER = {"process_roles": "broker", "listeners": "PLAINTEXT://127.0.0.1:9092"}


@pytest.mark.parametrize(
    ("settings", "arguments", "message"),
    [
        ({}, (), NEITHER),
        (VOTERS, ("--standalone",), BOTH),
        (VOTERS, ("--initial-controllers", FIRST), BOTH),
        (BROKER, ("--standalone",), "You can only use --standalone on a controller."),
        ({"listeners": "PLAINTEXT://127.0.0.1:9092"}, ("--standalone",), "No controller listeners found."),
        (
            {"controller_quorum_bootstrap_servers": ""},
            ("--no-initial-controllers",),
            "If using process.roles, either controller.quorum.bootstrap.servers must contain the set of bootstrap "
            "controllers or controller.quorum.voters must contain a parseable set of controllers.",
        ),
        ({}, ("-I", ""), "No voters given."),
        ({}, ("-I", "7"), "No @ found in dynamic voter string."),
        ({}, ("-I", "@a"), "Invalid @ at beginning of dynamic voter string."),
        ({}, ("-I", "x@a"), "Failed to parse node id in dynamic voter string."),
        ({}, ("-I", "-1@a:1:x"), "Invalid negative node id -1 in dynamic voter string."),
        ({}, ("-I", "7@"), "No hostname found after node id."),
        ({}, ("-I", "7@[::1"), "Hostname began with left bracket, but no right bracket was found."),
        ({}, ("-I", "7@a"), "No colon following hostname could be found."),
        ({}, ("-I", "7@[::1]9093"), "Port section must start with a colon."),
        ({}, ("-I", "7@a:1"), "No colon following port could be found."),
        ({}, ("-I", "7@a:x:y"), "Failed to parse port in dynamic voter string."),
        ({}, ("-I", "7@a:65536:y"), "Invalid port 65536 in dynamic voter string."),
        ({}, ("-I", "7@a:1:y"), "Failed to parse directory ID in dynamic voter string."),
        ({}, ("-I", f"7@a:1:{'A' * 22}"), "Failed to parse directory ID in dynamic voter string."),
        ({}, ("-I", f"{FIRST},7@b:1:JEXY6aqzQY-32P5TStzaFg"), "Node id 7 was specified more than once."),
    ],
)
def test_kafkas_messages_about_first_voters(
    tmp_path: Path, settings: dict[str, str], arguments: tuple[str, ...], message: str
) -> None:
    done = kraftpy_format(write_controller(tmp_path, **settings), *arguments)
    assert done.exit_code == 1
    assert message in done.output
    assert not (tmp_path / "first").exists()


def test_one_of_the_three_options_is_given(tmp_path: Path) -> None:
    done = kraftpy_format(write_controller(tmp_path), "--standalone", "-I", FIRST)
    assert done.exit_code == 2
    assert "argument --initial-controllers/-I: not allowed with argument --standalone/-s" in done.output


def test_a_random_id_can_be_that_of_a_cluster_or_a_directory() -> None:
    ids = {CliRunner().invoke(cli, ["format", "--random-uuid"]).output.strip() for _ in range(3)}
    assert len(ids) == 3
    assert all(len(base64.urlsafe_b64decode(each + "==")) == 16 for each in ids)
