"""What runs in a process of a run under test: lines of JSON in, one action each, and lines of JSON out."""

import builtins
import json
import os
import pkgutil
import resource
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO


class Actions:
    """What a rank can be asked."""

    def __init__(self) -> None:
        self._control: Any = None

    def prepare(self, target: str, rank: int, size: int, rendezvous: str) -> None:
        """Call the function named `target`, which brings the processes together as a framework does."""
        pkgutil.resolve_name(target)(rank, size, rendezvous)

    def open(self, factory: str, rank: int, size: int, **options: Any) -> dict[str, str]:
        """Open the control of one rank; return what followers are to be given."""
        self._control = pkgutil.resolve_name(factory)(rank, size, **options)
        return {"address": self._control.address, "token": self._control.token, "shown": repr(self._control)}

    def open_for_backend(self, factory: str, backend: str, **options: Any) -> dict[str, Any] | None:
        """Open the control that a framework's processes have; return its attributes."""
        self._control = pkgutil.resolve_name(factory).for_backend(backend, **options)
        if self._control is None:
            return None
        return {name: getattr(self._control, name) for name in ("rank", "size", "timeout", "limit", "address", "token")}

    def exchange(self, key: str, value: object = None) -> object:
        """Take part in one round."""
        return self._control.exchange(key, value)

    def exchange_unspeakable(self, key: str, value: str) -> object:
        """Take part in one round with a value that no pipe carries."""
        values = {"nan": float("nan"), "infinity": [float("inf")], "object": object(), "bytes": b"bytes"}
        return self._control.exchange(key, values[value])

    def exchange_many(self, prefix: str, rounds: int, characters: int) -> int:
        """Take part in many rounds, one after the other; return the most memory resident, bytes."""
        for number in range(rounds):
            value = f"{number:06d}".ljust(characters, "x")
            if self._control.exchange(f"{prefix}-{number}", value) != value:
                raise AssertionError(f"round {number} brought another value")
        return _resident_bytes()

    def close(self) -> None:
        """Close the control."""
        self._control.close()

    def threads(self) -> int:
        """Threads that run; also a way to know that earlier actions were begun."""
        return threading.active_count()


def _resident_bytes() -> int:
    pages = Path("/proc/self/statm")
    if pages.exists():
        return int(pages.read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _act(actions: Actions, asked: dict[str, Any], output: BinaryIO, writing: threading.Lock) -> None:
    answer: dict[str, Any] = {"number": asked["number"]}
    try:
        answer["value"] = getattr(actions, asked["action"])(**asked["arguments"])
    except BaseException as error:  # noqa: BLE001 (whatever it is, it is the answer)
        builtin = next(base for base in type(error).__mro__ if getattr(builtins, base.__name__, None) is base)
        answer |= {"error": builtin.__name__, "message": str(error)}
    with writing:
        output.write(json.dumps(answer).encode() + b"\n")
        output.flush()


def main() -> None:
    """Serve until `exit` is asked, or the pipe ends; then let the interpreter end as it always does."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # What frameworks print is no answer.
    actions, writing = Actions(), threading.Lock()
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        if asked["action"] == "exit":
            return
        threading.Thread(target=_act, args=(actions, asked, output, writing), daemon=True).start()


if __name__ == "__main__":
    main()
