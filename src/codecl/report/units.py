"""Numbers for people."""

UNITS = ("B", "kB", "MB", "GB", "TB")


def size(count: float) -> str:
    """Bytes."""
    for unit in UNITS[:-1]:
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def unit_for(largest: float) -> tuple[str, int]:
    """The unit in which so many bytes are a number below 1000, and its power of 1000."""
    power = 0
    while largest >= 999.5 and power < len(UNITS) - 1:
        largest, power = largest / 1000, power + 1
    return UNITS[power], power


def spread_of_bytes(count: float, spread: float | None) -> str:
    """Bytes and their spread in one unit: `842 ± 24.7 MB`."""
    unit, power = unit_for(max(abs(count), spread or 0.0))

    def scaled(value: float) -> str:
        value /= 1000**power
        digits = 2 if abs(value) < 9.995 else 1
        return f"{value:.0f}" if power == 0 or abs(value) >= 99.95 else f"{value:.{digits}f}"

    both = scaled(count) if spread is None else f"{scaled(count)} ± {scaled(spread)}"
    return f"{both} {unit}"


def duration(seconds: float) -> str:
    """Seconds, in one or two units."""
    count = round(seconds)
    for length, unit, smaller, its_unit in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if count >= length:
            rest = count % length // smaller
            return f"{count // length} {unit}" + (f" {rest} {its_unit}" if rest else "")
    return f"{count} s"
