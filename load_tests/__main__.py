"""``python -m load_tests COMMAND``: measure a server as its clients feel it."""

import argparse
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import anyio

from load_tests.command_line import parser
from load_tests.commands import UsageError
from load_tests.recordings import RecordingError
from load_tests.report import Report
from load_tests.server import Server, ServerError, serving


def server_of(args: argparse.Namespace) -> AbstractContextManager[Server | None]:
    """The server that was named, or one of our own; none where none is needed."""
    if args.engine is None:
        return nullcontext()
    if args.url:
        return nullcontext(Server(args.url, args.pid, None, args.key))
    options = ["--engine", args.engine, *(["--lite"] if args.lite else []), *args.serve]
    return serving(options, log=args.log)


def main(argv: Sequence[str] | None = None) -> int:
    args = parser(__doc__ or "").parse_args(argv)
    options = {"use_uvloop": True}
    try:
        if "alone" in args:
            figures, problems = anyio.run(args.alone, args, backend_options=options)
        else:
            with server_of(args) as server:
                figures, problems = anyio.run(args.run, args, server, backend_options=options)
    except (RecordingError, ServerError, UsageError) as error:
        print(f"load_tests: {error}", file=sys.stderr)
        return 2
    Report(figures, problems=problems).write(args.json)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
