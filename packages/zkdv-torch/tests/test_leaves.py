"""Tensors as bytes and back, and how writes to them are seen."""

import numpy as np
import pytest
import torch
from blake3 import blake3

from zkdv import _native
from zkdv.errors import ZKDVError
from zkdv.torch import _leaves
from zkdv.torch._leaves import HeldLeaf, dtype_name, host_array, host_data, layout_of, numpy_dtype, tensor_of


@pytest.mark.parametrize("dtype", list(_leaves._DTYPES), ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (7,), (3, 4)], ids=str)
def test_every_dtype_goes_to_the_host_and_back_bit_for_bit(dtype, shape):
    generator = torch.Generator().manual_seed(0)
    count = int(np.prod(shape)) * torch.empty((), dtype=dtype).element_size()
    data = torch.randint(2 if dtype == torch.bool else 256, (count,), dtype=torch.uint8, generator=generator)
    tensor = data.view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)
    name = dtype_name(dtype, "leaf")
    array = host_array(tensor)
    assert (array.shape, array.dtype) == (shape, numpy_dtype(name))
    assert host_data(tensor).tobytes() == bytes(data.numpy())
    back = tensor_of(array, dtype, torch.device("cpu"))
    assert (back.dtype, tuple(back.shape)) == (dtype, shape)
    assert host_data(back).tobytes() == bytes(data.numpy())
    signs = np.ones(_native.probe_sign_words(shape, name), np.uint32)
    digest, _ = _native.commit_leaf(host_data(tensor), name, shape, 0.5, signs)
    assert digest == blake3(bytes(data.numpy())).digest()


def test_a_dtype_that_the_protocol_lacks_is_refused_by_name():
    with pytest.raises(ZKDVError, match=r"leaf has dtype torch\.bits8"):
        dtype_name(torch.bits8, "leaf")


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (torch.ones(2, 3), None),
        (torch.ones(2, 3).t(), (1, 3)),
        (torch.ones(()), None),
        (torch.ones(0, 3), None),
        (torch.ones(3, 1).expand(3, 4), None),
        (torch.ones(2, 5)[:, :3], (5, 1)),
        (torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last), (48, 1, 12, 3)),
        # C order and channels last are the same here but for strides that no element is reached by.
        (torch.ones(2, 1, 4, 4).to(memory_format=torch.channels_last), (16, 1, 4, 1)),
    ],
)
def test_layouts_are_strides_that_differ_from_c_order(tensor, expected):
    assert layout_of(tensor) == expected


def test_a_moment_is_the_same_until_something_is_written():
    tensor = torch.ones(4)
    held = HeldLeaf(tensor)
    assert held.at_this_moment(tensor) is held
    assert held.at_this_moment(tensor.detach()) is held
    view = held.data()
    tensor.mul_(2)
    assert held.is_deleted()
    later = held.at_this_moment(tensor)
    assert later is not held
    # The bytes are those of the tensor's memory, without a copy.
    assert later.data() is view
    assert view.view(np.float32).tolist() == [2] * 4
    tensor.data = torch.zeros(4)
    assert later.at_this_moment(tensor).data().view(np.float32).tolist() == [0] * 4
    assert later.at_this_moment(torch.ones(4)) is not later


def test_bytes_of_a_tensor_out_of_c_order_are_copied_anew_each_time():
    tensor = torch.arange(6.0).reshape(2, 3).t()
    held = HeldLeaf(tensor)
    assert held.data().view(np.float32).tolist() == [0, 3, 1, 4, 2, 5]
    tensor.data.add_(1)
    assert held.data().view(np.float32).tolist() == [1, 4, 2, 5, 3, 6]
