"""A Moshi-family network as a stepper: arrays in, one step, arrays out."""

import numpy as np
import torch
from numpy.typing import NDArray
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

    def step(self, inputs: StepInput) -> StepOutput:
        """A frame for all active slots; blocks until it is there."""
        output = self._network.step(
            DuplexInput(
                pcm=self._sent(inputs.pcm),
                forced=self._sent(inputs.forced),
                heard=self._sent(inputs.heard),
                listening=self._sent(inputs.listening),
                active=self._sent(inputs.active),
            ),
            self.state,
        )
        return StepOutput(
            pcm=output.pcm.float().cpu().numpy(),
            text=output.text.cpu().numpy(),
            ready=output.ready.cpu().numpy(),
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

    def _sent(self, array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)
