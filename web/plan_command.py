"""`duologue plan`: print in which processes and on which devices the stages would run."""

import argparse
import os
import sys

from duologue.engines.pipeline.plan_report import plan_json, plan_table
from duologue.web.deployment_setup import deployment_plan
from duologue.web.setting_flags import add_flags
from duologue.web.setting_sources import load_settings
from duologue.web.settings import SettingsError


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `plan` to the commands of a parser; its `run` is this module's."""
    plan = subparsers.add_parser(
        "plan",
        help="print what would run where",
        description="Print the stages of the model that would be served, and the processes and "
        "devices that they would run on. Takes the settings of `duologue serve`, starts nothing "
        "and needs no weights.",
        allow_abbrev=False,
    )
    plan.add_argument("--json", action="store_true", help="print JSON")
    add_flags(plan)
    plan.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run `duologue plan`; return the exit code."""
    try:
        plan = deployment_plan(load_settings(args, os.environ))
    except SettingsError as error:
        sys.stderr.write(f"duologue plan: {error}\n")
        return 1
    sys.stdout.write((plan_json if args.json else plan_table)(plan) + "\n")
    return 0
