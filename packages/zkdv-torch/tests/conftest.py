"""What the tests of the Torch frontend share."""

from importlib.util import find_spec

# Torch takes 6 GB; an environment without it runs the other tests. `scripts/test` installs everything.
collect_ignore_glob = [] if find_spec("torch") else ["*.py"]
