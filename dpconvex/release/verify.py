"""The checker: from a template and a promise to a certificate, or to the reason why there is none.

No data are needed, and none are touched.
"""

from __future__ import annotations

from dataclasses import replace

from dpconvex.calculus.analysis import Analysis
from dpconvex.calculus.loss_form import LossForm
from dpconvex.core.arguments import is_whole
from dpconvex.core.remembered import once
from dpconvex.errors import DPConvexError, NotPrivate, TemplateError
from dpconvex.evaluation.translation import check_translation
from dpconvex.language.privacy import Privacy, check_privacy, computable
from dpconvex.language.template import Template
from dpconvex.mechanisms.automatic import Automatic
from dpconvex.mechanisms.base import Mechanism
from dpconvex.mechanisms.certificate import Certificate
from dpconvex.mechanisms.residual_noise import Cover
from dpconvex.mechanisms.sufficient_statistics import SufficientStatistics

__all__ = ["analyse", "check_solvable", "form_of", "is_private", "verify"]

# Whole numbers up to this are exact as floating-point numbers.
LARGEST_SIZE = 2**53


def analyse(template: Template) -> Analysis:
    """Return the constants of a template, computed once."""
    if not isinstance(template, Template):
        raise TemplateError(f"expected a Template, not {type(template).__name__}.")
    return analysed(template)


@once
def analysed(template: Template) -> Analysis:
    """Do the work of `analyse`."""
    form, obstacle = read(template)
    found = Analysis(form)
    found.obstacle = obstacle
    return found


@once
def read(template: Template) -> tuple[LossForm, DPConvexError | None]:
    """Return the parts of a template, compared with its expressions, and why its program cannot be run, if it cannot."""
    form = LossForm(template)
    return form, check_translation(form)


def form_of(template: Template) -> LossForm:
    """Return the parts of a template, of which nothing is bounded yet."""
    if not isinstance(template, Template):
        raise TemplateError(f"expected a Template, not {type(template).__name__}.")
    return read(template)[0]


def verify(
    template: Template, privacy: Privacy, size: int, mechanism: Mechanism | None = None, cover: Cover | None = None
) -> Certificate:
    """Prove that a mechanism on a template is private, or say why not.

    Parameters
    ----------
    template : Template
    privacy : Privacy
        The promise to be kept.
    size : int
        Public number of records; under add-remove, a public nominal number.
    mechanism : Mechanism, optional
        By default, among those that can be proved private, the one whose foreseen excess risk is smallest; where no gradient is
        bounded and the loss is quadratic, `SufficientStatistics`.
    cover : Cover, optional
        How the distance between the computed and the exact answer is covered; by default, from 1 % of the promise.

    Returns
    -------
    Certificate

    Raises
    ------
    NotPrivate
        Naming the failing subexpression and a remedy.
    MissingRule
        If the calculus has no rule for a subexpression.
    TemplateError
        If an argument has the wrong type.
    """
    check_privacy("verify", privacy)
    if not is_whole(size, 1):
        raise TemplateError(f"verify: size must be a positive integer, not {size!r}.")
    chosen = mechanism if mechanism is not None else Automatic()
    if isinstance(chosen, type) or not isinstance(chosen, Mechanism):
        what = f"the class {chosen.__name__} itself" if isinstance(chosen, type) else f"a {type(chosen).__name__}"
        raise TemplateError(f"verify: mechanism must be an object such as ObjectivePerturbation(), not {what}.")
    if cover is not None and not isinstance(cover, Cover):
        raise TemplateError(f"verify: cover must be a Cover, not {cover!r}.")
    if size > LARGEST_SIZE:
        raise TemplateError(
            f"verify: size must be at most {LARGEST_SIZE}: counts above it are not exact in double precision."
        )
    if isinstance(chosen, SufficientStatistics):
        return verify_statistics(template, privacy, int(size), chosen, cover)
    try:
        analysis = analyse(template)
    except NotPrivate:
        if not isinstance(chosen, Automatic):
            raise
        try:  # of a quadratic loss, gradients need not be bounded
            return verify_statistics(template, privacy, int(size), SufficientStatistics.usual(privacy), cover)
        except DPConvexError:
            pass  # the first reason is the one to know
        raise
    try:
        with computable(privacy):
            certificate = (cover or Cover()).certify(chosen, analysis, privacy, int(size))
    except DPConvexError as error:
        # Where nothing bounds the distance of an answer, there is no noise for it either; the reason is the program.
        if analysis.obstacle is None or isinstance(error, NotPrivate | TemplateError):
            raise
        raise analysis.obstacle from error
    return replace(certificate, advice=(*certificate.advice, *outlook(analysis)))


def verify_statistics(
    template: Template, privacy: Privacy, size: int, mechanism: SufficientStatistics, cover: Cover | None
) -> Certificate:
    """Prove that statistics of a quadratic loss are private; nothing bounds its gradients."""
    with computable(privacy):
        return mechanism.certify_covered(cover or Cover(), form_of(template), privacy, size)


def outlook(analysis: Analysis) -> tuple[str, ...]:
    """Say what a solver will do where that is out of the ordinary: nothing at all, or without a projection on K."""
    if analysis.obstacle is not None:
        return (f"It cannot be solved, and `solve` will refuse before anything is paid: {analysis.obstacle}",)
    feasible = analysis.form.feasible
    return () if feasible.has_projection else (f"Constraints: {feasible.handled}.",)


def check_solvable(template: Template) -> None:
    """Refuse, before anything is paid, a program that cannot be run, whatever the data."""
    obstacle = read(template)[1]
    if obstacle is not None:
        raise obstacle


def is_private(
    template: Template, privacy: Privacy, size: int, mechanism: Mechanism | None = None, cover: Cover | None = None
) -> bool:
    """Say whether `verify` finds a proof."""
    try:
        verify(template, privacy, size, mechanism, cover)
    except NotPrivate:
        return False
    return True
