"""Random Fourier features (Rahimi & Recht 2007): a public random map to vectors of known norm that approximates a kernel."""

from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from dpconvex.data.columns import dense
from dpconvex.data.encoded import with_origin
from dpconvex.data.validation import finite_numbers
from dpconvex.errors import DomainError
from dpconvex.noise.samplers import seeded_generator
from dpconvex.util.arguments import COUNT, TRUTH, between, check_fields, one_of, whole
from dpconvex.util.arrays import Array, frozen

if TYPE_CHECKING or find_spec("sklearn"):
    from dpconvex.features.transformers import LearnsNothing
else:
    LearnsNothing = object  # `transform` needs no scikit-learn

# Number of angles computed at a time, to fit into a processor's cache; rows are padded to multiples of VECTOR.
BLOCK, VECTOR = 2**14, 32
# Largest number of coordinates of all frequencies together.
LARGEST = 2**30
KERNELS = ("gaussian", "laplace", "cauchy")


@dataclass(eq=False, repr=False)
class RandomFourierFeatures(LearnsNothing):
    """Map records by a public random map; inner products of mapped records approximate a shift-invariant kernel.

    A step of a pipeline, if scikit-learn is installed, and a function of records: `transform` needs no `fit`.

    Parameters
    ----------
    features, components : int
        Number of coordinates of a record, and number D of random frequencies.
    kernel : {"gaussian", "laplace", "cauchy"}
        ``exp(-gamma ||d||_2^2)``, ``exp(-gamma ||d||_1)`` or ``prod 1/(1 + (gamma d_j)^2)`` of the difference d.
    gamma : float
        Scale of the kernel; positive.
    paired : bool
        Pairs (cos, sin)/sqrt(D) have norm 1, exactly.  Without pairs, ``sqrt(2/D) cos(w'x + phase)`` has norm at most sqrt(2):
        the published algorithm uses it as if the bound were 1, which halves its privacy.
    seed : int
        Public seed of the frequencies, part of the model.

    Examples
    --------
    >>> kernel = RandomFourierFeatures(features=2, components=500, gamma=0.5)
    >>> mapped = kernel.transform([[0.0, 1.0], [0.5, 0.5]])
    >>> mapped.shape, float(np.round(np.linalg.norm(mapped[0]), 12))
    ((2, 1000), 1.0)
    >>> bool(abs(mapped[0] @ mapped[1] - np.exp(-0.25)) < 0.1)
    True
    """

    features: int
    components: int
    kernel: str = "gaussian"
    gamma: float = 1.0
    paired: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, kernel=one_of(KERNELS), features=COUNT, gamma=between(0, 1e250), paired=TRUTH)
        check_fields(self, components=whole(1, LARGEST // int(self.features)))
        seeded_generator(self.seed)

    @property
    def dim(self) -> int:
        """Number of coordinates of a mapped record."""
        return 2 * self.components if self.paired else self.components

    @property
    def radius(self) -> float:
        """Public bound on the Euclidean norm of a mapped record: 1 for pairs, sqrt(2) for cosines."""
        return 1.0 if self.paired else float(np.sqrt(2.0))

    def transform(self, x: ArrayLike) -> Array:
        """Map records, array_like or a SciPy sparse matrix of shape (n, features), to features, shape (n, dim).

        The features of a record depend on that record alone, to the last bit, not on other records or their storage.
        """
        records = self._read(x)
        frequencies, phase = drawn(self.seed, (self.components, self.features), self.kernel, self.gamma)
        # Not by a matrix product, which sums in another order for each shape; rows are padded to whole vectors.
        width = -(-self.components // VECTOR) * VECTOR
        table = np.pad(frequencies.T, ((0, 0), (0, width - self.components)))
        start = np.pad(phase * (not self.paired), (0, width - self.components))
        result = np.empty((records.shape[0], self.dim))
        step = max(1, BLOCK // width)
        for first in range(0, len(result), step):
            rows = dense(records[first : first + step])
            angles = np.zeros((len(rows), width))
            with np.errstate(over="ignore", invalid="ignore"):
                for column in np.flatnonzero(rows.any(axis=0)):  # adding zeros changes nothing
                    angles += rows[:, column, None] * table[column]
            if not np.isfinite(angles).all():
                row = first + int(np.argmin(np.isfinite(angles).all(axis=1)))
                raise DomainError(f"features: row {row} is too large: its angles overflow; use another unit.")
            angles += start
            waves = [np.cos(angles), np.sin(angles)] if self.paired else [np.sqrt(2) * np.cos(angles)]
            made = np.concatenate([wave[:, : self.components] for wave in waves], axis=1)
            result[first : first + step] = made / np.sqrt(self.components)
        return with_origin(result, x)

    def _read(self, X: Any, reset: bool = False) -> Any:
        self.__post_init__()  # `set_params` may have changed the options
        return finite_numbers("x", X, (self.features,))


@lru_cache(maxsize=8)
def drawn(seed: int, shape: tuple[int, int], kernel: str, gamma: float) -> tuple[Array, Array]:
    """Return frequencies from the kernel's Fourier transform (Bochner), shape (components, features), and phases."""
    rng = seeded_generator(seed)
    if kernel == "gaussian":
        frequencies = rng.normal(scale=np.sqrt(2 * gamma), size=shape)
    elif kernel == "laplace":
        frequencies = gamma * rng.standard_cauchy(size=shape)
    else:
        frequencies = rng.laplace(scale=gamma, size=shape)
    return frozen(frequencies), frozen(rng.uniform(0, 2 * np.pi, size=shape[0]))
