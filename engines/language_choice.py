"""The kinds of language stages there are, and what the cascade has to know of each."""

from typing import Protocol, runtime_checkable

from msgspec.structs import replace

from duologue.engines.chat_endpoint_impl import ChatEndpointLanguage, ChatEndpointStage
from duologue.engines.language import LanguageStage
from duologue.engines.llama_language import LlamaLanguage
from duologue.engines.llama_prompts import LlamaStage
from duologue.engines.pulse import Pulse
from duologue.engines.transformers_stage import TransformersStage
from duologue.engines.vllm_stage import VllmStage
from duologue.models.chat_prompt import Family, family_of

LanguageConfig = LlamaStage | ChatEndpointStage | VllmStage | TransformersStage


@runtime_checkable
class Mortal(Protocol):
    """A language stage whose model can go while the worker stays."""

    async def watch(self) -> None:
        """Return never; raises EngineError when the model has gone. After ``load``."""


def create_language(stage: LanguageConfig, capacity: int, pulse: Pulse) -> LanguageStage:
    """The language model that the configuration names, for `capacity` conversations."""
    match stage:
        case ChatEndpointStage():
            return ChatEndpointLanguage(stage)
        case LlamaStage():
            return LlamaLanguage(replace(stage, slots=stage.slots or capacity), pulse)
        case VllmStage():
            # These two bring gigabytes along, and are not always installed.
            from duologue.engines.vllm_language import VllmLanguage

            return VllmLanguage(replace(stage, places=stage.places or capacity), pulse)
        case TransformersStage():
            from duologue.engines.transformers_language import TransformersLanguage

            return TransformersLanguage(replace(stage, slots=stage.slots or capacity), pulse)


def batch_width(stage: LanguageConfig) -> int:
    """How many answers of the batch lane run at the same time."""
    return stage.batch_slots if isinstance(stage, LlamaStage) else stage.batch


def calls_tools(stage: LanguageConfig) -> bool:
    """Whether the model can be told of tools."""
    if not isinstance(stage, LlamaStage):
        return True
    return (Family(stage.family) if stage.family else family_of(stage.path)).has_tools
