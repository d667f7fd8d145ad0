import json
from pathlib import Path

from tokenizers import Tokenizer

from duologue.models.model_folder import read_model_folder
from load_tests.tiny_model import Geometry, made_up_word, write_model


def test_a_folder_without_weights_is_whole_but_for_them(tmp_path: Path) -> None:
    write_model(tmp_path, Geometry(vocab_size=700), seed=None)
    assert read_model_folder(tmp_path, weights=False).context == 2048
    assert "chat_template" in json.loads((tmp_path / "tokenizer_config.json").read_text())


def test_every_token_stands_for_something_and_every_text_can_be_written(tmp_path: Path) -> None:
    write_model(tmp_path, Geometry(vocab_size=700), seed=None)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 700
    assert all(tokenizer.id_to_token(number) for number in range(700))
    text = "Grüße, 東京! <|im_end|>"
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
    assert tokenizer.encode("<|im_end|>").ids == [2]


def test_made_up_words_are_all_different() -> None:
    words = [made_up_word(number) for number in range(5000)]
    assert len(set(words)) == 5000
    assert all(word[0] == "\u0120" and word[1:].strip(",.").isalpha() for word in words)
