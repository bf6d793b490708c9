"""What is done on CUDA to the maps of a frozen network, by the fastest kernels there are."""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from distillmatch.fast import convolution, pointwise, running_statistics
from distillmatch.fast.convolution import SUM_AFTER, SUM_BEFORE
from distillmatch.fast.frozen import Layer
from distillmatch.fast.running_statistics import Activated, Coefficients
from distillmatch.networks.normalization import BatchNorm


class OnDevice:
    """Operations in bfloat16. Signs are those of `running_statistics`."""

    def __init__(self, weights: Mapping[nn.Conv2d, Tensor]) -> None:
        self.weights = weights

    def weight(self, layer: nn.Conv2d) -> Tensor:
        """Return a convolution's rounded weights."""
        return self.weights[layer]

    def coefficients(self, norms: Sequence[BatchNorm]) -> Sequence[Coefficients]:
        """Return what each normalization multiplies by and adds, by one launch."""
        return running_statistics.coefficients(norms)

    def activate(
        self,
        maps: Tensor,
        layer: Layer,
        by: Coefficients,
        shortcut: Tensor | None = None,
        *,
        keeps_total: bool = False,
        keeps_signs: bool = False,
    ) -> Activated:
        """Do it in one launch if our kernel can, else where the library has convolved."""
        if convolution.takes_activated(maps, *layer, SUM_BEFORE if shortcut is not None else 0):
            return convolution.convolve_and_activate(
                maps, layer.weight, by, shortcut, keeps_total, keeps_signs
            )
        convolved = convolution.convolve_any(maps, *layer)
        return running_statistics.activate(convolved, by, shortcut, keeps_total, keeps_signs)

    def convolve(self, maps: Tensor, layer: Layer) -> Tensor:
        """Convolve by a matrix product."""
        return pointwise.convolve(maps, *layer)

    def take_back_mean(self, given: Tensor, by: Coefficients, signs: Tensor) -> Tensor:
        """Let all positions of an image read the one gradient."""
        positions = signs.shape[1] * signs.shape[2]
        shared = (given / positions).contiguous()
        return running_statistics.take_back(shared, signs, by, None, positions)

    def take_back(
        self,
        given: Tensor,
        layer: Layer,
        by: Coefficients,
        signs: Tensor,
        *,
        of_total: Tensor | None = None,
        shortcut: tuple[Tensor, Layer] | None = None,
    ) -> Tensor:
        """Do it in one launch if our kernel can, else after the library."""
        adds = SUM_BEFORE if shortcut is not None else SUM_AFTER if of_total is not None else 0
        if convolution.takes_activated(given, *layer, adds, transposed=True):
            if shortcut is not None:
                of_shortcut, (weight, _) = shortcut
                of_total = pointwise.convolve(of_shortcut, weight.transpose(0, 1), 1)
            return convolution.take_back_through_activation(
                given, layer.weight, by, signs, of_total, adds
            )
        images, height, width, groups = signs.shape
        of_input = convolution.take_back(given, (images, 8 * groups, height, width), *layer)
        if shortcut is not None:
            pointwise.take_back(shortcut[0], *shortcut[1], of_input)
        return running_statistics.take_back(of_input, signs, by, of_total)

    def take_back_to_images(self, given: Tensor, layer: Layer) -> Tensor:
        """Make the gradient of three channels."""
        images, _, height, width = given.shape
        return convolution.take_back(given, (images, 3, height, width), *layer)
