"""The environment record: what it says, and what it must not."""

import getpass
import json
import os
import shutil
import socket
import subprocess
import sys
from importlib.metadata import distributions, version
from pathlib import Path

import blake3
import pytest

from zkdv import environment


def collected(**changes):
    arguments = {"framework": {"jax": "0.10.2"}, "devices": ["cpu", "cpu"]} | changes
    return environment.collect(**arguments)


def values(value):
    """Every plain value and every key."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield name
            yield from values(item)
    elif isinstance(value, list):
        for item in value:
            yield from values(item)
    else:
        yield value


def test_record_holds_only_what_the_grammar_has():
    record = collected()
    for value in values(record):
        assert type(value) in {str, int, float, bool, bytes}
    for value in values(record):
        if isinstance(value, str):
            value.encode()


def test_record_says_versions_devices_and_processor():
    record = collected()
    assert record["zkdv"] == version("zkdv-core")
    assert record["python"] == {
        "implementation": sys.implementation.name.replace("cpython", "CPython"),
        "version": sys.version.split()[0],
    }
    assert record["framework"] == {"jax": "0.10.2"}
    assert record["devices"] == ["cpu", "cpu"]
    assert record["cpu"]["count"] == os.cpu_count()
    assert record["cpu"]["affinity"] == len(os.sched_getaffinity(0))


def test_record_holds_no_path_host_user_or_secret(monkeypatch, tmp_path):
    monkeypatch.setenv("XLA_FLAGS", f"--xla_dump_to={tmp_path} --xla_cpu_enable_fast_math=false")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "10.1.2.3:1234")
    monkeypatch.setenv("SERVICE_TOKEN", "an-api-token-of-somebody")
    record = collected(flags=("XLA_FLAGS", "JAX_COORDINATOR_ADDRESS"))
    assert record["flags"]["XLA_FLAGS"] == "--xla_dump_to=… --xla_cpu_enable_fast_math=false"
    assert record["flags"]["JAX_COORDINATOR_ADDRESS"] == "…"
    assert record["flags"]["OMP_NUM_THREADS"] == "2"
    # Digests as hexadecimal digits, since any byte may happen to be a slash.
    texts = [value.hex() if isinstance(value, bytes) else str(value) for value in values(record)]
    forbidden = [str(tmp_path), str(Path.home()), socket.gethostname(), "an-api-token-of-somebody", "SERVICE_TOKEN"]
    for text in texts:
        assert not any(word in text for word in forbidden)
        assert "/" not in text
        assert text != getpass.getuser()


@pytest.mark.parametrize(
    ("value", "recorded"),
    [
        ("--a=1  --b=two", "--a=1 --b=two"),
        ("--dump=/home/somebody", "--dump=…"),
        ("/opt/flags.txt", "…"),
        (r"--dump=C:\Users\somebody", "--dump=…"),
        ("--at=somebody@host", "--at=…"),
        ("--at=host:8080", "--at=…"),
        ("--at=10.0.0.1", "--at=…"),
        ("/path=/other", "…"),
        ("\udcff", "?"),
        ("0.5 avx512_bf16", "0.5 avx512_bf16"),
    ],
)
def test_flags_lose_what_could_be_a_place(monkeypatch, value, recorded):
    monkeypatch.setenv("XLA_FLAGS", value)
    assert collected(flags=("XLA_FLAGS",))["flags"]["XLA_FLAGS"] == recorded


class Site:
    """A folder of installed distributions."""

    def __init__(self, path):
        self.path = path

    def add(self, name, version, record):
        info = self.path / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "RECORD").write_text(record)
        return self

    def digest(self):
        return environment.distributions_digest(distributions(path=[str(self.path)]))


WHEEL = "pack/__init__.py,sha256=AAAA,10\npack-1.0.dist-info/RECORD,,\n"


def test_installed_versions_leave_out_what_is_not_installed():
    assert environment.installed_versions(["numpy", "zkdv-is-not-this"]) == {"numpy": version("numpy")}


def test_distributions_digest_is_that_of_names_versions_and_files(tmp_path):
    site = Site(tmp_path).add("Acme_Pack", "1.0", WHEEL).add("other", "2.0", "")
    lines = "acme-pack\t1.0\nacme-pack\t1.0\tpack/__init__.py\tsha256=AAAA\nother\t2.0\n"
    assert site.digest() == blake3.blake3(lines.encode()).digest()


def test_distributions_digest_does_not_depend_on_the_installer_or_the_place(tmp_path):
    installed = (
        "../../../bin/pack,sha256=BBBB,200\npack/__pycache__/__init__.cpython-311.pyc,,\n"
        "pack-1.0.dist-info/INSTALLER,sha256=CCCC,4\n_pack.pth,sha256=DDDD,1\n"
    )
    plain = Site(tmp_path / "one").add("pack", "1.0", WHEEL).add("other", "2.0", "")
    elsewhere = Site(tmp_path / "two").add("other", "2.0", "").add("pack", "1.0", installed + WHEEL)
    assert plain.digest() == elsewhere.digest()


@pytest.mark.parametrize(
    ("name", "version", "record"),
    [
        ("pack", "1.1", WHEEL),
        ("pock", "1.0", WHEEL),
        ("pack", "1.0", WHEEL.replace("AAAA", "AAAB")),
        ("pack", "1.0", WHEEL.replace("pack/__init__.py", "pack/__init_.py")),
    ],
)
def test_distributions_digest_changes_with_name_version_and_every_file(tmp_path, name, version, record):
    digest = Site(tmp_path / "one").add("pack", "1.0", WHEEL).digest()
    assert Site(tmp_path / "two").add(name, version, record).digest() != digest


def test_a_leftover_without_metadata_does_no_harm(tmp_path):
    (tmp_path / "broken-1.0.dist-info").mkdir()
    assert Site(tmp_path).digest() == blake3.blake3(b"").digest()


def run_script(folder):
    script = folder / "train.py"
    script.write_text(
        "import json\nfrom zkdv import environment\n"
        "record = environment.collect(framework={}, devices=[])\n"
        "print(json.dumps({'script': record['script'].hex(), 'revision': record.get('revision')}))\n"
    )
    finished = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, cwd="/")
    assert finished.returncode == 0, finished.stderr
    return script, json.loads(finished.stdout)


def test_entry_script_is_recorded_by_its_digest(tmp_path):
    script, record = run_script(tmp_path)
    assert record["script"] == blake3.blake3(script.read_bytes()).hexdigest()
    assert record["revision"] is None


def test_interpreter_without_a_script_records_none():
    code = "from zkdv import environment; print('script' in environment.collect(framework={}, devices=[]))"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert finished.stdout.strip() == "False", finished.stderr


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not on PATH")
def test_revision_is_the_commit_of_the_scripts_folder_and_whether_it_was_changed(tmp_path):
    def git(*arguments):
        author = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.org")
        return subprocess.run(
            ["git", "-C", str(tmp_path), *author, *arguments], check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "--quiet")
    run_script(tmp_path)
    (tmp_path / "data.txt").write_text("one")
    git("add", "train.py", "data.txt")
    git("commit", "--quiet", "-m", "first")
    _, record = run_script(tmp_path)
    assert record["revision"] == {"system": "git", "commit": git("rev-parse", "HEAD"), "changed": False}
    (tmp_path / "data.txt").write_text("two")
    _, record = run_script(tmp_path)
    assert record["revision"]["changed"] is True


def test_instruction_sets_are_read_from_the_first_processor(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(
        "processor: 0\nflags\t\t: fpu sse2 avx avx512f hypervisor smep fma\n\nprocessor: 1\nflags\t\t: avx2\n"
    )
    assert environment._isa_flags(cpuinfo) == ("avx", "avx512f", "fma", "sse2")
    cpuinfo.write_text("Features\t: fp asimd evtstrm sve2 cpuid\n")
    assert environment._isa_flags(cpuinfo) == ("asimd", "sve2")
    assert environment._isa_flags(tmp_path / "none") == ()
