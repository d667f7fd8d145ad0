"""The settings of the engine that runs the language model."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal

from duologue.web.setting import declare

LanguageEngine = Literal["auto", "llama", "vllm", "transformers"]

_GROUP: Final = "Language model"


def _of(engines: str, default: Any, text: str, **bounds: Any) -> Any:
    """A setting that only `engines` have: their names, with spaces between them."""
    return declare(default, text, _GROUP, engines=tuple(engines.split()), **bounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageSettings:
    """What decides how the language model is run. ``None`` and empty leave it to the engine."""

    llm_engine: LanguageEngine = declare(
        "auto",
        "what runs the language model: llama takes GGUF files, vllm and transformers take folders "
        "with a config.json, transformers GGUF files too; auto is llama for a file, and for a "
        "folder vllm where it is installed, else transformers",
        _GROUP,
    )
    llm_max_tokens: int | None = _of(
        "llama vllm transformers",
        None,
        "tokens of an answer whose request gives no number; if not set 320, and 1024 with vllm",
        low=1,
    )
    llm_temperature: float | None = declare(
        None,
        "temperature of answers whose request gives none; 0.6 with llama, else the model's own",
        _GROUP,
        low=0,
        high=2,
    )
    llm_seed: int | None = _of(
        "llama vllm transformers",
        None,
        "seed of answers whose request gives none; a new one each time if not set",
    )
    llm_batch: int | None = declare(
        None,
        "answers of the batch lane at the same time; if not set 1 with llama and transformers, 4 "
        "with a chat endpoint, 32 with vllm",
        _GROUP,
        low=1,
    )
    llm_dtype: str = _of(
        "vllm transformers",
        "auto",
        "type of the weights: auto, bfloat16, float16 or float32",
    )
    trust_remote_code: bool = _of(
        "vllm transformers",
        False,
        "run Python code, and load pickled weights, that come with the model's folder",
    )
    llm_chat_template: Path | None = _of(
        "vllm transformers", None, "file with a chat template in place of the model's own"
    )
    llm_device: str | None = _of(
        "transformers",
        None,
        "torch device, as cuda:0 or cpu; CUDA where there is one if not set. For vllm set "
        "CUDA_VISIBLE_DEVICES",
    )
    llm_quantization: str | None = _of(
        "vllm", None, "vLLM's quantization method, as fp8; what the folder says if not set"
    )
    llm_load_format: str | None = _of(
        "vllm",
        None,
        "vLLM's load format; safetensors if not set; dummy makes random weights, to measure with",
    )
    llm_tensor_parallel: int | None = _of(
        "vllm", None, "GPUs that share each layer; 1 if not set", low=1
    )
    llm_pipeline_parallel: int | None = _of(
        "vllm", None, "groups of GPUs that share the layers between them; 1 if not set", low=1
    )
    llm_gpu_memory: float | None = _of(
        "vllm",
        None,
        "share of each GPU's memory that vLLM may take (of the machine's, where it runs on the "
        "processor); 0.85 if not set",
        low=0.01,
        high=1,
    )
    llm_eager: bool = _of("vllm", False, "run without CUDA graphs and compilation: starts sooner")
    llm_tool_parser: str | None = _of(
        "vllm",
        None,
        "vLLM's parser for the calls of functions, as llama3_json; if not set, calls in Qwen's "
        "tags or bare JSON are found",
    )
    llm_reasoning_parser: str | None = _of(
        "vllm",
        None,
        "vLLM's parser that tells a model's thoughts, which are not said, from its answer, as "
        "qwen3",
    )
    llm_media_hosts: tuple[str, ...] = _of(
        "vllm",
        (),
        "hosts from which https: pictures may be fetched for the model; data: URLs need none",
    )

    def unfit(self, engine: str) -> list[str]:
        """The settings that were given and that `engine` ("chat" for an endpoint) does not have."""
        return [
            entry.name
            for entry in fields(self)
            if (having := entry.metadata["about"].engines)
            and engine not in having
            and getattr(self, entry.name) != entry.default
        ]
