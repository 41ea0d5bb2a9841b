"""Data sets for demonstrations: one shipped, one downloaded and one drawn; and scaling by public bounds.

Scaling by the largest value in a column, or by its mean and deviation, uses the data and has a privacy cost.  `unit_ball` uses
only public bounds.
"""

import csv
import os
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpconvex.data.columns import dense
from dpconvex.data.domains import Box
from dpconvex.data.encoded import with_origin
from dpconvex.data.record import Record
from dpconvex.errors import DPConvexError, TemplateError
from dpconvex.util.arguments import NOT_AN_ARRAY, recast, require
from dpconvex.util.arrays import Array

__all__ = ["adult", "breast_cancer", "unit_ball"]
ADULT_NUMBERS = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")
WHERE_ADULT = (
    "make adult.csv.gz from https://archive.ics.uci.edu/dataset/2/adult (training file, then test file, complete cases), put "
    "it into a folder and name that in the environment variable DPCONVEX_DATA; or let scikit-learn fetch it from OpenML"
)


def adult(folder: str | os.PathLike[str] | None = None) -> Any:
    """Read the UCI Adult (Census Income) data, complete cases; they are not shipped.

    The file is read from `folder`, by default the folder in the environment variable ``DPCONVEX_DATA``. Without a folder,
    scikit-learn downloads the data from OpenML once (``fetch_openml("adult", version=2)``) and stores them.

    Parameters
    ----------
    folder : str or path, optional
        Folder of ``adult.csv.gz``: the original columns with a line of names; the last column is called ``label``.

    Returns
    -------
    pandas.DataFrame, shape (45222, 15)
        Six numeric and eight categorical columns, and ``"income"``, which is ``"<=50K"`` or ``">50K"``.  In the order of the
        source: in the file, the first 30,162 rows are the original training part.

    Raises
    ------
    DPConvexError
        If the data are not found, differ from the original, or pandas (or scikit-learn, for OpenML) is not installed.

    Notes
    -----
    By B. Becker and R. Kohavi, UCI Machine Learning Repository, DOI 10.24432/C5XW20, licensed CC BY 4.0.
    """
    place = os.environ.get("DPCONVEX_DATA") if folder is None else folder
    file = Path(place or ".", "adult.csv.gz")
    try:
        import pandas as pd

        if folder is not None or (place and file.is_file()):
            table = pd.read_csv(file, skipinitialspace=True, na_values="?").rename(columns={"label": "income"})
        else:
            from sklearn.datasets import fetch_openml

            table = fetch_openml("adult", version=2, as_frame=True).frame.rename(columns={"class": "income"})
    except ImportError as error:
        raise DPConvexError("adult: needs pandas and scikit-learn: pip install pandas scikit-learn.") from error
    except (OSError, ValueError) as error:  # no file, no network, or something else under that name
        raise DPConvexError(f"adult: {type(error).__name__}, {error}; {WHERE_ADULT}.") from error
    if not {*ADULT_NUMBERS, "income"} <= {*table} or table.shape[1] != 15:
        raise DPConvexError(f"adult: the data differ (columns {', '.join(map(str, table))}); {WHERE_ADULT}.")
    table = table.dropna().reset_index(drop=True)
    return table.astype({name: float if name in ADULT_NUMBERS else object for name in table})


def breast_cancer() -> tuple[Array, NDArray[np.str_]]:
    """Read the Breast Cancer Wisconsin (Original) data, complete cases.

    Returns
    -------
    X : ndarray of float, shape (683, 9)
        Nine cytological gradings, each 1 to 10 by definition; not scaled.
    y : ndarray of str, shape (683,)
        ``"benign"`` (444 records) or ``"malignant"`` (239).

    Notes
    -----
    By W. H. Wolberg, UCI Machine Learning Repository, DOI 10.24432/C5HP4Z, licensed CC BY 4.0.

    Examples
    --------
    >>> X, y = breast_cancer()
    >>> X.shape, float(X.min()), float(X.max())
    ((683, 9), 1.0, 10.0)
    """
    text = (files("dpconvex") / "data" / "breast_cancer_wisconsin.csv").read_text(encoding="utf-8")
    rows = list(csv.reader(text.splitlines()))[1:]
    return np.array([row[:-1] for row in rows], dtype=float), np.array([row[-1] for row in rows])


def unit_ball(X: ArrayLike, lower: ArrayLike, upper: ArrayLike, clip: bool = False) -> Array:
    """Scale features with public bounds into the Euclidean unit ball, one record at a time.

    Each feature is mapped from its bounds to [-1/2, 1/2].  A record then has a norm of at most √d/2, and is divided by this
    bound.

    Parameters
    ----------
    X : array_like, shape (n, d)
        Raw features.
    lower, upper : float or array_like, shape (d,)
        Public bounds of the features, known without the data; ``lower < upper``.
    clip : bool
        Move a value outside its bounds to the nearest bound instead of raising.

    Returns
    -------
    ndarray of float, shape (n, d)
        Rows of norm at most 1.

    Raises
    ------
    TemplateError
        If the bounds do not fit the features, or a lower bound is not below its upper bound.
    DomainError
        If a value is not finite or outside its bounds.

    Examples
    --------
    >>> unit_ball([[1, 1, 1, 10], [5.5, 5.5, 5.5, 5.5]], lower=1, upper=10)
    array([[-0.5, -0.5, -0.5,  0.5],
           [ 0. ,  0. ,  0. ,  0. ]])
    """
    with recast("unit_ball: X must have shape (n, d), and bounds one number or d", *NOT_AN_ARRAY, kind=TemplateError):
        shape = np.shape(X)
        low, high = (np.broadcast_to(np.asarray(bound, dtype=float), shape[1:]) for bound in (lower, upper))
    require(len(shape) == 2 and shape[1] != 0, f"unit_ball: X must have shape (n, d), not {shape}.")
    require((low < high).all(), "unit_ball: every lower bound must be below its upper bound; drop constant features.")
    values = dense(Record(x=Box(low, high)).validate({"x": X}, clip=clip).fields["x"][:])
    return with_origin(((values - low) / (high - low) - 0.5) / (np.sqrt(shape[1]) / 2), X)


def drawn_shapes(count: int, shape: tuple[int, int] = (28, 28), seed: int = 0) -> NDArray[np.float32]:
    """Draw synthetic images: one to four overlapping curves, ellipses and rectangles of random greys on black.

    The images can replace public images, for example in `dp.PublicPreconditioner`.

    Parameters
    ----------
    count : int
        Number of images.
    shape : (int, int)
        Height and width in pixels.
    seed : int
        The same seed draws the same images.

    Returns
    -------
    numpy.ndarray of float32, shape (count, height, width)
        Between 0 (black) and 1.
    """
    rng, (height, width), fine = np.random.default_rng(seed), shape, 2
    y, x = np.mgrid[: fine * height, : fine * width] / fine
    size, result = np.array([width, height]), np.zeros((count, height, width), dtype=np.float32)
    t = np.linspace(0, 1, 40)[:, None]
    for number in range(count):
        image = np.zeros(y.shape)
        for _ in range(rng.integers(1, 5)):
            grey = rng.uniform(0.3, 1)
            if rng.random() < 0.5:  # a curve, bent by its middle point
                ends, thick = rng.uniform(0.1, 0.9, (3, 2)) * size, rng.uniform(0.025, 0.09) * size.min()
                curve = (1 - t) ** 2 * ends[0] + 2 * t * (1 - t) * ends[1] + t**2 * ends[2]
                away = ((x[..., None] - curve[:, 0]) ** 2 + (y[..., None] - curve[:, 1]) ** 2).min(axis=-1)
                ink = np.clip(thick - np.sqrt(away) + 0.5, 0, 1)
            else:
                centre, radii = rng.uniform(0.2, 0.8, 2) * size, rng.uniform(0.08, 0.4, 2) * size
                turn = rng.uniform(0, np.pi)
                along = (np.cos(turn) * (x - centre[0]) + np.sin(turn) * (y - centre[1])) / radii[0]
                across = (np.cos(turn) * (y - centre[1]) - np.sin(turn) * (x - centre[0])) / radii[1]
                out = np.hypot(along, across) if rng.random() < 0.5 else np.maximum(abs(along), abs(across))
                ink = np.clip((1 - out) * radii.min() + 0.5, 0, 1)
            image = image * (1 - ink) + grey * ink
        result[number] = image.reshape(height, fine, width, fine).mean(axis=(1, 3))
    return result
