"""The command line of ``python -m load_tests``."""

import argparse
from pathlib import Path

from load_tests.commands import (
    DETECTIONS,
    Run,
    beside,
    calls,
    chromium,
    churn,
    compare_aiortc,
    echo,
    engine_overhead,
    faults,
    frames,
    lanes,
    lossy_speech,
    network,
    plain,
    recordings,
    ticks,
    voice,
)
from load_tests.compare_aiortc import WAYS
from load_tests.network import SPEAKERS
from load_tests.recordings import FOLDER
from load_tests.tick_cases import add_arguments as add_tick_arguments


def parser(description: str) -> argparse.ArgumentParser:
    """Parses the command; ``run`` of what it gives is what runs it, ``alone`` without a server."""
    top = argparse.ArgumentParser(prog="python -m load_tests", description=description)
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    about = "conversations in real time: they speak, listen and interrupt"
    command = commands.add_parser("voice", help=about, description=about)
    add_common(command, voice)
    add_speech(command, sessions=1, interrupt_every=2)
    command.add_argument("--seconds", type=float, default=60.0, help="how long each talks")
    command.add_argument("--transcribe", action="store_true", help="ask for transcripts as well")

    about = "a headless Chromium that calls and interrupts: how soon it hears nothing more"
    command = commands.add_parser("chromium", help=about, description=about)
    add_common(command, chromium)
    add_recordings(command)
    command.add_argument("--seconds", type=float, default=40.0, help="how long it calls")

    about = "every recording of a table: word errors, premature answers, interruptions"
    command = commands.add_parser("recordings", help=about, description=about)
    add_common(command, recordings)
    add_speech(command, sessions=1, interrupt_every=1)
    command.add_argument(
        "transcripts", type=Path, help="lines of a recording's name, a tab and its words"
    )

    about = "what bad networks leave of speech: lost, recovered, concealed, words, interruptions"
    command = commands.add_parser("network", help=about, description=about)
    add_common(command, network)
    command.set_defaults(engine="default", serve=[f"--slots={SPEAKERS}"])
    command.add_argument(
        "transcripts",
        type=Path,
        nargs="?",
        help="lines of a recording's name, a tab and its words; without it, words are held "
        "against those understood in the first network",
    )
    add_networks(command, most=16)
    command.add_argument("--seconds", type=float, default=15.0, help="how long others converse")
    add_speech(command, sessions=1, interrupt_every=1)
    command.set_defaults(transport="webrtc", coding="browser")

    about = "the same, computed: no server and no clock; word errors of the embedded recogniser"
    command = commands.add_parser("lossy-speech", help=about, description=about)
    command.set_defaults(run=lossy_speech, url="", engine=None)
    command.add_argument(
        "transcripts", type=Path, help="lines of a recording's name, a tab and its words"
    )
    add_networks(command, most=1000)
    add_recordings(command)
    add_json(command)
    add_calling(command)

    about = "connections and disconnections, and sessions that do nothing: what memory they take"
    command = commands.add_parser("churn", help=about, description=about)
    add_common(command, churn)
    command.add_argument("--connections", type=int, default=1000)
    command.add_argument("--idle", type=int, default=50, help="sessions held while doing nothing")

    about = "WebRTC calls that are set up and hung up: how soon, and what memory they leave taken"
    command = commands.add_parser("calls", help=about, description=about)
    add_common(command, calls)
    command.set_defaults(serve=["--slots=1000", "--max-sessions=1000"])
    command.add_argument("--calls", type=int, default=100)
    command.add_argument("--at-once", type=int, default=1, dest="at_once")

    about = "the same models in the shortest script, one step after the other: what is to be beaten"
    command = commands.add_parser("plain", help=about, description=about)
    command.set_defaults(alone=plain)
    command.add_argument("--lite", action="store_true", help="the small set of models")
    command.add_argument("--voice", default="", help="voice to speak with")
    add_recordings(command)
    add_json(command)

    about = "conversations alone and beside batch requests that take all they can get"
    command = commands.add_parser("beside", help=about, description=about)
    add_common(command, beside)
    add_speech(command, sessions=4, interrupt_every=0)
    command.add_argument("--seconds", type=float, default=20.0, help="how long each round lasts")
    command.add_argument("--batch-clients", type=int, default=50, dest="batch_clients")

    about = "a frame into the socket of a frame-locked model to a frame out of it"
    command = commands.add_parser("frames", help=about, description=about)
    add_common(command, frames)
    command.set_defaults(engine="scripted-duplex", serve=["--slots=256"])
    command.add_argument("--sessions", type=int, default=64, help="sessions at once")
    command.add_argument("--seconds", type=float, default=20.0, help="how long each talks")

    about = "a worker of two is killed in the middle of answers: who notices, and how soon"
    command = commands.add_parser("faults", help=about, description=about)
    add_common(command, faults)
    command.set_defaults(serve=["--workers=2", "--slots=100", "--max-sessions=200"])
    command.add_argument("--sessions", type=int, default=20, help="sessions at once")

    about = "frames from a gateway to a worker process and back, with shared memory and without"
    command = commands.add_parser("lanes", help=about, description=about)
    command.set_defaults(alone=lanes)
    command.add_argument("--sessions", type=int, default=100, help="sessions at once")
    command.add_argument("--seconds", type=float, default=10.0, help="how long each part lasts")
    add_json(command)

    about = "ticks of a full-size Moshi with random weights, and of its reference (needs torch)"
    command = commands.add_parser("ticks", help=about, description=about)
    command.set_defaults(alone=ticks)
    add_tick_arguments(command)

    about = "what our path to vLLM adds to a bare AsyncLLM in the same process (needs vllm)"
    command = commands.add_parser("engine-overhead", help=about, description=about)
    command.set_defaults(alone=engine_overhead)
    command.add_argument("--model-folder", type=Path, help="a model; else one is made")
    command.add_argument(
        "--large", action="store_true", help="make one of 7 billion random weights, for a GPU"
    )
    command.add_argument("--at-once", type=int, nargs="+", default=[1, 8, 32], dest="at_once")
    command.add_argument("--answers", type=int, default=8, help="answers for each client")
    command.add_argument("--tokens", type=int, default=64, help="tokens of an answer")
    command.add_argument("--rounds", type=int, default=3)
    command.add_argument("--eager", action="store_true", help="without compilation")
    command.add_argument("--gpu-memory", type=float, default=0.0, help="as llm_gpu_memory")
    add_json(command)

    about = "WebRTC calls that one core carries: stock aiortc and ours in turn, echoing"
    command = commands.add_parser("compare-aiortc", help=about, description=about)
    command.set_defaults(run=compare_aiortc, url="", engine=None)
    command.add_argument("--seconds", type=float, default=5.0, help="how long each step lasts")
    command.add_argument(
        "--ways", nargs="+", choices=WAYS, default=list(WAYS), help="what to measure"
    )
    command.add_argument("--first", type=int, help="calls to begin with")
    add_recordings(command)
    add_json(command)

    about = "mouth to ear over WebRTC: stock aiortc hears itself come back from an echo"
    command = commands.add_parser("echo", help=about, description=about)
    command.set_defaults(run=echo, url="", engine=None)
    command.add_argument("--seconds", type=float, default=30.0)
    command.add_argument(
        "--way", choices=("duologue", "duologue_steady", "aiortc"), default="duologue"
    )
    add_recordings(command)
    add_json(command)
    add_calling(command)
    return top


def add_recordings(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--recordings", type=Path, default=FOLDER, help=f"folder of speech (default: {FOLDER})"
    )


def add_json(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", metavar="FILE", help="figures as JSON; - for the last line")


def add_common(command: argparse.ArgumentParser, run: Run) -> None:
    command.set_defaults(run=run)
    command.add_argument("--url", help="a server that runs already, as http://127.0.0.1:8765")
    command.add_argument("--pid", type=int, default=0, help="with --url: its process, to watch it")
    command.add_argument("--key", default="", help="with --url: the key to present")
    command.add_argument("--model", default="", help="model to ask for")
    command.add_argument("--engine", choices=["scripted", "default"], default="scripted")
    command.add_argument("--lite", action="store_true", help="the small set of models")
    command.add_argument(
        "--serve",
        action="append",
        default=[],
        metavar="OPTION",
        help="an option for the server that is started, as --serve=--slots=8; may be repeated",
    )
    command.add_argument("--log", type=Path, help="where the started server's log goes")
    add_json(command)


def add_speech(command: argparse.ArgumentParser, *, sessions: int, interrupt_every: int) -> None:
    command.add_argument("--sessions", type=int, default=sessions, help="sessions at once")
    command.add_argument("--voice", default="", help="voice to ask for")
    add_recordings(command)
    command.add_argument(
        "--turn-detection", choices=sorted(DETECTIONS), default="server_vad", dest="turn_detection"
    )
    command.add_argument(
        "--interrupt-every",
        type=int,
        default=interrupt_every,
        metavar="N",
        help="interrupt every N-th answer; 0 for none",
    )
    command.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="leave stereo recordings of what was heard"
    )
    command.add_argument("--transport", choices=["websocket", "webrtc"], default="websocket")
    add_calling(command)


def add_networks(command: argparse.ArgumentParser, *, most: int) -> None:
    command.add_argument("--most", type=int, default=most, help="recordings of the table to speak")
    command.add_argument(
        "--losses", nargs="+", default=["0", "2", "5", "10", "10x3"], metavar="PERCENT[xBURST]"
    )
    command.add_argument("--jitters", nargs="+", type=float, default=[0.0, 30.0, 80.0])


def add_calling(command: argparse.ArgumentParser) -> None:
    """How a microphone is coded, and a network in the path of each call, in both directions."""
    group = command.add_argument_group("over WebRTC")
    group.add_argument(
        "--coding",
        choices=["stock", "browser"],
        default="stock",
        help="as stock aiortc does it, or with redundancy as in browsers",
    )
    for name, help_text in (
        ("loss", "percent of packets lost"),
        ("burst", "mean packets lost in a row"),
        ("delay", "milliseconds each way"),
        ("jitter", "milliseconds that are added at most"),
        ("reorder", "percent of packets that others pass"),
        ("kilobits", "kb/s each way; 0 for no bound"),
    ):
        group.add_argument(f"--{name}", type=float, default=0.0, help=help_text)
    group.add_argument(
        "--seed",
        type=int,
        default=1,
        help="another fate of packets, and for voice another order of who says what",
    )
