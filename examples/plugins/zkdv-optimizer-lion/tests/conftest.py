"""What the tests of this plugin share."""

from importlib.util import find_spec

# Torch takes 6 GB; an environment without it runs the other tests.
collect_ignore_glob = [] if find_spec("torch") else ["*.py"]
