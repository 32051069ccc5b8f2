"""Laws of the durations of steps, with a fake time."""

import pytest

from terngrad.training.timing import Clock


class Time:
    """A time that passes only on request."""

    now = 0.0

    def __call__(self):
        return self.now


def timed(clock, time, *calls):
    """Times calls, each given by its steps and seconds; 5 s pass between them."""
    for steps, seconds in calls:
        with clock.timing(steps):
            time.now += seconds
        time.now += 5.0


@pytest.fixture(name="time")
def _time():
    return Time()


def test_the_mean_is_over_the_steps_since_the_last_report_without_pauses(time):
    clock = Clock(time)
    timed(clock, time, (1, 60.0), (3, 0.75), (1, 1.25))
    assert clock.seconds_per_step() == 0.5
    timed(clock, time, (2, 8.0))
    assert clock.seconds_per_step() == 4.0


def test_where_nothing_was_timed_since_the_last_report_the_last_call_counts(time):
    clock = Clock(time)
    timed(clock, time, (2, 60.0))  # the first also compiles, but it is all there is
    assert clock.seconds_per_step() == 30.0
    timed(clock, time, (2, 8.0))
    assert [clock.seconds_per_step() for _ in range(2)] == [4.0, 4.0]


def test_where_nothing_was_timed_at_all_no_speed_is_reported(time):
    clock = Clock(time)
    assert 1.0 / clock.seconds_per_step() == 0.0
    timed(clock, time, (1, 60.0))
    assert clock.seconds_per_step() == 60.0


def test_a_call_that_fails_is_not_timed(time):
    clock = Clock(time)
    timed(clock, time, (1, 60.0), (1, 2.0))
    with pytest.raises(OSError), clock.timing(1):
        time.now += 100.0
        raise OSError
    assert clock.seconds_per_step() == 2.0


def test_a_call_makes_as_many_steps_as_fit_at_the_last_pace_and_at_least_one(time):
    clock = Clock(time)
    assert clock.affordable(100, 1.0) == 1
    timed(clock, time, (1, 0.25))
    assert (clock.affordable(100, 1.0), clock.affordable(3, 1.0)) == (4, 3)
    timed(clock, time, (1, 60.0))
    assert clock.affordable(100, 1.0) == 1


def test_a_step_that_takes_no_time_still_has_a_finite_number_a_second(time):
    clock = Clock(time)
    timed(clock, time, (1, 0.0), (1, 0.0))
    assert clock.affordable(100, 1.0) == 100
    assert 1.0 / clock.seconds_per_step() > 0.0
