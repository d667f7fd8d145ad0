import pytest

from duologue.models.plain_text import plain_text


@pytest.mark.parametrize(
    ("markdown", "plain"),
    [
        ("# Title\nText", "Title.\nText"),
        ("## Title ##\n", "Title.\n"),
        ("- one\n- two!\n* three", "one.\ntwo!\nthree"),
        ("1. one\n2. two\n", "1. one.\n2. two.\n"),
        ("> quoted", "quoted"),
        ("- [x] done\n", "done.\n"),
        ("**bold**, *italic*, ***both***, __b__, _i_, ~~gone~~", "bold, italic, both, b, i, gone"),
        ("`code` and ``more``", "code and more"),
        ("**begun here,", "begun here,"),
        ("ended here**", "ended here"),
        ("a [link](https://x.org/a_(b)) here", "a link here"),
        ("![a cat](cat.png)", "a cat"),
        ("as shown[1] and [there][ref]", "as shown and there"),
        ("<b>bold</b><br>", " bold  "),
        ("<https://x.org>", "https://x.org"),
        ("| a | b |\n|---|:-:|\n| 1 | 2 |\n", "a, b.\n\n1, 2.\n"),
        ("before\n\n---\n\nafter", "before\n\n\n\nafter"),
        ("say ```python\nprint(1)\n", "say python\nprint(1)\n"),
        ("```python\nprint(1)\n```\nDone.", "\n\nDone."),
        ("```\nnever closed", "\n"),
        (r"\*not bold\*", "*not bold*"),
        ("2 * 3 * 4 and 2*3*4", "2 * 3 * 4 and 2*3*4"),
        ("snake_case_name", "snake_case_name"),
        ("Hi 👋🏽 there 👨‍👩‍👧 🇫🇷 ❤️ ☀ ✓", "Hi  there     "),
        ("nice :-) and <3, at 8) sharp", "nice  and , at 8) sharp"),
        ("“quoted” ‘so’ it’s…", "\"quoted\" 'so' it's..."),
        ("5 → 6, 3 ≤ 4, 20 °C, €5", "5 → 6, 3 ≤ 4, 20 °C, €5"),
        ("", ""),
    ],
)
def test_typography_goes_and_words_stay(markdown: str, plain: str) -> None:
    assert plain_text(markdown) == plain


def test_a_line_that_may_go_on_is_not_ended() -> None:
    assert plain_text("- one and") == "one and"
