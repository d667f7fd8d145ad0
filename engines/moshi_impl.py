"""A Moshi-family network as a stepper: arrays in, one step, arrays out."""

import numpy as np
import torch
from torch import Tensor

from duologue.engines.lockstep import StepInput, StepOutput
from duologue.models.moshi.duplex_network import DuplexInput, DuplexNetwork
from duologue.models.moshi.moshi_config import SamplingChoice

SavedSlot = list[Tensor]


class MoshiStepper:
    """``slots`` sessions of one network, on the device of its weights.

    ``kv_dtype``: of keys and values; that of the weights if ``None``.
    """

    def __init__(
        self, network: DuplexNetwork, slots: int, kv_dtype: torch.dtype | None = None
    ) -> None:
        """ValueError unless there is a slot."""
        if slots < 1:
            raise ValueError(f"{slots} slots")
        config = network.language.config
        self.slots = slots
        self.frame_samples = network.frame_samples
        self.row_limits = (config.text_card, *[config.card] * config.agent_codebooks)
        self.user_limits = (config.card,) * config.user_codebooks
        self._network = network
        self.state = network.new_state(slots, kv_dtype)
        self._device = network.language.initial.device
        self._widths = [self.frame_samples, len(self.row_limits), len(self.user_limits), 1, 1]
        self._host = torch.zeros(slots, sum(self._widths), pin_memory=self._device.type == "cuda")

    def step(self, inputs: StepInput) -> StepOutput:
        """A frame for all active slots; blocks until it is there.

        One copy to the device and one back: tokens travel among the samples, as floats, which
        are exact below 2**24.
        """
        parts = (
            inputs.pcm,
            inputs.forced,
            inputs.heard,
            inputs.listening[:, None],
            inputs.active[:, None],
        )
        np.concatenate(parts, axis=1, out=self._host.numpy(), casting="same_kind")
        sent = self._host.to(self._device, non_blocking=True)
        pcm, forced, heard, listening, active = sent.split(self._widths, dim=1)
        output = self._network.step(
            DuplexInput(
                pcm=pcm,
                forced=forced.long(),
                heard=heard.long(),
                listening=listening[:, 0] > 0,
                active=active[:, 0] > 0,
            ),
            self.state,
        )
        made = torch.cat([output.pcm, output.text[:, None], output.ready[:, None]], dim=1)
        samples = made.cpu().numpy()
        return StepOutput(
            pcm=samples[:, : self.frame_samples],
            text=samples[:, -2].astype(np.int64),
            ready=samples[:, -1] > 0,
        )

    def reset(self, slot: int, choice: SamplingChoice) -> None:
        slots = torch.zeros(self.slots, dtype=torch.bool, device=self._device)
        slots[slot] = True
        self.state.reset(slots)
        self.choose(slot, choice)

    def choose(self, slot: int, choice: SamplingChoice) -> None:
        sampling = self.state.sampling
        sampling.text_temperature[slot] = choice.text_temperature
        sampling.text_top_k[slot] = choice.text_top_k
        sampling.audio_temperature[slot] = choice.audio_temperature
        sampling.audio_top_k[slot] = choice.audio_top_k
        sampling.seed[slot] = choice.seed

    def copy(self, source: int, target: int) -> None:
        self.state.copy_slot(source, target)

    def save(self, slot: int) -> SavedSlot:
        return self.state.save(slot)

    def restore(self, slot: int, saved: SavedSlot) -> None:
        self.state.restore(slot, saved)

    def nbytes(self) -> int:
        """Memory that the slots take on the device, in bytes."""
        return self.state.nbytes()
