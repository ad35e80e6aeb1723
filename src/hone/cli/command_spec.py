"""What a command of `hone` is: its name, its arguments and its options, as data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOption:
    """A command-line flag: it takes a value if `metavar` is set, otherwise it is a switch."""

    flag: str
    help: str
    metavar: str = ""
    default: str = ""
    repeated: bool = False
    """May be given several times, each with a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSpec:
    """A command after `hone`, run by the function `run` of `module`."""

    name: str
    summary: str
    module: str
    positionals: tuple[tuple[str, str], ...] = ()
    optional: tuple[tuple[str, str], ...] = ()
    """Optional positionals; empty if omitted."""
    variadic: tuple[tuple[str, str], ...] = ()
    """Positionals given at least once."""
    options: tuple[CommandOption, ...] = ()
    overrides: bool = False
    """Accept `key=value` for keys of the config."""

    def switches(self) -> frozenset[str]:
        """Flags without a value, help included."""
        return frozenset({"-h", "--help", *(option.flag for option in self.options if not option.metavar)})

    def value_flags(self) -> frozenset[str]:
        """Flags that take a value."""
        return frozenset(option.flag for option in self.options if option.metavar)
