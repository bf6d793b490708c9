"""Kernels in CUDA, compiled when first needed and kept on disk.

torch compiles such kernels too, but only where the headers of CUDA are installed; ours need none.
Its compiler is used. Its launcher knows no cooperative launch, no float and no null pointer.
"""

import contextlib
import ctypes
import functools
import hashlib
import warnings
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import torch
from torch import Tensor
from torch.cuda import _utils

from distillmatch.errors import DistillMatchError
from distillmatch.files import user_cache, write_atomically

PACKAGE = resources.files("distillmatch")

Argument = Tensor | int | float | ctypes.Structure | None
OLDEST = 8
"""The first generation of CUDA devices that has all that our kernels use."""


class Places:
    """Where a launch's arguments are: eight bytes for each, of which a kernel reads what it needs.

    Structures stay where they are.
    """

    def __init__(self, count: int) -> None:
        self.words = (ctypes.c_uint64 * count)()
        first = ctypes.addressof(self.words)
        self.pointers = (ctypes.c_void_p * count)(*range(first, first + 8 * count, 8))

    def fill(self, arguments: Sequence[Argument]) -> None:
        """Put arguments there: a tensor is its address."""
        words, pointers = self.words, self.pointers
        for place, argument in enumerate(arguments):
            if isinstance(argument, int):
                words[place] = argument
            elif isinstance(argument, Tensor):
                words[place] = argument.data_ptr()
            elif argument is None:
                words[place] = 0
            elif isinstance(argument, ctypes.Structure):
                pointers[place] = ctypes.addressof(argument)
            else:
                words[place] = int.from_bytes(bytes(ctypes.c_float(argument)), "little")


class Kernel:
    """A kernel of a device, ready to be launched with up to so many bytes of shared memory."""

    def __init__(self, code: bytes, name: str, shared_bytes: int) -> None:
        kernel = _utils._cuda_load_module(code, [name])[name]  # type: ignore[index]
        kernel.set_shared_memory_config(shared_bytes)
        self.function = kernel.func
        library: Any = _utils._get_gpu_runtime_library()
        self.launch_plainly = library.cuLaunchKernel
        self.launch_together = library.cuLaunchCooperativeKernel
        self.device = torch.cuda.current_device()
        self.unused: list[Places] = []

    def launch(
        self,
        grid: tuple[int, int],
        threads: int,
        shared_bytes: int,
        arguments: Sequence[Argument],
        *,
        together: bool = False,
    ) -> None:
        """Queue the kernel on the current stream; `together` if its programs await each other."""
        # A launch has copied its arguments when it is queued; other threads launch meanwhile.
        try:
            places = self.unused.pop()
        except IndexError:
            places = Places(len(arguments))
        places.fill(arguments)
        stream = ctypes.c_void_p(current_stream(self.device))
        shape = (*grid, 1, threads, 1, 1, shared_bytes, stream, places.pointers)
        if together:
            _utils._check_cuda(self.launch_together(self.function, *shape))
        else:
            _utils._check_cuda(self.launch_plainly(self.function, *shape, None))
        self.unused.append(places)


def current_stream(device: int) -> int:
    """Return the number of the current stream of a device.

    What torch calls the current stream is an object that takes longer to make than a launch.
    """
    return int(torch._C._cuda_getCurrentRawStream(device))


@functools.cache
def device_properties(device: int | torch.device) -> Any:
    """Return what is known of a device: every launch asks, and torch takes its time to answer."""
    return torch.cuda.get_device_properties(device)


def is_new_enough(device: int | torch.device) -> bool:
    """Tell whether a CUDA device is one that our kernels can be compiled for."""
    return int(device_properties(device).major) >= OLDEST


def load_if_possible(
    folder: str,
    device: int,
    file: str,
    names: Sequence[str],
    constants: Mapping[str, int],
    shared_bytes: int,
    instead: str,
    *,
    parts: Sequence[str] = (),
) -> list[Kernel] | None:
    """Return kernels for a device, or None where there can be none: with a warning if it is odd.

    `folder` is where in this package the source lies, `parts` are files there that it builds on;
    `instead` says what is used without it.
    """
    room = device_properties(device).shared_memory_per_block_optin
    if not is_new_enough(device) or room < shared_bytes:
        return None
    try:
        with torch.cuda.device(device):
            return load_kernels(folder, file, names, constants, shared_bytes, parts)
    except (RuntimeError, OSError, AttributeError) as error:
        warnings.warn(f"{file} could not be compiled, {instead}: {error}", stacklevel=3)
        return None


def load_kernels(
    folder: str,
    file: str,
    names: Sequence[str],
    constants: Mapping[str, int],
    shared_bytes: int,
    parts: Sequence[str] = (),
) -> list[Kernel]:
    """Return the kernels `names` of a source file, for the device at hand."""
    major, minor = torch.cuda.get_device_capability()
    files = [f"{folder}/{one}" for one in ("primitives.cu", *parts, file)]
    source = "".join((PACKAGE / one).read_text() for one in files)
    options = [f"-arch=sm_{major}{minor}", "-default-device"]
    options += [f"-D{constant}={value}" for constant, value in sorted(constants.items())]
    code = _kept(_utils._get_gpu_rtc_library(), source, options)
    return [Kernel(code, name, shared_bytes) for name in names]


def _kept(library: Any, source: str, options: list[str]) -> bytes:
    """Return machine code that was kept in the user's cache, or compile it and keep it there."""
    version = ctypes.c_int(), ctypes.c_int()
    library.nvrtcVersion(ctypes.byref(version[0]), ctypes.byref(version[1]))
    made_of = "\0".join([source, *options, str(version[0].value), str(version[1].value)])
    folder, name = user_cache(), hashlib.sha256(made_of.encode()).hexdigest()[:32]
    if folder is None:
        return compiled(library, source, options)
    path = folder / "kernels" / f"{name}.cubin"
    try:
        return path.read_bytes()
    except OSError:
        code = compiled(library, source, options)
    # A folder that cannot be written costs a second at every start, and nothing else.
    with contextlib.suppress(DistillMatchError):
        write_atomically(path, code)
    return code


def compiled(library: Any, source: str, options: list[str]) -> bytes:
    """Compile CUDA to machine code by NVRTC, or raise a RuntimeError with what it says."""
    program = ctypes.c_void_p()
    library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    given = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    try:
        if library.nvrtcCompileProgram(program, len(options), given) != 0:
            said = _bytes(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program)
            raise RuntimeError(said.rstrip(b"\0\n").decode(errors="replace"))
        return _bytes(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _bytes(size_of: Any, get: Any, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    size_of(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    get(program, buffer)
    return buffer.raw
