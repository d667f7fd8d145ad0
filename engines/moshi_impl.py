"""A Moshi-family network as a stepper: arrays in, one step, arrays out."""

from dataclasses import dataclass

import numpy as np
import torch

from duologue.engines.lockstep import LockstepError, StepInput, StepOutput
from duologue.engines.moshi_crew import Alone, Crew, Kept
from duologue.engines.step_graph import Run, capture
from duologue.models.moshi.duplex_network import DuplexInput, DuplexNetwork
from duologue.models.moshi.host_bricks import locked_bricks
from duologue.models.moshi.moshi_config import SamplingChoice
from duologue.models.moshi.page_book import PageBook
from duologue.models.moshi.streaming_state import SavedPart

GRAPH_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256)
"""Slots that a captured graph steps; a step takes the smallest that has all active slots."""


@dataclass(frozen=True, slots=True)
class SavedSlot:
    """A session in host memory, and where it is in its ring. ``kept``: what other
    ranks have of it."""

    parts: tuple[SavedPart, ...]
    position: int
    ring: int
    kept: Kept | None


class MoshiStepper:
    """``slots`` sessions of one network, on the device of its weights.

    ``kv_dtype``: of keys and values; that of the weights if ``None``. ``pages``: of keys and
    values, for all slots together; ``None``: as many as whole windows of all slots take. With
    fewer, sessions that find none left remember less than a window. ``crew``: the other ranks that
    the network has joined.

    On a CUDA device the steps of models like the published ones are captured as graphs, one for
    each of :data:`GRAPH_SIZES` that is needed, when they are first made.
    """

    def __init__(
        self,
        network: DuplexNetwork,
        slots: int,
        kv_dtype: torch.dtype | None = None,
        pages: int | None = None,
        crew: Crew | None = None,
    ) -> None:
        """ValueError unless there is a slot, and a page for each."""
        if slots < 1:
            raise ValueError(f"{slots} slots")
        config = network.language.config
        self.slots = slots
        self.frame_samples = network.frame_samples
        self.row_limits = (config.text_card, *[config.card] * config.agent_codebooks)
        self.user_limits = (config.card,) * config.user_codebooks
        self._network = network
        self._crew = crew or Alone()
        self._device = network.language.initial.device
        each, page = network.language.transformer.ring_pages
        whole = slots * each
        self._book = PageBook(slots, each, page, whole if pages is None else min(pages, whole))
        self.state = network.new_state(slots, kv_dtype, self._book.free)
        # Samples, tokens and flags of a slot lie side by side: one copy to the device, one back.
        self._widths = [self.frame_samples, len(self.row_limits), len(self.user_limits), 1, 1, 1, 1]
        pinned = self._device.type == "cuda"
        self._host = torch.zeros(slots, sum(self._widths), pin_memory=pinned)
        self._sent = torch.zeros_like(self._host, device=self._device)
        self._made = torch.zeros(slots, self.frame_samples + 2, device=self._device)
        self._back = torch.zeros(slots, self.frame_samples + 2, pin_memory=pinned)
        self._pages = np.full((slots, 1), -1, np.float32)
        self._rings = np.full((slots, 1), each * page, np.float32)
        self._runs: dict[int, Run] = {}
        self._graphs = False
        if pinned:
            # Triton is not there without a CUDA device.
            from duologue.models.moshi.fused_language import fuse, fuse_codec

            self._graphs = fuse(network.language)
            fuse_codec(network.mimi)
            temporal = self.state.language.temporal
            temporal.bricks = locked_bricks(temporal.paged(), spare=each)

    @property
    def shortened(self) -> int:
        """Sessions that had to do with less than a window so far."""
        return self._book.shortened

    def step(self, inputs: StepInput) -> StepOutput:
        """A frame for all active slots; blocks until it is there.

        Tokens travel among the samples, as floats, which are exact below 2**24.
        """
        active = np.flatnonzero(inputs.active)
        size = self._size(int(active[-1]) + 1 if len(active) else 1)
        self._pages[:] = -1
        for slot in active:
            page = self._book.step(int(slot))
            if page is not None:
                self._pages[slot] = page
            self._rings[slot] = self._book.ring(int(slot))
        self._crew.step(
            inputs.active[:size],
            self._pages[:size, 0].astype(np.int64),
            self._rings[:size, 0].astype(np.int64),
        )
        parts = (
            inputs.pcm,
            inputs.forced,
            inputs.heard,
            inputs.listening[:, None],
            inputs.active[:, None],
            self._pages,
            self._rings,
        )
        np.concatenate(
            [part[:size] for part in parts],
            axis=1,
            out=self._host[:size].numpy(),
            casting="same_kind",
        )
        self._sent[:size].copy_(self._host[:size], non_blocking=True)
        if size not in self._runs:
            self._runs[size] = self._captured(size)
        self._runs[size]()
        self._back[:size].copy_(self._made[:size], non_blocking=True)
        if self._device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        samples = self._back.numpy()
        samples[size:] = 0
        return StepOutput(
            pcm=samples[:, : self.frame_samples],
            text=samples[:, -2].astype(np.int64),
            ready=samples[:, -1] > 0,
        )

    def _size(self, needed: int) -> int:
        if not self._graphs:
            return self.slots
        return min(
            [size for size in GRAPH_SIZES if needed <= size < self.slots], default=self.slots
        )

    def _captured(self, size: int) -> Run:
        state = self.state.first(size)

        def run() -> None:
            parts = self._sent[:size].split(self._widths, dim=1)
            pcm, forced, heard, listening, active, pages, rings = parts
            output = self._network.step(
                DuplexInput(
                    pcm=pcm,
                    forced=forced.long(),
                    heard=heard.long(),
                    listening=listening[:, 0] > 0,
                    active=active[:, 0] > 0,
                    pages=pages[:, 0].long(),
                    rings=rings[:, 0].long(),
                ),
                state,
            )
            made = [output.pcm, output.text[:, None], output.ready[:, None]]
            torch.cat(made, dim=1, out=self._made[:size])

        if not self._graphs:
            return run
        # Nobody moves, and nobody is given a page.
        kept = self._sent[:size].clone()
        self._sent[:size] = 0
        self._sent[:size, -2] = -1
        self._sent[:size, -1] = self.state.language.temporal.places
        captured = capture(run, with_peers=self._network.language.transformer.peers is not None)
        self._sent[:size] = kept
        return captured

    def reset(self, slot: int, choice: SamplingChoice) -> None:
        self._book.clear(slot)
        self._crew.clear(slot)
        slots = torch.zeros(self.slots, dtype=torch.bool, device=self._device)
        slots[slot] = True
        self.state.reset(slots)
        self.choose(slot, choice)

    def release(self, slot: int) -> None:
        self._book.clear(slot)

    def choose(self, slot: int, choice: SamplingChoice) -> None:
        sampling = self.state.sampling
        sampling.text_temperature[slot] = choice.text_temperature
        sampling.text_top_k[slot] = choice.text_top_k
        sampling.audio_temperature[slot] = choice.audio_temperature
        sampling.audio_top_k[slot] = choice.audio_top_k
        sampling.seed[slot] = choice.seed

    def copy(self, source: int, target: int) -> None:
        """Raises LockstepError where there are no pages for it."""
        self._book.clear(target)
        self._hold(target, self._book.copy(source, target))
        self._crew.copy(source, target, self._book.held(target))
        self.state.copy_slot(source, target)

    def save(self, slot: int) -> SavedSlot:
        kept = self._crew.keep(slot)
        parts = tuple(self.state.save(slot))
        return SavedSlot(parts, self._book.position(slot), self._book.ring(slot), kept)

    def restore(self, slot: int, saved: SavedSlot) -> None:
        """Raises LockstepError where there are no pages for it."""
        self._book.clear(slot)
        self._hold(slot, self._book.fill(slot, saved.position, saved.ring))
        self._crew.restore(slot, saved.kept, self._book.held(slot))
        self.state.restore(slot, saved.parts)

    def _hold(self, slot: int, there: bool) -> None:
        if not there:
            raise LockstepError("there are no pages left for its keys and values")
        pages = torch.tensor(self._book.held(slot), dtype=torch.int64)
        self.state.language.temporal.table[slot, : len(pages)].copy_(pages)

    def nbytes(self) -> int:
        """Memory that the slots take on the device, in bytes."""
        return self.state.nbytes()
