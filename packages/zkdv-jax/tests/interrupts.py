"""Interrupts at points that tests go through one by one. Shared with the Torch frontend's tests."""

import sys
from pathlib import Path


class InterruptAt:
    """Raises KeyboardInterrupt at one of the points in the code of packages where Python handles signals.

    It does so at the start of a function and behind every call: `sys.setprofile` reports both. Between them are places
    that it never stops at, behind a lock's release and before its `with` block has ended, for one.

    Args:
        number: The point, counted from 0.
        packages: The packages.
        function: The qualified name of the one function whose points count; default: all.
    """

    def __init__(self, number, *packages, function=None):
        self.function = function
        self.sources = tuple({str(Path(path).resolve()) for package in packages for path in package.__path__})
        self.left = number
        self.place = None

    def __enter__(self):
        sys.setprofile(self.event)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)

    def event(self, frame, event, argument):
        if self.counts(frame):
            if event == "c_call" or (event == "c_return" and argument is sys.setprofile):
                return
        # A function of somebody else's that they have called is about to return.
        elif event != "return" or frame.f_back is None or not self.counts(frame.f_back):
            return
        self.left -= 1
        if self.left < 0:
            sys.setprofile(None)
            self.place = (frame.f_code.co_qualname, frame.f_lineno)
            raise KeyboardInterrupt

    def counts(self, frame):
        code = frame.f_code
        return code.co_filename.startswith(self.sources) and self.function in (None, code.co_qualname)
