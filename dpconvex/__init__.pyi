"""The public names, each with the module that defines it."""

from . import datasets as datasets, errors as errors, interop as interop, plots as plots
from .accounting.budget import Budget as Budget
from .auditing.audit import audit as audit
from .auditing.falsify import Falsification as Falsification, falsify as falsify
from .auditing.report import Audit as Audit
from .certificates.certificate import Certificate as Certificate
from .data.domains import Ball as Ball, Box as Box, Choice as Choice
from .data.partitions import Partitions as Partitions
from .data.record import Record as Record
from .data.schema import Schema as Schema
from .data.schema_columns import (
    Boolean as Boolean,
    Categorical as Categorical,
    Date as Date,
    Numeric as Numeric,
    Ordered as Ordered,
)
from .errors import (
    BudgetExceeded as BudgetExceeded,
    DomainError as DomainError,
    DPConvexError as DPConvexError,
    MissingRule as MissingRule,
    NotConverged as NotConverged,
    NotPrivate as NotPrivate,
    PrivacyWarning as PrivacyWarning,
    TemplateError as TemplateError,
    WorkersLost as WorkersLost,
)
from .estimators.additive import AdditiveClassifier as AdditiveClassifier, AdditiveRegressor as AdditiveRegressor
from .estimators.classifiers import (
    KernelSVC as KernelSVC,
    LargeMarginGaussian as LargeMarginGaussian,
    LargeMarginGaussianMixture as LargeMarginGaussianMixture,
    LeastSquaresClassifier as LeastSquaresClassifier,
    LinearSVC as LinearSVC,
    LogisticRegression as LogisticRegression,
    MetricLearner as MetricLearner,
    OrdinalRegressor as OrdinalRegressor,
    SoftmaxRegression as SoftmaxRegression,
)
from .estimators.counts import (
    GammaRegressor as GammaRegressor,
    PoissonRegressor as PoissonRegressor,
    TweedieRegressor as TweedieRegressor,
)
from .estimators.own import PrivateEstimator as PrivateEstimator
from .estimators.regressors import (
    HuberRegressor as HuberRegressor,
    LinearRegression as LinearRegression,
    QuantileRegressor as QuantileRegressor,
    Ridge as Ridge,
)
from .estimators.survival import SurvivalRegressor as SurvivalRegressor
from .estimators.tables import SchemaEncoder as SchemaEncoder
from .expressions.declared_atoms import Atom as Atom, log_normcdf as log_normcdf
from .features.fourier_features import RandomFourierFeatures as RandomFourierFeatures
from .features.groups import GroupNormalizer as GroupNormalizer
from .features.preconditioner import PublicPreconditioner as PublicPreconditioner
from .features.scattering import ScatteringFeatures as ScatteringFeatures
from .features.splines import SplineEncoder as SplineEncoder
from .fitting.baseline import solve_without_privacy as solve_without_privacy
from .fitting.intervals import intervals as intervals
from .fitting.problem_files import load as load, problems as problems
from .fitting.release import Release as Release
from .fitting.solve import solve as solve, statistics as statistics
from .fitting.statistics import Coefficients as Coefficients, Statistics as Statistics, coefficients as coefficients
from .fitting.verify import is_private as is_private, verify as verify
from .mechanisms.adaptive_steps import AdaptiveSteps as AdaptiveSteps
from .mechanisms.gradient_descent import NoisyGradientDescent as NoisyGradientDescent
from .mechanisms.noisy_frank_wolfe import NoisyFrankWolfe as NoisyFrankWolfe
from .mechanisms.noisy_kmeans import NoisyKMeans as NoisyKMeans
from .mechanisms.objective_perturbation import ObjectivePerturbation as ObjectivePerturbation
from .mechanisms.output_perturbation import OutputPerturbation as OutputPerturbation
from .mechanisms.private_selection import Repetitions as Repetitions
from .mechanisms.residual_noise import ResidualNoise as ResidualNoise
from .mechanisms.sufficient_statistics import SufficientStatistics as SufficientStatistics
from .model.privacy import Privacy as Privacy
from .model.template import Template as Template, huber_hinge as huber_hinge
from .optim.conic import ConicSolver as ConicSolver
from .selection.bounded import (
    PrivateBound as PrivateBound,
    solve_bounded as solve_bounded,
    verify_bounded as verify_bounded,
)
from .selection.clustering import ComponentCenters as ComponentCenters, cluster as cluster
from .selection.evaluate import evaluate as evaluate, split as split
from .selection.evaluation import Evaluation as Evaluation
from .selection.learn_schema import learn_schema as learn_schema
from .selection.measures import Estimate as Estimate
from .selection.mixtures import Mixture as Mixture, solve_mixture as solve_mixture, verify_mixture as verify_mixture
from .selection.report import report as report
from .selection.sweep import Calibration as Calibration, calibrate as calibrate, sweep as sweep
from .selection.tune import tune as tune, tune_repeated as tune_repeated

__version__: str
