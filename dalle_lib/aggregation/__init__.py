"""One gradient from those of many peers, some of which may lie.

`mean` is moved by a single liar as far as it likes. The other rules hold as long as liars have less than half of the
weight (`trimmed_mean`: no more than what it cuts off). Two peers cannot outvote each other, so every rule takes the
mean of two, and a single part as it is. Peers of weight zero are absent. No rule stops liars who stay within the
spread of honest gradients: they move it little in a round, but always the same way (arXiv:1902.06156).

In formulas, x[i, j] is value j of peer i's part, w[i] the peer's weight and W the sum of all weights. Parts must have
passed `part_problem`, weights `weight_problem`. Rules compute from float32 values and return float32.
"""

from dalle_lib.aggregation.claims import FAR, capped, capped_by_user, part_problem, weight_problem, without_far
from dalle_lib.aggregation.rules import CUT, RULES, centered_clip, coordinate_median, mean, trimmed_mean
