"""Attacks on the transport `tcp`: by who does not know the token, by who changes what is sent, and by a follower."""

import contextlib
import socket
import ssl
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from zkdv import framing
from zkdv.control import HostControl, Tcp, _tcp_messages, _tcp_owner
from zkdv.control._tcp_messages import Claim

TOKEN = "a token that the tests know"  # noqa: S105
OTHER_TOKEN = "another token, of enough signs"  # noqa: S105
ENOUGH_SECONDS = 120.0
SIZES = {"sends": _tcp_messages.FROM_FOLLOWER_BYTES, "reads": _tcp_messages.FROM_OWNER_BYTES}


@pytest.fixture
def controls():
    with contextlib.ExitStack() as stack:

        def open_control(rank=0, size=2, **options):
            options = {"token": TOKEN, "timeout": ENOUGH_SECONDS, "transport": "tcp"} | options
            return stack.enter_context(HostControl(rank, size, **options))

        yield open_control


def exchange(controls, key="round", value="decided"):
    """One round on all controls; returns what each got."""
    with ThreadPoolExecutor(len(controls)) as pool:
        return [answer.result() for answer in [pool.submit(control.exchange, key, value) for control in controls]]


def connect(address):
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout=ENOUGH_SECONDS)


def read(connection, length):
    data = b""
    while len(data) < length:
        part = connection.recv(length - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def at_its_end(connection):
    """Whether the other side drops the connection."""
    try:
        while connection.recv(4096):
            pass
    except ConnectionError:
        pass
    return True


@pytest.fixture
def insiders():
    with contextlib.ExitStack() as stack:

        def join(address, **claim):
            insider = Insider(address, **claim)
            stack.callback(insider.socket.close)
            return insider

        yield join


class Insider:
    """A follower that knows the token, and says what it likes."""

    def __init__(self, address, rank=1, size=2, instance=b"insider's control"[:16], token=TOKEN):
        self.socket = connect(address)
        bound = framing.socket_address(self.socket.getpeername())
        initiator = framing.Initiator(token.encode(), bound, Claim(rank, size, instance).pack(), **SIZES)
        self.hello = initiator.hello(read(self.socket, framing.CHALLENGE_BYTES))
        self.socket.sendall(self.hello)
        self.sealer, self.verifier = initiator.finish(read(self.socket, framing.ANSWER_BYTES))
        self.welcome = self.read()

    def read(self):
        header = read(self.socket, framing.HEADER_BYTES)
        return self.verifier.open(read(self.socket, self.verifier.body_bytes(header)))


class FalseOwner:
    """Something that listens, and answers a follower with `behave(connection, bound address)`."""

    def __init__(self, behave):
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.address = framing.socket_address(self.listening.getsockname())
        self.heard = b""
        self._behave = behave
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        connection, _ = self.listening.accept()
        with connection, contextlib.suppress(OSError, EOFError):
            connection.settimeout(ENOUGH_SECONDS)
            self._behave(self, connection)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._thread.join()
        self.listening.close()


def accept(owner, connection):
    """The honest handshake, by who knows the token."""
    acceptor = framing.Acceptor(TOKEN.encode(), owner.address, sends=SIZES["reads"], reads=SIZES["sends"])
    connection.sendall(acceptor.challenge)
    hello = read(connection, framing.HELLO_BYTES)
    owner.heard += hello
    _, answer, sealer, verifier = acceptor.answer(hello)
    connection.sendall(answer + sealer.seal(_tcp_messages.WELCOME))
    want = read(connection, framing.HEADER_BYTES)
    want += read(connection, verifier.body_bytes(want))
    owner.heard += want
    return sealer


def test_wrong_token_is_refused_and_the_others_go_on(controls):
    owner = controls()
    with pytest.raises(
        RuntimeError, match=r"rank 1 cannot join at .*: .*the tokens or the addresses differ"
    ) as refused:
        controls(1, address=owner.address, token=OTHER_TOKEN)
    assert OTHER_TOKEN not in str(refused.value)
    assert TOKEN not in str(refused.value)
    assert exchange([owner, controls(1, address=owner.address)]) == ["decided"] * 2


def test_replayed_handshake_is_refused(controls, insiders):
    owner = controls()
    hello = insiders(owner.address).hello
    with connect(owner.address) as replaying:
        read(replaying, framing.CHALLENGE_BYTES)
        replaying.sendall(hello)
        assert read(replaying, framing.ANSWER_BYTES)[:1] == framing.REFUSED
        assert at_its_end(replaying)


def test_reflected_challenge_and_proof_are_refused(controls):
    owner = controls()
    with connect(owner.address) as reflecting:
        challenge = read(reflecting, framing.CHALLENGE_BYTES)
        reflecting.sendall((challenge * 3)[: framing.HELLO_BYTES])
        assert read(reflecting, framing.ANSWER_BYTES) == framing.REFUSED.ljust(framing.ANSWER_BYTES, b"\0")

    def reflect(owner, connection):
        connection.sendall(b"zkdvctl1".ljust(framing.CHALLENGE_BYTES, b"\0"))
        hello = read(connection, framing.HELLO_BYTES)
        owner.heard = hello
        connection.sendall(framing.ACCEPTED + hello[-framing.TAG_BYTES :])

    with FalseOwner(reflect) as false, pytest.raises(RuntimeError, match="does not know the token"):
        controls(1, address=false.address)
    assert TOKEN.encode() not in false.heard


def test_relayed_handshake_is_refused_since_it_names_the_address(controls):
    owner = controls()

    def relay(_, connection):
        with connect(owner.address) as onward:
            connection.sendall(read(onward, framing.CHALLENGE_BYTES))
            onward.sendall(read(connection, framing.HELLO_BYTES))
            connection.sendall(read(onward, framing.ANSWER_BYTES))

    with FalseOwner(relay) as false, pytest.raises(RuntimeError, match="the tokens or the addresses differ"):
        controls(1, address=false.address)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda frame: frame[:6] + bytes([frame[6] ^ 1]) + frame[7:], "not authentic"),
        (lambda frame: frame[:-1] + bytes([frame[-1] ^ 1]), "not authentic"),
        (lambda frame: struct.pack(">I", 0xFFFFFFFF) + frame[4:], "4294967295 bytes; the limit is 65537"),
        (lambda frame: frame[:-1], "its connection broke"),
    ],
    ids=["payload", "tag", "length", "truncated"],
)
def test_changed_frame_is_refused_by_a_follower(controls, change, message):
    def decide(owner, connection):
        sealer = accept(owner, connection)
        connection.sendall(change(sealer.seal(_tcp_messages.DECISION + b'"changed"')))

    with FalseOwner(decide) as false:
        follower = controls(1, address=false.address)
        with pytest.raises(RuntimeError, match=rf"rank 1 of 2, round 'round': .*{message}"):
            follower.exchange("round")
    assert TOKEN.encode() not in false.heard


def test_decision_of_an_earlier_round_is_not_to_be_replayed_to_a_follower(controls):
    def decide(owner, connection):
        frame = accept(owner, connection).seal(_tcp_messages.DECISION + b"1")
        connection.sendall(frame)
        connection.sendall(frame)
        at_its_end(connection)

    with FalseOwner(decide) as false:
        follower = controls(1, address=false.address)
        assert follower.exchange("first") == 1
        with pytest.raises(RuntimeError, match=r"round 'second': .*not authentic"):
            follower.exchange("second")


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (lambda frame: frame[:5] + bytes([frame[5] ^ 1]) + frame[6:], "not authentic"),
        (lambda frame: frame + frame, "not authentic"),
        (lambda frame: struct.pack(">I", 0xFFFFFFFF) + frame[4:], "4294967295 bytes; the limit is 513"),
        (lambda frame: frame[:-1], "its connection broke"),
    ],
    ids=["changed", "replayed", "length", "truncated"],
)
def test_changed_frame_is_refused_by_the_owner_and_the_rank_named(controls, insiders, sent, message):
    owner = controls()
    insider = insiders(owner.address)
    insider.socket.sendall(sent(insider.sealer.seal(_tcp_messages.WANT + b"round")))
    insider.socket.shutdown(socket.SHUT_WR)
    assert at_its_end(insider.socket)
    with pytest.raises(RuntimeError, match=rf"rank 0 of 2, round 'round': rank 1 is gone: .*{message}"):
        owner.exchange("round", 1)


@pytest.mark.parametrize("payload", [b"", b"?", b"A", b"W\xff", b"D1"])
def test_message_that_does_not_belong_there_ends_the_rank_alone(controls, insiders, payload):
    owner = controls()
    insider = insiders(owner.address)
    insider.socket.sendall(insider.sealer.seal(payload))
    assert at_its_end(insider.socket)
    with pytest.raises(RuntimeError, match="rank 1 is gone"):
        owner.exchange("round", 1)


def test_second_process_with_a_rank_is_refused_and_the_first_goes_on(controls):
    owner = controls()
    first = controls(1, address=owner.address)
    with pytest.raises(RuntimeError, match="rank 1 is taken by another process"):
        controls(1, address=owner.address)
    assert exchange([owner, first]) == ["decided"] * 2


def test_follower_of_a_run_of_another_size_is_refused(controls, insiders):
    owner = controls()
    for rank, size in ((1, 3), (2, 3)):
        with pytest.raises(RuntimeError, match=f"the run has 2 processes, not rank {rank} of {size}"):
            controls(rank, size, address=owner.address)
    for rank in (0, 2, 0xFFFFFFFF):
        assert b"the run has 2 processes" in insiders(owner.address, rank=rank).welcome


def test_slow_and_silent_strangers_are_dropped_and_hold_nobody_up(controls, monkeypatch):
    owner = controls()
    slow, silent = connect(owner.address), connect(owner.address)
    with slow, silent:
        read(slow, framing.CHALLENGE_BYTES)
        slow.sendall(b"z")
        follower = controls(1, address=owner.address)
        assert exchange([owner, follower]) == ["decided"] * 2
    monkeypatch.setattr(_tcp_messages, "HANDSHAKE_SECONDS", 0.2)
    hurried = controls()
    with connect(hurried.address) as slow:
        slow.sendall(b"z")
        assert at_its_end(slow)


def test_slow_frame_is_given_up(controls, insiders, monkeypatch):
    monkeypatch.setattr(_tcp_messages, "FRAME_SECONDS", 0.2)
    owner = controls()
    insider = insiders(owner.address)
    insider.socket.sendall(b"\0")
    assert at_its_end(insider.socket)
    with pytest.raises(RuntimeError, match=r"rank 1 is gone: its connection broke \(TimeoutError\)"):
        owner.exchange("round", 1)


def test_flood_of_connections_drops_the_oldest_strangers_and_no_follower(controls, monkeypatch):
    monkeypatch.setattr(_tcp_owner, "STRANGERS", 8)
    owner = controls(size=3)
    first = controls(1, 3, address=owner.address)
    with contextlib.ExitStack() as stack:
        flood = [stack.enter_context(connect(owner.address)) for _ in range(40)]
        second = controls(2, 3, address=owner.address)
        assert exchange([owner, first, second]) == ["decided"] * 3
        assert all(at_its_end(stranger) for stranger in flood[:32])


def test_follower_that_does_not_read_holds_up_no_other(controls, insiders):
    owner = controls(size=3, timeout=5.0)
    deaf = insiders(owner.address, rank=1, size=3)
    deaf.socket.sendall(deaf.sealer.seal(_tcp_messages.WANT + b"round"))
    follower = controls(2, 3, address=owner.address)
    with ThreadPoolExecutor(2) as pool:
        decided = pool.submit(owner.exchange, "round", "x" * 60_000)
        assert pool.submit(follower.exchange, "round").result() == "x" * 60_000
        with pytest.raises(TimeoutError, match="round 'round': no answer from rank 1 in 5 s"):
            decided.result()


def test_silent_owner_is_given_up_in_time(controls):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with pytest.raises(TimeoutError, match=r"rank 1: no owner at 127.0.0.1:.* in time"):
            controls(1, address=framing.socket_address(silent.getsockname()), timeout=0.5)
        assert time.monotonic() - began < ENOUGH_SECONDS


@pytest.mark.skipif(not hasattr(socket, "TCP_KEEPIDLE"), reason="the system has no such options")
def test_both_ends_look_within_minutes_whether_the_other_host_is_there(controls):
    owner = controls()
    follower = controls(1, address=owner.address)
    exchange([owner, follower])
    [connected] = follower._transport._open
    [accepted] = owner._transport._connections
    for end in (connected._socket, accepted.writer.get_extra_info("socket")):
        assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0
        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
        idle, every, tries = (
            end.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert idle + every * tries <= 120


def test_what_speaks_another_protocol_is_said_to(controls):
    def greet(_, connection):
        connection.sendall(b"SSH-2.0-OpenSSH_9.9".ljust(framing.CHALLENGE_BYTES))

    with FalseOwner(greet) as false, pytest.raises(RuntimeError, match="speaks another protocol"):
        controls(1, address=false.address)


def certificate(folder):
    """A self-signed certificate for 127.0.0.1: paths of certificate and key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "owner")])
    today = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(today - timedelta(days=1))
        .not_valid_after(today + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder.mkdir()
    (folder / "certificate.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder / "certificate.pem", folder / "key.pem"


def test_tls_carries_rounds_and_refuses_other_certificates_and_plain_sockets(controls, tmp_path):
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trusted, key = certificate(tmp_path / "trusted")
    server.load_cert_chain(trusted, key)
    owner = controls(transport=Tcp(tls=server))
    other, _ = certificate(tmp_path / "other")
    with pytest.raises(RuntimeError, match=r"no TLS with the owner at .*CERTIFICATE_VERIFY_FAILED"):
        controls(1, address=owner.address, transport=Tcp(tls=ssl.create_default_context(cafile=other)))
    with pytest.raises(TimeoutError, match="no owner at"):
        controls(1, address=owner.address, timeout=1.0)
    client = ssl.create_default_context(cafile=trusted)
    with pytest.raises(RuntimeError, match="the tokens or the addresses differ"):  # TLS alone is not enough.
        controls(1, address=owner.address, transport=Tcp(tls=client), token=OTHER_TOKEN)
    follower = controls(1, address=owner.address, transport=Tcp(tls=client))
    for number in range(3):
        assert exchange([owner, follower], f"round-{number}", "x" * 60_000) == ["x" * 60_000] * 2
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(follower.exchange, "waiting")
        owner.close()
        with pytest.raises(RuntimeError, match="rank 0"):
            waiting.result()
