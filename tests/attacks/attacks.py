"""All attacks."""

import folders
import outsiders
import provers_checks
import provers_encoding
import provers_order
import provers_resumes
import sharded
from victims import ATTACKS

__all__ = [
    "ATTACKS",
    "folders",
    "outsiders",
    "provers_checks",
    "provers_encoding",
    "provers_order",
    "provers_resumes",
    "sharded",
]
