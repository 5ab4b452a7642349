"""The protocol's commitments in plain Python: an oracle to test against and a text to read, not a product."""
