"""The transport against a real server: what any transport must do, and what it leaves behind."""

import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from zkdv.control import HostControl
from zkdv.testing import TransportConformance

SERVER = shutil.which("redis-server")
pytestmark = pytest.mark.skipif(SERVER is None, reason="needs redis-server: apt-get install redis-server")

TOKEN, PASSWORD = "a token that the tests know", "a password for the server"


class Server:
    """A server behind a socket file, with a password, that writes nothing to disk."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="redis-"))  # The name of a socket may have 107 bytes.
        self.address = f"unix://{self.folder / 'socket'}"
        self.process = subprocess.Popen(
            [SERVER, "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=self.folder, text=True
        )
        configuration = f'port 0\nunixsocket {self.folder / "socket"}\nrequirepass "{PASSWORD}"\nsave ""\n'
        self.process.stdin.write(configuration)
        self.process.stdin.close()
        deadline = time.monotonic() + 60
        while not (self.folder / "socket").exists():
            assert self.process.poll() is None, "redis-server has ended"
            assert time.monotonic() < deadline, "redis-server does not listen"
            time.sleep(0.01)

    def keys(self):
        import redis

        with redis.Redis.from_url(self.address, password=PASSWORD) as client:
            return {key: (client.lrange(key, 0, -1), client.ttl(key)) for key in client.scan_iter()}

    def stop(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("REDIS_PASSWORD", PASSWORD)
    running = Server()
    yield running
    running.stop()


class TestConformance(TransportConformance):
    transport = "redis"

    @classmethod
    def setup_class(cls):
        cls.server = Server()
        cls.address = cls.server.address
        cls.environment = {"REDIS_PASSWORD": PASSWORD}

    @classmethod
    def teardown_class(cls):
        super().teardown_class()
        cls.server.stop()


def test_server_keeps_nothing_of_a_round_no_secret_and_nothing_for_ever(server):
    options = {"address": server.address, "token": TOKEN, "transport": "redis", "timeout": 120}
    with HostControl(0, 2, **options) as owner, HostControl(1, 2, **options) as follower, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(owner.exchange, "waiting", 1)
        assert follower.exchange("waiting") == 1
        waiting.result()
        assert server.keys() == {}
    left = server.keys()
    assert len(left) == 2  # One farewell for each rank.
    assert all(0 < lifetime <= 24 * 60 * 60 for _, lifetime in left.values())
    assert TOKEN not in repr(left)


def test_what_is_wrong_with_the_server_is_said(server):
    with pytest.raises(ValueError, match="give the server's password in the environment variable REDIS_PASSWORD"):
        HostControl(0, 2, transport="redis", address="redis://:password@127.0.0.1:6379/0")
    control = HostControl(0, 2, transport="redis", address=server.address, timeout=120)
    server.process.kill()
    server.process.wait()
    with pytest.raises(RuntimeError, match=r"round 'round': cannot (write to|connect to) the store"):
        control.exchange("round", 1)


def test_wrong_password_is_said_and_not_shown(server, monkeypatch):
    monkeypatch.setenv("REDIS_PASSWORD", "another password")
    with pytest.raises(RuntimeError, match=r"cannot connect to the store.*Error") as refused:
        HostControl(0, 2, transport="redis", address=server.address, timeout=5)
    assert "another password" not in str(refused.value)
