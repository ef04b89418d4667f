"""What may go wrong with the data that a peer trains on."""

from dalle_lib.troubles.trouble import Trouble

TROUBLES = (
    Trouble(
        title="Waiting for data",
        severity="costs",
        patterns=("; attempt ..., again in ... s",),
        means="The server of the data does not answer, or too slowly. The peer waits and asks again, for up to half "
        "an hour, and loses nothing that it has read.",
        remedy="Nothing, unless it stays so: then see whether this machine is online.",
    ),
    Trouble(
        title="Data away",
        severity="stops",
        patterns=("did not give ... for ... minutes", "its files cannot be listed"),
        means="The server of the data has not answered for half an hour, so the peer ended. Its progress is saved.",
        remedy="See whether this machine is online, and join again later: it goes on where it was.",
    ),
    Trouble(
        title="Data of another run",
        severity="stops",
        patterns=(
            "is not the one that the run names",
            "but the run names one: copy the whole folder",
            "holds codes of another kind",
            "does not say what its codes mean",
            "was not written by dalle_lib.streaming.write_codes",
            "the state is that of another stream",
            "the receipt is one of the data",
        ),
        means="The data are others than those for which the run was made.",
        remedy="Copy the organiser's whole folder anew. If the data are on the Hub, tell the organiser.",
    ),
    Trouble(
        title="Data refused",
        severity="stops",
        patterns=(
            "has no manifest.json, which a data set at an address needs",
            ". Is the address right?",
            "is no address (...). Is it right?",
            "Is this machine's clock right?",
            "does not send parts of files",
            "cannot be read: the server answers",
            "cannot be read. Is the name right?",
            "does not say how long its files are",
            "compressed by Brotli row by row",
        ),
        means="The server gives no data by this name, not to you, or not in parts.",
        remedy="If the data are private, log in with a Hub token that may read them: `hf auth login`. Set this "
        "machine's clock. Otherwise tell the organiser.",
    ),
    Trouble(
        title="No data",
        severity="stops",
        patterns=(
            "no readable row",
            "expected Parquet files in",
            "Parquet files in ... can be read",
            "the data set has none",
            "write fewer, larger files",
        ),
        means="There is nothing to train on: no file of the data can be read, or the filters leave nothing.",
        remedy="Copy the data anew, or make them anew with `dalle-lib prepare`. Loosen the filters.",
    ),
    Trouble(
        title="Data begin anew",
        severity="note",
        patterns=("the data begin anew",),
        means="The peer has its model, but what it has noted of its place in the data does not fit any more. It "
        "begins a new pass.",
        remedy="Nothing.",
    ),
    Trouble(
        title="Data left out",
        severity="costs",
        patterns=(
            "left out: ",
            " rows left out",
            "is not the file that the manifest names",
            "has not the rows that the manifest says",
            "does not tell the hashes of its row groups",
            "ends before byte",
            "came than was asked for",
            " bytes, not ",
            ": ... is not there",
            "cannot be read as Parquet",
        ),
        means="Some rows or files of the data are damaged, changed, missing or filtered out. The peer trains on the "
        "others, and says how many it left out and why.",
        remedy="A few do no harm. If it is a large part, copy the data anew, or tell the organiser.",
    ),
)
