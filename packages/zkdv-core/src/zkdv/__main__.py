"""`python -m zkdv`: the command `zkdv`, where its script is not on the path."""

import sys

from zkdv.cli import main

sys.exit(main())
