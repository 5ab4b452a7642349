import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

import zkdv


def test_defaults_are_the_documented_ones():
    config = zkdv.ZKDVConfig()
    assert config.name == "zkdv"
    assert config.sampling_policy == zkdv.SamplingPolicy(0.01, -1.0)
    assert config.tolerance == zkdv.FloatTolerance(1e-5, 1e-4)
    assert config.evidence == zkdv.EvidencePolicy(None, batches=False, components=False, sampled=False, keep=None)
    assert (config.challenger, config.commit, config.durability) == ("transcript", "parameters", "interval")
    assert config.identity is None


@pytest.mark.parametrize(
    "value", [zkdv.ZKDVConfig(), zkdv.SamplingPolicy(), zkdv.FloatTolerance(), zkdv.EvidencePolicy()], ids=repr
)
def test_configuration_is_frozen_and_hashable(value):
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.anything = 1
    assert hash(value) == hash(dataclasses.replace(value))


@pytest.mark.parametrize("probability", [0.01, 1, 1.0, 0.5, np.float32(0.5), np.float64(0.25), np.int64(1)])
def test_probability_may_be_any_number_in_range(probability):
    policy = zkdv.SamplingPolicy(probability)
    assert policy.update_check_probability == float(probability)
    assert type(policy.update_check_probability) is float


@pytest.mark.parametrize("probability", [-0.1, 1.0001, math.nan, math.inf, -math.inf, 10**400])
def test_probability_out_of_range_is_refused_with_value_and_range(probability):
    with pytest.raises(ValueError, match=r"update_check_probability is .*; it is a number from 0 to 1"):
        zkdv.SamplingPolicy(probability)


@pytest.mark.parametrize("probability", [True, False, "0.5", None, b"1", 1j, np.ones(1), [0.5]])
def test_what_is_no_number_is_refused_as_probability(probability):
    with pytest.raises(TypeError, match=r"update_check_probability is .*; it is a number from 0 to 1"):
        zkdv.SamplingPolicy(probability)


def test_probability_zero_is_accepted_and_warned_about():
    with pytest.warns(zkdv.ZKDVWarning, match="no update of this run will be checked"):
        assert zkdv.SamplingPolicy(0).update_check_probability == 0.0


@pytest.mark.parametrize("probability", [0.5, 0, 1, True, "x", math.nan, None])
def test_state_check_probability_is_refused_by_naming_the_one_to_use(probability):
    with pytest.raises(ValueError, match="use update_check_probability instead"):
        zkdv.SamplingPolicy(state_check_probability=probability)


def test_debug_policy_checks_every_nth_update():
    policy = zkdv.SamplingPolicy.DEBUGCheckEvery(np.int64(3))
    assert policy.check_every == 3
    assert policy.as_record() == {"every": 3}
    assert policy.update_check_probability == 1 / 3
    assert dataclasses.replace(policy) == policy


@pytest.mark.parametrize("n", [0, -1])
def test_debug_policy_refuses_a_distance_below_one(n):
    with pytest.raises(ValueError, match=rf"DEBUGCheckEvery\(n\) is {n}; it is an integer, at least 1"):
        zkdv.SamplingPolicy.DEBUGCheckEvery(n)


@pytest.mark.parametrize("n", [True, 2.0, "2", None])
def test_debug_policy_refuses_what_is_no_integer(n):
    with pytest.raises(TypeError, match=r"DEBUGCheckEvery\(n\) is .* it is an integer, at least 1"):
        zkdv.SamplingPolicy.DEBUGCheckEvery(n)


def test_a_probability_that_contradicts_the_debug_policy_is_refused():
    with pytest.raises(ValueError, match=r"SamplingPolicy.DEBUGCheckEvery\(4\)"):
        zkdv.SamplingPolicy(0.5, check_every=4)


@pytest.mark.parametrize("field", ["abs", "rel"])
@pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf])
def test_tolerance_out_of_range_is_refused(field, value):
    with pytest.raises(ValueError, match=rf"FloatTolerance\.{field} is .*; it is a finite number, at least 0"):
        zkdv.FloatTolerance(**{field: value})


@pytest.mark.parametrize("field", ["abs", "rel"])
@pytest.mark.parametrize("value", [True, "0", None])
def test_what_is_no_number_is_refused_as_tolerance(field, value):
    with pytest.raises(TypeError, match=rf"FloatTolerance\.{field} is "):
        zkdv.FloatTolerance(**{field: value})


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"batches": 1}, TypeError, r"EvidencePolicy\.batches is 1 \(int\); it is True or False"),
        ({"components": None}, TypeError, r"EvidencePolicy\.components"),
        ({"sampled": "yes"}, TypeError, r"EvidencePolicy\.sampled"),
        ({"checkpoint_interval": 0}, ValueError, r"checkpoint_interval is 0; it is an integer, at least 1"),
        ({"checkpoint_interval": True}, TypeError, r"checkpoint_interval is True \(bool\)"),
        ({"checkpoint_interval": 1.5}, TypeError, r"checkpoint_interval is 1.5 \(float\)"),
        ({"checkpoint_interval": 10, "keep": 0}, ValueError, r"keep is 0"),
        ({"keep": 3}, ValueError, r"set checkpoint_interval too"),
    ],
)
def test_evidence_policy_refuses_bad_fields(fields, error, message):
    with pytest.raises(error, match=message):
        zkdv.EvidencePolicy(**fields)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"name": ""}, ValueError, r"name is '', 0 bytes in UTF-8; it has 1 to 256"),
        ({"name": "é" * 129}, ValueError, r"258 bytes in UTF-8"),
        ({"name": "a\nb"}, ValueError, r"printable characters only"),
        ({"name": "\x1b[31m"}, ValueError, r"printable characters only"),
        ({"name": "\udcff"}, ValueError, r"printable characters only"),
        ({"name": 3}, TypeError, r"name is 3 \(int\)"),
        ({"sampling_policy": 0.1}, TypeError, r"sampling_policy is 0.1 \(float\); it is a zkdv.SamplingPolicy"),
        ({"tolerance": 0.1}, TypeError, r"zkdv.FloatTolerance"),
        ({"evidence": None}, TypeError, r"zkdv.EvidencePolicy"),
        ({"challenger": None}, TypeError, r"challenger is None"),
        ({"challenger": ""}, ValueError, r"challenger is ''"),
        ({"commit": "all"}, ValueError, r"commit is 'all'; it is 'parameters' or 'every'"),
        ({"commit": True}, TypeError, r"commit is True \(bool\)"),
        ({"durability": "never"}, ValueError, r"durability is 'never'; it is 'interval' or 'record' or 'close'"),
        ({"identity": 5}, TypeError, r"identity is 5 \(int\)"),
        ({"identity": ""}, ValueError, r"identity is ''"),
        ({"identity": "a\0b"}, ValueError, r"identity is"),
    ],
)
def test_configuration_refuses_bad_fields(fields, error, message):
    with pytest.raises(error, match=message):
        zkdv.ZKDVConfig(**fields)


def test_name_has_up_to_256_bytes():
    assert zkdv.ZKDVConfig("é" * 128).name == "é" * 128


def test_identity_path_is_kept_as_path_and_reference_as_text(tmp_path):
    assert zkdv.ZKDVConfig(identity=tmp_path / "key.pem").identity == tmp_path / "key.pem"
    assert zkdv.ZKDVConfig(identity="vault:signing").identity == "vault:signing"
    assert isinstance(zkdv.ZKDVConfig(identity=Path("key.pem")).identity, Path)


class RemoteChallenger:
    name = "a remote one"
    public_key = bytes(32)

    def answer(self, root, seq, record):
        raise AssertionError((root, seq, record))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"challenger": "https://challenger.example"}, r"'transcript' only, and .* 'https://challenger.example'"),
        ({"challenger": RemoteChallenger()}, r"'a remote one'"),
    ],
)
def test_what_this_version_lacks_is_accepted_as_configuration_and_refused_at_start(fields, message):
    config = zkdv.ZKDVConfig(**fields)
    with pytest.raises(zkdv.ZKDVError, match=message):
        config.refuse_unavailable()


def test_default_configuration_is_available():
    zkdv.ZKDVConfig().refuse_unavailable()
    zkdv.ZKDVConfig(evidence=zkdv.EvidencePolicy(10, batches=True, keep=2)).refuse_unavailable()


def test_configuration_record_has_the_fields_of_the_grammar():
    config = zkdv.ZKDVConfig(commit="every", evidence=zkdv.EvidencePolicy(5, keep=2))
    record = config.as_record(replay_snapshot_interval=12, max_in_flight=2, rolling_window=4, probe_ratio=0.01)
    assert record == {
        "sampling": {"probability": 0.01},
        "tolerance": {"absolute": 1e-5, "relative": 1e-4},
        "commit": "every",
        "durability": "interval",
        "replay-snapshot-interval": 12,
        "max-in-flight": 2,
        "max-check-lag": 16,
        "rolling-window": 4,
        "probe-ratio": 0.01,
        "evidence": {
            "batches": False,
            "components": False,
            "sampled": False,
            "checkpoint-interval": 5,
            "keep": 2,
        },
    }


def test_errors_form_one_hierarchy():
    assert issubclass(zkdv.ZKDVError, RuntimeError)
    assert issubclass(zkdv.ZKDVPoisonedError, zkdv.ZKDVError)
    assert issubclass(zkdv.ZKDVVerificationError, zkdv.ZKDVError)


def test_overlap_policies_are_ordered_from_the_strictest():
    assert list(zkdv.overlap.Policy) == [zkdv.overlap.NEVER, zkdv.overlap.UNCHECKED, zkdv.overlap.ALWAYS] == [0, 1, 2]
