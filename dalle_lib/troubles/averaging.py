"""What happens between peers: rounds of averaging, states, and what peers find wrong with each other."""

from dalle_lib.troubles.trouble import Trouble

TROUBLES = (
    Trouble(
        title="Training alone",
        severity="costs",
        patterns=(
            "Training alone: nobody else is there now",
            "You have trained alone so far",
            "Peers that have left say that",
        ),
        means="No other trainer is seen. Either nobody else is there now, or the run is complete, or yours is in "
        "another run than the others.",
        remedy="Compare the run's name and its `run.json` with the others'. If they have left, what you train counts "
        "once they are back.",
    ),
    Trouble(
        title="View is old",
        severity="costs",
        patterns=("Last looked for the others",),
        means="The peer has not seen the others for half a minute or more: the network or the machine hangs.",
        remedy="Wait for some minutes; it looks again by itself. Otherwise leave and join again.",
    ),
    Trouble(
        title="Nobody averages",
        severity="costs",
        patterns=("nobody can average for this run's peers now",),
        means="Peers send what they computed to those that average it for all, and nobody who may do that can be "
        "reached: all peers connect out only, as with `--client-mode` or behind home routers, or the run's card leaves "
        "it to peers that the organiser vouches for, and these are away. Each peer makes its steps with its own "
        "gradient, and the peers' parameters drift apart. It is told once a minute for as long as it lasts.",
        remedy="Where the card lets all peers average, one that the others can reach is enough: forward a port of the "
        "router to a machine, and join there with `--no-client-mode --port`. Otherwise ask the organiser to start a "
        "peer that is vouched for. Then it goes on by itself: the parameters are averaged soon.",
    ),
    Trouble(
        title="Averaging failed",
        severity="costs",
        patterns=("averaging failed: ", "this peer has its own gradient only", "averaging parameters failed"),
        means="A round did not come about, so this peer made the step with its own gradient alone. It averages its "
        "parameters with the others' soon, and nothing of the run is lost.",
        remedy="Once in a while it is usual when peers come and go. If it happens in every other epoch, the line is "
        "too slow or unsteady: run `dalle-lib doctor`.",
    ),
    Trouble(
        title="Parts missing",
        severity="costs",
        patterns=("some parts did not come back", "this peer has its own values in part"),
        means="A reducer fell silent in the round, or the average of what all sent cannot be right, as where one "
        "sends huge values. In that part this peer has its own gradient, elsewhere the average.",
        remedy="Nothing: the parameters are averaged soon.",
    ),
    Trouble(
        title="Averaged in two groups",
        severity="costs",
        patterns=("The gradients of epoch ... were averaged in two groups",),
        means="The peers of an epoch averaged their gradients in two groups, each with fewer samples, so their "
        "parameters differ a little. They are averaged after the next update. The run is not split.",
        remedy="Nothing. If it happens often, machines or lines are slow for the run: its organiser may raise "
        "`longest_matchmaking_s` in the next one.",
    ),
    Trouble(
        title="Too late for a round",
        severity="note",
        patterns=("it came too late for the others' round",),
        means="The others' round had begun. The gradient counts in the next one.",
        remedy="Nothing. If it happens in most epochs, run `dalle-lib doctor`: the line may be too slow.",
    ),
    Trouble(
        title="Ahead of a round",
        severity="note",
        patterns=("it was an epoch ahead of the others' round",),
        means="The peer had ended an epoch that most of the others had not, as when it lost them for a moment. It goes "
        "back to their epoch. Its gradient counts in their round; its parameters become theirs at the next average.",
        remedy="Nothing. If it happens often, run `dalle-lib doctor`: the line may be unsteady.",
    ),
    Trouble(
        title="Waiting for a round",
        severity="note",
        patterns=("Waiting for the others' next round",),
        means="The peer has parameters of its own, as a newcomer or after a pause. It computes, and its gradients "
        "count once its parameters have been averaged with the others', which takes an epoch or two.",
        remedy="Nothing.",
    ),
    Trouble(
        title="Parameters off",
        severity="costs",
        patterns=("The parameters of this peer were off by", "the parameters of this peer were off by"),
        means="After an update, this peer's parameters were further from those of most others than averaging in 8 bits "
        "and split rounds explain. Its memory may have damaged them, or it missed updates without knowing. "
        "It takes over another peer's state, at most once in ten epochs, or the others' next average of parameters "
        "where nobody gives one; what it had computed for the epoch is dropped.",
        remedy="Once in months may be chance. If it comes back, test the machine's memory, and end what overclocks it: "
        "what it computes is not to be trusted.",
    ),
    Trouble(
        title="Run split",
        severity="costs",
        patterns=(
            "The run is split: ",
            "The run is one again: ",
            "Your part of the run gave way: ",
            "it trained apart from the others since epoch",
            "the parameters of this peer's part of the run are not those of most users",
        ),
        means="A part of the run was cut off, as by a network that failed, and both parts trained on by themselves. "
        "The part with most users goes on; of parts with as many users the one that has computed more. The peers of "
        "the others take over its state, also where it is of an earlier epoch, and say how many of their own samples "
        "are lost. Both sides say when the run is one again.",
        remedy="Nothing: it heals by itself within some epochs. If it comes back, give the run first peers in several "
        "places, so that no single line carries all of them.",
    ),
    Trouble(
        title="Samples lost",
        severity="costs",
        patterns=(
            "the others are at epoch",
            "are not in the others' update",
        ),
        means="The others were further on. The peer takes over what it missed; what it had computed for the epoch "
        "that was over fits no more. Its gradients count when its parameters have been averaged with the others'.",
        remedy="Nothing, if it follows a pause or a lost network. If it comes back every few epochs, the machine or "
        "the line is too slow for the run: `dalle-lib doctor`.",
    ),
    Trouble(
        title="Wrong average",
        severity="costs",
        patterns=("its average of part", "it does not say what it sent to"),
        means="A part was averaged again by another peer, and the two results differ: one of them is wrong, or lies.",
        remedy="Once may be a fault of a machine. If one peer is named again and again, tell the organiser, who can "
        "ban it.",
    ),
    Trouble(
        title="Tensors refused",
        severity="costs",
        patterns=(
            "its tensors did not count",
            "its tensors were refused",
            "it claims a weight of",
            "its report of the senders' weights cannot be used",
        ),
        means="Another peer sent gradients that cannot be right, or too long ones. They were left out or counted less.",
        remedy="Nothing. If the one that is named is yours, see whether its GPU computes: `dalle-lib doctor`.",
    ),
    Trouble(
        title="Too slow for the others",
        severity="costs",
        patterns=(
            "the others went on without the rest of its tensors",
            "its tensors came too slowly",
            "it says that ours came too slowly",
        ),
        means="What a peer sends comes too slowly, so the others went on: what had come by then counts, the rest of "
        "its gradient is missing in this round, and it takes over the others' parameters soon. If most of the others "
        "say that of this peer, it averages for others only in need in the next 4 rounds, and in up to 64 where it is "
        "too slow again: so it sends about half as much. If one alone says so, that one's line may be slow.",
        remedy="Nothing, once in a while. If your peer is named in every other epoch, end what else uploads, or use a "
        "faster line or a cable. `--client-mode` helps only where others reach your machine: behind a home router a "
        "peer sends no averages anyway. `dalle-lib doctor` says whether the line is enough for the run. Where it is "
        "not, no setting helps, and only a part of what you compute counts: join a run with a smaller model, or from "
        "another line.",
    ),
    Trouble(
        title="Peer silent",
        severity="costs",
        patterns=("it sent none of its tensors", "it did not reduce its parts"),
        means="Another peer left, or its line is too slow, in the middle of a round. The others waited for it and "
        "then went on without. Or what it gave cannot be an average: it is refused at once.",
        remedy="Nothing. If the one that is named is yours, its line is slow or unsteady: `dalle-lib doctor`.",
    ),
    Trouble(
        title="Stranger refused",
        severity="note",
        patterns=(
            "was not let into a group",
            "may not send tensors",
            "was refused our state",
            "has no valid access token of this run",
            "its access token cannot be read",
            "its access token is about to expire",
            "not following ",
        ),
        means="Somebody wanted to take part who may not: without an access token of this run, in another epoch, or "
        "after failing its part in the last rounds.",
        remedy="Nothing. If the one that is named is yours, its access token has ended or its clock is off: "
        "`dalle-lib doctor`.",
    ),
    Trouble(
        title="Leader avoided",
        severity="costs",
        patterns=(
            "its answer cannot be used",
            "it gathered a group and never began its round",
            " times in a row",
            "the group that it leads is refused",
            "the group of ... is refused",
            "rounds that it led failed",
        ),
        means="A peer gathered others for a round and did not do its part, or led groups again and again in which most "
        "of the others were missing, so this one follows it no more for a while.",
        remedy="Nothing.",
    ),
    Trouble(
        title="Waiting for a state",
        severity="note",
        patterns=(
            "Waiting for the state of another peer",
            "Next to get the state of another peer",
            "Taking over the state of another peer",
            "Fetching the run's newest checkpoint",
        ),
        means="Your peer needs the model as the run has it now, from the Hub or from another peer. A peer gives its "
        "state to few at a time, and to nobody while it averages; the others stand in its line. What is here already "
        "is kept through such a pause.",
        remedy="Nothing. If the share that is here does not rise for minutes, `dalle-lib doctor` measures the line.",
    ),
    Trouble(
        title="State not taken",
        severity="costs",
        patterns=("its state did not arrive", "its state is refused", "may not give its state"),
        means="Another peer gave no state of the run, or one that cannot be right. It gives none to who had it four "
        "times in an hour, nor where many wait for it. The next donor is asked.",
        remedy="Nothing. If no donor is left, the peer goes on from its own state and averages its parameters.",
    ),
    Trouble(
        title="Claims not believed",
        severity="note",
        patterns=(
            "its record cannot be read",
            "it wrote a record in another peer's name",
            "has more than ... peers",
            "peers in it, but at most",
            "it claims epoch",
            "it claims ... samples",
        ),
        means="A peer says of itself what cannot be, such as an epoch far beyond the others'. It is not believed, or "
        "counts for less.",
        remedy="Nothing. If the one that is named is yours, update the kit.",
    ),
)
