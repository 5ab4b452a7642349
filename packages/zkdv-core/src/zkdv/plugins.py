"""The plugin registry: what is installed, who declares which name, and the object behind a name once it is used.

Reading goes from entry points (group `zkdv`) to `Plugin`s to `Declaration`s to objects. A plugin that fails to import,
that implements a hook we do not have or answers with something else than names is kept with its error: it takes nothing
else down.
"""

import functools
import pkgutil
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType

import pluggy

from zkdv import hooks
from zkdv.errors import ZKDVError

__all__ = ["Declaration", "Plugin", "PluginError", "Registry", "registry"]

_OBJECT_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


class PluginError(ZKDVError):
    """A name that no plugin declares, that two declare, or whose object cannot be loaded."""


@dataclass(frozen=True, order=True)
class Declaration:
    """One name that a plugin declares.

    Attributes:
        hook: The hook that declares it.
        name: What users and frontends ask for.
        target: Name of the object behind it, `package.module:object`.
        distribution: Distribution that the plugin comes with.
        entry_point: The plugin's entry point in it.
    """

    hook: str
    name: str
    target: str
    distribution: str
    entry_point: str


@dataclass(frozen=True)
class Plugin:
    """One entry point in the group `zkdv`.

    Attributes:
        distribution: Distribution that it comes with.
        version: Version of that distribution.
        entry_point: Its name.
        module: The module that it names.
        declarations: What it declares, by hook and name; empty where `error` is set.
        error: Why it cannot be used, in one line; None where it can.
    """

    distribution: str
    version: str
    entry_point: str
    module: str
    declarations: tuple[Declaration, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class Registry:
    """The plugins of an environment, ordered by distribution and entry point.

    Attributes:
        plugins: All of them, the broken ones with their error.
        conflicts: One line for each name that two plugins declare, naming both distributions.
    """

    plugins: tuple[Plugin, ...]
    conflicts: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        claims: dict[tuple[str, str], list[Declaration]] = {}
        for plugin in self.plugins:
            for declaration in plugin.declarations:
                claims.setdefault((declaration.hook, declaration.name), []).append(declaration)
        conflicts = tuple(_conflict(claimed) for _, claimed in sorted(claims.items()) if len(claimed) > 1)
        object.__setattr__(self, "conflicts", conflicts)

    @classmethod
    def load(cls, points: Iterable[EntryPoint] | None = None) -> "Registry":
        """Read the plugins of this environment.

        Args:
            points: Entry points to read; default: those of the installed distributions.

        Returns:
            The registry. Plugins that cannot be used are in it, with their error.
        """
        if points is None:
            points = entry_points(group=hooks.PROJECT)
        ordered = sorted(points, key=lambda point: (_distribution(point), point.name, point.value))
        return cls(tuple(_read(point) for point in ordered))

    def names(self, hook: str) -> tuple[str, ...]:
        """Every name that plugins declare for `hook`, sorted; each once, also where two declare it."""
        return tuple(sorted({declaration.name for declaration in self._declarations(hook)}))

    def find(self, hook: str, name: str) -> Declaration:
        """Find who declares a name.

        Args:
            hook: A hook (`zkdv.hooks.HOOKS`).
            name: The name asked for.

        Returns:
            The one declaration.

        Raises:
            PluginError: Nobody declares it (says who does declare what, and which plugins are broken), or two do.
        """
        claimed = [declaration for declaration in self._declarations(hook) if declaration.name == name]
        if len(claimed) > 1:
            raise PluginError(_conflict(claimed))
        if not claimed:
            known = ", ".join(self.names(hook)) or "none"
            broken = "".join(
                f"; the plugin {plugin.entry_point!r} of {plugin.distribution} cannot be used: {plugin.error}"
                for plugin in self.plugins
                if plugin.error is not None
            )
            raise PluginError(
                f"no plugin declares {name!r} in {hook} (declared: {known}); `zkdv plugins` lists all{broken}"
            )
        return claimed[0]

    def resolve(self, hook: str, name: str) -> object:
        """Import and return the object behind a name.

        Args:
            hook: A hook (`zkdv.hooks.HOOKS`).
            name: The name asked for.

        Returns:
            The object.

        Raises:
            PluginError: As `find`; or the object cannot be imported: names the distribution, and says why.
        """
        declaration = self.find(hook, name)
        try:
            return pkgutil.resolve_name(declaration.target)
        except (Exception, SystemExit) as error:
            raise PluginError(
                f"{declaration.distribution} declares {name!r} in {hook} as {declaration.target}, which cannot be "
                f"loaded: {_one_line(error)}; update or uninstall that distribution"
            ) from error

    def _declarations(self, hook: str) -> list[Declaration]:
        if hook not in hooks.HOOKS:
            raise ValueError(f"{hook!r} is no hook of zkdv; there are: {', '.join(hooks.HOOKS)}")
        return [declared for plugin in self.plugins for declared in plugin.declarations if declared.hook == hook]


@functools.cache
def registry() -> Registry:
    """The plugins of this environment, read once per process."""
    return Registry.load()


def _read(point: EntryPoint) -> Plugin:
    distribution = _distribution(point)
    version = point.dist.version if point.dist is not None else "unknown"
    try:
        declarations = _declared(point.load(), distribution, point.name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 (whatever a stranger's module raises is its own trouble)
        return Plugin(distribution, version, point.name, point.value, error=_one_line(error))
    return Plugin(distribution, version, point.name, point.value, declarations)


def _declared(module: ModuleType, distribution: str, entry_point: str) -> tuple[Declaration, ...]:
    # One manager per plugin: every answer and every complaint of pluggy is then this plugin's.
    manager = pluggy.PluginManager(hooks.PROJECT)
    manager.add_hookspecs(hooks)
    manager.register(module, entry_point)
    manager.check_pending()
    _refuse_unmarked(module, manager)
    declarations = []
    for hook in hooks.HOOKS:
        for answer in getattr(manager.hook, hook)():
            for name, target in _checked_answer(hook, answer).items():
                declarations.append(Declaration(hook, name, target, distribution, entry_point))
    return tuple(sorted(declarations))


def _refuse_unmarked(module: ModuleType, manager: pluggy.PluginManager) -> None:
    """Refuse a function that is named like a hook and that pluggy does not see, since it is not marked as one."""
    implemented = {caller.name for caller in manager.get_hookcallers(module) or ()}
    for name, value in vars(module).items():
        if name.startswith(f"{hooks.PROJECT}_") and callable(value) and name not in implemented:
            raise PluginError(f"{name} is not marked as a hook; put @zkdv.hooks.hookimpl above it")


def _checked_answer(hook: str, answer: object) -> Mapping[str, str]:
    if not isinstance(answer, Mapping):
        raise PluginError(f"{hook} returned {answer!r} ({type(answer).__name__}); it returns a dict of names")
    for name, target in answer.items():
        if not isinstance(name, str) or not name or not name.isprintable():
            raise PluginError(f"{hook} declares {name!r}; a name is printable text")
        if not isinstance(target, str) or not _OBJECT_NAME.fullmatch(target):
            raise PluginError(
                f"{hook} declares {name!r} as {target!r}; that is the name of an object, 'package.module:object'"
            )
    return answer


def _conflict(claimed: list[Declaration]) -> str:
    claims = " and ".join(f"{declared.distribution} (plugin {declared.entry_point!r})" for declared in claimed)
    quantity = "both" if len(claimed) == 2 else "all"
    return f"{claims} {quantity} declare {claimed[0].name!r} in {claimed[0].hook}; uninstall one of them"


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "unknown distribution"


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
