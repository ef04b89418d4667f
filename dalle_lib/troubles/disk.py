"""What is kept on the disk: progress, events and files, where there is no room for them or they are broken."""

from dalle_lib.troubles.trouble import Trouble

TROUBLES = (
    Trouble(
        title="Progress not saved",
        severity="note",
        patterns=("this peer's progress was not saved", "events wait until the disk takes them"),
        means="A peer saves its progress every ten epochs and when it leaves, and notes what it does. Now it could "
        "not: the disk is full, fails or can only be read, the folder belongs to somebody else, or memory ran out. It "
        "goes on to train.",
        remedy="Free some space, or memory, before the peer leaves; a disk that can only be read may be failing.",
    ),
    Trouble(
        title="Not enough room",
        severity="stops",
        patterns=("needs ... GB of ..., but ... GB are free", "FAILED free memory", "FAILED free disk"),
        means="There is too little free RAM, or too little free disk, for the run's files. Nothing was downloaded.",
        remedy="End other programs, or free some space in the folder that is named; or use a machine with more.",
    ),
    Trouble(
        title="Cannot write",
        severity="stops",
        patterns=(
            "this peer cannot keep its progress in",
            "this peer could not write to",
            "expected a folder to write to",
            "No space left on device",
        ),
        means="The disk is full, or the folder belongs to somebody else.",
        remedy="Free some space, or name another `--folder`.",
    ),
    Trouble(
        title="Ended without a word",
        severity="stops",
        patterns=("has ended with exit code ... and no word of how", "so nobody is told that the peer's process ended"),
        means="The peer has ended, and could not write how: the disk is full, fails or can only be read.",
        remedy="Free some space, or check the disk; what the peer has said last may be at the end of `output.txt` in "
        "its folder. Joined again, it goes on from what it saved last.",
    ),
    Trouble(
        title="Progress fell back",
        severity="costs",
        patterns=("its saved progress ... is broken",),
        means="The progress that the peer had saved last cannot be used: it is cut off, not finite or of another run, "
        "as after a power cut or on a failing disk. The peer keeps the last two, and goes on from the one before, ten "
        "epochs earlier as a rule, or from the others' progress.",
        remedy="Remove the file that is named, which nothing reads any more. If it happens again, check the disk, or "
        "name another `--folder`.",
    ),
    Trouble(
        title="Progress broken",
        severity="stops",
        patterns=(
            "cannot be read as progress",
            "has a configuration that cannot be",
            "does not hold all numbers of",
            "written by checkpoint.save_model",
            "holds another model: expected",
        ),
        means="What the peer had saved is damaged, as by a full disk or a power cut.",
        remedy="Remove the file that is named, as the message says: the peer then takes over the others' progress. "
        "Its totals and its identity stay.",
    ),
    Trouble(
        title="File broken",
        severity="stops",
        patterns=(
            " cannot be read (",
            " cannot be read as ",
            " is not ...: it ",
            "that this version of the kit does not",
        ),
        means="A file is damaged, or another program or version has written it.",
        remedy="The message names the file and says what to do, mostly to move it away.",
    ),
)
