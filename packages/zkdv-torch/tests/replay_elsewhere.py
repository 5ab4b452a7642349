"""Re-executes one update from what a test saved: the sealed program, the state before it and its batch.

    python replay_elsewhere.py PROGRAM.pt2 INPUTS.pt RESULTS.pt

Imports nothing of this project: what an auditor needs is Torch and the file.
"""

import sys

import torch


def main() -> None:
    program, inputs, results = sys.argv[1:]
    module = torch.export.load(program).module()
    with torch.no_grad():
        after = module(*torch.load(inputs, weights_only=True))
    torch.save(list(after), results)
    assert "zkdv" not in sys.modules


if __name__ == "__main__":
    main()
