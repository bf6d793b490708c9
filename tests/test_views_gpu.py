"""Views on a GPU beside those that are made on a CPU."""

import pytest
import torch
from test_views import KEY, NORMALIZATION, VIEWS, MakeViews, batch

pytestmark = pytest.mark.gpu
views = pytest.mark.parametrize("make", VIEWS)


@views
@pytest.mark.parametrize(
    ("side", "dtype", "tolerance"),
    [(32, torch.float32, 2e-6), (129, torch.float32, 2e-6), (32, torch.float16, 2e-3)],
)
def test_views_on_a_gpu_are_those_on_a_cpu(
    make: MakeViews, side: int, dtype: torch.dtype, tolerance: float
) -> None:
    images = batch(40, side)
    on_gpu = make(images.cuda(), KEY, NORMALIZATION, dtype=dtype)
    on_cpu = make(images, KEY, NORMALIZATION, dtype=dtype)
    assert on_gpu.is_cuda and on_gpu.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(on_gpu.cpu(), on_cpu, rtol=0, atol=tolerance)


@views
def test_no_view_waits_for_the_gpu(make: MakeViews) -> None:
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
