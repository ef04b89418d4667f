"""Functions that tests translate to JavaScript, to compare what they give there with what they give here."""

from contextlib import contextmanager


class Held:
    """Tells a list when nothing refers to it any more."""

    def __init__(self, log: list, name: str) -> None:
        self.log, self.name = log, name
        log.append(f"+{name}")

    def __del__(self) -> None:
        self.log.append(f"-{self.name}")


class Log:
    """Collects names; a part of it is marked by `part`."""

    def __init__(self) -> None:
        self.lines = []

    def hold(self, name: str) -> Held:
        return Held(self.lines, name)

    @contextmanager
    def part(self, name: str):
        self.lines.append(f"begin {name}")
        yield
        self.lines.append(f"end {name}")

    def take(self, one: Held, *, word: str = "took") -> str:
        self.lines.append(f"{word} {one.name}")
        del one
        self.lines.append("after")
        return word

    def taken_with_a_star(self, *all_of_them) -> None:
        for one in all_of_them:
            self.lines.append(one.name)


def lifetimes() -> list:
    """Return when objects are made and freed: variables, arguments, containers, closures, loops, comprehensions."""
    log = Log()
    a = log.hold("a")
    a = log.hold("b")
    log.take(log.hold("argument"))
    log.take(*[log.hold("with a star")])
    pair = [log.hold("first"), log.hold("second")]
    kept = pair.pop(0)
    log.lines.append("popped")
    del pair
    log.lines.append("list gone")

    def inner(word: str = "called") -> str:
        return f"{word} {kept.name}"

    later = [lambda one=log.hold("default"): one.name, inner]  # noqa: B008 (that it is held is what is tested)
    log.lines.append(later[1](word="inner"))
    log.lines.append(later.pop(0)())
    log.lines.append("lambda gone")
    for one, number in zip([log.hold(f"loop {i}") for i in range(2)], (1, 2), strict=True):
        log.lines.append(f"{one.name} {number}")
    log.lines.append("loop over")
    one = None
    names = {held.name: held for held in [log.hold("x"), log.hold("y")]}
    names["x"] = names.pop("y")
    log.lines.append("dictionary changed")
    with log.part("whole"):
        log.taken_with_a_star(*names.values(), a)
    names.clear()
    if (found := next((x for x in [log.hold("found")] if x.name), None)) and one is None:
        log.lines.append(found.name)
    del a, found
    lines = log.lines
    return [*lines]


def formats(number: float) -> str:
    """Return a number in many formats."""
    return (
        f"{number:,.0f} {number:.0%} {number:.1%} {number:g} {number:.2g} {number:,.3g} {number:,.2f} {number:.1f} "
        f"{round(number)} {'x'!r} {number // 3:g} {number % 7:.3f} {[1, 'a', None, True]!r}"
    )


def unknown(number: int) -> int:
    """Return something whose function the translation does not know."""
    return hash(number)
