"""Brings processes together as Torch does, for the tests of `torch-store`."""

import torch.distributed as dist


def prepare(rank, size, rendezvous):
    dist.init_process_group("gloo", init_method=f"tcp://{rendezvous}", rank=rank, world_size=size)
