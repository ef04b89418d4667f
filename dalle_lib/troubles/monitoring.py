"""What a run's monitor finds, and the machine of its first peer and authority."""

from dalle_lib.troubles.trouble import Trouble

TROUBLES = (
    Trouble(
        title="Nobody trains",
        severity="costs",
        patterns=("nobody trains.",),
        means="The run's monitor has seen no trainer for ten minutes.",
        remedy="Wait for volunteers, or start a peer. If some say that they train, they are in another swarm: compare "
        "the addresses of the first peers.",
    ),
    Trouble(
        title="Run stalled",
        severity="costs",
        patterns=("no epoch has ended for",),
        means="Peers are there, but no epoch ends: their rounds fail, or there are too few of them.",
        remedy="Look at a peer's messages. If most have lost their line, wait. Fewer samples to an epoch suit fewer "
        "peers: `dalle-lib run plan`.",
    ),
    Trouble(
        title="Swarm split",
        severity="costs",
        patterns=("the peers are far apart",),
        means="More than a third of the peers are in other epochs than the rest: there are two swarms, or some cannot "
        "keep up.",
        remedy="See whether all first peers know each other. Peers that are far behind take over the others' state.",
    ),
    Trouble(
        title="Peer far from others",
        severity="costs",
        patterns=("epochs behind the others", "epochs ahead of the others", "epochs ... the others."),
        means="One peer is some epochs behind or ahead of the median peer. Its gradients do not count meanwhile.",
        remedy="Nothing: it catches up. If it stays so, its line is too slow.",
    ),
    Trouble(
        title="Peer off",
        severity="costs",
        patterns=("has parameters that are ... off those of most others",),
        means="By the sketches that peers tell, one peer's parameters are further from those of most users than "
        "averaging explains. An honest one sees that itself, and takes over the state of another peer.",
        remedy="Nothing, if it is over soon. If it stays so, or comes back, the machine is faulty, or the peer lies: "
        "tell its volunteer, or ban it.",
    ),
    Trouble(
        title="Loss rises",
        severity="costs",
        patterns=("the loss has risen",),
        means="The loss of the last epochs is half as much again as before.",
        remedy="Look at who joined then. If it does not come back, go back to an earlier checkpoint, with a lower "
        "learning rate or a rule that outvotes liars.",
    ),
    Trouble(
        title="Run gone back",
        severity="costs",
        patterns=("the run has gone back to epoch", "The run has gone back: checkpoints of the part"),
        means="The run was split, and the part that goes on is in an earlier epoch than the part that gave way. Most "
        "users train there, and two of them gave its state alike, so that is the newest checkpoint now. Those of later "
        "epochs lie in the folder that is named, among the checkpoints of the monitor's peer: nobody gets them.",
        remedy="Nothing: the run goes on. Keep the folder if you want to look into it, or remove it: it has no other "
        "use, and takes room.",
    ),
    Trouble(
        title="No checkpoint",
        severity="costs",
        patterns=(
            "no peer gave a state of the run",
            "the run has gone back to before its last checkpoint",
            "no checkpoint was written",
            "the states of the donors are apart",
            "the state of ... is unlike those of two others",
            "The checkpoint of epoch ... is broken",
            "the checkpoint in ... is removed",
        ),
        means="The monitor could take no new state: nobody gave one, two donors disagreed, the run has gone back to an "
        "earlier epoch and fewer than two users gave its state, or the disk is full. The last checkpoint stays, and it "
        "tries again.",
        remedy="If donors disagree again and again, one of them lies: see which one is always among them. Otherwise "
        "free some space.",
    ),
    Trouble(
        title="Monitor waits",
        severity="costs",
        patterns=(
            "Not sent to ..., and tried again",
            "a message was not sent to the webhook",
            "the alarm command ... has not sent a message",
            "the run's card stays as it was",
            "the status was not written",
            "a checkpoint was not examined",
            "no batch was recomputed",
            "Losses that peers tell are not recomputed",
            "the peers of ... make steps of their own",
            "the model of the beginning has drawn nothing",
            "No pictures by the checkpoint of epoch",
            "the monitor has ended",
            "the monitor cannot write",
            "not told: ",
            "the monitor's disk has ... MB left",
            "not sent to the Hub",
            "the monitor's own peer has told nothing",
            "Checkpoints are not examined",
            "cannot be examined",
            "are not beside its card",
            "The monitor's peer could not be started",
            "this look at the run failed",
            "this look at the run's card failed",
        ),
        means="The monitor could not do one of its tasks. The run goes on; what was not sent is sent later.",
        remedy="The message says why: the Hub or the webhook is away, the disk is full, or a program is missing.",
    ),
    Trouble(
        title="Run not finished",
        severity="stops",
        patterns=(
            "nobody has given its state",
            "its last checkpoint is broken",
            "its card could not be changed",
            "the run has its last epoch, and",
        ),
        means="The run has its last epoch, and its monitor could not finish it: its Hub token may not write to the "
        "run's own repository, the Hub is away, or no peer gave the last state.",
        remedy="Type what the message says, as somebody who may write there: `dalle-lib run finish OWNER/NAME`, with "
        "`--model` and a peer's `model.safetensors` where the last state is missing.",
    ),
    Trouble(
        title="Flood of peers",
        severity="costs",
        patterns=("more post that they train than are looked at",),
        means="More peers post that they train than a monitor looks at: somebody invents them.",
        remedy="Let members alone train: a run with an authority shows their peers only.",
    ),
    Trouble(
        title="Monitor settings",
        severity="stops",
        patterns=(
            "expected a program of this machine as the alarm command",
            "another monitor works in",
            "expected a folder for a monitor, but",
            "this one has another key, by which nobody would take a checkpoint",
            " must be a whole number from 2 to",
            "anonymous users get other tags from now on",
            "expected a port from 1 to 65535, or 0 for none",
            "expected an address that begins with https",
            " must be above 0, but is",
        ),
        means="The monitor does not start with these settings.",
        remedy="Change what the message names, and start it again: it goes on where it was.",
    ),
    Trouble(
        title="Recording ends",
        severity="note",
        patterns=(
            "nothing more is recorded",
            "The recording ends early",
            "cannot be read as a recording",
            "the recording holds no look at its run",
            "expected a recording, but there is no",
            "expected a new folder, or that of a replay",
            "another replay writes into",
            "it is not what its peer has signed",
            "it is of another run, or of no peer",
            "it is nothing that a peer of this version tells",
            "it tells of another peer, or was told at another time",
            "its access token is",
        ),
        means="A recording of a run has as many megabytes as it may have, was cut off, is of another version, or holds "
        "what its peers have not signed: somebody has changed it, or it was damaged on its way.",
        remedy="What was signed is shown, and the rest left out. Get the recording anew; a monitor records more with a "
        "larger `--record-mb`, or into another folder.",
    ),
    Trouble(
        title="First peer not ready",
        severity="stops",
        patterns=("FAILED address", "FAILED port", "FAILED open files"),
        means="`dalle-lib doctor --organiser` finds that others could not connect to this first peer.",
        remedy="Open its TCP port to everybody, in the machine's firewall and in the provider's, and let the card "
        "name the machine's public address.",
    ),
    Trouble(
        title="Advice for a first peer",
        severity="note",
        patterns=("note address", "note port", "note open files"),
        means="`dalle-lib doctor --organiser` could not try everything from this machine.",
        remedy="Do what the check says, from another machine if it asks for one.",
    ),
    Trouble(
        title="Authority not ready",
        severity="stops",
        patterns=(
            "FAILED certificate",
            "FAILED time limits",
            "FAILED authority",
            "FAILED run it serves",
            "FAILED metrics",
            "FAILED signing key",
            "FAILED proxies",
        ),
        means="`dalle-lib doctor --organiser` finds that the authority does not answer as volunteers need it.",
        remedy="Do what the check says; `docs/organiser.md` leads through the set-up of server, proxy and keys.",
    ),
)
