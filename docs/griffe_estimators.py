"""Shows the site what it cannot read off the source: options that estimators inherit, and each option of a group by itself."""

import inspect
import re
from importlib import import_module
from typing import Any

import griffe

GROUP = re.compile(r"^( *)(\w+(?:, \w+)+) : (.*)\n((?:\1 +\S.*\n?)*)", flags=re.MULTILINE)


def one_by_one(text: str, kinds: dict[str, str]) -> str:
    """Return a docstring in which each option of a group has its own entry, with its own type where the group says none."""

    def apart(group: re.Match[str]) -> str:
        indent, names, kind, about = group.groups()
        entries = ((name, kinds.get(name, kind) if kind == "object" else kind) for name in names.split(", "))
        return "".join(f"{indent}{name} : {own}\n{about.rstrip()}\n" for name, own in entries)

    return GROUP.sub(apart, text)


class Estimators(griffe.Extension):
    """Gives each estimator its whole docstring, and the options that its constructor takes."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Replace what was read of classes by what they say of themselves."""
        from dpconvex.estimators.base import Private

        for module in pkg["estimators"].modules.values():
            source = import_module(module.path)
            for name, described in module.classes.items():
                made = getattr(source, name)
                if described.is_alias or not issubclass(made, Private):
                    continue
                given = inspect.signature(made).parameters.values()
                kinds = {option.name: inspect.formatannotation(option.annotation) for option in given}
                text = one_by_one(inspect.cleandoc(made.__doc__ or ""), kinds)
                described.docstring = griffe.Docstring(text, parent=described)
                options = griffe.Parameters(*map(self.option, given))
                described.set_member("__init__", griffe.Function("__init__", parameters=options))
        self.separate(pkg)

    def separate(self, described: griffe.Object) -> None:
        """Take the groups of options apart, everywhere."""
        if described.docstring is not None:
            described.docstring.value = one_by_one(described.docstring.value, {})
        for member in described.members.values():
            if not member.is_alias:
                self.separate(member)  # type: ignore[arg-type]

    @staticmethod
    def option(given: inspect.Parameter) -> griffe.Parameter:
        """Return an option as the site knows it, with its default."""
        alone = given.kind is given.KEYWORD_ONLY
        kind = griffe.ParameterKind.keyword_only if alone else griffe.ParameterKind.positional_or_keyword
        default = None if given.default is given.empty else repr(given.default)
        return griffe.Parameter(given.name, kind=kind, default=default)
