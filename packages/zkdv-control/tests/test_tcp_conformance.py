"""The transport `tcp` against what any transport must do."""

from zkdv.testing import TransportConformance


class TestTcp(TransportConformance):
    transport = "tcp"
