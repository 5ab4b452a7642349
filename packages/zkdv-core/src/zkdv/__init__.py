"""Show others how a model was trained.

A training run leaves a signed, chained transcript that commits to the program, every batch, and every parameter and
optimizer state, with sampled updates executed again; anyone can verify it.

    import zkdv, zkdv.jax

    with zkdv.jax.ZKDV("proof", zkdv.ZKDVConfig(name="digits")) as proof:
        ...                                # `@proof.jit` in place of `@jax.jit`

    report = zkdv.verify("proof")
    assert report.passed

Importing this package imports no framework, and no library beyond Python's own: frontends (`zkdv.jax`), `verify`,
`audit` and `match` are loaded on first use.
"""

import pkgutil
from typing import TYPE_CHECKING

__path__ = pkgutil.extend_path(__path__, __name__)

from zkdv import _frontends

_frontends.refuse_unrelated_distribution(__path__)
_frontends.install_finder()

# Only now: these files may be another distribution's.
from zkdv import overlap  # noqa: E402
from zkdv.config import Challenger, EvidencePolicy, FloatTolerance, SamplingPolicy, ZKDVConfig  # noqa: E402
from zkdv.errors import ZKDVError, ZKDVPoisonedError, ZKDVVerificationError, ZKDVWarning  # noqa: E402

if TYPE_CHECKING:
    # Where a frontend is not installed, a type checker says so at its use.
    from zkdv import jax as jax
    from zkdv.auditing import AuditReport, audit
    from zkdv.matching import MatchReport, match
    from zkdv.verification import VerificationReport, verify

__all__ = [
    "AuditReport",
    "Challenger",
    "EvidencePolicy",
    "FloatTolerance",
    "MatchReport",
    "SamplingPolicy",
    "VerificationReport",
    "ZKDVConfig",
    "ZKDVError",
    "ZKDVPoisonedError",
    "ZKDVVerificationError",
    "ZKDVWarning",
    "audit",
    "match",
    "overlap",
    "verify",
]

_LAZY = {
    "AuditReport": "zkdv.auditing",
    "MatchReport": "zkdv.matching",
    "VerificationReport": "zkdv.verification",
    "audit": "zkdv.auditing",
    "match": "zkdv.matching",
    "verify": "zkdv.verification",
}

if not TYPE_CHECKING:  # A type checker would take every misspelt name for one that this function knows.

    def __getattr__(name: str) -> object:
        """Load functions of several modules, and the frontends, on first use."""
        import importlib  # noqa: PLC0415

        if name == "__version__":
            from importlib.metadata import version  # noqa: PLC0415

            return version("zkdv-core")
        if name in _LAZY:
            value = getattr(importlib.import_module(_LAZY[name]), name)
            globals()[name] = value
            return value
        full_name = f"{__name__}.{name}"
        if full_name in _frontends.FRONTENDS or full_name in _frontends.PLANNED:
            return importlib.import_module(full_name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        """Public names; frontends appear once they are loaded."""
        return sorted({*globals(), *__all__})
