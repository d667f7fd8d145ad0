"""The commands of ``python -m load_tests``: arguments in, figures and complaints out."""

import argparse
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import anyio
import anyio.to_thread
import numpy as np

from load_tests.accuracy import run_recordings
from load_tests.beside import run_beside
from load_tests.calls import run_calls
from load_tests.chromium_ear import run_chromium
from load_tests.churn import run_churn
from load_tests.client import JsonObject
from load_tests.compare_aiortc import compare
from load_tests.echo import run_echo
from load_tests.engine_overhead import run_engine_overhead
from load_tests.frames import run_frames
from load_tests.history import embedded_recognizer
from load_tests.impairment import Impairment
from load_tests.killed import run_killed
from load_tests.lane_times import run_lanes
from load_tests.lossy_speech import understood
from load_tests.loudspeaker import RATE as SPOKEN_RATE
from load_tests.microphone import Clip
from load_tests.network import parse_loss, run_network
from load_tests.plain import run_plain
from load_tests.recordings import RATE, load_speech, load_transcribed
from load_tests.report import Json
from load_tests.scenario import Plan
from load_tests.server import Server, serving
from load_tests.voice import run_voice

Run = Callable[[argparse.Namespace, Any], Awaitable[tuple[dict[str, Json], list[str]]]]

DETECTIONS: dict[str, JsonObject] = {
    "server_vad": {"type": "server_vad"},
    "semantic_vad": {"type": "semantic_vad"},
    "semantic_vad:low": {"type": "semantic_vad", "eagerness": "low"},
    "semantic_vad:medium": {"type": "semantic_vad", "eagerness": "medium"},
    "semantic_vad:high": {"type": "semantic_vad", "eagerness": "high"},
}


class UsageError(Exception):
    """The command line asks for what can't be."""


def plan_of(args: argparse.Namespace, *, seconds: float, transcribe: bool) -> Plan:
    questions, interruptions = load_speech(args.recordings)
    webrtc = args.transport == "webrtc"
    rate = SPOKEN_RATE if webrtc else RATE
    return Plan(
        questions=[Clip.of(recording, rate) for recording in questions],
        interruptions=[Clip.of(recording, rate) for recording in interruptions],
        seconds=seconds,
        detection=DETECTIONS[args.turn_detection],
        voice=args.voice,
        transcribe=transcribe,
        interrupt_every=args.interrupt_every,
        keep=args.keep,
        transport=args.transport,
        coding=args.coding,
        network=network_of(args),
        compare_words=webrtc and args.engine == "default",
    )


def network_of(args: argparse.Namespace) -> Impairment:
    """Raises UsageError for values that no network has."""
    try:
        return Impairment(
            args.loss, args.burst, args.delay, args.jitter, args.reorder, args.kilobits
        )
    except ValueError as error:
        raise UsageError(str(error)) from None


async def voice(args: argparse.Namespace, server: Server) -> tuple[dict[str, Json], list[str]]:
    plan = plan_of(args, seconds=args.seconds, transcribe=args.transcribe)
    return await run_voice(server, plan, args.sessions, args.model, args.seed)


async def chromium(args: argparse.Namespace, server: Server) -> tuple[dict[str, Json], list[str]]:
    return await run_chromium(server.url, load_speech(args.recordings)[1], args.seconds)


async def recordings(args: argparse.Namespace, server: Server) -> tuple[dict[str, Json], list[str]]:
    plan = plan_of(args, seconds=0.0, transcribe=True)
    spoken = load_transcribed(args.recordings, args.transcripts)
    return await run_recordings(server, plan, spoken, args.sessions, args.model)


async def churn(args: argparse.Namespace, server: Server) -> tuple[dict[str, Json], list[str]]:
    return await run_churn(server, args.connections, args.idle, args.model)


async def calls(args: argparse.Namespace, server: Server) -> tuple[dict[str, Json], list[str]]:
    return await run_calls(server, args.calls, args.at_once)


async def network(args: argparse.Namespace, server: Server) -> tuple[dict[str, Json], list[str]]:
    if args.transcripts is None:
        spoken, _ = load_speech(args.recordings)
    else:
        spoken = load_transcribed(args.recordings, args.transcripts)[: args.most]
    networks = networks_of(args)
    plan = plan_of(args, seconds=args.seconds, transcribe=False)
    plan = replace(plan, transport="webrtc", compare_words=False)
    with serving(["--engine", "scripted"]) as talker:
        return await run_network(server, talker, plan, spoken, networks, args.seed)


async def lossy_speech(
    args: argparse.Namespace, server: Server | None
) -> tuple[dict[str, Json], list[str]]:
    spoken = load_transcribed(args.recordings, args.transcripts)[: args.most]
    networks = networks_of(args)

    def compute() -> dict[str, Json]:
        return understood(spoken, networks, args.seed, embedded_recognizer())

    return await anyio.to_thread.run_sync(compute), []


def networks_of(args: argparse.Namespace) -> list[Impairment]:
    """Each loss with each jitter. Raises UsageError."""
    try:
        losses = [parse_loss(text) for text in args.losses]
        return [
            Impairment(loss, burst, args.delay, jitter, args.reorder, args.kilobits)
            for loss, burst in losses
            for jitter in args.jitters
        ]
    except ValueError as error:
        raise UsageError(str(error)) from None


async def plain(args: argparse.Namespace) -> tuple[dict[str, Json], list[str]]:
    questions, _ = load_speech(args.recordings)
    return await anyio.to_thread.run_sync(run_plain, questions, args.lite, args.voice), []


async def beside(args: argparse.Namespace, server: Server) -> tuple[dict[str, Json], list[str]]:
    plan = plan_of(args, seconds=args.seconds, transcribe=False)
    return await run_beside(server, plan, args.sessions, args.batch_clients, args.model)


async def frames(args: argparse.Namespace, server: Server) -> tuple[dict[str, Json], list[str]]:
    return await run_frames(server, args.sessions, args.seconds)


async def faults(args: argparse.Namespace, server: Server) -> tuple[dict[str, Json], list[str]]:
    return await run_killed(server, args.sessions)


async def engine_overhead(args: argparse.Namespace) -> tuple[dict[str, Json], list[str]]:
    return await run_engine_overhead(
        args.model_folder,
        args.large,
        args.at_once,
        args.answers,
        args.tokens,
        args.rounds,
        args.eager,
        args.gpu_memory,
    )


async def ticks(args: argparse.Namespace) -> tuple[dict[str, Json], list[str]]:
    from load_tests.ticks import run  # it needs torch

    return await anyio.to_thread.run_sync(run, args, print), []


async def lanes(args: argparse.Namespace) -> tuple[dict[str, Json], list[str]]:
    return await run_lanes(args.sessions, args.seconds)


async def echo(
    args: argparse.Namespace, server: Server | None
) -> tuple[dict[str, Json], list[str]]:
    questions, _ = load_speech(args.recordings)
    return await run_echo(
        questions, args.way, args.seconds, args.coding, network_of(args), args.seed
    )


async def compare_aiortc(
    args: argparse.Namespace, server: Server | None
) -> tuple[dict[str, Json], list[str]]:
    questions, _ = load_speech(args.recordings)
    samples = np.concatenate([recording.samples for recording in questions])
    return await compare(samples, args.ways, args.seconds, args.first)
