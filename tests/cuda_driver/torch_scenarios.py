"""Arrays of torch, which the process does not have: what the module asks of it is here. The driver is the fake one."""

import sys
import types

import numpy as np
from cuda_driver.driver import main
from cuda_driver.module_scenarios import TWICE, compiled, device, fake, fetched, on_device, raised

from tc.errors import InputError
from tc.runtime.device_arrays import CUDA


def torch_gets_tensors_of_its_own_on_its_stream():
    torch, queue = types.ModuleType("torch"), device.new_queue()

    class Tensor:
        def __init__(self, array):
            self.array = array
            self.seen = []

        def __dlpack_device__(self):
            return CUDA, 0

        def __dlpack__(self, stream=None):
            self.seen.append(stream)
            return self.array.__dlpack__(stream=-1)

    Tensor.__module__ = "torch"
    torch.float32, made = "float32", []

    def empty(shape, dtype, device):
        assert (dtype, device) == ("float32", "cuda:0")
        made.append(Tensor(on_device(np.zeros(shape, np.float32))))
        return made[-1]

    torch.empty = empty
    torch.cuda = types.SimpleNamespace(current_stream=lambda number: types.SimpleNamespace(cuda_stream=queue.stream))
    sys.modules["torch"] = torch
    module = compiled(TWICE)
    x = np.arange(50, dtype=np.float32)
    value = Tensor(on_device(x))
    fake.clear()

    y, z = module(value)
    untouched = not any(fake.memory(each.array.address)[0][:200].any() for each in made)
    queue.finish()

    del sys.modules["torch"]
    assert made == [y, z] and value.seen == [queue.stream], (made, y, z, value.seen)
    assert untouched
    assert np.array_equal(fetched(y.array), 2 * x) and np.array_equal(fetched(z.array), 4 * x * x)


def tensors_of_torch_need_no_capsules_on_the_stream_of_torch():
    torch, queue, other = types.ModuleType("torch"), device.new_queue(), device.new_queue()

    class Tensor:
        def __init__(self, array, **facts):
            self.array, self.shape, self.seen = array, array.shape, []
            usual = {"dtype": "float32", "is_cuda": True, "requires_grad": False, "dense": True, "device": 0, "layout": "strided"}
            self.facts = usual | facts

        def __getattr__(self, name):
            return self.facts[name]

        def is_neg(self):
            return False

        def is_contiguous(self):
            assert self.layout == "strided", "sparse tensors cannot say so"
            return self.facts["dense"]

        def get_device(self):
            return self.facts["device"]

        def data_ptr(self):
            return self.array.address

        def __dlpack_device__(self):
            return CUDA, 0

        def __dlpack__(self, stream=None):
            self.seen.append(stream)
            if self.requires_grad or self.layout != "strided":
                raise BufferError("it has a gradient" if self.requires_grad else "it is sparse")
            return self.array.__dlpack__(stream=-1)

    Tensor.__module__, torch.Tensor, torch.float32, torch.strided = "torch", Tensor, "float32", "strided"
    torch.empty = lambda shape, dtype, device: Tensor(on_device(np.zeros(shape, np.float32)))
    torch.cuda = types.SimpleNamespace(current_stream=lambda number: types.SimpleNamespace(cuda_stream=queue.stream))
    sys.modules["torch"] = torch
    module = compiled(TWICE)
    x = np.arange(50, dtype=np.float32)
    plain, gapped = Tensor(on_device(x)), Tensor(on_device(x), dense=False)
    elsewhere, learning = Tensor(on_device(x)), Tensor(on_device(x), requires_grad=True)
    sparse = Tensor(on_device(x), layout="sparse_csr")

    try:
        y, z = module(plain)
        queue.finish()
        module(gapped)
        module(elsewhere, stream=other.stream)
        said = [raised(InputError, module, each) for each in (learning, sparse)]
        queue.finish()
        other.finish()
    finally:
        del sys.modules["torch"]

    assert plain.seen == y.seen == z.seen == [], (plain.seen, y.seen, z.seen)
    assert gapped.seen == [queue.stream] and elsewhere.seen == [other.stream], (gapped.seen, elsewhere.seen)
    assert "it has a gradient" in said[0] and "it is sparse" in said[1], said
    assert np.array_equal(fetched(y.array), 2 * x) and np.array_equal(fetched(z.array), 4 * x * x)


if __name__ == "__main__":
    main(globals())
