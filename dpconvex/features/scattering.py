"""Scattering coefficients of images: fixed wavelets, moduli and averages."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from scipy import fft

from dpconvex.data.encoded import with_origin
from dpconvex.data.validation import real_array
from dpconvex.errors import DomainError, TemplateError
from dpconvex.features.transformers import LearnsNothing, raise_unusable
from dpconvex.util.arguments import COUNT, require
from dpconvex.util.arrays import Array
from dpconvex.util.plain_data import is_whole
from dpconvex.util.runtime import in_order, one_blas_thread

# Images are transformed in blocks of this size, to fit into a cache.  Black images fill up the last block, because libraries
# compute in another order for other shapes.
BLOCK = 8
# The wavelets of the kymatio library: width and frequency of the finest, and number of periodic images on each side.
WIDTH, FREQUENCY, REPEATED = 0.8, 0.75 * math.pi, 2


@dataclass(eq=False, repr=False)
class ScatteringFeatures(LearnsNothing):
    """Compute scattering coefficients of images: averages of wavelet coefficients by scale, direction and position.

    An image is convolved with wavelets of `J` scales and `L` directions.  Absolute values are taken, and may be convolved with
    wavelets of coarser scales once more.  The results are averaged over 2^J pixels.  Coefficients change little when an image is
    moved or bent a little.  Nothing is learnt, so this costs no privacy.

    Parameters
    ----------
    shape : sequence of int
        Height and width of an image, at least 2^J pixels each.  For several colours their number comes last.
    J : int
        Number of scales.
    L : int
        Number of directions.

    Notes
    -----
    Bruna & Mallat, "Invariant scattering convolution networks" (2013), with the Morlet wavelets, reflected borders and order of
    the kymatio library (Andreux et al. 2020).  Tramèr & Boneh (2021) learn privately from such features (J = 2, L = 8), after
    Oyallon & Mallat (2015).

    Examples
    --------
    >>> digits = np.random.default_rng(0).random((5, 28, 28), dtype=np.float32)
    >>> scattering = ScatteringFeatures((28, 28))
    >>> scattering.transform(digits).shape, scattering.coefficients
    ((5, 3969), (81, 7, 7))
    """

    shape: Sequence[int] = (28, 28)
    J: int = 2
    L: int = 8

    def transform(self, X: ArrayLike) -> NDArray[Any]:
        """Return the coefficients of images, given in their shape or as rows of pixels, shape (n, coefficients).

        float64 for float64 input, otherwise float32. No bit of an image's coefficients depends on other images.
        """
        images = self._read(X)
        height, width, colours = images.shape[1:]
        kind = np.float32 if np.result_type(images.dtype, np.float32) == np.float32 else np.float64
        filters = filters_of(height, width, int(self.J), int(self.L), kind)
        result = np.empty((len(images) * colours, *filters.coefficients), dtype=kind)

        def fill(start: int) -> None:
            which = np.arange(start, min(start + BLOCK, len(result)))
            block = np.zeros((BLOCK, height, width), dtype=kind)
            with np.errstate(all="ignore"):  # refused below if not finite
                block[: len(which)] = images[which // colours, :, :, which % colours]
                made = filters(block)[: len(which)]
            for bad in which[~np.isfinite(made).all(axis=(1, 2, 3))] // colours:
                raise_unusable("ScatteringFeatures: image", bad, images[bad])
            result[start : start + BLOCK] = made

        with one_blas_thread() as workers:
            deque(in_order((partial(fill, start) for start in range(0, len(result), BLOCK)), workers, "images"), 0)
        return with_origin(result.reshape(len(images), math.prod(self.coefficients)), X)

    @property
    def coefficients(self) -> tuple[int, int, int]:
        """Number of paths (colour by colour), height and width of the coefficients of an image."""
        height, width, colours = self._checked()
        return paths(self.J, self.L) * colours, height >> self.J, width >> self.J

    def _checked(self) -> tuple[int, int, int]:
        """Return height, width and number of colours of an image; raise for invalid options."""
        COUNT.check("ScatteringFeatures", J=self.J, L=self.L)
        try:
            height, width, *colours = self.shape
        except (TypeError, ValueError):
            height, width, colours = 0, 0, []
        sides = is_whole(height, 2**self.J) and is_whole(width, 2**self.J)
        if not (sides and len(colours) < 2 and all(is_whole(count, 1) for count in colours)):
            known = f"(height, width) or (height, width, colours), at least 2**J = {2**self.J} pixels each way"
            raise TemplateError(f"ScatteringFeatures: shape must be {known}, not {self.shape!r}.")
        return int(height), int(width), int(colours[0]) if colours else 1

    def _read(self, X: Any, reset: bool = False) -> NDArray[Any]:
        """Return images as an array of shape (n, height, width, colours), not copied if they were an array."""
        shape, images = self._checked(), real_array("X", X)
        known = [tuple(map(int, self.shape)), (math.prod(shape),)]
        both = f"{known[0]} or {known[1]}, not {images.shape[1:]}"
        require(images.shape[1:] in known, f"ScatteringFeatures: images must have shape {both}.", DomainError)
        return images.reshape(len(images), *shape)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array = False, True
        return tags


def paths(J: int, L: int) -> int:
    """Return the number of paths: the average, the wavelets, and the pairs of a wavelet and a coarser one."""
    return 1 + J * L + L**2 * J * (J - 1) // 2


class Filters(NamedTuple):
    """Wavelets and averages for images of a given size."""

    border: tuple[tuple[int, int], ...]
    # Transforms of wavelets, by log2 of the distance of pixels, and by log2 of its increase.
    waves: list[list[NDArray[Any]]]
    averages: list[list[NDArray[Any]]]  # of rows and of columns
    coefficients: tuple[int, int, int]

    def __call__(self, images: NDArray[Any]) -> NDArray[Any]:
        """Return the coefficients of images, (n, height, width), as an array, (n, paths, height / 2^J, width / 2^J)."""
        padded = np.pad(images, ((0, 0), *self.border), mode="reflect")
        once, twice = [self.averaged(padded[:, None], 0)], []
        spectrum = fft.fft2(padded)[:, None]
        for j, waves in enumerate(self.waves[0]):
            first = modulus(spectrum, waves, j)
            once.append(self.averaged(first, j))
            if j + 1 < len(self.waves):
                spectra = fft.fft2(first)[:, :, None]
                coarser = list(enumerate(self.waves[j]))[1:]
                twice.append(np.stack([self.averaged(modulus(spectra, w, k), j + k) for k, w in coarser], axis=2))
        shape = len(images), -1, *self.coefficients[1:]
        return np.concatenate([part.reshape(shape) for part in once + twice], axis=1)

    def averaged(self, values: NDArray[Any], level: int) -> NDArray[Any]:
        """Average the last two axes, with pixels 2^level apart, by matrix products of one image each."""
        rows, columns = self.averages[level]
        return np.asarray(rows @ (values @ columns.T))


def modulus(spectra: NDArray[Any], waves: NDArray[Any], level: int) -> NDArray[Any]:
    """Convolve images with wavelets, both given by their Fourier transforms; return moduli at every 2^level-th pixel."""
    height, width = (side >> level for side in spectra.shape[-2:])
    parts = tiled(spectra, level).view(waves.dtype)
    total = parts[..., 0, :] * waves[:, 0]
    for part in range(1, 4**level):  # frequencies that alias if pixels are left out
        total += parts[..., part, :] * waves[:, part]
    return np.abs(fft.ifft2(total.view(spectra.dtype).reshape(*total.shape[:-1], height, width), overwrite_x=True))


def tiled(transforms: NDArray[Any], level: int) -> NDArray[Any]:
    """Cut the last two axes, shape (height, width), into tiles, shape (4^level, height * width / 4^level)."""
    *shape, height, width = transforms.shape
    cut = transforms.reshape(*shape, 2**level, height >> level, 2**level, width >> level).swapaxes(-3, -2)
    return cut.reshape(*shape, 4**level, -1)


@lru_cache(maxsize=8)
def filters_of(height: int, width: int, J: int, L: int, kind: DTypeLike) -> Filters:
    """Return the filters for images of a given size."""
    inner = height >> J, width >> J
    sides = [(size + 2) << J for size in inner]
    border = tuple(((w - n) // 2, (w - n + 1) // 2) for w, n in zip(sides, (height, width), strict=True))
    angles, spread = [(L - L // 2 - 1 - turn) * math.pi / L for turn in range(L)], WIDTH * 2 ** (J - 1)
    waves, averages = [], []
    scales = [[wave(sides, WIDTH * 2**j, FREQUENCY / 2**j, angle, 4 / L) for angle in angles] for j in range(J)]
    for level in range(J):
        coarser = [folded(np.array(made), level) for made in scales[level:]]
        waves.append([np.repeat(tiled(w, k) / 4**k, 2, axis=-1).astype(kind) for k, w in enumerate(coarser)])
        ends = zip(sides, inner, strict=True)
        averages.append([average(side, spread, level, J)[1 : size + 1].astype(kind) for side, size in ends])
    return Filters(border, waves, averages, (paths(J, L), *inner))


def wave(sides: Sequence[int], width: float, frequency: float, angle: float, slant: float) -> Array:
    """Return the Fourier transform, which is real, of a Morlet wavelet on a torus: a wave times a Gaussian, with mean 0."""
    bump, waved = np.zeros(sides), np.zeros(sides, dtype=complex)
    for shifts in product(range(-REPEATED, REPEATED + 1), repeat=2):
        y, x = np.ogrid[tuple(slice(t * side, (t + 1) * side) for t, side in zip(shifts, sides, strict=True))]
        along, across = math.cos(angle) * y + math.sin(angle) * x, math.cos(angle) * x - math.sin(angle) * y
        part = np.exp(-(along**2 + (slant * across) ** 2) / (2 * width**2)) * slant / (2 * math.pi * width**2)
        bump += part
        waved += part * np.exp(1j * frequency * along)
    return np.asarray(fft.fft2(waved - waved.sum() / bump.sum() * bump).real)


def average(side: int, width: float, level: int, J: int) -> Array:
    """Return the matrix of Gaussian averages on a torus, from pixels 2^level apart to positions 2^J apart."""
    places = np.arange(-REPEATED * side, (REPEATED + 1) * side).reshape(-1, side)
    bump = np.exp(-(places**2) / (2 * width**2)).sum(axis=0) / (math.sqrt(2 * math.pi) * width)
    return bump[(np.arange(0, side, 2**J)[:, None] - np.arange(0, side, 2**level)) % side] * 2**level


def folded(transforms: Array, level: int) -> Array:
    """Return the Fourier transforms of filters for images reduced to every 2^level-th pixel."""
    *shape, height, width = transforms.shape
    return tiled(transforms, level).sum(axis=-2).reshape(*shape, height >> level, width >> level)
