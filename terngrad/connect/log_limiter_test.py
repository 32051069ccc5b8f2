"""The limit for the lines of a log."""

from terngrad.connect.log_limiter import LogLimiter


class _Log:
    def __init__(self):
        self.lines, self.now = [], 0.0
        self.limiter = LogLimiter(self.lines.append, lambda: self.now)


def test_a_line_is_logged_once_a_minute_and_then_how_often_it_came():
    log = _Log()
    for _ in range(4):
        log.limiter("worker 1 came back.")
    assert log.lines == ["worker 1 came back."]
    log.now = 60.0
    log.limiter("worker 2 came back.")
    assert log.lines[1:] == [
        "Left out 3 more lines like this one: worker 1 came back.",
        "worker 2 came back.",
    ]


def test_a_line_whose_text_others_choose_stays_one_line():
    log = _Log()
    log.limiter("host \x1b[2J\nWorker 0: step 10 \ud800 is unknown.")
    assert log.lines == [r"host \x1b[2J\nWorker 0: step 10 \ud800 is unknown."]


def test_lines_that_differ_in_numbers_only_are_of_one_kind():
    log = _Log()
    for step in range(1000):
        log.limiter(f"Workers 0 and 1 train from step {step} on.")
    log.limiter("something else")
    assert len(log.lines) == 21
    log.now = 61.0
    log.limiter.flush()
    assert log.lines[21:] == [
        "Left out 980 more lines like this one: Workers 0 and 1 train from step 0 on."
    ]
    log.limiter.flush()
    assert len(log.lines) == 22


def test_a_kind_holds_lines_whose_text_others_choose():
    log = _Log()
    for i in range(5000):
        log.limiter(f"Refused {chr(97 + i % 26)}{i}", kind="refusals", max_lines=3)
    assert log.lines == ["Refused a0", "Refused b1", "Refused c2"]
    log.limiter.flush()
    assert len(log.lines) == 3
    log.limiter.flush(is_end=True)
    assert log.lines[3:] == ["Left out 4997 more lines like this one: Refused a0"]
