"""The network of this machine: ports, speed, the Hub."""

from dalle_lib.troubles.trouble import Trouble

TROUBLES = (
    Trouble(
        title="Port in use",
        severity="stops",
        patterns=("this peer cannot listen on", "FAILED p2pd ... in use"),
        means="Another program has the port, perhaps another peer of yours, or this machine has no such address.",
        remedy="Stop the other program, or join with another `--port`; without one, a free port is taken.",
    ),
    Trouble(
        title="Not reachable",
        severity="note",
        patterns=("note reachable", "Others cannot reach this machine"),
        means="Others cannot connect to this machine, which is usual at home and in notebooks. The peer counts all "
        "the same: it connects to them, as with `--client-mode`, and sends no averages. Where nobody is there yet "
        "whom others reach, it averages as it can.",
        remedy="Nothing. To help as a reducer, forward a TCP port of the router to this machine and join with it as "
        "`--port`. If others do reach it, say so by `--no-client-mode`.",
    ),
    Trouble(
        title="Slow upload",
        severity="stops",
        patterns=("FAILED upload",),
        means="This line sends too slowly: the others would leave the peer's gradients out before they have come.",
        remedy="Use a faster line, or a cable in place of Wi-Fi. Others of your home may be sending now. No setting "
        "makes less of what a peer has to send: where the line is no faster, join a run with a smaller model.",
    ),
    Trouble(
        title="Upload not sure",
        severity="note",
        patterns=("note upload",),
        means="The line is fast enough for `--client-mode` alone, or its speed was not measured.",
        remedy="Join with `--client-mode` if the check says so.",
    ),
    Trouble(
        title="Upload limit too low",
        severity="stops",
        patterns=("expected --max-upload-mbps of at least", "FAILED upload limit"),
        means="With this limit the peer cannot send its tensors in the time for which the others wait, so it would be "
        "left out of every round. The message says how much the run needs.",
        remedy="Allow as much as it says, or leave the limit out. To send less in a month, limit the month "
        "(`--monthly-gb`): the peer then takes part at full pace until that is used, and comes back in the next month.",
    ),
    Trouble(
        title="Month is used",
        severity="costs",
        patterns=(
            "this month's traffic is used",
            "note month's traffic",
            "GB that --monthly-gb allows, but your peers",
        ),
        means="All your peers on this machine together have sent and received what you allow for a calendar month. "
        "They have saved and left the run.",
        remedy="Nothing: where their program still runs, they come back by themselves when the next month begins, "
        "unless they have `--max-minutes`. Where the run asks who you are and your proof has ended by then, which the "
        "panel tells, join again. To go on at once, stop them and join with a higher `--monthly-gb`.",
    ),
    Trouble(
        title="Traffic not counted",
        severity="costs",
        patterns=(
            "this month's traffic cannot be counted",
            "This month's traffic is not known",
            "FAILED month's traffic",
            "--monthly-gb limits. If you know how much",
            "expected to count this month's traffic in",
        ),
        means="The file in which your peers count what they send and receive in a month cannot be read or written. "
        "With `--monthly-gb` a peer does not start then: a count from zero would pass your limit. One that runs leaves "
        "when its limit is reached, and does not come back by itself.",
        remedy="What the message says: write the file, or remove it, or let your user write there. Where the disk is "
        "full, free some room: what could not be written is added then, as long as the peer runs.",
    ),
    Trouble(
        title="Hub away",
        severity="costs",
        patterns=(
            "the Hub cannot be asked",
            "less than ... bytes a second come",
            "more than ... bytes come",
            "bytes from the Hub, but more come",
            "the Hub does not give",
            "bytes from the Hub, but more come",
            "on the Hub cannot be reached",
            "the Hub does not say whether",
            "note CLIP not here",
        ),
        means="huggingface.co does not answer this machine. A peer that has its files needs it no more; one that "
        "begins cannot load them.",
        remedy="See whether this machine is online, then try again later. What was downloaded is kept.",
    ),
    Trouble(
        title="Begins without checkpoint",
        severity="costs",
        patterns=(
            "begins without the run's newest checkpoint",
            "begins without the newest checkpoint",
            "to be signed by a monitor",
            "expected ... of ... with SHA-256",
            "what names the newest checkpoint",
            "expected epoch, folder and files of a checkpoint",
        ),
        means="The run's newest checkpoint on the Hub could not be had, or is not what the run's monitor has named. "
        "The newcomer takes the state from another peer, which takes longer.",
        remedy="Nothing. If it stays so, tell the run's organiser.",
    ),
    Trouble(
        title="Others cannot be seen",
        severity="costs",
        patterns=("the process that asked the hash table has ended", "this look at the swarm failed"),
        means="The peer could not see who takes part, for a moment: the disk is full, or the network hangs.",
        remedy="Free some space. If it goes on for minutes, leave with Ctrl+C and join again.",
    ),
    Trouble(
        title="Own address unknown",
        severity="costs",
        patterns=("this look at where this peer listens failed",),
        means="A bootstrap peer could not tell at which addresses it listens now, and looks again soon.",
        remedy="Nothing, unless it stays so: then start it again.",
    ),
)
