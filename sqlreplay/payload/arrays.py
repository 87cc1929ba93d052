"""numpy arrays and torch tensors as (dtype, shape, bytes), neither imported before one is seen.

Dtypes are spelled by patterns and an allow-list, never looked up by a name that the bytes choose. The bytes
themselves travel beside the msgpack document: `keep` takes a buffer and says where it went, `find` gives it back.
"""

import math
import re
import sys
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from sqlreplay.errors import MissingExtra
from sqlreplay.payload.refusal import Refused

__all__ = [
    "ArrayWire",
    "ScalarWire",
    "TensorWire",
    "read_array",
    "read_scalar",
    "read_tensor",
    "write_array",
    "write_scalar",
    "write_tensor",
]

Keep = Callable[[memoryview], tuple[int, int]]
Find = Callable[[int, int], memoryview]

PLAIN_DTYPE: Final = re.compile(
    r"[<>|]([biufc][0-9]{1,2}|[SUV][0-9]{1,10}|[mM]8(\[[0-9]{0,9}(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?)"
)
LONG_DOUBLE: Final = re.compile(r"[<>]f(12|16)|[<>]c(24|32)")
MAX_DIMENSIONS: Final = 64

TENSOR_DTYPES: Final = frozenset(
    ["bool", "bfloat16", "float16", "float32", "float64", "complex32", "complex64", "complex128"]
    + [
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
        "float4_e2m1fn_x2",
    ]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64)]
    + ["bits8", "bits16", "bits1x8", "bits2x4", "bits4x2"]
)

PlainDtype = str
FieldWire = tuple[str, str, int, list[int]]  # name, dtype, offset, shape of a subarray


class StructuredDtype(Struct, array_like=True, forbid_unknown_fields=True):
    fields: list[FieldWire]
    itemsize: int


DtypeWire = PlainDtype | StructuredDtype


class ArrayWire(Struct, array_like=True, forbid_unknown_fields=True):
    """An ndarray whose bytes are kept elsewhere, in Fortran order where it is stored that way."""

    dtype: DtypeWire
    mantissa_bits: int
    shape: list[int]
    fortran: bool
    offset: int
    size: int


class ScalarWire(Struct, array_like=True, forbid_unknown_fields=True):
    """A numpy scalar. Text, bytes and void are named by kind alone: as a dtype they would lose their NULs."""

    dtype: DtypeWire
    mantissa_bits: int
    data: bytes


class TensorWire(Struct, array_like=True, forbid_unknown_fields=True):
    """A dense tensor whose bytes are kept elsewhere; it comes back contiguous and on the CPU."""

    dtype: str
    shape: list[int]
    requires_grad: bool
    offset: int
    size: int


def write_array(array: Any, keep: Keep) -> ArrayWire:
    dtype, mantissa_bits = _write_dtype(array.dtype)
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    offset, size = keep(_bytes_of(array.T if fortran else array))
    return ArrayWire(dtype, mantissa_bits, list(array.shape), fortran, offset, size)


def read_array(wire: ArrayWire, find: Find) -> Any:
    numpy = _load_numpy()
    dtype = _read_dtype(wire.dtype, wire.mantissa_bits)
    _check_size(wire.shape, dtype.itemsize, wire.size)
    data = find(wire.offset, wire.size)
    array = numpy.empty(wire.shape[::-1] if wire.fortran else wire.shape, dtype)
    if wire.size:
        _bytes_of(array)[:] = data
    return array.T if wire.fortran else array


def write_scalar(scalar: Any) -> ScalarWire:
    numpy = sys.modules["numpy"]
    if type(scalar) is numpy.str_:
        return ScalarWire("U", 0, str(scalar).encode("utf-8", "surrogatepass"))
    if type(scalar) is numpy.bytes_:
        return ScalarWire("S", 0, bytes(scalar))
    if type(scalar) is numpy.void and scalar.dtype.names is None:
        return ScalarWire("V", 0, scalar.tobytes())
    dtype, mantissa_bits = _write_dtype(scalar.dtype)
    return ScalarWire(dtype, mantissa_bits, scalar.tobytes())


def read_scalar(wire: ScalarWire) -> Any:
    numpy = _load_numpy()
    if wire.dtype == "U":
        return numpy.str_(wire.data.decode("utf-8", "surrogatepass"))
    if wire.dtype in ("S", "V"):
        return (numpy.bytes_ if wire.dtype == "S" else numpy.void)(wire.data)
    dtype = _read_dtype(wire.dtype, wire.mantissa_bits)
    _check_size([], dtype.itemsize, len(wire.data))
    return numpy.frombuffer(bytearray(wire.data), dtype)[0]


def write_tensor(tensor: Any, keep: Keep) -> TensorWire:
    torch = sys.modules["torch"]
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in TENSOR_DTYPES or tensor.layout is not torch.strided or tensor.is_meta or tensor.is_nested:
        raise Refused(
            f"a tensor of dtype {tensor.dtype}, layout {tensor.layout} on {tensor.device} has no exact form as bytes; "
            "store a dense tensor, such as value.to_dense() or value.dequantize()"
        )
    requires_grad = tensor.requires_grad and tensor.is_leaf
    offset, size = keep(_tensor_bytes(torch, tensor) if tensor.numel() else memoryview(b""))
    return TensorWire(name, list(tensor.shape), requires_grad, offset, size)


def read_tensor(wire: TensorWire, find: Find) -> Any:
    torch = _load_torch()
    if wire.dtype not in TENSOR_DTYPES:
        raise ValueError(f"found a tensor of dtype {wire.dtype!r}, which is not one that sqlreplay writes")
    dtype = getattr(torch, wire.dtype, None)
    if dtype is None:
        raise MissingExtra(
            f"these bytes hold a tensor of dtype {wire.dtype}, which torch {torch.__version__} does not have: "
            "pip install --upgrade 'sqlreplay[torch]' torch"
        )
    _check_size(wire.shape, dtype.itemsize, wire.size)
    if wire.size:
        tensor = torch.frombuffer(bytearray(find(wire.offset, wire.size)), dtype=dtype).reshape(wire.shape)
    else:
        tensor = torch.empty(0, dtype=torch.uint8).view(dtype).reshape(wire.shape)
    return tensor.requires_grad_() if wire.requires_grad else tensor


def _tensor_bytes(torch: Any, tensor: Any) -> memoryview:
    # Copying to a contiguous layout is not implemented for every dtype, but it is for these of the same width.
    carriers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().view(carriers[tensor.element_size()])
    return memoryview(plain.contiguous().reshape(-1).view(torch.uint8).numpy())


def _bytes_of(array: Any) -> memoryview:
    if not array.nbytes:
        return memoryview(b"")
    numpy = sys.modules["numpy"]
    return memoryview(numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8))


def _check_size(shape: list[int], itemsize: int, size: int) -> None:
    if len(shape) > MAX_DIMENSIONS or any(length < 0 for length in shape):
        raise ValueError(f"found the shape {shape}")
    if math.prod(filter(None, shape)) * itemsize > sys.maxsize:  # numpy and torch differ on such an empty array
        raise ValueError(f"found the shape {shape}")
    if math.prod(shape) * itemsize != size:
        raise ValueError(f"found {size} bytes for the shape {shape} with {itemsize} bytes per element")


def _write_dtype(dtype: Any) -> tuple[DtypeWire, int]:
    """Spell the dtype; with it, for long doubles, how many mantissa bits they have on this platform."""
    if dtype.names is None:
        if dtype.subdtype is None and PLAIN_DTYPE.fullmatch(dtype.str) and _is_builtin(dtype):
            return dtype.str, _mantissa_bits(dtype.str)
    else:
        fields: list[FieldWire] = []
        for name in dtype.names:
            inner, offset, *title = dtype.fields[name]
            base, shape = inner.subdtype or (inner, ())
            if title or base.names or not PLAIN_DTYPE.fullmatch(base.str) or LONG_DOUBLE.fullmatch(base.str):
                break
            fields.append((name, base.str, offset, list(shape)))
        else:
            return StructuredDtype(fields, dtype.itemsize), 0
    raise Refused(
        f"an array of dtype {dtype} has no safe form as bytes; convert it to numbers, text or a flat structured dtype "
        "with value.astype(...), or to plain lists with value.tolist()"
    )


def _is_builtin(dtype: Any) -> bool:
    # Foreign dtypes, such as ml_dtypes' bfloat16, spell themselves as void bytes.
    return bool(dtype.kind != "V" or dtype.type is sys.modules["numpy"].void)


def _read_dtype(wire: DtypeWire, mantissa_bits: int) -> Any:
    numpy = _load_numpy()
    if isinstance(wire, StructuredDtype):
        names, formats, offsets, shapes = zip(*wire.fields, strict=True) if wire.fields else ((), (), (), ())
        if not all(map(PLAIN_DTYPE.fullmatch, formats)):
            raise ValueError(f"found a structured dtype of {formats}")
        spelled = {
            "names": list(names),
            "formats": [(text, tuple(shape)) if shape else text for text, shape in zip(formats, shapes, strict=True)],
            "offsets": list(offsets),
            "itemsize": wire.itemsize,
        }
        return numpy.dtype(spelled)
    if not PLAIN_DTYPE.fullmatch(wire):
        raise ValueError(f"found an array of dtype {wire!r}, which is not one that sqlreplay writes")
    dtype = numpy.dtype(wire)
    if _mantissa_bits(wire) != mantissa_bits:
        raise ValueError(f"found long doubles with {mantissa_bits} mantissa bits, this platform has others")
    return dtype


def _mantissa_bits(spelled: str) -> int:
    if LONG_DOUBLE.fullmatch(spelled):
        return int(sys.modules["numpy"].finfo(spelled).nmant)
    return 0


def _load_numpy() -> Any:
    try:
        import numpy
    except ImportError as error:
        raise MissingExtra("these bytes hold numpy arrays, and numpy is not installed: pip install numpy") from error
    return numpy


def _load_torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingExtra(
            "these bytes hold torch tensors, and torch is not installed: pip install 'sqlreplay[torch]'"
        ) from error
    return torch
