"""Faults of the state that a one-hot peer (tests/one_hot_peer.py) offers, by their names."""

import time


def with_nan(metadata, tensors, infos):
    tensors[0][1] = float("nan")
    return metadata, tensors, infos


def too_long(metadata, tensors, infos):
    return metadata, [tensors[0].repeat(1000), *tensors[1:]], infos


def silent(metadata, tensors, infos):
    time.sleep(600)


SPOILT = {made.__name__: made for made in (with_nan, too_long, silent)}
