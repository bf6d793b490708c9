"""Views on a GPU: the kernels' and torch's beside those that are made on a CPU."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from test_views import KEY, NORMALIZATION, VIEWS, MakeViews, batch
from test_views_on_host import same_bits
from torch import Tensor

from distillmatch.cuda.compiled import Kernel, is_new_enough
from distillmatch.views import Normalization, kernels, strong, weak, weak_views
from distillmatch.views.normalization import Normalizer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
views = pytest.mark.parametrize("make", VIEWS)
Launches = list[tuple[int, int]]


def on_cpu_alone(normalization: Normalization, pixels: Tensor) -> Normalizer:
    assert not pixels.is_cuda, "torch makes views on the GPU"
    return Normalizer(normalization, pixels)


@pytest.fixture(name="launches")
def kernels_alone(monkeypatch: pytest.MonkeyPatch) -> Launches:
    """Let views be made by kernels alone, and return the grids that are launched."""
    if not is_new_enough(torch.cuda.current_device()):
        pytest.skip("needs a CUDA device that kernels of ours are made for")
    launched: Launches = []
    launch: Callable[..., None] = Kernel.launch

    def noted(kernel: Kernel, grid: tuple[int, int], *others: object) -> None:
        launched.append(grid)
        launch(kernel, grid, *others)

    monkeypatch.setattr(Kernel, "launch", noted)
    monkeypatch.setattr(weak, "Normalizer", on_cpu_alone)
    monkeypatch.setattr(strong, "Normalizer", on_cpu_alone)
    return launched


@views
@pytest.mark.parametrize("dtype", kernels.DTYPES, ids=str)
@pytest.mark.parametrize(
    ("count", "side"), [(2000, 32), (300, 31), (300, 64), (40, 128), (40, 2), (40, 1)]
)
def test_one_launch_makes_the_views_of_a_cpu_to_the_bit(
    make: MakeViews, count: int, side: int, dtype: torch.dtype, launches: Launches
) -> None:
    # Sine and cosine may differ in their last bit: it decides a pixel once in a billion images.
    images = batch(300, side).repeat(-(-count // 300), 1, 1, 1)[:count]
    positions = torch.arange(5, 5 + count)
    on_gpu = make(images.cuda(), KEY, NORMALIZATION, dtype=dtype, positions=positions)
    assert launches == [(count, 1)]
    assert on_gpu.is_cuda and on_gpu.is_contiguous(memory_format=torch.channels_last)
    on_cpu = make(images, KEY, NORMALIZATION, dtype=dtype, positions=positions)
    assert same_bits(on_gpu.cpu(), on_cpu)


@pytest.mark.parametrize("padding", [0, 9])
def test_another_padding_gives_the_same_on_both(padding: int, launches: Launches) -> None:
    on_gpu = weak_views(batch().cuda(), KEY, NORMALIZATION, padding=padding)
    on_cpu = weak_views(batch(), KEY, NORMALIZATION, padding=padding)
    assert launches and same_bits(on_gpu.cpu(), on_cpu)


@views
def test_threads_make_views_side_by_side_on_streams_of_their_own(
    make: MakeViews, launches: Launches
) -> None:
    images = batch().cuda()
    expected = [make(batch(), key, NORMALIZATION) for key in range(4)]
    torch.cuda.synchronize()

    def repeat(key: int) -> list[Tensor]:
        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            made = [make(images, key, NORMALIZATION) for _ in range(20)]
            torch.cuda.current_stream().synchronize()
        return made

    with ThreadPoolExecutor(4) as threads:
        for made, wanted in zip(threads.map(repeat, range(4)), expected, strict=True):
            assert all(same_bits(one.cpu(), wanted) for one in made)
    assert len(launches) == 80


@views
def test_without_kernels_torch_makes_the_same_views(
    make: MakeViews, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_kernels", lambda device: None)
    on_gpu = make(batch().cuda(), KEY, NORMALIZATION)
    assert on_gpu.is_cuda and on_gpu.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(on_gpu.cpu(), make(batch(), KEY, NORMALIZATION), rtol=0, atol=2e-6)


@views
@pytest.mark.parametrize(
    ("side", "dtype", "tolerance"), [(129, torch.float32, 2e-6), (32, torch.float16, 2e-3)]
)
def test_what_the_kernels_do_not_take_is_left_to_torch(
    make: MakeViews, side: int, dtype: torch.dtype, tolerance: float
) -> None:
    images = batch(8, side)
    assert not kernels.takes(images.cuda().permute(0, 2, 3, 1), dtype)
    on_gpu = make(images.cuda(), KEY, NORMALIZATION, dtype=dtype)
    on_cpu = make(images, KEY, NORMALIZATION, dtype=dtype)
    torch.testing.assert_close(on_gpu.cpu(), on_cpu, rtol=0, atol=tolerance)


@views
@pytest.mark.parametrize("with_kernels", [True, False])
def test_no_view_waits_for_the_gpu(
    make: MakeViews, with_kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not with_kernels:
        monkeypatch.setattr(kernels, "_kernels", lambda device: None)
    images = batch().cuda()
    make(images, KEY, NORMALIZATION)
    torch.cuda.set_sync_debug_mode("error")
    try:
        make(images, KEY, NORMALIZATION)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@views
def test_an_empty_batch_gives_no_views_on_a_gpu(make: MakeViews) -> None:
    assert make(batch()[:0].cuda(), KEY, NORMALIZATION).shape == (0, 3, 32, 32)
