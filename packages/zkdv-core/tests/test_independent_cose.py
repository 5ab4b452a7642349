"""A transcript read with other people's libraries alone: cbor2, cwt (COSE), cryptography and blake3.

Nothing of zkdv takes part after the transcript is written, so that the format is what the protocol's pages say it is,
and not what two halves of one implementation agree on.
"""

import hashlib
import io

import blake3
import cbor2
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cwt import COSE, COSEKey
from cwt.exceptions import VerifyError

from zkdv import _native

INTERVAL = 3
UPDATES = 8
RECORD_AAD = b"zkdv 1 record"


def pretended(text):
    return hashlib.sha256(text.encode()).digest()


def roots(update, *trees):
    kinds = [
        kind for tree in trees for kind in (tree, "parameter-probes" if tree == "parameters" else "optimizer-probes")
    ]
    return {kind: pretended(f"{kind} after {update}") for kind in kinds}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A closed run of eight updates, each of them checked, with session keys that change twice."""
    folder = tmp_path_factory.mktemp("independent")
    identity = _native.Identity.generate(folder / "identity.pem")
    tolerance = {"absolute": 1e-6, "relative": 1e-5}
    root = {
        "protocol": 1,
        "prover": "whitebox-jax",
        "run": "independent réading",
        "time": 1_700_000_000_000,
        "ranks": 1,
        "challenger": {"name": "transcript"},
        "schemes": {
            "leaf": "blake3-256",
            "sharded-leaf": "zkdv-sharded-leaf-1",
            "tree": "zkdv-tree-1",
            "batch": "zkdv-batch-1",
            "probe": "zkdv-probe-1",
            "challenge": "zkdv-challenge-1",
        },
        "configuration": {
            "sampling": {"probability": 1.0},
            "tolerance": tolerance,
            "commit": "parameters",
            "durability": "close",
            "replay-snapshot-interval": INTERVAL,
            "max-in-flight": 2,
            "max-check-lag": INTERVAL + 4,
            "rolling-window": 8,
            "probe-ratio": 0.01,
            "evidence": {"batches": False, "components": False, "sampled": False},
        },
    }
    transcript = _native.Transcript.create(folder / "run", root, identity)
    transcript.append("environment", {"numbers": [0.1, -7, 2**40], "text": "ünïcode", "nested": {"a": [True, b"\0"]}})
    leaves = [{"name": "w", "dtype": "float32", "shape": [7, 3]}, {"name": "b", "dtype": "float32", "shape": []}]
    layout = [{"name": "x", "dtype": "uint32", "shape": [4, 5], "place": "joined"}]
    batch = {"rows": 4, "width": 5, "leaves": layout}
    transcript.append("schema", {"parameters": leaves, "optimizer": leaves[:1], "batch": batch, "scalars": ["rate"]})
    sealed = {"role": "replay", "format": "jax-export", "digest": pretended("program"), "length": 9, "extension": "bin"}
    sealed |= {"text-digest": pretended("text"), "platforms": ["cpu"], "convention": "flat"}
    program, _ = transcript.append("program", sealed)
    both = ("parameters", "optimizer")
    transcript.append("state", {"updates": 0, "reason": "start", "roots": roots(0, *both)})
    for update in range(UPDATES):
        due = both if (update + 1) % INTERVAL == 0 else ("parameters",)
        body = {"update": update, "batch": pretended(f"batch {update}"), "program": program, "overlap": 0}
        body |= {"after": roots(update + 1, *due), "scalars": {"rate": 1e-3 * update}}
        _, digest = transcript.append("update", body)
        sampled, parameter, optimizer = _native.draw(digest, b"", {"probability": 1.0}, update, 22, 21)
        assert sampled
        check = {"update": update, "snapshot": update - update % INTERVAL, "exact": True, "verdict": "passed"}
        check |= {"tolerance": tolerance, "parameter": {"index": parameter}, "optimizer": {"index": optimizer}}
        transcript.append("check", check)
    last = UPDATES - UPDATES % INTERVAL
    state = roots(UPDATES, "parameters") | roots(last, "optimizer")
    transcript.append("state", {"updates": UPDATES, "reason": "close", "roots": state})
    counts = {"updates": UPDATES, "sampled": UPDATES, "passed": UPDATES, "failed": 0, "edits": 0}
    transcript.append("close", counts | {"reason": "finished"})
    assert _native.verify(folder / "run" / "records.cborl", {})["verdict"] == "passed"
    return (folder / "run" / "records.cborl").read_bytes(), transcript, identity.public_key


def items(data):
    """The items of a CBOR sequence, as bytes."""
    stream = io.BytesIO(data)
    decoder = cbor2.CBORDecoder(stream)
    while stream.tell() < len(data):
        start = stream.tell()
        decoder.decode()
        yield data[start : stream.tell()]


def cose_key(public_key):
    # 1: OKP, 3: EdDSA, crv -1: Ed25519 (RFC 9053).
    return COSEKey.new({1: 1, 3: -8, -1: 6, -2: public_key})


def walk(data):
    """Each record with its payload and the key that must have signed it, as the page "The transcript" prescribes."""
    session = None
    for record in items(data):
        payload = cbor2.loads(cbor2.loads(record).value[2])
        kind, body = payload[3], payload[4]
        key = body["identity"] if kind == "root" else session
        yield record, payload, key
        if kind in ("root", "resume"):
            session = body["session-key"]
        elif "next-key" in body:
            session = body["next-key"]


def test_a_cose_library_verifies_every_signature(run):
    data, transcript, public_key = run
    keys = []
    for record, payload, key in walk(data):
        assert key == public_key or payload[3] != "root"
        verified = COSE.new().decode(record, cose_key(key), external_aad=RECORD_AAD)
        assert (verified if isinstance(verified, dict) else cbor2.loads(verified)) == payload
        keys.append(key)
    assert len(keys) == transcript.records
    # The identity's, the first session's, and those named by updates 2 and 5.
    assert len(set(keys)) == 4


def test_cryptography_verifies_every_signature_over_the_bytes_that_the_standard_prescribes(run):
    data, _, _ = run
    for record, _, key in walk(data):
        protected, unprotected, payload, signature = cbor2.loads(record).value
        assert (cbor2.loads(record).tag, protected, unprotected) == (18, b"\xa1\x01\x27", {})
        signed = cbor2.dumps(["Signature1", protected, RECORD_AAD, payload])
        Ed25519PublicKey.from_public_bytes(key).verify(signature, signed)


def test_blake3_reproduces_the_digest_and_predecessor_of_every_record(run):
    data, transcript, _ = run
    previous = bytes(32)
    read = list(_native.RecordReader(transcript.path))
    for index, (record, payload, _) in enumerate(walk(data)):
        assert payload[1] == index
        assert payload[2] == previous
        previous = blake3.blake3(record).digest()
        assert read[index]["digest"] == previous
        assert (read[index]["type"], read[index]["body"]) == (payload[3], payload[4])
        if index == 0:
            assert previous == transcript.root_digest
    assert previous == transcript.head


def test_every_record_is_what_a_canonical_encoder_writes(run):
    data, _, _ = run
    for record, payload, _ in walk(data):
        tagged = cbor2.loads(record)
        assert cbor2.dumps(tagged, canonical=True) == record
        assert tagged.value[2] == cbor2.dumps(payload, canonical=True)


def test_a_changed_record_and_another_key_are_refused_by_the_other_libraries_too(run):
    data, _, _ = run
    for record, _, key in walk(data):
        protected, _, payload, signature = cbor2.loads(record).value
        changed = bytearray(payload)
        changed[len(changed) // 2] ^= 1
        forged = cbor2.dumps(cbor2.CBORTag(18, [protected, {}, bytes(changed), signature]))
        with pytest.raises(VerifyError):
            COSE.new().decode(forged, cose_key(key), external_aad=RECORD_AAD)
        with pytest.raises(VerifyError):
            COSE.new().decode(record, cose_key(key), external_aad=b"zkdv 1 receipt")
        with pytest.raises(InvalidSignature):
            Ed25519PublicKey.from_public_bytes(key).verify(
                signature, cbor2.dumps(["Signature1", protected, b"", payload])
            )


def test_blake3_reproduces_the_draws(run):
    data, _, _ = run
    draws = 0
    for record, payload, _ in walk(data):
        if payload[3] != "update":
            continue
        hasher = blake3.blake3(blake3.blake3(record).digest(), derive_key_context="zkdv 1 challenge")
        words = [int.from_bytes(hasher.digest(length=8, seek=8 * index), "little") for index in range(64)]

        def below(count, rest):
            while (word := rest.pop(0)) >= 2**64 // count * count:
                pass
            return word % count

        rest = words[1:]
        expected = (words[0] < 2**63, below(22, rest), below(21, rest))
        digest = blake3.blake3(record).digest()
        assert _native.draw(digest, b"", {"probability": 0.5}, payload[4]["update"], 22, 21) == expected
        draws += 1
    assert draws == UPDATES
