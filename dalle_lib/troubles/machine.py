"""The machine on which a peer runs: programs, memory, disk, clock, GPU; and how a peer's process ended."""

from dalle_lib.troubles.trouble import Trouble

TROUBLES = (
    Trouble(
        title="Fewer at a time",
        severity="note",
        patterns=("memory ran out with ... at a time",),
        means="The memory of the GPU or of the machine ran out, so the peer computes fewer samples at a time from now "
        "on. It goes on with the same samples; if memory ran out in their hand-over, those of the epoch are dropped.",
        remedy="Nothing. It may be faster once other programs that use this memory have ended, and you join again.",
    ),
    Trouble(
        title="Device dropped out",
        severity="costs",
        patterns=(
            "dropped out (",
            "computes alone, as no memory can be shared",
            "compute on one GPU: --device first",
        ),
        means="On a machine with several GPUs, one of them ended its work: its process was killed, as by a system "
        "without memory, its GPU's memory ran out or it did not answer. The first one computes the whole step again, "
        "so that no sample is lost, and the peer is slower until the other computes again. One that fails four times "
        "in an hour is left out until the peer starts again, as are all but the first where the system has no memory "
        "that processes can share.",
        remedy="Nothing for once. If it happens again, end other programs, or name GPUs that work: `--device cuda:0`. "
        "`dalle-lib doctor` says which compute, and whether there is RAM for all.",
    ),
    Trouble(
        title="Out of memory",
        severity="stops",
        patterns=(
            "expected room for one sample at a time",
            "OutOfMemoryError",
            "out of memory",
            "not enough memory",
            "Cannot allocate memory",
            "MemoryError",
        ),
        means="The model and its gradients did not fit into the memory of the GPU or of the machine, not even with one "
        "sample at a time.",
        remedy="End other programs and notebooks, and join again: it goes on from what was saved. "
        "`dalle-lib memory` says what a model needs; `--device cpu` uses the RAM.",
    ),
    Trouble(
        title="Speed not measured",
        severity="note",
        patterns=("speed not measured: ...",),
        means="The doctor could not compute anything on the device that is named, so it forecasts neither speed nor "
        "traffic. A peer with these settings would not compute there either.",
        remedy="Name another `--device`; `--device cpu` uses the processor.",
    ),
    Trouble(
        title="GPU does not compute",
        severity="costs",
        patterns=(
            "does not compute here",
            "GPU ... not used:",
            "none that torch sees, though there is nvidia-smi",
            "expected device cpu or cuda",
            "expected a device that is here",
        ),
        means="There is a GPU, but PyTorch cannot use it: the driver and PyTorch do not fit each other, the GPU is "
        "too old, or it computes wrongly.",
        remedy="Install the PyTorch that fits: https://pytorch.org/get-started/locally. Until then `--device cpu` "
        "works.",
    ),
    Trouble(
        title="Packages missing",
        severity="stops",
        patterns=(
            "a peer needs hivemind, which is not installed",
            "FAILED hivemind",
            "FAILED torch",
            "FAILED codecs",
            "note CLIP transformers is missing",
        ),
        means="A package is missing or does not work here. CLIP is needed to draw alone, not to train.",
        remedy='`pip install "dalle-lib[swarm]"` in the environment in which you start the peer.',
    ),
    Trouble(
        title="CLIP is gone",
        severity="note",
        patterns=("note CLIP",),
        means="The CLIP that the run names is not on the Hub. Training needs none; drawing chooses by it.",
        remedy="Tell the run's organiser. Until then draw with `--no-clip`.",
    ),
    Trouble(
        title="p2pd does not start",
        severity="stops",
        patterns=("p2pd, through which peers connect, does not start", "FAILED p2pd"),
        means="p2pd, the program through which peers connect, does not start: it may not run here, or /tmp cannot be "
        "written.",
        remedy="Install hivemind again, and let p2pd run and write to /tmp. `dalle-lib doctor` tries it.",
    ),
    Trouble(
        title="System not supported",
        severity="stops",
        patterns=("FAILED system", "FAILED Python", "FAILED start method"),
        means="Peers run on Linux and macOS, with Python 3.11 or newer.",
        remedy="On Windows, use WSL2: https://learn.microsoft.com/windows/wsl/install.",
    ),
    Trouble(
        title="Machine too small",
        severity="stops",
        patterns=("FAILED processor cores", "FAILED time limit"),
        means="One processor core is too few for a peer that computes and answers others; or the platform ends this "
        "session within a minute.",
        remedy="Use a machine with two cores, or start a new session.",
    ),
    Trouble(
        title="Clock off",
        severity="stops",
        patterns=(
            "This computer's clock is",
            "this computer's clock is ... the other members'",
            "expected a clock within",
            "FAILED clock",
        ),
        means="This computer's clock differs from the others'. Their messages seem old or of the future, so they "
        "refuse each other.",
        remedy="Let the network set it: `sudo timedatectl set-ntp true`; in WSL2 `sudo hwclock -s`; on macOS in the "
        "system's settings. If the check says that the first peer's clock is wrong, tell the organiser.",
    ),
    Trouble(
        title="Clock not checked",
        severity="note",
        patterns=("note clock", "The clock of ... most members'"),
        means="No clock was there to compare with; or the clock that is off is another member's.",
        remedy="Compare this one with another clock.",
    ),
    Trouble(
        title="Identity open to others",
        severity="note",
        patterns=("other users of this computer can read",),
        means="Whoever can read the file `identity.key` could pretend to be this peer.",
        remedy="Run `chmod 600` on it.",
    ),
    Trouble(
        title="Not listed",
        severity="note",
        patterns=("it is not in the list of your peers", "The list of your peers on this machine is not known"),
        means="`dalle-lib status`, `pause`, `resume`, `finish` and `stop` find your peers by links in "
        "`~/.local/state/dalle-lib/peers`, or below `XDG_STATE_HOME`, where your user may not write or read. The peer "
        "itself lacks nothing.",
        remedy="Type these commands where you typed `dalle-lib join`, or with `--folder PATH/peers`. To have it "
        "listed, let your user write there, or name another folder as `XDG_STATE_HOME` for all of your commands.",
    ),
    Trouble(
        title="Paused by the machine",
        severity="note",
        patterns=("on battery, until", "other programs use this machine, until"),
        means="With `--not-on-battery` a peer computes only while the machine is plugged in, with `--only-when-idle` "
        "only while other programs leave the processor alone. It stays in the run and keeps its memory.",
        remedy="Nothing: it goes on by itself, when the machine is plugged in, or a minute after the other programs "
        "have ended. To let it compute anyway, stop it, and join again without that option.",
    ),
    Trouble(
        title="Computer slept",
        severity="note",
        patterns=("this computer slept for", "this computer had its clock set back"),
        means="The machine slept, the peer's process was stopped, or the clock was set. The others went on without "
        "your peer. So what it had computed for the epoch of then may be lost, and it takes over their state.",
        remedy="Nothing: it goes on by itself. A machine that is to compute at night must not go to sleep.",
    ),
    Trouble(
        title="Killed",
        severity="costs",
        patterns=("the peer's process was killed", "Ended without saving"),
        means="The peer was ended from outside: somebody killed it, the system did because memory ran out, or the "
        "machine was switched off. Or it left by itself, and a full or failing disk took no word of it. What it gave "
        "to ended epochs stays in the run. Its own copy of the model is that of when it last saved.",
        remedy="Join again: it goes on from there. If memory ran out, end other programs; if the disk is full, free "
        "some space first.",
    ),
    Trouble(
        title="Does not end",
        severity="costs",
        patterns=(
            "still runs after",
            "expected the peer in ... to report",
            "to name the process that runs the peer",
            "this peer does not leave by itself",
        ),
        means="A peer does not begin or leave in the time that it should take, as on a machine that is very busy.",
        remedy="Wait a minute and look with `dalle-lib status`. If it hangs, end its process; what it gave to ended "
        "epochs stays in the run.",
    ),
    Trouble(
        title="Left without a word",
        severity="note",
        patterns=("the others were not told that this peer leaves",),
        means="The peer has left, and its progress is saved, but it could not tell the others: it was not connected "
        "any more, as when the system shuts down. They see within a minute that it is gone.",
        remedy="Nothing.",
    ),
    Trouble(
        title="Not finite",
        severity="costs",
        patterns=("parameters were no longer finite",),
        means="The model, or its optimizer's statistics, had become NaN or infinite here. The peer went back to its "
        "last good copy, of at most ten epochs before, and goes on.",
        remedy="Nothing for once. If it happens again, leave, and report it: the GPU may compute wrongly.",
    ),
    Trouble(
        title="Started again",
        severity="costs",
        patterns=(
            "it was started again, from its saved progress",
            "it is started again in ... s, as that happens often",
            "the peer was not started again",
            "memory ran out for more than a batch",
            "this peer lacks a part",
            "this peer starts again:",
            "this peer does not end by itself, and is ended",
            "p2pd has ended with exit code",
        ),
        means="A part of the peer had ended: one of its processes, as where the system ends one because memory ran "
        "out, or a thread; or memory ran out for something other than a batch. Its supervisor started it again, with "
        "fewer samples at a time where the system had ended a process for memory, and each time in an hour a minute "
        "later. What it had computed since it last saved is lost: at most ten epochs where it was killed, else a part "
        "of one. It is not started again more than six times in an hour, nor, unless it was killed, in its first "
        "minute.",
        remedy="Nothing for once. If it happens again, or the peer has ended, end other programs, or leave more "
        "memory: see `dalle-lib memory`. Then join again.",
    ),
    Trouble(
        title="Update not made",
        severity="costs",
        patterns=("its own update of epoch ... was not made",),
        means="The step of the optimizer failed, as where memory runs out, and may have been made in part. The peer's "
        "parameters get no weight in the next round (of two members, none of them vouched for: half), which comes at "
        "once and gives it the others'. A peer alone keeps its own.",
        remedy="Nothing for once. If it happens again, end other programs, or leave more memory.",
    ),
    Trouble(
        title="Crashed",
        severity="stops",
        patterns=(
            "this peer failed",
            "this peer cannot take part",
            "the peer ... failed: ",
            "the peer's process",
            "The log of ... ends:",
        ),
        means="The peer ended by an error. The message, or the end of the peer's log, names it.",
        remedy="Look that error up here. If it has no entry, it is a fault of the kit: send the block that `dalle-lib "
        "doctor --folder` prints, with the peer's folder.",
    ),
)
