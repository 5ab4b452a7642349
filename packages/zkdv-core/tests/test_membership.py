"""Proofs of membership over transcripts: made, held against them, and refused where anything is another."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from zkdv_reference import batches as reference_batches
from zkdv_reference import cbor as reference_cbor
from zkdv_reference import membership as reference

import zkdv
from zkdv import _native, membership
from zkdv.cli import main
from zkdv.membership import Claim, MembershipProof
from zkdv.verified import UnverifiedRunError

ROWS, WIDTH, WINDOW = 4, 5, 4


def images(update):
    return np.random.default_rng(update).normal(size=(ROWS, WIDTH)).astype(np.float32)


def words_of(update):
    return images(update).view(np.uint32)


ABSENT = np.array([1, 2, 3, 4, 5], np.uint32)


@pytest.fixture
def proof(write):
    """A run whose update u consumed `images(u)`."""
    return write("proof", batches=[words_of(update) for update in range(3)]).folder


@pytest.mark.parametrize("row", range(ROWS))
def test_a_row_is_shown_and_holds(proof, row):
    made = membership.prove(proof, 1, words_of(1), row=row)
    assert (made.claim, made.update, made.row, made.position) == (Claim.ROW, 1, row, 0)
    assert made.words == tuple(words_of(1)[row].tolist())
    report = membership.verify(proof, made.data)
    assert (report.holds, report.exit_code, report.reason, report.abandoned) == (True, 0, None, False)


@pytest.mark.parametrize("length", [1, 3, 4])
def test_a_window_of_any_length_is_shown_where_it_stands(proof, length):
    made = membership.prove(proof, 2, words_of(2), words=words_of(2)[3, 1 : 1 + length])
    assert (made.claim, made.row, made.position) == (Claim.WINDOW, 3, 1)
    assert membership.verify(proof, made).holds


def test_words_that_are_a_whole_row_are_shown_as_one(proof):
    assert membership.prove(proof, 0, words_of(0), words=words_of(0)[2]).claim is Claim.ROW


@pytest.mark.parametrize("sought", [ABSENT, ABSENT[:4], np.arange(30, dtype=np.uint32), words_of(1)[0]])
def test_words_that_are_absent_are_shown_to_be(proof, sought):
    made = membership.prove(proof, 0, words_of(0), words=sought)
    assert (made.claim, made.row, made.position) == (Claim.ABSENT, None, None)
    assert made.words == tuple(sought.tolist())
    assert membership.verify(proof, made, words=sought).holds


def test_absence_that_cannot_be_shown_is_said_to_be(write):
    rows = np.array([[1, 2, 3, 4, 9], [2, 3, 4, 5, 9], [0] * 5, [0] * 5], np.uint32)
    folder = write("proof", batches=[rows] * 3).folder
    with pytest.raises(zkdv.ZKDVError, match="windows of this batch have 4 words"):
        membership.prove(folder, 0, rows, words=np.array([7, 7, 7], np.uint32))
    with pytest.raises(zkdv.ZKDVError, match="each window of these words stands somewhere"):
        membership.prove(folder, 0, rows, words=np.array([1, 2, 3, 4, 5], np.uint32))


def test_a_proof_holds_for_its_own_run_and_update_alone(proof, write):
    other = write("other", batches=[words_of(update) for update in range(3)]).folder
    for options in ({"row": 1}, {"words": ABSENT}):
        made = membership.prove(proof, 1, words_of(1), **options)
        assert membership.verify(other, made).reason == "it is about another run"
        assert membership.verify(other, made).exit_code == 1
        assert membership.verify(proof, made).holds


def test_a_proof_about_other_words_is_refused_where_they_are_given(proof):
    made = membership.prove(proof, 1, words_of(1), row=0)
    assert membership.verify(proof, made, words=words_of(1)[0]).holds
    report = membership.verify(proof, made, words=words_of(1)[1])
    assert (report.holds, report.exit_code, report.reason) == (
        False,
        1,
        "it is about other words than those that were given",
    )


def test_another_batch_gives_no_proof(proof):
    changed = words_of(1).copy()
    changed[0, 0] ^= 1
    for batch in (changed, words_of(2), words_of(1)[::-1].copy(), words_of(1)[:3], words_of(1).reshape(5, 4)):
        with pytest.raises(zkdv.ZKDVError, match="is not the one of update 1"):
            membership.prove(proof, 1, batch, row=0)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"update": 1}, ValueError, "exactly one"),
        ({"update": 1, "row": 0, "words": ABSENT}, ValueError, "exactly one"),
        ({"update": 1, "row": 4}, ValueError, "there is no row 4, there are 4"),
        ({"update": 1, "row": -1}, ValueError, "row is -1"),
        ({"update": 3, "row": 0}, zkdv.ZKDVError, "has no update 3"),
        ({"update": -1, "row": 0}, ValueError, "update is -1"),
        ({"update": 1, "words": ABSENT.astype(np.int64)}, TypeError, "it has dtype uint32"),
        ({"update": 1, "words": ABSENT[:0]}, zkdv.ZKDVError, "at least one word"),
    ],
)
def test_bad_arguments_are_refused_where_they_are_given(proof, arguments, error, message):
    update = arguments.pop("update")
    with pytest.raises(error, match=message):
        membership.prove(proof, update, words_of(1), **arguments)


def saved(path, **arrays):
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        save_file(arrays, path)
    return path


@pytest.mark.parametrize("name", ["batch.npz", "batch.safetensors"])
def test_batches_and_samples_come_from_files_of_words_or_leaves(proof, tmp_path, name):
    as_words = membership.prove(proof, 1, words_of(1), row=2)
    for batch in (saved(tmp_path / f"1{name}", words=words_of(1)), saved(tmp_path / f"2{name}", x=images(1))):
        assert membership.prove(proof, 1, batch, row=2) == as_words
        for sample in (saved(tmp_path / f"3{name}", w=words_of(1)[2]), saved(tmp_path / f"4{name}", x=images(1)[2])):
            assert membership.prove(proof, 1, batch, words=sample) == as_words
            assert membership.verify(proof, as_words, words=sample).holds


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": images(1)}, r"holds the tensors y; wanted are words \(uint32\) or the leaves x float32\[4, 5\]"),
        ({"x": images(1), "y": images(1)}, "holds the tensors x, y"),
        ({"x": images(1).astype(np.float64)}, r"x is float64\[4, 5\]; wanted is float32\[4, 5\]"),
        ({"x": images(1)[:3]}, r"x is float32\[3, 5\]; wanted is float32\[4, 5\]"),
    ],
)
def test_files_that_hold_another_batch_say_what_is_wanted(proof, tmp_path, arrays, message):
    with pytest.raises(zkdv.ZKDVError, match=message):
        membership.prove(proof, 1, saved(tmp_path / "batch.npz", **arrays), row=0)


def test_a_transcript_that_fails_or_is_open_changes_the_outcome(proof, write):
    made = membership.prove(proof, 1, words_of(1), row=0)
    with pytest.raises(UnverifiedRunError):
        membership.verify(proof, made, head=bytes(32))
    with pytest.raises(UnverifiedRunError):
        membership.prove(proof, 1, words_of(1), row=0, identity=bytes(31) + b"\x01")
    opened = write("open", batches=[words_of(update) for update in range(3)], closed=False).folder
    made = membership.prove(opened, 1, words_of(1), row=0)
    assert membership.verify(opened, made).exit_code == 3


def statement_is_true(found, words):
    rows = words.tolist()
    sought = list(found.words)
    stands = any(row[place : place + len(sought)] == sought for row in rows for place in range(len(row)))
    if found.claim is Claim.ROW:
        return rows[found.row] == sought
    return stands == (found.claim is Claim.WINDOW)


def test_every_changed_byte_is_refused_or_leaves_a_true_statement(proof):
    """Free is which part of a shown row is meant, and which words that are absent: all are shown by the same block."""
    found = membership._find(zkdv.verified.VerifiedRun.open(proof), update=1)
    for options, free in (({"row": 1}, 0), ({"words": words_of(1)[1, 1:4]}, 16), ({"words": ABSENT}, 64)):
        data = membership.prove(proof, 1, words_of(1), **options).data
        accepted = 0
        for place in range(len(data)):
            for change in (1, 0x80, 0xFF):
                changed = bytearray(data)
                changed[place] ^= change
                try:
                    read = MembershipProof.decode(bytes(changed))
                except zkdv.ZKDVError:
                    continue
                if _native.MembershipProof.decode(bytes(changed)).verify(**found.as_native()) is None:
                    assert statement_is_true(read, words_of(1)), (options, place)
                    accepted += 1
        assert accepted <= free


def test_records_that_are_no_updates_are_refused(proof):
    made = reference_cbor.decode(membership.prove(proof, 1, words_of(1), row=0).data)
    for record in (0, 1, 4, made["record"] + 1, 10**6):
        report = membership.verify(proof, reference_cbor.encode(made | {"record": record}))
        assert not report.holds
        assert report.reason in {f"record {record} of this transcript is no update", "it is about another record"}


# The protocol once more, in plain Python.


def reference_update(folder, update):
    found = membership._find(zkdv.verified.VerifiedRun.open(folder), update=update)
    return reference.Update(found.run, found.record, found.update, found.batch, found.rolling_window)


def test_the_reference_makes_the_same_proofs_byte_for_byte_and_accepts_them(proof):
    update = reference_update(proof, 1)
    base = reference_batches.rolling_base(update.run)
    batch = reference_batches.Batch(words_of(1).tolist(), WIDTH, WINDOW, base)
    cases = [words_of(1)[2], words_of(1)[3, 1:3], ABSENT, np.concatenate([words_of(1)[0], ABSENT])]
    for sought in cases:
        made = membership.prove(proof, 1, words_of(1), words=sought)
        assert reference.prove_words(update, batch, sought.tolist()) == made.data
        assert reference.check(made.data, update) == (made.claim, list(made.words))
    for row in range(ROWS):
        assert reference.prove_row(update, batch, row) == membership.prove(proof, 1, words_of(1), row=row).data


MATRICES = st.integers(1, 6).flatmap(
    lambda width: st.lists(st.lists(st.integers(0, 3), min_size=width, max_size=width), min_size=1, max_size=8)
)


@settings(max_examples=150, deadline=None)
@given(
    rows=MATRICES,
    window=st.integers(1, 4),
    sought=st.lists(st.integers(0, 4), min_size=1, max_size=7),
    changes=st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), max_size=3),
)
def test_the_reference_agrees_on_any_batch_and_any_change(rows, window, sought, changes):
    run = bytes(range(32))
    base = reference_batches.rolling_base(run)
    batch = reference_batches.Batch(rows, len(rows[0]), window, base)
    update = reference.Update(run, 7, 2, batch.digest(), window)
    parts = {"run": run, "record": 7, "update": 2, "batch": update.batch, "rolling_window": window}
    matrix = np.array(rows, np.uint32)
    try:
        data = reference.prove_words(update, batch, sought)
    except ValueError:
        with pytest.raises(ValueError, match=r"absence|each window"):
            _native.MembershipProof.prove(matrix, sought=np.array(sought, np.uint32), **parts)
        return
    assert _native.MembershipProof.prove(matrix, sought=np.array(sought, np.uint32), **parts).encode() == data
    changed = bytearray(data)
    for place, change in changes:
        changed[place % len(changed)] ^= change
    accepted = []
    try:
        accepted.append(_native.MembershipProof.decode(bytes(changed)).verify(**parts) is None)
    except ValueError:
        accepted.append(False)
    try:
        reference.check(bytes(changed), update)
        accepted.append(True)
    except ValueError:
        accepted.append(False)
    assert accepted[0] == accepted[1]
    assert accepted[0] or bytes(changed) != data


def test_a_prover_who_leaves_a_window_out_can_show_it_absent_and_no_other():
    """What only an audit of the batch catches, as the guide, the command and the protocol's page say."""
    run, rows = bytes(range(32)), words_of(1).tolist()
    base = reference_batches.rolling_base(run)
    hidden = rows[2][:WINDOW]
    left_out = reference_batches.rolling_hash(hidden, base) + 1

    class Lying(reference_batches.Batch):
        def numbers(self):
            return [number for number in super().numbers() if number != left_out]

    batch = Lying(rows, WIDTH, WINDOW, base)
    parts = {"run": run, "record": 7, "update": 2, "batch": batch.digest(), "rolling_window": WINDOW}
    update = reference.Update(run, 7, 2, batch.digest(), WINDOW)
    opened = [{"block": block, "numbers": data, "path": path} for block, data, path in batch.open_absent(hidden)]
    absent = {"words": reference_batches.row_bytes(hidden), "position": 0, "blocks": opened}
    forged = reference._encode(update, batch, "absent", absent)
    assert _native.MembershipProof.decode(forged).verify(**parts) is None
    assert reference.check(forged, update) == ("absent", hidden)
    # The batch itself gives another digest, so that who has it is not deceived.
    assert _native.batch_commit(words_of(1), WINDOW, base).digest != batch.digest()
    present = {**absent, "words": reference_batches.row_bytes(rows[1][:WINDOW])}
    refused = _native.MembershipProof.decode(reference._encode(update, batch, "absent", present))
    assert refused.verify(**parts) == "its blocks do not show that the window is not in the list"


# The command.


@pytest.fixture
def files(proof, tmp_path):
    np.savez(tmp_path / "batch.npz", x=images(1))
    np.savez(tmp_path / "sample.npz", x=images(1)[2])
    np.save(tmp_path / "absent.npy", ABSENT)
    return tmp_path


def run(*arguments):
    return main(["membership", *map(str, arguments)])


def test_the_command_shows_a_sample_and_holds_it_against_the_transcript_alone(proof, files, capsys):
    made = files / "sample.proof"
    assert run("prove", proof, files / "batch.npz", "--update", 1, "--words", files / "sample.npz", "-o", made) == 0
    assert "the words are row 2 of the batch of update 1 (record " in capsys.readouterr().out
    (files / "batch.npz").unlink()
    assert run("verify", proof, made, "--words", files / "sample.npz") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("HOLDS  the words are row 2 of the batch of update 1 (record ")
    assert "not pinned" in printed
    assert "statement" not in printed
    assert run("verify", proof, made, "--words", files / "absent.npy") == 1
    assert "REFUSED" in capsys.readouterr().out


def test_the_command_says_that_absence_is_the_provers_word(proof, files, capsys):
    made = files / "absent.proof"
    assert run("prove", proof, files / "batch.npz", "--update", 1, "--words", files / "absent.npy", "-o", made) == 0
    assert "is the prover's statement" in capsys.readouterr().out
    assert run("verify", proof, made) == 0
    printed = capsys.readouterr().out
    assert "HOLDS  the words stand in no row of the batch of update 1" in printed
    assert "that words are absent is the prover's statement" in printed
    assert "only an audit of the batch shows that it is complete" in printed


def test_the_command_prints_json(proof, files, capsys):
    made = files / "row.proof"
    assert run("prove", proof, files / "batch.npz", "--update", 1, "--row", 0, "-o", made, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["proof"]["claim"], printed["bytes"]) == ("row", made.stat().st_size)
    assert run("verify", proof, made, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["holds"], printed["proof"]["row"], printed["run"]["verdict"]) == (True, 0, "passed")
    assert printed["proof"]["words"] == words_of(1)[0].tolist()


def test_the_command_refuses_what_it_cannot_use_in_one_line(proof, files, capsys):
    made = files / "row.proof"
    batch = files / "batch.npz"
    assert run("prove", proof, batch, "--update", 1, "--row", 0, "-o", made) == 0
    (files / "text").write_text("no proof")
    (files / "folder").mkdir()
    capsys.readouterr()
    for arguments in (
        ("prove", proof, batch, "--update", 1, "-o", made),
        ("prove", proof, batch, "--update", 1, "--row", 0, "--words", files / "sample.npz", "-o", made),
        ("prove", proof, batch, "--update", 1, "--row", 9, "-o", made),
        ("prove", proof, batch, "--update", 2, "--row", 0, "-o", made),
        ("prove", proof, batch, "--update", 9, "--row", 0, "-o", made),
        ("prove", proof, files / "text", "--update", 1, "--row", 0, "-o", made),
        ("prove", proof, batch, "--update", 1, "--row", 0, "-o", files / "folder"),
        ("prove", proof, batch, "--update", 1, "--row", 0, "-o", files / "none" / "x"),
        ("verify", proof, files / "text"),
        ("verify", proof, files / "none"),
        ("verify", proof, files / "folder"),
        ("verify", files / "none", made),
    ):
        assert run(*arguments) == 2, arguments
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert error.count("\n") == 1
    assert sorted(path.name for path in files.iterdir() if path.name.startswith(".")) == [], "nothing half written"
    assert run("verify", proof, made, "--identity", "ab" * 32) == 1
