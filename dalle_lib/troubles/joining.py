"""What may go wrong before a peer joins: its settings, the run's card and files, the first peers."""

from dalle_lib.troubles.trouble import Trouble

TROUBLES = (
    Trouble(
        title="Setting refused",
        severity="stops",
        patterns=(
            "expected a name of 1 to ... letters",
            "expected a team of at most",
            "expected a port from 1 to 65535, or 0 for a free one",
            "expected an IPv4 address of this machine to listen on",
            "expected a device such as",
            "expected a role among",
            "the minutes to take part must be above 0",
            "the seconds before the start must be at least 0",
            "must be above 0 and at most 1",
            "expected ... above 0 as ..., but got",
            "expected two different times of the day to compute between",
            "niceness must be a whole number",
            "must be a whole number from 1 to",
            "seed must be a whole number",
            "a peer in client mode accepts no connections",
            "state_every_s must be above 0",
            "so it cannot be in client mode",
            "are the names of your neighbours",
            "cannot be announced: ",
        ),
        means="An option, or a value in a notebook's settings, cannot be so. The message says what was expected.",
        remedy="Change it, and start again. `dalle-lib join --help` explains each option.",
    ),
    Trouble(
        title="Run closed",
        severity="stops",
        patterns=(
            "is paused, so nobody can join it now",
            "is finished: there is nothing left to train",
            "expected an open run, but ... is",
        ),
        means="The run's organiser has paused it, or it is complete. This is not about your machine.",
        remedy="If it is paused, try again later: the message says what the organiser tells. If it is finished, draw "
        "with it: `dalle-lib generate` or notebook 02.",
    ),
    Trouble(
        title="Another version",
        severity="stops",
        patterns=(
            "needs protocol ..., this version has",
            "takes dalle-lib ..., but this is version",
            "trains with dalle-lib ..., you have",
            "that answer have another card than you, with dalle-lib",
            "FAILED kit",
        ),
        means="The run is for another version of the kit, or its peers have another card: yours would never meet them.",
        remedy="Install the version that the message names. In a notebook, restart the kernel and run all cells. Where "
        "it is the card that differs, ask the run's organiser for theirs.",
    ),
    Trouble(
        title="Others with another version",
        severity="note",
        patterns=(
            "a peer of this run's name has dalle-lib ..., this one",
            "a peer of this run's name has another card than this one",
        ),
        means="Somebody who asked for this run, or its first peer, has a kit or a card with which they never meet your "
        "peer. Yours trains on with those that have its own.",
        remedy="If the message says that yours is older, update it when you start it next. Else nothing: the other one "
        "was told.",
    ),
    Trouble(
        title="Files of the run differ",
        severity="stops",
        patterns=(
            "names the file ..., but ... is not there",
            "is not the file that run ... names",
            "names what is not beside its card",
            "is not the folder that run ... names",
            "the run's CLIP, the folder ..., is not beside its card",
            "leads elsewhere by a link",
            "is a link to a folder or out of its own",
            "expected files in ..., but got",
            "expected a folder with files, but found none",
            "expected ... to hold nothing but what is in",
            "the codes of the data were made by another VQ-GAN",
            "the model draws grids of ... among ... codes, but",
            "ids, but the model text_vocab=",
        ),
        means="The run's folder lacks a file that its card names, or holds another one. All peers must have the same "
        "files, so nothing is begun with others.",
        remedy="Delete the file that is named and load the run again, or copy the organiser's whole folder anew. If "
        "it stays so, tell the organiser.",
    ),
    Trouble(
        title="Run cannot be read",
        severity="stops",
        patterns=(
            "FAILED run ... cannot be read",
            "no run ...: ",
            "is no valid run card",
            "no run card can be so",
            "expected a folder, but ... is none",
            "the folder ... has no ...: ",
            "on the Hub has no ",
            "expected a ... of at most ... bytes, but",
            "because its run card was not loaded from anywhere",
        ),
        means="No run is found by that name, or its card is broken, or is for a newer kit.",
        remedy="Compare the name, `owner/name` or a folder, with what you were sent; capital letters count. A private "
        "run needs a Hub token that may read it: `hf auth login`. If the name is right, update the kit.",
    ),
    Trouble(
        title="No first peer known",
        severity="stops",
        patterns=("no address of another peer of ... is known", "FAILED first peers none is known"),
        means="The run's card names no first peer, through which newcomers find the others.",
        remedy="Ask the organiser for an address and join with it as `--initial-peers`. If you are the first, join "
        "with `--alone`.",
    ),
    Trouble(
        title="No first peer answers",
        severity="stops",
        patterns=(
            "none of the first peers of ... answers",
            "this peer found no first peer of the run",
            "FAILED first peers",
        ),
        means="This machine is offline, a firewall stops it, the run has ended, or its first peers are away or "
        "elsewhere now.",
        remedy="Try another network. Run `dalle-lib doctor` with the same options. Then ask the organiser for the "
        "present address, and join with it as `--initial-peers`.",
    ),
    Trouble(
        title="Bad address",
        severity="stops",
        patterns=("is not the address of a first peer",),
        means="What was given as `--initial-peers` is no whole address. It begins with /ip4/ or /dns4/ and ends with "
        "/p2p/ and the peer's id.",
        remedy="Copy the whole line that the first peer's terminal shows.",
    ),
    Trouble(
        title="First peers refuse",
        severity="stops",
        patterns=("the run's first peers refuse this one",),
        means="The first peers answer but do not let this peer in. The usual reasons are a clock that is more than 3 "
        "s off, and a machine that others cannot reach.",
        remedy="Set the clock by the network (`sudo timedatectl set-ntp true`), or join with `--client-mode`. "
        "`dalle-lib doctor` says which it is.",
    ),
    Trouble(
        title="First peers partly silent",
        severity="note",
        patterns=("note first peers",),
        means="Some of the run's first peers do not answer, which is no hindrance while others do, or while yours may "
        "begin the swarm.",
        remedy="Tell the organiser which ones are silent.",
    ),
    Trouble(
        title="Begins a swarm",
        severity="note",
        patterns=("begins a swarm, because none of the run's first peers answers", "begins the swarm, and looks for"),
        means="No first peer answers, and yours was told that it may be alone. Whoever comes in by another way forms "
        "a second swarm meanwhile; the two become one when a first peer answers again.",
        remedy="Nothing, if you begin the run. Otherwise compare the address with the organiser's.",
    ),
    Trouble(
        title="Folder of another run",
        severity="stops",
        patterns=("expected a folder for run ..., but ... belongs to", "expected a folder for a private swarm"),
        means="The folder holds a peer of another run, or other files. It was not changed.",
        remedy="Choose another `--name` or `--folder`, or move the folder away as the message says.",
    ),
    Trouble(
        title="Identity in use",
        severity="stops",
        patterns=("another peer takes part with the identity in",),
        means="A folder of a peer was copied, and the copy runs. Two peers with one identity disturb each other.",
        remedy="Stop the other one, or move `identity.key` away here: a new one is made. A run for members then asks "
        "anew who you are.",
    ),
    Trouble(
        title="Receipt not valid",
        severity="stops",
        patterns=(
            "expected a peer whose gradient has counted",
            "the receipt was changed after it was signed",
            "the receipt cannot be checked",
        ),
        means="A receipt says what a peer has given. This peer has given nothing yet, or what is checked is no "
        "receipt as its peer has signed it.",
        remedy="Take part until the end of an epoch with others, and run `dalle-lib receipt` again. For another's "
        "receipt, ask its owner for the file as it was written.",
    ),
)
