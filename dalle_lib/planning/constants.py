"""The constants of planning and of simulations: each with the measurement or the code that it comes from."""

CODEBOOK_BYTES = 8 + 256 * 4
"""Bytes of an 8-bit message besides a byte a value: the number of levels and the levels, as `Uniform8Bit` in
dalle_lib/swarm/averaging/codec.py writes them."""
UP_BITS = {8: 8, 4: 4 + 16 / 128}
"""Bits a value of a large tensor on its way to a reducer, by the card's `upload_bits`: with 4, each block of 128 has a
scale of 16 bits (dalle_lib/four_bits.py)."""
MESSAGE_BYTES = 90
"""Bytes of a message besides its tensor, about: names, shape and dtype in protobuf, and the group's id."""
WEIGHT_BYTES = 4
"""Bytes of each sender's weight in each answer: `pack_weights` in dalle_lib/swarm/averaging/all_reduce.py."""
FRAMES = 1.003
"""Bytes on a link for each byte of a message: libp2p encrypts up to 64 KiB at a time, with 18 bytes added, and its
streams add 12 bytes a frame."""
RECORD_BYTES, MAX_ASKED = 1400, 20
"""Bytes of a peer's record in an answer of the hash table, and how many of its peers are asked for a key: all that can
be reached, up to those in a bucket of hivemind's. The bytes are what `python benchmarks/plan.py` found beside tensors
in its first scenario, eight peers that all hold a share of the table; more peers were not tried."""
LOOK_EVERY_S, LOOK_S_PER_PEER = 0.3, 0.03
"""Seconds between two looks at who is looking for a group: as in dalle_lib/swarm/averaging/group_keys.py."""
PROGRESS_EVERY_S = 10.0
"""Seconds between two readings of the others' progress, at most: `shared_options` in dalle_lib/swarm/peer/build.py."""

ROUND_SLOWDOWN = 1.15
"""Seconds of a round as a multiple of what its fullest link needs. `python
benchmarks/averaging.py`: 1.18 with 4 peers (2 cores, 2026-11-22). Many clients that fill a reducer's link take
longer: 1.39 with 12 clients and 2 reducers and parts of 128 kB, 1.70 with the default (2026-11-27)."""
ROUND_START_S = 1.0
"""Seconds between the last sample of an epoch and the first byte of a round, where matchmaking was over in time."""
STEP_PARAMETERS_PER_S = 104e6
"""Parameters that LAMB in 8 bits updates in a second on one core: `python benchmarks/lamb.py`, in
benchmarks/README.md."""

STATE_BYTES = {8: 6.0, 32: 12.0}
"""Bytes a parameter of the state that a newcomer takes over, by the bits of the optimizer's statistics: 4 of the
parameter and two statistics (dalle_lib/optimizer/lamb.py; scales add 0.1%)."""
ROW_BYTES_PER_CODE, READ_AHEAD = 928 / 1024, 1.09
"""Bytes of a streamed row for each code, and how many are read for each that is used: `python benchmarks/storage.py`
and `python benchmarks/streaming.py`, benchmarks/README.md (photographs, 1024 codes of 8192)."""
FILES_PER_STATE = 3
"""Copies of the state on a trainer's disk: the last one, the one before, and the next while it is written
(dalle_lib/swarm/peer/state.py)."""
DAY_S = 86_400

HOME_UP_MBPS, HOME_DOWN_MBPS = 10.0, 50.0
"""Rates of a volunteer's link that are assumed where nobody has told them; many homes have more."""
REACHED = 1 / 4
"""Part of the volunteers to whom others can connect, so that they reduce: an assumption. At least one is needed."""
CORE_OPERATIONS_PER_S, GPU_OPERATIONS_PER_S = 8e9, 7e11
"""Multiplications by weights, forward alone, that a volunteer's processor core and GPU do in a second while they train.
The core's follows from 62 samples a second on two cores (emoji-mini, dev/DECISIONS.md, 2026-11-20); the GPU's from half
a sample a second with the paper's model, which docs/planning.md assumes of a volunteer."""

GROUP_HOLDS = {20: 1.0, 40: 1.0, 60: 0.96, 100: 0.84, 150: 0.68, 200: 0.01, 400: 0.0, 1000: 0.0, 5000: 0.0}
"""Part of so many trainers that average together, as `python benchmarks/scale.py` simulates them: `together` in
benchmarks/results/scale.json."""
ONE_GROUP = 100
"""The largest of these sizes of which one group holds four of five or more."""

# The simulation of large swarms, `python benchmarks/scale.py`, needs these besides.
AVERAGER_BYTES, PROGRESS_BYTES = 761, 890
"""Bytes by which a peer's record makes an answer of the hash table longer: its search for a group, or its progress."""
INTRODUCTION_BYTES = 1207
"""Bytes of a member's introduction in the message with which a leader tells its group who is in it."""
CALL_S, FIND_S = 1.2e-3, 1.7e-3
"""Seconds of the processor of a call from one peer to another, and of asking one in a search of the hash table: both
sides and their network daemons together."""
LOOK_ENTRY_S, ANSWER_ENTRY_S, CHECK_INTRODUCTION_S = 2.3e-4, 5.1e-6, 1.1e-4
"""Seconds of the processor to check a record in an answer of the hash table, to pack one, and to check an introduction.
These and the ones before them are what `python benchmarks/scale.py --measure` found on 2 cores (Intel Xeon, 2.5 GHz,
2026-11-27), beside other programs; benchmarks/results/scale_constants.json has them."""
NAMED_BYTES = 64
"""Bytes of a peer's name in an answer to a search of the hash table: its place and its id, with protobuf's lengths."""
TABLE_REPLICAS, TABLE_ASKED_AT_ONCE = 5, 4
"""Peers that hold each record, and that a search asks at a time: hivemind's `num_replicas` and `num_workers`."""
MESSAGE_S, VALUE_S = CALL_S / 4, 14 / (52 * 12.5e6)
"""Seconds of the processor for each message of a round on one side, and for each value that is encoded or decoded, all
that goes with it included: `python benchmarks/averaging.py` with 12 clients and 2 reducers took 14 s of the processor a
round (2 cores of 2.5 GHz, 2026-11-27, docs/averaging.md), in which 52 times 12.5 million values pass a codec. That a
message takes a quarter of a call, which is four of them on both sides, is an assumption."""
