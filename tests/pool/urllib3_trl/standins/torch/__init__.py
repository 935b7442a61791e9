"""A stand-in: the client names torch's types in its annotations, and its calls need none of them."""

from types import SimpleNamespace

nn = SimpleNamespace(Module=object)
Tensor = device = dtype = object
