"""The process in which an audit executes a stranger's program may do anything; whoever asks it gets an answer."""

import sys

import pytest

from zkdv import auditing
from zkdv.auditing import _process
from zkdv.auditing._process import ReplayProcess, ReplayProcessDiedError

ANSWERS = "import sys\nfor line in sys.stdin: print('{\"heard\": ' + str(len(line)) + '}', flush=True)"


@pytest.fixture
def worker(monkeypatch):
    """Make a process that runs some code in place of the worker's."""

    def make(code, **options):
        monkeypatch.setattr(_process, "WORKER", [sys.executable, "-c", code])
        return ReplayProcess(**options)

    return make


def test_requests_are_answered_one_after_the_other(worker):
    with worker(ANSWERS) as process:
        assert not process.running
        assert process.ask("open", dict) == {"heard": 15}
        assert process.ask("step", dict, seq=7) == {"heard": 25}
        assert process.running


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "was ended by SIGSEGV"),
        ("import sys; print('out of luck', file=sys.stderr); sys.exit(3)", r"ended with code 3 \(out of luck\)"),
        ("print('no JSON', flush=True); import sys; sys.stdin.read()", "gave an answer that is none"),
        ("print('[1]', flush=True); import sys; sys.stdin.read()", "gave an answer that is none"),
    ],
)
def test_a_process_that_dies_or_babbles_is_reported_and_another_one_starts(worker, code, message):
    with worker(code) as process:
        with pytest.raises(ReplayProcessDiedError, match=message):
            process.ask("open", dict)
        assert not process.running
        _process.WORKER[:] = [sys.executable, "-c", ANSWERS]
        assert process.ask("open", dict) == {"heard": 15}


@pytest.mark.parametrize(
    "read",
    [
        lambda answer: answer["digests"],
        lambda answer: bytes.fromhex(answer["heard"]),
        lambda answer: answer["heard"]["digests"],
        lambda answer: answer["heard"].items(),
    ],
)
def test_an_answer_that_can_not_be_read_is_no_answer(worker, read):
    with worker(ANSWERS) as process:
        with pytest.raises(ReplayProcessDiedError, match="gave an answer that is none"):
            process.ask("step", read)
        assert not process.running


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import sys\nsys.stdin.readline()\nwhile True: pass",
        "import sys, time\nsys.stdout.write('{'); sys.stdout.flush()\ntime.sleep(10**6)",
    ],
)
def test_a_program_that_never_ends_is_ended(worker, code):
    with worker(code, timeout=1.0) as process:
        with pytest.raises(ReplayProcessDiedError, match="gave no answer within 1 s and was ended"):
            process.ask("step", dict)
        assert not process.running


def test_an_answer_without_an_end_is_no_answer(worker, monkeypatch):
    monkeypatch.setattr(_process, "ANSWER_LIMIT_BYTES", 4096)
    code = "import sys\ntry:\n    while True: sys.stdout.write('x' * 1000)\nexcept OSError: pass"
    with worker(code) as process, pytest.raises(ReplayProcessDiedError, match="gave an answer that is none"):
        process.ask("open", dict)


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), float("inf")])
def test_a_timeout_is_a_positive_number(tmp_path, timeout):
    with pytest.raises(ValueError, match="it is a number of seconds above 0"):
        auditing.audit(tmp_path, timeout=timeout)
