"""A function's named arguments as a stable list of positions."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["FunctionSignature"]


class FunctionSignature:
    """The arguments of a function, in the order of its definition; keyword-only ones follow where they are defined.

    Args:
        function: The function; bound methods and partials too.
        api: What the user called, for messages.

    Raises:
        TypeError: The function takes `*args` or `**kwargs`, whose positions are not stable.
    """

    def __init__(self, function: Callable[..., Any], api: str = "ZKDV.jit") -> None:
        self.api = api
        self.name = getattr(function, "__name__", None) or type(function).__name__
        self._signature = inspect.signature(function)
        variadic = [
            parameter
            for parameter in self._signature.parameters.values()
            if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}
        ]
        if variadic:
            raise TypeError(
                f"{api}: {self.name} takes {variadic[0]}; its arguments must be named one by one, so that each has a "
                "fixed place in the committed program"
            )
        self.names: tuple[str, ...] = tuple(self._signature.parameters)
        self._keyword_only = {
            name for name, parameter in self._signature.parameters.items() if parameter.kind is parameter.KEYWORD_ONLY
        }

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the value of each argument, defaults filled in, in the order of `names`.

        Raises:
            TypeError: An argument is missing, unknown or given twice.
        """
        if not kwargs and len(args) == len(self.names) and not self._keyword_only:
            return tuple(args)
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return tuple(bound.arguments[name] for name in self.names)

    def call(self, function: Callable[..., Any], values: Sequence[Any]) -> Any:
        """Call `function` with one value for each name, as `bind` returned them."""
        positional = [value for name, value in zip(self.names, values, strict=True) if name not in self._keyword_only]
        keywords = {name: value for name, value in zip(self.names, values, strict=True) if name in self._keyword_only}
        return function(*positional, **keywords)

    def position(self, name: str) -> int:
        """Return the position of an argument.

        Raises:
            ValueError: The function has no such argument.
        """
        if name not in self.names:
            raise ValueError(f"{self.api}: {self.name} has no argument {name!r}; it has {', '.join(self.names)}")
        return self.names.index(name)

    def positions(
        self, numbers: int | Sequence[int] | None, names: str | Sequence[str] | None, option: str
    ) -> tuple[int, ...]:
        """Return the positions that an option gives by number or name, without repeats, in order.

        Args:
            numbers: Positions; negative ones count from the end.
            names: Names.
            option: The option's name, for messages.

        Raises:
            ValueError: A position or name that the function does not have.
        """
        found: set[int] = set()
        for number in (numbers,) if isinstance(numbers, int) else numbers or ():
            if not -len(self.names) <= number < len(self.names):
                raise ValueError(
                    f"{self.api}: {option} names argument {number}, and {self.name} has {len(self.names)} arguments"
                )
            found.add(number % len(self.names))
        found.update(self.position(name) for name in ((names,) if isinstance(names, str) else names or ()))
        return tuple(sorted(found))
