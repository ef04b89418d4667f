"""Reads what Parquet writes about itself, whatever the bytes are."""

_MAX_NUMBER = 2**15 - 1
"""Arrow cuts longer numbers of fields, and so would read another field than this."""


class Thrift:
    """Reads structures of Thrift's compact protocol from bytes, as far as Parquet uses it.

    Each method raises ValueError for bytes that cannot be, for lists of more than `longest` values, and `struct` for
    structures and lists that lie more than `deepest` within each other, or hold a field twice.
    Source: apache/thrift, doc/specs/thrift-compact-protocol.md.
    """

    def __init__(self, data: bytes, deepest: int, longest: int | None = None) -> None:
        self.data, self.place, self.deepest = data, 0, deepest
        self.longest = len(data) if longest is None else longest

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes. Raises ValueError if there are fewer."""
        if self.place + count > len(self.data):
            raise ValueError("a page of a column, or what the file says of itself, is cut off")
        self.place += count
        return self.data[self.place - count : self.place]

    def struct(self, depth: int = 0) -> dict[int, object]:
        """Return the fields of a structure by their numbers: whole numbers, bytes, structures, lists, else None."""
        found, number = {}, 0
        while kind := (head := self.take(1)[0]) & 15:
            number = number + (head >> 4) if head >> 4 else self._signed()
            if number in found or not 0 < number <= _MAX_NUMBER or depth > self.deepest:
                raise ValueError("a header holds a field twice, one that cannot be, or too many structures")
            found[number] = None if kind in (1, 2) else self._value(kind, depth)  # true and false have no bytes there
        return found

    def _value(self, kind: int, depth: int) -> object:
        match kind:
            case 1 | 2 | 3:
                return self.take(1)[0]
            case 4 | 5 | 6:
                return self._signed()
            case 7:
                return self.take(8)
            case 8:
                return self.take(self._unsigned())
            case 9 | 10:
                return self._list(depth + 1)
            case 12:
                return self.struct(depth + 1)
        raise ValueError(f"a header holds a field of kind {kind}, which Parquet has none of")

    def _list(self, depth: int) -> list[object]:
        head = self.take(1)[0]
        count = head >> 4 if head >> 4 < 15 else self._unsigned()
        if depth > self.deepest or count > min(self.longest, len(self.data) - self.place):
            raise ValueError("a header holds too many lists, or a list longer than its bytes")
        return [self._value(head & 15, depth) for _ in range(count)]

    def _unsigned(self) -> int:
        value = 0
        for shift in range(0, 64, 7):
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("a header holds a number of more than 64 bits")

    def _signed(self) -> int:
        value = self._unsigned()
        return value >> 1 ^ -(value & 1)
