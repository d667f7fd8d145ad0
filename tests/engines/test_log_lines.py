import json
import logging

from duologue.engines.log_lines import JsonFormatter


def test_a_line_says_which_worker_it_comes_from() -> None:
    record = logging.LogRecord("a.b", logging.WARNING, __file__, 1, "%d of %d", (1, 2), None)
    line = json.loads(JsonFormatter({"worker": "moshi-1"}).format(record))
    assert (line["worker"], line["level"], line["logger"]) == ("moshi-1", "warning", "a.b")
    assert line["message"] == "1 of 2"
    assert line["time"].endswith("+00:00")
