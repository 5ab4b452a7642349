"""Changed, cut and mixed bytes: whatever happens to a file, it never passes as what it is not."""

import os

import pytest
from forge import public
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from victims import Attacked

import zkdv

EXAMPLES = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
MUTATIONS = ("drop", "double", "swap", "cut", "flip", "foreign", "move")


@pytest.fixture
def verify(runs, folder):
    """Verify bytes as the records of the run `checked`."""
    run = runs["checked"]
    Attacked(run, run.data).write(folder)

    def verify(data, **options):
        (folder / "records.cborl").write_bytes(data)
        [report] = zkdv.verify(folder, **{"identity": public(run.identity)} | options).runs
        return report

    return verify


@EXAMPLES
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@example(place=0.0, bit=0)
@example(place=1 - 2**-53, bit=7)
def test_no_flipped_bit_passes(runs, verify, place, bit):
    run = runs["checked"]
    changed = bytearray(run.data)
    at = int(place * len(changed))
    changed[at] ^= 1 << bit
    report = verify(bytes(changed))
    # A last record that declares more bytes than there are is as good as torn.
    in_close = at >= len(run.data) - len(run.raw[-1])
    assert report.verdict == ("incomplete" if in_close and not report.violations else "failed")
    assert len({violation.code for violation in report.violations}) <= 1
    assert report.exit_code in {1, 3}


def test_no_flipped_bit_in_the_frames_passes(runs, verify):
    """Where lengths and headers stand."""
    run = runs["checked"]
    for number in (0, 1, 5, 7, len(run.raw) - 2):
        start = sum(map(len, run.raw[:number]))
        for bit in range(8 * 12):
            changed = bytearray(run.data)
            changed[start + bit // 8] ^= 1 << bit % 8
            report = verify(bytes(changed))
            assert report.verdict == "failed", (number, bit)
            assert len({violation.code for violation in report.violations}) == 1, (number, bit)


@EXAMPLES
@given(place=st.floats(0, 1, exclude_max=True))
def test_a_torn_transcript_is_verified_up_to_the_tear(runs, verify, place):
    run = runs["checked"]
    length = len(run.raw[0]) + int(place * (len(run.data) - len(run.raw[0])))
    whole = [number for number in range(len(run.raw)) if sum(map(len, run.raw[:number])) <= length][-1]
    report = verify(run.data[:length])
    assert (report.verdict, report.exit_code) == ("incomplete", 3)
    assert report.violations == ()
    assert not report.closed
    assert (report.records, report.torn_bytes) == (whole, length - sum(map(len, run.raw[:whole])))
    assert report.updates == sum(record.kind == "update" for record in run.records[:whole])


@pytest.mark.parametrize("tail", ["record", "close", "rest", "noise"])
def test_nothing_is_read_behind_a_tear_as_if_it_were_whole(runs, verify, tail):
    run = runs["checked"]
    for number in (1, 4, 5, 8, len(run.raw) - 1):
        kept = b"".join(run.raw[:number])
        for torn in (run.raw[number][:5], run.raw[number][:40], run.raw[number][:-1]):
            behind = {
                "record": run.raw[number],
                "close": run.raw[-1],
                "rest": b"".join(run.raw[number:]),
                "noise": os.urandom(40),
            }[tail]
            report = verify(kept + torn + behind)
            assert report.verdict == ("incomplete" if tail == "noise" and not report.violations else "failed")


@EXAMPLES
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(MUTATIONS), st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True)),
        min_size=1,
        max_size=6,
    )
)
def test_no_mixture_of_records_passes_but_the_run_itself(runs, verify, steps):
    """After damage much is not known any more; what follows must not be taken for good all the same."""
    run, other = runs["checked"], runs["sampled"]
    records = list(run.raw)
    for step, first, second in steps:
        if not records:
            break
        at, to = int(first * len(records)), int(second * len(records))
        match step:
            case "drop":
                del records[at]
            case "double":
                records.insert(to, records[at])
            case "swap":
                records[at], records[to] = records[to], records[at]
            case "cut":
                records[at] = records[at][: int(second * len(records[at]))]
            case "flip":
                changed = bytearray(records[at] or b"\0")
                changed[int(second * len(changed))] ^= 1
                records[at] = bytes(changed)
            case "foreign":
                records[at] = other.raw[int(second * len(other.raw))]
            case "move":
                records.insert(to, records.pop(at))
    data = b"".join(records)
    report = verify(data)
    if data == run.data:
        assert report.verdict == "passed"
    elif run.data.startswith(data) and len(data) >= len(run.raw[0]):
        assert report.verdict == "incomplete"
    else:
        assert report.verdict == "failed" or report.torn_bytes > 0
        assert report.verdict != "passed"
