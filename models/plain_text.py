"""Text without its typography: no markdown, no emoji, one kind of quote and space."""

import re
import unicodedata

_FENCED = re.compile(r"^[ \t]*(```|~~~)[^\n]*\n.*?(?:^[ \t]*\1[ \t]*$|\Z)", re.M | re.S)
_FENCE = re.compile(r"^[ \t]*(?:```|~~~)[^\n]*$", re.M)
_LINK = re.compile(r"!?\[([^\[\]]*)\]\((?:[^()\s]|\([^()]*\))*(?:\s+\"[^\"]*\")?\)")
_REFERENCE = re.compile(r"\[([^\[\]]+)\]\[[^\[\]]*\]|\[\^?\d+\]")
_AUTOLINK = re.compile(r"<((?:https?://|mailto:)?[^\s<>]+[@.][^\s<>]+)>")
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>|<!--.*?-->", re.S)
_RULE = re.compile(r"^[ \t]*(?:(?:[*_-][ \t]*){3,}|={3,}|[|: \t-]*-{2,}[|: \t-]*)$", re.M)
_MARK = re.compile(r"^[ \t]*(?:#{1,6}[ \t]+|>+[ \t]?|[-*+•◦▪][ \t]+(?:\[[ xX]\][ \t]+)?)")
_NUMBERED = re.compile(r"^[ \t]*\d{1,3}[.)][ \t]+\S")
_CLOSING_HASHES = re.compile(r"[ \t]+#+[ \t]*$")
_EMPHASIS = re.compile(r"(\*\*\*|\*\*|~~|`+)(?=\S)(.+?)(?<=\S)\1")
_SINGLE = re.compile(r"(?<!\w)(___|__|_|\*)(?=\S)(.+?)(?<=\S)\1(?!\w)")
_STRAY = re.compile(r"\*\*+|~~+|`+|(?<![\w*])\*(?=\w)|(?<=[^\W\d])\*(?![\w*])")
_ESCAPE = re.compile(r"\\([\\`*_{}\[\]()#+\-.!|>~$])")
# An escaped mark spends the time in the private use area, where no rule sees it.
_SHELTER = 0xE000
_SHELTERED = re.compile("[\ue000-\ue07f]")
_EMOTICON = re.compile(r"(?<!\S)(?:[:;=][-']?[)(DPpOo/|]|<3|\^_\^|xD|XD)(?=$|[\s.,!?])")

_SAME = str.maketrans(
    {
        "‘": "'", "’": "'", "‛": "'", "′": "'", "“": '"', "”": '"', "„": '"', "«": '"', "»": '"',
        "″": '"', "‐": "-", "‑": "-", "‒": "–", "―": "—", "…": "...",
        "\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u2007": " ", "\u200b": "", "\u00ad": "",
        "\u2060": "", "\ufeff": "",
    }
)  # fmt: skip


def plain_text(text: str) -> str:
    """What a reader sees of a text written in markdown, as plain lines.

    Fenced code is left out, as it cannot be said; inline code, links and emphasis keep their words.
    A heading, list item or table row that ends its line without punctuation gets a full stop, and
    table cells are separated by commas. Emoji, emoticons and other pictures are dropped.
    """
    text = _FENCE.sub("", _FENCED.sub("\n", text.translate(_SAME)))
    text = _ESCAPE.sub(lambda match: chr(_SHELTER + ord(match[1])), text)
    text = _LINK.sub(r"\1", text)
    text = _REFERENCE.sub(lambda match: match[1] or "", text)
    text = _TAG.sub(" ", _AUTOLINK.sub(r"\1", text))
    text = _RULE.sub("", text)
    lines = text.split("\n")
    text = "\n".join(
        [_line(line, ends=True) for line in lines[:-1]] + [_line(lines[-1], ends=False)]
    )
    for _ in range(3):
        text = _SINGLE.sub(r"\2", _EMPHASIS.sub(r"\2", text))
    text = _SHELTERED.sub(lambda match: chr(ord(match[0]) - _SHELTER), _STRAY.sub("", text))
    return "".join(filter(_is_said, _EMOTICON.sub("", text)))


def _line(line: str, *, ends: bool) -> str:
    """One line without its block marks. The last line of a text may go on in the next one."""
    bare = _MARK.sub("", line)
    is_row = line.count("|") >= 2
    is_block = bare != line or is_row or _NUMBERED.match(line) is not None
    if not is_block:
        return line
    if is_row:
        bare = ", ".join(
            cell.strip() for cell in bare.strip().strip("|").split("|") if cell.strip()
        )
    bare = _CLOSING_HASHES.sub("", bare)
    if ends and bare.rstrip("*_`~ \t)\"'")[-1:].isalnum():
        bare = bare.rstrip() + "."
    return bare


def _is_said(character: str) -> bool:
    """False for pictures and for the code points that only join or colour them."""
    if ord(character) < 0x0300:
        return True
    if 0x1F3FB <= ord(character) <= 0x1F3FF or 0xFE00 <= ord(character) <= 0xFE0F:
        return False
    if character in "→←↑↓≤≥≠≈∞√×÷−∑∏°℃℉№™℠€₤₹₽¥£":
        return True
    return unicodedata.category(character) not in {"So", "Cs", "Co", "Cn", "Cf", "Me"}
