"""Runs an AOT Inductor package on what a test saved.

    python replay_package.py PACKAGE.pt2 INPUTS.pt RESULTS.pt

Imports nothing of this project.
"""

import sys

import torch


def main() -> None:
    program, inputs, results = sys.argv[1:]
    with torch.no_grad():
        after = torch._inductor.aoti_load_package(program)(*torch.load(inputs, weights_only=True))
    torch.save(list(after), results)
    assert "zkdv" not in sys.modules


if __name__ == "__main__":
    main()
