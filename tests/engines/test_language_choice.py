from importlib.util import find_spec

import pytest

from duologue.engines.chat_endpoint_impl import ChatEndpointLanguage, ChatEndpointStage
from duologue.engines.language_choice import (
    Mortal,
    batch_width,
    calls_tools,
    create_language,
)
from duologue.engines.llama_language import LlamaLanguage
from duologue.engines.llama_prompts import LlamaStage
from duologue.engines.pulse import Pulse
from duologue.engines.transformers_stage import TransformersStage
from duologue.engines.vllm_language import VllmLanguage
from duologue.engines.vllm_stage import VllmStage

CHAT = ChatEndpointStage(base_url="http://a/v1", model="m", batch=3)
LLAMA = LlamaStage(path="/smollm2.gguf", batch_slots=2)


def test_each_configuration_has_its_stage() -> None:
    assert isinstance(create_language(CHAT, 4, Pulse()), ChatEndpointLanguage)
    assert isinstance(create_language(LLAMA, 4, Pulse()), LlamaLanguage)
    language = create_language(VllmStage(path="/models/one"), 4, Pulse())
    assert isinstance(language, VllmLanguage)
    assert language.model == "one"


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
def test_transformers_has_one_too() -> None:
    language = create_language(TransformersStage(path="/models/one", name="uno"), 4, Pulse())
    assert (type(language).__name__, language.model) == ("TransformersLanguage", "uno")


def test_only_a_model_in_a_process_of_its_own_can_go_by_itself() -> None:
    assert isinstance(create_language(VllmStage(path="/m"), 4, Pulse()), Mortal)
    assert not isinstance(create_language(LLAMA, 4, Pulse()), Mortal)


def test_each_says_how_wide_its_batch_lane_is() -> None:
    widths = [batch_width(stage) for stage in (CHAT, LLAMA, VllmStage(path="/m", batch=7))]
    assert widths == [3, 2, 7]


def test_only_the_smallest_models_are_told_of_no_tools() -> None:
    assert not calls_tools(LLAMA)
    assert calls_tools(CHAT) and calls_tools(VllmStage(path="/m"))
