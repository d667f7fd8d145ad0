"""The `duologue` command."""

import argparse
import sys

from duologue.web import models_command, plan_command, serve_command, talk_command


def main(argv: list[str] | None = None) -> int:
    """Parse the command line, run the command it names and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="duologue", description="Full-duplex conversations with models on your own machines."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve_command.add_parser(commands)
    plan_command.add_parser(commands)
    models_command.add_parser(commands)
    talk_command.add_parser(commands)
    args = parser.parse_args(argv)
    code: int = args.run(args)
    return code


if __name__ == "__main__":
    sys.exit(main())
