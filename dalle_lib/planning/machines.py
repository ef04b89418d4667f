"""Groups of equal machines that take part in a run."""

from dataclasses import dataclass, fields

from dalle_lib.names import did_you_mean

_NAMES = {
    "speed": "samples_per_second", "up": "up_mbps", "down": "down_mbps", "batch": "batch_size", "hours": "hours_a_day",
    "starts": "starts_a_day", "price": "hour_price", "gb": "gb_price",
}  # fmt: skip
"""Short names of fields on a command line."""


@dataclass(frozen=True, kw_only=True)
class Machines:
    """Some equal machines of volunteers or of the organiser, a peer on each."""

    name: str
    """What to call them."""
    count: float = 1
    """How many there are."""
    samples_per_second: float = 0.0
    """Samples that one computes in a second; 0 for first peers, which do not train and do not reduce."""
    up_mbps: float
    """Rate of each one's upload in megabits a second."""
    down_mbps: float
    """Rate of each one's download in megabits a second."""
    reduces: bool = False
    """Whether others can connect to it, so that it averages for them. Behind a home router or on Colab: no."""
    batch_size: int = 1
    """Samples that one computes at once: the last of an epoch waits for the slowest."""
    hours_a_day: float = 24.0
    """Hours of a day in which one takes part, spread evenly over the day."""
    starts_a_day: float = 1.0
    """How often a day one begins, and takes over the state of another peer."""
    hour_price: float = 0.0
    """Price of an hour of one, in any currency."""
    gb_price: float = 0.0
    """Price of a gigabyte (10^9 bytes) that one sends; clouds ask nothing for what is received."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "float" or field.type is float:
                low_is_fine = field.name not in ("count", "up_mbps", "down_mbps", "hours_a_day")
                if isinstance(value, bool) or not isinstance(value, int | float) or not (0 <= value < 1e9):
                    raise ValueError(f"{self.name}: {field.name} must be a number of at least 0, but is {value!r}.")
                if not low_is_fine and value == 0:
                    raise ValueError(f"{self.name}: {field.name} must be above 0.")
        if self.hours_a_day > 24:
            raise ValueError(f"{self.name}: a day has 24 hours, but hours_a_day is {self.hours_a_day}.")
        if type(self.batch_size) is not int or self.batch_size < 1:
            raise ValueError(f"{self.name}: batch_size must be a positive whole number, but is {self.batch_size!r}.")
        if self.reduces and not self.samples_per_second:
            raise ValueError(f"{self.name}: only peers that train can reduce: give their samples a second.")

    @property
    def online(self) -> float:
        """How many take part at a time, on average."""
        return self.count * self.hours_a_day / 24

    @property
    def trains(self) -> bool:
        """Whether they compute gradients."""
        return self.samples_per_second > 0

    @classmethod
    def parse(cls, text: str) -> "Machines":
        """Return the machines that a text describes, such as "home=30,speed=0.5,up=10,down=100" (30 called home).

        Other entries are `reduces`, `batch`, `hours`, `starts`, `price` and `gb`. Raises ValueError for any other text.
        """
        first, *others = [part.strip() for part in text.split(",")]
        name, _, count = first.partition("=")
        values: dict[str, object] = {"name": name.strip(), "count": _number(first, count)}
        for part in others:
            key, is_given, value = (piece.strip() for piece in part.partition("="))
            if part == "reduces":
                values["reduces"] = True
            elif key in _NAMES and is_given:
                number = _number(part, value)
                if key == "batch" and not number.is_integer():
                    raise ValueError(f"batch_size must be a positive whole number, but is {value!r} in {text!r}.")
                values[_NAMES[key]] = int(number) if key == "batch" else number
            else:
                known = [*_NAMES, "reduces"]
                raise ValueError(
                    f"unknown entry {part!r} of {text!r}: {did_you_mean(key, known)}expected {', '.join(known)}."
                )
        for key in "up", "down":
            if _NAMES[key] not in values:
                raise ValueError(f"{text!r} lacks {key}=, the rate of its link in Mbit/s, such as {key}=10.")
        return cls(**values)


def _number(part: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"expected a number after the = of {part!r}, such as home=30, but got {value!r}.") from None
