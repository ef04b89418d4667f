"""Runs for members: access tokens, the authority that gives them, its refusals and bans."""

from dalle_lib.troubles.trouble import Trouble

TROUBLES = (
    Trouble(
        title="Access token not renewed",
        severity="costs",
        patterns=(
            "access token counts until ... and was not renewed",
            "access token ended at ..., so others refuse it",
            "access token was not renewed",
            "the others were not told of this peer",
            "this look at what a member needs failed",
        ),
        means="A member's access token lasts for a short time, and the authority did not give the next one yet. The "
        "peer trains on, and tries again. When the present one has ended, others leave its gradients out.",
        remedy="Wait: the message says why, and most reasons pass. If the peer has to leave, `dalle-lib join` goes on "
        "from what is saved. If your organiser makes access tokens by hand, ask for a new one.",
    ),
    Trouble(
        title="Proof of identity ends",
        severity="note",
        patterns=("Your proof of identity counts until",),
        means="The run asks who you are, and its organiser says for how long an answer counts. At that time the peer "
        "saves and leaves.",
        remedy="Nothing until then. Afterwards join by the same line, and approve anew: it goes on from where it was. "
        "To do so earlier, stop the peer and join again.",
    ),
    Trouble(
        title="Access token ended",
        severity="stops",
        patterns=("access token ended at ..., and there is no other", "the access token of ... expired"),
        means="The access token has ended and nothing has brought another: your last proof of who you are counts no "
        "longer, the authority refuses, or your organiser gives access tokens by hand.",
        remedy="Start the peer again with `dalle-lib join`, which asks who you are; its progress is saved. If the "
        "access token is new, set this computer's clock.",
    ),
    Trouble(
        title="Banned",
        severity="stops",
        patterns=("is banned",),
        means="The run's organiser has shut out this user or this peer. Its progress is saved on its own disk.",
        remedy="Ask the organiser why. Another name does not help.",
    ),
    Trouble(
        title="Not a member",
        severity="stops",
        patterns=(
            "expected a member of the Hugging Face organisation",
            "expected a peer that this authority's settings name",
        ),
        means="The run is for members of an organisation on the Hub, and yours is another user, or the organisation "
        "has not let you in yet. A bootstrap peer needs to be named in the authority's settings.",
        remedy="Join the organisation by the link in the message, wait until you are let in, and try again. Check as "
        "which user you are logged in on the Hub.",
    ),
    Trouble(
        title="Organisations hidden",
        severity="stops",
        patterns=("expected the Hub to say whether ... is a member",),
        means="The Hub did not tell the authority of which organisations you are a member.",
        remedy="Begin again, and allow it on the Hub's page; or make a Hub token that may read it, and join with "
        "`--hub-token`.",
    ),
    Trouble(
        title="Prove who you are again",
        severity="stops",
        patterns=(
            "expected a proof of identity",
            "Prove your identity again",
            "expected a code of the last minutes",
            "expected a new code, but this one has given",
            "expected an approval before the code expired",
            "expected your approval, but you refused",
            "expected an access token of this peer in",
        ),
        means="The code was not approved in time, was used or was refused; or your last proof counts no longer: the "
        "run's organiser has set for how long it does.",
        remedy="Start `dalle-lib join` again, open the page that it shows, compare the peer's name and the code with "
        "it, and approve.",
    ),
    Trouble(
        title="Hub token refused",
        severity="stops",
        patterns=(
            "expected a Hub token of a user",
            "expected a Hub token of one word",
            "expected a Hub token that proves who you are",
            "takes no codes: prove who you are by your Hub token",
            "expected a run with a client_id in its card",
        ),
        means="The run wants a Hub token, and there is none, or the Hub does not know it, or it was not copied whole.",
        remedy="Make one of type *read* at https://huggingface.co/settings/tokens, run `hf auth login`, and join with "
        "`--hub-token`. Show it to nobody else.",
    ),
    Trouble(
        title="Too many peers",
        severity="stops",
        patterns=("expected at most ... peers of one user",),
        means="The run takes only so many peers of one user, and yours are more.",
        remedy="Stop one of them. Its place is free when its access token has ended, which the message tells.",
    ),
    Trouble(
        title="Authority busy",
        severity="costs",
        patterns=(
            "too many requests came from",
            "too many requests are coming now",
            "too many volunteers are joining now",
            "this authority cannot sign",
            "the data base is not there now",
            "the authority failed",
            "expected an answer of the Hugging Face Hub, but",
        ),
        means="The run's authority has too much to do, waits for the Hub, or has a fault. A peer that takes part goes "
        "on until its access token ends.",
        remedy="Try again in some minutes. If it stays so, tell the run's organiser.",
    ),
    Trouble(
        title="Authority away",
        severity="costs",
        patterns=(
            "the authority of ... cannot be reached",
            "the authority of ... answers",
            "the authority of ... sends without end",
            "the authority of ... gives an answer that cannot be read",
            "the authority of ... says: ",
            "the authority's answer has no",
            "the authority names a link that is no https address",
            "No newer ban list was read",
            "counts as no ban list",
            "the ban list expired",
            "the ban list is for the run",
            "it is an old one",
            "Going on with an access token until",
        ),
        means="The server that gives access tokens and the ban list does not answer, or not as it should. Nobody is "
        "refused by that, and peers with an access token go on.",
        remedy="Try again later. If other pages of the internet open, tell the run's organiser.",
    ),
    Trouble(
        title="Request refused",
        severity="stops",
        patterns=(
            "expected a run of this authority, but",
            "expected a new signature, but",
            "expected a signature by the peer's key",
            "expected another JSON object",
            "expected ... in base64. Update dalle-lib",
            "expected a whole request",
            "expected at most ... bytes, but more came",
        ),
        means="The authority does not understand this peer: kit and authority are of different versions, the address "
        "in the card is wrong, or a proxy changes what is sent.",
        remedy="Update the kit and try again. Then tell the run's organiser.",
    ),
    Trouble(
        title="No access token",
        severity="stops",
        patterns=(
            "is for members: expected an access token in",
            "holds no access token",
            " does not count: ",
            "an access token is malformed",
            "the access token is for peer",
            "is for the run ..., not for ...: ask for one",
            "expected a card with the address of its authority's server",
            "FAILED access token",
        ),
        means="The run is for members, and the folder has no access token that lets this peer take part.",
        remedy="Start with `dalle-lib join`, which asks who you are. Without a server in the card, send the organiser "
        "what `dalle-lib id` prints, and put the file that you get where the message says.",
    ),
    Trouble(
        title="Identity broken",
        severity="stops",
        patterns=(
            "to hold a peer's identity",
            "Move the peer's identity file away",
            "the peer's key cannot be read",
            "expected the peer's key to be RSA",
            "expected the exponent of the peer's key",
            "the peer's key is not in canonical DER",
        ),
        means="The file `identity.key` in the peer's folder is damaged, or is a key of another kind.",
        remedy="Move it away: a new one is made. A run for members then asks anew who you are.",
    ),
    Trouble(
        title="Refused by the authority",
        severity="stops",
        patterns=("refuses this peer",),
        means="The run's authority gives no access token. The rest of the message is its reason.",
        remedy="Do what it says, and then try again.",
    ),
)
