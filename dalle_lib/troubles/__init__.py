"""What each message of a peer means, how bad it is and what to do: the source of docs/troubleshooting.md."""

from dalle_lib.troubles.table import TOPICS, TROUBLES, trouble_in
from dalle_lib.troubles.trouble import SEVERITIES, Trouble
