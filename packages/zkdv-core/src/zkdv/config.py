"""What a run is configured with: frozen, checked where it is made, and committed in the transcript's first record."""

import os
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self, cast, runtime_checkable

from zkdv._arguments import checked_integer, checked_number
from zkdv.errors import ZKDVError, warn

__all__ = ["Challenger", "EvidencePolicy", "FloatTolerance", "SamplingPolicy", "ZKDVConfig"]

NAME_LIMIT_BYTES = 256
"""Most that the name of a run takes in UTF-8: what the record grammar accepts."""

COMMIT_CHOICES = ("parameters", "every")
DURABILITY_CHOICES = ("interval", "record", "close")
TRANSCRIPT_CHALLENGER = "transcript"


@runtime_checkable
class Challenger(Protocol):
    """Who supplies the randomness that decides which updates are checked, after the prover has committed to them."""

    @property
    def name(self) -> str:
        """The name that the first record of a transcript gives."""

    @property
    def public_key(self) -> bytes:
        """Ed25519 key that receipts are signed with, 32 bytes."""

    def answer(self, root: bytes, seq: int, record: bytes, /) -> bytes:
        """Answer one record with a signed receipt.

        Args:
            root: Digest of the transcript's first record, 32 bytes.
            seq: Number of the record in the transcript.
            record: The full signed record.

        Returns:
            The encoded receipt; the same for the same record, for ever.
        """


@dataclass(frozen=True)
class SamplingPolicy:
    """Which updates are executed again and compared.

    Attributes:
        update_check_probability: Chance of each update to be checked, 0 to 1; default 0.01. With 0 nothing is ever
            checked, which is warned about.
        state_check_probability: Kept so that older calls say something useful; only `-1.0` is accepted. A checked
            update always checks its optimizer state too.
        check_every: Set by `DEBUGCheckEvery`, and by nothing else.

    Raises:
        TypeError: A value that is no number.
        ValueError: A value out of range.
    """

    update_check_probability: float = 0.01
    state_check_probability: float = -1.0
    _: KW_ONLY
    check_every: int | None = None

    def __post_init__(self) -> None:
        probability = checked_number("SamplingPolicy.update_check_probability", self.update_check_probability, 0.0, 1.0)
        object.__setattr__(self, "update_check_probability", probability)
        if isinstance(self.state_check_probability, bool) or self.state_check_probability != -1.0:
            raise ValueError(
                f"SamplingPolicy.state_check_probability is {self.state_check_probability!r}; only -1.0 is accepted, "
                "since a checked update checks its optimizer state too: use update_check_probability instead"
            )
        object.__setattr__(self, "state_check_probability", -1.0)
        if self.check_every is not None:
            every = checked_integer("SamplingPolicy.check_every", self.check_every, 1)
            object.__setattr__(self, "check_every", every)
            if probability != 1 / every:
                raise ValueError(
                    f"SamplingPolicy.check_every is {every}, which fixes update_check_probability at {1 / every!r}, "
                    f"not {probability!r}; make this policy with SamplingPolicy.DEBUGCheckEvery({every})"
                )
        elif probability == 0.0:
            warn("SamplingPolicy.update_check_probability is 0: no update of this run will be checked")

    @classmethod
    def DEBUGCheckEvery(cls, n: int) -> Self:  # noqa: N802 (the name shouts on purpose)
        """Check every `n`-th update, for tests and profiling.

        The prover knows in advance what is checked; the transcript says so, and `zkdv verify` warns.

        Args:
            n: Distance between checked updates, at least 1: update `u` is checked where `(u + 1) % n == 0`.

        Returns:
            The policy.

        Raises:
            TypeError: `n` is no integer.
            ValueError: `n` is below 1.
        """
        every = checked_integer("SamplingPolicy.DEBUGCheckEvery(n)", n, 1)
        return cls(update_check_probability=1 / every, check_every=every)

    def as_record(self) -> dict[str, float | int]:
        """This policy as the transcript's `sampling` map (docs/protocol/transcript.cddl)."""
        if self.check_every is not None:
            return {"every": self.check_every}
        return {"probability": self.update_check_probability}


@dataclass(frozen=True)
class FloatTolerance:
    """How far a replayed number may be from the committed one where a replay is not bit-exact.

    `a` and `b` agree where `|a - b| <= abs + rel * max(|a|, |b|)`.

    Attributes:
        abs: Absolute part, finite and not negative; default 1e-5.
        rel: Relative part, finite and not negative; default 1e-4.

    Raises:
        TypeError: A value that is no number.
        ValueError: A value that is negative, infinite or NaN.
    """

    abs: float = 1e-5
    rel: float = 1e-4

    def __post_init__(self) -> None:
        for name in ("abs", "rel"):
            value = checked_number(f"FloatTolerance.{name}", getattr(self, name), 0.0)
            object.__setattr__(self, name, value)

    def as_record(self) -> dict[str, float]:
        """This tolerance as the transcript's `tolerance` map (docs/protocol/transcript.cddl)."""
        return {"absolute": self.abs, "relative": self.rel}


@dataclass(frozen=True)
class EvidencePolicy:
    """What is kept beside the transcript, for somebody who executes updates again (`zkdv audit`).

    Files are written in the background, in the run's folder: states as `checkpoints/`, batches as `batches/`, and
    components as `evidence/`. An audit replays from a checkpoint to the next one, and needs the batches between them.

    Attributes:
        checkpoint_interval: Updates from one checkpoint to the next, at least 1; default None: no checkpoints. One is
            taken before the first update at or after each multiple at which the whole state is committed: with
            `ZKDVConfig(commit="parameters")` at a multiple of `replay_snapshot_interval`.
        batches: Whether every batch is kept; default False. Equal batches are kept once.
        components: Whether the leaf digests and probes under each root are kept; default False. With them an audit says
            which leaf differs, and whether numbers are within tolerance.
        sampled: Whether state, batches and components behind every sampled update are kept; default False. They are
            kept for ever, whatever `keep` says.
        keep: How many of the newest checkpoints are kept, at least 1, with the batches and components since the oldest
            of them; default None: all. Needs `checkpoint_interval`.

    Raises:
        TypeError: A value of another type.
        ValueError: A value out of range, or `keep` without `checkpoint_interval`.
    """

    checkpoint_interval: int | None = None
    batches: bool = False
    components: bool = False
    sampled: bool = False
    keep: int | None = None

    def __post_init__(self) -> None:
        for name in ("batches", "components", "sampled"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise TypeError(f"EvidencePolicy.{name} is {value!r} ({type(value).__name__}); it is True or False")
        for name in ("checkpoint_interval", "keep"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, checked_integer(f"EvidencePolicy.{name}", value, 1))
        if self.keep is not None and self.checkpoint_interval is None:
            raise ValueError(
                f"EvidencePolicy.keep is {self.keep}, and checkpoint_interval is None: there are no checkpoints; "
                "set checkpoint_interval too, or leave keep out"
            )

    @property
    def requested(self) -> tuple[str, ...]:
        """Names of what is to be kept, in the order of the fields."""
        kept = [name for name in ("batches", "components", "sampled") if getattr(self, name)]
        return (*(["checkpoint_interval"] if self.checkpoint_interval is not None else []), *kept)

    def as_record(self) -> dict[str, bool | int]:
        """This policy as the transcript's `evidence` map (docs/protocol/transcript.cddl)."""
        record: dict[str, bool | int] = {name: getattr(self, name) for name in ("batches", "components", "sampled")}
        if self.checkpoint_interval is not None:
            record["checkpoint-interval"] = self.checkpoint_interval
        if self.keep is not None:
            record["keep"] = self.keep
        return record


@dataclass(frozen=True)
class ZKDVConfig:
    """The configuration of a run.

    Attributes:
        name: What the run is called, 1 to 256 bytes of printable text; default `"zkdv"`.
        sampling_policy: Which updates are checked; default: each with probability 0.01.
        tolerance: How far a check may be off where it is not bit-exact; default 1e-5 absolute and 1e-4 relative.
        evidence: What is kept for an auditor; default: nothing.
        challenger: Who draws the sample: `"transcript"` (the default) derives it from the run's own records, which
            finds accidents, not a prover who cheats; otherwise a `Challenger`, or `"plugin"` or `"plugin:argument"`.
            This version runs with `"transcript"` only (`refuse_unavailable`).
        commit: `"parameters"` (the default) commits to the optimizer state at snapshot points only, `"every"` in every
            update.
        durability: When records are forced to disk: `"interval"` (the default) at most one second behind, at every
            check and at the end; `"record"` each; `"close"` at the end only.
        identity: Key file that signs the run, or `"signer-plugin:argument"`; default None: what the environment
            variable `ZKDV_IDENTITY` names, else your own key in the user configuration folder (`zkdv.identity`).

    Raises:
        TypeError: A value of another type.
        ValueError: A value out of range.
    """

    name: str = "zkdv"
    sampling_policy: SamplingPolicy = field(default_factory=SamplingPolicy)
    tolerance: FloatTolerance = field(default_factory=FloatTolerance)
    evidence: EvidencePolicy = field(default_factory=EvidencePolicy)
    challenger: str | Challenger = TRANSCRIPT_CHALLENGER
    commit: str = "parameters"
    durability: str = "interval"
    identity: Path | str | None = None

    def __post_init__(self) -> None:
        _check_name(self.name)
        for field_name, expected in (
            ("sampling_policy", SamplingPolicy),
            ("tolerance", FloatTolerance),
            ("evidence", EvidencePolicy),
        ):
            value = getattr(self, field_name)
            if not isinstance(value, expected):
                raise TypeError(
                    f"ZKDVConfig.{field_name} is {value!r} ({type(value).__name__}); it is a zkdv.{expected.__name__}"
                )
        _check_challenger(self.challenger)
        _check_choice("ZKDVConfig.commit", self.commit, COMMIT_CHOICES)
        _check_choice("ZKDVConfig.durability", self.durability, DURABILITY_CHOICES)
        if self.identity is not None:
            object.__setattr__(self, "identity", _checked_identity(self.identity))

    def refuse_unavailable(self) -> None:
        """Refuse what the configuration can say and this version cannot do; called when a run starts.

        Raises:
            ZKDVError: The challenger is not `"transcript"`.
        """
        if self.challenger != TRANSCRIPT_CHALLENGER:
            name = self.challenger if isinstance(self.challenger, str) else self.challenger.name
            raise ZKDVError(
                "this version of ZKDV runs with the challenger 'transcript' only, and ZKDVConfig.challenger is "
                f"{name!r}; leave it at its default"
            )

    @staticmethod
    def max_check_lag(replay_snapshot_interval: int, max_in_flight: int) -> int:
        """The most update records that may stand between an update and its check."""
        return replay_snapshot_interval + 2 * max_in_flight

    def as_record(
        self, *, replay_snapshot_interval: int, max_in_flight: int, rolling_window: int, probe_ratio: float
    ) -> dict[str, Any]:
        """The `configuration` map of a transcript's first record (docs/protocol/transcript.cddl).

        Args:
            replay_snapshot_interval: Updates from one snapshot to the next.
            max_in_flight: Ceiling of unresolved updates.
            rolling_window: Words in one window of a batch row.
            probe_ratio: Part of each leaf's last dimension that a probe keeps.

        Returns:
            The map, with the largest allowed lag of a check.
        """
        return {
            "sampling": self.sampling_policy.as_record(),
            "tolerance": self.tolerance.as_record(),
            "commit": self.commit,
            "durability": self.durability,
            "replay-snapshot-interval": replay_snapshot_interval,
            "max-in-flight": max_in_flight,
            "max-check-lag": self.max_check_lag(replay_snapshot_interval, max_in_flight),
            "rolling-window": rolling_window,
            "probe-ratio": probe_ratio,
            "evidence": self.evidence.as_record(),
        }


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"ZKDVConfig.name is {name!r} ({type(name).__name__}); it is a str")
    # `isprintable` is false for lone surrogates too, so that encoding cannot fail.
    if not name.isprintable():
        raise ValueError(f"ZKDVConfig.name is {name!r}; it holds printable characters only, without line breaks")
    size = len(name.encode())
    if not 1 <= size <= NAME_LIMIT_BYTES:
        shown = name if size == 0 else f"{name[:32]}…"
        raise ValueError(f"ZKDVConfig.name is {shown!r}, {size} bytes in UTF-8; it has 1 to {NAME_LIMIT_BYTES}")


def _check_challenger(challenger: object) -> None:
    if isinstance(challenger, str):
        if not challenger or not challenger.isprintable():
            raise ValueError(
                f"ZKDVConfig.challenger is {challenger!r}; it is 'transcript', or the name of a plugin's challenger"
            )
    elif not isinstance(challenger, Challenger):
        raise TypeError(
            f"ZKDVConfig.challenger is {challenger!r} ({type(challenger).__name__}); it is a str such as 'transcript', "
            "or a zkdv.Challenger"
        )


def _checked_identity(identity: object) -> Path | str:
    if isinstance(identity, str):
        if not identity or "\0" in identity:
            raise ValueError(f"ZKDVConfig.identity is {identity!r}; it is a path, 'signer-plugin:argument', or None")
        return identity
    if isinstance(identity, os.PathLike):
        return Path(cast("os.PathLike[str]", identity))
    raise TypeError(
        f"ZKDVConfig.identity is {identity!r} ({type(identity).__name__}); "
        "it is a path, 'signer-plugin:argument', or None"
    )


def _check_choice(what: str, value: object, choices: tuple[str, ...]) -> None:
    accepted = " or ".join(repr(choice) for choice in choices)
    if not isinstance(value, str):
        raise TypeError(f"{what} is {value!r} ({type(value).__name__}); it is {accepted}")
    if value not in choices:
        raise ValueError(f"{what} is {value!r}; it is {accepted}")
