"""CUDA kernels: compiled when first needed, kept on disk, and launched.

torch has no public way to do this, so NVRTC, which comes with torch, and the driver are called by
the C interfaces that NVIDIA documents. The sources need no headers of CUDA.
"""

import contextlib
import ctypes
import functools
import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from distillmatch.errors import DistillMatchError
from distillmatch.files import user_cache, write_atomically

SOURCES = resources.files("distillmatch") / "fast" / "cuda"
TORCH = Path(torch.__file__).parent

Argument = Tensor | int | float | ctypes.Structure | None
OLDEST = 8
"""The first major compute capability that has all that the kernels use."""
DEFAULT_SHARED_BYTES = 48 * 1024
"""Shared memory that every kernel may have; more must be asked for."""
MAX_DYNAMIC_SHARED_SIZE = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES of the driver."""
DIGEST_BYTES = 32

disabled: dict[int, str] = {}
"""The devices whose kernels are not used, and why."""


def disable(device: int, reason: str) -> None:
    """Use plain torch on a device from now on; warn the first time."""
    if device not in disabled:
        disabled[device] = reason
        warnings.warn(
            f"distillmatch's kernels are not used on this GPU, and runs are slower: {reason}",
            stacklevel=2,
        )


class Arguments:
    """The place of a launch's arguments: eight bytes for each, of which a kernel reads its own.

    Structures stay where they are.
    """

    def __init__(self, count: int) -> None:
        self.words = (ctypes.c_uint64 * count)()
        first = ctypes.addressof(self.words)
        self.pointers = (ctypes.c_void_p * count)(*range(first, first + 8 * count, 8))

    def fill(self, arguments: Sequence[Argument]) -> None:
        """Write the arguments; a tensor is its address."""
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
    """A kernel of the current device, which may have so many bytes of shared memory."""

    def __init__(self, module: ctypes.c_void_p, name: str, shared_bytes: int) -> None:
        self.driver = _driver()
        self.function = ctypes.c_void_p()
        found = ctypes.byref(self.function)
        _check(self.driver.cuModuleGetFunction(found, module, name.encode()))
        if shared_bytes >= DEFAULT_SHARED_BYTES:
            asked = MAX_DYNAMIC_SHARED_SIZE, shared_bytes
            _check(self.driver.cuFuncSetAttribute(self.function, *asked))
        self.device = torch.cuda.current_device()
        self.unused: list[Arguments] = []

    def launch(
        self,
        grid: tuple[int, int],
        threads: int,
        shared_bytes: int,
        arguments: Sequence[Argument],
        *,
        cooperative: bool = False,
    ) -> None:
        """Queue the kernel on the current stream; cooperative if its blocks wait for each other."""
        # A launch has copied its arguments when it is queued; other threads launch meanwhile.
        try:
            places = self.unused.pop()
        except IndexError:
            places = Arguments(len(arguments))
        places.fill(arguments)
        stream = ctypes.c_void_p(torch.cuda.current_stream(self.device).cuda_stream)
        shape = (*grid, 1, threads, 1, 1, shared_bytes, stream, places.pointers)
        if cooperative:
            _check(self.driver.cuLaunchCooperativeKernel(self.function, *shape))
        else:
            _check(self.driver.cuLaunchKernel(self.function, *shape, None))
        self.unused.append(places)


@functools.cache
def device_properties(device: int | torch.device) -> Any:
    """Return the properties of a device; every launch asks, and torch takes long to answer."""
    return torch.cuda.get_device_properties(device)


def is_new_enough(device: int | torch.device) -> bool:
    """Return whether the kernels can be compiled for a device."""
    return torch.version.cuda is not None and int(device_properties(device).major) >= OLDEST


def load(
    device: int,
    files: Sequence[str],
    names: Sequence[str],
    constants: Mapping[str, int],
    shared_bytes: int,
) -> list[Kernel] | None:
    """Return the kernels `names` of a source, or None where a device cannot have them.

    The source is that of all `files` one after the other, with these constants defined.
    """
    room = device_properties(device).shared_memory_per_block_optin
    if device in disabled or not is_new_enough(device) or room < shared_bytes:
        return None
    try:
        with torch.cuda.device(device), torch.cuda.stream(torch.cuda.current_stream(device)):
            nvrtc, given = _nvrtc(), source_and_options(files, constants, _capability(device))
            made_of = "\0".join([given[0], *given[1], _version(nvrtc)])
            code = kept(made_of, lambda: _compiled(nvrtc, *given))
            module = ctypes.c_void_p()
            _check(_driver().cuModuleLoadData(ctypes.byref(module), code))
            return [Kernel(module, name, shared_bytes) for name in names]
    except (RuntimeError, OSError, AttributeError) as error:
        disable(device, f"{files[-1]} could not be compiled or loaded: {error}")
        return None


def source_and_options(
    files: Sequence[str], constants: Mapping[str, int], capability: str
) -> tuple[str, list[str]]:
    """Return a source with all that it builds on, and the compiler's options."""
    source = "".join((SOURCES / file).read_text() for file in ("primitives.cu", *files))
    options = [f"-arch=sm_{capability}", "-default-device"]
    return source, options + [f"-D{name}={value}" for name, value in sorted(constants.items())]


def _capability(device: int) -> str:
    properties = device_properties(device)
    return f"{properties.major}{properties.minor}"


def kept(made_of: str, make: Callable[[], bytes]) -> bytes:
    """Return what was made of a text before, from the user's cache, or make it and keep it.

    A file begins with the digest of what follows, so that a damaged one is made again.
    """
    folder = user_cache()
    if folder is None:
        return make()
    path = folder / "kernels" / f"{hashlib.sha256(made_of.encode()).hexdigest()[:32]}.cubin"
    with contextlib.suppress(OSError):
        content = path.read_bytes()
        digest, code = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
        if hashlib.sha256(code).digest() == digest:
            return code
    code = make()
    # A folder that cannot be written costs a second at every start, and nothing else.
    with contextlib.suppress(DistillMatchError):
        write_atomically(path, hashlib.sha256(code).digest() + code)
    return code


def _version(nvrtc: Any) -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvrtc.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def _compiled(nvrtc: Any, source: str, options: list[str]) -> bytes:
    """Compile CUDA to machine code, or raise a RuntimeError with what the compiler says."""
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    given = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    try:
        if nvrtc.nvrtcCompileProgram(program, len(options), given) != 0:
            log = _bytes(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
            raise RuntimeError(log.rstrip(b"\0\n").decode(errors="replace"))
        return _bytes(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _bytes(size_of: Any, get: Any, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    size_of(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    get(program, buffer)
    return buffer.raw


@functools.cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


@functools.cache
def _nvrtc() -> Any:
    """Return the NVRTC that comes with torch, which need not lie where the system looks.

    torch reaches it through a library of its own, which knows where it is and where NVRTC's own
    files are: loaded by its path, NVRTC 13 does not find these.
    """
    name = f"libnvrtc.so.{str(torch.version.cuda).partition('.')[0]}"
    for place in (str(TORCH / "lib" / "libcaffe2_nvrtc.so"), name):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(place)
    raise OSError(f"{name}, which comes with torch, was not found")


def _check(result: int) -> None:
    """Raise a RuntimeError if a call of the driver failed."""
    if result != 0:
        message = ctypes.c_char_p()
        _driver().cuGetErrorString(result, ctypes.byref(message))
        raise RuntimeError((message.value or b"unknown CUDA error").decode())
