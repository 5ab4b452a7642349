"""Tests that plugins can hold themselves against.

    from zkdv.testing import TransportConformance


    class TestMyTransport(TransportConformance):
        transport = "mine"

pytest collects the tests that the class inherits; each runs over real processes.
"""

from zkdv.testing._conformance import TransportConformance
from zkdv.testing._ranks import Answer, Rank, RankError

__all__ = ["Answer", "Rank", "RankError", "TransportConformance"]
