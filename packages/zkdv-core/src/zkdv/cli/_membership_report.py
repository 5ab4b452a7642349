"""What `zkdv membership` prints of proofs."""

from pathlib import Path

from rich.text import Text

from zkdv.cli._terminal import harmless, write
from zkdv.cli._verdict import write_basis
from zkdv.membership import ABSENCE_IS_THE_PROVERS_WORD, Claim, MembershipProof, MembershipReport

SHOWN_WORDS = 8


def write_proof(proof: MembershipProof, path: Path) -> None:
    """Print what a proof states, and where it was written."""
    write(f"{_stated(proof)}; proof of {len(proof.data)} bytes in {harmless(str(path))}")
    _write_caveat(proof)


def write_membership(report: MembershipReport, path: Path) -> None:
    """Print in the first line whether a proof holds, then its words, and what the transcript is."""
    proof = report.proof
    if report.holds:
        write(Text.assemble(("HOLDS", "bold green"), f"  {_stated(proof)}"))
    else:
        write(Text.assemble(("REFUSED", "bold red"), f"  {harmless(str(path))} shows nothing: {report.reason}"))
    shown = ", ".join(map(str, proof.words[:SHOWN_WORDS]))
    more = f", … ({len(proof.words)} words)" if len(proof.words) > SHOWN_WORDS else ""
    write(f"words       {shown}{more}")
    if report.holds:
        _write_caveat(proof)
    if report.abandoned:
        write(Text.assemble(("warning", "yellow"), "  the run was later rewound to before this update"))
    write_basis(report.run)


def _stated(proof: MembershipProof) -> str:
    where = f"the batch of update {proof.update} (record {proof.record})"
    match proof.claim:
        case Claim.ROW:
            return f"the words are row {proof.row} of {where}"
        case Claim.WINDOW:
            return f"the words stand in row {proof.row} of {where}, after {proof.position} others"
        case Claim.ABSENT:
            return f"the words stand in no row of {where}, as the prover states"


def _write_caveat(proof: MembershipProof) -> None:
    if proof.claim is Claim.ABSENT:
        write(Text.assemble(("note", "yellow"), f"        {ABSENCE_IS_THE_PROVERS_WORD}"))
