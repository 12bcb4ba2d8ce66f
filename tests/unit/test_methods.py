"""The classes of the built-in methods: exported by their files, and each readable without the others."""

from types import FunctionType

from mpifed.algorithms import _FILES, ALGORITHMS

PACKAGE = "mpifed.algorithms."


def functions(cls: type) -> set[str]:
    """Return the functions and properties that a class defines, without ``__post_init__``, which adds checks
    to those of a base class, and what its decorator adds."""
    members = {name: getattr(value, "fget", value) for name, value in vars(cls).items()}
    defined = {
        name
        for name, value in members.items()
        if isinstance(value, FunctionType) and value.__module__.startswith(PACKAGE)
    }
    return {name for name in defined if name == "__call__" or not name.startswith("__")}


def test_every_exported_class_with_a_source_is_a_method():
    for module in _FILES:
        sources = {name for name in module.__all__ if getattr(getattr(module, name), "source", "")}
        assert sources == {name for name, cls in ALGORITHMS.items() if cls.__module__ == module.__name__}


def test_no_class_overrides_a_function_of_another():
    """Methods vary by arguments and fields."""
    for module in _FILES:
        for cls in (value for value in vars(module).values() if isinstance(value, type)):
            for base in cls.__mro__[1:]:
                both = functions(cls) & functions(base) if base.__module__.startswith(PACKAGE) else set()
                assert not both, f"{cls.__name__} overrides {both} of {base.__name__}: pass an argument"
