"""Identity keys: found, created once, kept by plugins; public keys as verifiers give them."""

import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from zkdv import identity, plugins
from zkdv.errors import ZKDVError


def pem(key):
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def public_pem(key):
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


@pytest.fixture(autouse=True)
def configuration(monkeypatch, tmp_path):
    """An empty user configuration folder."""
    folder = tmp_path / "configuration"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    monkeypatch.delenv("ZKDV_IDENTITY", raising=False)
    return folder


@pytest.fixture
def key_file(tmp_path):
    key = Ed25519PrivateKey.generate()
    path = tmp_path / "key.pem"
    path.write_bytes(pem(key))
    path.chmod(0o600)
    return key, path


def test_first_use_creates_the_users_own_key_and_says_so_in_one_line(configuration, capsys):
    first = identity.load()
    path = configuration / "zkdv" / "identity.pem"
    assert identity.default_path() == path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    notice = capsys.readouterr()
    assert notice.out == ""
    assert notice.err == (
        f"zkdv: created your identity key {path} (public key {first.public_key.hex()}); "
        "keep it private, and a copy of it safe\n"
    )
    assert identity.load().public_key == first.public_key
    assert capsys.readouterr().err == ""
    assert list(path.parent.iterdir()) == [path]


def test_created_key_is_read_by_another_library(configuration):
    created = identity.load()
    key = serialization.load_pem_private_key((configuration / "zkdv" / "identity.pem").read_bytes(), None)
    assert isinstance(key, Ed25519PrivateKey)
    assert key.public_key().public_bytes_raw() == created.public_key
    assert public_pem(key).decode() == created.public_pem()


def test_processes_that_start_together_share_one_key(configuration):
    def public_key(_):
        code = "from zkdv import identity; print(identity.load().public_key.hex())"
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    with ThreadPoolExecutor(6) as pool:
        assert len(set(pool.map(public_key, range(6)))) == 1
    assert [path.name for path in (configuration / "zkdv").iterdir()] == ["identity.pem"]


def test_key_made_by_another_library_is_loaded(key_file):
    key, path = key_file
    assert identity.load(path).public_key == key.public_key().public_bytes_raw()
    assert identity.load(str(path)).public_key == key.public_key().public_bytes_raw()


def test_environment_variable_names_the_key_and_creates_nothing(key_file, monkeypatch, configuration):
    key, path = key_file
    monkeypatch.setenv("ZKDV_IDENTITY", str(path))
    assert identity.load().public_key == key.public_key().public_bytes_raw()
    monkeypatch.setenv("ZKDV_IDENTITY", str(path.with_name("missing.pem")))
    message = r"no identity key at .*missing\.pem.*\(ZKDV_IDENTITY names it\); `zkdv key new PATH` creates one"
    with pytest.raises(ZKDVError, match=message):
        identity.load()
    assert not configuration.exists()
    assert not path.with_name("missing.pem").exists()


def test_configured_key_comes_before_the_environment_variable(key_file, monkeypatch):
    key, path = key_file
    monkeypatch.setenv("ZKDV_IDENTITY", "/nowhere/at/all.pem")
    assert identity.load(path).public_key == key.public_key().public_bytes_raw()


@pytest.mark.parametrize("content", [b"", b"no key at all", pem(X25519PrivateKey.generate())])
def test_file_without_a_signing_key_is_refused_with_its_path(tmp_path, content):
    path = tmp_path / "key.pem"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ZKDVError, match=r"key\.pem holds no Ed25519 private key in PKCS#8 PEM form"):
        identity.load(path)


def test_key_that_others_can_read_is_refused(key_file):
    _, path = key_file
    path.chmod(0o640)
    with pytest.raises(ZKDVError, match=r"open to others than its owner \(mode 0640\): run `chmod 600"):
        identity.load(path)


def test_new_key_never_replaces_a_file(tmp_path):
    path = tmp_path / "deep" / "key.pem"
    created = identity.create(path)
    content = path.read_bytes()
    with pytest.raises(ZKDVError, match=r"key\.pem is there already and is not overwritten"):
        identity.create(path)
    assert path.read_bytes() == content
    assert identity.load(path).public_key == created.public_key


def test_key_folder_that_cannot_be_made_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ZKDVError, match="can't be created"):
        identity.create(tmp_path / "file" / "folder" / "key.pem")


def test_own_key_that_cannot_be_created_sends_to_another_place(monkeypatch):
    monkeypatch.delenv("ZKDV_IDENTITY", raising=False)
    monkeypatch.setattr(identity, "default_path", lambda: Path("/proc/identity.pem"))
    with pytest.raises(ZKDVError, match=r"can't be created: .*; `zkdv key new PATH` creates one elsewhere, for ZKDV_I"):
        identity.load()


def test_file_system_that_takes_no_files_is_said():
    # Refuses every user, the administrator too.
    with pytest.raises(ZKDVError, match="can't be created"):
        identity.create(Path("/proc/key.pem"))


class Token:
    """A signer as a plugin has it."""

    def __init__(self, argument):
        if argument == "absent":
            raise LookupError("no such key; plug the token in")
        self.key = Ed25519PrivateKey.from_private_bytes(argument.encode().ljust(32, b"."))
        self.public_key = self.key.public_key().public_bytes_raw()

    def sign(self, message):
        return self.key.sign(message)


class ShortKey(Token):
    def __init__(self, argument):
        super().__init__(argument)
        self.public_key = self.public_key[:31]


not_callable = 3


@pytest.fixture
def signers(monkeypatch):
    monkeypatch.setitem(sys.modules, "signers_of_this_test", sys.modules[__name__])
    declared = tuple(
        plugins.Declaration("zkdv_signers", name, f"signers_of_this_test:{target}", "acme-signers", "main")
        for name, target in (("token", "Token"), ("short", "ShortKey"), ("number", "not_callable"))
    )
    found = plugins.Registry((plugins.Plugin("acme-signers", "1.0", "main", "acme", declared),))
    monkeypatch.setattr(plugins, "registry", lambda: found)


@pytest.mark.usefixtures("signers")
def test_signer_plugin_gets_the_argument_and_gives_the_key():
    assert identity.load("token:one").public_key == Token("one").public_key
    assert identity.load("token:two:with:colons").public_key == Token("two:with:colons").public_key


@pytest.mark.usefixtures("signers")
@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("token:absent", r"the signer 'token' of acme-signers does not give the key 'absent': no such key; plug"),
        ("short:one", r"the signer 'short' of acme-signers does not give the key 'one': "),
        ("number:one", r"the signer 'number' of acme-signers is 3, which is not callable"),
        ("other:one", r"no plugin declares 'other' in zkdv_signers \(declared: number, short, token\)"),
    ],
)
def test_signer_plugin_that_gives_no_key_is_named_with_its_distribution(reference, message):
    with pytest.raises(ZKDVError, match=message):
        identity.load(reference)


@pytest.mark.usefixtures("signers")
def test_path_object_and_path_with_a_folder_are_never_plugins(monkeypatch, tmp_path, key_file):
    key, path = key_file
    path.rename(tmp_path / "token:one")
    monkeypatch.chdir(tmp_path)
    assert identity.load("./token:one").public_key == key.public_key().public_bytes_raw()
    assert identity.load(Path("token:one")).public_key == key.public_key().public_bytes_raw()


def test_public_key_is_read_from_digits_bytes_and_file(tmp_path):
    key = Ed25519PrivateKey.generate()
    raw = key.public_key().public_bytes_raw()
    path = tmp_path / "public.pem"
    path.write_bytes(b"A line that says whose key this is.\n" + public_pem(key).replace(b"\n", b"\r\n"))
    for given in (raw, raw.hex(), raw.hex().upper(), path, str(path)):
        assert identity.parse_public_key(given) == raw


BODY = "MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE="


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"nothing", "holds no PEM block"),
        (pem(Ed25519PrivateKey.generate()), r"holds a PRIVATE KEY block, not a PUBLIC KEY; `zkdv key show` prints"),
        (public_pem(X25519PrivateKey.generate()), "holds a public key of another kind"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "holds a CERTIFICATE block"),
        (b"-----BEGIN PUBLIC KEY-----\n*\n-----END PUBLIC KEY-----\n", "is not base64"),
        (f"-----BEGIN PUBLIC KEY-----\n{BODY[:-4]}\n-----END PUBLIC KEY-----\n".encode(), "of another kind"),
        (
            f"-----BEGIN PUBLIC KEY-----\n{BODY}AAAA\n-----END PUBLIC KEY-----\n".encode(),
            "is not base64|of another kind",
        ),
        (b"\xff" * 100, "holds no PEM block"),
    ],
)
def test_file_without_an_ed25519_public_key_is_refused(tmp_path, content, message):
    path = tmp_path / "public.pem"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        identity.parse_public_key(path)


@pytest.mark.parametrize("given", ["ab" * 31, "ab" * 33, "zz" * 32, "missing.pem", b"short", "", "a\0b"])
def test_what_is_no_public_key_is_refused(given):
    with pytest.raises(ValueError, match="public key"):
        identity.parse_public_key(given)


def test_folder_is_no_public_key(tmp_path):
    with pytest.raises(ValueError, match="neither 64 hexadecimal digits nor a readable PEM file"):
        identity.parse_public_key(tmp_path)
