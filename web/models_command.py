"""`duologue models`: list, fetch and verify the models that come with the server."""

import argparse
import functools
import os
import shutil
import sys
from pathlib import Path
from typing import TextIO

import anyio

from duologue.models.fetch import Outcome, State, sync
from duologue.models.lockfile import Lock, LockError, Model, read_lock
from duologue.models.weights import (
    WeightsError,
    WeightsMissing,
    cache_folder,
    check_model,
    model_folder,
)
from duologue.web.setting_sources import load_settings
from duologue.web.setting_table import SETTINGS
from duologue.web.settings import SettingsError

REDRAW = 0.1  # seconds between two drawings of the bar
BAR = 24  # its width in characters


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `models` to the commands of a parser; its `run` is this module's."""
    models = subparsers.add_parser(
        "models",
        help="list, fetch and verify the models that come with the server",
        description="The models that come with the server.",
    )
    models.set_defaults(run=run)
    actions = models.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, text in {
        "list": "name, version, size, licence and state of each model",
        "sync": "fetch what is missing or altered; a run that was cut off goes on where it stopped",
        "verify": "read every file and compare it with the lock; exit code 1 if one differs",
    }.items():
        action = actions.add_parser(name, help=text, description=text.capitalize() + ".")
        action.add_argument("--config", metavar="FILE", help="TOML file with the settings")
        action.add_argument("--cache", metavar="FOLDER", help=SETTINGS["cache"].about.help)
        if name != "list":
            action.add_argument(
                "--lite", action="store_true", default=None, help="the small set of models"
            )
            action.add_argument("names", nargs="*", metavar="NAME", help="only these models")


def run(args: argparse.Namespace) -> int:
    """Run `duologue models` and return the exit code: 0, 1 when a model is not as it should be."""
    try:
        lock = read_lock()
        settings = load_settings(args, os.environ)
        cache = settings.cache.expanduser().absolute() if settings.cache else cache_folder()
        if args.action == "list":
            return list_models(lock, cache, sys.stdout)
        names = args.names or lock.sets["lite" if settings.lite else "default"]
        models = [lock.model(name) for name in names]
        if args.action == "verify":
            return verify_models(models, cache, sys.stdout)
        return sync_models(models, cache, sys.stdout)
    except (LockError, SettingsError, WeightsError) as error:
        sys.stderr.write(f"duologue models {args.action}: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("\nStopped. The same command goes on from here.\n")
        return 130


def list_models(lock: Lock, cache: Path, out: TextIO) -> int:
    rows = [("NAME", "VERSION", "SIZE", "LICENCE", "SETS", "STATE")]
    for model in lock.models.values():
        sets = ", ".join(name for name, members in lock.sets.items() if model.name in members)
        size = f"{model.size / 1e6:.1f} MB"
        state = state_of(model, model_folder(cache, model.name))
        rows.append((model.name, model.version, size, model.licence, sets, state))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        out.write("  ".join(cells).rstrip() + "\n")
    out.write(f"\nThey are kept in {cache / 'models'}.\n")
    return 0


def state_of(model: Model, folder: Path) -> str:
    try:
        check_model(model, folder)
    except WeightsMissing:
        return "missing"
    except WeightsError:
        return "altered"
    return "present"


def verify_models(models: list[Model], cache: Path, out: TextIO) -> int:
    code = 0
    for model in models:
        try:
            check_model(model, model_folder(cache, model.name), full=True)
        except WeightsError as error:
            out.write(f"{model.name}: {error}\n")
            code = 1
        else:
            out.write(f"{model.name}: verified\n")
    return code


def sync_models(models: list[Model], cache: Path, out: TextIO) -> int:
    progress: Bar | Lines = Bar(out) if out.isatty() else Lines(out)
    names = [model.name for model in models]
    try:
        outcomes = anyio.run(functools.partial(sync, names, progress=progress, cache=cache))
    finally:
        progress.close()
    if all(outcome.state is State.PRESENT for outcome in outcomes):
        out.write(f"All {len(outcomes)} models are there.\n")
    for outcome in outcomes:
        out.write(sentence(outcome))
    return int(any(outcome.state is State.FAILED for outcome in outcomes))


def sentence(outcome: Outcome) -> str:
    if outcome.state in {State.PRESENT, State.FETCHED}:
        return ""
    again = f"To try again: duologue models sync {outcome.name}"
    return f"{outcome.name} could not be fetched: {outcome.detail}. {again}\n"


class Lines:
    """Progress as plain lines: what happens, and each further tenth of the bytes."""

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self.total = 0
        self.done = 0
        self.tenths = 0

    def say(self, text: str) -> None:
        self.out.write(f"{text}\n")
        self.out.flush()

    def expect(self, size: int) -> None:
        self.total += size

    def advance(self, size: int) -> None:
        self.done += size
        tenths = 10 * self.done // self.total if self.total > 0 else 0
        if size > 0 and tenths > self.tenths:
            self.say(f"{10 * tenths} % of {self.total / 1e6:.0f} MB")
        self.tenths = tenths

    def close(self) -> None:
        """Nothing is left open on the line."""


class Bar:
    """Progress as a bar on the last line of a terminal, with sentences above it."""

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self.total = 0
        self.done = 0
        self.drawn = float("-inf")
        self.started: float | None = None

    def say(self, text: str) -> None:
        self.out.write(f"\r\x1b[K{text}\n")
        self.draw()

    def expect(self, size: int) -> None:
        self.total += size

    def advance(self, size: int) -> None:
        self.done += size
        now = anyio.current_time()
        if self.started is None:
            self.started = now
        if now - self.drawn >= REDRAW:
            self.drawn = now
            self.draw()

    def draw(self) -> None:
        if self.total <= 0:
            return
        share = min(1.0, max(0.0, self.done / self.total))
        full = round(share * BAR)
        text = f"[{'#' * full}{'.' * (BAR - full)}] {self.done / 1e6:.0f} of "
        text += f"{self.total / 1e6:.0f} MB"
        if self.started is not None and self.drawn - self.started >= 1:
            text += f", {self.done / 1e6 / (self.drawn - self.started):.1f} MB/s"
        width = shutil.get_terminal_size().columns - 1
        self.out.write(f"\r\x1b[K{text[:width]}")
        self.out.flush()

    def close(self) -> None:
        """Clear the bar away."""
        self.out.write("\r\x1b[K")
        self.out.flush()
