import pytest

from mainspring.messages.durations import in_milliseconds


@pytest.mark.parametrize(
    ("duration_ns", "says"),
    [
        (0, "0 ms"),
        (1, "0.000001 ms"),
        (-1, "-0.000001 ms"),
        (25_000_000, "25 ms"),
        (12_345_600, "12.3456 ms"),
        (100_000_000, "100 ms"),
        (3_600_000_000_001, "3,600,000.000001 ms"),
        (2**63 - 1, "9,223,372,036,854.775807 ms"),
    ],
)
def test_a_duration_is_told_exactly_and_without_powers_of_ten(duration_ns: int, says: str) -> None:
    assert in_milliseconds(duration_ns) == says
