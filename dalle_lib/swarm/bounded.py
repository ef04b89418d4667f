"""Tables of what others choose the keys of, which forget their oldest entries."""


def put(table: dict, key: object, value: object, most: int) -> None:
    """Set an entry of a table; where that would be one more than `most`, the entry that was made first is dropped."""
    if key not in table and len(table) >= most:
        del table[next(iter(table))]
    table[key] = value
