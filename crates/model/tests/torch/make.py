"""Writes the files beside it, as torch.save would: run it with Python, without PyTorch.

torch.save writes a zip archive of stored entries, each at a multiple of 64 bytes, and in its data.pkl a pickle of protocol 2,
in which storages are persistent ids. Classes that only look like PyTorch's stand for them here.
"""

import collections
import io
import os
import pickle
import struct
import sys
import types
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))

torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
sys.modules.update({"torch": torch, "torch._utils": utils})


def known(module, name, thing):
    thing.__module__, thing.__name__, thing.__qualname__ = module.__name__, name, name
    setattr(module, name, thing)
    return thing


REBUILD_TENSOR = known(utils, "_rebuild_tensor_v2", lambda *_: None)
REBUILD_PARAMETER = known(utils, "_rebuild_parameter", lambda *_: None)


def kind(name, code):
    return known(torch, name, type(name, (), {"code": code}))


FLOAT, HALF, BFLOAT16 = kind("FloatStorage", "f"), kind("HalfStorage", "e"), kind("BFloat16Storage", "H")
LONG, INT, BOOL, DOUBLE = kind("LongStorage", "q"), kind("IntStorage", "i"), kind("BoolStorage", "?"), kind("DoubleStorage", "d")


class Storage:
    def __init__(self, kind, values):
        self.kind, self.values = kind, values

    def bytes(self):
        return struct.pack(f"<{len(self.values)}{self.kind.code}", *self.values)


class Tensor:
    def __init__(self, storage, shape, offset=0, strides=None, metadata=()):
        self.storage, self.shape, self.offset, self.metadata = storage, shape, offset, metadata
        self.strides = strides or tuple(self.steps(shape))

    @staticmethod
    def steps(shape):
        for at in range(len(shape)):
            step = 1
            for dim in shape[at + 1:]:
                step *= dim
            yield step

    def __reduce_ex__(self, _):
        hooks = collections.OrderedDict()
        args = (self.storage, self.offset, self.shape, self.strides, False, hooks, *self.metadata)
        return REBUILD_TENSOR, args


class Parameter:
    def __init__(self, tensor):
        self.tensor = tensor

    def __reduce_ex__(self, _):
        return REBUILD_PARAMETER, (self.tensor, True, collections.OrderedDict())


def plain(kind, shape, values):
    return Tensor(Storage(kind, values), shape)


def save(name, value, root="archive", protocol=2, compression=zipfile.ZIP_STORED, byteorder=b"little"):
    keys = {}

    class Pickler(pickle.Pickler):
        def persistent_id(self, thing):
            if not isinstance(thing, Storage):
                return None
            key = keys.setdefault(thing, str(len(keys)))
            return ("storage", thing.kind, key, "cpu", len(thing.values))

    out = io.BytesIO()
    Pickler(out, protocol=protocol).dump(value)
    with zipfile.ZipFile(os.path.join(HERE, name), "w", compression) as archive:
        def write(path, data):
            info = zipfile.ZipInfo(f"{root}/{path}")
            info.compress_type = compression
            start = archive.fp.tell() + 30 + len(info.filename)
            padding = (64 - (start + 4) % 64) % 64
            info.extra = b"FB" + struct.pack("<H", padding) + b"Z" * padding
            archive.writestr(info, data)

        write("data.pkl", out.getvalue())
        write("byteorder", byteorder)
        for storage, key in keys.items():
            write(f"data/{key}", storage.bytes())
        write("version", b"3\n")


def module_state(tensors):
    """A state dict as modules give it: with an attribute of versions."""
    state = collections.OrderedDict(tensors)
    state._metadata = collections.OrderedDict([("", {"version": 1})])
    return state


SHARED = Storage(FLOAT, [0.5, -1.0, 2.0, 3.5, -4.0, 6.25])
save("state.bin", module_state([
    ("a.weight", Parameter(plain(FLOAT, (2, 3), [1.0, -2.0, 3.0, 4.5, 5.0, -6.0]))),
    ("half", plain(HALF, (2,), [1.0, -2.0])),
    ("bf16", plain(BFLOAT16, (2, 1), [0x3F80, 0xC000])),
    ("d2t", plain(LONG, (3,), [0, -5, 1 << 40])),
    ("small", plain(INT, (2,), [7, -7])),
    ("t2d", plain(BOOL, (4,), [True, False, True, True])),
    ("double", plain(DOUBLE, (1,), [0.25])),
    ("first", Tensor(SHARED, (2, 2))),
    # A dimension of 1 may have any stride.
    ("rest", Tensor(SHARED, (1, 2), offset=4, strides=(77, 1), metadata=({},))),
    ("scalar", Tensor(SHARED, (), offset=3)),
    ("nothing", plain(FLOAT, (0, 4), [])),
]))
ONE = plain(FLOAT, (2,), [1.0, -2.0])
save("protocol4.bin", {"a": ONE}, root="pytorch_model", protocol=4)
save("shard1.bin", {"a": ONE})
save("shard2.bin", {"b": ONE})

# What is refused.
save("transposed.bin", {"a": Tensor(SHARED, (3, 2), strides=(1, 3))})
save("beyond.bin", {"a": Tensor(SHARED, (2, 2), offset=3)})
save("packed.bin", {"a": ONE}, compression=zipfile.ZIP_DEFLATED)
save("big.bin", {"a": ONE}, byteorder=b"big")
save("nested.bin", {"model": {"a": ONE}, "epoch": 3})
save("list.bin", [ONE])


class Call:
    def __reduce__(self):
        return os.system, ("true",)


save("call.bin", {"a": Call()})
with open(os.path.join(HERE, "legacy.bin"), "wb") as legacy:
    pickle.dump(0x1950A86A20F9469CFC6C, legacy, protocol=2)
