"""What unlabeled images are worth in stored ones."""

import pytest

from distillmatch.metrics import equivalent_coreset, memory_saving

SIZES, OMEGAS = [0, 400, 200, 800], [30.0, 50.0, 45.0, 54.0]


@pytest.mark.parametrize(
    ("omega", "images"),
    [(45, 200.0), (47.5, 300.0), (52, 600.0), (54, 800.0), (30, 0.0), (20, 0.0), (54.1, None)],
)
def test_base_is_taken_as_linear_between_the_coresets_that_were_measured(
    omega: float, images: float | None
) -> None:
    found = equivalent_coreset(SIZES, OMEGAS, omega)
    assert found == (None if images is None else pytest.approx(images))


def test_where_base_falls_with_more_images_the_smallest_coreset_counts() -> None:
    assert equivalent_coreset([100, 200, 300], [40.0, 50.0, 45.0], 47.0) == pytest.approx(170.0)


def test_what_is_saved_is_counted_for_each_unlabeled_image() -> None:
    assert memory_saving(935, 4000) == pytest.approx(0.23375)
