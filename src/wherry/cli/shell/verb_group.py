"""Verbs and groups of verbs: help that begins with examples, modules that load when their verb is used, better guesses."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from wherry.cli.shell import verbosity
from wherry.cli.shell.examples import EXAMPLES
from wherry.cli.shell.foreign_options import ADVICE, VERBS

#: What a wrong command line raises. Typer has click's class under a name of its own, and exports only classes below it.
_UsageError: Any = typer.BadParameter.__mro__[1]


class Verb(NamedTuple):
    """Where below `wherry.cli` a verb is (a function or a `typer.Typer`), and its line in the list, the first of its help."""

    module: str
    name: str
    summary: str


class VerbCommand(TyperCommand):
    """A verb whose help begins with its examples, and which takes --quiet and --verbose."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.params = [*self.params, *verbosity.options()]

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, then the text."""
        _write_examples(ctx, formatter)
        super().format_help_text(ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Where one word stands for two arguments, say that the last is missing: click takes the word for that one."""
        try:
            return super().parse_args(ctx, list(args))
        except _UsageError as error:
            if getattr(getattr(error, "param", None), "nargs", 1) == -1:
                last = [param for param in self.params if param.param_type_name == "argument"][-1]
                if self.make_parser(ctx).parse_args(list(args))[0][last.name] is not None:
                    error.param = last
            raise


class VerbGroup(TyperGroup):
    """A group of verbs whose help begins with examples, and which loads the verbs of its table when they are used."""

    verbs: ClassVar[Mapping[str, Verb]] = {}
    #: The verb that is meant where the first word is none; empty: that is an error.
    default: ClassVar[str] = ""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.params = [*self.params, *verbosity.options()]
        self.commands: Any = {**dict.fromkeys(self.verbs), **self.commands}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the word of the default before the others where none is there."""
        own = {text for option in verbosity.options() for text in option.opts}
        n_own = next((at for at, word in enumerate(args) if word not in own), len(args))
        if self.default and args[n_own:] and args[n_own] not in (*self.commands, "-h", "--help"):
            args = [*args[:n_own], self.default, *args[n_own:]]
        with _guessing():
            return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The verb; where other tools have one of the name, the error names ours, not one that only looks like it."""
        if args[0] not in self.commands and (verb := VERBS.get(args[0])) in self.commands:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {verb!r}?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> object:
        """Run the verb."""
        with _guessing():
            return super().invoke(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The verb, loaded."""
        if cmd_name in self.verbs and self.commands[cmd_name] is None:
            self.commands[cmd_name] = load(cmd_name, self.verbs[cmd_name])
        return super().get_command(ctx, cmd_name)

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, then the text."""
        _write_examples(ctx, formatter)
        super().format_help_text(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of verbs, without loading them."""
        if not self.verbs:
            super().format_commands(ctx, formatter)
            return
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.summary) for name, verb in self.verbs.items()])


def load(name: str, verb: Verb) -> Any:
    """The command of a verb, or its group."""
    found = getattr(importlib.import_module(f"wherry.cli.{verb.module}"), verb.name)
    if not isinstance(found, typer.Typer):
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command(name, cls=VerbCommand)(found)
        found = alone
    command = typer.main.get_command(found)
    command.name = name
    return command


def _write_examples(ctx: Any, formatter: Any) -> None:
    lines = EXAMPLES.get(ctx.command_path.partition(" ")[2], ())
    if lines:
        with formatter.section("Examples"):
            formatter.write("".join(f"{'':{formatter.current_indent}}{line}\n" for line in lines))


@contextmanager
def _guessing() -> Iterator[None]:
    """Name the option that was meant, where one is near, in place of all that look alike."""
    try:
        yield
    except _UsageError as error:
        if hasattr(error, "possibilities") and error.ctx is not None:
            error.possibilities = None  # all that look like it; the message names the nearest
            error.message = f"No such option: {error.option_name}{_guess(error.option_name, error.ctx)}"
        raise


def _guess(given: str, ctx: Any) -> str:
    if advice := ADVICE.get(given):
        return f". {advice}"
    known = [option for one in ctx.command.params for option in (*one.opts, *one.secondary_opts)]
    if near := get_close_matches(given, [option for option in known if option.startswith("--")], 1):
        return f". Did you mean {near[0]!r}?"
    if any(given in one.opts for one in ctx.find_root().command.params):
        return f". It stands before the verb: wherry {given} {ctx.command_path.partition(' ')[2]} ..."
    return ""
